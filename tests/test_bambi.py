"""Models of Bambi: what its own functions make of a fit."""

import warnings

import numpy as np
import pandas as pd
import pytest

import pymc_ep as pmep

bmb = pytest.importorskip("bambi", reason="Bambi needs PyMC 6")
rng = np.random.default_rng(1)
DATA = pd.DataFrame({"x": 5 + rng.normal(size=60), "g": np.repeat(list("abcdef"), 10)})
DATA["y"] = rng.poisson(np.exp(0.2 * DATA["x"] - 1 + np.repeat(rng.normal(0, 0.5, 6), 10)))
FORMULA = "y ~ x + (1 | g)"


def test_predictions_are_ours():
    model = bmb.Model(FORMULA, DATA, family="poisson", center_predictors=False)
    idata = pmep.fit(model=model, random_seed=1)
    ours = pmep.predict(idata, model, response=True)
    mean = model.predict(idata, data=DATA, inplace=False)["posterior"]["mu"].mean(("chain", "draw"))
    np.testing.assert_allclose(mean, ours["y_mean"], rtol=0.02)


@pytest.mark.parametrize(("formula", "centred"), [(FORMULA, True), ("y ~ 0 + x + (1 | g)", False), ("y ~ 1", False)])
def test_centred_covariates_are_said(formula, centred):
    model = bmb.Model(formula, DATA, family="poisson")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        pmep.fit(model=model, hyper="fixed", draws=0)
    assert any("'Intercept' of this fit" in str(w.message) for w in caught) == centred
