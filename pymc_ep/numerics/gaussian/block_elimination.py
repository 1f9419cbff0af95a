"""Factors of B = R Pi R^T + I in which most coefficients couple with few others, as the effects of many groups do.

Coefficients are divided into blocks, which do not couple with each other, and a border that may couple with all. Blocks
are effects of one group, for example, and the border effects that groups share. With D the blocks of B, F its border
and C the coupling of both,

    B = L L^T,    L = [[L_D, 0], [Y^T, L_S]],    Y = L_D^{-1} C,    L_S L_S^T = S = F - Y^T Y,

so that the work is linear in the number of blocks, and cubic in the border alone. W = L^{-1} is kept as Y and the
inverses W_D and W_S of L_D and L_S.
"""

from collections.abc import Iterator
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import scipy.linalg
import scipy.sparse
from scipy.sparse.csgraph import connected_components

from pymc_ep.numerics.backend.cholesky import inverse_factor
from pymc_ep.numerics.memory import chunks

__all__ = ["BlockFactor", "Blocks", "Rows", "blocks_of", "factored"]

_LARGEST = 8
"""Most coefficients in a block: its work grows with their cube, and is done by a loop over small matrices."""
_LEAST_GAIN = 4.0
"""Factor by which blocks must save operations: many small matrices run at a lower rate than a large one."""
_DENSE = 0.1
"""Share of nonzeros from which the rows of the border are stored as a dense matrix."""
_LIMITS = 12
"""Number of limits that are tried for the degree, the number of coefficients with which one couples; coefficients above
the limit form the border. Degrees of effects differ by orders of magnitude."""
_MOST_PAIRS = 2e8
"""Largest number of pairs of entries of rows for which the coupling of coefficients is computed, in some seconds."""
_MOST_ROWS = 256
"""Largest number of `Rows` that are cached: more than a model has variables."""


class Blocks:
    """Division of p coefficients into blocks and a border of t.

    Parameters
    ----------
    members : sequence of ndarray of int, (m, k)
        For each size k of blocks, the coefficients of the m blocks of that size.
    border : ndarray of int, (t,)
        Coefficients of the border.
    work : float
        Multiplications of a factorisation and of the variances of the predictors.
    """

    def __init__(self, members: list[np.ndarray], border: np.ndarray, work: float):
        self.work = work
        self.members = members
        self.border = border
        self.order = np.concatenate([*(group.ravel() for group in members), border])
        """Coefficients of the blocks, one size after the other, then of the border, (p,)."""
        self.place = np.empty(len(self.order), dtype=np.int64)
        self.place[self.order] = np.arange(len(self.order))
        self.inner = len(self.order) - len(border)
        """Number s of coefficients in blocks."""
        self._rows: dict[int, tuple[np.ndarray, Rows]] = {}

    @property
    def sentence(self) -> str:
        """Description of the division, for the text of `pymc_ep.explain`."""
        count = sum(len(group) for group in self.members)
        return f"{count} blocks of up to {self.members[-1].shape[1]}, and {len(self.border)} that couple with all"

    @property
    def sizes(self) -> Iterator[tuple[slice, int, int]]:
        """Yield, for each size k of blocks, the slice of their coefficients in `order`, their number m, and k."""
        start = 0
        for group in self.members:
            yield slice(start, start + group.size), *group.shape
            start += group.size

    @cached_property
    def block(self) -> np.ndarray:
        """Number of the block of each coefficient in blocks, (s,), in the order of `order`, counted over all sizes."""
        counts, widths = zip(*(group.shape for group in self.members))
        return np.repeat(np.arange(sum(counts)), np.repeat(widths, counts))

    def rows(self, matrix: scipy.sparse.csr_array) -> "Rows":
        """Return the structure of the rows of a sparse matrix, (n, p), cached for its array of column indices."""
        cached = self._rows.get(id(matrix.indices))
        if cached is None:
            if len(self._rows) >= _MOST_ROWS:
                self._rows.clear()
            cached = self._rows[id(matrix.indices)] = (matrix.indices, Rows(self, matrix))
        return cached[1]


class Rows:
    """Where rows of a sparse matrix, (n, p), have entries in blocks and border.

    Attributes
    ----------
    single : bool
        Whether no row has entries in two blocks; the other members are meaningless where one has.
    """

    def __init__(self, blocks: Blocks, matrix: scipy.sparse.csr_array):
        self.blocks, self.shape = blocks, matrix.shape
        place = blocks.place[matrix.indices]
        row = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))
        inner = place < blocks.inner
        self._inner, self._outer = np.flatnonzero(inner), np.flatnonzero(~inner)
        self.inner_row, self.inner_place = row[self._inner], place[self._inner]
        self.outer_row, self.outer_column = row[self._outer], place[self._outer] - blocks.inner
        entry_blocks = blocks.block[self.inner_place] if blocks.inner else self.inner_place
        first = np.full(matrix.shape[0], -1)
        first[self.inner_row] = entry_blocks
        self.single = bool(np.all(first[self.inner_row] == entry_blocks))
        self.block = first
        """The block of each row; -1 where it has none."""
        self.dense = len(self._outer) > _DENSE * matrix.shape[0] * len(blocks.border)

    def chosen(self, values: np.ndarray) -> scipy.sparse.csr_array:
        """Return the columns in blocks, transposed, (s, n), of the matrix with entries `values`."""
        shape = self.blocks.inner, self.shape[0]
        return scipy.sparse.csr_array((values[self._inner], (self.inner_place, self.inner_row)), shape=shape)

    def inner(self, values: np.ndarray) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Return three arrays for each size k of blocks, from the entries `values` of the matrix.

        They are the rows with entries in a block of this size, the number of the block of each among the blocks of this
        size, and the entries there, (rows, k).
        """
        out: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
        for rows, of_size, entry, at in self._by_size:
            entries = np.zeros((len(rows), self.blocks.members[len(out)].shape[1]))
            entries[at] = values[self._inner[entry]]
            out.append((rows, of_size, entries))
        return out

    @cached_property
    def _by_size(self) -> list[tuple[np.ndarray, np.ndarray, np.ndarray, tuple[np.ndarray, np.ndarray]]]:
        out, first = [], 0
        for places, m, k in self.blocks.sizes:
            rows = np.flatnonzero((self.block >= first) & (self.block < first + m))
            position = np.full(self.shape[0], -1)
            position[rows] = np.arange(len(rows))
            entry = np.flatnonzero((self.inner_place >= places.start) & (self.inner_place < places.stop))
            at = position[self.inner_row[entry]], (self.inner_place[entry] - places.start) % k
            out.append((rows, self.block[rows] - first, entry, at))
            first += m
        return out

    def outer(self, values: np.ndarray) -> Any:
        """Return the part in the border, (n, t), from the entries `values`: a matrix if `dense`, else a csr_array."""
        shape = self.shape[0], len(self.blocks.border)
        entries = values[self._outer]
        if self.dense:
            out = np.zeros(shape)
            out[self.outer_row, self.outer_column] = entries
            return out
        return scipy.sparse.csr_array((entries, (self.outer_row, self.outer_column)), shape=shape)

    def scattered(self, inner: list[np.ndarray], outer: np.ndarray) -> np.ndarray:
        """Return values for all entries of the matrix, from values in blocks, (rows, k) for each size k, and border."""
        out = np.empty(len(self._inner) + len(self._outer))
        for (_, _, entry, at), entries in zip(self._by_size, inner):
            out[self._inner[entry]] = entries[at]
        out[self._outer] = outer
        return out


class BlockFactor(NamedTuple):
    """W = L^{-1} for B = L L^T.

    Attributes
    ----------
    blocks : Blocks
    inner : tuple of ndarray, (m, k, k)
        W_D of the blocks of each size, lower triangular.
    coupling : ndarray, (s, t)
        Y.
    border : ndarray, (t, t)
        W_S, lower triangular.
    """

    blocks: Blocks
    inner: tuple[np.ndarray, ...]
    coupling: np.ndarray
    border: np.ndarray

    @property
    def diagonal(self) -> np.ndarray:
        """The diagonal of W, (p,), in the order of `Blocks.order`."""
        inner = (
            whiteners[:, np.arange(whiteners.shape[1]), np.arange(whiteners.shape[1])].ravel()
            for whiteners in self.inner
        )
        return np.concatenate([*inner, self.border.diagonal()])

    def times(self, x: np.ndarray) -> np.ndarray:
        """Return W x, in the order of `Blocks.order`, for x, (p,) or (p, c), in the order of the coefficients."""
        # L u = x: u_D = W_D x_D, u_S = W_S (x_S - Y^T u_D).
        ordered = x[self.blocks.order]
        above = self._inner_times(ordered[: self.blocks.inner], transposed=False)
        return np.concatenate([above, self.border @ (ordered[self.blocks.inner :] - self.coupling.T @ above)])

    def transposed_times(self, y: np.ndarray) -> np.ndarray:
        """Return W^T y, in the order of the coefficients, for y, (p,) or (p, c), in the order of `Blocks.order`."""
        # L^T u = y: u_S = W_S^T y_S, u_D = W_D^T (y_D - Y u_S).
        below = self.border.T @ y[self.blocks.inner :]
        above = self._inner_times(y[: self.blocks.inner] - self.coupling @ below, transposed=True)
        out = np.empty_like(y)
        out[self.blocks.order] = np.concatenate([above, below])
        return out

    def root_times(self, x: np.ndarray) -> np.ndarray:
        """Return L^T x, in the order of `Blocks.order`, for x, (p, c), in the order of the coefficients."""
        # L^T x = (L_D^T x_D + Y x_S, L_S^T x_S), with L_D^T = W_D^-T and L_S^T = W_S^-T.
        ordered = x[self.blocks.order]
        above, below = ordered[: self.blocks.inner], ordered[self.blocks.inner :]
        products = []
        for (places, m, k), whitener in zip(self.blocks.sizes, self.inner):
            roots = np.linalg.inv(whitener).transpose(0, 2, 1)
            products.append((roots @ above[places].reshape(m, k, -1)).reshape(m * k, -1))
        border = scipy.linalg.blas.dtrsm(1.0, self.border, np.asfortranarray(below), lower=1, trans_a=1)
        return np.concatenate([np.concatenate(products) + self.coupling @ below, border])

    def halves(
        self, rows: Rows, values: np.ndarray
    ) -> Iterator[tuple[slice, list[tuple[np.ndarray, np.ndarray, np.ndarray]], np.ndarray]]:
        """Yield W r for the rows r of a sparse matrix: a slice of the rows, the parts in blocks, and in the border.

        The parts in blocks are three arrays for each size k of blocks: places of rows within the slice, their blocks,
        and W_D r_D, (rows, k). The part in the border is (rows of the slice, t).
        """
        inner_entries, outer = rows.inner(values), rows.outer(values)
        n, t = rows.shape[0], len(self.blocks.border)
        for row_slice in chunks(n, t):
            rest = outer[row_slice] if rows.dense else outer[row_slice].toarray()
            by_size = []
            for (places, m, k), whitener, (at, block, entries) in zip(self.blocks.sizes, self.inner, inner_entries):
                chosen = slice(*np.searchsorted(at, (row_slice.start, row_slice.stop)))
                inside, of, entry = at[chosen] - row_slice.start, block[chosen], entries[chosen]
                # W r = (W_D r_D, W_S (r_S - Y_D^T W_D r_D)), with the rows Y_D of the block.
                half = entry * whitener[of, 0] if k == 1 else np.einsum("nij,nj->ni", whitener[of], entry)
                coupled = self.coupling[places].reshape(m, k, t)[of]
                rest[inside] -= half * coupled[:, 0] if k == 1 else np.einsum("ni,nit->nt", half, coupled)
                by_size.append((inside, of, half))
            yield row_slice, by_size, rest @ self.border.T

    def squares(self, rows: Rows, values: np.ndarray) -> np.ndarray:
        """Return |W r|^2 for rows r of a sparse matrix, (n,)."""
        out = np.empty(rows.shape[0])
        for row_slice, by_size, outer in self.halves(rows, values):
            total = np.einsum("nt,nt->n", outer, outer)
            for inside, _, half in by_size:
                total[inside] += np.einsum("nk,nk->n", half, half)
            out[row_slice] = total
        return out

    def solved_entries(self, rows: Rows, values: np.ndarray) -> np.ndarray:
        """Return (B^{-1} r)_j for all entries j of all rows r of a sparse matrix, in the order of the entries."""
        inner = [np.empty(entries.shape) for _, _, entries in rows.inner(values)]
        outer, done = np.empty(len(rows.outer_row)), [0] * len(inner)
        for row_slice, by_size, border in self.halves(rows, values):
            # B^-1 r = W^T u for u = W r: its parts are W_S^T u_S, and W_D^T (u_D - Y_D W_S^T u_S).
            solved = border @ self.border
            chosen = slice(*np.searchsorted(rows.outer_row, (row_slice.start, row_slice.stop)))
            outer[chosen] = solved[rows.outer_row[chosen] - row_slice.start, rows.outer_column[chosen]]
            for number, ((places, m, k), whitener, (inside, of, half)) in enumerate(
                zip(self.blocks.sizes, self.inner, by_size)
            ):
                coupled = self.coupling[places].reshape(m, k, solved.shape[1])[of]
                left = half - np.einsum("nit,nt->ni", coupled, solved[inside])
                end = done[number] + len(of)
                inner[number][done[number] : end] = np.einsum("nji,nj->ni", whitener[of], left)
                done[number] = end
        return rows.scattered(inner, outer)

    def _inner_times(self, x: np.ndarray, *, transposed: bool) -> np.ndarray:
        out = np.empty_like(x)
        for (places, m, k), whitener in zip(self.blocks.sizes, self.inner):
            matrices = whitener.transpose(0, 2, 1) if transposed else whitener
            out[places] = (matrices @ x[places].reshape(m, k, -1)).reshape(x[places].shape)
        return out


def factored(
    rows: Rows, values: np.ndarray, weights: np.ndarray, prior_precision: np.ndarray
) -> tuple[BlockFactor, float, bool, np.ndarray]:
    """Return the factor of B = R diag(weights) R^T + diag(prior_precision).

    Parameters
    ----------
    rows : Rows
        Structure of the rows of R^T, (n, p).
    values : ndarray
        Entries of R^T.
    weights : ndarray, (n,)
    prior_precision : ndarray, (p,)

    Returns
    -------
    factor : BlockFactor
    log_det : float
    proper : bool
        Whether B is positive definite.
    diagonal : ndarray, (p,)
        Diagonal of B, in the order of `Blocks.order`.
    """
    blocks, t = rows.blocks, len(rows.blocks.border)
    ordered = prior_precision[blocks.order]
    inner, diagonals, log_det, proper = [], [], 0.0, True
    inner_entries = rows.inner(values)
    for (places, m, k), (at, block, entries) in zip(blocks.sizes, inner_entries):
        # A block of B: sum of w r_D r_D^T over the rows that have it, and its prior precision.
        weighted = entries * weights[at, None]
        matrices = np.empty((m, k, k))
        for i in range(k):
            for j in range(i + 1):
                matrices[:, i, j] = np.bincount(block, weighted[:, i] * entries[:, j], minlength=m)
                matrices[:, j, i] = matrices[:, i, j]
        matrices[:, np.arange(k), np.arange(k)] += ordered[places].reshape(m, k)
        diagonals.append(matrices[:, np.arange(k), np.arange(k)].ravel())
        roots, definite = _roots(matrices)
        proper = proper and definite
        log_det += 2.0 * np.log(roots[:, np.arange(k), np.arange(k)]).sum() if definite else np.nan
        inner.append(1.0 / roots if k == 1 else np.linalg.inv(roots))
    # C = R_D diag(w) R_S^T and F = R_S diag(w) R_S^T + prior precision; Y = W_D C, S = F - Y^T Y.
    outer = rows.outer(values)
    scaled = outer * weights[:, None]
    cross, gram = rows.chosen(values) @ scaled, scaled.T @ outer
    if not rows.dense:
        cross, gram = cross.toarray(), gram.toarray()
    factor = BlockFactor(blocks, tuple(inner), np.empty((blocks.inner, t)), np.eye(t))
    coupling = factor._inner_times(cross, transposed=False)
    schur = gram - coupling.T @ coupling
    schur[np.arange(t), np.arange(t)] += ordered[blocks.inner :]
    diagonal = np.concatenate([*diagonals, gram.diagonal() + ordered[blocks.inner :]])
    if not t:
        return factor._replace(coupling=coupling), log_det, proper, diagonal
    # log |B| = log |D| + log |S|.
    border, of_border, definite = inverse_factor(np.ascontiguousarray(schur))
    return factor._replace(coupling=coupling, border=border), log_det + of_border, proper and definite, diagonal


def _roots(matrices: np.ndarray) -> tuple[np.ndarray, bool]:
    """Return the Cholesky factors of matrices, (m, k, k), and whether all have one; if not, all are identities."""
    if matrices.shape[1] == 1:
        definite = bool((matrices > 0).all())
        return (np.sqrt(matrices) if definite else np.ones_like(matrices)), definite
    try:
        return np.linalg.cholesky(matrices), True
    except np.linalg.LinAlgError:
        return np.broadcast_to(np.eye(matrices.shape[1]), matrices.shape), False


def blocks_of(matrix: scipy.sparse.csr_array) -> Blocks | None:
    """Return a division of the coefficients of R^T, (n, p), into blocks and a border; None where it saves too little.

    Coefficients that couple with more others than a limit form the border, together with the coefficients of all blocks
    that are too large. Of several limits the one with the least work is used. The result is None unless the work is
    less than a quarter of a dense factor's, or where the coupling has too many pairs to compute.
    """
    n, p = matrix.shape
    used = scipy.sparse.csr_array((np.ones(matrix.nnz, dtype=np.int8), matrix.indices, matrix.indptr), shape=(n, p))
    if float(np.square(np.diff(matrix.indptr), dtype=float).sum()) > _MOST_PAIRS:
        return None
    coupled = scipy.sparse.csr_array(used.T.astype(np.int32) @ used.astype(np.int32))
    degree = np.diff(coupled.indptr)
    limits = np.unique(np.quantile(np.unique(degree), np.linspace(0.0, 1.0, _LIMITS), method="nearest"))
    best, least = None, (p**3 + n * p**2) / _LEAST_GAIN
    for limit in limits:
        inner = np.flatnonzero(degree <= limit)
        _, label = connected_components(coupled[inner][:, inner], directed=False)
        size = np.bincount(label)[label]
        t = p - int(np.count_nonzero(size <= _LARGEST))
        # t^3 for the border's factor, t^2 for each row's variance and for each inner coefficient in Y^T Y.
        work = float(t**3 + (n + p - t) * max(t, 1) ** 2)
        if work < least and t < p:
            least, best = work, (inner, label, size)
    if best is None:
        return None
    inner, label, size = best
    members = [
        inner[np.flatnonzero(size == k)[np.argsort(label[size == k], kind="stable")]].reshape(-1, k)
        for k in range(1, _LARGEST + 1)
        if (size == k).any()
    ]
    border = np.setdiff1d(np.arange(p), np.concatenate([group.ravel() for group in members]))
    return Blocks(members, border, least)
