"""Factors by blocks and border against dense matrices."""

import numpy as np
import pytest
import scipy.sparse

from pymc_ep.numerics import memory
from pymc_ep.numerics.gaussian import sparse_coefficient_space
from pymc_ep.numerics.gaussian.block_elimination import blocks_of
from pymc_ep.numerics.gaussian.coefficient_space import FactorPrior
from pymc_ep.numerics.gaussian.sparse_coefficient_space import BlockPosterior, EntryPattern, SparseFactorPrior

N, GROUPS = 600, 140
KINDS = ("groups", "slopes", "crossed", "nested", "alone", "classes and pupils")


def indicator(group):
    group = np.asarray(group)
    return scipy.sparse.csr_array((np.ones(N), (np.arange(N), group)), shape=(N, int(group.max()) + 1))


def design(kind):
    """Return R^T and the numbers of blocks of each size, and of coefficients in the border."""
    rng = np.random.default_rng(5)
    group = np.concatenate([np.arange(GROUPS), rng.integers(GROUPS, size=N - GROUPS)])
    shared = scipy.sparse.csr_array(rng.normal(size=(N, 2)))
    own = scipy.sparse.diags_array(np.exp(rng.normal(size=N))) @ indicator(group)
    if kind == "groups":
        parts, shape = [own, shared], ({1: GROUPS}, 2)
    elif kind == "slopes":
        slope = scipy.sparse.diags_array(rng.normal(size=N)) @ indicator(group)
        parts, shape = [shared, own, slope], ({2: GROUPS}, 2)
    elif kind == "crossed":
        parts, shape = [own, indicator(rng.integers(12, size=N))], ({1: GROUPS}, 12)
    elif kind == "nested":
        parts, shape = [own, shared, indicator(group // 5)], ({6: GROUPS // 5}, 2)
    elif kind == "alone":
        parts, shape = [own], ({1: GROUPS}, 0)
    else:
        # Classes of ten pupils are too large for blocks, so that they are of the border.
        parts, shape = [own, indicator(group // 10)], ({1: GROUPS}, GROUPS // 10)
    joined = scipy.sparse.csr_array(scipy.sparse.hstack(parts, format="csr"))
    scaled = scipy.sparse.csr_array(joined @ scipy.sparse.diags_array(np.exp(rng.normal(size=joined.shape[1]))))
    return scaled, shape


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


@pytest.fixture(params=[2**20, 50], ids=["at once", "in slices"])
def priors(kind, request, monkeypatch):
    monkeypatch.setattr(memory, "CHUNK", request.param)
    matrix, _ = design(kind)
    precision = np.ones(matrix.shape[1])
    # A flat prior within a block and, where there is one, in the border.
    precision[[3, -1]] = 0.0
    return SparseFactorPrior(matrix.data, EntryPattern(matrix), precision), FactorPrior(matrix.toarray().T, precision)


@pytest.fixture
def sites():
    rng = np.random.default_rng(6)
    return rng.normal(size=N), rng.normal(size=N), np.where(np.arange(N) % 9 == 0, -1e-6, rng.exponential(size=N))


def test_coefficients_fall_into_blocks_and_border(kind):
    matrix, (sizes, border) = design(kind)
    blocks = blocks_of(matrix)
    assert {part.shape[1]: part.shape[0] for part in blocks.members} == sizes
    assert len(blocks.border) == border
    assert sorted(blocks.order) == list(range(matrix.shape[1]))
    coupled = (matrix.T @ matrix).toarray() != 0
    number = np.full(matrix.shape[1], -1)
    number[blocks.order[: blocks.inner]] = blocks.block
    one, other = np.nonzero(coupled[blocks.order[: blocks.inner]][:, blocks.order[: blocks.inner]])
    np.testing.assert_array_equal(blocks.block[one], blocks.block[other])


def test_coefficients_that_all_couple_have_no_blocks():
    rng = np.random.default_rng(7)
    assert blocks_of(scipy.sparse.csr_array(rng.normal(size=(300, 200)))) is None
    walk = scipy.sparse.csr_array(scipy.sparse.diags_array([np.ones(400), np.ones(399)], offsets=[0, 1]))
    assert blocks_of(walk) is None


def test_posteriors_are_those_of_dense_algebra(priors, sites):
    prior, dense = priors
    mean, shift, precision = sites
    found, expected = prior.posterior(mean, shift, precision), dense.posterior(mean, shift, precision)
    assert isinstance(found, BlockPosterior)
    assert found.proper
    assert expected.proper
    for name in ("mean", "variance", "remainder", "weights", "coordinates"):
        np.testing.assert_allclose(getattr(found, name), getattr(expected, name), rtol=1e-10, atol=1e-10, err_msg=name)
    np.testing.assert_allclose(found.log_det, expected.log_det, rtol=1e-12)
    moved, other = (one.shifted(of, mean, 2.0 * shift, precision) for one, of in zip(priors, (found, expected)))
    np.testing.assert_allclose(moved.mean, other.mean, atol=1e-10)
    coordinates = prior.posterior(mean, shift, precision, with_variances=False)
    np.testing.assert_allclose(coordinates.coordinates, expected.coordinates, atol=1e-10)
    gradient = prior.cotangent(found, precision)
    of_dense = dense.cotangent(expected, precision)[prior.pattern.column, prior.pattern.row]
    np.testing.assert_allclose(gradient, of_dense, atol=1e-10)
    rows, of_dense = prior.posterior_rows(found), dense.posterior_rows(expected)
    np.testing.assert_allclose(rows(slice(5, 90)), of_dense(slice(5, 90)), atol=1e-12)
    np.testing.assert_allclose(
        rows(np.array([3, 1]), slice(7, 30)), of_dense(np.array([3, 1]), slice(7, 30)), atol=1e-12
    )


def test_posteriors_under_jax_are_those_of_numpy(kind, sites):
    """Also improper ones; a body compiles for each kind."""
    jax = pytest.importorskip("jax")
    matrix, _ = design(kind)
    precision = np.ones(matrix.shape[1])
    precision[[3, -1]] = 0.0
    prior, (mean, shift, weights) = SparseFactorPrior(matrix.data, EntryPattern(matrix), precision), sites
    with jax.enable_x64(True):
        device, expected = prior.on_device(), prior.posterior(mean, shift, weights)
        assert prior.on_device() is device
        there = jax.jit(lambda own, *at: own.posterior(*at))(device, *map(jax.numpy.asarray, sites))
        found = prior.posterior_on_host(there)
        np.testing.assert_allclose(device.variances(), prior.variances(), rtol=1e-14)
        np.testing.assert_allclose(device.energy(there, mean), prior.energy(expected, mean), rtol=1e-9)
        improper = device.posterior(*map(jax.numpy.asarray, (mean, shift, np.full(N, -50.0))))
    assert isinstance(found, BlockPosterior)
    for name in ("mean", "variance", "remainder", "weights", "coordinates", "log_det", "rounding"):
        np.testing.assert_allclose(getattr(found, name), getattr(expected, name), rtol=1e-9, atol=1e-9, err_msg=name)
    for name in ("coupling", "border", "diagonal"):
        one, other = (getattr(of.whitener, name) for of in (found, expected))
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-9, err_msg=name)
    assert found.proper
    assert not improper.proper


def test_variables_and_draws_are_those_of_dense_algebra(priors, sites):
    prior, _ = priors
    found, expected = (one.posterior(*sites) for one in priors)
    p = len(prior.precision)
    rng = np.random.default_rng(8)
    variables = scipy.sparse.csr_array(rng.normal(size=(30, p)) * (rng.random((30, p)) < 0.1))
    for cross in (variables, variables.toarray(), scipy.sparse.csr_array(scipy.sparse.eye_array(p))):
        np.testing.assert_allclose(
            found.remaining_variance(cross, np.zeros(0)), expected.remaining_variance(cross, np.zeros(0)), rtol=1e-10
        )
    draws = expected.draw_coordinates(4, rng)
    ratio = [one.log_ratio(draws, prior.precision) for one in (found, expected)]
    np.testing.assert_allclose(ratio[0], ratio[1], rtol=1e-10, atol=1e-9)
    # Draws whitened by the dense root are standard normal.
    drawn = found.draw_coordinates(3000, rng) - found.coordinates
    normal = np.linalg.solve(expected.whitener, np.eye(p)).T @ drawn.T
    assert np.abs(normal.mean(axis=1)).max() < 5.0 / np.sqrt(3000)
    covariance = normal @ normal.T / 3000
    assert np.abs(covariance - np.eye(p)).max() < 6.0 / np.sqrt(3000)


@pytest.mark.parametrize("where", ["block", "border"])
def test_improper_posteriors_are_told(where):
    matrix, _ = design("slopes")
    prior = SparseFactorPrior(matrix.data, EntryPattern(matrix), np.ones(matrix.shape[1]))
    precision = np.full(N, 0.5)
    blocks = prior.pattern.blocks
    coefficient = blocks.order[0] if where == "block" else blocks.border[0]
    precision[matrix[:, [coefficient]].toarray()[:, 0] != 0] = -50.0
    assert not prior.posterior(np.zeros(N), np.zeros(N), precision).proper


def test_parts_are_correlated_by_the_border_alone(priors, sites, kind, monkeypatch):
    monkeypatch.setattr(sparse_coefficient_space, "_TOGETHER", 40)
    prior, dense = priors
    mean, shift, precision = sites
    found = prior.posterior(mean, shift, precision)
    parts, shared = prior.apart(found)
    assert sorted(np.concatenate(parts)) == list(range(N))
    assert len(parts) > 5
    assert max(map(len, parts)) < 40 + 80
    covariance = dense.posterior_rows(dense.posterior(mean, shift, precision))(slice(None))
    number = np.empty(N, dtype=int)
    for k, part in enumerate(parts):
        number[part] = k
    other = number[:, None] != number
    assert np.all(np.abs(covariance[other]) <= np.sqrt(np.outer(shared, shared))[other] * (1 + 1e-9) + 1e-12)
    assert np.all(shared <= found.variance * (1 + 1e-9))
