"""Numba bodies of the inner products of Gaussian rows: own rows in parallel, and no array of pairs times columns."""

from typing import Any

import numba
import numpy as np

__all__ = ["log_mean_exp", "log_mean_exp_pullback", "variance", "variance_pullback"]

_BLOCK = 16
"""Columns whose r_d are multiplied before a logarithm is taken of them: at 1e-16 each the product is still normal."""
# Sums may be in any order, so that they use vector instructions; NaN and infinity keep their meaning.
_jit = numba.njit(parallel=True, cache=True, fastmath={"reassoc", "contract", "arcp", "nsz"})


@_jit
def log_mean_exp(ends: Any, others: Any, m: Any, a: Any, n: Any, b: Any, out: Any, log_out: Any) -> None:
    """Write E f and log E e^f of all pairs, (n,) each; see the NumPy body."""
    width = m.shape[1]
    for i in numba.prange(len(ends) - 1):
        for c in range(ends[i], ends[i + 1]):
            j = others[c]
            total, terms, logs, least = 0.0, 0.0, 0.0, 1.0
            for begin in range(0, width, _BLOCK):
                product = 1.0
                for d in range(begin, min(begin + _BLOCK, width)):
                    r = 1.0 - a[i, d] * b[j, d]
                    least = min(least, r)
                    product *= r
                    both = m[i, d] * n[j, d]
                    total += both
                    terms += (both + 0.5 * (a[i, d] * n[j, d] ** 2 + b[j, d] * m[i, d] ** 2)) / r
                logs += np.log(abs(product))
            out[c] = total
            log_out[c] = terms - 0.5 * logs if least > 0.0 else np.inf


@_jit
def log_mean_exp_pullback(
    ends: Any, others: Any, m: Any, a: Any, n: Any, b: Any, weight: Any, weight_log: Any, of_mean: Any, of_variance: Any
) -> None:
    """Write the derivatives in the own moments, (I, K) each; see the NumPy body."""
    width = m.shape[1]
    for i in numba.prange(len(ends) - 1):
        for d in range(width):
            of_mean[i, d] = 0.0
            of_variance[i, d] = 0.0
        for c in range(ends[i], ends[i + 1]):
            j, w, v = others[c], weight[c], weight_log[c]
            for d in range(width):
                r = 1.0 - a[i, d] * b[j, d]
                g = (n[j, d] + b[j, d] * m[i, d]) / r
                of_mean[i, d] += w * n[j, d] + v * g
                of_variance[i, d] += 0.5 * v * (b[j, d] / r + g * g)


@_jit
def variance(ends: Any, others: Any, m: Any, a: Any, n: Any, b: Any, out: Any, spread: Any) -> None:
    """Write E f and Var f of all pairs, (n,) each."""
    width = m.shape[1]
    for i in numba.prange(len(ends) - 1):
        for c in range(ends[i], ends[i + 1]):
            j = others[c]
            total, terms = 0.0, 0.0
            for d in range(width):
                total += m[i, d] * n[j, d]
                terms += a[i, d] * (n[j, d] ** 2 + b[j, d]) + b[j, d] * m[i, d] ** 2
            out[c] = total
            spread[c] = terms


@_jit
def variance_pullback(
    ends: Any, others: Any, m: Any, a: Any, n: Any, b: Any, weight: Any, of_spread: Any, of_mean: Any, of_variance: Any
) -> None:
    """Write the derivatives in the own moments, (I, K) each."""
    width = m.shape[1]
    for i in numba.prange(len(ends) - 1):
        for d in range(width):
            of_mean[i, d] = 0.0
            of_variance[i, d] = 0.0
        for c in range(ends[i], ends[i + 1]):
            j, w, v = others[c], weight[c], of_spread[c]
            for d in range(width):
                of_mean[i, d] += w * n[j, d] + 2.0 * v * b[j, d] * m[i, d]
                of_variance[i, d] += v * (n[j, d] ** 2 + b[j, d])
