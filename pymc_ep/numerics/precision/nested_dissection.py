"""Nested dissection: an order of the unknowns in which the factor of a sparse precision stays small (George 1973).

The unknowns are cut into two halves that are coupled through a separator only, which is eliminated after both; each
half is cut in the same way. On an image of N pixels with local operators, the factor then has of order N log N
elements and takes N^{3/2} operations. It consists of dense matrices, one for each separator: of the separator's own
unknowns, and of the later unknowns that they are coupled with once all earlier unknowns are eliminated. Periodic
operators need no special case: a separator is then at both ends of a half.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import scipy.sparse
import scipy.sparse.csgraph

__all__ = ["Dissection", "dissect", "pair_count", "pattern"]

_LEAF = 96
"""Most unknowns of a part that is not cut: calls for smaller matrices cost more than their arithmetic."""


class Dissection(NamedTuple):
    """An elimination order of N unknowns, and the K nodes of its tree, children before parents.

    Attributes
    ----------
    order : ndarray of int, (N,)
        The unknown at each place.
    edges : ndarray of int, (K + 1,)
        Place at which the unknowns of each node begin, and N.
    parents : ndarray of int, (K,)
        Parent of each node: the node of the first later unknown that it is coupled with; -1 for a root.
    beyond : list of K ndarrays of int
        Places of the later unknowns that each node is coupled with when it is eliminated, sorted.
    """

    order: np.ndarray
    edges: np.ndarray
    parents: np.ndarray
    beyond: list[np.ndarray]

    @property
    def places(self) -> np.ndarray:
        """The place of each unknown, (N,)."""
        out = np.empty_like(self.order)
        out[self.order] = np.arange(len(self.order))
        return out

    @property
    def sizes(self) -> tuple[np.ndarray, np.ndarray]:
        """Numbers of own unknowns of each node, and of later unknowns that it is coupled with, (K,) each."""
        return np.diff(self.edges), np.array([len(later) for later in self.beyond])

    @property
    def flops(self) -> float:
        """Floating-point operations of one factorisation and the selected inverse."""
        pivots, later = (counts.astype(float) for counts in self.sizes)
        # Of 4 s^2 r H and S_ss take 2 each; of 3 s r^2 the update matrix takes 1, S_rs 2 (s own, r later unknowns).
        return float((pivots**3 + 4.0 * pivots**2 * later + 3.0 * pivots * later**2).sum())


def pair_count(design: scipy.sparse.csr_array) -> int:
    """Return the number of products of two entries of one row: the terms of D^T diag(pi) D."""
    lengths = np.diff(design.indptr).astype(np.int64)
    return int((lengths * (lengths + 1) // 2).sum())


def pattern(design: scipy.sparse.csr_array) -> scipy.sparse.csr_array:
    """Return a matrix, (N, N), that is positive where an entry of D^T diag(pi) D may differ from 0."""
    present = scipy.sparse.csr_array(
        (np.ones(design.nnz, dtype=np.float32), design.indices, design.indptr), shape=design.shape
    )
    return scipy.sparse.csr_array(present.T @ present)


def dissect(coupled: scipy.sparse.csr_array, shape: tuple[int, ...] | None) -> Dissection:
    """Return an order of the unknowns by nested dissection.

    Parameters
    ----------
    coupled : csr_array, (N, N)
        The pattern of the precision.
    shape : tuple of int or None
        Shape of the image that the unknowns form, in C order; the image is cut across its axes. With None each part is
        cut in the middle of its order by Cuthill and McKee (1969).
    """
    n = coupled.shape[0]
    axes = None if shape is None else np.indices(shape).reshape(len(shape), n)
    nodes: list[np.ndarray] = []
    _append_nodes(coupled, axes, np.arange(n), nodes, np.zeros(n, dtype=bool))
    order = np.concatenate(nodes)
    edges = np.concatenate([[0], np.cumsum([len(node) for node in nodes])])
    return _symbolic(coupled, order, edges)


def _append_nodes(
    coupled: scipy.sparse.csr_array,
    axes: np.ndarray | None,
    unknowns: np.ndarray,
    nodes: list[np.ndarray],
    marked: np.ndarray,
) -> None:
    """Append the nodes of a part, `unknowns`, to `nodes`, its separator last.

    `marked`, (N,), is a work array, False before and after.
    """
    if len(unknowns) > _LEAF:
        separator, halves = _smallest_separator(coupled, axes, unknowns, marked)
        if len(separator) < 0.5 * len(unknowns):
            for half in halves:
                if len(half):
                    _append_nodes(coupled, axes, half, nodes, marked)
            unknowns = separator
    if len(unknowns):
        nodes.append(unknowns)


def _smallest_separator(
    coupled: scipy.sparse.csr_array, axes: np.ndarray | None, unknowns: np.ndarray, marked: np.ndarray
) -> tuple[np.ndarray, tuple[np.ndarray, np.ndarray]]:
    """Return the smallest separator and its two halves; each order of `_positions` gives one, at its median."""
    best, halves = unknowns, (unknowns[:0], unknowns[:0])
    for along in _positions(coupled, axes, unknowns):
        middle = np.partition(along, len(unknowns) // 2)[len(unknowns) // 2]
        first, second = unknowns[along < middle], unknowns[along >= middle]
        if not len(first):
            continue
        near = coupled[first].indices
        marked[near] = True
        touched = marked[second]
        marked[near] = False
        if np.count_nonzero(touched) < len(best):
            best, halves = second[touched], (first, second[~touched])
    return best, halves


def _positions(coupled: scipy.sparse.csr_array, axes: np.ndarray | None, unknowns: np.ndarray) -> Iterator[np.ndarray]:
    """Yield the positions, (k,), of k unknowns along each order in which they may be cut, at the median position."""
    if axes is not None:
        yield from axes[:, unknowns]
        return
    order = scipy.sparse.csgraph.reverse_cuthill_mckee(coupled[unknowns][:, unknowns], symmetric_mode=True)
    along = np.empty(len(unknowns), dtype=int)
    along[order] = np.arange(len(unknowns))
    yield along


def _symbolic(coupled: scipy.sparse.csr_array, order: np.ndarray, edges: np.ndarray) -> Dissection:
    """Return the dissection with the parent of each node, and the later unknowns that it is coupled with.

    Unknowns are coupled directly or by fill-in.
    """
    count = len(edges) - 1
    out = Dissection(order, edges, np.full(count, -1), [])
    places = out.places
    node_of = np.repeat(np.arange(count), np.diff(edges))
    passed: list[list[np.ndarray]] = [[] for _ in range(count)]
    for k in range(count):
        neighbours = places[coupled[order[edges[k] : edges[k + 1]]].indices]
        reached = np.unique(np.concatenate([neighbours, *passed[k]]))
        later = reached[np.searchsorted(reached, edges[k + 1]) :]
        passed[k] = []
        out.beyond.append(later)
        if len(later):
            out.parents[k] = node_of[later[0]]
            passed[out.parents[k]].append(later)
    return out
