"""Numba body of the passes of the two-loop recursion, parallel over pieces of rows."""

import numba
import numpy as np

from pymc_ep.jit_numba import jit

__all__ = ["add_and_dot"]

_PIECE = 16_384
"""Number of entries of a row in a piece. Sums of pieces are added in order, so that threads do not change a digit."""


@jit(fastmath={"reassoc", "contract", "arcp", "nsz"})
def _piece(q: np.ndarray, weight: float, added: np.ndarray, other: np.ndarray) -> float:
    """Add `weight` times `added`, (c,), to `q`, (c,), in place; return the scalar product of `q` and `other`, (c,)."""
    total = 0.0
    for d in range(len(q)):
        moved = q[d] + weight * added[d]
        q[d] = moved
        total += moved * other[d]
    return total


@jit(parallel=True)
def add_and_dot(
    q: np.ndarray, weights: np.ndarray, added: np.ndarray, other: np.ndarray, rows: np.ndarray
) -> np.ndarray:
    """Add weights times the rows `rows`, (k,), of `added` to q, in place; return the products of q and rows of `other`.

    For shapes see `_added` of `pymc_ep.numerics.optimise.batched_lbfgs`, where `rows` is `active`.
    """
    n, width = q.shape
    pieces = (width + _PIECE - 1) // _PIECE
    sums = np.empty((n, pieces))
    for at in numba.prange(n * pieces):
        i, begin = at // pieces, at % pieces * _PIECE
        end, row = min(begin + _PIECE, width), rows[i]
        sums[i, at % pieces] = _piece(q[i, begin:end], weights[i], added[row, begin:end], other[row, begin:end])
    return sums.sum(axis=1)
