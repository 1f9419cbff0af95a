"""Numba bodies of the row updates of the paired-symbol model: own symbols in parallel, nothing stored for a cell.

Means and variances of factors are m and a for own symbols, n and b for other symbols. Posteriors of the own and of the
other symbol of a censored pair are s and t. The fields of the background are `outer`, `of_mean`, `of_mean_bias` and
`of_bias`.
"""

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from pytensor.graph.basic import Apply
from pytensor.link.numba.dispatch.basic import numba_njit, register_funcify_and_cache_key

from pymc_ep.jit_numba import jit
from pymc_ep.models.paired_symbols.kernel.body import SERIES
from pymc_ep.models.paired_symbols.kernel.op import PairSums, RowStatistics, SolveRows, UpdateRows

__all__ = ["FAST", "add_cells", "curvature", "finish_row", "pair_sums", "row_statistics", "solve_rows", "update_rows"]

# Sums may be reordered, for vector instructions; NaN and infinity keep their meaning.
FAST = {"reassoc", "contract", "arcp", "nsz"}
_jit = jit(parallel=True, fastmath=FAST)
_jit_part = jit(fastmath=FAST, inline="always")


@_jit_part
def _moments(
    m: np.ndarray, a: np.ndarray, n: np.ndarray, b: np.ndarray, biases: float, bias_variances: float
) -> tuple[float, float]:
    """Return E a_ij and E a_ij^2 of a cell, given sums of means and of variances of both biases."""
    mean, spread = 0.0, 0.0
    for k in range(len(m)):
        mean += m[k] * n[k]
        # Var u^T v = sum_k (Var u_k E v_k^2 + Var v_k (E u_k)^2).
        spread += a[k] * (n[k] * n[k] + b[k]) + b[k] * m[k] * m[k]
    mean += biases
    return mean, mean * mean + spread + bias_variances


@_jit_part
def curvature(xi: float) -> float:
    """Return lam(xi) = tanh(xi / 2) / (4 xi)."""
    if xi < SERIES:
        return 0.125 - xi * xi / 96.0
    # tanh(xi / 2) by one exponential.
    e = np.exp(-xi)
    return (1.0 - e) / ((1.0 + e) * 4.0 * xi)


@_jit
def pair_sums(
    ends: np.ndarray,
    others: np.ndarray,
    counts: np.ndarray,
    m: np.ndarray,
    a: np.ndarray,
    bias: np.ndarray,
    bias_variance: np.ndarray,
    n: np.ndarray,
    b: np.ndarray,
    other_bias: np.ndarray,
    other_bias_variance: np.ndarray,
    t: np.ndarray,
    out: np.ndarray,
) -> None:
    """Write sums over the cells of each own symbol to `out`, (I, 4); see the NumPy body."""
    for i in numba.prange(len(ends) - 1):
        own_mean, own_variance = m[i], a[i]
        observed, height, square, weight = 0.0, 0.0, 0.0, 0.0
        for c in range(ends[i], ends[i + 1]):
            j = others[c]
            mean, second = _moments(
                own_mean, own_variance, n[j], b[j], bias[i] + other_bias[j], bias_variance[i] + other_bias_variance[j]
            )
            xi = np.sqrt(second)
            # log sig(xi) - xi / 2, without overflow as xi >= 0.
            h = -np.log1p(np.exp(-xi)) - 0.5 * xi
            observed += counts[c] * (h + 0.5 * mean)
            height += t[j] * h
            square += t[j] * second
            weight += t[j]
        out[i, 0], out[i, 1], out[i, 2], out[i, 3] = observed, height, square, weight


@_jit_part
def add_cells(
    begin: int,
    end: int,
    others: np.ndarray,
    counts: np.ndarray,
    m: np.ndarray,
    a: np.ndarray,
    bias: float,
    bias_variance: float,
    n: np.ndarray,
    b: np.ndarray,
    other_bias: np.ndarray,
    other_bias_variance: np.ndarray,
    t: np.ndarray,
    censored: float,
    lam: float,
    precision: np.ndarray,
    shift: np.ndarray,
    slope: np.ndarray,
) -> tuple[float, float]:
    """Write sums over the cells of one own symbol to `precision`, `shift` and `slope`; return the bias's two sums.

    The cells are ``begin:end``, and `censored` is D' s_i. See `Statistics`.
    """
    width = len(m)
    for k in range(width):
        shift[k], slope[k] = 0.0, 0.0
        for d in range(k + 1):
            precision[k, d] = 0.0
    rho, pull = 0.0, 0.0
    for c in range(begin, end):
        j = others[c]
        v, b_j = n[j], b[j]
        mean, second = _moments(m, a, v, b_j, bias + other_bias[j], bias_variance + other_bias_variance[j])
        lam_ij = curvature(np.sqrt(second))
        # w_ij = 2 c_ij lam_ij + 2 D' s_i t_j (lam_ij - lam*), and `censored` is D' s_i.
        w = 2.0 * (counts[c] * lam_ij + censored * t[j] * (lam_ij - lam))
        half = 0.5 * counts[c]
        rho += w
        # mean - b_i = E (u_i^T v_j + b_j).
        pull += half - w * (mean - bias)
        by = half - w * other_bias[j]
        for k in range(width):
            shift[k] += by * v[k]
            slope[k] += w * v[k]
            # w E v v^T = w ((E v) (E v)^T + diag(Var v)), its lower triangle.
            w_k, row = w * v[k], precision[k]
            for d in range(k + 1):
                row[d] += w_k * v[d]
            row[k] += w * b_j[k]
    return rho, pull


@_jit_part
def _relax(precision: np.ndarray, shift: np.ndarray, before: np.ndarray, out: np.ndarray) -> None:
    """Write x after one round of coordinate ascent on P x = shift from `before` to `out`; `precision` is tril(P)."""
    for k in range(len(shift)):
        out[k] = before[k]
    for k in range(len(shift)):
        # x_k = (shift_k - sum_{d != k} P_kd x_d) / P_kk, by the lower triangle of P.
        total = shift[k]
        for d in range(k):
            total -= precision[k, d] * out[d]
        for d in range(k + 1, len(shift)):
            total -= precision[d, k] * out[d]
        out[k] = total / precision[k, k]


@_jit_part
def _solve(precision: np.ndarray, shift: np.ndarray, out: np.ndarray) -> None:
    """Write the solution of P x = shift to `out`; overwrite `precision`, P's lower triangle, and `shift`."""
    width = len(shift)
    # C of P = C C^T row by row, and y_k of C y = shift after row k.
    for k in range(width):
        for d in range(k):
            total = precision[k, d]
            for e in range(d):
                total -= precision[k, e] * precision[d, e]
            precision[k, d] = total * precision[d, d]
        total = precision[k, k]
        for d in range(k):
            total -= precision[k, d] * precision[k, d]
        # Reciprocals of the diagonal, so that nothing is divided twice.
        precision[k, k] = 1.0 / np.sqrt(total)
        total = shift[k]
        for d in range(k):
            total -= precision[k, d] * shift[d]
        shift[k] = total * precision[k, k]
    for k in range(width - 1, -1, -1):
        # C^T x = y, from the last row up.
        x = shift[k] * precision[k, k]
        out[k] = x
        for d in range(k):
            shift[d] -= precision[k, d] * x


@_jit_part
def finish_row(
    m: np.ndarray,
    prior_mean: np.ndarray,
    prior_precision: np.ndarray,
    prior_bias: float,
    prior_bias_precision: float,
    outer: np.ndarray,
    of_mean: np.ndarray,
    of_mean_bias: np.ndarray,
    of_bias: float,
    of_weight: float,
    censored: float,
    lam: float,
    sequential: bool,
    precision: np.ndarray,
    shift: np.ndarray,
    slope: np.ndarray,
    rho: float,
    pull: float,
    new_mean: np.ndarray,
    new_variance: np.ndarray,
) -> tuple[float, float]:
    """Write updated factors of one own symbol to `new_mean` and `new_variance`, given the sums over its cells.

    Return mean and variance of its bias.
    """
    width = len(m)
    scale, along = 2.0 * lam * censored, 0.0
    for k in range(width):
        along += m[k] * of_mean[k]
    if np.isinf(prior_bias_precision):
        bias, bias_variance = prior_bias, 0.0
    else:
        # rho = 2 D' s lam* + sum_j w_j + tau, rho E b = pull - D' s (1/2 + 2 lam* (E b_j + E u^T v_j)) + tau m0.
        rho += scale * of_weight + prior_bias_precision
        pull -= censored * (0.5 * of_weight + 2.0 * lam * (of_bias + along))
        bias, bias_variance = (pull + prior_bias_precision * prior_bias) / rho, 1.0 / rho
    # P = 2 D' s lam* outer + sum_j w_j E v_j v_j^T + diag(prior precision), and P E u = shift.
    for k in range(width):
        for d in range(k + 1):
            precision[k, d] += scale * outer[k, d]
        precision[k, k] += prior_precision[k]
        shift[k] += (
            prior_precision[k] * prior_mean[k]
            - censored * (0.5 * of_mean[k] + 2.0 * lam * of_mean_bias[k])
            - (slope[k] + scale * of_mean[k]) * bias
        )
        new_variance[k] = 1.0 / precision[k, k]
    if sequential:
        _relax(precision, shift, m, new_mean)
    else:
        _solve(precision, shift, new_mean)
    return bias, bias_variance


@_jit
def row_statistics(
    ends: np.ndarray,
    others: np.ndarray,
    counts: np.ndarray,
    m: np.ndarray,
    a: np.ndarray,
    bias: np.ndarray,
    bias_variance: np.ndarray,
    n: np.ndarray,
    b: np.ndarray,
    other_bias: np.ndarray,
    other_bias_variance: np.ndarray,
    s: np.ndarray,
    t: np.ndarray,
    n_censored: float,
    lam: float,
    precisions: np.ndarray,
    shift: np.ndarray,
    slope: np.ndarray,
    of_bias: np.ndarray,
) -> None:
    """Write the fields of `Statistics` to `precisions`, `shift`, `slope` and `of_bias`; see the NumPy body."""
    width = m.shape[1]
    for i in numba.prange(len(ends) - 1):
        precision = np.empty((width, width))
        of_bias[i, 0], of_bias[i, 1] = add_cells(
            ends[i],
            ends[i + 1],
            others,
            counts,
            m[i],
            a[i],
            bias[i],
            bias_variance[i],
            n,
            b,
            other_bias,
            other_bias_variance,
            t,
            n_censored * s[i],
            lam,
            precision,
            shift[i],
            slope[i],
        )
        place = 0
        for k in range(width):
            for d in range(k + 1):
                precisions[i, place] = precision[k, d]
                place += 1


@_jit
def solve_rows(
    precisions: np.ndarray,
    shifts: np.ndarray,
    slopes: np.ndarray,
    of_biases: np.ndarray,
    m: np.ndarray,
    prior_mean: np.ndarray,
    prior_precision: np.ndarray,
    prior_bias: np.ndarray,
    prior_bias_precision: np.ndarray,
    s: np.ndarray,
    outer: np.ndarray,
    of_mean: np.ndarray,
    of_mean_bias: np.ndarray,
    of_bias: float,
    n_censored: float,
    lam: float,
    sequential: bool,
    new_mean: np.ndarray,
    new_variance: np.ndarray,
    new_bias: np.ndarray,
    new_bias_variance: np.ndarray,
) -> None:
    """Write the updated own symbols to the last four arrays, given sums over their cells; see the NumPy body."""
    width = m.shape[1]
    for i in numba.prange(len(m)):
        precision, shift = np.empty((width, width)), shifts[i].copy()
        place = 0
        for k in range(width):
            for d in range(k + 1):
                precision[k, d] = precisions[i, place]
                place += 1
        new_bias[i], new_bias_variance[i] = finish_row(
            m[i],
            prior_mean[i],
            prior_precision[i],
            prior_bias[i],
            prior_bias_precision[i],
            outer,
            of_mean,
            of_mean_bias,
            of_bias,
            1.0,
            n_censored * s[i],
            lam,
            sequential,
            precision,
            shift,
            slopes[i],
            of_biases[i, 0],
            of_biases[i, 1],
            new_mean[i],
            new_variance[i],
        )


@_jit
def update_rows(
    ends: np.ndarray,
    others: np.ndarray,
    counts: np.ndarray,
    m: np.ndarray,
    a: np.ndarray,
    bias: np.ndarray,
    bias_variance: np.ndarray,
    n: np.ndarray,
    b: np.ndarray,
    other_bias: np.ndarray,
    other_bias_variance: np.ndarray,
    prior_mean: np.ndarray,
    prior_precision: np.ndarray,
    prior_bias: np.ndarray,
    prior_bias_precision: np.ndarray,
    s: np.ndarray,
    t: np.ndarray,
    outer: np.ndarray,
    of_mean: np.ndarray,
    of_mean_bias: np.ndarray,
    of_bias: float,
    n_censored: float,
    lam: float,
    sequential: bool,
    new_mean: np.ndarray,
    new_variance: np.ndarray,
    new_bias: np.ndarray,
    new_bias_variance: np.ndarray,
) -> None:
    """Write the updated own symbols to the last four arrays; see the NumPy body."""
    width = m.shape[1]
    for i in numba.prange(len(ends) - 1):
        precision, shift, slope = np.empty((width, width)), np.empty(width), np.empty(width)
        censored = n_censored * s[i]
        rho, pull = add_cells(
            ends[i],
            ends[i + 1],
            others,
            counts,
            m[i],
            a[i],
            bias[i],
            bias_variance[i],
            n,
            b,
            other_bias,
            other_bias_variance,
            t,
            censored,
            lam,
            precision,
            shift,
            slope,
        )
        new_bias[i], new_bias_variance[i] = finish_row(
            m[i],
            prior_mean[i],
            prior_precision[i],
            prior_bias[i],
            prior_bias_precision[i],
            outer,
            of_mean,
            of_mean_bias,
            of_bias,
            1.0,
            censored,
            lam,
            sequential,
            precision,
            shift,
            slope,
            rho,
            pull,
            new_mean[i],
            new_variance[i],
        )


@register_funcify_and_cache_key(PairSums)
def numba_pair_sums(op: PairSums, node: Apply, **kwargs: object) -> tuple[Callable[..., Any], str]:
    """Return the Numba body of `PairSums` and the key of its cache."""

    @numba_njit
    def run(*inputs: Any) -> Any:
        out = np.empty((len(inputs[0]) - 1, 4))
        pair_sums(*inputs, out)
        return out

    return run, op.numba_cache_key(__file__)


@register_funcify_and_cache_key(RowStatistics)
def numba_row_statistics(op: RowStatistics, node: Apply, **kwargs: object) -> tuple[Callable[..., Any], str]:
    """Return the Numba body of `RowStatistics` and the key of its cache."""

    @numba_njit
    def run(*inputs: Any) -> Any:
        n_own, width = inputs[3].shape
        precision, shift = np.empty((n_own, width * (width + 1) // 2)), np.empty((n_own, width))
        slope, of_bias = np.empty((n_own, width)), np.empty((n_own, 2))
        lam = curvature(inputs[14].item())
        row_statistics(*inputs[:13], inputs[13].item(), lam, precision, shift, slope, of_bias)
        return precision, shift, slope, of_bias

    return run, op.numba_cache_key(__file__)


@register_funcify_and_cache_key(SolveRows)
def numba_solve_rows(op: SolveRows, node: Apply, **kwargs: object) -> tuple[Callable[..., Any], str]:
    """Return the Numba body of `SolveRows` and the key of its cache."""
    sequential = op.sequential

    @numba_njit
    def run(*inputs: Any) -> Any:
        mean, variance = np.empty(inputs[4].shape), np.empty(inputs[4].shape)
        bias, bias_variance = np.empty(len(mean)), np.empty(len(mean))
        numbers = inputs[13].item(), inputs[14].item(), curvature(inputs[15].item())
        solve_rows(*inputs[:13], *numbers, sequential, mean, variance, bias, bias_variance)
        return mean, variance, bias, bias_variance

    return run, op.numba_cache_key(__file__)


@register_funcify_and_cache_key(UpdateRows)
def numba_update_rows(op: UpdateRows, node: Apply, **kwargs: object) -> tuple[Callable[..., Any], str]:
    """Return the Numba body of `UpdateRows` and the key of its cache."""
    sequential = op.sequential

    @numba_njit
    def run(*inputs: Any) -> Any:
        mean, variance = np.empty(inputs[3].shape), np.empty(inputs[3].shape)
        bias, bias_variance = np.empty(len(mean)), np.empty(len(mean))
        numbers = inputs[20].item(), inputs[21].item(), curvature(inputs[22].item())
        update_rows(*inputs[:20], *numbers, sequential, mean, variance, bias, bias_variance)
        return mean, variance, bias, bias_variance

    return run, op.numba_cache_key(__file__)
