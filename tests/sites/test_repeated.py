"""Several observations of one predictor as one site, against their product."""

import numpy as np
import pytest

from pymc_ep.evidence.ep.repeats import RepeatedGroup
from pymc_ep.sites import compile_site, get_site, sites
from pymc_ep.sites.repeated import is_additive

NAMES = sorted(name for name, site in sites().items() if is_additive(site))
CASES = [(name, {}) for name in NAMES] + [("rectified_poisson", {"zero_mass": False})]
SIZES = [1, 2, 3, 7, 20]
OWNER = np.random.default_rng(5).permutation(np.repeat(np.arange(len(SIZES)), SIZES))


def observations(site, rng):
    """Observations, and parameters, of which those that may differ between observations do."""
    n = len(OWNER)
    y = {
        "count": rng.poisson(2, n),
        "binary": rng.integers(0, 2, n),
        "positive": rng.gamma(2.0, size=n),
        "non-negative": rng.gamma(2.0, size=n),
    }[site.domain].astype(float)
    if site.name.startswith("binomial"):
        return y, [y + rng.integers(0, 4, n)]
    return y, [rng.uniform(0.5, 4, len(SIZES))[OWNER] for _ in site.parameters]


def group_of(name, options, seed=0):
    site = get_site(name)
    y, values = observations(site, np.random.default_rng(seed))
    first = np.array([np.flatnonzero(k == OWNER)[0] for k in range(len(SIZES))])
    # Predictors are in the order of their first observations.
    order = np.argsort(first)
    place = np.argsort(order)
    return RepeatedGroup(compile_site(site, **options), y, place[OWNER], first[order]), values


def log_product(group, values, eta):
    """Sum of the log densities at eta, (nodes, m), of the observations of each predictor."""
    each = group.single.log_density(group.y, eta[:, group.owner], *values)
    out = np.zeros(eta.shape)
    np.add.at(out, (slice(None), group.owner), each)
    return out


def tilted(group, values, mean, variance, power=1.0, without=None):
    """Log normaliser, mean and variance by a fine grid; `without` leaves out one observation."""
    grid = np.linspace(-14.0, 14.0, 40_001)[:, None]
    out = []
    for k in range(len(mean)):
        own = group.owner == k
        if without is not None:
            own[without] = False
        log_t = group.single.log_density(group.y[own], grid, *(value[own] for value in values)).sum(axis=1)
        f = grid[:, 0]
        log_p = power * log_t - 0.5 * (f - mean[k]) ** 2 / variance[k] - 0.5 * np.log(2 * np.pi * variance[k])
        weight = np.exp(log_p - log_p.max())
        jump = len(f) // 2
        if weight[jump - 1] == 0.0:
            # The trapezium rule, from zero.
            weight[jump] /= 2
        total = weight.sum()
        centre = weight @ f / total
        spread = weight @ (f - centre) ** 2 / total
        out.append((log_p.max() + np.log(total * (f[1] - f[0])), centre, spread))
    return np.array(out).T


def test_what_is_additive():
    assert {"poisson", "logit", "probit", "cloglog", "binomial_logit", "gamma", "rectified_poisson"} <= set(NAMES)
    # Several locations, or categories, are no average; normal observations are exact apart.
    assert not {"laplace", "student_t", "ordered_logit", "beta", "normal"} & set(NAMES)


@pytest.mark.parametrize(("name", "options"), CASES)
def test_log_density_is_the_sum(name, options):
    group, values = group_of(name, options)
    eta = np.linspace(0.2, 4.0, 7)[:, None] + np.zeros(len(SIZES))
    found = group.site.log_density(group.observed, eta, *group.parameters(values))
    np.testing.assert_allclose(found, log_product(group, values, eta), rtol=1e-11, atol=1e-11)
    if name != "rectified_poisson":
        found = group.site.log_density(group.observed, -eta, *group.parameters(values))
        np.testing.assert_allclose(found, log_product(group, values, -eta), rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("power", [1.0, 0.5])
@pytest.mark.parametrize(("name", "options"), CASES)
def test_moments_are_those_of_the_product(name, options, power):
    group, values = group_of(name, options)
    mean, variance = np.linspace(-0.5, 2.0, len(SIZES)), np.linspace(0.1, 2.0, len(SIZES))
    found = group.site.moments(group.observed, mean, variance, power, *group.parameters(values))
    log_z, centre, spread = tilted(group, values, mean, variance, power)
    # The trapezium rule is of second order where the slope of a rectified rate jumps.
    tolerance = 1e-5 if name == "rectified_poisson" else 1e-9
    np.testing.assert_allclose(found.log_z, log_z, rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(found.mean, centre, rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(found.variance, spread, rtol=max(tolerance, 1e-8))


@pytest.mark.parametrize(("name", "options"), CASES)
def test_one_observation_left_out(name, options):
    group, values = group_of(name, options)
    mean, variance = np.linspace(0.5, 2.0, len(SIZES)), np.linspace(0.1, 2.0, len(SIZES))
    log_z = np.asarray(group.site.moments(group.observed, mean, variance, 1.0, *group.parameters(values)).log_z)
    found = group.left_out(values, mean, variance, log_z)
    whole = tilted(group, values, mean, variance)[0]
    for i in (0, 3, 11, 20):
        k = group.owner[i]
        expected = whole[k] - tilted(group, values, mean, variance, without=i)[0][k]
        np.testing.assert_allclose(found[i], expected, atol=1e-5 if name == "rectified_poisson" else 1e-8)


@pytest.mark.parametrize("name", ["negative_binomial", "gamma"])
def test_gradient_in_the_parameter_of_all_observations_of_a_predictor(name):
    group, values = group_of(name, {})
    mean, variance = np.linspace(-0.5, 2.0, len(SIZES)), np.linspace(0.1, 2.0, len(SIZES))

    def log_z(values):
        return np.asarray(group.site.moments(group.observed, mean, variance, 1.0, *group.parameters(values)).log_z)

    (found,) = group.parameter_gradient(values, mean, variance, 1.0)
    step = 1e-5
    difference = (log_z([values[0] + step]) - log_z([values[0] - step])) / (2 * step)
    np.testing.assert_allclose(np.bincount(group.owner, found), difference, rtol=1e-7, atol=1e-8)
