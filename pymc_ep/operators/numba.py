"""Numba body of an applied operator: a call in object mode, since the work is in SciPy."""

import warnings
from collections.abc import Callable

import numpy as np
from pytensor.graph.basic import Apply
from pytensor.link.numba.dispatch.basic import generate_fallback_impl, register_funcify_and_cache_key

from pymc_ep.operators.apply import ApplyLinearMap


@register_funcify_and_cache_key(ApplyLinearMap)
def numba_apply(op: ApplyLinearMap, node: Apply, **kwargs: object) -> tuple[Callable[..., np.ndarray], None]:
    """Return a function that calls back into Python, and None for its cache key: it is valid for one map object."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Numba will use object mode")
        return generate_fallback_impl(op, node, **kwargs), None
