"""Flat priors of sparse designs against the dense algebra of coefficients, all of them flat."""

import numpy as np
import pytest
import scipy.sparse

from pymc_ep.numerics.gaussian.coefficient_space import FactorPrior
from pymc_ep.numerics.gaussian.flat_prior import FlatPrior
from pymc_ep.numerics.precision.plan import Dense, plan_algebra

HEIGHT, WIDTH = 14, 13
P = HEIGHT * WIDTH


def design():
    """Weighted pixels and differences between neighbours, on a torus."""
    rng = np.random.default_rng(0)
    down = np.kron(np.roll(np.eye(HEIGHT), 1, axis=1) - np.eye(HEIGHT), np.eye(WIDTH))
    across = np.kron(np.eye(HEIGHT), np.roll(np.eye(WIDTH), 1, axis=1) - np.eye(WIDTH))
    return np.vstack([np.diag(rng.uniform(0.5, 2.0, size=P)), down, across])


ROWS = design()
N = len(ROWS)


@pytest.fixture(params=[plan_algebra, lambda rows, shape: Dense(scipy.sparse.csr_array(rows))])
def prior(request):
    return FlatPrior.of(request.param(ROWS, (HEIGHT, WIDTH)), np.random.default_rng(1).uniform(0.5, 1.0, size=N))


@pytest.fixture
def sites():
    rng = np.random.default_rng(4)
    return rng.normal(size=N), rng.normal(size=N), rng.uniform(-0.02, 2.0, size=N)


def test_every_field_is_that_of_dense_coefficients(prior, sites):
    dense = FactorPrior(ROWS.T, np.zeros(P))
    mean, shift, precision = sites
    expected, found = dense.posterior(mean, shift, precision), prior.posterior(mean, shift, precision)
    assert found.proper
    assert bool(expected.proper)
    for field in ("mean", "variance", "remainder", "weights", "log_det", "coordinates"):
        np.testing.assert_allclose(getattr(found, field), getattr(expected, field), rtol=1e-10, atol=1e-10)
    other = np.random.default_rng(5).normal(size=N)
    moved, there = (p.shifted(q, mean, other, precision) for p, q in ((prior, found), (dense, expected)))
    for field in ("mean", "variance", "weights", "coordinates"):
        np.testing.assert_allclose(getattr(moved, field), getattr(there, field), rtol=1e-10, atol=1e-10)
    cross = np.random.default_rng(6).normal(size=(3, P))
    np.testing.assert_allclose(
        found.remaining_variance(cross, np.zeros(3)), expected.remaining_variance(cross, np.zeros(3)), rtol=1e-10
    )
    rows = slice(5, 9)
    np.testing.assert_allclose(
        prior.posterior_rows(found)(rows), dense.posterior_rows(expected)(rows), rtol=1e-10, atol=1e-12
    )
    draws = np.random.default_rng(7).normal(size=(4, P))
    np.testing.assert_allclose(
        found.log_ratio(draws, prior.precision), expected.log_ratio(draws, dense.precision), rtol=1e-10
    )
    np.testing.assert_allclose(prior.variances(), dense.variances(), rtol=1e-12)
    np.testing.assert_allclose(prior.covariance_matrix(), dense.covariance_matrix(), atol=1e-12)
    assert prior.is_positive_semidefinite()
    assert prior.cotangent(found, precision) is None
    assert not prior.undetermined().size


def test_the_start_is_a_proper_prior_that_adds_precisions(prior, sites):
    """Sites on top of it are sites with the sum of precisions and prior mean 0 of the unknowns."""
    mean, shift, precision = sites
    found = prior.regular().posterior(mean, shift, precision)
    covariance = np.linalg.inv(ROWS.T @ ((prior.start + precision)[:, None] * ROWS))
    unknowns = covariance @ ROWS.T @ (shift - precision * mean)
    np.testing.assert_allclose(found.coordinates, unknowns, atol=1e-11)
    np.testing.assert_allclose(found.mean, mean + ROWS @ unknowns, atol=1e-11)
    np.testing.assert_allclose(found.variance, np.einsum("ij,jk,ik->i", ROWS, covariance, ROWS), rtol=1e-10)
    np.testing.assert_allclose(found.remainder, 1 - precision * found.variance, rtol=1e-10)
    np.testing.assert_allclose(found.weights, shift - precision * found.mean, atol=1e-12)
    without = prior.regular().posterior(mean, np.zeros(N), np.zeros(N))
    assert without.proper
    np.testing.assert_allclose(without.mean, mean, atol=1e-12)


def test_draws_have_the_posterior_moments(prior, sites):
    found = prior.posterior(*sites)
    draws = found.draw_coordinates(4000, np.random.default_rng(8))
    sd = np.sqrt(found.variance[:P]) / np.abs(np.diagonal(ROWS[:P]))
    assert draws.shape == (4000, P)
    assert np.abs((draws.mean(axis=0) - found.coordinates) / sd).max() < 5 / np.sqrt(4000)
    np.testing.assert_allclose(draws.std(axis=0), sd, rtol=0.06)


def test_improper_sites_are_said_to_be_so(prior):
    zero = np.zeros(N)
    found = prior.posterior(zero, zero, zero)
    assert not found.proper
    assert not prior.shifted(found, zero, np.ones(N), zero).proper


def test_solutions_are_refined_where_precisions_differ_by_orders(prior, sites):
    """Residuals of the normal equations vanish to rounding of their terms."""
    precision = 10.0 ** np.random.default_rng(9).uniform(-3, 7, size=N)
    found = prior.posterior(sites[0], sites[1], precision)
    terms = np.abs(ROWS).T @ (np.abs(sites[1]) + precision * (np.abs(sites[0]) + np.abs(found.mean)))
    assert (np.abs(ROWS.T @ found.weights) <= 1e-12 * terms).all()


def test_what_is_not_finite_is_found():
    rows = ROWS.copy()
    rows[20, 20] = np.nan
    assert FlatPrior.of(Dense(scipy.sparse.csr_array(rows)), np.ones(N)).not_finite()[1:] == (20, 20)
    assert FlatPrior.of(Dense(scipy.sparse.csr_array(ROWS)), np.ones(N)).not_finite() is None
