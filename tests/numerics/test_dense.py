"""Dense posteriors against the textbook formula with explicit inverses, where that can be trusted."""

import numpy as np
import pytest

from pymc_ep.numerics.backend.cholesky import counts, factor_lower, inverse_factor
from pymc_ep.numerics.gaussian.observation_space import DensePrior

N = 9


def problem(seed=0):
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(N, N))
    covariance = root @ root.T / N + 0.1 * np.eye(N)
    return rng.normal(size=N), covariance, rng.normal(size=N), rng.gamma(1.0, 2.0, N)


def textbook(mean, covariance, shift, precision):
    inverse = np.linalg.inv(covariance)
    posterior = np.linalg.inv(inverse + np.diag(precision))
    return posterior @ (inverse @ mean + shift), posterior


PRECISIONS = {
    "positive": lambda p: p,
    "some zero": lambda p: np.where(np.arange(N) % 3 == 0, 0.0, p),
    "all zero": lambda p: np.zeros(N),
    "tiny": lambda p: 1e-9 * p,
    "some negative": lambda p: np.where(np.arange(N) % 3 == 0, -0.05 * p, p),
    "all negative": lambda p: -0.02 * p,
    "large": lambda p: 1e4 * p,
}


@pytest.mark.parametrize("kind", PRECISIONS)
def test_against_inverses(kind):
    mean, covariance, shift, precision = problem()
    precision = PRECISIONS[kind](precision)
    found = DensePrior(covariance).posterior(mean, shift, precision, log_concave=bool((precision >= 0).all()))
    expected_mean, expected = textbook(mean, covariance, shift, precision)
    assert found.proper
    np.testing.assert_allclose(found.mean, expected_mean, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(found.variance, expected.diagonal(), rtol=1e-9)
    np.testing.assert_allclose(found.remainder, 1 - precision * expected.diagonal(), rtol=1e-7)
    np.testing.assert_allclose(mean + covariance @ found.weights, expected_mean, rtol=1e-9, atol=1e-12)
    sign, log_det = np.linalg.slogdet(np.eye(N) + covariance * precision)
    assert sign == 1
    np.testing.assert_allclose(found.log_det, log_det, rtol=1e-10, atol=1e-14)
    # E is the derivative of the posterior covariance's complement: V = K - K E K.
    reduced = covariance - covariance @ found.precision_matrix() @ covariance
    np.testing.assert_allclose(reduced, expected, atol=1e-9)
    rows = DensePrior(covariance).posterior_rows(found)
    np.testing.assert_allclose(rows(slice(2, 5)), expected[2:5], atol=1e-9)


def test_weak_sites_keep_their_digits():
    """1 - [B^-1]_ii would leave no digit of the information in a precision of 1e-13."""
    mean, covariance, shift, precision = problem()
    precision = 1e-13 * precision
    found = DensePrior(covariance).posterior(mean, shift, precision, log_concave=True)
    np.testing.assert_allclose(found.variance, covariance.diagonal(), rtol=1e-11)


def test_singular_prior():
    """Three values seen three times each, by the posterior of the three."""
    mean, covariance, shift, precision = problem()
    small, copies = covariance[:3, :3], np.repeat(np.arange(3), 3)
    full = small[np.ix_(copies, copies)]
    found = DensePrior(full).posterior(mean[copies], shift, precision, log_concave=True)
    gather = np.eye(3)[copies]
    expected_mean, expected = textbook(mean[:3], small, gather.T @ shift, gather.T @ precision)
    np.testing.assert_allclose(found.mean, expected_mean[copies], rtol=1e-9)
    np.testing.assert_allclose(found.variance, expected.diagonal()[copies], rtol=1e-9)


def test_improper_posteriors_are_told():
    mean, covariance, shift, _ = problem()
    smallest = 1 / np.linalg.eigvalsh(covariance)[-1]
    for factor, proper in ((0.99, True), (1.01, False)):
        found = DensePrior(covariance).posterior(mean, shift, np.full(N, -factor * smallest), log_concave=False)
        assert bool(found.proper) == proper


@pytest.mark.parametrize("n", [1, 2, 255, 256, 257, 600])
def test_inverse_of_every_size(n):
    """L^{-1} gives the inverse as its Gram matrix."""
    rng = np.random.default_rng(n)
    root = rng.normal(size=(n, n))
    matrix = root @ root.T / n + np.eye(n)
    inverse, log_det, proper = inverse_factor(matrix.copy())
    assert proper
    np.testing.assert_array_equal(inverse, np.tril(inverse))
    np.testing.assert_allclose(inverse.T @ inverse @ matrix, np.eye(n), atol=1e-11)
    np.testing.assert_allclose(log_det, np.linalg.slogdet(matrix)[1], rtol=1e-11, atol=1e-12)


def test_no_inverse():
    matrix = np.array([[1.0, 2.0], [2.0, 1.0]])
    assert not inverse_factor(matrix)[2]


@pytest.mark.parametrize(("kind", "most"), [("positive", 1), ("all zero", 0), ("some negative", 2)])
def test_cubic_operations(kind, most):
    mean, covariance, shift, precision = problem()
    precision = PRECISIONS[kind](precision)
    counts["factorizations"] = 0
    DensePrior(covariance).posterior(mean, shift, precision, log_concave=kind != "some negative")
    assert counts["factorizations"] <= most


@pytest.mark.parametrize("kind", ["positive", "some zero", "some negative"])
def test_draws_by_matherons_rule(kind):
    mean, covariance, shift, precision = problem()
    precision = PRECISIONS[kind](precision)
    found = DensePrior(covariance).posterior(mean, shift, precision, log_concave=kind != "some negative")
    rng = np.random.default_rng(1)
    size = 40_000
    prior = rng.multivariate_normal(np.zeros(N), covariance, size, method="cholesky")
    draws = mean + prior + found.draw_coordinates(prior, rng) @ covariance
    expected_mean, expected = textbook(mean, covariance, shift, precision)
    sd = np.sqrt(expected.diagonal())
    np.testing.assert_allclose((draws.mean(axis=0) - expected_mean) / sd, 0.0, atol=5 / np.sqrt(size))
    np.testing.assert_allclose((np.cov(draws.T) - expected) / np.outer(sd, sd), 0.0, atol=7 / np.sqrt(size))


# A level of wide prior under many precise observations.
def test_a_wide_level_under_precise_observations():
    n, precision = 200, 1e3
    x = np.linspace(0.0, 1.0, n)
    covariance = 100.0 + 0.3 * np.exp(-0.5 * (x[:, None] - x) ** 2 / 0.04)
    target = 5 + np.sin(6 * x)
    found = DensePrior(covariance).posterior(np.zeros(n), precision * target, np.full(n, precision), log_concave=True)
    # In the eigenvectors of the covariance every direction has its own, harmless division.
    values, vectors = np.linalg.eigh(covariance)
    values = np.maximum(values, 0.0)
    expected = vectors @ (values * precision / (1 + precision * values) * (vectors.T @ target))
    np.testing.assert_allclose((found.mean - expected) / np.sqrt(found.variance), 0.0, atol=1e-7)


def test_covariances_under_vague_priors_keep_their_digits():
    """Of predictors whose prior variances are 1e8 times those that are left, two of them hardly observed."""
    rng = np.random.default_rng(4)
    design = rng.normal(size=(12, 3))
    root = 1e4 * design.T
    precision = np.r_[rng.uniform(0.5, 2.0, 10), 1e-7, 0.0]
    dense = DensePrior(root.T @ root)
    found = dense.posterior_rows(dense.posterior(np.zeros(12), np.zeros(12), precision))(slice(None))
    exact = design @ np.linalg.solve(1e-8 * np.eye(3) + (design.T * precision) @ design, design.T)
    np.testing.assert_allclose(found, exact, atol=1e-4 * np.abs(exact).max())


@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.parametrize("block", [1, 7, 10, 25, 100])
def test_factor_by_blocks(block, clean):
    rng = np.random.default_rng(0)
    root = rng.normal(size=(25, 40))
    matrix = np.asfortranarray(root @ root.T)
    above = np.triu(np.full((25, 25), np.nan), 1)  # which is not looked at
    found = np.asfortranarray(np.tril(matrix) + above)
    factor, info = factor_lower(found, clean=clean, block=block)
    assert info == 0 and np.shares_memory(factor, found)
    np.testing.assert_array_equal(np.triu(factor, 1), 0.0 if clean else above)
    lower = np.tril(np.nan_to_num(factor))
    np.testing.assert_allclose(lower @ lower.T, matrix, rtol=1e-12, atol=1e-12)
    broken = matrix.copy(order="F")
    broken[16, 16] = -1.0
    assert factor_lower(broken, clean=clean, block=block)[1] == 17
