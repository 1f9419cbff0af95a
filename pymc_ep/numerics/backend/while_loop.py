"""Loops that run as Python on NumPy arrays and as ``jax.lax.while_loop`` on JAX arrays."""

from collections.abc import Callable
from typing import Any

from pymc_ep.numerics.backend.namespace import is_jax

__all__ = ["while_loop"]


def while_loop(cond: Callable[[tuple], Any], body: Callable[[tuple], tuple], state: tuple) -> tuple:
    """Apply `body` to `state` as long as `cond` holds.

    Parameters
    ----------
    cond : callable
        Takes the state, returns a scalar truth value.
    body : callable
        Takes the state, returns a state of the same shapes and dtypes.
    state : tuple
        Arrays and numbers; one JAX array among them makes this a loop of JAX, which can be traced.

    Returns
    -------
    tuple
        The last state.
    """
    if any(is_jax(part) for part in state):
        from pymc_ep.numerics.backend.while_loop_jax import while_loop_jax

        return while_loop_jax(cond, body, state)
    while cond(state):
        state = body(state)
    return state
