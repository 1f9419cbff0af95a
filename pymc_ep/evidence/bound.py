"""A bound on the log evidence, maximised at given hyperparameters by a method's existing engine.

At its maximum over the posterior Q a bound B(theta, Q) is stationary in Q, so that its gradient in theta is the partial
derivative at fixed Q:

    d/dtheta max_Q B(theta, Q) = dB/dtheta.

Bounds have several maxima, and a factor that a fit has pruned stays at zero in all fits that start from it. Such fits
would depend on their order: for 3 factors of 3,661 ratings, a fit that started from one at smaller scales was 21 nats
below the fit at the same scale that started from one at larger scales. Instead, every fit starts as `pymc_ep.fit` with
``hyper="fixed"`` does.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from pymc_ep.contracts.evidence import FitState, LogEvidence
from pymc_ep.contracts.method import Call
from pymc_ep.contracts.solution import Solution
from pymc_ep.engines.base import Report, Status
from pymc_ep.engines.interrupt import Interrupted
from pymc_ep.evidence.conditional_fits import ManyFits, fit_many
from pymc_ep.evidence.op import EvidenceOp

__all__ = ["BoundAt", "BoundEvidence", "BoundSampling", "Maximum"]


class Maximum(NamedTuple):
    """A bound at its maximum over the posterior.

    Attributes
    ----------
    log_z : float
        The bound, without the prior of the hyperparameters.
    gradient : ndarray, (p,)
        Gradient of the bound in the unconstrained hyperparameters.
    status : Status
    saved : object
        The part of the fit that the method's solution needs.
    """

    log_z: float
    gradient: np.ndarray
    status: Status
    saved: Any


class BoundAt(NamedTuple):
    """A fit of `BoundEvidence`; see `pymc_ep.contracts.evidence.EvidenceFit`.

    Attributes
    ----------
    theta : ndarray, (p,)
    maximum : Maximum
    log_prior : float
    prior_gradient : ndarray, (p,)
    state : tuple of ndarray
        Empty, as no fit starts from another.
    """

    theta: np.ndarray
    maximum: Maximum
    log_prior: float
    prior_gradient: np.ndarray
    state: FitState = ()

    @property
    def log_z(self) -> float:
        """The maximum of the bound, without the prior of the hyperparameters."""
        return self.maximum.log_z

    @property
    def value(self) -> float:
        """Bound plus log prior."""
        return self.log_z + self.log_prior

    @property
    def status(self) -> Status:
        """How the ascent ended."""
        return self.maximum.status


class BoundEvidence(LogEvidence[BoundAt]):
    """max_Q B(theta, Q) as a log evidence, by fits that depend on theta alone and not on earlier fits.

    Parameters
    ----------
    form : HyperForm
    maximum_at : callable
        ``maximum_at(form, theta)`` returns the `Maximum` at unconstrained hyperparameters, (p,).
    report : Report, optional
    density : {"natural", "unconstrained", "none"}
        See `LogEvidence`.
    """

    def __init__(
        self,
        form: Any,
        maximum_at: Callable[[Any, np.ndarray], Maximum],
        report: Report | None = None,
        *,
        density: str = "natural",
    ):
        super().__init__(form, report, density=density)
        self.maximum_at = maximum_at

    def at(self, theta: np.ndarray, start: FitState | None = None) -> BoundAt:
        """Return the fit at unconstrained hyperparameters `theta`, (p,), from the method's own start, not `start`."""
        log_prior, slope = self.prior_at(theta)
        fit = BoundAt(theta, self.maximum_at(self.form, theta), log_prior, slope)
        if fit.status.interrupted:
            raise Interrupted(fit)
        return fit

    def gradient(self, fit: BoundAt) -> np.ndarray:
        """Return the gradient of `BoundAt.value`, (p,)."""
        return fit.maximum.gradient + fit.prior_gradient

    def kept(self, fit: BoundAt) -> Any:
        """Return the part of the fit that the method's solution needs."""
        return fit.maximum.saved


@dataclass(frozen=True)
class BoundSampling:
    """Functions `evidence_op` and `condition` by which a `pymc_ep.contracts.Method` of a bound samples hyperparameters.

    Attributes
    ----------
    settings : callable
        ``settings(form, options)`` returns all options; raises for options under which the bound is no density of the
        hyperparameters.
    maximum_at : callable
        ``maximum_at(settings, form, theta)`` returns the `Maximum` at unconstrained hyperparameters, (p,).
    solution : callable
        ``solution(form, fits, settings)`` returns the solution from fits at draws, a `ManyFits`.
    """

    settings: Callable[[Any, dict[str, Any]], dict[str, Any]]
    maximum_at: Callable[[dict[str, Any], Any, np.ndarray], Maximum]
    solution: Callable[[Any, ManyFits[BoundAt], dict[str, Any]], Solution]

    def evidence_op(self, form: Any, options: dict[str, Any]) -> EvidenceOp:
        """Return the bound as an Op of the unconstrained hyperparameters."""
        return EvidenceOp(form, partial(self._evidence, self.settings(form, options)))

    def condition(self, call: Call[Any], thetas: np.ndarray) -> Solution:
        """Return the solution from fits at k draws of the hyperparameters, (k, p); its draws come from all fits."""
        settings = self.settings(call.form, call.options)
        evidence = self._evidence(settings, call.form, "none", call.report)
        return self.solution(call.form, fit_many(evidence, thetas), settings)

    def _evidence(
        self, settings: dict[str, Any], form: Any, density: str, report: Report | None = None
    ) -> BoundEvidence:
        return BoundEvidence(form, partial(self.maximum_at, settings), report, density=density)
