"""The unknowns of a sparse linear form as one vector, and operators on one of their blocks."""

from collections.abc import Sequence
from functools import reduce
from operator import matmul

import numpy as np
import scipy.sparse

from pymc_ep.models.sparse_linear.factor_rows import AddProduct, Product
from pymc_ep.operators import LinearMap

__all__ = ["Blocks"]


class Blocks:
    """Blocks of unknowns, ravelled and joined.

    Parameters
    ----------
    shapes : sequence of tuple of int
        Shapes of the blocks.

    Attributes
    ----------
    size : int
        Number N of unknowns.
    ends : ndarray of int, (blocks,)
        Index after the last unknown of each block.
    """

    def __init__(self, shapes: Sequence[tuple[int, ...]]):
        self.shapes = list(shapes)
        self.ends = np.cumsum([int(np.prod(shape)) for shape in shapes])
        self.size = int(self.ends[-1])

    def split(self, x: np.ndarray) -> list[np.ndarray]:
        """Return the part of x, (N,), that belongs to each block, in the block's shape."""
        return [values.reshape(s) for values, s in zip(np.split(x, self.ends[:-1]), self.shapes)]

    def embedded(self, x: np.ndarray, block: int) -> np.ndarray:
        """Return the vector (N,) that equals x in one block and zero elsewhere."""
        if x.size == self.size:
            return x.ravel()
        out = np.zeros(self.size)
        out[self.ends[block] - x.size : self.ends[block]] = x.ravel()
        return out

    def on_all(self, matrix: scipy.sparse.csr_array, block: int) -> scipy.sparse.csr_array:
        """Return a matrix on one block as a matrix on all unknowns, (rows, N), with zeros for all other blocks."""
        if matrix.shape[1] == self.size:
            return matrix
        matrices = [scipy.sparse.csr_array((matrix.shape[0], int(np.prod(s)))) for s in self.shapes]
        matrices[block] = matrix
        return scipy.sparse.hstack(matrices, format="csr")

    def normal(self, linear_map: LinearMap, block: int, weights: np.ndarray) -> AddProduct:
        """Return a function that adds D^T diag(weights) D v to `out`, (N,) each, for an operator D on a block."""
        places, shape = self._slice(block), linear_map.input_shape
        add = linear_map.normal(weights.reshape(linear_map.output_shape))
        return lambda v, out: add(v[places].reshape(shape), out[places].reshape(shape))

    def products(self, maps: Sequence[LinearMap], block: int) -> tuple[Product, Product]:
        """Return x -> B x and v -> B^T v for the product B of `maps`, which acts on one block of x, (N,)."""
        places = self._slice(block)

        def forward(x: np.ndarray) -> np.ndarray:
            out = x[places]
            for linear_map in reversed(maps):
                out = linear_map.forward(out.reshape(linear_map.input_shape))
            return out.ravel()

        def adjoint(v: np.ndarray) -> np.ndarray:
            for linear_map in maps:
                v = linear_map.adjoint(v.reshape(linear_map.output_shape))
            return self.embedded(v, block)

        return forward, adjoint

    def matrix(self, maps: Sequence[LinearMap], block: int) -> scipy.sparse.csr_array | None:
        """Return the matrix, (rows, N), of the product of `maps` on one block; None unless all have sparse matrices."""
        if not all(linear_map.few_entries for linear_map in maps):
            return None
        matrices = [linear_map.matrix() for linear_map in maps]
        if any(matrix is None for matrix in matrices):
            return None
        return self.on_all(scipy.sparse.csr_array(reduce(matmul, matrices)), block)

    def _slice(self, block: int) -> slice:
        return slice(self.ends[block] - int(np.prod(self.shapes[block])), self.ends[block])
