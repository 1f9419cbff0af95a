"""The search for the maximum of log evidence plus log prior over unconstrained hyperparameters."""

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.optimize

from pymc_ep.exceptions import InvalidDataError, NumericalError
from pymc_ep.hyper.evidence.evidence import Evidence, EvidenceAt
from pymc_ep.hyper.hessian import STEP, curvature

__all__ = ["FAR", "WIDEST", "Objective", "Sites", "search"]

WIDEST = 5.0
"""Standard deviation of a logarithm or logit beyond which no Gaussian about a mode makes sense: a factor of 150."""
FAR = 6.0
"""Move of a logarithm or logit, a factor of 400, after which a value is said to run to a boundary."""

_ROUND = 100
"""Evaluations after which a search is continued in other coordinates."""
_EVALUATIONS = 1000
"""Most evaluations of the evidence in a search."""
_REACH = 4.0
"""How far a search may move a logarithm or logit before it starts anew: a factor of 50."""
_RETRIES = 6
"""How often a search among points without evidence starts anew, each time within a quarter of the reach."""
_LEAPS, _STEEP = (1.0, 2.0, 4.0, 8.0), 1.0
"""Distances uphill at which a search that is stuck looks for a fit, and the least slope, in nats, where it is stuck."""
_FARTHEST = 16.0
"""Move of a logarithm or logit, a factor of 9 million, after which a search that is still on its way is ended."""
_LITTLE = 1e-3
"""Gain of an iteration on the border of a box, relative to what another box promises, at which that is moved on."""
_FAILED = 1e30
"""What the optimiser is told of a point without a finite evidence: it turns back."""


Sites = tuple[np.ndarray, np.ndarray] | None


class _Spent(Exception):
    """Raised within a search in a box: it has little more to find there."""


class Objective:
    """Minus value and gradient, remembering the best fit and warm-starting from the last.

    Parameters
    ----------
    evidence : Evidence
    start : tuple of ndarray, optional
        Sites of the first fit.
    gain : float
        Nats of an iteration below which the search ends; 0 takes it to rounding.
    notice : callable, optional
        Called with each converged fit and the gradient there.
    """

    def __init__(
        self,
        evidence: Evidence,
        start: Sites,
        *,
        gain: float = 0.0,
        notice: Callable[[EvidenceAt, np.ndarray], Any] | None = None,
    ):
        self.evidence = evidence
        self.gain = gain
        self.notice = notice
        self.sites = start
        self.best: EvidenceAt | None = None
        self.latest: EvidenceAt | None = None
        self.trace: list[float] = []
        self.evaluations = 0
        self.failed_at: np.ndarray | None = None
        self.box: tuple[np.ndarray, np.ndarray] | None = None
        self.slope = np.zeros(0)
        self._value_before = np.inf
        self._last: tuple[np.ndarray, tuple[float, np.ndarray]] | None = None

    @property
    def at(self) -> EvidenceAt:
        """The best fit."""
        if self.best is None:
            raise NumericalError(
                "The log evidence is not finite at the initial hyperparameters; pass other values with start={...}."
            )
        return self.best

    def leave_if_spent(self, _: np.ndarray) -> None:
        """End a search in a box that gains next to nothing against what lies beyond its border."""
        gain, self._value_before = self.at.value - self._value_before, self.at.value
        if self.box is None:
            return
        centre, width = self.box
        moved = self.at.theta - centre
        outwards = (np.abs(moved) > 0.999 * width) & (self.slope * moved > 0)
        if outwards.any() and gain < _LITTLE * np.max(np.abs(self.slope * width), where=outwards, initial=0.0):
            raise _Spent

    def __call__(self, theta: np.ndarray) -> tuple[float, np.ndarray]:
        """Return minus value and gradient, of the last point without another fit."""
        if self._last is None or not np.array_equal(self._last[0], theta):
            self._last = theta.copy(), self._evaluated(theta)
        return self._last[1]

    def _evaluated(self, theta: np.ndarray) -> tuple[float, np.ndarray]:
        self.evaluations += 1
        try:
            at = self.latest = self.evidence.at(theta, self.sites)
        except (NumericalError, InvalidDataError):
            if self.best is None:
                raise
            return self.failed(theta)
        if not at.run.status.converged and self.best is not None and self.best.run.status.converged:
            # Its evidence is no evidence, and its gradient not that of the evidence.
            return self.failed(theta)
        gradient = self.evidence.gradient(at)
        if not (np.isfinite(at.value) and np.all(np.isfinite(gradient))):
            return self.failed(theta)
        self.sites = at.sites
        self.trace.append(at.value)
        if self.notice is not None and at.run.status.converged:
            self.notice(at, gradient)
        if self.best is None or _rank(at) > _rank(self.best):
            self.best, self.slope = at, gradient
        return -at.value, -gradient

    def failed(self, theta: np.ndarray) -> tuple[float, np.ndarray]:
        """Note a point without evidence, and return what turns the search back."""
        self.failed_at = theta.copy()
        return _FAILED, np.zeros_like(theta)


def _rank(at: EvidenceAt) -> tuple[bool, float]:
    """Return what fits are compared by: the value of one that did not converge says nothing against one that did."""
    return at.run.status.converged, at.value


def search(objective: Objective, theta: np.ndarray) -> bool:
    """Search in rounds around the best point so far; `objective` remembers the best. Says whether there is no end.

    L-BFGS takes a point without evidence for the end of its search, and a first step along a steep slope (a noise
    scale under data without noise) leads to such points. The first rounds are searches in a box, which bounds
    logarithms and logits, whose scale is known. Where the search ends on its border the box moves on; it keeps well
    within the distance of a point that failed, and grows again where none does. A box that takes more than `_ROUND`
    evaluations says that hyperparameters are coupled, or differ by orders in their scales: the rounds that follow have
    coordinates in which the curvature is one in all directions.
    """
    transformed = objective.evidence.form.transformed
    reach = np.where(transformed, _REACH, np.inf)
    width, factor, retries, whitened_at = reach, None, _RETRIES, 0
    before: EvidenceAt | None = None
    while retries and objective.evaluations < _EVALUATIONS:
        centre = theta if objective.best is None else objective.best.theta
        objective.failed_at = None
        done = _in_box(objective, centre, width) if factor is None else _whitened(objective, centre, factor, reach)
        best = objective.at
        border = np.abs(best.theta - centre) > 0.999 * (width if factor is None else reach)
        if objective.failed_at is not None:
            distance = np.abs(objective.failed_at - best.theta)
            width = np.where(distance > 0, np.minimum(width, distance) / 4, width)
            factor = None if factor is None else factor / 4
            retries -= 1
            # Twice in a row: the best point is not at fault for having been left by too large a step.
            if retries in (_RETRIES - 2, 0) and _leaps(objective, transformed):
                width, factor, retries = reach, None, _RETRIES
        elif done and not border.any():
            return False
        elif transformed[border].any() and _is_endless(before, objective, theta, transformed & border):
            return True
        else:
            width = np.where(border, np.minimum(4 * width, reach), width)
            retries = _RETRIES
        before = best
        if objective.evaluations - whitened_at >= _ROUND:
            factor = _whitening(objective)
            whitened_at = objective.evaluations
    return False


def _leaps(objective: Objective, transformed: np.ndarray) -> bool:
    """Whether there is a better fit uphill, beyond points without evidence: EP stalls on a stretch of scales only."""
    at, slope = objective.at, np.where(transformed, objective.slope, 0.0)
    steepness = float(np.linalg.norm(slope))
    for distance in _LEAPS if steepness > _STEEP else ():
        objective.sites = None
        objective(at.theta + distance * slope / steepness)
        if objective.at is not at:
            return True
    objective.sites = at.sites
    return False


def _is_endless(before: EvidenceAt | None, objective: Objective, start: np.ndarray, border: np.ndarray) -> bool:
    """Whether hyperparameters that lie on the border of a round, and move away from one, will run on for ever.

    They are taken to beyond `_FARTHEST`. Long before that they do where the evidence stood still on the last stretch
    and the prior rose at one rate, as that of a scale and the variables it scales does, all of them hyperparameters:
    no scale of the data can be met on the way, then. A vague prior or a Jacobian alone rises at a rate of about one.
    """
    at = objective.at
    moved = np.where(border & (np.abs(at.theta) > np.abs(start)), np.abs(at.theta - start), 0.0)
    if moved.max() >= _FARTHEST:
        return True
    if before is None or moved.max() < FAR:
        return False
    rise = at.value - before.value
    stretch = np.where(moved > 0, at.theta - before.theta, 0.0)
    ahead = objective.slope @ stretch
    still = abs(at.log_z - before.log_z) < 0.01 * rise
    return bool(still and abs(ahead - rise) < 0.1 * rise and rise > 1.5 * np.abs(stretch).sum())


def _in_box(objective: Objective, centre: np.ndarray, width: np.ndarray) -> bool:
    """Search within a distance of the centre in each coordinate; whether that ended by itself."""
    objective.box = centre, width
    try:
        found = _lbfgs(objective, objective, centre, scipy.optimize.Bounds(centre - width, centre + width))
    except _Spent:
        return False
    finally:
        objective.box = None
    return found.status != 1


def _whitened(objective: Objective, centre: np.ndarray, factor: np.ndarray, reach: np.ndarray) -> bool:
    """Search in coordinates u with theta = centre + factor u; whether that ended by itself."""

    def scaled(u: np.ndarray) -> tuple[float, np.ndarray]:
        theta = centre + factor @ u
        if np.any(np.abs(theta - centre) > reach):
            return objective.failed(theta)
        value, gradient = objective(theta)
        return value, factor.T @ gradient

    return _lbfgs(objective, scaled, np.zeros_like(centre), None).status != 1


def _lbfgs(objective: Objective, function: Callable, start: np.ndarray, bounds: Any) -> Any:
    # Between bounds L-BFGS-B takes the whole gradient for its first step, mostly to the border.
    first, steepness = function(start)
    scale = 1.0 / max(1.0, float(np.linalg.norm(steepness)))
    options = {
        "maxfun": min(_ROUND, _EVALUATIONS - objective.evaluations),
        "maxcor": _ROUND,
        "gtol": 1e-5 * scale,
        # Relative to the value, or to one where that is larger; to the optimiser's one, after scaling, it would be
        # many nats from a steep start.
        "ftol": max(1e-13 * min(1.0, size := scale * max(1.0, abs(first))), scale * objective.gain / max(1.0, size)),
        "maxls": 40,
    }

    def scaled(point: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = function(point)
        return scale * value, scale * gradient

    return scipy.optimize.minimize(
        scaled,
        start,
        jac=True,
        method="L-BFGS-B",
        bounds=bounds,
        options=options,
        callback=objective.leave_if_spent,
    )


def _whitening(objective: Objective) -> np.ndarray | None:
    """Return the columns in which the curvature at the best point is one, flat and rising directions cut short."""
    at = objective.at
    if at.theta.size > _ROUND:
        return None
    steps = np.full(at.theta.size, 0.1 * STEP)
    hessian, *_, clean = curvature(objective.evidence, at, steps)
    objective.evaluations += 2 * at.theta.size
    if not clean:
        return None
    eigenvalues, vectors = np.linalg.eigh(hessian)
    return vectors / np.sqrt(np.maximum(np.abs(eigenvalues), WIDEST**-2))
