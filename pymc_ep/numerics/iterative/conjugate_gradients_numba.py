"""Numba body of the updates of conjugate gradients: two passes over memory in place of nine."""

import numpy as np

from pymc_ep.jit_numba import jit

__all__ = ["advance", "turn"]

_jit = jit(nogil=True, fastmath={"reassoc", "contract"})


@_jit
def advance(x: np.ndarray, residual: np.ndarray, direction: np.ndarray, image: np.ndarray, step: float) -> float:
    """Move x, (N,), by a step along a direction, update its residual, both in place, and return |residual|^2."""
    square = 0.0
    for i in range(len(x)):
        x[i] += step * direction[i]
        left = residual[i] - step * image[i]
        residual[i] = left
        square += left * left
    return square


@_jit
def turn(direction: np.ndarray, ahead: np.ndarray, share: float) -> None:
    """Replace the direction, (N,), by `ahead` plus its share."""
    for i in range(len(direction)):
        direction[i] = ahead[i] + share * direction[i]
