"""Leave-one-out transforms against closed forms, quadrature and models that are refitted."""

import numpy as np
import pymc as pm
import pytest
from scipy import stats
from scipy.special import expit

import pymc_ep as pmep
from pymc_ep.diagnostics import calibration, loo_pit
from pymc_ep.predict.log_predictive import AtPredictor
from pymc_ep.sites import compile_site

N = 10
X = np.linspace(0.0, 3.0, N)
KERNEL = np.exp(-0.5 * np.subtract.outer(X, X) ** 2) + 1e-6 * np.eye(N)
REALS = np.array([0.4, 0.1, -0.6, 0.9, 1.4, 6.0, -0.2, 0.8, 2.9, -9.0])


@pytest.mark.parametrize("noise", [0.05, 0.5, 30.0])
def test_normal_observations_in_closed_form(noise):
    with pm.Model() as model:
        pm.Normal("y", pm.MvNormal("f", np.zeros(N), KERNEL), noise, observed=REALS)
    found = loo_pit(pmep.fit(model=model, draws=0, progressbar=False), model)
    inverse = np.linalg.inv(KERNEL + noise**2 * np.eye(N))
    z = (inverse @ REALS) / np.sqrt(inverse.diagonal())
    np.testing.assert_allclose(found["y_upper"], stats.norm.cdf(z), atol=1e-5)
    np.testing.assert_array_equal(found["y_lower"], found["y_upper"])
    assert found.attrs["domain"] == "real"


def test_a_known_predictor_leaves_the_likelihood():
    with pm.Model() as model:
        f = pm.Normal("f", 0.0, 1.0)
        pm.Normal("y", pm.math.stack([f, 0.0 * f + 0.3]), 2.0, observed=[0.1, -1.0])
    found = loo_pit(pmep.fit(model=model, draws=0, progressbar=False), model)
    np.testing.assert_allclose(found["y_upper"][1], stats.norm.cdf(-1.0, 0.3, 2.0), atol=1e-6)


def alone(observe, **priors):
    """Fit independent observations, whose cavity is the prior N(0.4, 0.8^2)."""
    with pm.Model() as model:
        observe(pm.Normal("f", 0.4, 0.8, **priors))
    return loo_pit(pmep.fit(model=model, draws=0, progressbar=False), model)


F, MASS = 0.4 + 0.8 * np.linspace(-9, 9, 20_001), stats.norm.pdf(np.linspace(-9, 9, 20_001)) * 18 / 20_000


def test_counts_by_quadrature():
    y = np.array([0, 1, 4, 25])
    found = alone(lambda f: pm.Poisson("y", pm.math.exp(f), observed=y), shape=4)
    expected = stats.poisson.cdf(y[:, None], np.exp(F)) @ MASS
    np.testing.assert_allclose(found["y_upper"], expected, rtol=1e-6)
    np.testing.assert_allclose(found["y_lower"], stats.poisson.cdf(y[:, None] - 1, np.exp(F)) @ MASS, atol=1e-7)


def test_heavy_tails_by_quadrature():
    y = np.array([-30.0, -1.0, 0.4, 2.0, 400.0])
    found = alone(lambda f: pm.StudentT("y", nu=3, mu=f, sigma=0.3, observed=y), shape=5)
    np.testing.assert_allclose(found["y_upper"], stats.t.cdf((y[:, None] - F) / 0.3, 3) @ MASS, rtol=1e-4, atol=1e-6)


def test_zeros_and_ones():
    found = alone(lambda f: pm.Bernoulli("y", logit_p=f, observed=[0, 1]), shape=2)
    zero = (1 / (1 + np.exp(F))) @ MASS
    np.testing.assert_allclose(found["y_lower"], [0.0, zero], atol=1e-9)
    np.testing.assert_allclose(found["y_upper"], [zero, 1.0], rtol=1e-7)
    assert found.attrs["domain"] == "binary"


def test_transforms_are_those_of_a_fit_without_the_datum(poisson):
    """The cavity is EP's approximation of that fit."""
    model, result = poisson
    found = loo_pit(result, model)
    y = result["observed_data"]["y"].to_numpy()
    x = result["observed_data"]["x"].to_numpy()
    kernel = np.exp(-0.5 * np.subtract.outer(x, x) ** 2) + 1e-6 * np.eye(len(x))
    for left_out in (1, 4, 7):
        kept = np.delete(np.arange(len(x)), left_out)
        with pm.Model() as smaller:
            f = pm.MvNormal("f", np.full(len(x), 0.3), kernel)
            pm.Poisson("y", pm.math.exp(f[kept]), observed=y[kept])
        idata = pmep.fit(model=smaller, draws=0, progressbar=False)
        f = float(idata["posterior_mean"]["f"][left_out]) + float(idata["posterior_sd"]["f"][left_out]) * np.linspace(
            -9, 9, 20_001
        )
        mass = stats.norm.pdf(np.linspace(-9, 9, 20_001)) * 18 / 20_000
        np.testing.assert_allclose(
            found["y_upper"][left_out], stats.poisson.cdf(y[left_out], np.exp(f)) @ mass, atol=0.02
        )


def test_which_variable():
    with pm.Model() as model:
        f = pm.Normal("f", 0.0, 1.0, shape=3)
        pm.Normal("a", f, 1.0, observed=[0.1, 0.2, 0.3])
        pm.Poisson("b", pm.math.exp(f), observed=[0, 1, 2])
    result = pmep.fit(model=model, draws=0, progressbar=False)
    with pytest.raises(ValueError, match="several observed variables; pass var_name= as one of a, b"):
        loo_pit(result, model)
    with pytest.raises(ValueError, match="'c' is no observed variable with a site; these are a, b"):
        loo_pit(result, model, "c")
    assert set(loo_pit(result, model, "b")) == {"b_lower", "b_upper"}


def test_too_many_counts_are_refused():
    with pm.Model() as model:
        pm.Poisson("y", pm.math.exp(pm.Normal("f", 16.0, 1.0, shape=2)), observed=[8_000_000, 9_000_000])
    result = pmep.fit(model=model, draws=0, progressbar=False)
    with pytest.raises(pmep.UnsupportedModelError, match=r"'y' add up to 17000000"):
        loo_pit(result, model)


def test_other_observations_are_refused(poisson, monkeypatch):
    monkeypatch.delitem(calibration._MASSES, "count")
    with pytest.raises(pmep.UnsupportedModelError, match=r"'y' has a poisson site, whose observations \(count\)"):
        loo_pit(poisson[1], poisson[0])


@pytest.mark.parametrize("lower", [1, 3])
def test_counts_that_do_not_begin_at_zero(lower):
    y = np.array([3, 4, 3, 6, 5, 9])
    with pm.Model() as model:
        rate = pm.math.exp(pm.Normal("f", 1.0, 0.5, shape=1))[np.zeros(6, dtype=int)]
        pm.Truncated("y", pm.Poisson.dist(rate), lower=lower, observed=y)
    transforms = loo_pit(pmep.fit(model=model, draws=0, progressbar=False), model)
    f = np.linspace(-2.0, 4.0, 2001)
    law = stats.poisson(np.exp(f))
    log_density = law.logpmf(y[:, None]) - law.logsf(lower - 1)
    log_weight = log_density.sum(axis=0) - log_density + stats.norm.logpdf(f, 1.0, 0.5)
    weight = np.exp(log_weight - log_weight.max(axis=1, keepdims=True))
    weight /= weight.sum(axis=1, keepdims=True)
    upper = (law.cdf(y[:, None]) - law.cdf(lower - 1)) / law.sf(lower - 1)
    np.testing.assert_allclose(transforms["y_upper"], (weight * upper).sum(axis=1), atol=4e-3)


def test_a_positive_density_without_a_site_of_its_own():
    y = np.array([0.4, 1.3, 0.7, 2.5, 0.9])
    with pm.Model() as model:
        f = pm.Normal("f", 0.0, 0.7, shape=1)[np.zeros(5, dtype=int)]
        pm.InverseGamma("y", alpha=3.0, beta=2.0 * pm.math.exp(f), observed=y)
    transforms = loo_pit(pmep.fit(model=model, draws=0, progressbar=False), model)
    f = np.linspace(-4.0, 4.0, 2001)
    law = stats.invgamma(3.0, scale=2.0 * np.exp(f))
    log_density = law.logpdf(y[:, None])
    log_weight = log_density.sum(axis=0) - log_density + stats.norm.logpdf(f, 0.0, 0.7)
    weight = np.exp(log_weight - log_weight.max(axis=1, keepdims=True))
    weight /= weight.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(transforms["y_upper"], (weight * law.cdf(y[:, None])).sum(axis=1), atol=4e-3)


POSITIVE = np.array([0.001, 0.5, 2.0, 30.0])
UNIT = np.array([0.001, 0.5, 0.7, 0.999])
CONTINUOUS = {
    "exponential": (POSITIVE, (), lambda y: stats.expon.cdf(y, scale=np.exp(F))),
    "gamma": (POSITIVE, (2.5,), lambda y: stats.gamma.cdf(y, 2.5, scale=np.exp(F) / 2.5)),
    "beta": (UNIT, (5.0,), lambda y: stats.beta.cdf(y, 5 * expit(F), 5 * expit(-F))),
}


@pytest.mark.parametrize("name", CONTINUOUS)
def test_bounded_observations_by_quadrature(name):
    y, parameters, cdf = CONTINUOUS[name]
    site = compile_site(name)
    arrays = [np.full(4, p) for p in parameters]
    _, upper = calibration._transforms(
        AtPredictor(site, np.full(4, 0.4), np.full(4, 0.64), arrays, np.zeros(4)), "y", y
    )
    np.testing.assert_allclose(upper, cdf(y[:, None]) @ MASS, rtol=1e-4)
