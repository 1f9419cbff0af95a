"""Numba functions with a cache on disk, where this is possible."""

import hashlib
import os
import time
from collections.abc import Callable, Hashable
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import numba
from numba.core.caching import FunctionCache, NullCache
from numba.np.ufunc import parallel

try:
    import fcntl
except ImportError:  # Windows, where each process compiles.
    fcntl = None  # type: ignore[assignment]

__all__ = ["jit"]

_LONGEST_COMPILATION = 60.0
"""Seconds after which a process no longer waits for another's compilation; the longest takes some 15."""
_PARALLEL: list[Any] = []
"""Functions that run on several threads."""


def jit(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Return a decorator like ``numba.njit(cache=True, **options)``, whose functions also work without the cache.

    A function is compiled for this process alone where Numba has no folder to write to, where the disk is full, and
    where a file is damaged. The key of the cache depends on the text of all modules of Numba functions, since functions
    call functions of other modules.
    """

    def decorate(function: Callable[..., Any]) -> Any:
        compiled = numba.njit(**options)(function)
        # Numba raises where neither the package's folder nor the user's takes files.
        with suppress(RuntimeError):
            compiled._cache = _Cache(function)
        if options.get("parallel"):
            _PARALLEL.append(compiled)
        return compiled

    return decorate


class _Cache(FunctionCache):
    """Cache of a function that one process compiles, while others that need it wait for the result."""

    _lock: int | None = None

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        overload = self._loaded(sig, target_context)
        if overload is None and self._acquired():
            overload = self._loaded(sig, target_context)
            if overload is not None:  # Compiled by another process meanwhile.
                self._release()
        return overload

    def _loaded(self, sig: Any, target_context: Any) -> Any:
        try:
            return super().load_overload(sig, target_context)
        except Exception:  # Whatever a damaged file leads to.
            with suppress(OSError):
                self.flush()
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        with suppress(OSError):
            super().save_overload(sig, data)
        self._release()

    def _acquired(self) -> bool:
        """Take the lock of this function; return False without a lock file, or if another process keeps it too long."""
        if fcntl is None or self._lock is not None:
            return False
        try:
            self._impl.locator.ensure_cache_path()
            lock = os.open(Path(self.cache_path, f"{self._impl.filename_base}.lock"), os.O_RDWR | os.O_CREAT, 0o666)
        except OSError:
            return False
        deadline = time.monotonic() + _LONGEST_COMPILATION
        while time.monotonic() < deadline:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                time.sleep(0.05)
            else:
                self._lock = lock
                return True
        os.close(lock)
        return False

    def _release(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _index_key(self, sig: Any, codegen: Any) -> tuple[Hashable, ...]:
        return (*super()._index_key(sig, codegen), _digest_of_sources())


def _stay_on_one_thread() -> None:
    """In the child of a fork, have parallel functions compiled anew for one thread: OpenMP would end the child.

    PyTensor functions that were compiled before the fork, and call a parallel function, are not changed.
    """
    if not parallel._is_initialized:
        return
    for compiled in _PARALLEL:
        compiled.targetoptions["parallel"] = False
        compiled._cache = NullCache()
        compiled._reset_overloads()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_stay_on_one_thread)


@lru_cache(maxsize=1)
def _digest_of_sources() -> str:
    """Return the digest of all modules of this package that hold Numba functions."""
    total = hashlib.sha256()
    for path in sorted(Path(__file__).parent.rglob("*numba.py")):
        total.update(path.read_bytes())
    return total.hexdigest()
