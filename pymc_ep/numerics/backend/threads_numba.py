"""Threads of Numba's kernels."""

import numba

__all__ = ["limit_threads"]


def limit_threads(n: int) -> int:
    """Let kernels that are called from this thread run on `n` threads at most; return the limit before."""
    before = numba.get_num_threads()
    numba.set_num_threads(max(1, min(n, numba.config.NUMBA_NUM_THREADS)))
    return int(before)
