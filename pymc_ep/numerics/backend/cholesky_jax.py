"""Dense factorisations under JAX; the counterparts of the LAPACK calls in `pymc_ep.numerics.backend.cholesky`."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import jax.scipy.linalg as jsl

__all__ = ["cholesky_jax", "inverse_factor_jax", "solve_right_jax", "where_any_jax"]


def inverse_factor_jax(matrix: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """See `pymc_ep.numerics.backend.cholesky.inverse_factor`."""
    factor = jnp.linalg.cholesky(matrix)
    inverse = jsl.solve_triangular(factor, jnp.eye(matrix.shape[0]), lower=True)
    # JAX fills the factor of an indefinite matrix with NaN: its last pivot tells.
    return inverse, 2.0 * jnp.log(jnp.diagonal(factor)).sum(), jnp.isfinite(factor[-1, -1])


def cholesky_jax(matrix: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the lower Cholesky factor, and whether there is one; if not, the identity takes its place."""
    factor = jnp.linalg.cholesky(matrix)
    proper = jnp.isfinite(factor[-1, -1])
    return jnp.where(proper, factor, jnp.eye(matrix.shape[0])), proper


def solve_right_jax(matrix: jax.Array, factor: jax.Array) -> jax.Array:
    """Return matrix @ inv(factor).T for a lower triangular factor."""
    return jsl.solve_triangular(factor, matrix.T, lower=True).T


def where_any_jax(mask: jax.Array, values: Callable[[], jax.Array], otherwise: jax.Array) -> jax.Array:
    """Return ``where(mask, values(), otherwise)``, and call `values` only if any element of the mask holds."""
    return jax.lax.cond(mask.any(), lambda: jnp.where(mask, values(), otherwise), lambda: otherwise)
