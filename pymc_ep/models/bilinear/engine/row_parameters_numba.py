"""Numba versions of functions of rows with independent entries: parallel, and one pass over memory, not a dozen."""

import numba
import numpy as np

from pymc_ep.jit_numba import jit

__all__ = ["divergence", "packed_derivative"]

_LEAST, _LARGEST = 1e-100, 1e100
"""Range of a running product of variance ratios. A product outside it is added as a logarithm, and a new one begun."""
_jit = jit(parallel=True, error_model="numpy", fastmath={"contract", "arcp", "nsz"})


@_jit
def divergence(
    mean: np.ndarray,
    variance: np.ndarray,
    prior_mean: np.ndarray,
    prior_variance: np.ndarray,
    points: np.ndarray,
    value: np.ndarray,
    of_mean: np.ndarray,
    of_variance: np.ndarray,
) -> None:
    """Write minus each row's divergence to `value`, (I,), and derivatives in the prior's moments, (I, K) each."""
    for i in numba.prange(len(mean)):
        # sum_d (1 + log(v p) - ((m - m0)^2 + v) p) / 2 as in the NumPy body, with few logarithms of products of v p.
        total, ratio = 0.0, 1.0
        for d in range(mean.shape[1]):
            away, precision = mean[i, d] - prior_mean[i, d], 1.0 / prior_variance[i, d]
            second = (away * away + variance[i, d]) * precision
            of_mean[i, d] = away * precision
            of_variance[i, d] = 0.5 * (second - 1.0) * precision
            if precision != 0.0:
                total += (-np.log(2 * np.pi) if points[d] else 1.0) - second
                ratio *= precision if points[d] else variance[i, d] * precision
                if not _LEAST < ratio < _LARGEST:
                    total += np.log(ratio)
                    ratio = 1.0
        value[i] = 0.5 * (total + np.log(ratio))


@_jit
def packed_derivative(
    of_cells_mean: np.ndarray,
    of_cells_variance: np.ndarray,
    of_prior_mean: np.ndarray,
    variance: np.ndarray,
    prior_variance: np.ndarray,
    points: np.ndarray,
    out: np.ndarray,
) -> None:
    """Write the derivatives of the bound in packed coordinates to `out`, (I, p)."""
    width = len(points)
    for i in numba.prange(len(variance)):
        place = width
        for d in range(width):
            out[i, d] = of_cells_mean[i, d] - of_prior_mean[i, d]
            if not points[d]:
                entry_variance = variance[i, d]
                # d/d log v = v (dB_cells/dv - p / 2) + 1/2.
                out[i, place] = (of_cells_variance[i, d] - 0.5 / prior_variance[i, d]) * entry_variance + 0.5
                place += 1
