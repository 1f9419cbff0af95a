"""Log evidence of a form as a function of its hyperparameters, which `pymc_ep.evidence` maximises or integrates."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np

from pymc_ep.contracts.form import HyperForm
from pymc_ep.engines.base import Report, Status

__all__ = ["DesignPoint", "EvidenceFit", "Fit", "FitState", "LogEvidence", "OwnFit", "nearest_points"]

FitState = tuple[np.ndarray, ...]
"""Arrays of a fit from which fits at other hyperparameters start, such as shift and precision of EP's sites. Each array
is a smooth function of the hyperparameters, of the same shape in all fits."""


class EvidenceFit(Protocol):
    """A fit at one value of the hyperparameters; `Fit` is one."""

    @property
    def theta(self) -> np.ndarray:
        """Unconstrained hyperparameters, (p,)."""

    @property
    def log_z(self) -> float:
        """Log evidence, without the prior of the hyperparameters."""

    @property
    def log_prior(self) -> float:
        """Term that `value` adds to `log_z`: the log prior of the kind that `LogEvidence.density` names, or zero."""

    @property
    def value(self) -> float:
        """``log_z + log_prior``."""

    @property
    def status(self) -> Status:
        """Whether the fit converged, so that `log_z` is the log evidence, and the reason where it did not."""

    @property
    def state(self) -> FitState:
        """Arrays from which fits at near hyperparameters start."""


class Fit(NamedTuple):
    """A fit with its gradient as a field, for an evidence whose gradient comes with the fit, as from a closed form.

    Attributes
    ----------
    theta : ndarray, (p,)
    log_z : float
        Log evidence.
    log_prior : float
        See `EvidenceFit`.
    gradient : ndarray, (p,)
        Gradient of ``log_z + log_prior`` in `theta`.
    status : pymc_ep.engines.base.Status
    state : tuple of ndarray
        See `EvidenceFit`.
    """

    theta: np.ndarray
    log_z: float
    log_prior: float
    gradient: np.ndarray
    status: Status = Status(True, "")
    state: FitState = ()

    @property
    def value(self) -> float:
        """Log evidence plus log prior."""
        return self.log_z + self.log_prior


OwnFit = TypeVar("OwnFit", bound=EvidenceFit)
"""Type of the fits of an evidence."""


class DesignPoint(NamedTuple):
    """A fit at one value of the hyperparameters, without the matrices of its posterior.

    Attributes
    ----------
    theta : ndarray, (p,)
    log_z : float
        Log evidence.
    gradient : ndarray, (p,)
        Gradient of `log_z`.
    log_prior : float
        Log density of theta, Jacobian terms included.
    state : tuple of ndarray
        Arrays from which near fits start.
    kept : object
        Result of `LogEvidence.kept`.
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


def nearest_points(points: Sequence[DesignPoint], theta: np.ndarray, count: int) -> list[DesignPoint]:
    """Return the fits nearest to `theta`, (p,), `count` at most, the nearest first."""
    squares = ((np.array([point.theta for point in points]) - theta) ** 2).sum(axis=1)
    return [points[i] for i in np.argsort(squares, kind="stable")[:count]]


class LogEvidence(ABC, Generic[OwnFit]):
    """log Z(theta), its gradient, and fits at values of theta, each of which may start from another.

    A subclass must define `at` and `gradient`. The other methods have defaults for an evidence whose fits do not depend
    on their start, without a correction, and for a posterior that needs no interpolation between fits.

    Parameters
    ----------
    form : HyperForm
    report : Report, optional
        Reports each iteration, and each fit of a search or an integration.
    density : {"natural", "unconstrained", "none"}
        Meaning of `EvidenceFit.log_prior`. ``"natural"``: the log prior of the hyperparameters without Jacobian terms,
        as `pymc.find_MAP` maximises it. ``"unconstrained"``: their log density on the unconstrained scale, over which
        one integrates. ``"none"``: zero.
    """

    form: HyperForm

    def __init__(self, form: HyperForm, report: Report | None = None, *, density: str = "natural"):
        self.form = form
        self.report = report or Report()
        self.density = density

    @abstractmethod
    def at(self, theta: np.ndarray, start: FitState | None = None) -> OwnFit:
        """Return the fit at unconstrained hyperparameters `theta`, (p,); `start` is the state of another fit.

        Raises
        ------
        NumericalError, InvalidDataError
            Where there is no evidence; a search turns back from there.
        pymc_ep.engines.interrupt.Interrupted
            Where the user interrupts the fit; its attribute ``at`` is the unfinished fit.
        """

    @abstractmethod
    def gradient(self, fit: OwnFit) -> np.ndarray:
        """Return the gradient of `EvidenceFit.value`, (p,)."""

    def prior_at(self, theta: np.ndarray) -> tuple[float, np.ndarray]:
        """Return `EvidenceFit.log_prior` at theta, (p,), of the kind `density`, and its gradient, (p,)."""
        if self.density == "none":
            return 0.0, np.zeros_like(theta)
        value, gradient = self.form.rows.log_prior_gradients(theta[None], jacobian=self.density == "unconstrained")
        return float(value[0]), gradient[0]

    def settled(self, theta: np.ndarray, start: FitState | None = None) -> OwnFit:
        """Return a fit at `theta`, (p,), that does not depend on `start` beyond the tolerance."""
        return self.at(theta, start)

    def explored(self, theta: np.ndarray, points: Sequence[DesignPoint]) -> OwnFit:
        """Return a fit at `theta`, (p,), started from earlier ones, `points`, as accurate as emulating log Z needs."""
        return self.settled(theta, nearest_points(points, theta, 1)[0].state)

    def kept(self, fit: OwnFit) -> Any:
        """Return the parts of a fit that the solution needs, without matrices; None where it needs none."""
        return None

    def corrected_fits(self, fit: OwnFit) -> str:
        """Return which fits of an integration get a correction: ``"all"``, ``"some"`` or ``"none"``.

        ``"some"`` are the first fits, and the fits at representatives of the posterior.
        """
        return "none"

    def correction(self, fit: OwnFit) -> float:
        """Return the correction to be added to `EvidenceFit.log_z`, in nats; NaN where there is none."""
        return np.nan

    def correction_warning(self, shifts: np.ndarray | None, missing: float) -> str:
        """Return a warning about large or missing corrections; empty where there is no reason for one.

        Parameters
        ----------
        shifts : ndarray, (p,), or None
            Shifts of the means of the hyperparameters by the correction, in standard deviations; None where too many
            fits have no correction for it to be applied.
        missing : float
            Share of the fits without a correction.
        """
        return ""

    def variation(self, points: Sequence[DesignPoint], shares: np.ndarray) -> float:
        """Return the largest variation of a predictor's posterior mean between k fits with the weights `shares`, (k,).

        It is in posterior standard deviations, and infinite where it is not known.
        """
        return np.inf

    def interpolation_error(self, points: Sequence[DesignPoint], new_points: Sequence[DesignPoint]) -> float:
        """Return the error, at `new_points`, of a posterior interpolated between `points`, in standard deviations.

        Zero where the posterior at given hyperparameters is computed and not interpolated.
        """
        return 0.0
