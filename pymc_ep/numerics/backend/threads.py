"""Threads of BLAS and of Numba's kernels while a fit runs."""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from importlib import import_module
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from threadpoolctl import ThreadpoolController

__all__ = ["check_cores", "idle_processors", "limited_threads"]

_MANY_MULTIPLICATIONS = 2000.0**3
"""Multiplications of one factorisation from which several BLAS threads are used. With two threads on two busy cores a
fit takes 20 times as long as with one thread at 50 observations, and 4 times at 2000, where a factorisation takes
0.1 s. On idle cores it takes half as long."""
_LOOKS, _APART = 3, 1e-3
"""Number of times that running threads are counted, and the time between two counts, s. The largest count is used, as
most threads wait at times."""
_RUNNING = Path("/proc/loadavg")
"""File in which Linux gives the number of threads that run at the moment, including this one."""
_LIMITING = Lock()
_LIMITS: list[int] = []
"""Limits on BLAS threads of all fits in progress, which may run in several threads. The process has a single number of
BLAS threads: at most the least of these limits. The last fit to end restores the number that the first one found."""
_FOUND: list[Any] = []
"""Limiters of threadpoolctl, which restore the original numbers of threads when the last fit ends."""


def check_cores(cores: int | str | None, blas_cores: int | str | None = "auto") -> int | str | None:
    """Return the requested number of threads: `blas_cores` if `cores` is ``"auto"``, else `cores`.

    Raises a ValueError if one of them is neither ``"auto"``, None nor a positive integer.
    """
    for name, given in {"cores": cores, "blas_cores": blas_cores}.items():
        if isinstance(given, int | np.integer) and not isinstance(given, bool):
            possible = given >= 1
        else:
            possible = given in ("auto", None)
        if not possible:
            raise ValueError(f"{name}={given!r} must be 'auto', None or a whole number of at least 1.")
    return blas_cores if cores == "auto" else cores


@contextmanager
def limited_threads(work: float, cores: int | str | None) -> Iterator[None]:
    """Limit the threads of BLAS and of Numba within a ``with`` block.

    Parameters
    ----------
    work : float
        Multiplications of the most expensive step.
    cores : int, "auto" or None
        Number of threads. ``"auto"`` takes as many as there are idle processors, but one BLAS thread where `work` is
        small; None sets no limit.
    """
    with ExitStack() as stack:
        if cores is not None:
            n_threads = idle_processors() if cores == "auto" else int(cores)
            stack.enter_context(_limited_numba(n_threads))
            stack.enter_context(_limited_blas(1 if cores == "auto" and work < _MANY_MULTIPLICATIONS else n_threads))
        yield


def idle_processors() -> int:
    """Return the number of processors that other processes leave idle for this process, at least one."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if usable == 1 or not _RUNNING.exists():
        return usable
    others = 0
    for look in range(_LOOKS):
        time.sleep(_APART * bool(look))
        others = max(others, int(_RUNNING.read_text().split()[3].partition("/")[0]) - 1)
    return max(1, usable - others)


@contextmanager
def _limited_numba(n: int) -> Iterator[None]:
    """Limit the threads of kernels that are called from this thread, where Numba is loaded."""
    if "numba" not in sys.modules:
        yield
        return
    kernels = import_module("pymc_ep.numerics.backend.threads_numba")
    before = kernels.limit_threads(n)
    try:
        yield
    finally:
        kernels.limit_threads(before)


@contextmanager
def _limited_blas(n: int) -> Iterator[None]:
    with _LIMITING:
        if n < min(_LIMITS, default=n + 1):
            _FOUND.append(_controller().limit(limits=n, user_api="blas"))
        _LIMITS.append(n)
    try:
        yield
    finally:
        with _LIMITING:
            _LIMITS.remove(n)
            while _FOUND and not _LIMITS:
                _FOUND.pop().restore_original_limits()


@cache
def _controller() -> ThreadpoolController:
    """Return the controller of the BLAS libraries of NumPy and SciPy, cached: finding them takes milliseconds."""
    return ThreadpoolController()
