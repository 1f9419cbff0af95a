"""Places of the entries of sparse prior and posterior precisions, and orders of elimination."""

from collections.abc import Sequence
from copy import copy
from functools import cached_property

import numpy as np
import scipy.sparse

from pymc_ep.numerics.sparse.factor import Analysis, SparseFactor
from pymc_ep.numerics.sparse.matrix_sum import pinned_nodes
from pymc_ep.numerics.sparse.row_pairs import row_pairs

__all__ = ["PrecisionPattern"]


class PrecisionPattern:
    """Pattern that all priors and posteriors of one model share.

    It says where Q, the prior precision of p unknowns, the design A, and P = Q + A^T Pi A have entries, and has an
    order of elimination for P.

    Parameters
    ----------
    rows, columns : ndarray of int, (e,)
        Rows and columns of the entries of Q in the lower triangle that may differ from zero, each once, with the whole
        diagonal.
    design : csr_array, (n, p)
        A.
    sums : ndarray, (p, k), optional
        Weights of the unknowns in each sum that is constrained.
    factored : sequence of slice
        Unknowns of each block of Q whose log determinant is computed by a factor.

    Attributes
    ----------
    keys : ndarray of int
        row * p + column for each entry of P in the lower triangle, sorted.
    """

    def __init__(
        self,
        rows: np.ndarray,
        columns: np.ndarray,
        design: scipy.sparse.csr_array,
        sums: np.ndarray | None = None,
        factored: Sequence[slice] = (),
    ):
        keys, p = self._pairs_of(design), design.shape[1]
        self.rows, self.columns, self.sums = rows, columns, np.zeros((p, 0)) if sums is None else sums
        self.pins = pinned_nodes(self.sums)
        self.keys, places = np.unique(np.concatenate([rows * np.int64(p) + columns, keys]), return_inverse=True)
        self.prior_places, self.pair_places = np.split(places, [len(rows)])
        self.analysis = Analysis(self.keys // p, self.keys % p, p)
        self.blocks = [_Block(rows, columns, block_slice) for block_slice in factored]
        self.diagonal = np.empty(p, dtype=np.int64)
        on_diagonal = np.flatnonzero(rows == columns)
        self.diagonal[rows[on_diagonal]] = on_diagonal
        self._subset: tuple[np.ndarray, PrecisionPattern] | None = None
        self._factors: tuple[np.ndarray, list[SparseFactor]] | None = None

    def _pairs_of(self, design: scipy.sparse.csr_array) -> np.ndarray:
        """Set A and the pairs of entries of its rows; return the key of the element of A^T A that each pair adds to."""
        self.design = scipy.sparse.csr_array(design, dtype=float)
        self.design.sum_duplicates()
        self.adjoint = self.design.T.tocsr()
        (n, p), starts, columns = self.design.shape, self.design.indptr, self.design.indices
        self.first, self.second = row_pairs(starts)
        self.pair_row = np.repeat(np.arange(n), np.diff(starts))[self.first]
        self.pair_value = self.design.data[self.first] * self.design.data[self.second]
        low, high = np.sort([columns[self.first], columns[self.second]], axis=0).astype(np.int64)
        return high * np.int64(p) + low

    @cached_property
    def _numbered(self) -> scipy.sparse.csr_array:
        """Both triangles of Q in compressed rows, with the index of an entry in `rows`, plus 1, as its value."""
        below = np.flatnonzero(self.rows != self.columns)
        entries = np.concatenate([np.arange(len(self.rows)), below])
        i = np.concatenate([self.rows, self.columns[below]])
        j = np.concatenate([self.columns, self.rows[below]])
        p = self.design.shape[1]
        return scipy.sparse.csr_array((entries + 1, (i, j)), shape=(p, p))

    def symmetric(self, values: np.ndarray) -> scipy.sparse.csr_array:
        """Return Q, (p, p), both triangles in compressed rows, from the entries of its lower triangle, (e,)."""
        numbered = self._numbered
        return scipy.sparse.csr_array((values[numbered.data - 1], numbered.indices, numbered.indptr), numbered.shape)

    def posterior_values(self, values: np.ndarray, precision: np.ndarray) -> np.ndarray:
        """Return the entries of Q + A^T diag(precision) A at `keys`, from the entries of Q, (e,)."""
        # [A^T Pi A]_jk = sum_i A_ij A_ik pi_i.
        weights = self.pair_value * precision[self.pair_row]
        out = np.bincount(self.pair_places, weights, minlength=len(self.keys)).astype(float)
        out[self.prior_places] += values
        return out

    def predictor_variances(self, entries: np.ndarray) -> np.ndarray:
        """Return diag(A S A^T), (n,), from the entries of S at `keys`."""
        # Pairs of two entries stand for both orders.
        both = np.where(self.first == self.second, 1.0, 2.0)
        weights = both * self.pair_value * entries[self.pair_places]
        return np.bincount(self.pair_row, weights, minlength=self.design.shape[0])

    def block_factors(self, values: np.ndarray) -> list[SparseFactor]:
        """Return the factor of each of `blocks` of Q; cached for the last `values`, as sites do not change Q."""
        if self._factors is None or self._factors[0] is not values:
            self._factors = values, [block.analysis.factor(values[block.entries]) for block in self.blocks]
        return self._factors[1]

    def subset(self, index: np.ndarray) -> "PrecisionPattern":
        """Return the pattern of the predictors at `index`, (m,), with the same order; cached for the last `index`."""
        if self._subset is None or self._subset[0] is not index:
            pattern = copy(self)
            pattern._subset = None
            pattern.pair_places = np.searchsorted(
                self.keys, pattern._pairs_of(scipy.sparse.csr_array(self.design[index]))
            )
            self._subset = index, pattern
        return self._subset[1]


class _Block:
    """A block of Q, as a matrix of its own.

    Parameters
    ----------
    rows, columns : ndarray of int, (e,)
        Rows and columns of the entries of Q.
    block_slice : slice
        Unknowns of the block.
    """

    def __init__(self, rows: np.ndarray, columns: np.ndarray, block_slice: slice):
        self.entries = np.flatnonzero((rows >= block_slice.start) & (rows < block_slice.stop))
        block_rows, block_columns = rows[self.entries] - block_slice.start, columns[self.entries] - block_slice.start
        self.analysis = Analysis(block_rows, block_columns, block_slice.stop - block_slice.start)
        self.twice = np.where(block_rows == block_columns, 1.0, 2.0)
