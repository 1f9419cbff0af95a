"""Numba body of `TiltedMoments`: the Python body around the printed density."""

from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from types import FunctionType
from typing import Any

from pytensor.graph.basic import Apply
from pytensor.link.numba.dispatch.basic import numba_njit, register_funcify_and_cache_key

from pymc_ep.sites.generated import body, body_of_two, functions_numba
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
    "higher_peak": _INLINE,
    "outside": _INLINE,
    "weigh": {},
    "add": {},
    "agree": _INLINE,
    "summed": _INLINE,
    "moments": {},
}
"""Functions of the body, callees first. LLVM optimises each by itself and again in its callers, unless it is inlined
before that."""
_PARTS_OF_TWO: dict[str, dict[str, Any]] = {
    name: {}
    for name in (
        "slopes_at",
        "mode_from",
        "weigh",
        "add",
        "part_of",
        "row_of",
        "lattice",
        "agree",
        "summed",
        "hidden",
        "moments",
    )
}


@register_funcify_and_cache_key(TiltedMoments)
def numba_tilted_moments(op: TiltedMoments, node: Apply, **kwargs: object) -> tuple[Callable[..., Any], str]:
    """Return the compiled body and its cache key."""
    text, functions = (body, _PARTS) if op.rule.predictors == 1 else (body_of_two, _PARTS_OF_TWO)
    fixed, density = printed(op.fixed, "fixed", 1), printed(op.density, "density", op.rule.predictors)
    namespace = {"fixed": fixed.function, "density": density.function, "exp": functions_numba.exp, **op.rule.constants}
    for name, options in functions.items():
        function = getattr(text, name)
        copy = FunctionType(function.__code__, {**vars(text), **namespace}, name)
        namespace[name] = numba_njit(**_JIT, **options)(copy)
    return namespace["moments"], _key(op, fixed, density)


def _key(op: TiltedMoments, fixed: Printed, density: Printed) -> str:
    """Return the cache key, which changes with any constant or text that is compiled."""
    text = "".join(Path(file).read_text() for file in (body.__file__, body_of_two.__file__, __file__))
    return sha256(f"{fixed.key}{density.key}{op.rule}{op.rule.constants}{text}".encode()).hexdigest()
