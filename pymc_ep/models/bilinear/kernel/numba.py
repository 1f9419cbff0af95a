"""Numba bodies of the moments of inner products, parallel over own rows; body.py and full_body.py have the formulas."""

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from pytensor.graph.basic import Apply
from pytensor.link.numba.dispatch.basic import numba_njit, register_funcify_and_cache_key

from pymc_ep.jit_numba import jit
from pymc_ep.models.bilinear.kernel.op import ProductDerivatives, ProductMoments

__all__ = [
    "full_log_mean_exp",
    "full_log_mean_exp_pullback",
    "full_variance",
    "full_variance_pullback",
    "log_mean_exp",
    "log_mean_exp_pullback",
    "variance",
    "variance_pullback",
]

_BLOCK = 16
"""Number of columns whose r_d are multiplied before each logarithm: with r_d = 1e-16 the product, 1e-256, does not
underflow."""
_LEAST_PRODUCT = 1e-280
"""Least product of the r_d of all columns for which one logarithm is used; a smaller one may have underflown."""
# Sums may be reordered for vector instructions; NaN and infinity are respected.
_FAST = {"reassoc", "contract", "arcp", "nsz"}
_jit = jit(parallel=True, fastmath=_FAST)
_jit_part = jit(fastmath=_FAST)


@_jit_part
def _log_product(own_variance: np.ndarray, other_variance: np.ndarray) -> float:
    """Return sum_d log r_d for one pair of rows, also where the product of all r_d would underflow."""
    logs = 0.0
    for begin in range(0, len(own_variance), _BLOCK):
        product = 1.0
        for d in range(begin, min(begin + _BLOCK, len(own_variance))):
            product *= 1.0 - own_variance[d] * other_variance[d]
        logs += np.log(product)
    return logs


@_jit
def log_mean_exp(
    ends: np.ndarray,
    others: np.ndarray,
    m: np.ndarray,
    a: np.ndarray,
    n: np.ndarray,
    b: np.ndarray,
    out: np.ndarray,
    log_out: np.ndarray,
) -> None:
    """Write E f and log E e^f of all pairs to `out` and `log_out`, (n,) each."""
    width = m.shape[1]
    for i in numba.prange(len(ends) - 1):
        # Views of rows: indexing matrices in the inner loop takes a third longer.
        own_mean, own_variance = m[i], a[i]
        for c in range(ends[i], ends[i + 1]):
            other_mean, other_variance = n[others[c]], b[others[c]]
            total, terms, improper, product = 0.0, 0.0, 0.0, 1.0
            for d in range(width):
                r = 1.0 - own_variance[d] * other_variance[d]
                # Counted, since the minimum of r would prevent vector instructions.
                improper += 0.0 if r > 0.0 else 1.0
                product *= r
                both = own_mean[d] * other_mean[d]
                total += both
                squares = own_variance[d] * other_mean[d] ** 2 + other_variance[d] * own_mean[d] ** 2
                terms += (both + 0.5 * squares) / r
            out[c] = total
            if improper > 0.0:
                log_out[c] = np.inf
            elif product > _LEAST_PRODUCT:
                # sum_d log r_d by one logarithm.
                log_out[c] = terms - 0.5 * np.log(product)
            else:
                log_out[c] = terms - 0.5 * _log_product(own_variance, other_variance)


@_jit
def log_mean_exp_pullback(
    ends: np.ndarray,
    others: np.ndarray,
    m: np.ndarray,
    a: np.ndarray,
    n: np.ndarray,
    b: np.ndarray,
    weight: np.ndarray,
    weight_log: np.ndarray,
    of_mean: np.ndarray,
    of_variance: np.ndarray,
) -> None:
    """Write derivatives in own rows' moments to `of_mean` and `of_variance`, (I, K) each; weights are (n,)."""
    width = m.shape[1]
    for i in numba.prange(len(ends) - 1):
        for d in range(width):
            of_mean[i, d] = 0.0
            of_variance[i, d] = 0.0
        for c in range(ends[i], ends[i + 1]):
            j, w, v = others[c], weight[c], weight_log[c]
            for d in range(width):
                r = 1.0 - a[i, d] * b[j, d]
                # d log E e^f / dm = g, d log E e^f / da = (b / r + g^2) / 2.
                g = (n[j, d] + b[j, d] * m[i, d]) / r
                of_mean[i, d] += w * n[j, d] + v * g
                of_variance[i, d] += 0.5 * v * (b[j, d] / r + g * g)


@_jit
def variance(
    ends: np.ndarray,
    others: np.ndarray,
    m: np.ndarray,
    a: np.ndarray,
    n: np.ndarray,
    b: np.ndarray,
    out: np.ndarray,
    spread: np.ndarray,
) -> None:
    """Write E f and Var f of all pairs to `out` and `spread`, (n,) each."""
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
    ends: np.ndarray,
    others: np.ndarray,
    m: np.ndarray,
    a: np.ndarray,
    n: np.ndarray,
    b: np.ndarray,
    weight: np.ndarray,
    of_spread: np.ndarray,
    of_mean: np.ndarray,
    of_variance: np.ndarray,
) -> None:
    """Write derivatives in own rows' moments to `of_mean` and `of_variance`, (I, K) each; weights are (n,)."""
    width = m.shape[1]
    for i in numba.prange(len(ends) - 1):
        for d in range(width):
            of_mean[i, d] = 0.0
            of_variance[i, d] = 0.0
        for c in range(ends[i], ends[i + 1]):
            j, w, v = others[c], weight[c], of_spread[c]
            for d in range(width):
                # d Var f / dm = 2 b m, d Var f / da = n^2 + b.
                of_mean[i, d] += w * n[j, d] + 2.0 * v * b[j, d] * m[i, d]
                of_variance[i, d] += v * (n[j, d] ** 2 + b[j, d])


@_jit
def full_log_mean_exp(
    ends: np.ndarray,
    others: np.ndarray,
    m: np.ndarray,
    factor: np.ndarray,
    n: np.ndarray,
    b: np.ndarray,
    out: np.ndarray,
    log_out: np.ndarray,
) -> None:
    """Write E f and log E e^f of all pairs of rows with covariances to `out` and `log_out`, (n,) each."""
    width = m.shape[1]
    for i in numba.prange(len(ends) - 1):
        g, x = np.empty(width), np.empty(width)
        across, root = np.empty((width, width)), np.empty((width, width))
        for c in range(ends[i], ends[i + 1]):
            j = others[c]
            proper = _weighted(m[i], factor[i], n[j], b[j], g, across, root, x)
            total, terms = 0.0, 0.0
            for d in range(width):
                total += m[i, d] * n[j, d]
                # m^T n + (m^T B m + |x|^2) / 2 - sum_k log C_kk, x = C^-1 w, M = C C^T.
                terms += 0.5 * (m[i, d] * (g[d] - n[j, d]) + x[d] * x[d]) - np.log(root[d, d] if proper else 1.0)
            out[c] = total
            log_out[c] = total + terms if proper else np.inf


@_jit
def full_log_mean_exp_pullback(
    ends: np.ndarray,
    others: np.ndarray,
    m: np.ndarray,
    factor: np.ndarray,
    n: np.ndarray,
    b: np.ndarray,
    weight: np.ndarray,
    weight_log: np.ndarray,
    of_mean: np.ndarray,
    of_cov: np.ndarray,
) -> None:
    """Write derivatives in own rows' moments to `of_mean`, (I, K), and `of_cov`, (I, K, K); weights are (n,)."""
    width = m.shape[1]
    for i in numba.prange(len(ends) - 1):
        of_mean[i] = 0.0
        of_cov[i] = 0.0
        h, x = np.empty(width), np.empty(width)
        across, root = np.empty((width, width)), np.empty((width, width))
        for c in range(ends[i], ends[i + 1]):
            j = others[c]
            _weighted(m[i], factor[i], n[j], b[j], h, across, root, x)
            # With across = C^-1 L^T B: h = n + B m + across^T x, H = B + across^T across.
            _solve_lower(root, across)
            for k in range(width):
                for d in range(width):
                    h[d] += x[k] * across[k, d]
            # (H + h h^T) / 2, its lower triangle.
            half = 0.5 * weight_log[c]
            for d in range(width):
                of_mean[i, d] += weight[c] * n[j, d] + weight_log[c] * h[d]
                for e in range(d + 1):
                    of_cov[i, d, e] += half * (b[j, d, e] + h[d] * h[e])
            for k in range(width):
                for d in range(width):
                    by = half * across[k, d]
                    for e in range(d + 1):
                        of_cov[i, d, e] += by * across[k, e]
        _mirror(of_cov[i])


@_jit
def full_variance(
    ends: np.ndarray,
    others: np.ndarray,
    m: np.ndarray,
    factor: np.ndarray,
    n: np.ndarray,
    b: np.ndarray,
    out: np.ndarray,
    spread: np.ndarray,
) -> None:
    """Write E f and Var f of all pairs of rows with covariances to `out` and `spread`, (n,) each."""
    width = m.shape[1]
    for i in numba.prange(len(ends) - 1):
        # A = L L^T, once for all pairs of the row.
        covariance = np.zeros((width, width))
        for d in range(width):
            for e in range(width):
                for k in range(min(d, e) + 1):
                    covariance[d, e] += factor[i, d, k] * factor[i, e, k]
        for c in range(ends[i], ends[i + 1]):
            j = others[c]
            total, terms = 0.0, 0.0
            for d in range(width):
                total += m[i, d] * n[j, d]
                for e in range(width):
                    # Var f = sum_de A_de (n_d n_e + B_de) + m_d m_e B_de.
                    terms += covariance[d, e] * (n[j, d] * n[j, e] + b[j, d, e]) + m[i, d] * m[i, e] * b[j, d, e]
            out[c] = total
            spread[c] = terms


@_jit
def full_variance_pullback(
    ends: np.ndarray,
    others: np.ndarray,
    m: np.ndarray,
    factor: np.ndarray,
    n: np.ndarray,
    b: np.ndarray,
    weight: np.ndarray,
    of_spread: np.ndarray,
    of_mean: np.ndarray,
    of_cov: np.ndarray,
) -> None:
    """Write derivatives in own rows' moments to `of_mean`, (I, K), and `of_cov`, (I, K, K); weights are (n,)."""
    width = m.shape[1]
    for i in numba.prange(len(ends) - 1):
        of_mean[i] = 0.0
        of_cov[i] = 0.0
        for c in range(ends[i], ends[i + 1]):
            j, v = others[c], of_spread[c]
            for d in range(width):
                along = 0.0
                for e in range(width):
                    # d Var f / dm = 2 B m, d Var f / dA = n n^T + B.
                    along += b[j, d, e] * m[i, e]
                    of_cov[i, d, e] += v * (n[j, d] * n[j, e] + b[j, d, e])
                of_mean[i, d] += weight[c] * n[j, d] + 2.0 * v * along


@_jit_part
def _weighted(
    m: np.ndarray,
    factor: np.ndarray,
    n: np.ndarray,
    b: np.ndarray,
    g: np.ndarray,
    across: np.ndarray,
    root: np.ndarray,
    x: np.ndarray,
) -> bool:
    """Write n + B m to `g`, L^T B to `across`, C to `root` and C^{-1} w to `x`, for one pair of rows; L is `factor`.

    Here w = L^T (n + B m), and C is the Cholesky factor of M = I - L^T B L. Return False if M is not positive definite.
    """
    width = len(m)
    for d in range(width):
        total = n[d]
        for e in range(width):
            total += b[d, e] * m[e]
        g[d] = total
        x[d] = 0.0
    # w = L^T (n + B m), in x, and L^T B; L is lower triangular.
    across[:] = 0.0
    for k in range(width):
        for d in range(k + 1):
            by = factor[k, d]
            x[d] += by * g[k]
            for e in range(width):
                across[d, e] += by * b[k, e]
    for d in range(width):
        # M = I - (L^T B) L, its lower triangle.
        root[d, : d + 1] = 0.0
        root[d, d] = 1.0
        for k in range(width):
            by = across[d, k]
            for e in range(min(d, k) + 1):
                root[d, e] -= by * factor[k, e]
    for d in range(width):
        for e in range(d + 1):
            # Cholesky factor C of M in place; row d of x = C^-1 w follows as soon as row d of C is known.
            total = root[d, e]
            for k in range(e):
                total -= root[d, k] * root[e, k]
            if d > e:
                root[d, e] = total / root[e, e]
            elif total > 0.0:
                root[d, d] = np.sqrt(total)
            else:
                return False
        total = x[d]
        for k in range(d):
            total -= root[d, k] * x[k]
        x[d] = total / root[d, d]
    return True


@_jit_part
def _solve_lower(root: np.ndarray, values: np.ndarray) -> None:
    """Replace `values`, (K, K), by root^{-1} values, with `root` lower triangular."""
    width = len(root)
    for d in range(width):
        for k in range(d):
            by = root[d, k]
            for e in range(width):
                values[d, e] -= by * values[k, e]
        by = 1.0 / root[d, d]
        for e in range(width):
            values[d, e] *= by


@_jit_part
def _mirror(matrix: np.ndarray) -> None:
    """Copy the lower triangle of a matrix, (K, K), to the upper one."""
    for d in range(len(matrix)):
        for e in range(d):
            matrix[e, d] = matrix[d, e]


@register_funcify_and_cache_key(ProductMoments)
def numba_product_moments(op: ProductMoments, node: Apply, **kwargs: object) -> tuple[Callable[..., Any], str]:
    """Return the Numba body of `ProductMoments` and the key of its cache."""
    write = globals()[op.compiled_function]

    @numba_njit
    def run(ends: Any, others: Any, m: Any, a: Any, n: Any, b: Any) -> Any:
        out, second = np.empty(len(others)), np.empty(len(others))
        write(ends, others, m, a, n, b, out, second)
        return out, second

    return run, op.numba_cache_key(__file__)


@register_funcify_and_cache_key(ProductDerivatives)
def numba_product_derivatives(op: ProductDerivatives, node: Apply, **kwargs: object) -> tuple[Callable[..., Any], str]:
    """Return the Numba body of `ProductDerivatives` and the key of its cache."""
    write = globals()[op.compiled_function]

    @numba_njit
    def run(ends: Any, others: Any, m: Any, a: Any, n: Any, b: Any, first: Any, second: Any) -> Any:
        of_mean, of_spread = np.empty(m.shape), np.empty(a.shape)
        write(ends, others, m, a, n, b, first, second, of_mean, of_spread)
        return of_mean, of_spread

    return run, op.numba_cache_key(__file__)
