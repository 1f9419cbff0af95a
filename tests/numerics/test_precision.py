"""Exact algebra of sparse precisions against dense inverses by NumPy."""

from importlib import import_module

import numpy as np
import pytest
import scipy.sparse

from pymc_ep.exceptions import InvalidDataError
from pymc_ep.numerics import memory
from pymc_ep.numerics.gaussian.flat_prior import null_unknowns
from pymc_ep.numerics.precision import nested_dissection as dissection_module
from pymc_ep.numerics.precision import plan as precision_module
from pymc_ep.numerics.precision.multifrontal import Multifrontal
from pymc_ep.numerics.precision.nested_dissection import dissect, pattern
from pymc_ep.numerics.precision.plan import Dense, plan_algebra, require_memory


def differences(n, *, periodic):
    rows = np.eye(n, k=1) - np.eye(n)
    if periodic:
        rows[-1, 0] = 1.0
        return rows
    return rows[:-1]


def local_average(n, *, periodic):
    rows = 0.5 * np.eye(n) + 0.25 * (np.eye(n, k=1) + np.eye(n, k=-1))
    if periodic:
        rows[0, -1] = rows[-1, 0] = 0.25
    return rows


def image(height, width, *, periodic, observed=None):
    """Blurred pixels, of which a mask leaves some, over differences between neighbours."""
    blur = np.kron(local_average(height, periodic=periodic), local_average(width, periodic=periodic))
    down = np.kron(differences(height, periodic=periodic), np.eye(width))
    across = np.kron(np.eye(height), differences(width, periodic=periodic))
    return np.vstack([blur if observed is None else blur[observed], down, across])


def chain(n):
    return np.vstack([np.eye(n), differences(n, periodic=False)])


def scattered(n, rng):
    """Random rows that reach to neighbours of an order that is not the given one."""
    rows = np.zeros((3 * n, n))
    for row in rows:
        start = rng.integers(n - 6)
        row[start : start + 6] = rng.normal(size=6) * (rng.random(6) < 0.6)
    return np.vstack([rows, 0.1 * np.eye(n)])[:, rng.permutation(n)]


DESIGNS = {
    "chain": (chain(300), (300,)),
    "periodic image": (image(15, 18, periodic=True), (15, 18)),
    "open image, no shape": (image(22, 11, periodic=False), None),
    "masked image": (image(16, 16, periodic=True, observed=np.arange(0, 256, 5)), (16, 16)),
    "scattered": (scattered(260, np.random.default_rng(0)), None),
    "volume": (np.vstack([np.eye(270), np.kron(np.eye(5), image(6, 9, periodic=True))]), (5, 6, 9)),
}


@pytest.fixture(params=list(DESIGNS))
def problem(request):
    design, shape = DESIGNS[request.param]
    return design, shape


@pytest.fixture(params=["nested dissection", "dense", "dense, dense products", "dense, JAX"])
def algebra(request, problem, monkeypatch):
    design = scipy.sparse.csr_array(problem[0])
    if request.param == "nested dissection":
        monkeypatch.setattr(dissection_module, "_LEAF", 20)
        found = dissect(pattern(design), problem[1])
        assert len(found.parents) > 4
        return Multifrontal(design, found)
    if request.param == "dense, JAX":
        pytest.importorskip("jax").config.update("jax_enable_x64", True)
        return import_module("pymc_ep.numerics.precision.dense_jax").dense_on_device(design)
    monkeypatch.setattr(precision_module, "_DENSE", 0.0 if request.param.endswith("products") else 1.0)
    monkeypatch.setattr(memory, "CHUNK", 5000)
    return Dense(design)


def test_all_of_the_algebra_is_that_of_the_dense_inverse(problem, algebra):
    design, rng = problem[0], np.random.default_rng(1)
    n = design.shape[1]
    weights = rng.gamma(1.0, size=len(design)) + 0.05
    weights[rng.random(len(weights)) < 0.02] *= -0.01
    matrix = design.T @ (weights[:, None] * design)
    inverse = np.linalg.inv(matrix)
    factor = algebra.factor(weights)
    assert factor.proper
    np.testing.assert_allclose(factor.log_det, np.linalg.slogdet(matrix)[1], rtol=1e-11)
    np.testing.assert_allclose(
        factor.variances(algebra.design), np.einsum("ij,jk,ik->i", design, inverse, design), rtol=1e-9
    )
    for right in (rng.normal(size=n), rng.normal(size=(n, 3))):
        np.testing.assert_allclose(factor.solve(right), inverse @ right, rtol=1e-8, atol=1e-9)
    other = np.zeros((5, n))
    other[0, 3] = 2.0
    other[1, [0, n // 2, n - 1]] = 1.0
    other[2] = rng.normal(size=n)
    other[4, n - 4 : n - 1] = rng.normal(size=3)
    sparse, expected = scipy.sparse.csr_array(other), np.einsum("ij,jk,ik->i", other, inverse, other)
    for _ in range(2):
        np.testing.assert_allclose(factor.variances(sparse), expected, rtol=1e-9)
    np.testing.assert_allclose(factor.variances(sparse[::-1]), expected[::-1], rtol=1e-9)
    # A draw is a linear map of normals, whose square is the covariance.
    root = factor.draw(n, Identity())
    np.testing.assert_allclose(root.T @ root, inverse, rtol=1e-8, atol=1e-9)


class Identity:
    """In place of a generator: the unit vectors, so that draws are the map itself."""

    def standard_normal(self, size):
        return np.eye(*size)


def test_ridges_are_added_to_the_diagonal(problem, algebra):
    ridge = np.random.default_rng(2).uniform(0.5, 2.0, size=problem[0].shape[1])
    weights = np.ones(len(problem[0]))
    inverse = np.linalg.inv(problem[0].T @ problem[0] + np.diag(ridge))
    found = algebra.factor(weights, ridge).variances(scipy.sparse.eye_array(len(ridge), format="csr"))
    np.testing.assert_allclose(found, np.diagonal(inverse), rtol=1e-10)


def test_what_is_indefinite_is_said_to_be_so(problem, algebra):
    weights = np.ones(len(problem[0]))
    weights[len(weights) // 2 :] = -10.0
    assert np.linalg.eigvalsh(problem[0].T @ (weights[:, None] * problem[0]))[0] < -1e-3
    assert not algebra.factor(weights).proper
    assert not algebra.factor(np.zeros(len(weights))).proper
    weights[3] = np.nan
    assert not algebra.factor(weights).proper


@pytest.mark.parametrize("periodic", [True, False])
@pytest.mark.parametrize("method", [plan_algebra, lambda design, shape: Dense(design)])
def test_the_constant_image_is_undetermined_by_differences(periodic, method):
    design = image(24, 20, periodic=periodic, observed=np.zeros(0, dtype=int))
    algebra = method(scipy.sparse.csr_array(design), (24, 20))
    rng = np.random.default_rng(3)
    for _ in range(5):
        assert not algebra.factor(rng.uniform(0.5, 2.0, size=len(design))).proper
    assert len(null_unknowns(algebra)) == 1


def test_unknowns_that_nothing_depends_on_are_named():
    design = image(12, 12, periodic=True)
    design[:, [17, 90]] = 0.0
    for algebra in (plan_algebra(scipy.sparse.csr_array(design), (12, 12)), Dense(scipy.sparse.csr_array(design))):
        assert null_unknowns(algebra).tolist() == [17, 90]
    assert not null_unknowns(plan_algebra(image(12, 12, periodic=True), (12, 12))).size


def test_ill_conditioned_precisions_are_not_taken_for_singular():
    """Strong differences and weak data: condition 1e11, yet every pixel is known."""
    design = scipy.sparse.csr_array(image(20, 20, periodic=True))
    weights = np.where(np.arange(1200) < 400, 1e-4, 1e6)
    for algebra in (plan_algebra(design, (20, 20)), Dense(design)):
        factor = algebra.factor(weights)
        assert factor.proper
        # The mean of all pixels is known as well as 400 observations make it.
        mean = scipy.sparse.csr_array(np.full((1, 400), 1 / 400))
        np.testing.assert_allclose(factor.variances(mean), 1 / (400 * 1e-4), rtol=1e-4)


def test_images_are_dissected_and_wide_rows_make_dense_matrices():
    side = 40
    local = plan_algebra(image(side, side, periodic=True), (side, side))
    assert "nested dissection" in local.sentence
    # The torus is cut twice, by two rows each: every pixel within two rows is coupled.
    assert np.diff(local.dissection.edges).max() <= 4 * side
    assert local.flops < 0.1 * Dense(local.design).flops
    # Callers ask for the variances of the design they gave, of which all is known beforehand.
    assert plan_algebra(local.design, (side, side)).design is local.design
    wide = plan_algebra(np.vstack([np.eye(300), np.ones((1, 300))]))
    assert "dense" in wide.sentence


def test_operations_grow_as_those_of_nested_dissection():
    """N^{3/2} for images with N pixels: eightfold for twice the side, and less than that while leaves matter."""
    small, large = (plan_algebra(sparse_gradient(side), (side, side)).flops for side in (64, 128))
    assert 3 < large / small < 9


def sparse_gradient(side):
    steps = scipy.sparse.eye_array(side, k=1) - scipy.sparse.eye_array(side)
    one = scipy.sparse.eye_array(side)
    return scipy.sparse.vstack([scipy.sparse.kron(steps, one), scipy.sparse.kron(one, steps)], format="csr")


def test_too_little_memory_is_foreseen(monkeypatch):
    algebra = plan_algebra(image(10, 10, periodic=True), (10, 10))
    require_memory(algebra)
    monkeypatch.setattr(memory, "_free_memory", lambda: 1000)
    with pytest.raises(InvalidDataError, match=r"100 unknowns need \d\.\d GB.*perturb-and-map"):
        require_memory(algebra)
    monkeypatch.setattr(memory, "_free_memory", lambda: None)
    require_memory(algebra)
