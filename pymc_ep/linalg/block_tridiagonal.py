"""Exact algebra of a block tridiagonal precision A = D^T diag(pi) D: factor, solutions, draws, selected inverse.

With diagonal blocks A_k and blocks B_k below them, the block Cholesky factor has

    L_k L_k^T = A_k - M_{k-1} M_{k-1}^T,      M_k = B_k L_k^{-T},

on and below its diagonal. Only W_k = L_k^{-1} is kept: B_k is sparse, so that a product with M_k is one with B_k and
one with W_k. Of the inverse S, the blocks on and below the diagonal follow backwards (Takahashi et al. 1973; Erisman
and Tinney 1975), with P_k = W_k^T W_k:

    S_{k+1,k} = -S_{k+1} B_k P_k,      S_k = P_k - P_k B_k^T S_{k+1,k}.

They hold the covariances of all unknowns that share a row of D, hence diag(D S D^T). The work is that of dense blocks
in LAPACK, about 6 b^2 N operations for blocks of size b.
"""

from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import scipy.linalg
import scipy.sparse

from pymc_ep.linalg.cholesky import counts, mirror_lower
from pymc_ep.linalg.ordering import Blocks, block_flops, pair_count

__all__ = ["BlockTridiagonal", "BlockTridiagonalFactor", "Pairs", "pivots_vanish"]

_VANISHING = 2**10 * np.finfo(float).eps
"""Pivot, relative to the diagonal of A, at which A counts as singular.

What rounding leaves of a zero was measured to be 1 to 600 units of rounding for differences on images of 24^2 to 64^2
pixels; variances that rest on a pivot this small would have a tenth of error.
"""
_PAIR_BYTES = 60
"""Memory that a product of two entries of a row takes while they are sorted; 12 of these are kept."""
_CHUNK = 2**22
"""Numbers of right-hand sides that are solved for at a time."""


def pivots_vanish(pivots: np.ndarray, diagonal: np.ndarray) -> bool:
    """Whether the diagonal of a Cholesky factor says that the matrix, of `diagonal`, is singular, or not finite."""
    return not (pivots**2 > _VANISHING * diagonal).all()


class Pairs(NamedTuple):
    """The products of two entries of one row of a design, sorted by the element of A that they belong to.

    Attributes
    ----------
    products : csr_array, (e, n)
        A's elements on and below the diagonal, by places, are ``products @ pi``.
    row, column : ndarray of int, (e,)
        Places of each element within its blocks, row >= column overall.
    starts : ndarray of int, (2 K + 1,)
        Where the elements of each block begin: A_0, B_0, A_1, B_1, ...
    """

    products: scipy.sparse.csr_array
    row: np.ndarray
    column: np.ndarray
    starts: np.ndarray

    @classmethod
    def of(cls, design: scipy.sparse.csr_array, blocks: Blocks) -> "Pairs":
        """Collect the products of a design, (n, N), of which no row reaches beyond two neighbouring blocks."""
        n_unknowns, places, edges = design.shape[1], blocks.places, blocks.edges
        block = np.repeat(np.arange(len(edges) - 1), np.diff(edges))
        parts = []
        for rows, columns, values in rows_by_length(design):
            upper, lower = np.tril_indices(columns.shape[1])
            one, other = places[columns[:, upper]], places[columns[:, lower]]
            high, low = np.maximum(one, other), np.minimum(one, other)
            # Sorted by block, then as compressed rows.
            key = ((2 * block[low] + (block[high] > block[low])) * n_unknowns + high) * n_unknowns + low
            product = values[:, upper] * values[:, lower]
            parts.append((key.ravel(), product.ravel(), np.repeat(rows, len(upper))))
        key, product, rows = (np.concatenate(part) for part in zip(*parts))
        elements, element = np.unique(key, return_inverse=True)
        products = scipy.sparse.csr_array((product, (element.ravel(), rows)), shape=(len(elements), design.shape[0]))
        part, place = np.divmod(elements, n_unknowns**2)
        row, column = np.divmod(place, n_unknowns)
        starts = np.searchsorted(part, np.arange(2 * len(edges) - 1))
        return cls(products, row - edges[part // 2 + part % 2], column - edges[part // 2], starts)

    def part(self, index: int) -> tuple[slice, np.ndarray, np.ndarray]:
        """Return the elements of one block, 2 k for A_k and 2 k + 1 for B_k, and their rows and columns there."""
        here = slice(self.starts[index], self.starts[index + 1])
        return here, self.row[here], self.column[here]


def rows_by_length(design: scipy.sparse.csr_array) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Return the rows of a design grouped by their number m of entries: indices, (r,), columns and values, (r, m)."""
    lengths = np.diff(design.indptr)
    out = []
    for length in np.unique(lengths[lengths > 0]):
        rows = np.flatnonzero(lengths == length)
        entries = design.indptr[rows].astype(np.int64)[:, None] + np.arange(length)
        out.append((rows, design.indices[entries].astype(np.int64), design.data[entries]))
    return out


class BlockTridiagonal:
    """Factors precisions D^T diag(pi) D of one design by dense blocks along the diagonal.

    Parameters
    ----------
    design : csr_array, (n, N)
        D, canonical.
    blocks : Blocks
        Of the pattern of D^T D.
    """

    def __init__(self, design: scipy.sparse.csr_array, blocks: Blocks):
        self.design = design
        self.blocks = blocks
        self.sizes = np.diff(blocks.edges)

    @property
    def flops(self) -> float:
        """Operations of a factor with all variances."""
        return block_flops(self.sizes)

    @property
    def bytes(self) -> int:
        """Memory of a factor while variances are computed: W_k, a few blocks, and the pairs of the design."""
        blocks = 8 * int((self.sizes.astype(np.int64) ** 2).sum()) + 64 * int(self.sizes.max()) ** 2
        return blocks + _PAIR_BYTES * pair_count(self.design)

    @property
    def sentence(self) -> str:
        """What is done, for the user."""
        n = self.design.shape[1]
        return (
            f"the {n} x {n} precision is factored exactly as a block tridiagonal matrix, with {len(self.sizes)} blocks "
            f"of at most {self.sizes.max()} unknowns ({self.flops:.2g} operations, {self.bytes / 1e6:.0f} MB)"
        )

    @cached_property
    def pairs(self) -> Pairs:
        """The map from pi to the elements of A."""
        return Pairs.of(self.design, self.blocks)

    @cached_property
    def _below(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Indices and row starts of each B_k."""
        out = []
        for k, size in enumerate(self.sizes[1:]):
            _, row, column = self.pairs.part(2 * k + 1)
            out.append((column.astype(np.int32), np.searchsorted(row, np.arange(size + 1)).astype(np.int32)))
        return out

    def factor(self, weights: np.ndarray, ridge: np.ndarray | None = None) -> "BlockTridiagonalFactor":
        """Factor D^T diag(weights) D, with `ridge`, (N,), added to its diagonal where given."""
        counts["factorizations"] += 1
        elements = self.pairs.products @ weights
        added = np.zeros(self.design.shape[1]) if ridge is None else ridge[self.blocks.order]
        inverses: list[np.ndarray] = []
        below: list[Any] = []
        log_det = 0.0
        for k, size in enumerate(self.sizes):
            block = np.zeros((size, size), order="F")
            here, row, column = self.pairs.part(2 * k)
            block[row, column] = elements[here]
            block.reshape(-1, order="F")[:: size + 1] += added[self.blocks.edges[k] : self.blocks.edges[k + 1]]
            diagonal = block.diagonal().copy()
            if k:
                # C-ordered, so that its transpose is what BLAS calls a matrix.
                reached = (below[-1] @ inverses[-1].T).T
                block = scipy.linalg.blas.dsyrk(-1.0, reached, beta=1.0, c=block, trans=1, lower=1, overwrite_c=1)
            block, info = scipy.linalg.lapack.dpotrf(block, lower=1, overwrite_a=1, clean=1)
            pivots = block.diagonal()
            if info != 0 or pivots_vanish(pivots, diagonal):
                return BlockTridiagonalFactor(self, inverses, below, np.nan, False)
            log_det += 2.0 * float(np.log(pivots).sum())
            inverses.append(scipy.linalg.lapack.dtrtri(block, lower=1, overwrite_c=1)[0])
            if k + 1 < len(self.sizes):
                indices, starts = self._below[k]
                values = elements[self.pairs.part(2 * k + 1)[0]]
                below.append(scipy.sparse.csr_array((values, indices, starts), shape=(self.sizes[k + 1], size)))
        return BlockTridiagonalFactor(self, inverses, below, log_det, True)


class BlockTridiagonalFactor:
    """A factor of A = D^T diag(pi) D; see `pymc_ep.linalg.precision.PrecisionFactor`.

    Parameters
    ----------
    algebra : BlockTridiagonal
    inverses : list of K ndarrays
        W_k, lower triangular.
    below : list of K - 1 csr_arrays
        B_k.
    log_det : float
    proper : bool
        Whether A is positive definite; nothing else means anything where it is not.
    """

    def __init__(
        self, algebra: BlockTridiagonal, inverses: list[np.ndarray], below: list[Any], log_det: float, proper: bool
    ):
        self.algebra = algebra
        self.log_det = log_det
        self.proper = proper
        self._inverses = inverses
        self._below = below

    def solve(self, b: np.ndarray) -> np.ndarray:
        """Return A^{-1} b, for b of shape (N,) or (N, k)."""
        parts = self._split(b)
        for k, inverse in enumerate(self._inverses):
            if k:
                parts[k] = parts[k] - self._below[k - 1] @ parts[k - 1]
            parts[k] = _times(inverse, _times(inverse, parts[k]), transposed=True)
        for k in range(len(parts) - 2, -1, -1):
            inverse = self._inverses[k]
            parts[k] -= _times(inverse, _times(inverse, self._below[k].T @ parts[k + 1]), transposed=True)
        return self._join(parts)

    def draw(self, size: int, rng: np.random.Generator) -> np.ndarray:
        """Return draws of N(0, A^{-1}), (size, N): solutions of L^T x = z for standard normal z."""
        parts = self._split(rng.standard_normal((size, self.algebra.design.shape[1])).T)
        for k in range(len(parts) - 1, -1, -1):
            inverse = self._inverses[k]
            if k + 1 < len(parts):
                parts[k] = parts[k] - _times(inverse, self._below[k].T @ parts[k + 1])
            parts[k] = _times(inverse, parts[k], transposed=True)
        return self._join(parts).T

    def variances(self, design: scipy.sparse.csr_array) -> np.ndarray:
        """Return diag(C A^{-1} C^T), (m,), for C = `design`, (m, N).

        Rows within two neighbouring blocks need the selected inverse alone; others a solution each.
        """
        if design is self.algebra.design:
            return self._local_variances(self.algebra.pairs)
        design = scipy.sparse.csr_array(design)
        design.sum_duplicates()
        blocks, out = self.algebra.blocks, np.zeros(design.shape[0])
        block = np.repeat(np.arange(len(self.algebra.sizes)), self.algebra.sizes)[blocks.places[design.indices]]
        filled = np.flatnonzero(np.diff(design.indptr))
        starts = design.indptr[filled]
        far = np.zeros(design.shape[0], dtype=bool)
        if filled.size:
            far[filled] = np.maximum.reduceat(block, starts) - np.minimum.reduceat(block, starts) > 1
        near = np.setdiff1d(filled, np.flatnonzero(far))
        if near.size:
            out[near] = self._local_variances(Pairs.of(design[near], blocks))
        step = max(1, _CHUNK // design.shape[1])
        distant = np.flatnonzero(far)
        for start in range(0, len(distant), step):
            rows = distant[start : start + step]
            dense = design[rows].toarray().T
            out[rows] = np.einsum("ij,ij->j", dense, self.solve(dense))
        return out

    def _local_variances(self, pairs: Pairs) -> np.ndarray:
        """Sum products of two entries of a row, times the covariance of their unknowns, over the rows."""
        return pairs.products.T @ (self._selected(pairs) * self._multiplicity(pairs))

    def _multiplicity(self, pairs: Pairs) -> np.ndarray:
        """Return 2 for elements of A off its diagonal, which stand for two, and 1 on it."""
        part = np.repeat(np.arange(len(pairs.starts) - 1), np.diff(pairs.starts))
        return np.where((part % 2 == 0) & (pairs.row == pairs.column), 1.0, 2.0)

    def _selected(self, pairs: Pairs) -> np.ndarray:
        """Return the covariances of the pairs of unknowns, (e,), from the last block backwards."""
        out = np.empty(len(pairs.row))
        later = None
        for k in range(len(self._inverses) - 1, -1, -1):
            covariance = _gram(self._inverses[k])
            if later is not None:
                above = self._below[k].T
                across = (above @ later).T @ covariance
                here, row, column = pairs.part(2 * k + 1)
                out[here] = -across[row, column]
                covariance = covariance + covariance @ (above @ across)
            here, row, column = pairs.part(2 * k)
            out[here] = covariance[row, column]
            later = covariance
        return out

    def _split(self, vectors: np.ndarray) -> list[np.ndarray]:
        """Cut vectors, (N,) or (N, k), into the parts of each block."""
        return np.split(np.asarray(vectors, dtype=float)[self.algebra.blocks.order], self.algebra.blocks.edges[1:-1])

    def _join(self, parts: list[np.ndarray]) -> np.ndarray:
        """Undo `_split`."""
        joined = np.concatenate(parts)
        out = np.empty_like(joined)
        out[self.algebra.blocks.order] = joined
        return out


def _times(triangle: np.ndarray, vectors: np.ndarray, *, transposed: bool = False) -> np.ndarray:
    """Return a lower triangular matrix, or its transpose, times vectors, (b,) or (b, k)."""
    if vectors.ndim == 1:
        return scipy.linalg.blas.dtrmv(triangle, vectors, lower=1, trans=int(transposed))
    return (triangle.T if transposed else triangle) @ vectors


def _gram(triangle: np.ndarray) -> np.ndarray:
    """Return W^T W in full, C-ordered, for a lower triangular W."""
    return mirror_lower(scipy.linalg.lapack.dlauum(triangle, lower=1)[0]).T
