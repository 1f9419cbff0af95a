"""Matrices and the operators of other packages as linear maps."""

from collections.abc import Callable, Sequence
from functools import cached_property
from math import prod
from threading import RLock
from typing import Any, Protocol

import numpy as np
import scipy.sparse as sp
from pytensor.graph.basic import Variable

from pymc_ep.exceptions import InvalidDataError, UnsupportedModelError
from pymc_ep.operators.base import MATRIX_LIMIT, LinearMap, checked_shape

__all__ = ["DenseMap", "ForeignMap", "SparseMap", "as_linear_map", "columns_of"]

ACCEPTED = (
    "a matrix (NumPy or SciPy sparse), a scipy.sparse.linalg.LinearOperator, a PyLops operator, or one of "
    "Convolution2D, Gradient2D, Hessian2D, Mask, Wavelet2D, their compositions and stacks"
)

PROBES = 4096
"""Largest number of columns for which `ForeignMap.matrix` applies the operator to unit vectors: 4 s at 1 ms each."""

_ALONE = RLock()
"""Lock held during a call of an operator of another package; reentrant, as one operator may call another."""


class DenseMap(LinearMap):
    """A dense matrix as a map of arrays, which are ravelled in C order, to flat arrays.

    Parameters
    ----------
    dense : ndarray, (J, N)
        Not copied: do not change it afterwards.
    input_shape : sequence of int
        Shape of the arrays, with N elements.
    """

    def __init__(self, dense: np.ndarray, input_shape: Sequence[int]) -> None:
        super().__init__(input_shape, dense.shape[:1])
        self.dense = dense

    def matrix(self) -> sp.csr_array:
        """Return the matrix (J, N)."""
        return sp.csr_array(self.dense)

    def _forward(self, x: np.ndarray) -> np.ndarray:
        return self.dense @ x.ravel()

    def _adjoint(self, y: np.ndarray) -> np.ndarray:
        return (y @ self.dense).reshape(self.input_shape)


class SparseMap(LinearMap):
    """A sparse matrix as a map of arrays, which are ravelled in C order, to flat arrays.

    Parameters
    ----------
    sparse : scipy.sparse.csr_array, (J, N)
        Not copied: do not change it afterwards.
    input_shape : sequence of int
        Shape of the arrays, with N elements.
    """

    few_entries = True

    def __init__(self, sparse: sp.csr_array, input_shape: Sequence[int]) -> None:
        super().__init__(input_shape, sparse.shape[:1])
        self.sparse = sparse

    def matrix(self) -> sp.csr_array:
        """Return the matrix (J, N)."""
        return self.sparse

    def _forward(self, x: np.ndarray) -> np.ndarray:
        return self.sparse @ x.ravel()

    def _adjoint(self, y: np.ndarray) -> np.ndarray:
        return (self.sparse.T @ y).reshape(self.input_shape)


class ForeignOperator(Protocol):
    """Interface common to SciPy's LinearOperators, PyLops' operators and similar classes."""

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of rows and columns, (J, N)."""

    def matvec(self, x: np.ndarray) -> np.ndarray:
        """Return A x, (J,), for x (N,)."""

    def rmatvec(self, x: np.ndarray) -> np.ndarray:
        """Return A' x, (N,), for x (J,)."""


class ForeignMap(LinearMap):
    """An operator of another package as a map of arrays, which are ravelled in C order, to flat arrays.

    Parameters
    ----------
    operator : ForeignOperator
        A real operator of shape (J, N), such as SciPy's or PyLops'.
    input_shape : sequence of int
        Shape of the arrays, with N elements.
    """

    def __init__(self, operator: ForeignOperator, input_shape: Sequence[int]) -> None:
        super().__init__(input_shape, (int(operator.shape[0]),))
        self.operator = operator

    def matrix(self) -> sp.csr_array | None:
        """Return the matrix (J, N), computed column by column; None above 4096 columns or 2^24 entries."""
        columns = prod(self.input_shape)
        if columns > PROBES or columns * self.output_shape[0] > MATRIX_LIMIT:
            return None
        return self._matrix

    @cached_property
    def _matrix(self) -> sp.csr_array:
        units = np.eye(prod(self.input_shape))
        return sp.csr_array(sp.hstack([sp.csc_array(self._forward(unit)[:, None]) for unit in units], format="csr"))

    # An operator may return its argument, or an array that it uses again, perhaps in another thread. So its output is
    # copied, and calls are serialised by the lock.
    def _forward(self, x: np.ndarray) -> np.ndarray:
        with _ALONE:
            return np.array(self.operator.matvec(x.ravel()), dtype=np.float64).reshape(self.output_shape)

    def _adjoint(self, y: np.ndarray) -> np.ndarray:
        with _ALONE:
            return np.array(self.operator.rmatvec(y), dtype=np.float64).reshape(self.input_shape)


def as_linear_map(A: Any, input_shape: Sequence[int] | None = None) -> LinearMap:
    """Return a matrix or an operator as a linear map on arrays of `input_shape`.

    Parameters
    ----------
    A : LinearMap, ndarray, SciPy sparse matrix or array, LinearOperator or PyLops operator
        A LinearMap is returned as it is. A matrix or operator of shape (J, N) acts on the N elements of an array
        ravelled in C order, and its output is flat, (J,). It is not copied: do not change it afterwards.
    input_shape : sequence of int, optional
        Shape of the arrays, with N elements; (N,) by default.

    Raises
    ------
    UnsupportedModelError
        `A` is not a linear map, or its adjoint A' is missing or wrong. For an operator <A x, y> and <x, A' y> are
        compared once, at seeded random x and y. They may differ by 1e-6 times the larger of |A x| |y| and |x| |A' y|.
    InvalidDataError
        The shapes do not fit, or an entry is not finite.
    """
    if not isinstance(A, LinearMap):
        columns = columns_of(A)
        shape = (columns,) if input_shape is None else checked_shape(input_shape, "as_linear_map")
        if prod(shape) != columns:
            raise InvalidDataError(
                f"{_described(A)} acts on {columns} elements, and the array has shape {shape}, {prod(shape)} elements; "
                "an operator's columns are the elements of its argument ravelled in C order."
            )
        return _adapted(A, shape)
    if input_shape is not None and A.input_shape != tuple(input_shape):
        raise InvalidDataError(f"{A} takes arrays of shape {A.input_shape}, not {tuple(input_shape)}.")
    return A


def columns_of(A: Any) -> int:
    """Return the number of columns of a matrix or operator; raise UnsupportedModelError if `A` is neither."""
    if isinstance(A, Variable):
        raise UnsupportedModelError(
            f"The operator is the PyTensor variable {A}; only a constant operator is taken: {ACCEPTED}. A product with "
            "a matrix that depends on other variables is written A @ x."
        )
    if not (sp.issparse(A) or isinstance(A, np.ndarray) or _is_operator(A)):
        raise UnsupportedModelError(f"The operator is {_described(A)}, which is no linear map; give {ACCEPTED}.")
    if len(A.shape) != 2 or min(A.shape) < 1:
        raise InvalidDataError(f"The operator is {_described(A)}; a matrix (rows, columns) is needed, with neither 0.")
    return int(A.shape[1])


def _is_operator(A: Any) -> bool:
    return all(hasattr(A, name) for name in ("shape", "matvec")) and isinstance(A.shape, Sequence)


def _adapted(A: Any, shape: tuple[int, ...]) -> LinearMap:
    kind = np.dtype(getattr(A, "dtype", None) or float).kind
    if kind not in "biuf":
        raise UnsupportedModelError(f"{_described(A)} has entries of type {A.dtype}; only real operators are taken.")
    if sp.issparse(A):
        sparse = sp.csr_array(A, dtype=np.float64)
        _check_entries(
            A, sparse.data, lambda k: (int(np.searchsorted(sparse.indptr, k, "right")) - 1, sparse.indices[k])
        )
        return SparseMap(sparse, shape)
    if isinstance(A, np.ndarray):
        dense = np.asarray(A, dtype=np.float64)
        _check_entries(A, dense.ravel(), lambda k: np.unravel_index(k, dense.shape))
        return DenseMap(dense, shape)
    adapted = ForeignMap(A, shape)
    _check_adjoint(adapted)
    return adapted


def _check_entries(A: object, values: np.ndarray, position: Callable[[int], Sequence[Any]]) -> None:
    bad = np.flatnonzero(~np.isfinite(values))
    if len(bad):
        row, column = (int(i) for i in position(int(bad[0])))
        raise InvalidDataError(
            f"{_described(A)} is {values[bad[0]]} at ({row}, {column}); all entries of an operator must be finite."
        )


def _check_adjoint(adapted: ForeignMap) -> None:
    """Raise UnsupportedModelError unless <A x, y> = <x, A' y> for the operator A and one pair of random vectors."""
    name = _described(adapted.operator)
    rng = np.random.default_rng(1)
    x, y = rng.standard_normal(adapted.input_shape), rng.standard_normal(adapted.output_shape)
    image = _applied(adapted.forward, x, f"{name}: its product with a vector")
    try:
        back = _applied(adapted.adjoint, y, f"{name}: its adjoint's product with a vector")
    except (NotImplementedError, AttributeError, TypeError) as error:
        raise UnsupportedModelError(
            f"{name} has no adjoint ({type(error).__name__}: {error}), and no gradient without one; define rmatvec."
        ) from error
    # |<A x, y>| <= |A x| |y|: the error is relative to that bound, as either product may be near zero by chance.
    left, right = float(np.vdot(image, y)), float(np.vdot(x, back))
    norm = np.linalg.norm
    if abs(left - right) > 1e-6 * max(norm(image) * norm(y), norm(x) * norm(back)):
        raise UnsupportedModelError(
            f"{name} has a wrong adjoint, or is not linear: for random x and y, <A x, y> is {left:.9g}, but "
            f"<x, A' y> is {right:.9g}; correct its rmatvec."
        )


def _applied(function: Callable[[np.ndarray], np.ndarray], at: np.ndarray, what: str) -> np.ndarray:
    try:
        values = function(at)
    except ValueError as error:
        raise InvalidDataError(f"{what} has not the shape that the operator's own promises ({error}).") from error
    if not np.all(np.isfinite(values)):
        first = np.flatnonzero(~np.isfinite(values.ravel()))[0]
        raise InvalidDataError(f"{what} is {values.ravel()[first]} at element {first}; it must be finite.")
    return values


def _described(A: object) -> str:
    shape = getattr(A, "shape", None)
    return type(A).__name__ if shape is None else f"{type(A).__name__} of shape {tuple(shape)}"
