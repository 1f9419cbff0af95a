"""Base class of engines that ascend a bound: stopping test and monotone L-BFGS steps in the hyperparameters."""

from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import scipy

from pymc_ep.engines.base import Status
from pymc_ep.exceptions import InvalidDataError, NumericalError

__all__ = ["BoundAscent", "lbfgs", "lbfgs_steps"]

_FAILED = 1e30
"""Value that is minimised at points where the objective fails or is not finite. It is far above any real value, so that
the line search of L-BFGS backtracks, and finite, since the line search interpolates values."""


class AscentState(Protocol):
    """State of an ascent, with the numbers that its stopping test needs."""

    @property
    def objective(self) -> float:
        """The bound plus the log prior of the hyperparameters."""

    @property
    def change(self) -> float:
        """Increase of the objective in the last step, divided by the number of cells."""

    @property
    def loop(self) -> int:
        """Number of steps made."""


State = TypeVar("State", bound=AscentState)
"""State of an engine that ascends a bound."""


class BoundAscent(Generic[State]):
    """Ascent of a bound on the log density of n cells, or other observations.

    Parameters
    ----------
    tol : float
        Largest change per cell at which the iteration ends.
    """

    def __init__(self, tol: float):
        self.tol = tol

    def objective(self, state: State) -> float:
        """Return the bound plus the log prior of the hyperparameters."""
        return state.objective

    def change(self, state: State) -> float:
        """Return the increase of the objective in the last step, divided by the number of cells."""
        return state.change

    def finished(self, state: State) -> Status | None:
        """Return how the iteration ended, or None while it goes on."""
        if not (state.change <= self.tol and self.may_end(state)):
            return None
        # A step to -inf has a change of -inf, which no tolerance tells from convergence.
        if not np.isfinite(state.objective):
            return Status(
                False,
                f"stopped after {state.loop} steps at a bound of {state.objective:g}, which is not finite; give "
                f"another start by start=, or narrower priors",
            )
        return Status(True, f"converged {_progress(state)}")

    def exhausted(self, state: State, iterations: int) -> str:
        """Return the sentence for an ascent that is not finished at the largest number of iterations."""
        return f"stopped {_progress(state)}; raise max_iter or tol"

    def may_end(self, state: State) -> bool:
        """Return whether all parameters have been updated, so that a small change means convergence."""
        raise NotImplementedError


def _progress(state: AscentState) -> str:
    return f"after {state.loop} steps, the last of which raised the bound by {state.change:.2g} a cell"


def lbfgs(
    objective: Callable[[np.ndarray], tuple[float, np.ndarray]], theta: np.ndarray, **options: Any
) -> "scipy.optimize.OptimizeResult":
    """Maximise a function of theta by L-BFGS.

    Parameters
    ----------
    objective : callable
        ``objective(theta)`` returns value and gradient, (p,). Where it raises `NumericalError` or `InvalidDataError`,
        or is not finite, the line search backtracks.
    theta : ndarray, (p,)
        Start.
    **options
        Options of L-BFGS-B in `scipy.optimize.minimize`.

    Returns
    -------
    scipy.optimize.OptimizeResult
        Its ``fun`` is minus the objective.
    """
    return scipy.optimize.minimize(_to_minimise(objective), theta, jac=True, method="L-BFGS-B", options=options)


def lbfgs_steps(
    objective: Callable[[np.ndarray], tuple[float, np.ndarray]], theta: np.ndarray, iterations: int
) -> tuple[np.ndarray, float]:
    """Maximise over the hyperparameters by a few iterations of L-BFGS; the objective never decreases.

    Parameters
    ----------
    objective, theta
        As in `lbfgs`.
    iterations : int
        Largest number of iterations.

    Returns
    -------
    theta : ndarray, (p,)
        The maximiser that was found; the start where no iteration increased the objective.
    value : float
        The objective there.
    """
    before, _ = _to_minimise(objective)(theta)
    optimum = lbfgs(objective, theta, maxiter=iterations)
    return (optimum.x, -float(optimum.fun)) if optimum.fun < before else (theta, -before)


def _to_minimise(
    objective: Callable[[np.ndarray], tuple[float, np.ndarray]],
) -> Callable[[np.ndarray], tuple[float, np.ndarray]]:
    """Return the function of minus `objective` and minus its gradient, (p,): `_FAILED` and zeros where it fails."""

    def evaluate(point: np.ndarray) -> tuple[float, np.ndarray]:
        try:
            value, gradient = objective(point)
        except (NumericalError, InvalidDataError):
            return _FAILED, np.zeros_like(point)
        good = np.isfinite(value) and np.isfinite(gradient).all()
        return (-value, -gradient) if good else (_FAILED, np.zeros_like(point))

    return evaluate
