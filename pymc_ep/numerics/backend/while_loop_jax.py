"""The part of `pymc_ep.numerics.backend.while_loop` that needs JAX."""

from collections.abc import Callable
from typing import Any

import jax

__all__ = ["while_loop_jax"]


def while_loop_jax(cond: Callable[[tuple], Any], body: Callable[[tuple], tuple], state: tuple) -> tuple:
    """`jax.lax.while_loop` with the argument order and the tuple state of `while_loop.while_loop`."""
    return jax.lax.while_loop(cond, body, state)
