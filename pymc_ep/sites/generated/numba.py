"""Numba body of `TiltedMoments`: the Python body around the printed density."""

from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from types import FunctionType
from typing import Any

from pytensor.graph.basic import Apply
from pytensor.link.numba.dispatch.basic import numba_njit, register_funcify_and_cache_key

from pymc_ep.sites.generated import body, functions_numba
from pymc_ep.sites.generated.op import TiltedMoments
from pymc_ep.sites.generated.printer_numba import Printed, printed

_JIT: dict[str, Any] = {"error_model": "numpy", "fastmath": {"contract", "nsz", "reassoc"}}
"""Sums may be reordered for vector instructions; NaN and infinity are respected."""
_INLINE: dict[str, Any] = {"inline": "always"}
_PARTS: dict[str, dict[str, Any]] = {
    "slope_at": {},
    "searched": _INLINE,
    "concave_mode": _INLINE,
    "surveyed_mode": _INLINE,
    "outside": _INLINE,
    "weigh": {},
    "add": {},
    "agree": _INLINE,
    "summed": _INLINE,
    "moments": {},
}
"""Functions of the body, callees first. LLVM optimises each by itself and again in its callers, unless it is inlined
before that."""


@register_funcify_and_cache_key(TiltedMoments)
def numba_tilted_moments(op: TiltedMoments, node: Apply, **kwargs: object) -> tuple[Callable[..., Any], str]:
    """Return the compiled body and its cache key."""
    fixed, density = printed(op.fixed, "fixed", 1), printed(op.density, "density", 1)
    made = {"fixed": fixed.function, "density": density.function, "exp": functions_numba.exp, **op.rule.constants}
    for name, options in _PARTS.items():
        function = getattr(body, name)
        copy = FunctionType(function.__code__, {**vars(body), **made}, name)
        made[name] = numba_njit(**_JIT, **options)(copy)
    return made["moments"], _key(op, fixed, density)


def _key(op: TiltedMoments, fixed: Printed, density: Printed) -> str:
    """Key of all that is compiled: a change of any constant or text is another key."""
    text = Path(body.__file__).read_text() + Path(__file__).read_text()
    return sha256(f"{fixed.key}{density.key}{op.rule}{op.rule.constants}{text}".encode()).hexdigest()
