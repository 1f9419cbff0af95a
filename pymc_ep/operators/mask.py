"""The pixels of an image, or elements of an array, that were observed."""

from collections.abc import Sequence
from math import prod

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike

from pymc_ep.exceptions import InvalidDataError
from pymc_ep.operators.base import LinearMap, checked_shape

__all__ = ["Mask"]


class Mask(LinearMap):
    """The map from an array to a vector of its kept elements, (n,).

    Parameters
    ----------
    shape : sequence of int
        Shape of the array, with any number of sides.
    mask : array of bool, `shape`, or array of int, (n,)
        True where an element is kept; the kept elements are then in C order. Or the indices of the kept elements in the
        array ravelled in C order; indices may repeat, and the kept elements are in their order.
    """

    few_entries = True
    picks = True

    def __init__(self, shape: Sequence[int], mask: ArrayLike) -> None:
        shape = checked_shape(shape, "Mask")
        given = np.asarray(mask)
        if given.dtype == bool:
            if given.shape != shape:
                raise InvalidDataError(f"Mask: the mask has shape {given.shape}, the array {shape}; make them equal.")
            indices = np.flatnonzero(given)
        elif given.size and given.dtype.kind in "iu" and given.ndim == 1:
            indices = given.astype(np.intp)
            outside = np.flatnonzero((indices < 0) | (indices >= prod(shape)))
            if len(outside):
                raise InvalidDataError(
                    f"Mask: index {given[outside[0]]} at position {outside[0]} is outside 0, ..., {prod(shape) - 1}, "
                    f"the elements of an array of shape {shape} ravelled in C order."
                )
        elif given.size:
            raise InvalidDataError(
                f"Mask: the mask must be an array of bool of shape {shape} or a vector of flat indices, not an array "
                f"of {given.dtype} of shape {given.shape}; of weights, write mask > 0."
            )
        else:
            indices = np.empty(0, dtype=np.intp)
        if not len(indices):
            raise InvalidDataError("Mask: the mask keeps no element at all; at least one must be observed.")
        self.indices = indices
        self.distinct = len(np.unique(indices))
        # A A^T = I where no index repeats: the rows are different unit vectors.
        super().__init__(shape, (len(indices),), orthonormal=self.distinct == len(indices))

    def matrix(self) -> sp.csr_array:
        """Return the matrix (n, N), with a single one in each row."""
        n = len(self.indices)
        return sp.csr_array((np.ones(n), self.indices, np.arange(n + 1)), shape=(n, prod(self.input_shape)))

    def squared_adjoint(self, y: ArrayLike) -> np.ndarray:
        """Return sum_j A_ji^2 y_j, which is A' y, as all non-zeros of the matrix A are ones."""
        return self.adjoint(y)

    def _forward(self, x: np.ndarray) -> np.ndarray:
        return x.ravel()[self.indices]

    def _adjoint(self, y: np.ndarray) -> np.ndarray:
        # (A^T y)_i is the sum of all y_j with indices_j = i; without repeated indices there is one at most.
        size = prod(self.input_shape)
        if not self.orthonormal:
            return np.bincount(self.indices, weights=y, minlength=size).reshape(self.input_shape)
        out = np.zeros(size)
        out[self.indices] = y
        return out.reshape(self.input_shape)

    def _rank(self) -> int:
        return self.distinct
