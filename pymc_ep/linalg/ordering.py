"""Orders of the unknowns that make a sparse precision block tridiagonal, with small blocks.

Operators on images are local: D^T diag(pi) D couples a pixel to those within a few rows of it. Numbered row by row,
such a matrix is banded; on a periodic image it is so when rows are taken alternately from either end, 0, R - 1, 1,
R - 2, ..., which puts neighbours on the circle at most two places apart.
"""

import itertools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import scipy.sparse
import scipy.sparse.csgraph

__all__ = ["Blocks", "block_flops", "least_blocks", "pair_count", "pattern"]

_LEAST = 64
"""Least size of a block: below it, calls cost more than the arithmetic."""
_CALL_FLOPS = 1e7
"""Floating-point operations that take as long as the calls for one block."""


class Blocks(NamedTuple):
    """An order of N unknowns, cut into blocks of which only neighbours are coupled.

    Attributes
    ----------
    order : ndarray of int, (N,)
        The unknown at each place.
    edges : ndarray of int, (K + 1,)
        Place at which each of the K blocks begins, and N.
    """

    order: np.ndarray
    edges: np.ndarray

    @property
    def places(self) -> np.ndarray:
        """The place of each unknown, (N,)."""
        out = np.empty_like(self.order)
        out[self.order] = np.arange(len(self.order))
        return out


def pair_count(design: scipy.sparse.csr_array) -> int:
    """Return how many products of two entries of one row there are: the terms of D^T diag(pi) D."""
    lengths = np.diff(design.indptr).astype(np.int64)
    return int((lengths * (lengths + 1) // 2).sum())


def pattern(design: scipy.sparse.csr_array) -> scipy.sparse.csr_array:
    """Return a matrix, (N, N), that is positive where an entry of D^T diag(pi) D may differ from 0."""
    present = scipy.sparse.csr_array(
        (np.ones(design.nnz, dtype=np.float32), design.indices, design.indptr), shape=design.shape
    )
    return scipy.sparse.csr_array(present.T @ present)


def block_flops(sizes: np.ndarray) -> float:
    """Return the floating-point operations of a factor and the selected inverse with blocks of these sizes."""
    before, after = sizes[:-1].astype(float), sizes[1:].astype(float)
    edge = after**2 * before + 2.0 * after * before**2 + 2.0 * before**3
    return float((sizes.astype(float) ** 3).sum() + edge.sum())


def least_blocks(coupled: scipy.sparse.csr_array, shape: tuple[int, ...] | None) -> Blocks:
    """Return the order and the blocks, of those tried, that need the fewest operations.

    Parameters
    ----------
    coupled : csr_array, (N, N)
        The pattern of the precision.
    shape : tuple of int or None
        Shape of the array of unknowns, where they are an image: C-ordered, of N elements.
    """
    entries = coupled.tocoo()
    row, column = entries.coords
    best, least = None, np.inf
    for order, line in _orders(coupled, shape):
        found = Blocks(order, np.zeros(0, dtype=int))
        places = found.places
        reach = np.arange(len(order))
        np.maximum.at(reach, places[column], places[row])
        for first in {_LEAST, max(line, _LEAST)}:
            edges = _cut(np.maximum.accumulate(reach), first)
            cost = block_flops(np.diff(edges)) + _CALL_FLOPS * (len(edges) - 1)
            if cost < least:
                best, least = found._replace(edges=edges), cost
    assert best is not None
    return best


def _orders(coupled: scipy.sparse.csr_array, shape: tuple[int, ...] | None) -> Iterator[tuple[np.ndarray, int]]:
    """Yield orders to try, each with the number of unknowns in one line, row or slab of it."""
    n = coupled.shape[0]
    shape = tuple(d for d in shape or (n,) if d > 1) or (n,)
    index = np.arange(n).reshape(shape)
    for axes in itertools.permutations(range(len(shape))):
        turned = index.transpose(axes)
        for folds in itertools.product((False, True), repeat=len(shape)):
            folded = turned
            for axis, fold in enumerate(folds):
                if fold:
                    folded = np.take(folded, _folded(folded.shape[axis]), axis=axis)
            yield folded.ravel(), n // turned.shape[0]
    yield scipy.sparse.csgraph.reverse_cuthill_mckee(coupled, symmetric_mode=True).astype(int), 1


def _folded(n: int) -> np.ndarray:
    """Return 0, n - 1, 1, n - 2, ..., each of n indices once."""
    out = np.empty(n, dtype=int)
    out[::2] = np.arange((n + 1) // 2)
    out[1::2] = np.arange(n - 1, (n + 1) // 2 - 1, -1)
    return out


def _cut(reach: np.ndarray, first: int) -> np.ndarray:
    """Cut places into blocks, the first of a given size, so that none reaches beyond the next.

    `reach`, (N,), is the last place that is coupled to this one or one before it.
    """
    n = len(reach)
    edges = [0, min(first, n)]
    while edges[-1] < n:
        here = edges[-1]
        edges.append(min(n, max(int(reach[here - 1]) + 1, here + _LEAST)))
    return np.array(edges)
