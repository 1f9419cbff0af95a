"""Numba body of `rectified_poisson`: the Python body, compiled without fast-math."""

from collections.abc import Callable
from functools import partial

import numpy as np
from pytensor.graph.basic import Apply
from pytensor.link.numba.dispatch.basic import numba_njit, register_funcify_and_cache_key

from pymc_ep.kernels.rectified_poisson import body
from pymc_ep.kernels.rectified_poisson.op import RectifiedPoisson
from pymc_ep.kernels.scalar_kernel import jit_body


@register_funcify_and_cache_key(RectifiedPoisson)
def numba_rectified_poisson(
    op: RectifiedPoisson, node: Apply, **kwargs: object
) -> tuple[Callable[..., tuple[float, ...]], str]:
    """Return the compiled body and its cache key."""
    jit = partial(numba_njit, fastmath=False)
    compiled = jit_body(body.FUNCTIONS, jit)
    zero_mass = op.zero_mass

    @jit
    def rectified_poisson(y: float, mean: float, variance: float, power: float) -> body.Moments:
        return compiled(np.float64(y), np.float64(mean), np.float64(variance), np.float64(power), zero_mass)

    return rectified_poisson, op.numba_cache_key(__file__)
