"""What `diagnose` says of fits whose quality is known."""

import arviz as az
import numpy as np
import pymc as pm
import pytest
import xarray as xr
from scipy import stats

import pymc_ep as pmep
from pymc_ep.compat import group

WEIGHTS = {"pareto_k", "weights_ess", "log_evidence_importance", "importance_correction"}
CORRECTION = {"cumulant_correction", "log_evidence_cumulant"}


def test_a_gaussian_posterior_is_exact(gaussian):
    model, result = gaussian
    found = pmep.diagnose(result, model)
    evidence = stats.multivariate_normal(np.full(9, 0.3), _total()).logpdf(group(result, "observed_data")["y"])
    assert found["log_weight"].size == 1000
    np.testing.assert_allclose(found["weights_ess"], 1000, rtol=1e-9)
    for name in ("log_evidence", "log_evidence_importance", "log_evidence_cumulant"):
        np.testing.assert_allclose(found[name], evidence, rtol=1e-8)
    for name in ("skewness", "kurtosis", "non_gaussianity", "evidence_share"):
        np.testing.assert_allclose(found[f"y_{name}"], 0.0, atol=1e-8)
    assert bool(found["converged"]) and found["max_change"] < 1e-8
    assert "pareto_k" not in found
    assert found.attrs["absent"].startswith("pareto_k: weights are nearly equal (relative effective sample size 1.00)")
    assert found.attrs["status"].startswith("converged")


def _total():
    x = np.linspace(0.0, 3.0, 9)
    return np.exp(-0.5 * np.subtract.outer(x, x) ** 2) + (0.25 + 1e-6) * np.eye(9)


def test_both_corrections_meet(poisson):
    """They share nothing but the fit: one has draws, the other cumulants."""
    model, result = poisson
    found = pmep.diagnose(result, model)
    assert 2000 < found["weights_ess"] < 4000
    difference = float(found["log_evidence_importance"] - found["log_evidence_cumulant"])
    assert abs(difference) < 4 * float(found["log_evidence_importance_mcse"]) + 1e-3
    np.testing.assert_allclose(
        found["importance_correction"], found["log_evidence_importance"] - found["log_evidence"], rtol=1e-9
    )


def test_worst_sites_are_the_least_gaussian(poisson):
    model, result = poisson
    found = pmep.diagnose(result, model)
    values = found["y_non_gaussianity"].to_numpy()
    assert found["y_non_gaussianity"].dims == ("x",)
    assert found["worst_index"][0] == values.argmax()
    np.testing.assert_array_equal(found["worst_non_gaussianity"], np.sort(values)[::-1])
    observed = group(result, "observed_data")["y"].to_numpy()
    np.testing.assert_array_equal(found["worst_observed"], observed[found["worst_index"]])
    assert set(found["worst_variable"].values) == {"y"}


def test_a_fit_read_back_from_disk_says_the_same(poisson, tmp_path):
    model, result = poisson
    result.to_netcdf(tmp_path / "fit.nc")
    fresh, again = pmep.diagnose(result, model), pmep.diagnose(az.from_netcdf(tmp_path / "fit.nc"), model)
    xr.testing.assert_allclose(fresh, again)
    again.to_netcdf(tmp_path / "found.nc")
    stored = xr.load_dataset(tmp_path / "found.nc")
    xr.testing.assert_allclose(type(again)(stored.data_vars, stored.coords, stored.attrs), again)
    assert repr(again).startswith("Nothing that was measured") and again._repr_html_().startswith("<pre>Nothing")


def test_the_model_of_the_context(poisson):
    model, result = poisson
    with model:
        xr.testing.assert_identical(pmep.diagnose(result)["y_skewness"], pmep.diagnose(result, model)["y_skewness"])


def test_without_stored_densities_the_weights_are_of_other_draws(poisson):
    model, result = poisson
    stored = pmep.diagnose(result, model)
    found = pmep.diagnose(pmep.fit(model=model, draws=0, progressbar=False), model)
    assert found["log_weight"].dims == ("weighted_draw",)
    error = np.hypot(found["log_evidence_importance_mcse"], stored["log_evidence_importance_mcse"])
    assert abs(found["log_evidence_importance"] - stored["log_evidence_importance"]) < 4 * error


def test_a_density_that_is_too_much_work_is_absent(monkeypatch):
    with pm.Model() as model:
        f = pm.MvNormal("f", np.zeros(6), pm.HalfNormal("amp", 1) * (np.eye(6) + 0.5))
        pm.Poisson("y", pm.math.exp(f), observed=[0, 1, 3, 9, 30, 2])
    monkeypatch.setattr("pymc_ep.diagnostics.report._BUDGET", 1.0)
    found = pmep.diagnose(pmep.fit(model=model, hyper="optimize", draws=0, progressbar=False), model)
    assert not WEIGHTS & set(found) and "log_weight" not in found
    assert all(name in found.attrs["absent"] for name in WEIGHTS) and "too much work" in found.attrs["absent"]
    assert set(found) >= CORRECTION


def test_few_draws(poisson):
    model, _ = poisson
    found = pmep.diagnose(pmep.fit(model=model, draws=5, chains=2, log_likelihood=True, progressbar=False), model)
    assert not WEIGHTS & set(found) and found["log_weight"].shape == (2, 5)
    assert "fewer than 25 draws" in found.attrs["absent"]


def test_the_expansion_is_about_plain_converged_ep(poisson):
    model, _ = poisson
    found = pmep.diagnose(pmep.fit(model=model, power=0.5, draws=0, progressbar=False), model)
    assert not CORRECTION & set(found) and "power 1" in found.attrs["absent"]
    assert np.abs(found["y_skewness"]).max() > 0.05
    with pytest.warns(pmep.ConvergenceWarning):
        early = pmep.fit(model=model, max_iter=1, draws=0, progressbar=False)
    found = pmep.diagnose(early, model)
    assert not bool(found["converged"]) and not CORRECTION & set(found)
    assert "did not converge" in found.attrs["absent"]


def test_hyperparameters_are_integrated_in_the_weights():
    """A learned noise scale: the marginal likelihood by quadrature over it."""
    y = np.random.default_rng(5).normal(0.4, 0.8, size=60)
    with pm.Model() as model:
        sigma = pm.HalfNormal("sigma", 1.0)
        level = pm.Normal("level", 0.0, 1.0)
        pm.Normal("y", level + np.zeros(60), sigma, observed=y)
    found = pmep.diagnose(pmep.fit(model=model, hyper="optimize", draws=1000, random_seed=4, progressbar=False), model)
    grid = np.linspace(0.4, 1.6, 4001)
    centred, n = np.square(y).sum(), len(y)
    total = [
        -0.5 * n * np.log(2 * np.pi * s**2)
        - 0.5 * np.log1p(n / s**2)
        - 0.5 * (centred / s**2 - (y.sum() / s**2) ** 2 / (1 + n / s**2))
        + stats.halfnorm.logpdf(s)
        for s in grid
    ]
    expected = np.log(np.trapezoid(np.exp(np.array(total) - max(total)), grid)) + max(total)
    assert "pareto_k" not in found or found["pareto_k"] < 0.7
    assert abs(float(found["log_evidence_importance"]) - expected) < 4 * float(found["log_evidence_importance_mcse"])
    assert abs(float(found["log_evidence_gaussian"]) - expected) < 0.05
    assert float(found["log_evidence"]) - expected > 0.5
    correction = found["log_evidence_importance"] - found["log_evidence_gaussian"]
    np.testing.assert_allclose(found["importance_correction"], correction, rtol=1e-12)


def test_several_observed_variables():
    with pm.Model(coords={"row": [0, 1], "column": list("abc")}) as model:
        f = pm.Normal("f", 0.0, 1.0, dims=("row", "column"))
        pm.Poisson("count", pm.math.exp(f), observed=[[0, 1, 2], [3, 1, 9]], dims=("row", "column"))
        pm.Normal("real", f[0], 0.5, observed=[0.3, 0.1, 2.0], dims="column")
    found = pmep.diagnose(pmep.fit(model=model, hyper="optimize", draws=0, progressbar=False), model)
    assert found["count_skewness"].dims == ("row", "column") and found["real_skewness"].dims == ("column",)
    np.testing.assert_allclose(found["real_skewness"], 0.0, atol=1e-8)
    assert found.sizes["worst_site"] == 9
    assert set(found["worst_variable"].values[:6]) == {"count"}


def test_solvers_say_the_same():
    """Few coefficients behind many observations, solved in the space of either."""
    rng = np.random.default_rng(9)
    design = rng.normal(size=(30, 3))
    with pm.Model() as model:
        beta = pm.Normal("beta", 0.0, 1.0, shape=3)
        pm.Bernoulli("y", logit_p=pm.math.dot(design, beta), observed=rng.integers(0, 2, 30))
    options = {"model": model, "draws": 0, "progressbar": False}
    found = [pmep.diagnose(pmep.fit(solver=s, **options), model) for s in ("observations", "coefficients")]
    for name in ("y_skewness", "y_kurtosis", "y_evidence_share", "log_evidence_cumulant"):
        np.testing.assert_allclose(found[0][name], found[1][name], rtol=1e-5, atol=1e-9)


def test_a_container_of_another_making(poisson):
    model, _ = poisson
    with model:
        prior = pm.sample_prior_predictive(2, random_seed=0)
    with pytest.raises(ValueError, match="no group 'fit'"):
        pmep.diagnose(prior, model)


def test_analytic_leave_one_out_meets_that_of_draws():
    """EP's cavities against importance weights of its draws, by ArviZ, where no observation is influential."""
    counts = np.random.default_rng(6).poisson(2.0, size=(9, 8))
    with pm.Model() as model:
        f = pm.MvNormal("f", np.full(9, 0.5), np.exp(-0.5 * np.subtract.outer(np.arange(9), np.arange(9)) ** 2 / 9))
        pm.Poisson("y", pm.math.exp(f[:, None] + np.zeros((9, 8))), observed=counts)
    result = pmep.fit(model=model, hyper="optimize", draws=2000, log_likelihood=True, random_seed=7, progressbar=False)
    loo = az.loo(result, var_name="y", pointwise=True)
    pointwise = np.asarray(loo.elpd_i if hasattr(loo, "elpd_i") else loo.loo_i)
    analytic = group(result, "fit")["y_loo"].to_numpy()
    assert np.ptp(analytic) > 1.0
    np.testing.assert_allclose(pointwise, analytic, atol=0.03)
    np.testing.assert_allclose(pointwise.sum(), analytic.sum(), atol=0.2)


@pytest.mark.parametrize(("place", "warned"), [(1, True), (slice(None), False)], ids=["one count", "counts"])
def test_counts_that_see_no_rate(place, warned):
    """Next to no light under a rectified link: the fit is right, and what it finds is the prior's."""
    counts = np.zeros((4, 6), dtype=int)
    counts.ravel()[place] = 3
    with pm.Model() as model:
        f = pm.Normal("f", 0.0, 2.0, shape=(4, 6))
        pmep.RectifiedPoisson("y", f, observed=counts)
    result = pmep.fit(model=model, hyper="optimize", draws=1000, random_seed=1, progressbar=False)
    found = pmep.diagnose(result, model)
    below = (group(result, "posterior")["f"] < 0).mean(("chain", "draw")).to_numpy()
    np.testing.assert_allclose(found["y_dark"], below, atol=0.04)
    if warned:
        assert "'y' is more likely below zero than above at 23 of 24" in found.attrs["warning"]
        assert "'f'" in found.attrs["warning"] and "y_intensity" in found.attrs["warning"]
    else:
        assert found.attrs["warning"] == ""


def test_other_counts_are_never_dark(poisson):
    model, result = poisson
    found = pmep.diagnose(result, model)
    assert "y_dark" not in found and found.attrs["warning"] == ""
