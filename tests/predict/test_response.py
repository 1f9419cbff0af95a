"""Responses against scipy's distributions integrated over the Gaussian predictor, and against draws."""

import numpy as np
import pymc as pm
import pytest
from scipy import stats
from scipy.special import expit

import pymc_ep as pmep
from pymc_ep.numerics.skewed_normal import skewed
from pymc_ep.predict.log_predictive import AtPredictor
from pymc_ep.predict.rebuild import posterior_of
from pymc_ep.predict.response import expected_response
from pymc_ep.results import fit_state
from pymc_ep.sites.compiled import compile_site

M, V = np.array([-0.6, 0.3, 1.4]), np.array([0.3, 0.9, 0.05])
Z = np.linspace(-10, 10, 20_001)
MASS = stats.norm.pdf(Z) * (Z[1] - Z[0])
TRIALS = np.array([3, 10, 40])


def law(name, eta):
    """The distribution of an observation given its predictor."""
    return {
        "poisson": lambda: stats.poisson(np.exp(eta)),
        "rectified": lambda: stats.poisson(np.maximum(eta, 0)),
        "softplus": lambda: stats.poisson(np.logaddexp(0, eta)),
        "negative binomial": lambda: stats.nbinom(2.5, 2.5 / (2.5 + np.exp(eta))),
        "logit": lambda: stats.bernoulli(expit(eta)),
        "probit": lambda: stats.bernoulli(stats.norm.cdf(eta)),
        "cloglog": lambda: stats.bernoulli(-np.expm1(-np.exp(eta))),
        "binomial": lambda: stats.binom(TRIALS[:, None], expit(eta)),
        "normal": lambda: stats.norm(eta, 0.7),
        "laplace": lambda: stats.laplace(eta, 0.7),
        "student": lambda: stats.t(4.0, eta, 0.7),
        "exponential": lambda: stats.expon(scale=np.exp(eta)),
        "gamma": lambda: stats.gamma(2.5, scale=np.exp(eta) / 2.5),
        "beta": lambda: stats.beta(5 * expit(eta), 5 * expit(-eta)),
    }[name]()


def observe(name, f, y):
    """Add the same as a PyMC variable."""
    exp = pm.math.exp(f)
    return {
        "poisson": lambda: pm.Poisson("y", exp, observed=y),
        "rectified": lambda: pmep.RectifiedPoisson("y", f, observed=y),
        "softplus": lambda: pmep.SoftplusPoisson("y", f, observed=y),
        "negative binomial": lambda: pm.NegativeBinomial("y", mu=exp, alpha=2.5, observed=y),
        "logit": lambda: pm.Bernoulli("y", logit_p=f, observed=y),
        "probit": lambda: pm.Bernoulli("y", pm.math.invprobit(f), observed=y),
        "cloglog": lambda: pm.Bernoulli("y", 1 - pm.math.exp(-exp), observed=y),
        "binomial": lambda: pm.Binomial("y", TRIALS, logit_p=f, observed=y),
        "normal": lambda: pm.Normal("y", f, 0.7, observed=y),
        "laplace": lambda: pm.Laplace("y", f, 0.7, observed=y),
        "student": lambda: pm.StudentT("y", nu=4.0, mu=f, sigma=0.7, observed=y),
        "exponential": lambda: pm.Exponential("y", scale=exp, observed=y),
        "gamma": lambda: pm.Gamma("y", alpha=2.5, beta=2.5 / exp, observed=y),
        "beta": lambda: pm.Beta("y", mu=pm.math.sigmoid(f), nu=5.0, observed=y),
    }[name]()


CONTINUOUS = ("normal", "laplace", "student", "exponential", "gamma", "beta")
DISCRETE = ("poisson", "rectified", "softplus", "negative binomial", "logit", "probit", "cloglog", "binomial")


@pytest.mark.parametrize("name", [*DISCRETE, *CONTINUOUS])
def test_every_link_against_its_own_distribution(name):
    with pm.Model() as model:
        f = pm.Normal("f", M, np.sqrt(V))
        observe(name, f, [0.3, 0.5, 0.6] if name in CONTINUOUS else [1, 0, 1])
        result = pmep.fit(draws=0, progressbar=False)
    # Moments of the predictor's posterior are taken as given. Its site alone has the skewness.
    centre, width = (result[f"posterior_{what}"]["f"].to_numpy()[:, None] for what in ("mean", "sd"))
    skewness = fit_state(result)["skewness"][:, None]
    site = law(name, M[:, None] + np.sqrt(V)[:, None] * Z)
    y = np.array([0.3, 0.5, 0.6] if name in CONTINUOUS else [1, 0, 1])[:, None]
    tilted = (site.pdf if name in CONTINUOUS else site.pmf)(y) * MASS
    tilted /= tilted.sum(axis=1, keepdims=True)
    centred = Z - tilted @ Z[:, None]
    exact = (tilted * centred**3).sum(axis=1) / (tilted * centred**2).sum(axis=1) ** 1.5
    np.testing.assert_allclose(skewness[:, 0], exact, atol=1e-4)
    eta = centre + width * skewed(Z, skewness)
    given = law(name, eta)
    expected = given.mean()
    mean = expected @ MASS
    spread = (expected - mean[:, None]) ** 2 @ MASS
    found = pmep.predict(result, model, response=True, quantiles=(0.1, 0.9))
    tolerance = 1e-4 if name == "rectified" else 1e-6  # a kink
    np.testing.assert_allclose(found["y_mean"], mean, rtol=tolerance)
    np.testing.assert_allclose(found["y_sd"], np.sqrt(spread), rtol=1e-3)
    assert found["y_quantile"].dims[0] == "quantile"
    for q in (0.1, 0.9):
        at = law(name, centre + width * skewed(stats.norm.ppf(q), skewness))
        np.testing.assert_allclose(found["y_quantile"].sel(quantile=q), at.mean()[:, 0], rtol=1e-6)
    found = pmep.predict(result, model, response=True, kind="observation", quantiles=(0.1, 0.9))
    np.testing.assert_allclose(found["y_mean"], mean, rtol=tolerance)
    np.testing.assert_allclose(found["y_sd"], np.sqrt(spread + given.var() @ MASS), rtol=1e-3)
    for q in (0.1, 0.9):
        level = found["y_quantile"].sel(quantile=q).to_numpy()[:, None]
        if name in CONTINUOUS:
            np.testing.assert_allclose(given.cdf(level) @ MASS, q, atol=2e-4)
        else:
            assert np.all(given.cdf(level) @ MASS >= q - 1e-9) and np.all(given.cdf(level - 1) @ MASS < q + 1e-9)


def test_a_mixture_over_hyperparameters_against_draws():
    rng = np.random.default_rng(3)
    y = rng.poisson(np.exp(1.0 + rng.normal(0, 0.8, size=15)))
    with pm.Model() as model:
        s = pm.HalfNormal("s", 1.0)
        f = pm.Normal("f", pm.Normal("level", 0.0, 1.0), s, shape=15)
        pm.Poisson("y", pm.math.exp(f), observed=y)
        result = pmep.fit(hyper="integrate", draws=20_000, chains=1, random_seed=4, progressbar=False)
    rate = np.exp(result["posterior"]["f"].to_numpy()[0])
    found = pmep.predict(result, model, response=True, var_names="y")
    np.testing.assert_allclose(found["y_mean"], rate.mean(axis=0), rtol=0.03)
    np.testing.assert_allclose(found["y_sd"], rate.std(axis=0), rtol=0.08)
    np.testing.assert_allclose(found["y_quantile"], np.quantile(rate, found["quantile"], axis=0), rtol=0.06)
    drawn = rng.poisson(rate)
    found = pmep.predict(result, model, response=True, kind="observation")
    np.testing.assert_allclose(found["y_sd"], drawn.std(axis=0), rtol=0.06)
    assert np.abs(found["y_quantile"] - np.quantile(drawn, found["quantile"], axis=0)).max() <= 1


def test_at_new_inputs():
    x = np.linspace(-1, 1, 12)
    with pm.Model(coords={"obs": np.arange(12)}):
        at = pm.Data("x", x, dims="obs")
        eta = pm.Deterministic("eta", pm.Normal("a", 0, 2) + pm.Normal("b", 0, 2) * at, dims="obs")
        pm.Bernoulli("y", logit_p=eta, observed=pm.Data("seen", np.tile([0, 1], 6), dims="obs"), dims="obs")
        result = pmep.fit(draws=40_000, chains=1, random_seed=1, progressbar=False)
        pm.set_data({"x": [0.0, 5.0], "seen": [0, 0]}, coords={"obs": [50, 51]})
        found, predictor = pmep.predict(result, response=True), pmep.predict(result, var_names="eta")
        posterior = posterior_of(result, pm.modelcontext(None), ["eta"])
    (variable,) = (v for v in posterior.form.form.affine if v.name == "eta")
    mean, sd = (predictor[f"eta_{what}"].to_numpy() for what in ("mean", "sd"))
    skewness = posterior.skewness([variable], {"eta": sd})["eta"]
    assert abs(skewness[0]) < 1e-6 < 0.05 < skewness[1]
    eta = mean[:, None] + sd[:, None] * skewed(Z, skewness[:, None])
    np.testing.assert_allclose(found["y_mean"], expit(eta) @ MASS, rtol=1e-6)
    a, b = (result["posterior"][name].to_numpy()[0] for name in "ab")
    drawn = expit(a + np.outer([0.0, 5.0], b))
    np.testing.assert_allclose(found["y_mean"], drawn.mean(axis=1), atol=0.006)
    np.testing.assert_allclose(found["y_quantile"], np.quantile(drawn, found["quantile"], axis=1), atol=0.015)
    assert found["y_mean"]["obs"].to_numpy().tolist() == [50, 51]
    assert found["y_quantile"].dims == ("quantile", "obs")


def test_bad_input():
    with pm.Model() as model:
        f = pm.Normal("f", 0.0, 1.0, shape=3)
        pm.Poisson("y", pm.math.exp(f), observed=[1, 2, 3])
        pm.OrderedLogistic("z", f, [-1.0, 1.0], observed=[0, 1, 2], compute_p=False)
        result = pmep.fit(draws=0, progressbar=False)
    with pytest.raises(ValueError, match=r"needs var_names=.*response=True"):
        pmep.predict(result, model)
    with pytest.raises(ValueError, match="kind='rate' must be 'expectation' or 'observation'"):
        pmep.predict(result, model, response=True, kind="rate")
    for quantiles in ((0, 1), ()):
        with pytest.raises(ValueError, match=r"quantiles=\(.*\) must be numbers between 0 and 1"):
            pmep.predict(result, model, response=True, quantiles=quantiles)
    with pytest.raises(pmep.UnsupportedModelError, match=r"'z' is predicted by draws, and the fit has none"):
        pmep.predict(result, model, response=True)
    with pytest.raises(pmep.UnsupportedModelError, match="'f' is no likelihood with a site; these are y, z"):
        pmep.predict(result, model, response=True, var_names="f")


def test_likelihoods_without_a_site_by_draws():
    """Zero-inflated counts: the mean of PyMC's mixture, and draws of it."""
    rng = np.random.default_rng(1)
    y = np.where(rng.random(40) < 0.3, 0, rng.poisson(4.0, size=40))
    with pm.Model(coords={"row": np.arange(40)}) as model:
        level = pm.Normal("level", 1.0, 1.0)
        x = pm.Data("x", np.linspace(-1, 1, 40), dims="row")
        eta = pm.Deterministic("eta", level + pm.Normal("slope", 0.0, 1.0) * x, dims="row")
        seen = pm.Data("seen", y, dims="row")
        pm.ZeroInflatedPoisson("y", psi=0.7, mu=pm.math.exp(eta), observed=seen, dims="row")
        result = pmep.fit(draws=4000, chains=1, random_seed=2, progressbar=False)
        pm.set_data({"x": [0.0, 2.0], "seen": [0, 0]}, coords={"row": ["middle", "far"]})
    found = pmep.predict(result, model, response=True, quantiles=(0.25, 0.75))
    predictor = pmep.predict(result, model, var_names="eta")
    eta = stats.norm(predictor["eta_mean"], predictor["eta_sd"])
    rate = np.exp(predictor["eta_mean"] + predictor["eta_sd"] ** 2 / 2)
    np.testing.assert_allclose(found["y_mean"], 0.7 * rate, rtol=0.02)
    np.testing.assert_allclose(found["y_quantile"], 0.7 * np.exp([eta.ppf(0.25), eta.ppf(0.75)]), rtol=0.03)
    assert found["y_mean"].dims == ("row",) and found["y_mean"]["row"].to_numpy().tolist() == ["middle", "far"]
    new = pmep.predict(result, model, response=True, kind="observation", quantiles=(0.25, 0.75))
    np.testing.assert_allclose(new["y_mean"], 0.7 * rate, rtol=0.06)
    assert np.all(new["y_sd"] > found["y_sd"])
    with pytest.raises(pmep.UnsupportedModelError, match=r"'y' is predicted by draws.*Fit with draws"):
        pmep.predict(pmep.fit(model=model, draws=0, progressbar=False), model, response=True)


def test_probabilities_of_ordered_categories():
    """Under a slope that the prior alone knows, beside quadrature over the predictor; categories have a dimension."""
    cutpoints, y = np.array([-1.0, 0.5]), np.array([0, 1, 2, 1])
    with pm.Model(coords={"row": list("abcd")}) as model:
        eta = pm.Deterministic("eta", pm.Normal("b", 0.0, 1.0) * np.array([-1.0, 0.0, 1.0, 2.0]), dims="row")
        pm.OrderedLogistic("y", eta, cutpoints, observed=y, dims="row")
        result = pmep.fit(draws=4000, chains=1, random_seed=2, progressbar=False)
    found, predictor = (pmep.predict(result, model, **asked) for asked in ({"response": True}, {"var_names": "eta"}))
    eta = predictor["eta_mean"].to_numpy()[:, None] + predictor["eta_sd"].to_numpy()[:, None] * Z
    below = expit(cutpoints - eta[..., None])
    exact = np.diff(below, axis=-1, prepend=0.0, append=1.0).transpose(0, 2, 1) @ MASS
    assert found["y_mean"].dims == ("row", "y_category")
    np.testing.assert_allclose(found["y_mean"], exact, atol=0.01)
    with pytest.raises(pmep.UnsupportedModelError, match=r"'y' has categories.*kind='expectation'"):
        pmep.predict(result, model, response=True, kind="observation")


def test_censored_observations_without_their_bound():
    """The mean of the normal below and above the bound, as its predictor has it."""
    with pm.Model() as model:
        eta = pm.Deterministic("eta", pm.Normal("a", 0.0, 1.0) * np.array([1.0, 2.0, 3.0]))
        pm.Censored("y", pm.Normal.dist(eta, 0.5), None, 1.0, observed=[0.6, 1.0, 1.0])
        result = pmep.fit(draws=4000, chains=1, random_seed=2, progressbar=False)
    predictor = pmep.predict(result, model, var_names="eta")
    found = pmep.predict(result, model, response=True)
    np.testing.assert_allclose(found["y_mean"], predictor["eta_mean"], atol=0.05)
    np.testing.assert_allclose(found["y_sd"], predictor["eta_sd"], rtol=0.05)
    new = pmep.predict(result, model, response=True, kind="observation")
    np.testing.assert_allclose(new["y_mean"], predictor["eta_mean"], atol=0.05)
    np.testing.assert_allclose(new["y_sd"], np.hypot(predictor["eta_sd"], 0.5), rtol=0.05)


def test_means_of_wide_predictors_under_an_exponential_link():
    """The mean of exp(f) is exp(v / 2); what overflows is infinite rather than unknown."""
    sd = np.array([1.0, 10.0, 15.0, 18.0, 30.0])
    wide = AtPredictor(compile_site("poisson"), np.zeros(5), sd**2, [], np.zeros(5))
    mean, spread, of_observations = expected_response(np.ones(1), [wide])
    np.testing.assert_allclose(mean[:4], np.exp(sd[:4] ** 2 / 2), rtol=1e-9)
    assert np.isinf(mean[4])
    np.testing.assert_allclose(spread[:3], mean[:3] * np.sqrt(np.expm1(sd[:3] ** 2)), rtol=1e-9)
    assert not np.isnan([spread, of_observations]).any()
