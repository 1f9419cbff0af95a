"""Products of Gaussian variables: those of more values are integrated out, and the others are hyperparameters."""

import numpy as np
import pymc as pm
import pytest
from scipy import stats

import pymc_ep as pmep
from pymc_ep.forms import compiled_form

RNG = np.random.default_rng(0)
X = RNG.normal(size=30)
SEEN = X + 0.3 * RNG.normal(size=30)
Y = 0.7 * X + 0.5 * RNG.normal(size=30)


def errors_in_covariates():
    x = pm.Normal("x", 0.0, 1.0, shape=30)
    pm.Normal("seen", x, 0.3, observed=SEEN)
    pm.Normal("y", pm.Normal("slope", 0.0, 1.0) * x, 0.5, observed=Y)


def of_a_latent_mean():
    x = pm.Normal("x", 0.0, 1.0, shape=30)
    pm.Normal("seen", x, 0.3, observed=SEEN)
    rate = pm.Normal("rate", pm.Normal("slope", 0.0, 1.0) * x, 0.5, shape=30)
    pm.Poisson("y", pm.math.exp(rate), observed=np.arange(30) % 3)


def loadings():
    x, slope = pm.Normal("x", 0.0, 1.0, shape=30), pm.Normal("slope", 0.0, 1.0, shape=4)
    pm.Normal("y", x[:, None] * slope, 0.5, observed=np.outer(X, np.arange(4.0)))


@pytest.mark.parametrize("build", [errors_in_covariates, of_a_latent_mean, loadings])
def test_the_variable_of_fewer_values_is_a_hyperparameter(build):
    with pm.Model() as model:
        build()
    form = compiled_form(model).form
    assert form.hyper_names == ("slope",)
    assert "x" in form.latent_names


def test_equal_numbers_of_values_are_the_users_choice():
    with pm.Model() as model:
        a, b = pm.Normal("a", 0.0, 1.0, shape=4), pm.Normal("b", 0.0, 1.0, shape=4)
        pm.Normal("y", a * b, 1.0, observed=np.zeros(4))
    with pytest.raises(pmep.UnsupportedModelError, match=r"some of \['a', 'b'\].*as many values.*latent=\[...\]"):
        pmep.explain(model)


def test_errors_in_a_covariate_against_quadrature():
    """Given the slope b, (seen, y) has the covariance [[1 + 0.09, b], [b, b^2 + 0.25]]."""
    with pm.Model():
        errors_in_covariates()
        found = pmep.fit(draws=1000, random_seed=1, progressbar=False)
    slopes = np.linspace(-4.0, 4.0, 801)
    log_p, means = stats.norm.logpdf(slopes), []
    for k, b in enumerate(slopes):
        covariance = np.array([[1.09, b], [b, b**2 + 0.25]])
        both = np.column_stack([SEEN, Y])
        log_p[k] += stats.multivariate_normal.logpdf(both, np.zeros(2), covariance).sum()
        means.append(both @ np.linalg.solve(covariance, [1.0, b]))
    weight = np.exp(log_p - log_p.max())
    log_evidence = np.log(weight.sum() * (slopes[1] - slopes[0])) + log_p.max()
    weight /= weight.sum()
    mean = weight @ slopes
    sd = np.sqrt(weight @ (slopes - mean) ** 2)
    np.testing.assert_allclose(float(found["fit"]["log_evidence"]), log_evidence, atol=1e-3)
    np.testing.assert_allclose(float(found["posterior_mean"]["slope"]), mean, atol=0.02 * sd)
    np.testing.assert_allclose(float(found["posterior_sd"]["slope"]), sd, rtol=0.02)
    np.testing.assert_allclose(found["posterior_mean"]["x"], weight @ np.array(means), atol=1e-3)


def test_an_amplitude_with_a_normal_prior_is_a_hyperparameter():
    """y ~ N(0, amp^2 K + 1/4), with the jitter of `pm.gp.Latent` on K."""
    at = X[:8, None]
    with pm.Model():
        process = pm.gp.Latent(cov_func=pm.Normal("amp", 1.0, 0.3) ** 2 * pm.gp.cov.ExpQuad(1, 1.0))
        pm.Normal("y", process.prior("f", X=at, jitter=1e-8), 0.5, observed=Y[:8])
        found = pmep.fit(hyper="fixed", start={"amp": -0.7}, draws=0, progressbar=False)
    prior = 0.49 * np.exp(-0.5 * (at - at.T) ** 2) + 1e-8 * np.eye(8)
    covariance = prior + 0.25 * np.eye(8)
    exact = stats.multivariate_normal.logpdf(Y[:8], np.zeros(8), covariance)
    np.testing.assert_allclose(float(found["fit"]["log_evidence"]), exact, rtol=1e-8)
    np.testing.assert_allclose(found["posterior_mean"]["f"], prior @ np.linalg.solve(covariance, Y[:8]), rtol=1e-6)


@pytest.mark.filterwarnings("ignore:Data in x contains missing values")
def test_a_covariate_with_missing_values_is_returned_whole():
    """And so is any other Deterministic of what is observed, with its values."""
    seen = np.ma.masked_array(X[:10], np.arange(10) > 7)
    with pm.Model():
        slope, x = pm.Normal("slope", 0.0, 1.0), pm.Normal("x", 0.0, 1.0, observed=seen)
        y = pm.Normal("y", slope * x, 0.5, observed=Y[:10])
        pm.Deterministic("residual", y - slope * x)
        draws = pmep.fit(draws=50, random_seed=1, progressbar=False)["posterior"]
    whole = draws["x"].to_numpy()
    np.testing.assert_array_equal(whole[..., 8:], draws["x_unobserved"])
    np.testing.assert_allclose(whole[..., :8], np.broadcast_to(X[:8], whole[..., :8].shape))
    fitted = draws["slope"].to_numpy()[..., None] * whole
    np.testing.assert_allclose(draws["residual"] + fitted, np.broadcast_to(Y[:10], whole.shape), rtol=1e-10)
