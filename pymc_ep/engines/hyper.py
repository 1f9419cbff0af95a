"""Hyperparameters at the maximum of log evidence plus log prior, and the curvature there."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import scipy.linalg
import scipy.optimize

from pymc_ep.engines.evidence import Evidence, EvidenceAt
from pymc_ep.exceptions import InvalidDataError, NumericalError

__all__ = ["Hyper", "endless_directions", "maximise", "stay"]

_STEP = 1e-3
"""Half-width of the differences of gradients on the unconstrained scale, where parameters mostly are of order 1."""
_STEP_OF_SD = 1e-2
"""The same in units of a hyperparameter's standard deviation, where that is what is smaller."""
_WIDEST = 5.0
"""Standard deviation of a logarithm or logit beyond which no Gaussian about a mode makes sense: a factor of 150."""
_SETTLED = 1e-3
"""Gradient, relative to the value, at which a search counts as settled."""
_NEAR_SD = 0.03
"""Distance to the mode, in standard deviations by a Newton step, at which it counts as settled as well."""
_ROUND = 100
"""Evaluations after which a search is continued in other coordinates."""
_EVALUATIONS = 1000
"""Most evaluations of the evidence in a search."""
_REACH = 4.0
"""How far a search may move a logarithm or logit before it starts anew: a factor of 50."""
_RETRIES = 6
"""How often a search among points without evidence starts anew, each time within a quarter of the reach."""
_FAR = 6.0
"""Move of a logarithm or logit, a factor of 400, after which a value is said to run to a boundary."""
_FARTHEST = 16.0
"""Move of a logarithm or logit, a factor of 9 million, after which a search that is still on its way is ended."""
_BEYOND = 15.0, 20.0
"""Distances of a logarithm or logit, factors of 3e6 and 5e8, between which a proper density falls."""
_NO_FALL = 1e-3
_LITTLE = 1e-3
"""Gain of an iteration on the border of a box, relative to what another box promises, at which that is moved on."""
_FAILED = 1e30
"""What the optimiser is told of a point without a finite evidence: it turns back."""


class Hyper(NamedTuple):
    """Where the hyperparameters are, and what is known about them there.

    Attributes
    ----------
    at : EvidenceAt
        The fit at the mode.
    factor : ndarray, (p, p), optional
        L with L L^T their covariance on the unconstrained scale; None where they are held fixed.
    d_shift, d_precision : ndarray, (p, n)
        Derivatives of the sites in the columns of `factor`'s directions: along L's column i.
    trace : ndarray, (hyper_iteration,)
        Log evidence plus log prior at each evaluation of the optimiser.
    converged : bool
    sentence : str
    """

    at: EvidenceAt
    factor: np.ndarray | None
    d_shift: np.ndarray
    d_precision: np.ndarray
    trace: np.ndarray
    converged: bool
    sentence: str


Sites = tuple[np.ndarray, np.ndarray] | None


def stay(evidence: Evidence, theta: np.ndarray, start: Sites = None) -> Hyper:
    """Fit at `theta` and hold the hyperparameters there."""
    at = evidence.at(theta, start)
    return _fixed(at, np.array([at.value]), True, "")


def _fixed(at: EvidenceAt, trace: np.ndarray, converged: bool, sentence: str) -> Hyper:
    none = np.zeros((0, len(at.sites[0])))
    return Hyper(at, None, none, none, trace, converged, sentence)


class _Spent(Exception):
    """Raised within a search in a box: it has little more to find there."""


class _Objective:
    """Minus value and gradient, remembering the best fit and warm-starting from the last."""

    def __init__(self, evidence: Evidence, start: Sites):
        self.evidence = evidence
        self.sites = start
        self.best: EvidenceAt | None = None
        self.trace: list[float] = []
        self.evaluations = 0
        self.failed_at: np.ndarray | None = None
        self.box: tuple[np.ndarray, np.ndarray] | None = None
        self.slope = np.zeros(0)
        self._last = np.inf

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
        gain, self._last = self.at.value - self._last, self.at.value
        if self.box is None:
            return
        centre, width = self.box
        moved = self.at.theta - centre
        outwards = (np.abs(moved) > 0.999 * width) & (self.slope * moved > 0)
        if outwards.any() and gain < _LITTLE * np.max(np.abs(self.slope * width), where=outwards, initial=0.0):
            raise _Spent

    def __call__(self, theta: np.ndarray) -> tuple[float, np.ndarray]:
        self.evaluations += 1
        try:
            at = self.evidence.at(theta, self.sites)
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
        if self.best is None or at.value > self.best.value:
            self.best, self.slope = at, gradient
        return -at.value, -gradient

    def failed(self, theta: np.ndarray) -> tuple[float, np.ndarray]:
        """Note a point without evidence, and return what turns the search back."""
        self.failed_at = theta.copy()
        return _FAILED, np.zeros_like(theta)


def maximise(evidence: Evidence, theta: np.ndarray, start: Sites = None) -> Hyper:
    """Maximise log evidence plus log prior over the unconstrained hyperparameters by L-BFGS.

    Parameters
    ----------
    evidence : Evidence
    theta : ndarray, (p,)
        Where to start.
    start : tuple of ndarray, optional
        Sites to start from.

    Returns
    -------
    Hyper
        With curvature from central differences of the exact gradient; without it (draws stay at the mode)
        where the Hessian is indefinite, as at an optimum on the boundary.
    """
    if theta.size == 0:
        return stay(evidence, theta, start)
    objective = _Objective(evidence, start)
    endless = _search(objective, theta)
    best = objective.at
    trace = np.array(objective.trace)
    if endless and (sentence := _why_not_settled(evidence, best, theta, None)):
        return _fixed(best, trace, False, f"{sentence}; the hyperparameters are held there")
    hessian, d_shift, d_precision, clean = _scaled_curvature(evidence, best)
    why = _why_no_spread(evidence, hessian, clean)
    sentence = _why_not_settled(evidence, best, theta, None if why else hessian)
    if why:
        return _fixed(best, trace, not sentence, "; ".join(filter(None, [sentence, why])))
    factor = scipy.linalg.cholesky(np.linalg.inv(hessian), lower=True)
    return Hyper(best, factor, factor.T @ d_shift, factor.T @ d_precision, trace, not sentence, sentence)


def _search(objective: "_Objective", theta: np.ndarray) -> bool:
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


def _is_endless(before: EvidenceAt | None, objective: "_Objective", start: np.ndarray, border: np.ndarray) -> bool:
    """Whether hyperparameters that lie on the border of a round, and move away from one, will run on for ever.

    They are taken to beyond `_FARTHEST`. Long before that they do where the evidence stood still on the last stretch
    and the prior rose at one rate, as that of a scale and the variables it scales does, all of them hyperparameters:
    no scale of the data can be met on the way, then. A vague prior or a Jacobian alone rises at a rate of about one.
    """
    at = objective.at
    moved = np.where(border & (np.abs(at.theta) > np.abs(start)), np.abs(at.theta - start), 0.0)
    if moved.max() >= _FARTHEST:
        return True
    if before is None or moved.max() < _FAR:
        return False
    rise = at.value - before.value
    stretch = np.where(moved > 0, at.theta - before.theta, 0.0)
    ahead = objective.slope @ stretch
    still = abs(at.log_z - before.log_z) < 0.01 * rise
    return bool(still and abs(ahead - rise) < 0.1 * rise and rise > 1.5 * np.abs(stretch).sum())


def _in_box(objective: "_Objective", centre: np.ndarray, width: np.ndarray) -> bool:
    """Search within a distance of the centre in each coordinate; whether that ended by itself."""
    objective.box = centre, width
    try:
        found = _lbfgs(objective, objective, centre, scipy.optimize.Bounds(centre - width, centre + width))
    except _Spent:
        return False
    finally:
        objective.box = None
    return found.status != 1


def _whitened(objective: "_Objective", centre: np.ndarray, factor: np.ndarray, reach: np.ndarray) -> bool:
    """Search in coordinates u with theta = centre + factor u; whether that ended by itself."""

    def scaled(u: np.ndarray) -> tuple[float, np.ndarray]:
        theta = centre + factor @ u
        if np.any(np.abs(theta - centre) > reach):
            return objective.failed(theta)
        value, gradient = objective(theta)
        return value, factor.T @ gradient

    return _lbfgs(objective, scaled, np.zeros_like(centre), None).status != 1


def _lbfgs(objective: "_Objective", function: Callable, start: np.ndarray, bounds: Any) -> Any:
    options = {
        "maxfun": min(_ROUND, _EVALUATIONS - objective.evaluations),
        "maxcor": _ROUND,
        "gtol": 1e-5,
        "ftol": 1e-13,
        "maxls": 40,
    }
    callback = objective.leave_if_spent
    return scipy.optimize.minimize(
        function, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options, callback=callback
    )


def _whitening(objective: "_Objective") -> np.ndarray | None:
    """Return the columns in which the curvature at the best point is one, flat and rising directions cut short."""
    at = objective.at
    if at.theta.size > _ROUND:
        return None
    steps = np.full(at.theta.size, 0.1 * _STEP)
    hessian, *_, clean = _curvature(objective.evidence, at, steps)
    objective.evaluations += 2 * at.theta.size
    if not clean:
        return None
    eigenvalues, vectors = np.linalg.eigh(hessian)
    return vectors / np.sqrt(np.maximum(np.abs(eigenvalues), _WIDEST**-2))


def _why_not_settled(evidence: Evidence, at: EvidenceAt, start: np.ndarray, hessian: np.ndarray | None) -> str:
    """Say which hyperparameters are not at a maximum; an empty string where all are."""
    gradient = evidence.gradient(at)
    largest = float(np.max(np.abs(gradient)))
    if largest < _SETTLED * max(1.0, abs(at.value)):
        return ""
    if hessian is not None and gradient @ np.linalg.solve(hessian, gradient) < _NEAR_SD**2:
        return ""
    values = evidence.form.constrained(at.theta)
    away = evidence.form.transformed & (np.abs(at.theta - start) > _FAR) & (gradient * (at.theta - start) > 0)
    if away.any():
        running = [f"{name} (now {_shortest(values[name])})" for name in _owners(evidence, away)]
        return (
            f"hyperparameters not settled: evidence times prior still rises as {', '.join(running)} runs to a "
            f"boundary, as a noise scale does under data without noise, or the scale of other hyperparameters; fix it, "
            f"give it a prior that keeps away from there, or use hyper='sample', which needs no mode"
        )
    steepest = _owners(evidence, np.abs(gradient) == largest)[0]
    return (
        f"hyperparameters not settled: gradient {largest:.2g} in {steepest} (now {_shortest(values[steepest])}); start "
        f"elsewhere with start={{...}}"
    )


def _owners(evidence: Evidence, which: np.ndarray) -> list[str]:
    """Return the names of the hyperparameters that some of the unconstrained values belong to."""
    form = evidence.form
    sizes = [np.size(v) for v in form.unpack(np.zeros_like(form.start))]
    return sorted(set(np.repeat(form.form.hyper_names, sizes)[which]))


def _shortest(value: np.ndarray) -> str:
    return np.array2string(np.asarray(value), precision=3, threshold=4, edgeitems=2)


def _why_no_spread(evidence: Evidence, hessian: np.ndarray, clean: bool) -> str:
    """Say why a Gaussian about the mode would be meaningless; an empty string where it is not."""
    if not clean:
        return "a fit next to the mode of the hyperparameters did not converge; they are held at the mode"
    eigenvalues = scipy.linalg.eigvalsh(hessian)
    if eigenvalues[0] <= 1e-12 * max(1.0, eigenvalues[-1]):
        return (
            "the curvature at the mode of the hyperparameters is not positive (an optimum at a boundary, or a flat "
            "direction); they are held at the mode"
        )
    spread = np.sqrt(np.linalg.inv(hessian).diagonal())
    flat = evidence.form.transformed & (spread > _WIDEST)
    if flat.any():
        return (
            f"the evidence hardly depends on {', '.join(_owners(evidence, flat))} at the mode (an optimum at a "
            f"boundary); the hyperparameters are held at the mode"
        )
    return ""


def endless_directions(evidence: Evidence, theta: np.ndarray) -> list[str]:
    """Return the hyperparameters in which the density does not fall far away, and the values it was looked at.

    Each logarithm or logit is moved alone. With the density on the unconstrained scale a posterior is improper, or as
    good as that, where such a direction exists.
    """
    found = []
    for i in np.flatnonzero(evidence.form.transformed):
        for way in (-1.0, 1.0):
            # Far from where the model starts, or from one: a user's start may lie far out itself.
            base = np.where(here := np.arange(theta.size) == i, way * np.maximum(way * evidence.form.start, 0.0), theta)
            points = [base + way * distance * here for distance in _BEYOND]
            try:
                near, far = (evidence.at(point) for point in points)
            except (NumericalError, InvalidDataError):
                continue
            trusted = near.run.status.converged and far.run.status.converged
            if trusted and np.isfinite(near.value) and far.value > near.value - _NO_FALL:
                name = _owners(evidence, here)[0]
                found.append(f"{name} = {_shortest(evidence.form.constrained(far.theta)[name])}")
    return found


def _scaled_curvature(evidence: Evidence, at: EvidenceAt) -> tuple[np.ndarray, np.ndarray, np.ndarray, bool]:
    """Difference with steps that are short against the standard deviations that result, found in a few rounds."""
    steps = np.full(at.theta.size, _STEP)
    for _ in range(3):
        found = _curvature(evidence, at, steps)
        diagonal = found[0].diagonal()
        sd = 1.0 / np.sqrt(np.where(diagonal > 0, diagonal, 1.0))
        shorter = np.minimum(steps, _STEP_OF_SD * sd)
        if not found[3] or np.all(shorter > 0.1 * steps):
            break
        steps = shorter
    return found


def _curvature(
    evidence: Evidence, at: EvidenceAt, steps: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, bool]:
    """Difference gradients and sites at the mode: minus the Hessian, d sites / d theta, and whether all fits held."""
    p = at.theta.size
    hessian, d_shift, d_precision, clean = np.zeros((p, p)), [], [], True
    for i in range(p):
        step = np.zeros(p)
        step[i] = steps[i]
        try:
            low, high = (evidence.at(at.theta + sign * step, at.sites) for sign in (-1.0, 1.0))
        except (NumericalError, InvalidDataError):
            none = np.zeros((p, len(at.sites[0])))
            return hessian, none, none, False
        clean &= low.run.status.converged and high.run.status.converged
        hessian[i] = -(evidence.gradient(high) - evidence.gradient(low)) / (2 * steps[i])
        d_shift.append((high.sites[0] - low.sites[0]) / (2 * steps[i]))
        d_precision.append((high.sites[1] - low.sites[1]) / (2 * steps[i]))
    hessian = (hessian + hessian.T) / 2
    return hessian, np.array(d_shift), np.array(d_precision), bool(clean and np.all(np.isfinite(hessian)))
