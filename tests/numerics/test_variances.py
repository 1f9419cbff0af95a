"""Estimates of variances against dense inverses."""

import functools
import threading

import joblib
import numpy as np
import pytest

from pymc_ep.numerics.iterative.conjugate_gradients import conjugate_gradients
from pymc_ep.numerics.iterative.marginal_variances import lanczos, perturb_and_map

N, P = 90, 60


@pytest.fixture(scope="module")
def system():
    rng = np.random.default_rng(0)
    matrix = np.vstack([np.eye(P)[: N - P], np.eye(P) - np.roll(np.eye(P), 1, axis=1)])
    weights = rng.gamma(1.0, size=N) + 0.1
    inverse = np.linalg.inv(matrix.T @ (weights[:, None] * matrix))
    return (
        functools.partial(np.matmul, matrix),
        functools.partial(np.matmul, matrix.T),
        weights,
        np.einsum("ij,jk,ik->i", matrix, inverse, matrix),
    )


def estimate(system, n_samples, seed, solve=None, weights=None, start=None):
    """Variances, by accurate solutions unless `solve`, at the weights of the system unless others are given."""
    forward, adjoint, *_ = system
    weights = system[2] if weights is None else weights
    noise = np.random.default_rng(seed).standard_normal((n_samples, len(weights)))
    return perturb_and_map(forward, adjoint, weights, noise, solve or accurate(system, weights), start=start)


def accurate(system, weights, **options):
    forward, adjoint, *_ = system

    def apply(vector):
        return adjoint(weights * forward(vector))

    return lambda b, start: conjugate_gradients(apply, b, start=start, **{"tol": 1e-8, **options})


def test_samples_are_unbiased_with_the_error_they_report(system):
    exact = system[3]
    found = estimate(system, 1000, 1)
    assert found.converged
    assert found.worst_residual <= 1e-8
    z = (found.variance - exact) / found.standard_error
    assert np.abs(z).max() < 4.5
    # The variances are correlated: their mean square deviation is loosely 1.
    assert 0.5 < np.mean(z**2) < 2.0
    np.testing.assert_allclose(found.standard_error, found.variance * np.sqrt(2 / 1000))


def test_one_sample_already_has_the_right_trace_and_draws_keep_their_lengths(system):
    forward, _, weights, exact = system
    np.testing.assert_allclose(weights @ exact, P, rtol=1e-10)
    found = estimate(system, 1, 5)
    np.testing.assert_allclose(weights @ found.variance, P, rtol=1e-10)
    draws = estimate(system, 400, 5).samples
    lengths = np.array([weights @ forward(draw) ** 2 for draw in draws])
    # Squared lengths are chi-squared with P degrees of freedom: 3 standard errors of mean and variance.
    assert abs(lengths.mean() - P) < 3 * np.sqrt(2 * P / 400)
    assert abs(lengths.var() / (2 * P) - 1) < 3 * np.sqrt((2 + 12 / P) / 400)


def test_threads_change_no_digit(system):
    arrived, solve = threading.Barrier(2, timeout=60), accurate(system, system[2])

    def together(b, start):
        # Passed only where two solutions are under way.
        arrived.wait()
        return solve(b, start)

    one = estimate(system, 8, 4)
    with joblib.parallel_config("threading", n_jobs=2):
        other = estimate(system, 8, 4, together)
    np.testing.assert_array_equal(other.variance, one.variance)
    np.testing.assert_array_equal(other.samples, one.samples)


def test_samples_continue(system):
    first = estimate(system, 7, 2)
    again = estimate(system, 7, 2, start=first.samples)
    np.testing.assert_allclose(again.variance, first.variance, rtol=1e-6)
    assert again.iterations == 0
    near, far = (estimate(system, 7, 2, weights=1.01 * system[2], start=start) for start in (first.samples, None))
    np.testing.assert_allclose(near.variance, far.variance, rtol=1e-6)
    assert near.iterations < far.iterations


def test_solutions_that_do_not_converge_are_reported(system):
    found = estimate(system, 3, 3, accurate(system, system[2], tol=1e-10, max_iter=4))
    assert not found.converged
    assert found.worst_residual > 1e-10
    assert found.iterations == 12


def test_negative_weights_are_refused(system):
    weights = system[2].copy()
    weights[5] = -1.0
    with pytest.raises(ValueError, match=r"weight 5 is -1\.0"):
        estimate(system, 3, 3, weights=weights)


def test_lanczos_bounds_grow_to_the_variances(system):
    forward, adjoint, weights, exact = system

    def normal(vector):
        return adjoint(weights * forward(vector))

    before = np.zeros(N)
    for steps in (1, 2, 5, 20, 40, P):
        found = lanczos(forward, normal, steps, np.random.default_rng(4), n_unknowns=P)
        assert found.steps == steps
        assert (found.variance >= before - 1e-12).all()
        assert (found.variance <= exact * (1 + 1e-10)).all()
        shorter = lanczos(forward, normal, steps - 1, np.random.default_rng(4), n_unknowns=P)
        np.testing.assert_allclose(found.variance - shorter.variance, found.last_increment, atol=1e-12)
        before = found.variance
    np.testing.assert_allclose(found.variance, exact, rtol=1e-9)
    assert lanczos(forward, normal, 10 * P, np.random.default_rng(4), n_unknowns=P).steps == P


def test_lanczos_ends_where_its_space_does():
    """Three distinct eigenvalues: three steps."""
    weights = np.repeat([1.0, 2.0, 5.0], 4)
    found = lanczos(lambda v: v, lambda v: weights * v, 12, np.random.default_rng(5), n_unknowns=12)
    assert found.steps == 3
