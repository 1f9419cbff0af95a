"""Checks of covariance and precision matrices among the parameters of Gaussian variables: symmetric, and definite."""

from collections.abc import Callable, Sequence

import numpy as np
from pytensor.graph.basic import Constant
from pytensor.graph.op import Op
from pytensor.graph.traversal import ancestors
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.math import Dot
from pytensor.tensor.variable import TensorVariable

from pymc_ep.compat import Cholesky, MatrixInverse
from pymc_ep.concurrency import compiled_function
from pymc_ep.exceptions import InvalidDataError, labelled
from pymc_ep.graphs.queries import core_op
from pymc_ep.graphs.random_nodes import is_random
from pymc_ep.modes import quick_mode
from pymc_ep.numerics.sparse.matrix_sum import MatrixSum

__all__ = [
    "InitialValue",
    "Labels",
    "constant_value",
    "depends_on_unknowns",
    "require_definite",
    "require_definite_sum",
    "require_symmetric",
    "require_symmetric_factored",
]

_ASYMMETRY = 1e-5
"""Largest difference of two opposite elements of a covariance, in units of correlations, that may be a rounding error:
the inverse of a matrix of condition number 1e10, or single precision, has one so large."""

_SMALL, _ROUNDING = 64, 1e-8
"""Largest number of rows of a matrix whose eigenvalues are checked, and the largest negative eigenvalue that may be
rounding, relative to the largest eigenvalue in absolute value."""

Labels = Sequence[object] | None
"""Labels along the first dim of a variable, such as names of areas; None without any."""

InitialValue = Callable[[TensorVariable, bool], np.ndarray | None]
"""``value(graph, near)``: value of a parameter at the initial values of the hyperparameters, or with ``near`` at values
next to these; None where it is not computed."""


def constant_value(graph: TensorVariable, near: bool = False) -> np.ndarray | None:
    """Return the value of a parameter that depends on no random variable, else None: an `InitialValue`."""
    if isinstance(graph, Constant):
        return np.asarray(graph.data)
    if depends_on_unknowns(graph):
        return None
    return np.asarray(compiled_function([], graph, mode=quick_mode())())


def depends_on_unknowns(graph: TensorVariable) -> bool:
    """Whether a parameter depends on a random variable."""
    return any(is_random(v) for v in ancestors([graph]))


def require_symmetric(name: str, matrix: TensorVariable, value: InitialValue) -> None:
    """Raise for a covariance or precision that is not symmetric; stacks are allowed.

    PyMC's density reads its lower triangle alone, through a Cholesky factor.
    """
    what, matrix = "covariance", _before_expansion(matrix)
    if _is_node(matrix, MatrixInverse):
        what, matrix = "precision", _before_expansion(matrix.owner.inputs[0])
    if _is_product_with_itself(matrix) or (values := value(matrix, True)) is None:
        return
    transpose = np.swapaxes(values, -1, -2)
    if values.shape != transpose.shape or np.array_equal(values, transpose):
        return
    # |A_ij - A_ji| against |A_ii A_jj|^{1/2}.
    scale = np.sqrt(np.abs(np.diagonal(values, axis1=-2, axis2=-1)))
    unequal = np.argwhere(np.abs(values - transpose) > _ASYMMETRY * scale[..., :, None] * scale[..., None, :])
    if not len(unequal):
        return
    index = tuple(int(i) for i in unequal[0])
    opposite = (*index[:-2], index[-1], index[-2])
    cure = "Correct one of the two, or give (A + A.T) / 2 for the matrix A"
    if not np.triu(values, 1).any():
        cure = "It is lower triangular: give a Cholesky factor, such as that of pm.LKJCorr in PyMC 6, as chol="
    raise InvalidDataError(
        f"The {what} matrix of {name!r} is not symmetric: it is {values[index]:.6g} at index {index} and "
        f"{values[opposite]:.6g} at {opposite}{', near the initial values' if depends_on_unknowns(matrix) else ''}. "
        f"{cure}."
    )


def require_definite(name: str, matrix: TensorVariable, labels: Labels) -> None:
    """Raise for a constant covariance or precision with a negative eigenvalue; stacks are allowed.

    A matrix of more than `_SMALL` rows, and the covariance of a single vector, are checked where a fit factorises them.
    """
    what, matrix = "covariance", _before_expansion(matrix)
    if _is_node(matrix, MatrixInverse):
        what, matrix = "precision", _before_expansion(matrix.owner.inputs[0])
    if not isinstance(matrix, Constant) or matrix.data.shape[-1] > _SMALL or not np.isfinite(matrix.data).all():
        return
    values = np.linalg.eigvalsh(matrix.data)
    negative = np.argwhere(values[..., 0] < -_ROUNDING * np.abs(values).max(axis=-1))
    if len(negative):
        index = tuple(int(i) for i in negative[0])
        subject = f"the rows of {name!r}"
        if index:
            subject = f"{name!r} at {labelled(index[0], labels) if len(index) == 1 else index}"
        least, *_, largest = values[index]
        raise InvalidDataError(
            f"The {what} of {subject} is not positive definite (its eigenvalues are {least:.3g} to {largest:.3g}). "
            f"Correct it, as by smaller correlations or a larger diagonal."
        )


def require_definite_sum(
    name: str, matrices: MatrixSum, coefficients: np.ndarray | None, log_det: np.ndarray | None, labels: Labels
) -> None:
    """Raise for a sparse precision, a sum of matrices times coefficients, that is not positive definite.

    Directions in which the variable is zero are excepted. The precision fails where its log determinant, `log_det`, is
    not finite at the initial values. Nothing is checked where `coefficients` or `log_det` is None.
    """
    if coefficients is None or log_det is None or np.isfinite(log_det):
        return
    node = matrices.failed_node(coefficients) or 0
    raise InvalidDataError(
        f"The precision matrix of {name!r} is not positive definite at the coefficients {_written(coefficients)}, the "
        f"initial ones: its factor fails at {labelled(node, labels)}. Correct it, or where it is zero along some "
        f"vectors, give these as null_space=."
    )


def _written(values: np.ndarray) -> str:
    return ", ".join(f"{value:.4g}" for value in values)


def require_symmetric_factored(name: str, factor: TensorVariable, value: InitialValue) -> None:
    """Raise where a parameter is, by its graph, the Cholesky factor of a matrix that is not symmetric."""
    if _is_node(factor, Cholesky):
        require_symmetric(name, factor.owner.inputs[0], value)


def _is_product_with_itself(matrix: TensorVariable) -> bool:
    """Whether a matrix is A A^T by its graph."""
    if not _is_node(matrix, Dot):
        return False
    a, b = matrix.owner.inputs
    return b.owner is not None and list(b.owner.inputs) == [a] and not isinstance(b.owner.op, Elemwise)


def _before_expansion(matrix: TensorVariable) -> TensorVariable:
    """Return a matrix without the leading axes of length one that a distribution has added."""
    while matrix.owner is not None and isinstance(matrix.owner.op, DimShuffle) and matrix.owner.op.is_left_expand_dims:
        (matrix,) = matrix.owner.inputs
    return matrix


def _is_node(matrix: TensorVariable, kind: type[Op]) -> bool:
    """Whether a matrix is the output of an Op, or of that Op on each matrix of a stack."""
    return matrix.owner is not None and isinstance(core_op(matrix.owner.op), kind)
