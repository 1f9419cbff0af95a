"""Log determinants and draws of sparse precisions under Numba: Python functions in object mode."""

import warnings
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from pytensor.graph.basic import Apply
from pytensor.link.numba.dispatch.basic import generate_fallback_impl, numba_njit, register_funcify_and_cache_key
from pytensor.link.numba.dispatch.random import numba_core_rv_funcify

from pymc_ep.distributions.gaussian_markov import GaussianMarkovRV
from pymc_ep.distributions.log_determinant import LogDeterminant


@register_funcify_and_cache_key(LogDeterminant)
def numba_log_determinant(op: LogDeterminant, node: Apply, **kwargs: object) -> tuple[Callable[..., Any], None]:
    """Return a function that calls Python, and None for its cache key, as it refers to the matrices of this Op."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Numba will use object mode")
        return generate_fallback_impl(op, node, **kwargs), None


@numba_core_rv_funcify.register(GaussianMarkovRV)
def gaussian_markov(op: GaussianMarkovRV, node: Apply) -> tuple[Callable[..., Any], None]:
    """Return the function of generator and parameters that draws one field, (n,), and None for its cache key."""

    def drawn(rng: np.random.Generator, coefficients: np.ndarray) -> np.ndarray:
        return op.matrices.draw(coefficients, 1, rng)[0]

    @numba_njit
    def random(rng: Any, coefficients: Any, log_det: Any) -> Any:
        with numba.objmode(out="float64[::1]"):
            out = drawn(rng, coefficients)
        return out

    return random, None
