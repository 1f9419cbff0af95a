"""The search for the maximum of log evidence plus log prior over unconstrained hyperparameters."""

import itertools
from collections.abc import Callable
from typing import Any, Generic

import numpy as np
import scipy

from pymc_ep.contracts.evidence import EvidenceFit, FitState, LogEvidence, OwnFit
from pymc_ep.evidence.hessian import STEP, curvature
from pymc_ep.exceptions import InvalidDataError, NumericalError

__all__ = ["FAR", "WIDEST", "Objective", "search"]

WIDEST = 5.0
"""Largest standard deviation of a logarithm or logit for a Gaussian about the mode: a factor of 150. With a wider one
the data do not determine the hyperparameter."""
FAR = 6.0
"""Distance of a logarithm or logit from its start, a factor of 400, beyond which it counts as running to a boundary if
the density still rises."""

_ROUND = 100
"""Most evaluations of one round. After so many, hyperparameters count as coupled or badly scaled. The search then goes
on in whitened coordinates, whose Hessian costs two evaluations for each hyperparameter."""
_EVALUATIONS = 1000
"""Most evaluations of the evidence in one search, ten rounds: a bound on its time."""
_REACH = 4.0
"""Half-width of the box of a logarithm or logit, a factor of 50: a smaller one costs rounds, a larger one lets a first
step along a steep slope reach points without evidence."""
_RETRIES = 6
"""Rounds in a row that may meet points without evidence. Each at least quarters the box, to 1e-3 of `_REACH` at the
end."""
_UPHILL_DISTANCES, _STEEP_SLOPE = (1.0, 2.0, 4.0, 8.0), 1.0
"""Distances of the trial points uphill of a stuck search, and the slope, in nats, above which it counts as stuck. The
largest distance, a factor of 3000, crosses a range of scales on which EP does not converge."""
_FARTHEST = 16.0
"""Distance of a logarithm or logit from its start, a factor of 9 million, at which a search that still rises is ended.
A larger one costs fits where the density has no mode; a smaller one misjudges a start that is far off."""
_AHEAD, _FORETOLD, _OTHER_MODE = np.arange(0.5, _FARTHEST, 0.5), 3.0, 4.0
"""Distances to which `_better_fit_foreseen` extrapolates the density, the extrapolated gain, in nats, above which it
makes a fit, and the least distance of such a fit. The integration finds nearer modes by itself; on the way to farther
ones the prior falls by some nats."""
_LEVEL = 1e-5
"""Largest derivative, in nats, at which a search ends: a mode of curvature 1 errs by as much."""
_STILL, _OFF = 1e-8, 0.1
"""Slope of an untransformed hyperparameter, in nats, below which it counts as zero, and the standard deviation of the
random step by which a start with such a slope is moved."""
_NEGLIGIBLE_GAIN = 1e-3
"""Gain of an iteration on the border of its box, relative to slope times half-width, below which the box moves on."""
_FAILED = 1e30
"""Objective at a point without a finite evidence, in nats: above any other, so that the line search turns back, and
finite, so that its arithmetic goes on."""


class _BoxExhausted(Exception):
    """Raised to end a search on the border of its box, where iterations gain far less than a move of the box would."""


class Objective(Generic[OwnFit]):
    """Function of theta, (p,), that returns minus `EvidenceFit.value` and minus its gradient, (p,), both from one fit.

    The object stores the best fit. Each fit starts from the state of the last.

    Parameters
    ----------
    evidence : LogEvidence
    start : tuple of ndarray, optional
        State from which the first fit starts.
    gain : float
        Gain of an iteration, in nats, below which the search ends; with 0 it goes on to rounding.
    on_fit : callable, optional
        Called with each converged fit and the gradient there.
    """

    def __init__(
        self,
        evidence: LogEvidence[OwnFit],
        start: FitState | None,
        *,
        gain: float = 0.0,
        on_fit: Callable[[OwnFit, np.ndarray], Any] | None = None,
    ):
        self.evidence = evidence
        self.gain = gain
        self.on_fit = on_fit
        self.state = start
        self.best: OwnFit | None = None
        self.latest: OwnFit | None = None
        self.trace: list[float] = []
        self.evaluations = 0
        self.failed_at: np.ndarray | None = None
        self.box: tuple[np.ndarray, np.ndarray] | None = None
        self.slope = np.zeros(0)
        self._value_before = np.inf
        self._last: tuple[np.ndarray, tuple[float, np.ndarray]] | None = None

    @property
    def at(self) -> OwnFit:
        """The best fit."""
        if self.best is None:
            raise NumericalError(
                "The log evidence is not finite at the initial hyperparameters; pass other values with start={...}."
            )
        return self.best

    def end_at_border(self, _: np.ndarray) -> None:
        """Raise `_BoxExhausted` on the border of the box if the gain is below `_NEGLIGIBLE_GAIN` slope * half-width."""
        gain, self._value_before = self.at.value - self._value_before, self.at.value
        if self.box is None:
            return
        centre, width = self.box
        moved = self.at.theta - centre
        outwards = (np.abs(moved) > 0.999 * width) & (self.slope * moved > 0)
        if outwards.any() and gain < _NEGLIGIBLE_GAIN * np.max(np.abs(self.slope * width), where=outwards, initial=0.0):
            raise _BoxExhausted

    def __call__(self, theta: np.ndarray) -> tuple[float, np.ndarray]:
        """Return minus the value and minus its gradient, (p,), at theta; the same point again costs no fit."""
        if self._last is None or not np.array_equal(self._last[0], theta):
            self._last = theta.copy(), self._evaluated(theta)
        return self._last[1]

    def _evaluated(self, theta: np.ndarray) -> tuple[float, np.ndarray]:
        self.evaluations += 1
        try:
            at = self.latest = self.evidence.at(theta, self.state)
        except (NumericalError, InvalidDataError):
            if self.best is None:
                raise
            return self.failed(theta)
        if not at.status.converged and self.best is not None and self.best.status.converged:
            # Away from a fixed point log Z is not the evidence, and the gradient is not its derivative.
            return self.failed(theta)
        gradient = self.evidence.gradient(at)
        if not (np.isfinite(at.value) and np.all(np.isfinite(gradient))):
            return self.failed(theta)
        self.state = at.state
        self.trace.append(at.value)
        if self.on_fit is not None and at.status.converged:
            self.on_fit(at, gradient)
        if self.best is None or _rank(at) > _rank(self.best):
            self.best, self.slope = at, gradient
        return -at.value, -gradient

    def failed(self, theta: np.ndarray) -> tuple[float, np.ndarray]:
        """Record a point without evidence; return `_FAILED` and a zero gradient: the line search turns back."""
        self.failed_at = theta.copy()
        return _FAILED, np.zeros_like(theta)


def _rank(at: EvidenceFit) -> tuple[bool, float]:
    """Return the sort key of fits: convergence, then value, since the value of an unconverged fit is no evidence."""
    return at.status.converged, at.value


def search(objective: Objective, theta: np.ndarray) -> bool:
    """Search in rounds about the best point, kept by `objective`; return whether a hyperparameter runs to a boundary.

    L-BFGS ends at a point without evidence. A first step along a steep slope leads to such points, as for a noise scale
    under data without noise. So the first rounds search in a box, which bounds logarithms and logits, whose scale is
    known. A search that ends on the border moves the box. A point that failed shrinks the box to a quarter of its
    distance; a round without one lets the box grow again. More than `_ROUND` evaluations mean that hyperparameters are
    coupled, or differ by orders in their scales. The rounds that follow use coordinates of unit curvature.
    """
    transformed = objective.evidence.form.transformed
    theta = _off_saddle(objective, theta, transformed)
    reach = np.where(transformed, _REACH, np.inf)
    width, factor, retries, whitened_at = reach, None, _RETRIES, 0
    before: EvidenceFit | None = None
    while retries and objective.evaluations < _EVALUATIONS:
        centre = theta if objective.best is None else objective.best.theta
        objective.failed_at = None
        done = (
            _search_in_box(objective, centre, width)
            if factor is None
            else _search_whitened(objective, centre, factor, reach)
        )
        best = objective.at
        border = np.abs(best.theta - centre) > 0.999 * (width if factor is None else reach)
        if objective.failed_at is not None:
            distance = np.abs(objective.failed_at - best.theta)
            width = np.where(distance > 0, np.minimum(width, distance) / 4, width)
            factor = None if factor is None else factor / 4
            retries -= 1
            # At the second failure in a row: one alone may come from too long a step.
            if retries in (_RETRIES - 2, 0) and _better_fit_uphill(objective, transformed):
                width, factor, retries = reach, None, _RETRIES
        elif done and not border.any():
            if not _better_fit_foreseen(objective, transformed):
                return False
            width, factor, retries = reach, None, _RETRIES
        elif transformed[border].any() and _runs_to_boundary(before, objective, theta, transformed & border):
            return True
        else:
            width = np.where(border, np.minimum(4 * width, reach), width)
            retries = _RETRIES
        before = best
        if objective.evaluations - whitened_at >= _ROUND:
            factor = _whitening(objective)
            whitened_at = objective.evaluations
    return False


def _off_saddle(objective: Objective, theta: np.ndarray, transformed: np.ndarray) -> np.ndarray:
    """Return the start theta, (p,), off points of symmetry with zero gradient, as W = 0 is for a covariance W W^T."""
    objective(theta)
    still = ~transformed & (np.abs(objective.slope) < _STILL)
    if not still.any():
        return theta
    objective.best = None
    return theta + np.where(still, _OFF * np.random.default_rng(0).standard_normal(theta.size), 0.0)


def _better_fit_uphill(objective: Objective, transformed: np.ndarray) -> bool:
    """Whether a fit farther uphill is better than the best; EP may stall on a bounded range of scales in between."""
    at, slope = objective.at, np.where(transformed, objective.slope, 0.0)
    steepness = float(np.linalg.norm(slope))
    for distance in _UPHILL_DISTANCES if steepness > _STEEP_SLOPE else ():
        objective.state = None
        objective(at.theta + distance * slope / steepness)
        if objective.at is not at:
            return True
    objective.state = at.state
    return False


def _better_fit_foreseen(objective: Objective, transformed: np.ndarray) -> bool:
    """Whether a fit at a far larger scale is better than the best so far, which may be a mode of the prior alone.

    A variance too small to matter adds a multiple of itself to log Z. With s the slope of log Z in the log variance,
    log Z therefore rises by s (exp(d) - 1) over a distance d; in the log of a standard deviation, by
    s (exp(2 d) - 1) / 2. A fit is made at the first distance where this rise exceeds the fall of the log prior by
    `_FORETOLD`.
    """
    at, form = objective.at, objective.evidence.form
    if objective.evidence.density != "unconstrained":
        return False
    slope = objective.slope - form.rows.log_prior_gradients(at.theta[None])[1][0]
    for i, power in itertools.product(np.flatnonzero(transformed & (slope > 0)), (2, 1)):
        ahead = at.theta + _AHEAD[:, None] * (np.arange(at.theta.size) == i)
        with np.errstate(all="ignore"):
            fall = at.log_prior - form.rows.log_prior(ahead)
        first = int(np.argmax(slope[i] * np.expm1(power * _AHEAD) / power - fall > _FORETOLD))
        if _AHEAD[first] < _OTHER_MODE:
            continue
        objective(ahead[first])
        if objective.at is not at:
            return True
        objective.state = at.state
    return False


def _runs_to_boundary(before: EvidenceFit | None, objective: Objective, start: np.ndarray, border: np.ndarray) -> bool:
    """Whether hyperparameters on the border of a round run to a boundary.

    True at `_FARTHEST` from the start. True from `FAR` on if, in the last round, log evidence stayed constant and the
    log prior rose at a constant rate. The rate must be above 1.5: a vague prior or a Jacobian rises at about one. If a
    scale and the variables that it scales are all hyperparameters, and the data do not depend on them, their joint
    prior rises in this way.
    """
    at = objective.at
    moved = np.where(border & (np.abs(at.theta) > np.abs(start)), np.abs(at.theta - start), 0.0)
    if moved.max() >= _FARTHEST:
        return True
    if before is None or moved.max() < FAR:
        return False
    rise = at.value - before.value
    stretch = np.where(moved > 0, at.theta - before.theta, 0.0)
    # The rise over another such stretch, to first order.
    ahead = objective.slope @ stretch
    still = abs(at.log_z - before.log_z) < 0.01 * rise
    return bool(still and abs(ahead - rise) < 0.1 * rise and rise > 1.5 * np.abs(stretch).sum())


def _search_in_box(objective: Objective, centre: np.ndarray, width: np.ndarray) -> bool:
    """Search in the box centre +- width, (p,) each; return whether L-BFGS ended before its limit of evaluations."""
    objective.box = centre, width
    try:
        optimum = _lbfgs(objective, objective, centre, scipy.optimize.Bounds(centre - width, centre + width))
    except _BoxExhausted:
        return False
    finally:
        objective.box = None
    return optimum.status != 1


def _search_whitened(objective: Objective, centre: np.ndarray, factor: np.ndarray, reach: np.ndarray) -> bool:
    """Search in u, (p,), theta = centre + factor u; return whether L-BFGS ended before its limit of evaluations."""

    def scaled(u: np.ndarray) -> tuple[float, np.ndarray]:
        theta = centre + factor @ u
        if np.any(np.abs(theta - centre) > reach):
            return objective.failed(theta)
        value, gradient = objective(theta)
        return value, factor.T @ gradient

    return _lbfgs(objective, scaled, np.zeros_like(centre), None).status != 1


def _lbfgs(
    objective: Objective, function: Callable, start: np.ndarray, bounds: "scipy.optimize.Bounds | None"
) -> "scipy.optimize.OptimizeResult":
    # The first step of L-BFGS-B between bounds is the whole gradient, which mostly ends on the border.
    first, steepness = function(start)
    scale = 1.0 / max(1.0, float(np.linalg.norm(steepness)))
    options = {
        "maxfun": min(_ROUND, _EVALUATIONS - objective.evaluations),
        "maxcor": _ROUND,
        "gtol": _LEVEL * scale,
        # Relative to max(|value|, 1 nat). The optimiser's own max(|scaled value|, 1) would be many nats at a steep
        # start.
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
        callback=objective.end_at_border,
    )


def _whitening(objective: Objective) -> np.ndarray | None:
    """Return F, (p, p), of coordinates u, theta = theta_best + F u, with unit curvature; None without a curvature.

    A column of F has length `WIDEST` at most, which bounds flat directions.
    """
    at = objective.at
    if at.theta.size > _ROUND:
        return None
    steps = np.full(at.theta.size, 0.1 * STEP)
    hessian, *_, clean = curvature(objective.evidence, at, steps)
    objective.evaluations += 2 * at.theta.size
    if not clean:
        return None
    eigenvalues, vectors = np.linalg.eigh(hessian)
    # F = Q |Lambda|^-1/2 with H = Q Lambda Q^T: F^T H F is diagonal, of 1 and -1 where no column is bounded.
    return vectors / np.sqrt(np.maximum(np.abs(eigenvalues), WIDEST**-2))
