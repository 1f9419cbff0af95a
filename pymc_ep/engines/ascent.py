"""A few steps of L-BFGS that never end lower than they began."""

from collections.abc import Callable

import numpy as np
import scipy.optimize

from pymc_ep.exceptions import InvalidDataError, NumericalError

__all__ = ["climb"]

_FAILED = 1e30
"""What the optimiser is told of points without a finite objective: it turns back."""


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
