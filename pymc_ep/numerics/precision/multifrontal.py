"""Factor, solutions, draws and selected inverse of a sparse precision A = D^T diag(pi) D.

The unknowns are eliminated node by node of a nested dissection (the multifrontal method; Duff and Reid 1983). The front
F of a node is dense: its own unknowns s, and the later ones r that they are coupled with. It holds elements of A plus
the update matrices of the node's children. With F_ss = L L^T and W = L^{-1},

    H = F_rs F_ss^{-1} = (F_rs W^T) W,      update matrix for the parent:  F_rr - (F_rs W^T) (F_rs W^T)^T.

Of the inverse S, blocks follow from parents to children (Takahashi et al. 1973; Erisman and Tinney 1975):

    S_rs = -S_rr H,      S_ss = W^T W - H^T S_rs,

where S_rr is part of the block at the parent. The blocks hold the covariances of all unknowns that share a row of D,
hence diag(D S D^T). All work is products and factors of dense matrices by BLAS and LAPACK.
"""

from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import scipy.linalg
import scipy.sparse

from pymc_ep.numerics.backend.cholesky import counts
from pymc_ep.numerics.memory import chunks
from pymc_ep.numerics.precision.nested_dissection import Dissection, pair_count

__all__ = ["Multifrontal", "MultifrontalFactor", "pivots_vanish", "rows_by_length"]

_VANISHING = 2**10 * np.finfo(float).eps
"""Pivot, relative to the diagonal of A, at which A counts as singular.

A zero pivot was measured as 1 to 600 units of rounding for differences on images of 24^2 to 64^2 pixels. Variances from
a pivot as small as that have a relative error of a tenth.
"""
_PAIR_BYTES = 60
"""Bytes for each product of two entries of a row while the products are sorted, of which 12 bytes are kept."""
_LONG = 64
"""Largest number of entries of a row whose variance is summed over pairs of entries, 2080 pairs; for a longer row one
linear system is solved instead."""


def pivots_vanish(pivots: np.ndarray, diagonal: np.ndarray) -> bool:
    """Whether a matrix with this `diagonal` is singular or not finite, by the diagonal of its Cholesky factor."""
    return not (pivots**2 > _VANISHING * diagonal).all()


def rows_by_length(design: scipy.sparse.csr_array) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Return the rows of a design grouped by their number m > 0 of entries, one tuple for each m.

    A tuple has the indices of the r rows, (r,), and the columns and values of their entries, (r, m) each.
    """
    lengths = np.diff(design.indptr)
    out = []
    for length in np.unique(lengths[lengths > 0]):
        rows = np.flatnonzero(lengths == length)
        entries = design.indptr[rows].astype(np.int64)[:, None] + np.arange(length)
        out.append((rows, design.indices[entries].astype(np.int64), design.data[entries]))
    return out


class Pairs(NamedTuple):
    """Products of two entries of one row of a design: the terms of the elements of A.

    Attributes
    ----------
    products : csr_array, (e, n)
        ``products @ pi`` are the e elements of A that may differ from 0, one for each symmetric pair.
    row, column : ndarray of int, (e,)
        Row and column of each element in the front of its node, the node of the unknown that is eliminated first.
    starts : ndarray of int, (K + 1,)
        Where the elements of each node begin, and e.
    outside : ndarray of int
        Rows of the design that are left out: long rows, and rows with a pair of unknowns that no front has.
    """

    products: scipy.sparse.csr_array
    row: np.ndarray
    column: np.ndarray
    starts: np.ndarray
    outside: np.ndarray

    def of_node(self, k: int) -> tuple[slice, np.ndarray, np.ndarray]:
        """Return the slice of the elements that belong to the front of node k, and their rows and columns there."""
        elements = slice(self.starts[k], self.starts[k + 1])
        return elements, self.row[elements], self.column[elements]


class Multifrontal:
    """Factors precisions D^T diag(pi) D of one design by nested dissection.

    Parameters
    ----------
    design : csr_array, (n, N)
        D, canonical.
    dissection : Dissection
        Order and tree for the pattern of D^T D.
    """

    def __init__(self, design: scipy.sparse.csr_array, dissection: Dissection):
        self.design = design
        self.dissection = dissection
        self._last_other: tuple[scipy.sparse.csr_array | None, Any] = (None, None)

    @property
    def row_squares(self) -> np.ndarray:
        """Squared lengths of the rows of D, (n,)."""
        return self.design.power(2).sum(axis=1)

    @property
    def flops(self) -> float:
        """Floating-point operations of one factorisation and the variances of all predictors."""
        return self.dissection.flops

    @property
    def bytes(self) -> int:
        """Memory, B, of a factor while variances are computed: W and H of all nodes, a few fronts, and `pairs`."""
        pivots, later = self.dissection.sizes
        kept = (pivots * (pivots + later)).sum() + 6 * ((pivots + later) ** 2).max()
        return int(8 * kept) + _PAIR_BYTES * pair_count(self.design)

    @property
    def sentence(self) -> str:
        """Description of the algebra, for messages and `explain`."""
        n, (pivots, later) = self.design.shape[1], self.dissection.sizes
        return (
            f"the {n} x {n} precision is factored exactly by nested dissection, with {len(pivots)} dense matrices of "
            f"at most {(pivots + later).max()} unknowns ({self.flops:.2g} operations, {self.bytes / 1e6:.0f} MB)"
        )

    @cached_property
    def pairs(self) -> Pairs:
        """The `Pairs` of D, whose products map pi to the elements of A."""
        return self.pairs_of(self.design)

    def pairs_for(self, design: scipy.sparse.csr_array) -> Pairs:
        """Return the `Pairs` of a design, (m, N): of all rows of D, of the short rows of any other design.

        The results for D and for the last other design are cached.
        """
        if design is self.design:
            return self.pairs
        if design is not self._last_other[0]:
            canonical = scipy.sparse.csr_array(design, copy=True)
            canonical.sum_duplicates()
            self._last_other = design, self.pairs_of(canonical, _LONG)
        return self._last_other[1]

    @cached_property
    def _front_keys(self) -> tuple[np.ndarray, np.ndarray]:
        """Unknowns of all fronts as keys node * N + place, sorted, and the index of each node's first key, (K,)."""
        tree, n = self.dissection, self.design.shape[1]
        fronts = [
            k * n + np.concatenate([np.arange(tree.edges[k], tree.edges[k + 1]), later])
            for k, later in enumerate(tree.beyond)
        ]
        return np.concatenate(fronts), np.cumsum([0, *map(len, fronts[:-1])])

    @cached_property
    def places_in_parents(self) -> list[np.ndarray]:
        """Where the later unknowns of each node are in the front of its parent."""
        tree, n = self.dissection, self.design.shape[1]
        members, starts = self._front_keys
        return [
            np.searchsorted(members, parent * n + later) - starts[parent] if parent >= 0 else later
            for parent, later in zip(tree.parents, tree.beyond)
        ]

    def pairs_of(self, design: scipy.sparse.csr_array, longest: int | None = None) -> Pairs:
        """Return the `Pairs` of a canonical design, (m, N), without rows of more than `longest` entries."""
        tree, n = self.dissection, self.design.shape[1]
        places, (members, first_member) = tree.places, self._front_keys
        node_of = np.repeat(np.arange(len(tree.parents)), np.diff(tree.edges))
        nothing = np.zeros(0, dtype=int)
        triplets, outside = [(nothing, np.zeros(0), nothing)], [nothing]
        for rows, columns, values in rows_by_length(design):
            if longest is not None and columns.shape[1] > longest:
                outside.append(rows)
                continue
            first, second = np.tril_indices(columns.shape[1])
            high = np.maximum(places[columns[:, first]], places[columns[:, second]])
            low = np.minimum(places[columns[:, first]], places[columns[:, second]])
            # An element of A belongs to the front of the node that its earlier unknown is in.
            wanted = node_of[low] * n + high
            member = np.minimum(np.searchsorted(members, wanted), len(members) - 1)
            inside = (members[member] == wanted).all(axis=1)
            outside.append(rows[~inside])
            product = values[inside][:, first] * values[inside][:, second]
            key = low[inside] * len(members) + member[inside]
            triplets.append((key.ravel(), product.ravel(), np.repeat(rows[inside], len(first))))
        key, product, rows = (np.concatenate(arrays) for arrays in zip(*triplets))
        elements, element = np.unique(key, return_inverse=True)
        products = scipy.sparse.csr_array((product, (element.ravel(), rows)), shape=(len(elements), design.shape[0]))
        place, member = np.divmod(elements, len(members))
        node = node_of[place]
        starts = np.searchsorted(place, tree.edges)
        return Pairs(products, member - first_member[node], place - tree.edges[node], starts, np.concatenate(outside))

    def factor(self, weights: np.ndarray, ridge: np.ndarray | None = None) -> "MultifrontalFactor":
        """Factor D^T diag(weights) D, with `ridge`, (N,), added to its diagonal where given."""
        counts["factorizations"] += 1
        tree, elements = self.dissection, self.pairs.products @ weights
        added = np.zeros(self.design.shape[1]) if ridge is None else ridge[tree.order]
        updates: dict[int, list[tuple[np.ndarray, np.ndarray]]] = {}
        out = MultifrontalFactor(self)
        for k, parent in enumerate(tree.parents):
            pivots, later = tree.edges[k + 1] - tree.edges[k], len(tree.beyond[k])
            front = np.zeros((pivots + later, pivots + later), order="F")
            node_slice, row, column = self.pairs.of_node(k)
            front[row, column] = elements[node_slice]
            diagonal = front.diagonal()[:pivots] + added[tree.edges[k] : tree.edges[k + 1]]
            front.reshape(-1, order="F")[: pivots * (pivots + later) : pivots + later + 1] = diagonal
            for place, rest in updates.pop(k, []):
                # Along columns, in memory order.
                front.T[place[:, None], place] += rest.T
            rest = out.eliminate(front, pivots, diagonal)
            if not out.proper:
                return out
            if parent >= 0:
                updates.setdefault(parent, []).append((self.places_in_parents[k], rest))
        return out


class MultifrontalFactor:
    """A factor of A = D^T diag(pi) D; see `pymc_ep.numerics.precision.plan.PrecisionFactor`.

    Attributes
    ----------
    log_det : float
    proper : bool
        Whether A is positive definite; the other members are meaningless where it is not.
    """

    def __init__(self, algebra: Multifrontal):
        self.algebra = algebra
        self.log_det = 0.0
        self.proper = True
        self._inverses: list[np.ndarray] = []
        self._multipliers: list[np.ndarray] = []

    def eliminate(self, front: np.ndarray, pivots: int, diagonal: np.ndarray) -> np.ndarray:
        """Append W and H of a node with `pivots` own unknowns, from its front; return its update matrix.

        Only the lower triangles of these symmetric matrices are valid. `diagonal` is A's, at the node's own unknowns.
        """
        factor, info = scipy.linalg.lapack.dpotrf(front[:pivots, :pivots], lower=1, clean=1)
        if info != 0 or pivots_vanish(factor.diagonal(), diagonal):
            self.log_det, self.proper = np.nan, False
            return front
        self.log_det += 2.0 * float(np.log(factor.diagonal()).sum())
        inverse, _ = scipy.linalg.lapack.dtrtri(factor, lower=1, overwrite_c=1)
        self._inverses.append(inverse)
        if pivots == len(front):
            self._multipliers.append(np.zeros((0, pivots)))
            return front[pivots:, pivots:]
        # half = F_rs W^T: F_rs F_ss^-1 F_rs^T = half half^T, and H = half W.
        half = scipy.linalg.blas.dtrmm(1.0, inverse, front[pivots:, :pivots], side=1, lower=1, trans_a=1)
        rest = np.asfortranarray(front[pivots:, pivots:])
        rest = scipy.linalg.blas.dsyrk(-1.0, half, beta=1.0, c=rest, lower=1, overwrite_c=1)
        self._multipliers.append(scipy.linalg.blas.dtrmm(1.0, inverse, half, side=1, lower=1, overwrite_b=1))
        return rest

    def solve(self, b: np.ndarray) -> np.ndarray:
        """Return A^{-1} b, for b of shape (N,) or (N, k)."""
        tree = self.algebra.dissection
        x = np.asarray(b, dtype=float)[tree.order]
        # x_r <- x_r - H x_s, then x_s <- F_ss^-1 x_s = W^T W x_s; x_s - H^T x_r follows.
        for k, (inverse, multiplier) in enumerate(zip(self._inverses, self._multipliers)):
            rows = slice(tree.edges[k], tree.edges[k + 1])
            x[tree.beyond[k]] -= multiplier @ x[rows]
            x[rows] = inverse.T @ (inverse @ x[rows])
        return self._back_substituted(x)

    def draw(self, size: int, rng: np.random.Generator) -> np.ndarray:
        """Return draws of N(0, A^{-1}), (size, N): solutions of L^T x = z for standard normal z."""
        tree = self.algebra.dissection
        x = np.ascontiguousarray(rng.standard_normal((size, len(tree.order))).T)
        # L_ss^T x_s + L_rs^T x_r = z_s, so that x_s = W^T z_s - H^T x_r.
        for k, inverse in enumerate(self._inverses):
            rows = slice(tree.edges[k], tree.edges[k + 1])
            x[rows] = inverse.T @ x[rows]
        return self._back_substituted(x).T

    def _back_substituted(self, x: np.ndarray) -> np.ndarray:
        """Return the result of back substitution on `x`, (N,) or (N, k), in the order of the unknowns.

        From the last node to the first, x_s is replaced by x_s - H^T x_r. `x` is in the order of elimination, and is
        overwritten.
        """
        tree = self.algebra.dissection
        for k in range(len(self._multipliers) - 1, -1, -1):
            x[tree.edges[k] : tree.edges[k + 1]] -= self._multipliers[k].T @ x[tree.beyond[k]]
        out = np.empty_like(x)
        out[tree.order] = x
        return out

    def variances(self, design: scipy.sparse.csr_array) -> np.ndarray:
        """Return diag(C A^{-1} C^T), (m,), for C = `design`, (m, N).

        For a short row whose pairs of unknowns are all in fronts the selected inverse is enough; for any other row a
        system is solved.
        """
        pairs = self.algebra.pairs_for(design)
        # Row i: sum over pairs j <= k of C_ij C_ik S_jk, twice off the diagonal.
        out = pairs.products.T @ self._selected_inverse(pairs)
        for chunk in chunks(len(pairs.outside), design.shape[1]):
            rows = pairs.outside[chunk]
            dense = design[rows].toarray().T
            out[rows] = np.einsum("ij,ij->j", dense, self.solve(dense))
        return out

    def predictor_variances(self) -> np.ndarray:
        """Return diag(D A^{-1} D^T), (n,)."""
        return self.variances(self.algebra.design)

    def _selected_inverse(self, pairs: Pairs) -> np.ndarray:
        """Return the elements of A^{-1} at the places of `pairs`, (e,); elements off the diagonal are doubled."""
        tree, places = self.algebra.dissection, self.algebra.places_in_parents
        out = np.empty(len(pairs.row))
        fronts: dict[int, np.ndarray] = {}
        waiting = np.bincount(tree.parents[tree.parents >= 0], minlength=len(tree.parents))
        for k in range(len(tree.parents) - 1, -1, -1):
            parent, inverse, multiplier = tree.parents[k], self._inverses[k], self._multipliers[k]
            columns = scipy.linalg.blas.dtrmm(1.0, inverse, inverse, lower=1, trans_a=1)
            if parent >= 0:
                # S_rs = -S_rr H and S_ss = W^T W + H^T S_rr H, with S_rr out of the parent's block.
                beyond = fronts[parent][places[k][:, None], places[k]]
                # SciPy's BLAS as above, not `@`: NumPy's is another library, and between calls of some microseconds the
                # waiting threads of either occupy the processors (20 times slower on two of these).
                across = scipy.linalg.blas.dgemm(1.0, beyond.T, multiplier)
                columns = np.concatenate(
                    [columns + scipy.linalg.blas.dgemm(1.0, multiplier, across, trans_a=1), -across]
                )
                waiting[parent] -= 1
                if not waiting[parent]:
                    del fronts[parent]
            node_slice, row, column = pairs.of_node(k)
            out[node_slice] = np.where(row == column, 1.0, 2.0) * columns[row, column]
            if waiting[k]:
                pivots = len(inverse)
                fronts[k] = np.empty((len(columns), len(columns)))
                fronts[k][:, :pivots] = columns
                if parent >= 0:
                    fronts[k][:pivots, pivots:] = columns[pivots:].T
                    fronts[k][pivots:, pivots:] = beyond
        return out
