"""The application of operators to variables: shapes, types, gradients, models."""

import pickle

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
import scipy.sparse as sp
from pytensor.graph.replace import vectorize_graph
from scipy.sparse.linalg import LinearOperator

from pymc_ep.exceptions import InvalidDataError, UnsupportedModelError
from pymc_ep.operators import Convolution2D, Gradient2D, LinearMap, Mask, apply_operator
from pymc_ep.operators.apply import ApplyLinearMap

PYTHON = pytensor.compile.mode.Mode("py", "fast_compile")
GRADIENT = Gradient2D((2, 3))
ONES = np.ones((2, 6))


@pytest.mark.parametrize(
    ("operator", "x", "message"),
    [
        (GRADIENT, pt.tensor("x", shape=(3, 2)), r"takes arrays of shape \(2, 3\), and x has shape \(3, 2\)"),
        (GRADIENT, pt.tensor("x", shape=(None, 2)), r"and x has shape \(\?, 2\)"),
        (GRADIENT, pt.vector("x"), r"and x has shape \(\?,\)"),
        (ONES, pt.tensor("x", shape=(5,)), r"acts on 6 elements, and the array has shape \(5,\)"),
        (ONES, pt.tensor("x", shape=(2, 2)), r"acts on 6 elements, and the array has shape \(2, 2\)"),
        (ONES, pt.zmatrix("x"), "not of type complex128"),
        (ONES, "x", "must be a tensor of real numbers, not str"),
        (ONES, np.array(["a"]), "must be a tensor of real numbers"),
        (ONES, None, "must be a tensor of real numbers"),
        (ONES, lambda x: x, "must be a tensor of real numbers, not function"),
        (ONES, pytensor.shared(np.random.default_rng(1)), "must be a tensor of real numbers, not RandomGenerator"),
        (ONES, pt.scalar("x"), "not the scalar x"),
        (ONES, GRADIENT, "the operator comes first, then x"),
    ],
)
def test_refusals_when_the_graph_is_made(operator, x, message):
    with pytest.raises(InvalidDataError, match=message):
        apply_operator(operator, x)


def test_functions_are_no_operators():
    with pytest.raises(UnsupportedModelError, match="no linear map"):
        apply_operator(lambda u: u**2, pt.vector("u"))
    with pytest.raises(UnsupportedModelError, match="PyTensor variable"):
        apply_operator(pt.matrix("A"), pt.vector("u"))


@pytest.mark.parametrize("x", [pt.matrix("x"), pt.tensor("x", shape=(None, 3))])
def test_refusals_when_computing_name_both_shapes(x):
    with pytest.raises(InvalidDataError, match=r"takes arrays of shape \(2, 3\), not \(4, 3\)"):
        apply_operator(GRADIENT, x).eval({x: np.ones((4, 3))}, mode=PYTHON)


def test_batches_of_arrays_of_unknown_sides():
    matrix = np.arange(12.0).reshape(2, 6)
    x, batch = pt.matrix("x"), pt.tensor3("batch")
    (rows,) = vectorize_graph([apply_operator(matrix, x)], {x: batch})
    value = np.random.default_rng(5).standard_normal((4, 3, 2))
    np.testing.assert_allclose(rows.eval({batch: value}, mode=PYTHON), value.reshape(4, 6) @ matrix.T)


def test_refusals_when_computing_under_jax():
    pytest.importorskip("jax")
    x = pt.matrix("x")
    function = pytensor.function([x], apply_operator(GRADIENT, x), mode="JAX")
    with pytest.raises(InvalidDataError, match=r"takes arrays of shape \(2, 3\), not \(4, 3\)"):
        function(np.ones((4, 3)))


@pytest.mark.parametrize("wrap", [np.asarray, sp.csr_array, sp.csc_matrix])
def test_matrices_take_ravelled_arrays_of_unknown_sides(wrap):
    matrix = np.arange(12.0).reshape(2, 6)
    x = pt.matrix("x")
    y = apply_operator(wrap(matrix), x)
    assert y.type.shape == (2,)
    value = np.random.default_rng(1).standard_normal((3, 2))
    np.testing.assert_allclose(y.eval({x: value}, mode=PYTHON), matrix @ value.ravel())
    slope = pytensor.grad(y[1], x)
    np.testing.assert_allclose(slope.eval({x: value}, mode=PYTHON), matrix[1].reshape(3, 2))


@pytest.mark.parametrize("dtype", ["int64", "float32", "bool"])
def test_other_types_become_doubles(dtype):
    x = pt.tensor("x", shape=(2, 3), dtype=dtype)
    y = apply_operator(GRADIENT, x)
    assert y.dtype == "float64"
    value = np.array([[1, 0, 1], [0, 0, 1]]).astype(dtype)
    np.testing.assert_array_equal(y.eval({x: value}, mode=PYTHON), GRADIENT.forward(value))


def test_constants_and_lists_are_tensors():
    np.testing.assert_array_equal(apply_operator(GRADIENT, np.ones((2, 3))).eval(mode=PYTHON), np.zeros(7))
    np.testing.assert_array_equal(apply_operator(np.eye(2), [1.0, 2.0]).eval(mode=PYTHON), [1, 2])


def test_the_output_shape_needs_no_computation():
    def refuse(x):
        raise AssertionError("computed")

    class Refusing(LinearMap):
        _forward = _adjoint = staticmethod(refuse)

    x = pt.vector("x")
    y = apply_operator(Refusing((3,), (4, 5)), x)
    assert y.type.shape == (4, 5)
    np.testing.assert_array_equal(pytensor.function([x], y.shape, mode=PYTHON)(np.ones(3)), [4, 5])
    default = pytensor.function([x], (pt.zeros_like(y)).sum(), on_unused_input="ignore")
    assert default(np.ones(3)) == 0


def test_equal_maps_are_merged():
    x = pt.matrix("x")
    once, twice = apply_operator(GRADIENT, x), apply_operator(GRADIENT, x)
    assert once.owner.op == twice.owner.op and hash(once.owner.op) == hash(twice.owner.op)
    assert once.owner.op != apply_operator(Gradient2D((2, 3)), x).owner.op
    # The pullback of the pullback is the map itself.
    y = pt.vector("y")
    pulled = pytensor.grad(None, wrt=x, known_grads={once: y})
    pushed = pytensor.grad(None, wrt=y, known_grads={pulled: x})
    compiled = pytensor.function([x, y], [once, pushed], on_unused_input="ignore")
    assert sum(isinstance(node.op, ApplyLinearMap) for node in compiled.maker.fgraph.apply_nodes) == 1


def test_copies_of_an_op_compute_the_same():
    op = pickle.loads(pickle.dumps(ApplyLinearMap(Convolution2D((3, 3), np.ones((2, 2))))))
    x = np.random.default_rng(2).standard_normal((3, 3))
    np.testing.assert_allclose(op(x).eval(mode=PYTHON), op.linear_map.forward(x))


def test_a_model_with_operators():
    rng = np.random.default_rng(3)
    kernel = np.ones((3, 3)) / 9
    seen = Mask((4, 5), rng.random((4, 5)) < 0.7)
    with pm.Model(coords={"row": range(4), "column": range(5)}) as model:
        u = pm.Normal("u", 0, 10, dims=("row", "column"))
        pm.Potential("smooth", -abs(apply_operator(Gradient2D((4, 5)), u)).sum())
        blurred = pm.Deterministic("blurred", apply_operator(Convolution2D((4, 5), kernel), u))
        pm.Normal("y", apply_operator(seen, blurred), 1.0, observed=np.ones(seen.output_shape))
    point = {"u": rng.standard_normal((4, 5))}
    slope = model.compile_dlogp(mode="FAST_COMPILE")(point).reshape(4, 5)
    logp, step = model.compile_logp(mode="FAST_COMPILE"), 1e-6
    for index in [(0, 0), (3, 4), (1, 2)]:
        shift = np.zeros((4, 5))
        shift[index] = step
        difference = logp({"u": point["u"] + shift}) - logp({"u": point["u"] - shift})
        assert slope[index] == pytest.approx(difference / (2 * step), rel=1e-5, abs=1e-6)


def test_jax_differentiates_and_maps_the_bodies():
    jax = pytest.importorskip("jax")
    from pymc_ep.operators.jax import traceable

    rng = np.random.default_rng(4)
    lower = np.tril(rng.standard_normal((6, 6)))
    foreign = LinearOperator((6, 6), matvec=lambda x: lower @ x, rmatvec=lambda y: lower.T @ y, dtype=float)
    x = rng.standard_normal((2, 6))
    for operator in (foreign, lower, sp.csr_array(lower)):
        op = apply_operator(operator, pt.tensor("x", shape=(6,))).owner.op
        values, pull = jax.vjp(jax.jit(jax.vmap(traceable(op.linear_map))), x)
        np.testing.assert_allclose(values, x @ lower.T, rtol=1e-12)
        np.testing.assert_allclose(pull(values)[0], x @ lower.T @ lower, rtol=1e-12)
