"""What matrices and foreign operators are taken, and what is refused."""

import re

import numpy as np
import pylops
import pytensor.tensor as pt
import pytest
import scipy.sparse as sp
from scipy.sparse.linalg import LinearOperator

from pymc_ep.exceptions import InvalidDataError, UnsupportedModelError
from pymc_ep.operators import Gradient2D, as_linear_map, stack

ONES = np.ones((2, 3))


class NoAdjoint(LinearOperator):
    def __init__(self):
        super().__init__(dtype=float, shape=(2, 3))

    def _matvec(self, x):
        return ONES @ x


def operator(forward, adjoint, **attributes):
    kind = type("Operator", (), {"shape": (2, 3), "dtype": np.dtype(float), "__repr__": lambda self: "Operator"})
    made = kind()
    made.matvec, made.rmatvec = forward, adjoint
    vars(made).update(attributes)
    return made


def with_nan(kind):
    matrix = np.arange(6.0).reshape(2, 3)
    matrix[1, 2] = np.nan
    return kind(matrix)


@pytest.mark.parametrize(
    ("given", "shape", "error", "message"),
    [
        (lambda u: u**2, (3,), UnsupportedModelError, "is function, which is no linear map; give a matrix"),
        ("gradient", (3,), UnsupportedModelError, "is str, which is no linear map"),
        (pt.matrix("M"), (3,), UnsupportedModelError, "the PyTensor variable M; only a constant operator"),
        (pt.vector("u") ** 2, (3,), UnsupportedModelError, "written A @ x"),
        (np.ones(3), (3,), InvalidDataError, r"ndarray of shape \(3,\); a matrix \(rows, columns\) is needed"),
        (np.ones((0, 3)), (3,), InvalidDataError, "with neither 0"),
        (ONES, (4,), InvalidDataError, r"acts on 3 elements, and the array has shape \(4,\), 4 elements"),
        (sp.csr_array(ONES), (2, 2), InvalidDataError, r"acts on 3 elements, and the array has shape \(2, 2\)"),
        (pylops.Identity(4), (2, 3), InvalidDataError, r"Identity of shape \(4, 4\) acts on 4 elements"),
        (ONES, (0,), InvalidDataError, "each a positive integer"),
        (ONES * 1j, (3,), UnsupportedModelError, "entries of type complex128; only real"),
        (pylops.Identity(3, dtype=complex), (3,), UnsupportedModelError, "only real operators"),
        (np.array([["a", "b", "c"]]), (3,), UnsupportedModelError, "only real operators"),
        (with_nan(np.asarray), (3,), InvalidDataError, r"ndarray of shape \(2, 3\) is nan at \(1, 2\)"),
        (with_nan(sp.csc_array), (3,), InvalidDataError, r"csc_array of shape \(2, 3\) is nan at \(1, 2\)"),
        (LinearOperator((2, 3), lambda x: ONES @ x), (3,), UnsupportedModelError, "has no adjoint .*define rmatvec"),
        (NoAdjoint(), (3,), UnsupportedModelError, r"has no adjoint \(NotImplementedError.*define rmatvec"),
        (operator(lambda x: ONES @ x, None), (3,), UnsupportedModelError, "has no adjoint"),
        (operator(lambda x: ONES @ x, lambda y: 2 * ONES.T @ y), (3,), UnsupportedModelError, "has a wrong adjoint"),
        (operator(lambda x: ONES @ x**2, lambda y: ONES.T @ y), (3,), UnsupportedModelError, "or is not linear"),
        (
            operator(lambda x: ONES @ x, lambda y: (1 + 1e-5) * ONES.T @ y),
            (3,),
            UnsupportedModelError,
            "correct its rmatvec",
        ),
        (
            operator(lambda x: x, lambda y: ONES.T @ y),
            (3,),
            InvalidDataError,
            "with a vector has not the shape",
        ),
        (operator(lambda x: ONES @ x, lambda y: y), (3,), InvalidDataError, "adjoint's product with a vector has not"),
        (operator(lambda x: np.full(2, np.inf), lambda y: ONES.T @ y), (3,), InvalidDataError, "is inf at element 0"),
        (Gradient2D((2, 3)), (3, 2), InvalidDataError, r"takes arrays of shape \(2, 3\), not \(3, 2\)"),
    ],
)
def test_refusals(given, shape, error, message):
    with pytest.raises(error, match=message):
        as_linear_map(given, shape)


def test_an_operator_without_rmatvec_is_named():
    made = operator(lambda x: ONES @ x, None)
    del made.rmatvec
    with pytest.raises(UnsupportedModelError, match=re.escape("Operator of shape (2, 3) has no adjoint")):
        as_linear_map(made, (3,))


def test_own_maps_pass_through():
    gradient = Gradient2D((2, 3))
    assert as_linear_map(gradient, (2, 3)) is gradient
    assert as_linear_map(gradient) is gradient


def test_without_a_shape_the_argument_is_flat():
    assert as_linear_map(ONES).input_shape == (3,)


def test_matrices_are_not_copied():
    dense, sparse = np.ones((2, 3)), sp.csr_array(ONES)
    assert as_linear_map(dense, (3,)).dense is dense
    assert np.shares_memory(as_linear_map(sparse, (3,)).sparse.data, sparse.data)


def test_single_precision_operators_are_taken():
    blur = pylops.Smoothing1D(3, (9,), dtype="float32")
    x = np.random.default_rng(1).standard_normal(9)
    np.testing.assert_allclose(as_linear_map(blur, (9,)).forward(x), blur.matvec(x), rtol=1e-6)


def test_foreign_maps_return_arrays_of_their_own():
    buffer = np.zeros(3)

    def into_buffer(x):
        buffer[:] = 2 * x
        return buffer

    twice = as_linear_map(operator(into_buffer, into_buffer, shape=(3, 3)), (3,))
    first = twice.forward(np.ones(3))
    twice.forward(np.zeros(3))
    np.testing.assert_array_equal(first, [2, 2, 2])


def test_large_foreign_operators_have_no_matrix():
    identity = as_linear_map(pylops.Identity(5000), (5000,))
    assert identity.matrix() is None and identity.T.matrix() is None and identity.rank is None
    assert (identity @ identity).matrix() is None
    assert stack(identity, identity).matrix() is None
