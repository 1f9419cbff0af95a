"""Posteriors of compared utilities: all bodies against dense linear algebra."""

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

from pymc_ep.models.preferences.kernel import (
    Comparisons,
    add_losses,
    difference_means,
    difference_moments,
    precision_losses,
    prior_factors,
)
from pymc_ep.models.preferences.kernel.op import DifferenceMeans, DifferenceMoments, PrecisionLosses, PriorFactors

I, D, S2 = 15, 3, 0.7  # noqa: E741
BACKENDS = ["numpy", "numba", "c", "jax"]


def problem(seed=0):
    """Users of random comparisons; the last three have one, repeated and contradictory ones, and hundreds."""
    rng = np.random.default_rng(seed)
    counts, pairs = np.append(rng.integers(2, 7, 6), [2, 3, 13]), np.append(rng.integers(1, 12, 6), [1, 5, 400])
    items = np.concatenate([np.sort(rng.choice(I, n, replace=False)) for n in counts])
    first = np.concatenate([rng.integers(0, n, p) for n, p in zip(counts, pairs)])
    second = (first + rng.integers(1, np.repeat(counts, pairs))) % np.repeat(counts, pairs)
    first[-405:-400], second[-405:-400] = [0, 0, 0, 1, 2], [1, 1, 1, 0, 1]
    ends = [np.concatenate([[0], np.cumsum(n)]).astype(np.int64) for n in (counts, pairs)]
    comparisons = Comparisons(ends[0], items.astype(np.int32), ends[1], first.astype(np.int32), second.astype(np.int32))
    root = rng.normal(size=(I, I))
    kernel, factors = root @ root.T / I + 0.1 * np.eye(I), rng.normal(size=(I, D))
    n = pairs.sum()
    return comparisons, factors, kernel, rng.normal(size=n), rng.normal(size=n), rng.uniform(0.0, 2.0, n)


@pytest.mark.parametrize("backend", BACKENDS)
def test_bodies_equal_dense_algebra(backend):
    comparisons, factors, kernel, mean, shift, precision = problem()
    precision[0] = 0.0
    lower, failed = prior_factors(comparisons, factors, kernel, S2, backend=backend)
    assert failed == -1
    found = difference_moments(comparisons, lower, mean, shift, precision, backend=backend)
    losses = precision_losses(comparisons, found.whitened, precision, backend=backend)
    other = difference_means(comparisons, found.whitened, mean, shift + 1.0, precision, backend=backend)
    squares = comparisons.square_ends
    for u in range(comparisons.n_users):
        items, pairs = comparisons.of_user(u)
        own, here = comparisons.items[items], slice(squares[u], squares[u + 1])
        prior = factors[own] @ factors[own].T + S2 * kernel[np.ix_(own, own)]
        np.testing.assert_allclose(lower[here].reshape(prior.shape), np.linalg.cholesky(prior), atol=1e-12)
        design = np.eye(len(own))[comparisons.firsts[pairs]] - np.eye(len(own))[comparisons.seconds[pairs]]
        laplacian = design.T @ (precision[pairs, None] * design)
        posterior = np.linalg.inv(np.linalg.inv(prior) + laplacian)
        np.testing.assert_allclose(found.variance[pairs], np.diag(design @ posterior @ design.T), rtol=1e-10)
        for values, means in ((shift, found.mean), (shift + 1.0, other)):
            pull = design.T @ (values[pairs] - precision[pairs] * mean[pairs])
            np.testing.assert_allclose(means[pairs], mean[pairs] + design @ posterior @ pull, atol=1e-10)
        log_det = np.linalg.slogdet(np.eye(len(own)) + prior @ laplacian)[1]
        assert found.log_det[u] == pytest.approx(log_det, abs=1e-10)
        loss = laplacian - laplacian @ posterior @ laplacian
        np.testing.assert_allclose(losses[here].reshape(prior.shape), loss, atol=1e-10)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_kernel_without_entries_is_the_identity(backend):
    comparisons, factors, *_ = problem()
    found, _ = prior_factors(comparisons, factors, np.zeros((0, 0)), S2, backend=backend)
    expected, _ = prior_factors(comparisons, factors, np.eye(I), S2, backend=backend)
    np.testing.assert_allclose(found, expected, atol=1e-15)


@pytest.mark.parametrize("backend", BACKENDS)
def test_covariances_that_are_not_positive_definite_are_named(backend):
    comparisons, *_ = problem()
    indefinite = np.eye(I)
    item = comparisons.items[comparisons.of_user(3)[0]][0]
    indefinite[item, item] = -1.0
    with_it = [u for u in range(comparisons.n_users) if item in comparisons.items[comparisons.of_user(u)[0]]]
    _, failed = prior_factors(comparisons, np.zeros((I, 0)), indefinite, 1.0, backend=backend)
    assert failed == with_it[0]


def example(mode):
    """Outputs of all Ops in one graph."""
    comparisons, factors, kernel, mean, shift, precision = problem()
    given = [pt.constant(part) for part in comparisons]
    values = [factors, kernel, S2, mean, shift, precision]
    v, k, scale, *of_pairs = inputs = [pt.as_tensor(value).type() for value in values]
    lower, failed = PriorFactors()(*given, v, k, scale)
    moments = DifferenceMoments()(*given, lower, *of_pairs)
    means = DifferenceMeans()(*given, moments[3], of_pairs[0], of_pairs[1] + 1.0, of_pairs[2])
    losses = PrecisionLosses()(*given, moments[3], of_pairs[2])
    return pytensor.function(inputs, [lower, failed, *moments, means, losses], mode=mode)(*values)


def test_ops_run_their_bodies():
    comparisons, factors, kernel, mean, shift, precision = problem()
    lower, failed = prior_factors(comparisons, factors, kernel, S2, backend="numpy")
    moments = difference_moments(comparisons, lower, mean, shift, precision, backend="numpy")
    means = difference_means(comparisons, moments.whitened, mean, shift + 1.0, precision, backend="numpy")
    losses = precision_losses(comparisons, moments.whitened, precision, backend="numpy")
    for one, other in zip(example("FAST_COMPILE"), [lower, failed, *moments, means, losses], strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-10)


def test_jax_asks_for_constant_comparisons():
    pytest.importorskip("jax")
    comparisons, *_, precision = problem()
    inputs = [pt.as_tensor(value).type() for value in (*comparisons, precision, precision)]
    with pytest.raises(NotImplementedError, match="PrecisionLosses needs comparisons that are constants"):
        pytensor.function(inputs, PrecisionLosses()(*inputs), mode="JAX")


def test_jax_groups_of_few_users_change_nothing(monkeypatch):
    jax = pytest.importorskip("pymc_ep.models.preferences.kernel.jax")
    comparisons, factors, kernel, mean, shift, precision = problem()
    lower, _ = prior_factors(comparisons, factors, kernel, S2, backend="numpy")
    expected = difference_moments(comparisons, lower, mean, shift, precision, backend="numpy")
    monkeypatch.setattr(jax, "_NUMBERS", 64)
    assert max(len(group.users) for group in jax._groups(comparisons)) == 1
    found = jax.difference_moments(comparisons, lower, mean, shift, precision)
    for one, other in zip(found, expected):
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-10)


def test_some_users_have_the_comparisons_of_the_whole():
    comparisons, *_ = problem()
    users = np.array([4, 1])
    some, items, pairs, squares = comparisons.some(users)
    assert some.n_users == 2
    ends = comparisons.square_ends
    assert squares.tolist() == [*range(ends[4], ends[5]), *range(ends[1], ends[2])]
    for k, u in enumerate(users):
        mine, own = some.of_user(k), comparisons.of_user(u)
        np.testing.assert_array_equal(some.items[mine[0]], comparisons.items[own[0]])
        np.testing.assert_array_equal(items[mine[0]], np.arange(own[0].start, own[0].stop))
        np.testing.assert_array_equal(some.firsts[mine[1]], comparisons.firsts[own[1]])
        np.testing.assert_array_equal(pairs[mine[1]], np.arange(own[1].start, own[1].stop))


@pytest.mark.parametrize("backend", BACKENDS)
def test_losses_add_up_at_the_places_of_items(backend):
    comparisons, *_ = problem()
    rng = np.random.default_rng(1)
    squares = comparisons.square_ends
    losses, weights, total = rng.normal(size=squares[-1]), rng.normal(size=len(comparisons.items)), np.ones((I, I))
    add_losses(comparisons, losses, weights, total, backend=backend)
    expected = np.ones((I, I))
    for u in range(comparisons.n_users):
        own = comparisons.of_user(u)[0]
        place = np.eye(I)[comparisons.items[own]]
        loss = losses[squares[u] : squares[u + 1]].reshape(len(place), -1)
        expected += place.T @ (loss - np.outer(weights[own], weights[own])) @ place
    np.testing.assert_allclose(total, expected, rtol=1e-12, atol=1e-12)
