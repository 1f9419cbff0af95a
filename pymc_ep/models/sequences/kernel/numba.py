"""Implementation of the Ops of recurrent networks under Numba: NumPy in object mode, as most time is spent in BLAS."""

import warnings
from collections.abc import Callable
from typing import Any

from pytensor.graph.basic import Apply
from pytensor.graph.op import Op
from pytensor.link.numba.dispatch.basic import generate_fallback_impl, register_funcify_and_cache_key

from pymc_ep.models.sequences.kernel.op import SequenceGradient, SequenceLogp


@register_funcify_and_cache_key(SequenceLogp)
@register_funcify_and_cache_key(SequenceGradient)
def numba_sequences(op: Op, node: Apply, **kwargs: object) -> tuple[Callable[..., Any], None]:
    """Return a function that calls Python, and None for its cache key."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Numba will use object mode")
        return generate_fallback_impl(op, node, **kwargs), None
