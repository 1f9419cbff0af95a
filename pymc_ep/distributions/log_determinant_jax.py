"""Log determinant of a sparse precision under JAX: a callback to the host, which also computes the gradient."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from pytensor.link.jax.dispatch import jax_funcify

from pymc_ep.distributions.log_determinant import LogDeterminant


@jax_funcify.register(LogDeterminant)
def jax_log_determinant(op: LogDeterminant, **kwargs: object) -> Callable[[jax.Array], tuple[jax.Array, jax.Array]]:
    """Return a function from coefficients, (K,), to log determinant and gradient, (K,), which JAX can map over chains.

    JAX itself cannot differentiate it: the gradient is an output, which PyTensor's graph uses.
    """

    def host(coefficients: jax.Array) -> tuple[np.ndarray, np.ndarray]:
        log_det, gradient = op.matrices.log_determinant(np.asarray(coefficients))
        return np.asarray(log_det), gradient

    def log_determinant(coefficients: jax.Array) -> tuple[jax.Array, jax.Array]:
        shapes = jax.ShapeDtypeStruct((), jnp.float64), jax.ShapeDtypeStruct(coefficients.shape, jnp.float64)
        return jax.pure_callback(host, shapes, coefficients, vmap_method="sequential")

    return log_determinant
