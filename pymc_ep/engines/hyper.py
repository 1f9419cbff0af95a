"""Hyperparameters at the maximum of log evidence plus log prior, and the curvature there."""

from typing import NamedTuple

import numpy as np
import scipy.linalg
import scipy.optimize

from pymc_ep.engines.evidence import Evidence, EvidenceAt
from pymc_ep.exceptions import InvalidDataError, NumericalError

__all__ = ["Hyper", "maximise", "stay"]

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
_EVALUATIONS = 500
"""Most evaluations of the evidence in a search."""
_REACH = 4.0
"""How far a search may move a logarithm or logit before it starts anew: a factor of 50."""
_RETRIES = 6
"""How often a search among points without evidence starts anew, each time within a quarter of the reach."""
_FAR = 6.0
"""Move of a logarithm or logit, a factor of 400, after which a value is said to run to a boundary."""
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


class _Objective:
    """Minus value and gradient, remembering the best fit and warm-starting from the last."""

    def __init__(self, evidence: Evidence, start: Sites):
        self.evidence = evidence
        self.sites = start
        self.best: EvidenceAt | None = None
        self.trace: list[float] = []
        self.evaluations = 0
        self.failed_at: np.ndarray | None = None
        self._last: tuple[np.ndarray, tuple[float, np.ndarray]] | None = None

    def __call__(self, theta: np.ndarray) -> tuple[float, np.ndarray]:
        if self._last is None or not np.array_equal(self._last[0], theta):
            self._last = theta.copy(), self._evaluated(theta)
        return self._last[1]

    def _evaluated(self, theta: np.ndarray) -> tuple[float, np.ndarray]:
        self.evaluations += 1
        try:
            at = self.evidence.at(theta, self.sites)
        except (NumericalError, InvalidDataError):
            if self.best is None:
                raise
            return self._failed(theta)
        if not at.run.status.converged and self.best is not None and self.best.run.status.converged:
            # Its evidence is no evidence, and its gradient not that of the evidence.
            return self._failed(theta)
        gradient = self.evidence.gradient(at)
        if not (np.isfinite(at.value) and np.all(np.isfinite(gradient))):
            return self._failed(theta)
        self.sites = at.sites
        self.trace.append(at.value)
        if self.best is None or at.value > self.best.value:
            self.best = at
        return -at.value, -gradient

    def _failed(self, theta: np.ndarray) -> tuple[float, np.ndarray]:
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
    _search(objective, theta)
    best = objective.best
    if best is None:
        raise NumericalError(
            "The log evidence is not finite at the initial hyperparameters; pass other values with start={...}."
        )
    trace = np.array(objective.trace)
    hessian, d_shift, d_precision, clean = _scaled_curvature(evidence, best)
    why = _why_no_spread(evidence, hessian, clean)
    sentence = _why_not_settled(evidence, best, theta, None if why else hessian)
    if why:
        return _fixed(best, trace, not sentence, "; ".join(filter(None, [sentence, why])))
    factor = scipy.linalg.cholesky(np.linalg.inv(hessian), lower=True)
    return Hyper(best, factor, factor.T @ d_shift, factor.T @ d_precision, trace, not sentence, sentence)


def _search(objective: "_Objective", theta: np.ndarray) -> None:
    """Search in boxes around the best point so far; `objective` remembers the best.

    L-BFGS takes a point without evidence for the end of its search, and a first step along a steep slope (a noise
    scale under data without noise) leads to such points. A box bounds logarithms and logits, whose scale is known;
    it moves on where the search ends on its border, and keeps well within the distance of a point that failed.
    """
    width = np.where(objective.evidence.form.transformed, _REACH, np.inf)
    retries = _RETRIES
    while retries and objective.evaluations < _EVALUATIONS:
        centre = theta if objective.best is None else objective.best.theta
        objective.failed_at = None
        steepness = float(np.linalg.norm(objective(centre)[1]))
        if objective.best is None:
            return
        # Between bounds L-BFGS-B takes the whole gradient for its first step, mostly to the border.
        scale = 1.0 / max(1.0, steepness)
        found = scipy.optimize.minimize(
            lambda theta, scale: tuple(scale * part for part in objective(theta)),
            centre,
            args=(scale,),
            jac=True,
            method="L-BFGS-B",
            bounds=scipy.optimize.Bounds(centre - width, centre + width),
            options={"maxfun": _EVALUATIONS - objective.evaluations, "gtol": 1e-5 * scale, "ftol": 1e-13, "maxls": 40},
        )
        if objective.failed_at is not None:
            distance = np.abs(objective.failed_at - objective.best.theta)
            width = np.where(distance > 0, np.minimum(width, distance) / 4, width)
            retries -= 1
        elif np.all(np.abs(found.x - centre) < 0.999 * width):
            return


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
            f"hyperparameters not settled: the evidence still rises as {', '.join(running)} runs to a boundary, as a "
            f"noise scale does under data without noise; fix it, or give it a prior that keeps away from there"
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
