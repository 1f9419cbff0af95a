"""How JAX runs the evidence Op: as a call back to the host with its own derivative."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from pytensor.link.jax.dispatch import jax_funcify

from pymc_ep.evidence.op import EvidenceOp


@jax_funcify.register(EvidenceOp)
def jax_evidence(op: EvidenceOp, **kwargs: object) -> Callable[[jax.Array], tuple[jax.Array, jax.Array]]:
    """Return a function of theta that JAX can differentiate once, in reverse mode, and map over chains."""

    def host(theta: jax.Array) -> tuple[np.ndarray, np.ndarray]:
        log_z, gradient = op.evaluate(theta)
        return np.asarray(log_z), gradient

    @jax.custom_vjp
    def evidence(theta: jax.Array) -> tuple[jax.Array, jax.Array]:
        shapes = jax.ShapeDtypeStruct((), jnp.float64), jax.ShapeDtypeStruct(theta.shape, jnp.float64)
        return jax.pure_callback(host, shapes, theta, vmap_method="sequential")

    def forward(theta: jax.Array) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
        outputs = evidence(theta)
        return outputs, outputs[1]

    def backward(gradient: jax.Array, cotangents: tuple[jax.Array, jax.Array]) -> tuple[jax.Array]:
        return (cotangents[0] * gradient,)

    evidence.defvjp(forward, backward)
    return evidence
