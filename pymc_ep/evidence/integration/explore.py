"""Fits at many values of the hyperparameters, each started from earlier ones."""

from typing import Generic

import numpy as np

from pymc_ep.contracts.evidence import DesignPoint, FitState, LogEvidence, OwnFit
from pymc_ep.exceptions import InvalidDataError, NumericalError

__all__ = ["Explorer"]


class Explorer(Generic[OwnFit]):
    """Fits at points, each started from the states of earlier ones.

    Attributes
    ----------
    points : list of DesignPoint
    failed : list of ndarray, (p,)
        Points without a converged fit.
    corrected : float
        Number of the next fits for which a correction is computed.
    evaluations : int
        Number of fits, failed ones included.
    """

    def __init__(self, evidence: LogEvidence[OwnFit]):
        self.evidence = evidence
        self.points: list[DesignPoint] = []
        self.failed: list[np.ndarray] = []
        self.corrected = 0.0

    @property
    def evaluations(self) -> int:
        """Number of fits, failed ones included."""
        return len(self.points) + len(self.failed)

    def record(self, at: OwnFit, gradient: np.ndarray) -> DesignPoint:
        """Store a converged fit, given the gradient of its value, (p,); return what is stored."""
        prior_gradient = self.evidence.form.rows.log_prior_gradients(at.theta[None])[1][0]
        point = DesignPoint(
            at.theta.copy(),
            at.log_z,
            gradient - prior_gradient,
            at.log_prior,
            at.state,
            self.evidence.kept(at),
            self.evidence.correction(at) if self.corrected > 0.0 else np.nan,
        )
        self.corrected -= 1.0
        self.points.append(point)
        return point

    def __call__(self, theta: np.ndarray) -> DesignPoint | None:
        """Return a new fit at `theta`, (p,), and store it; None where there is no converged fit."""
        self.evidence.report.advance()
        try:
            at = self.evidence.explored(theta, self.points)
            gradient = self.evidence.gradient(at) if at.status.converged else np.full_like(theta, np.nan)
        except (NumericalError, InvalidDataError):
            self.failed.append(theta)
            return None
        if not (np.isfinite(at.value) and np.all(np.isfinite(gradient))):
            self.failed.append(theta)
            return None
        return self.record(at, gradient)

    def settled(self, theta: np.ndarray, start: FitState) -> OwnFit | None:
        """Return a fit at `theta`, (p,), to the full tolerance, without storing it; None where it does not converge."""
        self.evidence.report.advance()
        try:
            at = self.evidence.settled(theta, start)
        except (NumericalError, InvalidDataError):
            return None
        return at if at.status.converged and np.isfinite(at.value) else None

    def node(self, theta: np.ndarray, _: DesignPoint) -> tuple[float, DesignPoint] | None:
        """Return log density and fit at `theta`, (p,), as `lattice.Fit` does; None without a converged fit."""
        point = self(theta)
        return None if point is None else (point.value, point)

    def density(self, theta: np.ndarray) -> tuple[float, np.ndarray] | None:
        """Return log evidence plus log prior at `theta`, (p,), and the gradient; None without a converged fit."""
        if (point := self(theta)) is None:
            return None
        return point.value, point.gradient + self.evidence.form.rows.log_prior_gradients(theta[None])[1][0]
