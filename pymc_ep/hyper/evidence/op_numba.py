"""How Numba runs the evidence Op: in object mode, since its work is in SciPy."""

import warnings
from typing import Any

from pytensor.link.numba.dispatch.basic import generate_fallback_impl, register_funcify_and_cache_key

from pymc_ep.hyper.evidence.op import EvidenceOp


@register_funcify_and_cache_key(EvidenceOp)
def numba_evidence(op: EvidenceOp, node: Any, **kwargs: Any) -> tuple[Any, None]:
    """Return a function that calls back into Python, and no cache key: it holds this very model and its data."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Numba will use object mode")
        return generate_fallback_impl(op, node, **kwargs), None
