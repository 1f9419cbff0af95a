"""JAX bodies of the moments of inner products; body.py and full_body.py have the formulas.

Pairs are processed in chunks: no array has the size pairs times columns.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from pytensor.link.jax.dispatch import jax_funcify

from pymc_ep.models.bilinear.kernel.op import ProductDerivatives, ProductMoments
from pymc_ep.numerics.backend.namespace_jax import require_float64

__all__ = ["product_derivatives", "product_moments"]

_NUMBERS = 2**18
"""Largest number of entries in the rows of a chunk of pairs, or in their covariances: 2 MiB, which fits in a cache. On
a processor, chunks sixteen times as large take twice the time."""
_LEAST = 64
"""Least number of rows and of pairs to which arrays are padded: JAX compiles for each size, for half a second."""

Row = tuple[jax.Array, ...]
"""Moments of one pair of rows: m and a, or L, of the own row, n and b of the other row."""


def _log_mean_exp(m: jax.Array, a: jax.Array, n: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array]:
    r = 1.0 - a * b
    terms = (m * n + 0.5 * (a * n**2 + b * m**2)) / r - 0.5 * jnp.log(r)
    return m @ n, jnp.where((r > 0.0).all(), terms.sum(), jnp.inf)


def _log_mean_exp_slopes(m: jax.Array, a: jax.Array, n: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array]:
    r = 1.0 - a * b
    g = (n + b * m) / r
    # d log E e^f / dm = g, d log E e^f / da = (b / r + g^2) / 2.
    return g, 0.5 * (b / r + g**2)


def _variance(m: jax.Array, a: jax.Array, n: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array]:
    return m @ n, (a * (n**2 + b) + b * m**2).sum()


def _variance_slopes(m: jax.Array, a: jax.Array, n: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array]:
    return 2.0 * b * m, n**2 + b


def _weighted(m: jax.Array, L: jax.Array, n: jax.Array, b: jax.Array) -> tuple[jax.Array, ...]:
    """Return n + B m, L^T B, the Cholesky factor C of M, NaN where there is none, and C^{-1} w."""
    tilted, across = n + b @ m, L.T @ b
    root = jnp.linalg.cholesky(jnp.eye(len(m)) - across @ L)
    return tilted, across, root, jax.scipy.linalg.solve_triangular(root, L.T @ tilted, lower=True)


def _full_log_mean_exp(m: jax.Array, L: jax.Array, n: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array]:
    tilted, _, root, x = _weighted(m, L, n, b)
    # w^T M^-1 w = |x|^2, log|M| = 2 sum_k log C_kk.
    log_mean = m @ n + 0.5 * (m @ (tilted - n) + x @ x) - jnp.log(jnp.diagonal(root)).sum()
    return m @ n, jnp.where(jnp.isfinite(root).all(), log_mean, jnp.inf)


def _full_log_mean_exp_slopes(m: jax.Array, L: jax.Array, n: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array]:
    tilted, across, root, x = _weighted(m, L, n, b)
    # z = C^-1 L^T B: h = n + B m + z^T x, H = B + z^T z.
    z = jax.scipy.linalg.solve_triangular(root, across, lower=True)
    h = tilted + x @ z
    return h, 0.5 * (b + z.T @ z + jnp.outer(h, h))


def _full_variance(m: jax.Array, L: jax.Array, n: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array]:
    along = n @ L
    # Var f = |L^T n|^2 + m^T B m + tr(L^T B L).
    return m @ n, along @ along + m @ b @ m + ((b @ L) * L).sum()


def _full_variance_slopes(m: jax.Array, L: jax.Array, n: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array]:
    return 2.0 * b @ m, jnp.outer(n, n) + b


_MOMENTS: dict[tuple[str, bool], Callable[..., Any]] = {
    ("log_mean_exp", False): _log_mean_exp,
    ("log_mean_exp", True): _full_log_mean_exp,
    ("variance", False): _variance,
    ("variance", True): _full_variance,
}
"""Functions from the moments of one pair of rows to E f and a statistic of f, by name of the statistic and by whether
rows have covariances."""
_SLOPES: dict[tuple[str, bool], Callable[..., Any]] = {
    ("log_mean_exp", False): _log_mean_exp_slopes,
    ("log_mean_exp", True): _full_log_mean_exp_slopes,
    ("variance", False): _variance_slopes,
    ("variance", True): _full_variance_slopes,
}
"""Functions that return the derivatives of the statistic of one pair in m, and in a or the covariance, by the same
keys; the derivative of E f in m is n."""


def _owners(ends: jax.Array, n_pairs: int) -> jax.Array:
    """Return the own row of each pair; for pairs that are padding, the number of own rows."""
    return jnp.searchsorted(ends, jnp.arange(n_pairs), side="right") - 1


def _chunks(owners: jax.Array, others: jax.Array, spread: jax.Array, *weights: jax.Array) -> tuple[jax.Array, ...]:
    """Return owners, others and weights as (chunks, pairs of a chunk); pairs that pad the last have no own row."""
    size = max(1, min(len(others), _NUMBERS // max(1, int(np.prod(spread.shape[1:])))))
    missing = -len(others) % size
    filled = (
        jnp.pad(owners, (0, missing), constant_values=len(spread)),
        *(jnp.pad(array, (0, missing)) for array in (others, *weights)),
    )
    return tuple(array.reshape(-1, size) for array in filled)


@partial(jax.jit, static_argnames=("key",))
def product_moments(
    key: tuple[str, bool], ends: jax.Array, others: jax.Array, *rows: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Return both moments of each pair, (n,) each; `key` is a key of `_MOMENTS`, `rows` are m, a, n, b."""
    m, a, n, b = rows
    moments = jax.vmap(_MOMENTS[key])
    chunks = _chunks(_owners(ends, len(others)), others, a)
    statistics = jax.lax.map(lambda ij: moments(m[ij[0]], a[ij[0]], n[ij[1]], b[ij[1]]), chunks)
    return statistics[0].ravel()[: len(others)], statistics[1].ravel()[: len(others)]


@partial(jax.jit, static_argnames=("key",))
def product_derivatives(
    key: tuple[str, bool], ends: jax.Array, others: jax.Array, *rows_and_weights: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Return weighted sums over pairs of derivatives in m, and in a or covariances; the last two arguments are weights.

    The weights, (n,) each, are for E f and for the statistic; `key` is a key of `_SLOPES`.
    """
    m, a, n, b, first, second = rows_and_weights
    slopes = jax.vmap(_SLOPES[key])

    def added(total: tuple[jax.Array, jax.Array], chunk: tuple[jax.Array, ...]) -> tuple[tuple[jax.Array, ...], None]:
        i, j, weight, weight_second = chunk
        of_mean, of_spread = slopes(m[i], a[i], n[j], b[j])
        # Chunks are filled up with pairs of weight zero, of which some have no derivative.
        some = weight_second != 0.0
        in_mean = weight[:, None] * n[j] + jnp.where(some[:, None], weight_second[:, None] * of_mean, 0.0)
        wide = weight_second.reshape(-1, *(1,) * (of_spread.ndim - 1))
        in_spread = jnp.where(wide != 0.0, wide * of_spread, 0.0)
        terms = zip(total, (in_mean, in_spread), strict=True)
        return tuple(whole.at[i].add(term, mode="drop") for whole, term in terms), None

    chunks = _chunks(_owners(ends, len(others)), others, a, first, second)
    return jax.lax.scan(added, (jnp.zeros_like(m), jnp.zeros_like(a)), chunks)[0]


def on_host(op: ProductMoments | ProductDerivatives, *inputs: np.ndarray) -> list[np.ndarray]:
    """Return the outputs of an Op, computed with rows and pairs padded to powers of two."""
    require_float64()
    ends, others, m, a, n, b, *weights = inputs
    rows, pairs = (_power_of_two(size) for size in (len(m), len(others)))
    owned = np.pad(ends, (0, rows - len(m)), mode="edge")
    filled = [_filled(array, pairs) for array in (others, *weights)]
    moved = _filled(m, rows), _filled(a, rows), _filled(n, _power_of_two(len(n))), _filled(b, _power_of_two(len(b)))
    outputs = _FUNCTIONS[type(op)]((op.statistic, op.full), owned, filled[0], *moved, *filled[1:])
    kept = len(m) if weights else len(others)
    return [np.asarray(array)[:kept] for array in outputs]


def _power_of_two(size: int) -> int:
    """Return the least power of two that is at least `size` and `_LEAST`."""
    return max(_LEAST, 1 << (size - 1).bit_length())


def _filled(values: np.ndarray, size: int) -> np.ndarray:
    """Return values padded with zeros to the length `size`."""
    return np.pad(values, [(0, size - len(values))] + [(0, 0)] * (values.ndim - 1))


_FUNCTIONS: dict[type, Callable[..., Any]] = {ProductMoments: product_moments, ProductDerivatives: product_derivatives}


@jax_funcify.register(ProductMoments)
@jax_funcify.register(ProductDerivatives)
def jax_of_rows(op: ProductMoments | ProductDerivatives, **kwargs: object) -> Callable[..., Any]:
    """Return the JAX body of an Op."""
    require_float64()
    return partial(_FUNCTIONS[type(op)], (op.statistic, op.full))
