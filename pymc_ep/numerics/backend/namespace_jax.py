"""The part of `pymc_ep.numerics.backend.namespace` that needs JAX."""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import jax
import jax.numpy
import pytensor.link.jax.dispatch  # noqa: F401  (switches JAX to float64 as PyTensor's floatX asks)

__all__ = ["jax_numpy", "require_float64", "while_loop_jax"]


def jax_numpy() -> ModuleType:
    """Return ``jax.numpy``."""
    return jax.numpy


def while_loop_jax(cond: Callable[[tuple], Any], body: Callable[[tuple], tuple], state: tuple) -> tuple:
    """`jax.lax.while_loop` with the argument order and the tuple state of `namespace.while_loop`."""
    return jax.lax.while_loop(cond, body, state)


def require_float64() -> None:
    """Raise unless JAX computes in double precision: single precision loses the tails of densities.

    Raises
    ------
    RuntimeError
        If ``jax_enable_x64`` is not set.
    """
    if not jax.config.jax_enable_x64:
        raise RuntimeError(
            "JAX is set to single precision, and fits need double precision: call "
            "jax.config.update('jax_enable_x64', True)."
        )
