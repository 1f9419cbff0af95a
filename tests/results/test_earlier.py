"""Results of earlier versions: read, predicted from and diagnosed."""

from pathlib import Path

import arviz as az
import numpy as np
import pymc as pm

import pymc_ep as pmep

RESULTS = Path(__file__).parents[1] / "reference" / "results"


def test_a_result_from_before_the_systems_had_folders():
    """Written by PyMC 6 and ArviZ 1 at version 0.1.0, with the modules where they then stood."""
    x = np.linspace(0.0, 1.0, 8)[:, None]
    with pm.Model(coords={"row": list("abcdefgh")}) as model:
        amp = pm.HalfNormal("amp", 1.0)
        f = pm.gp.Latent(cov_func=amp**2 * pm.gp.cov.ExpQuad(1, 0.4)).prior("f", X=x, dims="row")
        pm.Poisson("y", pm.math.exp(f), observed=[1, 0, 3, 2, 7, 4, 2, 1], dims="row")
    before = az.from_netcdf(str(RESULTS / "gaussian_process.nc"))
    predicted = pmep.predict(before, model, var_names=["f"])
    np.testing.assert_allclose(predicted["f_mean"], before["posterior_mean"]["f"], rtol=1e-6)
    np.testing.assert_allclose(predicted["f_sd"], before["posterior_sd"]["f"], rtol=1e-6)
    assert pmep.diagnose(before, model).attrs["verdict"].startswith("Nothing that was measured speaks against")
    again = pmep.fit(model=model, start=before, draws=0, progressbar=False)
    for name in ("amp", "f"):
        difference = again["posterior_mean"][name] - before["posterior_mean"][name]
        assert np.max(np.abs(difference / before["posterior_sd"][name])) < 0.02
