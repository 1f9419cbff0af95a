"""Second differences of an image: the operator of second-order total variation."""

from collections.abc import Sequence

import numpy as np
import scipy.sparse as sp

from pymc_ep.exceptions import InvalidDataError
from pymc_ep.operators.base import LinearMap, checked_shape

__all__ = ["Hessian2D"]


class Hessian2D(LinearMap):
    """Second differences of an image: horizontal, vertical, and mixed ones times the square root of two.

    The second differences of a plane, however steep, are zero. Where pixels are missing, potentials on second
    differences therefore continue slopes, unlike potentials on `Gradient2D`. With the square root of two the sum of
    squares is the squared Frobenius norm of the Hessian matrix, which is invariant under rotations of a smooth image.

    Parameters
    ----------
    shape : (int, int)
        Rows r and columns c of the image: at least one is three or more, or both are two.

    Notes
    -----
    Differences that would reach across the border are left out. The output is flat, (r (c-2) + (r-2) c + (r-1) (c-1),):
    x[i, j] - 2 x[i, j+1] + x[i, j+2], the same along columns, and sqrt(2) (x[i+1, j+1] - x[i+1, j] - x[i, j+1] +
    x[i, j]), each part in C order; a part may be empty. Only planes have second differences of zero: the rank is
    r c - 3, or n - 2 for a single row or column of length n.
    """

    few_entries = True

    def __init__(self, shape: Sequence[int]) -> None:
        r, c = checked_shape(shape, "Hessian2D", sides=2)
        self.part_shapes = (r, max(c - 2, 0)), (max(r - 2, 0), c), (r - 1, c - 1)
        size = sum(rows * columns for rows, columns in self.part_shapes)
        if not size:
            raise InvalidDataError(
                f"Hessian2D: an image of shape {(r, c)} has no second differences; give it more pixels."
            )
        super().__init__((r, c), (size,))

    def matrix(self) -> sp.csr_array:
        """Return the matrix (J, r c), with three or four non-zeros in each row."""
        r, c = self.input_shape
        # kron(R, C) x is R X C^T in C order: X D_2^T, D_2 X and sqrt(2) D_1 X D_1^T, for differences D_k of order k.
        factors = (
            (sp.eye_array(r), _differences(c, 2)),
            (_differences(r, 2), sp.eye_array(c)),
            (np.sqrt(2.0) * _differences(r, 1), _differences(c, 1)),
        )
        return sp.csr_array(sp.vstack([sp.kron(*pair, format="csr") for pair in factors], format="csr"))

    def _forward(self, x: np.ndarray) -> np.ndarray:
        mixed = np.sqrt(2.0) * np.diff(np.diff(x, axis=0), axis=1)
        differences = np.diff(x, 2, axis=1), np.diff(x, 2, axis=0), mixed
        return np.concatenate([difference.ravel() for difference in differences])

    def _adjoint(self, y: np.ndarray) -> np.ndarray:
        ends = np.cumsum([rows * columns for rows, columns in self.part_shapes])
        along, down, mixed = (values.reshape(shape) for values, shape in zip(np.split(y, ends[:-1]), self.part_shapes))
        out = np.zeros(self.input_shape)
        # (D_2^T y)_j = y_j - 2 y_{j-1} + y_{j-2}, where y is zero beyond its ends.
        for k, weight in enumerate((1.0, -2.0, 1.0)):
            out[:, k : k + along.shape[1]] += weight * along
            out[k : k + down.shape[0]] += weight * down
        rows, columns = mixed.shape
        mixed = np.sqrt(2.0) * mixed
        # A mixed difference at (a, b) has the sign (-1)^(i + j) at pixel (a + i, b + j).
        for i in range(2):
            for j in range(2):
                out[i : i + rows, j : j + columns] += mixed if i == j else -mixed
        return out

    def _rank(self) -> int:
        r, c = self.input_shape
        return r * c - (3 if min(r, c) > 1 else 2)


def _differences(n: int, order: int) -> sp.csr_array:
    """Return the matrix, (max(n - order, 0), n), that takes n values to their differences of the given order."""
    out = sp.eye_array(n, format="csr")
    for _ in range(min(order, n)):
        out = sp.csr_array(out[1:] - out[:-1])
    return out
