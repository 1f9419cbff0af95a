"""JAX body of `truncated_normal`; body.py has the derivation."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from pytensor.link.jax.dispatch import jax_funcify

from pymc_ep.kernels.truncated_normal.body import (
    HALF_LOG_TWO_PI,
    INV_SQRT_TWO_PI,
    SCALE,
    SCALED_MEAN,
    SCALED_VARIANCE,
)
from pymc_ep.kernels.truncated_normal.op import TruncatedNormal
from pymc_ep.numerics.backend.namespace_jax import require_float64

__all__ = ["truncated_normal"]


def gaussian(k: jax.Array) -> jax.Array:
    """Return exp(-k^2 / 2), zero for |k| > 40, with k^2 split into an exact part and a small one."""
    near = jnp.abs(k) <= 40.0
    k = jnp.where(near, k, 0.0)
    # k^2 = high^2 + (k - high) (k + high), where high^2 is exact: high = j / 16 with |j| <= 640.
    high = jnp.floor(16.0 * k) / 16.0
    return jnp.where(near, jnp.exp(-0.5 * high * high) * jnp.exp(-0.5 * (k - high) * (k + high)), 0.0)


def truncated_normal(k: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Return log mass, hazard, mean and variance, each of the shape of k; JAX can trace this function."""
    k = jnp.asarray(k, dtype=jnp.float64)
    valid = jnp.isfinite(k)
    k = jnp.where(valid, k, 0.0)
    size = jnp.abs(k)
    t = (size - SCALE) / (size + SCALE)
    # (1 + |k|) r(|k|) and (1 + |k|)^2 V(|k|) by Horner's scheme.
    mean = jnp.zeros_like(t)
    variance = jnp.zeros_like(t)
    for mean_term, variance_term in zip(SCALED_MEAN.tolist(), SCALED_VARIANCE.tolist(), strict=True):
        mean = mean * t + mean_term
        variance = variance * t + variance_term
    mean = mean / (1.0 + size)
    variance = variance / ((1.0 + size) * (1.0 + size))
    # tail = Phi(-|k|) = phi(k) / h(|k|), with h(|k|) = |k| + r(|k|).
    density = INV_SQRT_TWO_PI * gaussian(k)
    tail = density / (size + mean)

    # Both branches are evaluated for all k. For k >= 0 the tail is at most 1/2 too, so both are finite.
    upper = k >= 0.0
    hazard = jnp.where(upper, k + mean, density / (1.0 - tail))
    log_mass = jnp.where(upper, -0.5 * k * k - HALF_LOG_TWO_PI - jnp.log(size + mean), jnp.log1p(-tail))
    mean = jnp.where(upper, mean, hazard + size)
    variance = jnp.where(upper, variance, 1.0 - hazard * mean)
    return tuple(jnp.where(valid, value, jnp.nan) for value in (log_mass, hazard, mean, variance))


@jax_funcify.register(TruncatedNormal)
def jax_funcify_truncated_normal(op: TruncatedNormal, **kwargs: object) -> Callable[..., tuple[jax.Array, ...]]:
    require_float64()
    return truncated_normal
