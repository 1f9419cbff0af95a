"""Numba body of the updates of conjugate gradients: two passes over memory instead of nine."""

import numpy as np

from pymc_ep.jit_numba import jit

__all__ = ["advance", "turn"]

_jit = jit(nogil=True, fastmath={"reassoc", "contract"})


@_jit
def advance(x: np.ndarray, residual: np.ndarray, direction: np.ndarray, image: np.ndarray, step: float) -> float:
    """Move x, (N,), by `step` along `direction`, update the residual, both in place, and return |residual|^2.

    `image` is A times the direction.
    """
    square = 0.0
    for i in range(len(x)):
        x[i] += step * direction[i]
        left = residual[i] - step * image[i]
        residual[i] = left
        square += left * left
    return square


@_jit
def turn(direction: np.ndarray, ahead: np.ndarray, share: float) -> None:
    """Replace `direction`, (N,), by ``ahead + share * direction``."""
    for i in range(len(direction)):
        direction[i] = ahead[i] + share * direction[i]
