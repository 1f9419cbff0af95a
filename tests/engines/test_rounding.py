"""Vague priors and near collinearity cost digits, and the fit says so instead of going on for ever."""

import warnings

import mpmath
import numpy as np
import pymc as pm
import pytest
from scipy import stats

import pymc_ep as pmep

RNG = np.random.default_rng(0)
X = RNG.normal(size=40)
COUNTS = RNG.poisson(np.exp(1.0 + 0.5 * X))


def fit(sd, solver):
    with pm.Model():
        b, u = pm.Normal("b", 0.0, sd, shape=2), pm.Normal("u", 0.0, 0.5, shape=40)
        pm.Poisson("y", pm.math.exp(b[0] + b[1] * X + u), observed=COUNTS)
        return pmep.fit(draws=0, progressbar=False, solver=solver)


@pytest.mark.parametrize(("sd", "tolerance"), [(1e4, 1e-5), (1e5, 1e-3)])
def test_a_fit_that_rounding_stops_has_converged(sd, tolerance):
    rounded, exact = fit(sd, "observations"), fit(sd, "coefficients")
    assert "converged to rounding" in rounded["fit"].attrs["status"]
    assert "solver='coefficients'" in rounded["fit"].attrs["status"]
    assert rounded["fit"].sizes["iteration"] < 60
    assert "rounding" not in exact["fit"].attrs["status"]
    assert exact["fit"].sizes["iteration"] < 10
    np.testing.assert_allclose(rounded["posterior_mean"]["b"], exact["posterior_mean"]["b"], rtol=tolerance)
    np.testing.assert_allclose(rounded["fit"]["log_evidence"], exact["fit"]["log_evidence"], atol=tolerance)


def test_ordinary_priors_reach_the_tolerance():
    for solver in ("observations", "coefficients"):
        found = fit(10.0, solver)
        assert "rounding" not in found["fit"].attrs["status"]
        assert float(found["fit"]["max_change"][-1]) <= 1e-8


def own_effects(sd, y):
    """Regression with an effect of each observation: more coefficients than half the observations, and than 64."""
    with pm.Model() as model:
        b = pm.Normal("b", 0.0, sd, shape=2)
        u = pm.Normal("u", 0.0, 0.5, shape=len(y))
        eta = pm.Deterministic("eta", b[0] + b[1] * WIDE + u)
        pm.Normal("y", eta, 1.0, observed=y)
    return model


WIDE = RNG.normal(size=100)
GAUSSIAN = 3.0 - 2.0 * WIDE + 1.2 * RNG.normal(size=100)


def closed_form(sd):
    """Moments of both coefficients and the log evidence, in 50 digits: y is N(X b, 1.25 I) without the effects."""
    with mpmath.workdps(50):
        design = mpmath.matrix(np.c_[np.ones(100), WIDE].tolist())
        y, noise, prior = mpmath.matrix(GAUSSIAN.tolist()), mpmath.mpf(1.25), mpmath.mpf(sd) ** 2
        precision = design.T * design / noise + mpmath.eye(2) / prior
        shift = design.T * y / noise
        covariance = precision**-1
        mean = covariance * shift
        log_det = mpmath.log(mpmath.det(precision)) + 2 * mpmath.log(prior) + 100 * mpmath.log(2 * mpmath.pi * noise)
        log_z = -((y.T * y)[0] / noise - (shift.T * mean)[0] + log_det) / 2
        return (
            np.array([float(v) for v in mean]),
            np.array([float(mpmath.sqrt(covariance[k, k])) for k in range(2)]),
            float(log_z),
        )


@pytest.mark.parametrize("sd", [1e5, 1e7, 1e9])
def test_auto_takes_the_space_without_rounding(sd):
    mean, spread, log_z = closed_form(sd)
    with own_effects(sd, GAUSSIAN) as model:
        found = pmep.fit(draws=0, progressbar=False)
    assert found["fit"].attrs["status"].startswith("converged: ")
    np.testing.assert_allclose((found["posterior_mean"]["b"] - mean) / spread, 0.0, atol=1e-8)
    np.testing.assert_allclose(found["posterior_sd"]["b"], spread, rtol=1e-8)
    np.testing.assert_allclose(found["fit"]["log_evidence"], log_z, rtol=1e-10)
    predicted = pmep.predict(found, model, var_names=["eta"])
    np.testing.assert_allclose(predicted["eta_mean"], found["posterior_mean"]["eta"], rtol=1e-8)


@pytest.mark.parametrize("sd", [1e6, 1e7, 1e9])
def test_a_fit_without_digits_has_not_converged(sd):
    with own_effects(sd, GAUSSIAN), pytest.warns(pmep.ConvergenceWarning, match="lost to rounding"):
        found = pmep.fit(draws=0, progressbar=False, solver="observations")
    assert "solver='coefficients'" in found["fit"].attrs["status"]


def test_a_wide_covariance_without_a_factor_is_told():
    """A level of variance 1e14 within a covariance matrix: no representation restores what its entries have lost."""
    x = np.linspace(0.0, 1.0, 40)
    covariance = 1e14 + np.exp(-0.5 * (x[:, None] - x) ** 2 / 0.04)
    with pm.Model():
        f = pm.MvNormal("f", np.zeros(40), covariance)
        pm.Normal("y", f, 0.3, observed=np.sin(6 * x))
        with pytest.warns(pmep.ConvergenceWarning, match="lost to rounding"):
            pmep.fit(draws=0, progressbar=False)


def combination(sds, design, noise, y):
    """Few coefficients, of which precise observations determine one combination."""
    with pm.Model() as model:
        b = [pm.Normal(f"b{k}", 0.0, sd) for k, sd in enumerate(sds)]
        pm.Normal("y", sum(x * own for x, own in zip(design, b)), noise, observed=y)
    return model


@pytest.mark.parametrize("noise", [1e-1, 1e-3, 1e-5, 1e-7])
def test_digits_lost_between_coefficients_are_told(noise):
    """b0 + b1 is observed: the width that each alone keeps is lost beside the precision of the sum."""
    sds = 1e4, 1e2
    with combination(sds, (1.0, 1.0), noise, np.array([3.0])), warnings.catch_warnings():
        warnings.simplefilter("ignore", pmep.ConvergenceWarning)
        found = pmep.fit(draws=0, progressbar=False, solver="coefficients")
    with mpmath.workdps(50):
        prior = [mpmath.mpf(sd) ** 2 for sd in sds]
        total = sum(prior) + mpmath.mpf(noise) ** 2
        sd = float(mpmath.sqrt(prior[1] - prior[1] ** 2 / total))
        log_z = float(-(9 / total + mpmath.log(2 * mpmath.pi * total)) / 2)
    error = max(abs(float(found["posterior_sd"]["b1"]) / sd - 1.0), abs(float(found["fit"]["log_evidence"]) - log_z))
    assert error < 1e-5 or "rounding" in found["fit"].attrs["status"]
    assert bool(found["fit"]["converged"]) == ("lost to rounding" not in found["fit"].attrs["status"])
    assert error < 1e-2 or not bool(found["fit"]["converged"])


def test_a_fit_that_quadrature_stops_has_converged():
    """That of a censored Laplace density, whose kink its site does not know, leaves changes of 1e-7 for ever."""
    rng, group = np.random.default_rng(5), np.repeat(np.arange(4), 3)
    y = np.clip(rng.laplace(0.3, 1.0, 12), -1.0, 1.2)
    with pm.Model():
        level = pm.Normal("level", 0.0, 1.0, shape=4)
        pm.Censored("y", pm.Laplace.dist(level[group], 0.7), lower=-1.0, upper=1.2, observed=y)
        found = pmep.fit(draws=0, progressbar=False)
    assert found["fit"]["converged"]
    assert "further steps do not lower it" in found["fit"].attrs["status"]
    grid = np.linspace(-5.0, 5.0, 20_001)[:, None]
    log_p = stats.laplace.logpdf(y, grid, 0.7)
    log_p = np.where(y == 1.2, stats.laplace.logsf(1.2, grid, 0.7), log_p)
    log_p = np.where(y == -1.0, stats.laplace.logcdf(-1.0, grid, 0.7), log_p)
    log_p = stats.norm.logpdf(grid) + log_p @ (group[:, None] == np.arange(4))
    weight = np.exp(log_p - log_p.max(axis=0))
    weight /= weight.sum(axis=0)
    mean = (weight * grid).sum(axis=0)
    sd = np.sqrt((weight * (grid - mean) ** 2).sum(axis=0))
    # EP's own error.
    np.testing.assert_allclose((found["posterior_mean"]["level"] - mean) / sd, 0.0, atol=0.1)
    np.testing.assert_allclose(found["posterior_sd"]["level"], sd, rtol=0.1)
