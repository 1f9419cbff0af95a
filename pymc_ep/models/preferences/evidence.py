"""Log evidence of comparisons, and its gradient in the hyperparameters; see `pymc_ep.contracts.LogEvidence`."""

from copy import copy
from typing import NamedTuple

import numpy as np

from pymc_ep.contracts.evidence import FitState, LogEvidence
from pymc_ep.engines.base import Report, Status
from pymc_ep.engines.checkpoint import Checkpoint
from pymc_ep.exceptions import NumericalError
from pymc_ep.models.preferences.compiled import CompiledPreferences
from pymc_ep.models.preferences.engine.divided import DividedUsers
from pymc_ep.models.preferences.engine.evidence import ComparisonEvidence
from pymc_ep.models.preferences.engine.users import UserFactors
from pymc_ep.models.preferences.engine.values import Sites

__all__ = ["PreferenceEvidence", "PreferenceFit"]


class PreferenceFit(NamedTuple):
    """A fit at one value of the hyperparameters.

    Attributes
    ----------
    theta : ndarray, (p,)
        Unconstrained hyperparameters.
    log_z : float
        Log evidence.
    log_prior : float
        Log prior term of theta, as `LogEvidence.density` defines it.
    gradient : ndarray, (p,)
        Gradient of ``log_z + log_prior`` in theta.
    users : UserFactors
        Factors of all users.
    status : Status
        Always converged. Users whose factors have not settled can be seen from `UserFactors.change`.
    """

    theta: np.ndarray
    log_z: float
    log_prior: float
    gradient: np.ndarray
    users: UserFactors
    status: Status = Status(True, "")

    @property
    def value(self) -> float:
        """Log evidence plus log prior."""
        return self.log_z + self.log_prior

    @property
    def state(self) -> FitState:
        """Shift and precision of the factors, (P,) each."""
        return self.users.sites


class PreferenceEvidence(LogEvidence[PreferenceFit]):
    """Log evidence log Z(theta) and log prior log p(theta), with the factors of all users iterated at each theta.

    Parameters
    ----------
    form : CompiledPreferences
    engine : ComparisonEvidence
    users : DividedUsers
    first : UserFactors
        Factors from which a fit starts by default.
    report : Report, optional
    checkpoint : Checkpoint, optional
        Stores each fit under its hyperparameters, start and tolerance.
    density : {"natural", "unconstrained", "none"}
        See `LogEvidence`.
    """

    form: CompiledPreferences

    def __init__(
        self,
        form: CompiledPreferences,
        engine: ComparisonEvidence,
        users: DividedUsers,
        first: UserFactors,
        report: Report | None = None,
        checkpoint: Checkpoint | None = None,
        *,
        density: str = "natural",
    ):
        super().__init__(form, report, density=density)
        self.engine, self.users, self.first = engine, users, first
        self.checkpoint = checkpoint or Checkpoint()

    def varied(self, *, density: str | None = None, tol: float | None = None) -> "PreferenceEvidence":
        """Return a copy with another `density`, or whose factors are iterated to another tolerance `tol`, or both."""
        other = copy(self)
        other.density = density or self.density
        other.engine = self.engine if tol is None else self.engine.to_tolerance(tol)
        return other

    def at(self, theta: np.ndarray, start: FitState | None = None) -> PreferenceFit:
        """Return the fit at unconstrained hyperparameters `theta`, (p,), iterated from `start`, by default `first`."""
        initial = self.first if start is None else self.first._replace(sites=Sites(*start))
        tol = np.array(self.engine.effort.tol)
        record = self.checkpoint.record("preferences", theta, *initial.sites, tol)
        if (fit := record.state((0.0, theta, initial))) is None:
            handles, totals = self.engine.settled(self.form, theta, self.users.place(initial))
            if not np.isfinite(totals.log_z):
                raise NumericalError("The log evidence of the comparisons is not finite at some hyperparameters.")
            slope = self.form.log_z_gradient(theta, *totals.derivatives)
            fit = totals.log_z, slope, self.users.collect(handles)
            record.keep(lambda: fit)
            record.close()
        log_z, slope, users = fit
        log_prior, prior_slope = self.prior_at(theta)
        return PreferenceFit(theta, log_z, log_prior, slope + prior_slope, users)

    def gradient(self, fit: PreferenceFit) -> np.ndarray:
        """Return the gradient of `PreferenceFit.value`, (p,)."""
        return fit.gradient

    def kept(self, fit: PreferenceFit) -> PreferenceFit:
        """Return the fit itself, as it has no large matrices to leave out."""
        return fit
