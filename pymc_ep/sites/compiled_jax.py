"""The part of `pymc_ep.sites.compiled` that needs JAX."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytensor.link.jax.dispatch  # noqa: F401  (switches JAX to float64 as PyTensor's floatX asks)
from pytensor.compile.mode import Mode
from pytensor.graph.fg import FunctionGraph
from pytensor.link.jax.dispatch import jax_funcify

from pymc_ep.numerics.backend.namespace import Array

__all__ = ["flatten", "is_tracer", "jax_function", "jit", "on_host"]

jit = jax.jit


def is_tracer(value: Array) -> bool:
    """Return True if `value` is a traced JAX value, known by shape and type only."""
    return isinstance(value, jax.core.Tracer)


def jax_function(inputs: Sequence[Any], outputs: Sequence[Any], mode: Mode) -> Callable[..., Sequence[Any]]:
    """Return the traceable function that a PyTensor graph becomes under JAX, with the rewrites of `mode`."""
    graph = FunctionGraph(list(inputs), list(outputs), clone=True)
    mode.optimizer.rewrite(graph)
    # The constants of the graph become arrays here, which must outlive any trace in progress.
    with jax.ensure_compile_time_eval():
        return jax_funcify(graph)


def on_host(function: Callable[..., Sequence[Any]], count: int) -> Callable[..., Sequence[Any]]:
    """Return a traceable form of a function on the host: NumPy vectors (n,) in, `count` vectors (n,) out."""

    def called(*arrays: Array) -> Sequence[Any]:
        result = jax.ShapeDtypeStruct(arrays[0].shape, jnp.float64)
        return jax.pure_callback(
            lambda *values: tuple(function(*(np.asarray(value) for value in values))), (result,) * count, *arrays
        )

    return called


def flatten(*arrays: Array) -> tuple[tuple[int, ...], list[Any]]:
    """Return the common shape, and the arguments as double vectors of that size."""
    doubles = [jnp.asarray(array, dtype=jnp.float64) for array in arrays]
    shape = jnp.broadcast_shapes(*(array.shape for array in doubles))
    return shape, [jnp.broadcast_to(array, shape).reshape(-1) for array in doubles]
