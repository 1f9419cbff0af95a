"""Coordinates of the hyperparameters in which their density is about standard normal."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import scipy.linalg

__all__ = ["Frame", "first_frame"]

_FIRST_STEP = 0.5
"""First step from the mode along a logarithm or logit, whose scale is known to be of order 1; the step along other
coordinates is 1."""
_DROP = 0.05, 4.0
"""Least and most fall of the log density, in nats, over a step that measures the curvature. A smaller fall depends on
rounding and on the tolerance of EP, a larger one on the tails."""
_TRIES, _STRETCH = 4, (0.01, 10.0)
"""Most steps tried along an axis, and bounds of the factor between the lengths of a step and of the next."""
_FLAT = 0.05
"""Least curvature of a direction, in nats per squared step: a flat one gets a standard deviation of 4.5 steps."""


class Frame(NamedTuple):
    """Coordinates z, rows of (m, p), in which the density is about standard normal: theta = centre + z axes.

    `centre` is (p,), and the rows of `axes`, (p, p), are directions in theta; a lattice has fewer, (q, p).
    """

    centre: np.ndarray
    axes: np.ndarray

    def theta(self, z: np.ndarray) -> np.ndarray:
        """Return unconstrained hyperparameters, (m, p), for rows of z."""
        return self.centre + z @ self.axes

    def z(self, theta: np.ndarray) -> np.ndarray:
        """Return rows of z for rows of unconstrained hyperparameters, (m, p)."""
        return np.linalg.solve(self.axes.T, (theta - self.centre).T).T


def first_frame(
    density: Callable[[np.ndarray], tuple[float, np.ndarray] | None],
    mode: np.ndarray,
    highest: float,
    transformed: np.ndarray,
) -> tuple[Frame, np.ndarray]:
    """Return the frame that standardises by the curvature at the mode.

    The curvature is from differences of gradients, over steps along each axis in which the density falls by about one
    nat.

    Parameters
    ----------
    density : callable
        Log density and its gradient, (p,), at unconstrained hyperparameters, (p,); None where no fit converges.
    mode : ndarray, (p,)
    highest : float
        Log density at the mode.
    transformed : ndarray of bool, (p,)
        Which coordinates are logarithms or logits.

    Returns
    -------
    Frame
    edge : ndarray of bool, (p,)
        Axes along which the last step tried had no converged fit on one side or both.
    """
    p, steps = mode.size, np.where(transformed, _FIRST_STEP, 1.0)
    hessian, edge = np.zeros((p, p)), np.zeros(p, dtype=bool)
    for i, axis in enumerate(np.eye(p)):
        for _ in range(_TRIES):
            width = steps[i]
            low, high = (density(mode + sign * width * axis) for sign in (-1.0, 1.0))
            fall = max(np.inf if end is None else highest - end[0] for end in (low, high))
            if _DROP[0] <= fall <= _DROP[1]:
                break
            # Over this step a parabola falls by one nat.
            steps[i] *= np.clip(1.0 / np.sqrt(max(fall, 0.0) + 1e-300), *_STRETCH)
        edge[i] = np.isinf(fall)
        if low is None or high is None:
            # One step counts as one standard deviation.
            hessian[i, i] = steps[i] ** -2
        else:
            hessian[i] = (low[1] - high[1]) / (2.0 * width)
    # S H S = Q Lambda Q^T with S = diag(steps): axes A = Lambda^-1/2 Q^T S, and A^T A = H^-1 where none is flat.
    curvatures, vectors = scipy.linalg.eigh(steps[:, None] * (hessian + hessian.T) / 2.0 * steps)
    return Frame(mode, (vectors / np.sqrt(np.maximum(curvatures, _FLAT))).T * steps), edge
