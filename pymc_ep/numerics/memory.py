"""Memory that computations need, and this machine has."""

import os
from importlib import import_module
from pathlib import Path

from pymc_ep.exceptions import InvalidDataError

__all__ = ["require_memory"]

_GROUP = Path("/sys/fs/cgroup")
"""Folder of the control group of this process, as a container sees it."""
_FREE = 0.8
"""Largest share of the free memory for one computation: the rest is for the model, the draws and other processes."""


def require_memory(needed: int, what: str, how: str, cure: str, *, on_jax: bool = False) -> None:
    """Raise where a computation needs more memory than is free, if that is known.

    Parameters
    ----------
    needed : int
        B.
    what, how, cure : str
        Beginning of the message, up to the number; the contents; and a sentence on what else to do.
    on_jax : bool
        Whether JAX's device holds it too: arrays are laid out on the host before they go there.

    Raises
    ------
    InvalidDataError
    """
    places = {"": _free_memory()}
    if on_jax:
        places[" on the device"] = import_module("pymc_ep.numerics.backend.device_jax").free_bytes()
    for where, free in places.items():
        if free is not None and needed > _FREE * free:
            raise InvalidDataError(
                f"{what} {needed / 1e9:.1f} GB, and {free / 1e9:.1f} GB of memory{where} are free: {how}. {cure}"
            )


def _free_memory() -> int | None:
    """Return the available memory in bytes, or None where the system does not report it.

    On Linux that includes caches which can be reclaimed, and is limited by the control group of a container; elsewhere
    all memory counts as available.
    """
    sizes = [size for size in (_free_of_machine(), _free_of_group()) if size is not None]
    return min(sizes) if sizes else None


def _free_of_group() -> int | None:
    """Return the memory that a control group, of version 2, has left; None without a limit."""
    try:
        limit, used = (int((_GROUP / name).read_text()) for name in ("memory.max", "memory.current"))
        with (_GROUP / "memory.stat").open() as lines:
            cached = next(int(line.split()[1]) for line in lines if line.startswith("inactive_file "))
    except (OSError, StopIteration, ValueError):
        # Without a limit there is the word "max".
        return None
    return max(0, limit - used + cached)


def _free_of_machine() -> int | None:
    try:
        with Path("/proc/meminfo").open() as lines:
            return next(1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        pass
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return None
