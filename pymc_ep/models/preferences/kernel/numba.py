"""Numba bodies of the posteriors of compared utilities: users in parallel, buffers of one user's size."""

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from pytensor.graph.basic import Apply
from pytensor.link.numba.dispatch.basic import numba_njit, register_funcify_and_cache_key

from pymc_ep.jit_numba import jit
from pymc_ep.models.preferences.kernel.op import DifferenceMeans, DifferenceMoments, PrecisionLosses, PriorFactors

__all__ = ["add_losses", "difference_means", "difference_moments", "precision_losses", "prior_factors"]

# Sums may be reordered, for vector instructions; NaN and infinity keep their meaning.
_FAST = {"reassoc", "contract", "arcp", "nsz"}
_jit = jit(parallel=True, fastmath=_FAST)
_jit_part = jit(fastmath=_FAST, inline="always")


@_jit_part
def _dot(x: np.ndarray, y: np.ndarray, n: int) -> float:
    total = 0.0
    for k in range(n):
        total += x[k] * y[k]
    return total


@_jit_part
def _factorise(matrix: np.ndarray) -> bool:
    """Overwrite the lower triangle of a symmetric matrix by its Cholesky factor; return False if there is none."""
    # L_rc = (A_rc - sum_{k<c} L_rk L_ck) / L_cc for c < r, and L_rr^2 = A_rr - sum_{k<r} L_rk^2.
    for r in range(len(matrix)):
        row = matrix[r]
        for c in range(r):
            row[c] = (row[c] - _dot(row, matrix[c], c)) / matrix[c, c]
        pivot = row[r] - _dot(row, row, r)
        if not pivot > 0.0:
            return False
        row[r] = np.sqrt(pivot)
    return True


@_jit
def prior_factors(
    item_ends: np.ndarray,
    items: np.ndarray,
    squares: np.ndarray,
    factors: np.ndarray,
    kernel: np.ndarray,
    scale: float,
    out: np.ndarray,
    failed: np.ndarray,
) -> None:
    """Write the Cholesky factors of the prior covariances; see the NumPy body."""
    width = factors.shape[1]
    for u in numba.prange(len(item_ends) - 1):
        begin, n = item_ends[u], item_ends[u + 1] - item_ends[u]
        matrix = out[squares[u] : squares[u + 1]].reshape((n, n))
        for r in range(n):
            i = items[begin + r]
            for c in range(r + 1):
                j = items[begin + c]
                if kernel.size:
                    between = kernel[i, j]
                else:
                    between = 1.0 if r == c else 0.0
                matrix[r, c] = scale * between + _dot(factors[i], factors[j], width)
            for c in range(r + 1, n):
                matrix[r, c] = 0.0
        failed[u] = not _factorise(matrix)


@_jit_part
def _add_weighted(
    firsts: np.ndarray, seconds: np.ndarray, precision: np.ndarray, values: np.ndarray, out: np.ndarray
) -> None:
    """Add D^T diag(precision) D values, (n, c), to `out`; a comparison of items i and j has the row e_i - e_j in D."""
    for k in range(len(firsts)):
        i, j, p = firsts[k], seconds[k], precision[k]
        for c in range(values.shape[1]):
            step = p * (values[i, c] - values[j, c])
            out[i, c] += step
            out[j, c] -= step


@_jit_part
def _whiten(
    lower: np.ndarray, firsts: np.ndarray, seconds: np.ndarray, precision: np.ndarray, white: np.ndarray
) -> float:
    """Write W^T of the NumPy body, (n, n), to `white`, and return log |A|."""
    n = len(lower)
    through, root = np.zeros((n, n)), np.zeros((n, n))
    # through = H L, and then root = A = I + L^T through, its lower triangle.
    _add_weighted(firsts, seconds, precision, lower, through)
    for r in range(n):
        root[r, r] = 1.0
    # L is lower triangular: row k of it has k + 1 entries.
    for k in range(n):
        row, lower_row = through[k], lower[k]
        for r in range(k + 1):
            weight, into = lower_row[r], root[r]
            for c in range(r + 1):
                into[c] += weight * row[c]
    _factorise(root)
    log_det = 0.0
    for r in range(n):
        log_det += 2.0 * np.log(root[r, r])
        row = white[r]
        for c in range(n):
            # W^T R^T = L, solved forwards: (W^T)_rc = (L_rc - sum_{k<c} R_ck (W^T)_rk) / R_cc.
            row[c] = (lower[r, c] - _dot(root[c], row, c)) / root[c, c]
    return log_det


@_jit_part
def _means(
    firsts: np.ndarray,
    seconds: np.ndarray,
    white: np.ndarray,
    prior_mean: np.ndarray,
    shift: np.ndarray,
    precision: np.ndarray,
    mean: np.ndarray,
) -> None:
    """Write the posterior means of a user's differences, (P,), to `mean`."""
    n = len(white)
    # mu + D W^T pull, with pull = W D^T (b - p mu).
    pull = np.zeros(n)
    for k in range(len(firsts)):
        weight = shift[k] - precision[k] * prior_mean[k]
        first, second = white[firsts[k]], white[seconds[k]]
        for c in range(n):
            pull[c] += weight * (first[c] - second[c])
    for k in range(len(firsts)):
        first, second = white[firsts[k]], white[seconds[k]]
        total = prior_mean[k]
        for c in range(n):
            total += (first[c] - second[c]) * pull[c]
        mean[k] = total


@_jit
def difference_moments(
    item_ends: np.ndarray,
    pair_ends: np.ndarray,
    firsts: np.ndarray,
    seconds: np.ndarray,
    squares: np.ndarray,
    lower: np.ndarray,
    prior_mean: np.ndarray,
    shift: np.ndarray,
    precision: np.ndarray,
    mean: np.ndarray,
    variance: np.ndarray,
    log_det: np.ndarray,
    whitened: np.ndarray,
) -> None:
    """Write the posterior of the differences; see the NumPy body."""
    for u in numba.prange(len(item_ends) - 1):
        n, pairs = item_ends[u + 1] - item_ends[u], slice(pair_ends[u], pair_ends[u + 1])
        entries, user_firsts, user_seconds = slice(squares[u], squares[u + 1]), firsts[pairs], seconds[pairs]
        white = whitened[entries].reshape((n, n))
        log_det[u] = _whiten(lower[entries].reshape((n, n)), user_firsts, user_seconds, precision[pairs], white)
        _means(user_firsts, user_seconds, white, prior_mean[pairs], shift[pairs], precision[pairs], mean[pairs])
        for k in range(pair_ends[u], pair_ends[u + 1]):
            first, second = white[firsts[k]], white[seconds[k]]
            # Diagonal of D W^T W D^T.
            square = 0.0
            for c in range(n):
                square += (first[c] - second[c]) ** 2
            variance[k] = square


@_jit
def difference_means(
    item_ends: np.ndarray,
    pair_ends: np.ndarray,
    firsts: np.ndarray,
    seconds: np.ndarray,
    squares: np.ndarray,
    whitened: np.ndarray,
    prior_mean: np.ndarray,
    shift: np.ndarray,
    precision: np.ndarray,
    mean: np.ndarray,
) -> None:
    """Write the posterior means of the differences; see the NumPy body."""
    for u in numba.prange(len(item_ends) - 1):
        n, pairs = item_ends[u + 1] - item_ends[u], slice(pair_ends[u], pair_ends[u + 1])
        white = whitened[squares[u] : squares[u + 1]].reshape((n, n))
        _means(firsts[pairs], seconds[pairs], white, prior_mean[pairs], shift[pairs], precision[pairs], mean[pairs])


@_jit
def precision_losses(
    item_ends: np.ndarray,
    pair_ends: np.ndarray,
    firsts: np.ndarray,
    seconds: np.ndarray,
    squares: np.ndarray,
    whitened: np.ndarray,
    precision: np.ndarray,
    out: np.ndarray,
) -> None:
    """Write H - H cov(f | factors) H of each user; see the NumPy body."""
    for u in numba.prange(len(item_ends) - 1):
        n, pairs = item_ends[u + 1] - item_ends[u], slice(pair_ends[u], pair_ends[u + 1])
        entries = slice(squares[u], squares[u + 1])
        matrix, through = out[entries].reshape((n, n)), np.zeros((n, n))
        # H - through through^T, with through = H W^T and H = D^T diag(p) D.
        _add_weighted(firsts[pairs], seconds[pairs], precision[pairs], whitened[entries].reshape((n, n)), through)
        matrix[:] = 0.0
        for k in range(pair_ends[u], pair_ends[u + 1]):
            i, j, p = firsts[k], seconds[k], precision[k]
            matrix[i, i] += p
            matrix[j, j] += p
            matrix[i, j] -= p
            matrix[j, i] -= p
        for r in range(n):
            for c in range(r + 1):
                value = _dot(through[r], through[c], n)
                matrix[r, c] -= value
                if c < r:
                    matrix[c, r] -= value


@jit()
def add_losses(
    item_ends: np.ndarray, items: np.ndarray, losses: np.ndarray, weights: np.ndarray, total: np.ndarray
) -> None:
    """Add Q - w w^T of each user; see the NumPy body. Users take turns on one thread, as they share items."""
    entry = 0
    for u in range(len(item_ends) - 1):
        for r in range(item_ends[u], item_ends[u + 1]):
            row = total[items[r]]
            for c in range(item_ends[u], item_ends[u + 1]):
                row[items[c]] += losses[entry] - weights[r] * weights[c]
                entry += 1


@_jit_part
def _square_ends(item_ends: np.ndarray) -> np.ndarray:
    """Return the ends of the users' n x n matrices, (U + 1,)."""
    ends = np.zeros(len(item_ends), dtype=np.int64)
    for u in range(len(item_ends) - 1):
        ends[u + 1] = ends[u] + (item_ends[u + 1] - item_ends[u]) ** 2
    return ends


@register_funcify_and_cache_key(PriorFactors)
def numba_prior_factors(op: PriorFactors, node: Apply, **kwargs: object) -> tuple[Callable[..., Any], str]:
    """Return the Numba body of `PriorFactors` and the key of its cache."""

    @numba_njit
    def run(item_ends: Any, items: Any, pair_ends: Any, firsts: Any, seconds: Any, v: Any, k: Any, scale: Any) -> Any:
        squares = _square_ends(item_ends)
        out, failed = np.empty(squares[-1]), np.zeros(len(item_ends) - 1, dtype=np.bool_)
        prior_factors(item_ends, items, squares, v, k, scale.item(), out, failed)
        first = np.argmax(failed) if failed.any() else -1
        return out, np.array(first, dtype=np.int64)

    return run, op.numba_cache_key(__file__)


@register_funcify_and_cache_key(DifferenceMoments)
def numba_difference_moments(op: DifferenceMoments, node: Apply, **kwargs: object) -> tuple[Callable[..., Any], str]:
    """Return the Numba body of `DifferenceMoments` and the key of its cache."""

    @numba_njit
    def run(item_ends: Any, items: Any, pair_ends: Any, firsts: Any, seconds: Any, lower: Any, *of_pairs: Any) -> Any:
        mean, variance = np.zeros(len(firsts)), np.zeros(len(firsts))
        log_det, whitened = np.zeros(len(item_ends) - 1), np.zeros(len(lower))
        given = item_ends, pair_ends, firsts, seconds, _square_ends(item_ends), lower
        difference_moments(*given, *of_pairs, mean, variance, log_det, whitened)
        return mean, variance, log_det, whitened

    return run, op.numba_cache_key(__file__)


@register_funcify_and_cache_key(DifferenceMeans)
def numba_difference_means(op: DifferenceMeans, node: Apply, **kwargs: object) -> tuple[Callable[..., Any], str]:
    """Return the Numba body of `DifferenceMeans` and the key of its cache."""

    @numba_njit
    def run(item_ends: Any, items: Any, pair_ends: Any, firsts: Any, seconds: Any, *arrays: Any) -> Any:
        mean = np.zeros(len(firsts))
        difference_means(item_ends, pair_ends, firsts, seconds, _square_ends(item_ends), *arrays, mean)
        return mean

    return run, op.numba_cache_key(__file__)


@register_funcify_and_cache_key(PrecisionLosses)
def numba_precision_losses(op: PrecisionLosses, node: Apply, **kwargs: object) -> tuple[Callable[..., Any], str]:
    """Return the Numba body of `PrecisionLosses` and the key of its cache."""

    @numba_njit
    def run(item_ends: Any, items: Any, pair_ends: Any, firsts: Any, seconds: Any, white: Any, precision: Any) -> Any:
        out = np.empty(len(white))
        precision_losses(item_ends, pair_ends, firsts, seconds, _square_ends(item_ends), white, precision, out)
        return out

    return run, op.numba_cache_key(__file__)
