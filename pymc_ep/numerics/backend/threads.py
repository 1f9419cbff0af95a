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
"""Multiplications of one factorisation above which several BLAS threads are used. With two threads on two busy cores a
fit takes 20 times as long at 50 observations, and 4 times at 2000, where a factorisation takes 0.1 s. On idle cores it
takes half as long."""
_LOOKS, _APART = 3, 1e-3
"""Looks at the threads that run, and the time between them, s: the most of them count, as most wait at times."""
_RUNNING = Path("/proc/loadavg")
"""Where Linux tells how many threads run at the moment, this one included."""
_LIMITING = Lock()
_LIMITS: list[int] = []
"""Limits of the fits in progress, in threads of their own. The number of BLAS threads is one for the process: it is at
most the least of these, and the last fit to end gives back what the first one found."""
_FOUND: list[Any] = []
"""Limits of threadpoolctl, which it restores when the last one ends."""


def check_cores(cores: int | str | None, blas_cores: int | str | None = "auto") -> int | str | None:
    """Return the number of threads that is asked for, under either of its names; raise for one that cannot be."""
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
    """Limit the threads of BLAS and of Numba.

    Parameters
    ----------
    work : float
        Multiplications of the most expensive step.
    cores : int, "auto" or None
        ``"auto"`` is as many as are idle, but one of BLAS where matrices are small; None leaves them as they are.
    """
    with ExitStack() as stack:
        if cores is not None:
            n_threads = idle_processors() if cores == "auto" else int(cores)
            stack.enter_context(_limited_numba(n_threads))
            stack.enter_context(_limited_blas(1 if cores == "auto" and work < _MANY_MULTIPLICATIONS else n_threads))
        yield


def idle_processors() -> int:
    """Return how many processors this process can have without waiting for others, at least one."""
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
