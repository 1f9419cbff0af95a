"""Numba body of D' diag(w) D x for the differences D of an image x: one pass over the image instead of a dozen."""

import numpy as np

from pymc_ep.jit_numba import jit

__all__ = ["normal"]


@jit(nogil=True, fastmath={"contract"})
def normal(x: np.ndarray, along: np.ndarray, down: np.ndarray, out: np.ndarray) -> None:
    """Add D' diag(w) D x to `out`, (r, c), for differences D of an image and weights w.

    Parameters
    ----------
    x : ndarray, (r, c)
    along, down : ndarray, (r, c - 1) and (r - 1, c), or (r, c) each for a periodic image
        Weights of horizontal and of vertical differences; an empty array for a side of length 1.
    out : ndarray, (r, c)
    """
    rows, columns = x.shape
    # (D^T w D x)_j = w_{j-1} (x_j - x_{j-1}) - w_j (x_{j+1} - x_j), with w = 0 across a border that is not periodic.
    for i in range(rows):
        row, out_row = x[i], out[i]
        if along.size:
            weights = along[i]
            for j in range(1, columns - 1):
                out_row[j] += weights[j - 1] * (row[j] - row[j - 1]) - weights[j] * (row[j + 1] - row[j])
            out_row[0] -= weights[0] * (row[1] - row[0])
            out_row[columns - 1] += weights[columns - 2] * (row[columns - 1] - row[columns - 2])
            if len(weights) == columns:
                across = weights[columns - 1] * (row[0] - row[columns - 1])
                out_row[0] += across
                out_row[columns - 1] -= across
        if down.size and (i > 0 or len(down) == rows):
            weights, before = down[i - 1], x[i - 1]
            for j in range(columns):
                out_row[j] += weights[j] * (row[j] - before[j])
        if down.size and i < len(down):
            weights, after = down[i], x[(i + 1) % rows]
            for j in range(columns):
                out_row[j] -= weights[j] * (after[j] - row[j])
