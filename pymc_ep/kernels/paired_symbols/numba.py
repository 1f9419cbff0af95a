"""Numba bodies of the row updates of the paired-symbol model: own symbols in parallel, nothing stored for a cell."""

import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
import numpy as np
from pytensor.graph.basic import Apply
from pytensor.link.numba.dispatch.basic import numba_njit, register_funcify_and_cache_key

from pymc_ep.kernels.paired_symbols.body import SERIES
from pymc_ep.kernels.paired_symbols.op import PairSums, UpdateRows

__all__ = ["pair_sums", "update_rows"]

# Sums may be reordered, for vector instructions; NaN and infinity keep their meaning.
_FAST = {"reassoc", "contract", "arcp", "nsz"}
_jit = numba.njit(parallel=True, cache=True, fastmath=_FAST)
_jit_part = numba.njit(cache=True, fastmath=_FAST, inline="always")


@_jit_part
def _moments(
    m: np.ndarray, a: np.ndarray, n: np.ndarray, b: np.ndarray, biases: float, bias_variances: float
) -> tuple[float, float]:
    """Return E a and E a^2 of a cell."""
    mean, spread = 0.0, 0.0
    for k in range(len(m)):
        mean += m[k] * n[k]
        spread += a[k] * (n[k] * n[k] + b[k]) + b[k] * m[k] * m[k]
    mean += biases
    return mean, mean * mean + spread + bias_variances


@_jit_part
def _curvature(xi: float) -> float:
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
    """Write the sums of each own symbol, (I, 4); see the NumPy body."""
    for i in numba.prange(len(ends) - 1):
        own_mean, own_variance = m[i], a[i]
        observed, height, square, weight = 0.0, 0.0, 0.0, 0.0
        for c in range(ends[i], ends[i + 1]):
            j = others[c]
            mean, second = _moments(
                own_mean, own_variance, n[j], b[j], bias[i] + other_bias[j], bias_variance[i] + other_bias_variance[j]
            )
            xi = np.sqrt(second)
            h = -np.log1p(np.exp(-xi)) - 0.5 * xi
            observed += counts[c] * (h + 0.5 * mean)
            height += t[j] * h
            square += t[j] * second
            weight += t[j]
        out[i, 0], out[i, 1], out[i, 2], out[i, 3] = observed, height, square, weight


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
    """Write the updated own symbols; see the NumPy body."""
    width = m.shape[1]
    for i in numba.prange(len(ends) - 1):
        own_mean, own_variance = m[i], a[i]
        precision, shift, slope = np.empty((width, width)), np.empty(width), np.empty(width)
        censored = n_censored * s[i]
        scale = 2.0 * lam * censored
        along = 0.0
        for k in range(width):
            along += own_mean[k] * of_mean[k]
            shift[k] = -censored * (0.5 * of_mean[k] + 2.0 * lam * of_mean_bias[k])
            slope[k] = scale * of_mean[k]
            for d in range(k + 1):
                precision[k, d] = scale * outer[k, d]
        rho, pull = scale, -censored * (0.5 + 2.0 * lam * (of_bias + along))
        for c in range(ends[i], ends[i + 1]):
            j = others[c]
            v, b_j = n[j], b[j]
            mean, second = _moments(
                own_mean, own_variance, v, b_j, bias[i] + other_bias[j], bias_variance[i] + other_bias_variance[j]
            )
            lam_ij = _curvature(np.sqrt(second))
            w = 2.0 * (counts[c] * lam_ij + censored * t[j] * (lam_ij - lam))
            half = 0.5 * counts[c]
            rho += w
            pull += half - w * (mean - bias[i])
            by = half - w * other_bias[j]
            for k in range(width):
                shift[k] += by * v[k]
                slope[k] += w * v[k]
                w_k, row = w * v[k], precision[k]
                for d in range(k + 1):
                    row[d] += w_k * v[d]
                row[k] += w * b_j[k]
        if np.isinf(prior_bias_precision[i]):
            new_bias[i], new_bias_variance[i] = prior_bias[i], 0.0
        else:
            rho += prior_bias_precision[i]
            new_bias[i] = (pull + prior_bias_precision[i] * prior_bias[i]) / rho
            new_bias_variance[i] = 1.0 / rho
        for k in range(width):
            precision[k, k] += prior_precision[i, k]
            shift[k] += prior_precision[i, k] * prior_mean[i, k] - slope[k] * new_bias[i]
            new_variance[i, k] = 1.0 / precision[k, k]
        if sequential:
            _relax(precision, shift, own_mean, new_mean[i])
        else:
            _solve(precision, shift, new_mean[i])


@_jit_part
def _relax(precision: np.ndarray, shift: np.ndarray, before: np.ndarray, out: np.ndarray) -> None:
    """Write one round of coordinate ascent from `before`."""
    for k in range(len(shift)):
        out[k] = before[k]
    for k in range(len(shift)):
        total = shift[k]
        for d in range(k):
            total -= precision[k, d] * out[d]
        for d in range(k + 1, len(shift)):
            total -= precision[d, k] * out[d]
        out[k] = total / precision[k, k]


@_jit_part
def _solve(precision: np.ndarray, shift: np.ndarray, out: np.ndarray) -> None:
    """Write the solution of a positive definite system, whose lower triangle becomes its Cholesky factor."""
    width = len(shift)
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
        x = shift[k] * precision[k, k]
        out[k] = x
        for d in range(k):
            shift[d] -= precision[k, d] * x


@register_funcify_and_cache_key(PairSums)
def numba_pair_sums(op: PairSums, node: Apply, **kwargs: object) -> tuple[Callable[..., Any], str]:
    """Return the Numba body of `PairSums` and the key of its cache."""

    @numba_njit
    def run(
        ends: np.ndarray,
        others: np.ndarray,
        counts: np.ndarray,
        m: np.ndarray,
        a: np.ndarray,
        c: np.ndarray,
        d: np.ndarray,
        n: np.ndarray,
        b: np.ndarray,
        e: np.ndarray,
        f: np.ndarray,
        t: np.ndarray,
    ) -> Any:
        out = np.empty((len(ends) - 1, 4))
        pair_sums(ends, others, counts, m, a, c, d, n, b, e, f, t, out)
        return out

    return run, _cache_key(op)


@register_funcify_and_cache_key(UpdateRows)
def numba_update_rows(op: UpdateRows, node: Apply, **kwargs: object) -> tuple[Callable[..., Any], str]:
    """Return the Numba body of `UpdateRows` and the key of its cache."""
    sequential = op.sequential

    @numba_njit
    def run(
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
        of_bias: np.ndarray,
        number: np.ndarray,
        xi: np.ndarray,
    ) -> Any:
        new_mean, new_variance = np.empty(m.shape), np.empty(m.shape)
        new_bias, new_bias_variance = np.empty(len(bias)), np.empty(len(bias))
        update_rows(
            ends,
            others,
            counts,
            m,
            a,
            bias,
            bias_variance,
            n,
            b,
            other_bias,
            other_bias_variance,
            prior_mean,
            prior_precision,
            prior_bias,
            prior_bias_precision,
            s,
            t,
            outer,
            of_mean,
            of_mean_bias,
            of_bias.item(),
            number.item(),
            _curvature(xi.item()),
            sequential,
            new_mean,
            new_variance,
            new_bias,
            new_bias_variance,
        )
        return new_mean, new_variance, new_bias, new_bias_variance

    return run, _cache_key(op)


def _cache_key(op: PairSums | UpdateRows) -> str:
    """Return a key computed from the text of this file, so that no edit can use an old binary."""
    options = "_".join(str(getattr(op, name)) for name in op.__props__)
    return f"{type(op).__name__}_{options}_{zlib.crc32(Path(__file__).read_bytes())}"
