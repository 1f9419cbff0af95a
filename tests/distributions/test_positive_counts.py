"""Counts of at least one: draws against SciPy's laws, densities against PyMC's own truncation."""

import numpy as np
import pymc as pm
import pytest
import scipy.stats

import pymc_ep as pmep
from pymc_ep.compat import group
from pymc_ep.distributions.positive_counts import PositiveCounts

DRAWS = 100_000


def distribution(mu, alpha):
    return pm.Poisson.dist(mu) if alpha is None else pm.NegativeBinomial.dist(mu=mu, alpha=alpha)


@pytest.mark.parametrize("alpha", [None, 0.0055, 0.5, 1e6])
def test_frequencies_are_those_of_the_law_without_zeros(alpha):
    """By the chi-square statistic; PyMC's own draws end in a TruncationError at the smaller means."""
    mu = np.exp([-5.5, -1.0, 1.0, 4.0])
    draws = pm.draw(PositiveCounts.dist(distribution(mu, alpha), size=(DRAWS, 4)), random_seed=2)
    assert draws.dtype == np.int64 and draws.min() == 1
    for k, m in enumerate(mu):
        law = scipy.stats.poisson(m) if alpha is None else scipy.stats.nbinom(alpha, alpha / (alpha + m))
        edges = np.unique(law.isf(law.sf(0) * np.array([1.0, 0.8, 0.6, 0.4, 0.2, 0.05, 0.01])))
        edges = np.concatenate([[0], edges[edges > 0]])
        expected = DRAWS * -np.diff(np.append(law.sf(edges), 0.0)) / law.sf(0)
        seen = np.histogram(draws[:, k], np.append(edges + 0.5, np.inf))[0]
        some = expected > 5
        statistic = ((seen - expected)[some] ** 2 / expected[some]).sum()
        assert statistic < scipy.stats.chi2(some.sum()).isf(1e-4), (m, seen, expected)


def test_rates_that_vanish_leave_ones():
    for alpha in (None, 2.0):
        assert (
            pm.draw(PositiveCounts.dist(distribution(np.array([0.0, 1e-250]), alpha)), 20, random_seed=1) == 1
        ).all()


@pytest.mark.parametrize("alpha", [None, 0.4])
def test_densities_are_those_of_pymc(alpha):
    values = np.array([0, 1, 2, 9])
    ours, theirs = (
        pm.logp(of(distribution(np.full(4, 1.3), alpha)), values).eval()
        for of in (PositiveCounts.dist, lambda dist: pm.Truncated.dist(dist, lower=1))
    )
    np.testing.assert_array_equal(ours, theirs)


def test_shapes_follow_parameters_sizes_and_data():
    assert pm.draw(PositiveCounts.dist(pm.Poisson.dist([1.0, 2.0])), 5).shape == (5, 2)
    assert pm.draw(PositiveCounts.dist(pm.Poisson.dist([1.0, 2.0]), shape=(3, 2))).shape == (3, 2)
    one, other = (pm.draw(PositiveCounts.dist(pm.Poisson.dist(5.0), size=9), random_seed=s) for s in (1, 2))
    assert (one != other).any()
    with pm.Model() as model:
        mu = pm.Data("mu", [1.0, 2.0])
        PositiveCounts("y", pm.Poisson.dist(mu), shape=mu.shape)
        pm.set_data({"mu": np.ones(7)})
    assert pm.draw(model["y"]).shape == (7,)


def test_predictive_draws_of_visits():
    """Nine in ten are one: rates are far below, which is what rejection failed at."""
    rng = np.random.default_rng(0)
    rows, cols = rng.integers(0, 20, 400), rng.integers(0, 15, 400)
    y = pm.draw(PositiveCounts.dist(distribution(np.exp(-4.0), 0.02), size=400), random_seed=3)
    with pm.Model():
        V, U = pm.Normal("V", 0, 0.3, shape=(20, 1)), pm.Normal("U", 0, 0.3, shape=(15, 1))
        pmep.BilinearPoisson(
            "y", V, U, rows, cols, offset=pm.Normal("mu", 0, 5), alpha=0.02, truncated=True, observed=y
        )
        idata = pmep.fit(draws=50, progressbar=False, random_seed=1)
        found = group(pm.sample_posterior_predictive(idata, progressbar=False, random_seed=1), "posterior_predictive")
        assert float(group(idata, "fit")["hyper_mode_mu"]) < -2.0
    drawn = np.asarray(found["y"])
    assert drawn.min() == 1
    assert (drawn == 1).mean() == pytest.approx((y == 1).mean(), abs=0.06)


@pytest.mark.parametrize(
    ("dist", "kwargs", "message"),
    [
        (pm.Geometric.dist(0.05), {}, "takes a Poisson or NegativeBinomial distribution, and got a Geometric"),
        (pm.Poisson.dist(5.0), {"upper": 3}, "has upper=3, and it truncates zeros alone"),
        (pm.Poisson.dist(5.0), {"lower": 2}, "has lower=2, and it truncates zeros alone"),
    ],
)
def test_other_distributions_and_bounds_are_refused(dist, kwargs, message):
    with pytest.raises(pmep.UnsupportedModelError, match=message):
        PositiveCounts.dist(dist, **kwargs)
