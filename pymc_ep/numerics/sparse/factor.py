"""Cholesky factors of sparse symmetric matrices of one pattern."""

from functools import cached_property
from importlib import import_module
from operator import attrgetter
from types import ModuleType
from typing import NamedTuple

import numpy as np
import scipy.sparse

from pymc_ep.numerics.sparse.order import dissection_order, elimination_order

__all__ = ["Analysis", "SparseFactor"]

_MUCH = 1e4
"""Multiplications of a factor, for each unknown, above which a second order of elimination is tried. A lattice of 10^5
takes 2e3, one of 10^6 8e3, a mesh of 10^5 4e4. The search takes as long as some four factors of the mesh."""
_TOGETHER = 32
"""Number of draws that are solved for at a time, which bounds the memory; their rows fit in a cache."""


class _Elimination(NamedTuple):
    """An order of elimination, a postorder of its tree, with the matrix's pattern and L's column counts in this order.

    Attributes
    ----------
    order : ndarray of int, (n,)
        The unknown at each place.
    starts, below : ndarray of int
        Pattern of the matrix in this order, in compressed columns: their beginnings, and the row indices.
    parent, counts : ndarray of int, (n,)
        Parent in the elimination tree, or -1, and number of entries of each column of L.
    """

    order: np.ndarray
    starts: np.ndarray
    below: np.ndarray
    parent: np.ndarray
    counts: np.ndarray

    @property
    def operations(self) -> float:
        """Multiplications of a factor: sum_j c_j^2 / 2 for columns of c_j entries."""
        return float((self.counts.astype(float) ** 2).sum() / 2.0)


def _eliminated(pattern: scipy.sparse.csc_array, order: np.ndarray) -> _Elimination:
    symbolic = _compiled("symbolic")
    tree = symbolic.elimination_tree(*_permuted(pattern, order))
    post = symbolic.postorder(tree)
    order = order[post]
    starts, below = _permuted(pattern, order)
    parent = np.where(tree[post] >= 0, _inverted(post)[tree[post]], -1)
    return _Elimination(order, starts, below, parent, symbolic.column_counts(starts, below, parent))


class Analysis:
    """Analysis of a pattern, shared by the factors of all matrices with this pattern: order, supernodes and places.

    Parameters
    ----------
    rows, columns : ndarray of int, (e,)
        Rows and columns of the entries in the lower triangle, row >= column, each once, with the whole diagonal.
    n : int
        Number of unknowns.

    Attributes
    ----------
    order : ndarray, (n,)
        Unknowns in the order of elimination.
    flops : float
        Floating-point operations of a factorisation.
    bytes : int
        Memory of a factor, with all work arrays for computing it and the selected inverse.
    """

    def __init__(self, rows: np.ndarray, columns: np.ndarray, n: int):
        self.n, symbolic = n, _compiled("symbolic")
        pattern = _symmetric_pattern(rows, columns, n)
        elimination = _eliminated(pattern, elimination_order(pattern))
        if elimination.operations > _MUCH * n and (other := dissection_order(pattern)) is not None:
            elimination = min(elimination, _eliminated(pattern, other), key=attrgetter("operations"))
        self.order, starts, below, parent, counts = elimination
        self._first = symbolic.supernodes(parent, counts)
        self._begins, self._later, self._parent, owner = symbolic.supernode_rows(starts, below, self._first)
        self._in_parent = symbolic.places_in_parents(self._first, self._begins, self._later, self._parent)
        widths, later = np.diff(self._first), np.diff(self._begins)
        ends = np.cumsum((widths + later) * widths)
        self._panels, self._size = np.concatenate([[0], ends])[:-1], int(ends[-1])
        self._stack, self._inverse_stack = symbolic.stack_sizes(self._first, self._begins, self._parent)
        self._largest_front, self._largest_update = int((widths + later).max()), int((later**2).max())
        # Columns of the inverse, (s + r) s numbers, and H, r s.
        self._largest_panel = int((widths * (widths + 2 * later)).max())
        s, r = widths.astype(float), later.astype(float)
        # s^3 / 3 for L_ss, s^2 r for L_rs = F_rs L_ss^-T, s r^2 for the lower triangle of L_rs L_rs^T.
        self.flops = float((s**3 / 3 + s**2 * r + s * r**2).sum())
        place = _inverted(self.order)
        low, high = np.sort([place[rows], place[columns]], axis=0)
        self._sorted = np.lexsort((high, low))
        self._own_entries = np.searchsorted(low[self._sorted], self._first)
        at = self._panels, low[self._sorted], high[self._sorted]
        self._places = symbolic.entries_in_panels(self._first, self._begins, self._later, owner, *at)
        self._diagonal = np.flatnonzero((low == high)[self._sorted])

    @property
    def bytes(self) -> int:
        """Memory, B, of a factor, with all work arrays for computing it and the selected inverse."""
        room = max(self._stack, self._inverse_stack) + self._largest_update + self._largest_panel
        return 8 * (self._size + room + 2 * len(self._places))

    def factor(self, values: np.ndarray) -> "SparseFactor":
        """Return the factor of the matrix with entries `values`, (e,), at the rows and columns of the pattern."""
        factor = np.empty(self._size)
        log_det, failed = _compiled("cholesky").factorise(
            *self._structure,
            values[self._sorted],
            factor,
            *self._room[:2],
            *self._arguments,
        )
        if failed >= 0:
            return SparseFactor(self, factor, log_det, int(self.order[failed]), np.inf)
        # The pivot L_jj^2 is A_jj less what earlier unknowns explain: A_jj / L_jj^2 measures the digits that cancel.
        pivots = factor[self._places[self._diagonal]] ** 2
        return SparseFactor(self, factor, log_det, -1, float((values[self._sorted[self._diagonal]] / pivots).max()))

    @property
    def _structure(self) -> tuple[np.ndarray, ...]:
        """Arguments for supernodes, panels and entries that a factorisation and a selected inverse have in common."""
        tree = self._first, self._begins, self._in_parent, self._parent
        return *tree, self._panels, self._places, self._own_entries

    @cached_property
    def _room(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        stack = np.empty(max(self._stack, self._inverse_stack, 1))
        return stack, np.empty(max(self._largest_update, 1)), np.empty(self._largest_panel)

    @cached_property
    def _arguments(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return _compiled("blas").arguments()

    def _inverse(self, factor: np.ndarray) -> np.ndarray:
        """Return the entries of the inverse, (e,), from the panels of L."""
        entries, out = np.empty(len(self._sorted)), np.empty(len(self._sorted))
        _compiled("selected_inverse").selected_inverse(
            *self._structure,
            factor,
            entries,
            *self._room,
            *self._arguments,
        )
        out[self._sorted] = entries
        return out

    def _solved(self, factor: np.ndarray, x: np.ndarray, *, forward: bool, backward: bool) -> None:
        """Replace `x`, (n,) or (n, w), in elimination order, by L^{-1} x if `forward`, then L^{-T} x if `backward`."""
        given = self._first, self._begins, self._later, self._panels, factor, x
        if x.ndim == 1:
            _compiled("cholesky").solve_one(*given, np.empty(self._largest_front), forward, backward)
        else:
            room = np.empty(self._largest_front * x.shape[1])
            _compiled("cholesky").solve_many(*given, room, *self._arguments, forward, backward)


class SparseFactor(NamedTuple):
    """Cholesky factor of A, (n, n), with the unknowns in another order.

    Attributes
    ----------
    analysis : Analysis
    factor : ndarray
        Panels of L, the columns of each supernode, joined in one dimension.
    log_det : float
        log |A|; NaN where A is not positive definite.
    failed : int
        First unknown in the order of elimination whose pivot is not positive, or -1.
    loss : float
        Largest ratio of a diagonal element of A to its pivot L_jj^2, by which rounding errors of elements are
        multiplied.
    """

    analysis: Analysis
    factor: np.ndarray
    log_det: float
    failed: int
    loss: float

    @property
    def proper(self) -> bool:
        """Whether A is positive definite."""
        return self.failed < 0

    def solve(self, b: np.ndarray) -> np.ndarray:
        """Return A^{-1} b, for b of shape (n,) or (n, k)."""
        order, out = self.analysis.order, np.empty(b.shape)
        x = np.ascontiguousarray(b[order], dtype=float)
        self.analysis._solved(self.factor, x, forward=True, backward=True)
        out[order] = x
        return out

    def whitened(self, b: np.ndarray) -> np.ndarray:
        """Return L^{-1} b, (n,) or (n, k), in elimination order; for a column b its squared length is b^T A^{-1} b."""
        x = np.ascontiguousarray(b[self.analysis.order], dtype=float)
        self.analysis._solved(self.factor, x, forward=True, backward=False)
        return x

    def draw(self, size: int, rng: np.random.Generator) -> np.ndarray:
        """Return draws of N(0, A^{-1}), (size, n)."""
        out = np.empty((size, self.analysis.n))
        for begin in range(0, size, _TOGETHER):
            chunk = out[begin : begin + _TOGETHER]
            x = rng.standard_normal((self.analysis.n, len(chunk)))
            # x = L^-T z has the covariance L^-T L^-1 = A^-1.
            self.analysis._solved(self.factor, x, forward=False, backward=True)
            chunk[:, self.analysis.order] = x.T
        return out

    def inverse_entries(self) -> np.ndarray:
        """Return the entries of A^{-1}, (e,), at the places of A's entries."""
        return self.analysis._inverse(self.factor)


def _compiled(name: str) -> ModuleType:
    """Return a module of Numba functions, which is imported at the first analysis only."""
    return import_module(f"pymc_ep.numerics.sparse.{name}_numba")


def _symmetric_pattern(rows: np.ndarray, columns: np.ndarray, n: int) -> scipy.sparse.csc_array:
    """Return the whole pattern, (n, n), in compressed columns, from its lower triangle."""
    below = rows != columns
    i, j = np.concatenate([rows, columns[below]]), np.concatenate([columns, rows[below]])
    return scipy.sparse.csc_array((np.ones(len(i)), (i, j)), shape=(n, n))


def _permuted(pattern: scipy.sparse.csc_array, order: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the pattern with unknowns in another order: beginnings of its columns, (n + 1,), and row indices."""
    starts = np.concatenate([[0], np.cumsum(np.diff(pattern.indptr)[order])])
    rows = _inverted(order)[pattern.indices]
    return starts, _compiled("symbolic").permuted_columns(pattern.indptr.astype(np.int64), rows, order, starts)


def _inverted(order: np.ndarray) -> np.ndarray:
    out = np.empty(len(order), dtype=np.int64)
    out[order] = np.arange(len(order))
    return out
