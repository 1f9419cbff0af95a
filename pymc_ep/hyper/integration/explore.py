"""Fits at many values of the hyperparameters, stored as design points of the emulator."""

from typing import NamedTuple

import numpy as np

from pymc_ep.exceptions import InvalidDataError, NumericalError
from pymc_ep.hyper.evidence.cumulants import correction_at
from pymc_ep.hyper.evidence.evidence import Evidence, EvidenceAt

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
    sites : tuple of ndarray, (n,)
    mean, variance : ndarray, (n,)
        Posterior moments of the predictors.
    log_predictive : ndarray, (n,)
        Of each observation given the others.
    correction : float
        Correction of `log_z` by the cumulants of the sites, in nats; NaN where not computed, or where the series
        diverges.
    """

    theta: np.ndarray
    log_z: float
    gradient: np.ndarray
    log_prior: float
    sites: tuple[np.ndarray, np.ndarray]
    mean: np.ndarray
    variance: np.ndarray
    log_predictive: np.ndarray
    correction: float = np.nan

    @property
    def value(self) -> float:
        """Log evidence plus log prior."""
        return self.log_z + self.log_prior


class Explorer:
    """Fits at points, each started from the sites of the nearest earlier one.

    Attributes
    ----------
    points : list of DesignPoint
    failed : list of ndarray, (p,)
        Points without a converged fit.
    correct : bool
        Whether to compute the correction at the fits that follow.
    evaluations : int
    """

    def __init__(self, evidence: Evidence):
        self.evidence = evidence
        self.points: list[DesignPoint] = []
        self.failed: list[np.ndarray] = []
        self.correct = False

    @property
    def evaluations(self) -> int:
        """Number of fits, failed ones included."""
        return len(self.points) + len(self.failed)

    def record(self, at: EvidenceAt, gradient: np.ndarray) -> DesignPoint:
        """Store a converged fit, given the gradient of its value, (p,)."""
        prior_gradient = self.evidence.form.rows.log_prior_gradients(at.theta[None])[1][0]
        point = DesignPoint(
            at.theta.copy(),
            at.log_z,
            gradient - prior_gradient,
            at.prior.log_prior,
            at.sites,
            *at.predictors,
            self.evidence.leave_one_out(at),
            self._correction(at),
        )
        self.points.append(point)
        return point

    def _correction(self, at: EvidenceAt) -> float:
        if not self.correct:
            return np.nan
        found = correction_at(self.evidence, at)
        return np.nan if found.diverges else found.total

    def __call__(self, theta: np.ndarray) -> DesignPoint | None:
        """Fit at `theta`, (p,); None where there is no converged fit."""
        self.evidence.report.advance()
        near = min(self.points, key=lambda point: float(np.sum((point.theta - theta) ** 2)))
        try:
            at = self.evidence.settled(theta, near.sites)
            gradient = self.evidence.gradient(at) if at.run.status.converged else np.full_like(theta, np.nan)
        except (NumericalError, InvalidDataError):
            self.failed.append(theta)
            return None
        if not (np.isfinite(at.value) and np.all(np.isfinite(gradient))):
            self.failed.append(theta)
            return None
        return self.record(at, gradient)

    def density(self, theta: np.ndarray) -> tuple[float, np.ndarray] | None:
        """Return log evidence plus log prior at `theta`, (p,), and the gradient; None without a converged fit."""
        if (point := self(theta)) is None:
            return None
        return point.value, point.gradient + self.evidence.form.rows.log_prior_gradients(theta[None])[1][0]
