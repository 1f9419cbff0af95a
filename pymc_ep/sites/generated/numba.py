"""Numba body of `TiltedMoments`: the Python body around the printed density."""

from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from types import FunctionType
from typing import Any

import numpy as np
from pytensor.graph.basic import Apply
from pytensor.link.numba.dispatch.basic import numba_njit, register_funcify_and_cache_key

from pymc_ep.sites.generated import body, functions_numba
from pymc_ep.sites.generated.op import TiltedMoments
from pymc_ep.sites.generated.printer_numba import printed

_jit = dict(error_model="numpy", fastmath={"contract", "nsz", "reassoc"})


@register_funcify_and_cache_key(TiltedMoments)
def numba_tilted_moments(op: TiltedMoments, node: Apply, **kwargs: object) -> tuple[Callable[..., Any], str]:
    """Return the compiled body and its cache key."""
    fixed, density = printed(op.fixed, "fixed", 1), printed(op.density, "density", 1)
    made = {"fixed": fixed.function, "density": density.function, "exp": functions_numba.exp, **op.rule.constants}
    inline = []
    for name in ["slope_at", "searched", "concave_mode", "surveyed_mode", "mode", "outside", "weigh", "add", "agree", "summed", "is_whole", "moments"]:
        function = getattr(body, name)
        copy = FunctionType(function.__code__, {**vars(body), **made}, name)
        made[name] = numba_njit(**_jit, **({"forceinline": True} if name in inline else {}))(copy)
    moments, rows = made["moments"], 8 + op.rule.parameters

    @numba_njit
    def tilted_moments(y, mean, variance, power, parameters):
        out = np.empty((rows, len(mean)))
        moments(y, mean, variance, power, parameters, out)
        return out

    text = Path(body.__file__).read_text() + Path(__file__).read_text()
    return tilted_moments, sha256(f"{fixed.key}{density.key}{op.rule}{text}".encode()).hexdigest()
