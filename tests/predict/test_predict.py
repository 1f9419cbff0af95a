"""Predictions against GP regression in closed form, Monte Carlo and PyMC's own conditionals."""

import arviz as az
import numpy as np
import pymc as pm
import pytest
import scipy.stats

import pymc_ep as pmep
from pymc_ep.compat import group, make_container
from pymc_ep.predict.rebuild import posterior_of
from pymc_ep.results import fit_group

N = 12
X = np.linspace(0.0, 3.0, N)[:, None]
NEW = np.array([[-0.5], [1.1], [3.0], [4.2]])
REALS = np.sin(2 * X.ravel()) + 0.3 * np.random.default_rng(8).normal(size=N)
COUNTS = np.array([2, 3, 1, 4, 6, 5, 3, 2, 0, 1, 0, 2])
SIGMA, ELL, LEVEL_SD = 0.4, 0.7, 2.0


@pytest.fixture(scope="module")
def gaussian():
    """A fit at fixed hyperparameters, and the model with predictions added afterwards."""
    with pm.Model(coords={"new": np.arange(len(NEW))}) as model:
        sigma = pm.HalfNormal("sigma", 1.0)
        level = pm.Normal("level", 0.5, LEVEL_SD)
        gp = pm.gp.Latent(mean_func=pm.gp.mean.Constant(level), cov_func=pm.gp.cov.ExpQuad(1, ELL))
        f = gp.prior("f", X=X)
        pm.Normal("y", f, sigma, observed=REALS)
        result = pmep.fit(hyper="fixed", start={"sigma": SIGMA}, draws=0, progressbar=False)
        f_new = gp.conditional("f_new", Xnew=NEW, dims="new")
        pm.Deterministic("difference", f_new[1:] - f_new[:-1])
        pm.Deterministic("cubed", f_new**3)
        pm.Normal("y_new", f_new, sigma, dims="new")
        pm.Poisson("count_new", pm.math.exp(f_new), dims="new")
        pm.Laplace("heavy_new", f_new, 0.5, dims="new")
    return model, result


@pytest.fixture(scope="module")
def regression():
    """Mean and covariance of f at the new inputs, by GP regression with a learned level."""

    def kernel(a, b):
        return np.exp(-0.5 * (a - b.T) ** 2 / ELL**2) + LEVEL_SD**2

    # gp.Latent stabilises the prior of f by 1e-6, and its conditional as well.
    total = kernel(X, X) + (SIGMA**2 + 1e-6) * np.eye(N)
    cross = kernel(NEW, X)
    mean = 0.5 + cross @ np.linalg.solve(total, REALS - 0.5)
    return mean, kernel(NEW, NEW) + 1e-6 * np.eye(len(NEW)) - cross @ np.linalg.solve(total, cross.T)


def test_conditional_is_gp_regression(gaussian, regression):
    model, result = gaussian
    mean, covariance = regression
    found = pmep.predict(result, model, var_names=["f_new"])
    assert found["f_new_mean"].dims == ("new",)
    # The closed form ignores that the level is tied to f by a stabilised covariance: 1e-6 of the variances.
    np.testing.assert_allclose(found["f_new_mean"], mean, atol=1e-5)
    np.testing.assert_allclose(found["f_new_sd"], np.sqrt(covariance.diagonal()), rtol=1e-5)


def test_a_mixture_is_gp_regression_at_each_draw_of_the_hyperparameters(caplog):
    with pm.Model() as model:
        sigma, ell = pm.HalfNormal("sigma", 1.0), pm.LogNormal("ell", np.log(ELL), 0.2)
        gp = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(1, ell))
        pm.Normal("y", gp.prior("f", X=X), sigma, observed=REALS)
        result = pmep.fit(hyper="integrate", draws=0, progressbar=False)
        gp.conditional("f_new", Xnew=NEW)
    found = pmep.predict(result, model, var_names=["f_new"])
    # PyTensor prints a rewrite that fails.
    assert not caplog.records
    posterior = posterior_of(result, model, ())
    drawn = posterior.form.constrained(posterior.thetas)

    def regressed(sigma, ell):
        def kernel(a, b):
            return np.exp(-0.5 * (a - b.T) ** 2 / ell**2)

        total, cross = kernel(X, X) + (sigma**2 + 1e-6) * np.eye(N), kernel(NEW, X)
        variance = 1.0 + 1e-6 - np.einsum("ij,ji->i", cross, np.linalg.solve(total, cross.T))
        return cross @ np.linalg.solve(total, REALS), variance

    means, variances = map(np.array, zip(*(regressed(*pair) for pair in zip(drawn["sigma"], drawn["ell"]))))
    assert len(means) > 100
    mean = posterior.weights @ means
    np.testing.assert_allclose(found["f_new_mean"], mean, atol=1e-5)
    spread = posterior.weights @ (variances + (means - mean) ** 2)
    np.testing.assert_allclose(found["f_new_sd"] ** 2, spread, rtol=1e-4)


def test_affine_functions_and_new_observations(gaussian, regression):
    model, result = gaussian
    mean, covariance = regression
    found = pmep.predict(result, model, var_names=["difference", "y_new", "f", "level"])
    np.testing.assert_allclose(found["difference_mean"], np.diff(mean), atol=1e-5)
    step = np.diff(np.eye(len(NEW)), axis=0)
    np.testing.assert_allclose(found["difference_sd"] ** 2, (step @ covariance @ step.T).diagonal(), rtol=1e-4)
    np.testing.assert_allclose(found["y_new_mean"], mean, atol=1e-5)
    np.testing.assert_allclose(found["y_new_sd"] ** 2, covariance.diagonal() + SIGMA**2, rtol=1e-5)
    for name in ("f", "level"):
        np.testing.assert_allclose(found[f"{name}_mean"], result["posterior_mean"][name], rtol=1e-8)
        np.testing.assert_allclose(found[f"{name}_sd"], result["posterior_sd"][name], rtol=1e-6)


def test_what_is_not_gaussian_is_refused(gaussian):
    model, result = gaussian
    with pytest.raises(pmep.UnsupportedModelError, match=r"'cubed'.*sample_posterior_predictive"):
        pmep.predict(result, model, var_names=["cubed"])
    with pytest.raises(pmep.UnsupportedModelError, match=r"no variable 'nothing'"):
        pmep.predict(result, model, var_names=["nothing"])
    with pytest.raises(pmep.UnsupportedModelError, match=r"'sigma'"):
        pmep.predict(result, model, var_names=["sigma"])


def test_log_predictive_against_quadrature(gaussian, regression):
    model, result = gaussian
    mean, covariance = regression
    counts, reals = np.array([0, 3, 1, 7]), np.array([0.1, -0.7, 2.0, 0.0])
    found = pmep.log_predictive(result, model, {"count_new": counts})
    assert found["count_new"].dims == ("new",)
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    f = mean[:, None] + np.sqrt(covariance.diagonal())[:, None] * nodes
    mass = scipy.stats.poisson.pmf(counts[:, None], np.exp(f)) @ weights / np.sqrt(2 * np.pi)
    np.testing.assert_allclose(found["count_new"], np.log(mass), rtol=1e-4)
    found = pmep.log_predictive(result, model, {"y_new": reals})
    expected = scipy.stats.norm.logpdf(reals, mean, np.sqrt(covariance.diagonal() + SIGMA**2))
    np.testing.assert_allclose(found["y_new"], expected, rtol=1e-4)
    found = pmep.log_predictive(result, model, {"heavy_new": reals, "y_new": reals})
    np.testing.assert_allclose(found["y_new"], expected, rtol=1e-4)
    f = mean[:, None] + np.sqrt(covariance.diagonal())[:, None] * np.linspace(-10.0, 10.0, 20_001)
    mass = scipy.stats.laplace.pdf(reals[:, None], f, 0.5) * scipy.stats.norm.pdf(np.linspace(-10.0, 10.0, 20_001))
    np.testing.assert_allclose(found["heavy_new"], np.log(mass.sum(axis=1) * 1e-3), rtol=1e-4)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([1, 2], r"'count_new'.*\(4,\).*\(2,\)"),
        ([1, -1, 0, 0], r"'count_new'.*-1.*index 1"),
        ([1, 0.5, 0, 0], r"'count_new'.*0\.5.*index 1"),
    ],
)
def test_log_predictive_of_bad_data(gaussian, values, message):
    model, result = gaussian
    with pytest.raises(pmep.InvalidDataError, match=message):
        pmep.log_predictive(result, model, {"count_new": values})


def test_log_predictive_of_what_is_no_likelihood(gaussian):
    model, result = gaussian
    with pytest.raises(pmep.UnsupportedModelError, match=r"'f_new'"):
        pmep.log_predictive(result, model, {"f_new": np.zeros(4)})
    for data in (None, ["count_new"], {}):
        with pytest.raises(ValueError, match="takes a mapping of names of variables to their new observations"):
            pmep.log_predictive(result, model, data)


def fit_of_counts(draws):
    """A model and its fit with hyperparameters and draws, of which each is a Gaussian to predict from."""
    with pm.Model() as model:
        ell = pm.InverseGamma("ell", mu=1.0, sigma=0.4)
        amp = pm.HalfNormal("amp", 1.0)
        gp = pm.gp.Latent(mean_func=pm.gp.mean.Constant(0.7), cov_func=amp**2 * pm.gp.cov.ExpQuad(1, ell))
        f = gp.prior("f", X=X)
        pm.Poisson("y", pm.math.exp(f), observed=COUNTS)
        result = pmep.fit(hyper="optimize", chains=1, draws=draws, random_seed=3, progressbar=False)
        f_new = gp.conditional("f_new", Xnew=NEW)
        pm.Poisson("y_new", pm.math.exp(f_new))
    return model, result


@pytest.fixture(scope="module")
def counts():
    return fit_of_counts(200)


def test_predictions_agree_with_draws():
    """PyMC's conditionals at our joint draws have the moments and the predictive density of the closed forms."""
    model, result = fit_of_counts(2000)
    with model:
        drawn = pm.sample_posterior_predictive(
            result, var_names=["f_new"], random_seed=5, progressbar=False, compile_kwargs={"mode": "FAST_COMPILE"}
        )
    # Beyond the data the spread of f is that of the prior, which the closed form takes at the mode.
    draws = group(drawn, "posterior_predictive")["f_new"].values[0][:, :3]
    found = pmep.predict(result, model, var_names=["f_new"])
    sd = found["f_new_sd"].values[:3]
    # Draws hold what the closed form has to first order in the hyperparameters only.
    np.testing.assert_allclose((draws.mean(axis=0) - found["f_new_mean"].values[:3]) / sd, 0.0, atol=0.15)
    np.testing.assert_allclose(draws.std(axis=0) / sd, 1.0, atol=0.15)
    inside = draws[:, 1]
    y = np.array([0, 2, 1, 3])
    density = np.log(scipy.stats.poisson.pmf(2, np.exp(inside)).mean())
    np.testing.assert_allclose(float(pmep.log_predictive(result, model, {"y_new": y})["y_new"][1]), density, atol=0.03)


def test_round_trip_through_a_file(counts, tmp_path):
    model, result = counts
    file = tmp_path / "fit.nc"
    result.to_netcdf(file)
    loaded = az.from_netcdf(file)
    fresh = pmep.predict(result, model, var_names=["f_new"])
    stored = pmep.predict(loaded, model, var_names=["f_new"])
    for name in ("f_new_mean", "f_new_sd"):
        np.testing.assert_allclose(stored[name], fresh[name], rtol=1e-12)
    y = {"y_new": np.array([0, 2, 1, 3])}
    np.testing.assert_allclose(
        pmep.log_predictive(loaded, model, y)["y_new"], pmep.log_predictive(result, model, y)["y_new"]
    )
    start, other = pmep.start_point(loaded), pmep.start_point(result)
    assert set(start) == set(other)
    again = pmep.fit(model=model, start=loaded, hyper="fixed", draws=0, progressbar=False)
    np.testing.assert_allclose(fit_group(again)["log_evidence"], fit_group(result)["log_evidence"], rtol=1e-9)


def test_results_of_another_model_are_refused(gaussian, counts):
    with pytest.raises(ValueError, match="another model: it has 'level', 'sigma', and this model has 'ell', 'amp'"):
        pmep.predict(gaussian[1], counts[0], var_names=["f"])
    with pytest.raises(ValueError, match="no group 'fit"):
        pmep.predict(make_container({"posterior": group(counts[1], "posterior")}), counts[0], var_names=["f"])


def test_prediction_from_data_swapped_for_new_ones():
    """pm.set_data after the fit: the posterior stays that of the fitted data, its predictions are of the new."""
    with pm.Model() as model:
        x = pm.Data("x", X.ravel())
        y = pm.Data("counts", COUNTS)
        a, b = pm.Normal("a"), pm.Normal("b")
        pm.Poisson("y", pm.math.exp(a + b * x), observed=y)
        result = pmep.fit(draws=0, progressbar=False)
        pm.set_data({"x": [1.0, 2.0], "counts": [1, 1]})
    np.testing.assert_allclose(pmep.predict(result, model, var_names=["a"])["a_mean"], result["posterior_mean"]["a"])
    with pytest.raises(ValueError, match=r"12 sites.*2 observations.*fit anew"):
        pmep.diagnose(result, model)
    with model:
        pm.set_data({"x": X.ravel(), "counts": COUNTS})
    np.testing.assert_allclose(pmep.predict(result, model, var_names=["a"])["a_mean"], result["posterior_mean"]["a"])


def test_new_inputs_that_may_change():
    """The shape of the conditional is read off data, and through these off other latent values."""
    with pm.Model():
        gp = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(1, ELL))
        pm.Poisson("y", pm.math.exp(gp.prior("f", X=X)), observed=COUNTS)
        result = pmep.fit(draws=0, progressbar=False)
        gp.conditional("f_new", Xnew=pm.Data("inputs", NEW))
        gp.conditional("f_fixed", Xnew=NEW[::-1])
        before = pmep.predict(result, var_names=["f_new", "f_fixed"])
        np.testing.assert_allclose(before["f_new_mean"], before["f_fixed_mean"].values[::-1], atol=1e-9)
        pm.set_data({"inputs": NEW[:2]})
        after = pmep.predict(result, var_names=["f_new"])
    np.testing.assert_allclose(after["f_new_sd"], before["f_new_sd"][:2], atol=1e-9)
