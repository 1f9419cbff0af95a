"""Fits at many values of the hyperparameters, stored as design points of the emulator."""

from typing import Any, Generic, NamedTuple

import numpy as np

from pymc_ep.contracts.evidence import FitState, LogEvidence, OwnFit
from pymc_ep.exceptions import InvalidDataError, NumericalError

__all__ = ["DesignPoint", "Explorer"]


class DesignPoint(NamedTuple):
    """A fit at one value of the hyperparameters, without the matrices of its posterior.

    Attributes
    ----------
    theta : ndarray, (p,)
    log_z : float
        Log evidence.
    gradient : ndarray, (p,)
        Of the log evidence.
    log_prior : float
        Log density of theta, Jacobian terms included.
    state : tuple of ndarray
        Start of near fits.
    kept : object
        What `LogEvidence.kept` returned.
    correction : float
        Correction of `log_z`, in nats; NaN where not computed, or where there is none.
    """

    theta: np.ndarray
    log_z: float
    gradient: np.ndarray
    log_prior: float
    state: FitState
    kept: Any
    correction: float = np.nan

    @property
    def value(self) -> float:
        """Log evidence plus log prior."""
        return self.log_z + self.log_prior


class Explorer(Generic[OwnFit]):
    """Fits at points, each started from the state of the nearest earlier one.

    Attributes
    ----------
    points : list of DesignPoint
    failed : list of ndarray, (p,)
        Points without a converged fit.
    correct : bool
        Whether to compute the correction at the fits that follow.
    evaluations : int
    """

    def __init__(self, evidence: LogEvidence[OwnFit]):
        self.evidence = evidence
        self.points: list[DesignPoint] = []
        self.failed: list[np.ndarray] = []
        self.correct = False

    @property
    def evaluations(self) -> int:
        """Number of fits, failed ones included."""
        return len(self.points) + len(self.failed)

    def record(self, at: OwnFit, gradient: np.ndarray) -> DesignPoint:
        """Store a converged fit, given the gradient of its value, (p,)."""
        prior_gradient = self.evidence.form.rows.log_prior_gradients(at.theta[None])[1][0]
        point = DesignPoint(
            at.theta.copy(),
            at.log_z,
            gradient - prior_gradient,
            at.log_prior,
            at.state,
            self.evidence.kept(at),
            self.evidence.correction(at) if self.correct else np.nan,
        )
        self.points.append(point)
        return point

    def __call__(self, theta: np.ndarray) -> DesignPoint | None:
        """Fit at `theta`, (p,); None where there is no converged fit."""
        self.evidence.report.advance()
        near = min(self.points, key=lambda point: float(np.sum((point.theta - theta) ** 2)))
        try:
            at = self.evidence.settled(theta, near.state)
            gradient = self.evidence.gradient(at) if at.status.converged else np.full_like(theta, np.nan)
        except (NumericalError, InvalidDataError):
            self.failed.append(theta)
            return None
        if not (np.isfinite(at.value) and np.all(np.isfinite(gradient))):
            self.failed.append(theta)
            return None
        return self.record(at, gradient)

    def node(self, theta: np.ndarray, _: DesignPoint) -> tuple[float, DesignPoint] | None:
        """Return log density and fit at `theta`, (p,), as a lattice takes them; None without a converged fit."""
        point = self(theta)
        return None if point is None else (point.value, point)

    def density(self, theta: np.ndarray) -> tuple[float, np.ndarray] | None:
        """Return log evidence plus log prior at `theta`, (p,), and the gradient; None without a converged fit."""
        if (point := self(theta)) is None:
            return None
        return point.value, point.gradient + self.evidence.form.rows.log_prior_gradients(theta[None])[1][0]
