"""Posteriors of unknowns with a sparse precision, against dense algebra and finite differences."""

import numpy as np
import pytest
import scipy.sparse

from pymc_ep.numerics.gaussian import sparse_precision
from pymc_ep.numerics.gaussian.precision_pattern import PrecisionPattern
from pymc_ep.numerics.gaussian.sparse_precision import SparsePrecisionPrior

RNG = np.random.default_rng(0)
RING, WALK, N = 7, 6, 25


def lower(matrix):
    part = scipy.sparse.tril(scipy.sparse.csr_array(matrix)).tocoo()
    return part.row.astype(np.int64), part.col.astype(np.int64)


def ring_laplacian():
    shift = np.roll(np.eye(RING), 1, axis=0)
    return 2.0 * np.eye(RING) - shift - shift.T


def second_differences():
    return np.diff(np.eye(WALK), 2, axis=0)


def blocks(theta):
    """Q without soft sums at two parameters: a ring, a walk with a ridge, and an intercept."""
    walk = second_differences().T @ second_differences() * np.exp(theta[1]) + 0.3 * np.eye(WALK)
    q = np.zeros((RING + WALK + 1,) * 2)
    q[:RING, :RING] = ring_laplacian() * np.exp(theta[0])
    q[RING:-1, RING:-1] = walk
    q[-1, -1] = 0.01
    return q


DESIGN = np.zeros((N, RING + WALK + 1))
DESIGN[np.arange(N), RNG.integers(0, RING, N)] = 1.0
DESIGN[np.arange(N), RING + RNG.integers(0, WALK, N)] = RNG.normal(size=N)
DESIGN[:, -1] = 1.0
ROWS, COLUMNS = lower(blocks([0.0, 0.0]) != 0)
PATTERN = PrecisionPattern(
    ROWS,
    COLUMNS,
    scipy.sparse.csr_array(DESIGN),
    sums=(np.arange(DESIGN.shape[1]) < RING).astype(float)[:, None],
    factored=[slice(RING, RING + WALK)],
)
MEAN, SHIFT, PRECISION = RNG.normal(size=N), RNG.normal(size=N), RNG.gamma(1.0, size=N)
SD = 0.4


def whole(theta, sd=SD):
    q = blocks(theta)
    q[:RING, :RING] += 1.0 / sd**2
    return q


def prior_at(theta, sd=SD):
    """Log determinants of the ring and the intercept are given, that of the walk is found."""
    q = whole(theta, sd)
    given = np.linalg.slogdet(q)[1] - np.linalg.slogdet(q[RING:-1, RING:-1])[1]
    return SparsePrecisionPrior(blocks(theta)[ROWS, COLUMNS], float(given), np.array([sd]), PATTERN)


def evidence(theta, sd=SD):
    """Log of the integral of the sites exp(b f - pi f^2 / 2) over the prior, dense."""
    q = whole(theta, sd)
    p = q + DESIGN.T @ (PRECISION[:, None] * DESIGN)
    g = DESIGN.T @ (SHIFT - PRECISION * MEAN)
    at_mean = SHIFT @ MEAN - 0.5 * PRECISION @ MEAN**2
    return 0.5 * (np.linalg.slogdet(q)[1] - np.linalg.slogdet(p)[1] + g @ np.linalg.solve(p, g)) + at_mean


THETA = np.array([0.3, -0.5])
POSTERIOR = prior_at(THETA).posterior(MEAN, SHIFT, PRECISION)
COVARIANCE = np.linalg.inv(whole(THETA) + DESIGN.T @ (PRECISION[:, None] * DESIGN))


def test_the_posterior_is_that_of_dense_algebra():
    x = COVARIANCE @ DESIGN.T @ (SHIFT - PRECISION * MEAN)
    assert POSTERIOR.proper
    np.testing.assert_allclose(POSTERIOR.coordinates, x, rtol=1e-9)
    np.testing.assert_allclose(POSTERIOR.mean, MEAN + DESIGN @ x, rtol=1e-9)
    np.testing.assert_allclose(POSTERIOR.variance, np.diagonal(DESIGN @ COVARIANCE @ DESIGN.T), rtol=1e-9)
    np.testing.assert_allclose(POSTERIOR.weights, SHIFT - PRECISION * POSTERIOR.mean, rtol=1e-12)
    expected = -np.linalg.slogdet(COVARIANCE)[1] - np.linalg.slogdet(whole(THETA))[1]
    np.testing.assert_allclose(POSTERIOR.log_det, expected, rtol=1e-10)
    np.testing.assert_allclose(prior_at(THETA).energy(POSTERIOR, MEAN), x @ whole(THETA) @ x, rtol=1e-9)


def test_variances_of_wide_rows_alone(monkeypatch):
    monkeypatch.setattr(sparse_precision, "_WIDE", 3)
    every = scipy.sparse.csr_array(np.ones((1, len(COVARIANCE))))
    np.testing.assert_allclose(POSTERIOR.remaining_variance(every, np.zeros(1)), COVARIANCE.sum(), rtol=1e-9)


def test_variances_of_any_map_of_the_unknowns():
    cross = scipy.sparse.random_array((9, len(COVARIANCE)), density=0.4, rng=np.random.default_rng(3), format="csr")
    found = POSTERIOR.remaining_variance(cross, np.zeros(9))
    np.testing.assert_allclose(found, np.diagonal(cross.toarray() @ COVARIANCE @ cross.toarray().T), rtol=1e-9)
    every = POSTERIOR.remaining_variance(np.eye(len(COVARIANCE)), np.zeros(len(COVARIANCE)))
    np.testing.assert_allclose(every, np.diagonal(COVARIANCE), rtol=1e-9)
    rows = prior_at(THETA).posterior_rows(POSTERIOR)
    predictors = DESIGN @ COVARIANCE @ DESIGN.T
    np.testing.assert_allclose(rows(slice(2, 5)), predictors[2:5], rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(rows(np.array([1, 7]), slice(3, 6)), predictors[[1, 7], 3:6], rtol=1e-8, atol=1e-10)


def test_draws_have_the_covariance():
    draws = POSTERIOR.draw_coordinates(200_000, np.random.default_rng(1)) - POSTERIOR.coordinates
    scale = np.sqrt(np.outer(np.diagonal(COVARIANCE), np.diagonal(COVARIANCE)))
    np.testing.assert_allclose(draws.T @ draws / len(draws) / scale, COVARIANCE / scale, atol=0.015)
    np.testing.assert_allclose(draws[:, :RING].sum(axis=1).std(), np.sqrt(COVARIANCE[:RING, :RING].sum()), rtol=0.01)


def test_cotangents_are_derivatives_of_the_evidence():
    prior, step = prior_at(THETA), 1e-5
    *of_values, of_log_det, of_sd = prior.cotangent(POSTERIOR, PRECISION)
    for k in range(2):
        moved = step * np.eye(2)[k]
        slope = (evidence(THETA + moved) - evidence(THETA - moved)) / (2 * step)
        ends = [prior_at(THETA + sign * moved) for sign in (1, -1)]
        d_values, d_log_det = (np.subtract(*(getattr(end, name) for end in ends)) for name in ("values", "log_det"))
        found = (of_values @ d_values + of_log_det * d_log_det) / (2 * step)
        np.testing.assert_allclose(found, slope, rtol=1e-6)
    slope = (evidence(THETA, SD + step) - evidence(THETA, SD - step)) / (2 * step)
    d_log_det = (prior_at(THETA, SD + step).log_det - prior_at(THETA, SD - step).log_det) / (2 * step)
    np.testing.assert_allclose(of_sd + of_log_det * d_log_det, slope, rtol=1e-6, atol=1e-8)


def test_another_shift_and_some_of_the_predictors():
    prior, shift = prior_at(THETA), RNG.normal(size=N)
    moved, anew = prior.shifted(POSTERIOR, MEAN, shift, PRECISION), prior.posterior(MEAN, shift, PRECISION)
    for one, other in zip((moved.mean, moved.weights, moved.coordinates), (anew.mean, anew.weights, anew.coordinates)):
        np.testing.assert_allclose(one, other, rtol=1e-8, atol=1e-10)
    index = np.arange(0, N, 2)
    some = prior.subset(index).posterior(MEAN[index], SHIFT[index], PRECISION[index])
    part = DESIGN[index]
    covariance = np.linalg.inv(whole(THETA) + part.T @ (PRECISION[index, None] * part))
    np.testing.assert_allclose(some.variance, np.diagonal(part @ covariance @ part.T), rtol=1e-9)
    assert np.array_equal(prior.signatures()[index], prior.subset(index).signatures())
    others = np.arange(3)
    subsets = [prior.subset(index), prior.subset(others), prior.subset(index).subset(others)]
    for found, wanted in zip(subsets, (index, others, index[others])):
        assert np.array_equal(found.pattern.design.toarray(), DESIGN[wanted])


def test_what_is_improper_is_said_to_be_so():
    precision = np.where(np.arange(N) == 3, -50.0, PRECISION)
    assert not prior_at(THETA).posterior(MEAN, SHIFT, precision).proper
    rows = np.arange(3)
    flat = PrecisionPattern(rows, rows, scipy.sparse.csr_array(np.array([[1.0, 1.0, 0.0], [1.0, 1.0, 1.0]])))
    prior = SparsePrecisionPrior(np.array([0.0, 0.0, 1.0]), 0.0, np.zeros(0), flat)
    assert prior.undetermined().tolist() in ([0], [1])
    assert prior.regular().posterior(np.zeros(2), np.zeros(2), np.zeros(2)).proper
    assert prior_at(THETA).regular().posterior(MEAN, 0 * SHIFT, 0 * PRECISION).proper
    bad = prior._replace(values=np.array([0.0, np.nan, 1.0]))
    assert bad.not_finite()[1:] == (1, 0)
    assert prior.not_finite() is None


@pytest.mark.parametrize("order", [np.arange(RING), np.random.default_rng(5).permutation(RING)])
def test_labels_of_unknowns_do_not_matter(order):
    places = np.concatenate([order, np.arange(RING, len(COVARIANCE))])
    q, design = blocks(THETA)[np.ix_(places, places)], DESIGN[:, places]
    rows, columns = lower(q != 0)
    pattern = PrecisionPattern(rows, columns, scipy.sparse.csr_array(design), PATTERN.sums, [slice(RING, RING + WALK)])
    prior = prior_at(THETA)._replace(values=q[rows, columns], pattern=pattern)
    found = prior.posterior(MEAN, SHIFT, PRECISION)
    np.testing.assert_allclose(found.variance, POSTERIOR.variance, rtol=1e-10)
    np.testing.assert_allclose(found.log_det, POSTERIOR.log_det, rtol=1e-10)
