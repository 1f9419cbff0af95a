"""What ascents of a bound share: how they end, and a few steps of L-BFGS that never end lower than they began."""

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.optimize

from pymc_ep.engines.base import Status
from pymc_ep.exceptions import InvalidDataError, NumericalError

__all__ = ["BoundAscent", "climb"]

_FAILED = 1e30
"""What the optimiser is told of points without a finite objective: it turns back."""


class BoundAscent:
    """An ascent whose states have ``objective``, ``change``, its increase in the last step for each cell, and ``loop``.

    Parameters
    ----------
    tol : float
        Change at which the iteration ends.
    max_iter : int
        Steps after which it does in any case.
    """

    def __init__(self, tol: float, max_iter: int):
        self.tol, self.max_iter = tol, max_iter

    def objective(self, state: Any) -> float:
        """Return the bound with the log prior of the hyperparameters."""
        return state.objective

    def change(self, state: Any) -> float:
        """Return the increase of the objective in the last step, for each cell."""
        return state.change

    def finished(self, state: Any) -> Status | None:
        """Return how the iteration ended, or None while it goes on."""
        told = f"after {state.loop} steps, the last of which raised the bound by {state.change:.2g} a cell"
        if state.change <= self.tol and self.may_end(state):
            return Status(True, f"converged {told}")
        if state.loop >= self.max_iter:
            return Status(False, f"stopped {told}; raise max_iter or tol")
        return None

    def may_end(self, state: Any) -> bool:
        """Return whether a small change is that of the whole bound by now."""
        raise NotImplementedError


def climb(
    objective: Callable[[np.ndarray], tuple[float, np.ndarray]], theta: np.ndarray, iterations: int
) -> tuple[np.ndarray, float]:
    """Return hyperparameters at which the objective is no lower than at `theta`, (p,), and its value there.

    Parameters
    ----------
    objective : callable
        Value and gradient. Points at which it raises for a number that is not finite, or a parameter outside its
        domain, are too far away.
    theta : ndarray, (p,)
    iterations : int
    """

    def evaluate(point: np.ndarray) -> tuple[float, np.ndarray]:
        try:
            value, gradient = objective(point)
        except (NumericalError, InvalidDataError):
            return _FAILED, np.zeros_like(point)
        good = np.isfinite(value) and np.isfinite(gradient).all()
        return (-value, -gradient) if good else (_FAILED, np.zeros_like(point))

    before, _ = evaluate(theta)
    found = scipy.optimize.minimize(evaluate, theta, jac=True, method="L-BFGS-B", options={"maxiter": iterations})
    return (found.x, -float(found.fun)) if found.fun < before else (theta, -before)
