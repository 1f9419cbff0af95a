"""The part of `pymc_ep.numerics.backend.namespace` that needs JAX."""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import jax
import jax.numpy

__all__ = ["jax_numpy", "while_loop_jax"]


def jax_numpy() -> ModuleType:
    """Return ``jax.numpy``."""
    return jax.numpy


def while_loop_jax(cond: Callable[[tuple], Any], body: Callable[[tuple], tuple], state: tuple) -> tuple:
    """`jax.lax.while_loop` with the argument order and the tuple state of `namespace.while_loop`."""
    return jax.lax.while_loop(cond, body, state)
