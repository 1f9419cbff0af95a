"""Numba body of `TiltedMoments`: the Python body around the printed density, and whether it is on disk."""

from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from types import FunctionType
from typing import Any

import llvmlite.binding as llvm  # type: ignore[import-untyped]
import numba
import numpy as np
from pytensor import config
from pytensor.graph.basic import Apply
from pytensor.link.numba.cache import NUMBA_CACHE_PATH
from pytensor.link.numba.dispatch.basic import numba_njit, register_funcify_and_cache_key

from pymc_ep.sites.generated import body, functions_numba
from pymc_ep.sites.generated.op import TiltedMoments
from pymc_ep.sites.generated.printer_numba import Printed, printed

__all__ = ["is_on_disk", "note_on_disk"]

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
    fixed, density = _printed(op)
    made = {"fixed": fixed.function, "density": density.function, "exp": functions_numba.exp, **op.rule.constants}
    for name, options in _PARTS.items():
        function = getattr(body, name)
        copy = FunctionType(function.__code__, {**vars(body), **made}, name)
        made[name] = numba_njit(**_JIT, **options)(copy)
    return made["moments"], _key(op, fixed, density)


def is_on_disk(op: TiltedMoments) -> bool:
    """Whether another process has compiled the Op for this machine."""
    return config.numba__cache and _note(op).exists()


def note_on_disk(op: TiltedMoments) -> None:
    """Note for other processes that the Op is compiled."""
    if config.numba__cache:
        with suppress(OSError):
            _note(op).touch()


def _printed(op: TiltedMoments) -> tuple[Printed, Printed]:
    return printed(op.fixed, "fixed", 1), printed(op.density, "density", 1)


def _key(op: TiltedMoments, fixed: Printed, density: Printed) -> str:
    """Key of all that is compiled: a change of any constant or text is another key."""
    text = Path(body.__file__).read_text() + Path(__file__).read_text()
    return sha256(f"{fixed.key}{density.key}{op.rule}{op.rule.constants}{text}".encode()).hexdigest()


def _note(op: TiltedMoments) -> Path:
    machine = f"{numba.__version__}{llvm.get_host_cpu_name()}{llvm.get_host_cpu_features().flatten()}{np.__version__}"
    key = _key(op, *_printed(op))
    return NUMBA_CACHE_PATH / f"pymc_ep_moments_{sha256((key + machine).encode()).hexdigest()}"
