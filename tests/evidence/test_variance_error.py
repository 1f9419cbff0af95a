"""EP's own error of posterior variances, announced where observations nearly repeat or contradict one another, against
quadrature."""

import warnings

import numpy as np
import pymc as pm
import pytest
import scipy.special
import scipy.stats

import pymc_ep as pmep
from pymc_ep.evidence.ep import shape, shape_warning
from pymc_ep.evidence.ep.shape import variance_error

GRID = np.linspace(-90.0, 90.0, 180_001)

COPIES = {
    # The likelihood of copies in a model, the log density of one of them, and their number.
    "ones under a logit": (lambda f: pm.Bernoulli("y", logit_p=f, observed=np.ones(20)), -np.logaddexp(0, -GRID), 20),
    "zeros under a log": (lambda f: pm.Poisson("y", pm.math.exp(f), observed=np.zeros(57)), -np.exp(GRID), 57),
    "probit": (
        lambda f: pm.Bernoulli("y", p=pm.math.invprobit(f), observed=np.ones(57)),
        scipy.special.log_ndtr(GRID),
        57,
    ),
}


def exact_sd(log_density, count, sd):
    log_p = count * log_density - 0.5 * (GRID / sd) ** 2
    weight = np.exp(log_p - log_p.max())
    weight /= weight.sum()
    mean = weight @ GRID
    return np.sqrt(weight @ (GRID - mean) ** 2)


@pytest.mark.parametrize("kind", COPIES)
def test_near_copies_under_a_wide_prior_are_announced(kind):
    likelihood, log_density, count = COPIES[kind]
    with pm.Model():
        # Predictors that are told apart: copies have one site together, which is exact.
        likelihood(pm.Normal("f", 0.0, 10.0) + 1e-9 * np.arange(count))
        with pytest.warns(pmep.ConvergenceWarning, match="EP's own error is large.*was (26|29|31)% too small"):
            found = pmep.fit(draws=0, progressbar=False)
    # By sites alone it is 0.68, 0.62 and 0.57 of the exact one.
    assert 0.83 < float(found["posterior_sd"]["f"]) / exact_sd(log_density, count, 10.0) < 0.92


def test_the_cure_is_exact():
    with pm.Model():
        pm.Binomial("y", 20, logit_p=pm.Normal("f", 0.0, 10.0), observed=20)
        found = pmep.fit(draws=0, progressbar=False)
    np.testing.assert_allclose(found["posterior_sd"]["f"], exact_sd(-np.logaddexp(0, -GRID), 20, 10.0), rtol=1e-6)


def test_what_ep_gets_right_is_not_announced():
    """Copies under a narrow prior, a balanced regression, and a smooth field of binary observations."""
    rng = np.random.default_rng(0)
    x = np.linspace(0.0, 1.0, 100)
    kernel = 4.0 * np.exp(-0.5 * (x[:, None] - x) ** 2 / 0.04) + 1e-6 * np.eye(100)
    field = np.linalg.cholesky(kernel) @ rng.normal(size=100)
    binary = (rng.random(100) < 1 / (1 + np.exp(-field))).astype(int)
    design = rng.normal(size=(100, 3))
    with warnings.catch_warnings():
        warnings.simplefilter("error", pmep.ConvergenceWarning)
        with pm.Model():
            pm.Bernoulli("y", logit_p=pm.Normal("f", 0.0, 1.0) + np.zeros(20), observed=np.ones(20))
            pmep.fit(draws=0, progressbar=False)
        with pm.Model():
            pm.Bernoulli("y", logit_p=pm.math.dot(design, pm.Normal("b", 0.0, 10.0, shape=3)), observed=binary)
            pmep.fit(draws=0, progressbar=False)
        with pm.Model():
            pm.Bernoulli("y", logit_p=pm.MvNormal("f", np.zeros(100), kernel), observed=binary)
            pmep.fit(draws=0, progressbar=False)


def test_second_order_of_the_variance_of_correlated_predictors():
    """Three predictors with tilted ratios 1 + h_3 He_3 / 6 + h_4 He_4 / 24, to second order in h by cubature."""
    rng = np.random.default_rng(1)
    root = rng.normal(size=(3, 3))
    covariance = root @ root.T
    skewness, kurtosis = np.array([0.3, -0.2, 0.25]), np.array([0.1, 0.2, -0.15])
    nodes, weights = np.polynomial.hermite_e.hermegauss(14)
    points = np.stack(np.meshgrid(nodes, nodes, nodes, indexing="ij"), -1).reshape(-1, 3)
    mass = np.prod(np.stack(np.meshgrid(weights, weights, weights, indexing="ij"), -1).reshape(-1, 3), axis=1)
    mass /= mass.sum()
    spread = np.sqrt(covariance.diagonal())
    z = points @ np.linalg.cholesky(covariance).T / spread
    terms = skewness * (z**3 - 3 * z) / 6 + kurtosis * (z**4 - 6 * z**2 + 3) / 24
    pairs = terms[:, 0] * terms[:, 1] + terms[:, 0] * terms[:, 2] + terms[:, 1] * terms[:, 2]
    expected = mass @ (pairs[:, None] * (z**2 - 1))
    found = variance_error(skewness, kurtosis, covariance / np.outer(spread, spread))
    # Squares of third and fourth cumulants; their products with each other belong to higher orders of Mehler's formula.
    mixed = mass @ (
        sum(
            (skewness[j] * (z[:, j] ** 3 - 3 * z[:, j]) / 6 * kurtosis[k] * (z[:, k] ** 4 - 6 * z[:, k] ** 2 + 3) / 24)
            for j in range(3)
            for k in range(3)
            if j != k
        )[:, None]
        * (z**2 - 1)
    )
    np.testing.assert_allclose(found.sum(axis=0), expected - mixed, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize(("wide", "error"), [(2.0, 0.001), (3.0, 0.004), (5.0, 0.015), (10.0, 0.035)])
def test_what_is_corrected_is_not_announced(wide, error):
    """Five ones under a logit: EP's standard deviation is 0.95 of the exact one under a prior of 2, and 0.79 of 10."""
    with pm.Model(), warnings.catch_warnings():
        warnings.simplefilter("error", pmep.ConvergenceWarning)
        pm.Bernoulli("y", logit_p=pm.Normal("f", 0.0, wide) + 1e-9 * np.arange(5), observed=np.ones(5))
        found = pmep.fit(draws=0, progressbar=False)
    assert abs(float(found["posterior_sd"]["f"]) / exact_sd(-np.logaddexp(0, -GRID), 5, wide) - 1.0) < error


@pytest.mark.parametrize(("apart", "announced"), [(1.5, False), (4.0, True)])
def test_contradicting_observations_are_announced(apart, announced):
    """Two observations with Student-t errors: EP's own standard deviation is 1.14 and 1.49 times the exact one."""
    with pm.Model():
        f = pm.Normal("f", 0.0, 2.0)
        pm.StudentT("y", nu=4, mu=f + 1e-9 * np.arange(2), sigma=0.5, observed=[-apart / 2, apart / 2])
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", pmep.ConvergenceWarning)
            found = pmep.fit(draws=0, progressbar=False)
    log_density = sum(scipy.stats.t.logpdf((y - GRID) / 0.5, 4) for y in (-apart / 2, apart / 2))
    ratio = float(found["posterior_sd"]["f"]) / exact_sd(log_density, 1, 2.0)
    assert abs(ratio - 1.0) < 0.08
    assert ["EP's own error" in str(one.message) for one in caught] == [True] * announced
    assert ("was 41% too large" in found["fit"].attrs["status"]) == announced


def test_too_many_predictors_are_told_by_a_sample(monkeypatch):
    """Beyond the number of predictors whose pairs are all formed, the width of none is corrected."""
    monkeypatch.setattr(shape, "MOST_PAIRED", 12)
    monkeypatch.setattr(shape_warning, "MOST_PAIRED", 12)
    groups = np.repeat(np.arange(4), 8)
    with pm.Model():
        f = pm.Normal("f", 0.0, 10.0, shape=4)[groups] + 1e-9 * np.arange(len(groups))
        pm.Bernoulli("y", logit_p=f, observed=np.ones(len(groups)))
        with pytest.warns(pmep.ConvergenceWarning, match="some 21% too small.*beyond 12 observations that is not"):
            found = pmep.fit(draws=0, progressbar=False)
    exact = exact_sd(-np.logaddexp(0, -GRID), 8, 10.0)
    np.testing.assert_allclose(found["posterior_sd"]["f"] / exact, 0.75, atol=0.02)
