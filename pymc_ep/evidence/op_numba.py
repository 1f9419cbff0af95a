"""How Numba runs the evidence Op: in object mode, since its work is in SciPy."""

import warnings
from collections.abc import Callable

import numpy as np
from pytensor.graph.basic import Apply
from pytensor.link.numba.dispatch.basic import generate_fallback_impl, register_funcify_and_cache_key

from pymc_ep.evidence.op import EvidenceOp


@register_funcify_and_cache_key(EvidenceOp)
def numba_evidence(
    op: EvidenceOp, node: Apply, **kwargs: object
) -> tuple[Callable[..., tuple[np.ndarray, np.ndarray]], None]:
    """Return a function that calls back into Python, and None as cache key, since the function refers to this `op`."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Numba will use object mode")
        return generate_fallback_impl(op, node, **kwargs), None
