"""Numba body of `truncated_normal`: the Python body, compiled without fast-math."""

from collections.abc import Callable
from functools import partial

import numpy as np
from pytensor.graph.basic import Apply
from pytensor.link.numba.dispatch.basic import numba_njit, register_funcify_and_cache_key

from pymc_ep.kernels.scalar_kernel import jit_body
from pymc_ep.kernels.truncated_normal import body
from pymc_ep.kernels.truncated_normal.op import TruncatedNormal


@register_funcify_and_cache_key(TruncatedNormal)
def numba_truncated_normal(
    op: TruncatedNormal, node: Apply, **kwargs: object
) -> tuple[Callable[..., tuple[float, ...]], str]:
    """Return the compiled body and its cache key."""
    jit = partial(numba_njit, fastmath=False)
    compiled = jit_body(body.FUNCTIONS, jit)

    @jit
    def truncated_normal(k: float) -> tuple[float, float, float, float]:
        return compiled(np.float64(k))

    return truncated_normal, op.numba_cache_key(__file__)
