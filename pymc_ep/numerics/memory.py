"""Memory that computations need, and this machine has."""

import os
from importlib import import_module
from pathlib import Path

from pymc_ep.exceptions import InvalidDataError

__all__ = ["CHUNK", "chunks", "require_memory"]

CHUNK = 2**22
"""Elements of an array that is computed a part at a time, 32 MiB of doubles: they bound the memory, and calls of NumPy
cost nothing beside so many."""
_GROUP = Path("/sys/fs/cgroup")
"""Folder of the control group of this process, as a container sees it."""
_FREE = 0.8
"""Largest share of the free memory for one computation: the rest is for the model, the draws and other processes."""


def chunks(count: int, numbers: int, most: int | None = None) -> list[slice]:
    """Return slices that divide `count` rows of an array, computed a part at a time, into parts that fit in memory.

    Parameters
    ----------
    count : int
        Number of rows.
    numbers : int
        Numbers in memory for each row.
    most : int, optional
        Most numbers in memory for a part, of one row at least; `CHUNK` by default.
    """
    step = max(1, (CHUNK if most is None else most) // max(1, numbers))
    return [slice(begin, min(begin + step, count)) for begin in range(0, count, step)]


def require_memory(needed: int, what: str, how: str, cure: str, *, on_jax: bool = False) -> None:
    """Raise if a computation needs more than 0.8 of the free memory; pass where the system does not report it.

    Parameters
    ----------
    needed : int
        Bytes.
    what, how, cure : str
        Parts of the message: its beginning, before the number of GB; the contents of the memory; and a sentence on what
        to do instead.
    on_jax : bool
        Whether the memory of JAX's device is checked too. Arrays are built on the host before they go to the device, so
        that both need the memory.

    Raises
    ------
    InvalidDataError
        If the memory does not suffice.
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

    On Linux available memory includes caches that can be reclaimed, and a container's control group limits it.
    Elsewhere all memory counts as available.
    """
    sizes = [size for size in (_free_of_machine(), _free_of_group()) if size is not None]
    return min(sizes) if sizes else None


def _free_of_group() -> int | None:
    """Return the memory in bytes that this process's control group, of version 2, has left; None without a limit."""
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
