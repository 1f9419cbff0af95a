"""Sums over the first n of B blocks of events. All windows have arrays of B blocks, and n is known only at run time."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

__all__ = ["summed_blocks"]

Block = Callable[[Any, Any, jax.Array, Any], jax.Array]


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def summed_blocks(block: Block, shared: Any, constants: Any, states: jax.Array, others: Any, n: jax.Array) -> jax.Array:
    """Return the sum of a function of the first n of B blocks; its gradient is computed in the same loop over blocks.

    JAX itself has no reverse gradient of a loop whose length is not known at compilation.

    Parameters
    ----------
    block : callable
        Takes `shared`, `constants`, and `states` and `others` of one block, and returns a number. It captures no
        arrays.
    shared : nested tuples of jax.Array
        Arguments that all blocks have in common.
    constants : nested tuples of jax.Array
        Further common arguments, without a gradient.
    states : jax.Array, (B, rows, D)
    others : nested tuples of jax.Array, (B, ...)
        Further arguments of each block, without a gradient.
    n : jax.Array of int
        Number of blocks that are summed.
    """

    def add(k: jax.Array, total: jax.Array) -> jax.Array:
        return total + block(shared, constants, states[k], _of_block(others, k))

    return lax.fori_loop(0, n, add, jnp.zeros((), states.dtype))


def _forward(
    block: Block, shared: Any, constants: Any, states: jax.Array, others: Any, n: jax.Array
) -> tuple[jax.Array, tuple[Any, jax.Array]]:
    def add(k: jax.Array, sums: tuple[jax.Array, Any, jax.Array]) -> tuple[jax.Array, Any, jax.Array]:
        total, of_shared, of_states = sums
        value, pull = jax.vjp(lambda common, h: block(common, constants, h, _of_block(others, k)), shared, states[k])
        shared_gradient, state_gradient = pull(jnp.ones_like(value))
        return total + value, jax.tree.map(jnp.add, of_shared, shared_gradient), of_states.at[k].set(state_gradient)

    first = jnp.zeros((), states.dtype), jax.tree.map(jnp.zeros_like, shared), jnp.zeros_like(states)
    total, of_shared, of_states = lax.fori_loop(0, n, add, first)
    return total, (of_shared, of_states)


def _backward(
    block: Block, gradient: tuple[Any, jax.Array], cotangent: jax.Array
) -> tuple[Any, None, jax.Array, None, None]:
    # The sum is a number, so that its cotangent scales the gradient.
    of_shared, of_states = jax.tree.map(lambda array: cotangent * array, gradient)
    return of_shared, None, of_states, None, None


def _of_block(arrays: Any, k: jax.Array) -> Any:
    return jax.tree.map(lambda array: array[k], arrays)


summed_blocks.defvjp(_forward, _backward)
