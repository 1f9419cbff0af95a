"""Dispatch between NumPy and JAX by the type of an array, so that formulas are written once."""

from collections.abc import Callable, Iterable, Sequence
from importlib.util import find_spec
from types import ModuleType
from typing import Any, TypeVar

import numpy as np

__all__ = ["Array", "is_jax", "jax_device", "namespace", "on_host", "replaced", "require_jax", "to_jax", "while_loop"]

Array = Any
"""An array of NumPy or of JAX, or a scalar."""
Fields = TypeVar("Fields", bound=Iterable[Any])
"""Type of a NamedTuple."""


def namespace(*arrays: Array) -> ModuleType:
    """Return the module of array functions for the arguments.

    Parameters
    ----------
    *arrays
        Arrays or scalars.

    Returns
    -------
    module
        ``jax.numpy`` if a JAX array or tracer is among the arguments, else ``numpy``. JAX is imported in the first case
        only.
    """
    if any(is_jax(array) for array in arrays):
        from pymc_ep.numerics.backend.namespace_jax import jax_numpy

        return jax_numpy()
    return np


def is_jax(array: object) -> bool:
    """Whether `array` is a JAX array or tracer, by the module of its type, without importing JAX."""
    return type(array).__module__.partition(".")[0] in ("jax", "jaxlib")


def to_jax(array: Array) -> Array:
    """Return an array on JAX's default device."""
    from pymc_ep.numerics.backend.namespace_jax import jax_numpy

    return jax_numpy().asarray(array)


def require_jax(what: str) -> None:
    """Raise unless JAX is installed and computes in double precision.

    Raises
    ------
    ImportError
        If JAX is not installed; the message begins with `what`, the feature that needs JAX.
    RuntimeError
        If JAX computes in single precision.
    """
    if find_spec("jax") is None:
        raise ImportError(f"{what} asks for JAX, which is not installed: pip install 'pymc-ep[jax]'.")
    from pymc_ep.numerics.backend.namespace_jax import require_float64

    require_float64()


def jax_device() -> str:
    """Return the name of the device on which JAX computes now."""
    from pymc_ep.numerics.backend.device_jax import current_device

    return str(current_device())


def on_host(fields: Fields) -> Fields:
    """Return a NamedTuple with NumPy arrays in place of JAX's, and everything else as it is."""
    return type(fields)(*(np.asarray(field) if is_jax(field) else field for field in fields))


def replaced(table: Array, rows: np.ndarray, arrays: Sequence[Array]) -> Array:
    """Return a copy of `table` in which the rows at indices `rows`, (n,), are the n rows of `arrays`, joined."""
    values = namespace(table).concatenate(arrays)
    if is_jax(table):
        return table.at[rows].set(values)
    out = table.copy()
    out[rows] = values
    return out


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
    if any(is_jax(value) for value in state):
        from pymc_ep.numerics.backend.namespace_jax import while_loop_jax

        return while_loop_jax(cond, body, state)
    while cond(state):
        state = body(state)
    return state
