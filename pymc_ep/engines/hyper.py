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
"""Gradient, relative to the value, at which a search that the optimiser calls unfinished counts as settled."""
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

    def __call__(self, theta: np.ndarray) -> tuple[float, np.ndarray]:
        try:
            at = self.evidence.at(theta, self.sites)
        except (NumericalError, InvalidDataError):
            if self.best is None:
                raise
            return _FAILED, np.zeros_like(theta)
        if not at.run.status.converged and self.best is not None and self.best.run.status.converged:
            # Its evidence is no evidence, and its gradient not that of the evidence.
            return _FAILED, np.zeros_like(theta)
        gradient = self.evidence.gradient(at)
        if not (np.isfinite(at.value) and np.all(np.isfinite(gradient))):
            return _FAILED, np.zeros_like(theta)
        self.sites = at.sites
        self.trace.append(at.value)
        if self.best is None or at.value > self.best.value:
            self.best = at
        return -at.value, -gradient


def maximise(evidence: Evidence, theta: np.ndarray, start: Sites = None, *, max_evaluations: int = 500) -> Hyper:
    """Maximise log evidence plus log prior over the unconstrained hyperparameters by L-BFGS.

    Parameters
    ----------
    evidence : Evidence
    theta : ndarray, (p,)
        Where to start.
    start : tuple of ndarray, optional
        Sites to start from.
    max_evaluations : int

    Returns
    -------
    Hyper
        With curvature from central differences of the exact gradient; without it (draws stay at the mode)
        where the Hessian is indefinite, as at an optimum on the boundary.
    """
    if theta.size == 0:
        return stay(evidence, theta, start)
    objective = _Objective(evidence, start)
    found = scipy.optimize.minimize(
        objective,
        theta,
        jac=True,
        method="L-BFGS-B",
        options={"maxfun": max_evaluations, "gtol": 1e-5, "ftol": 1e-13, "maxls": 40},
    )
    best = objective.best
    if best is None:
        raise NumericalError(
            "The log evidence is not finite at the initial hyperparameters; pass other values with start={...}."
        )
    trace = np.array(objective.trace)
    gradient = float(np.max(np.abs(evidence.gradient(best))))
    settled = bool(found.success) or gradient < _SETTLED * max(1.0, abs(best.value))
    sentence = "" if settled else f"hyperparameters not settled: gradient {gradient:.2g} after {found.nfev} evaluations"
    hessian, d_shift, d_precision, clean = _scaled_curvature(evidence, best)
    why = _why_no_spread(evidence, hessian, clean)
    if why:
        return _fixed(best, trace, settled, "; ".join(filter(None, [sentence, why])))
    factor = scipy.linalg.cholesky(np.linalg.inv(hessian), lower=True)
    return Hyper(best, factor, factor.T @ d_shift, factor.T @ d_precision, trace, settled, sentence)


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
        form = evidence.form
        sizes = [np.size(v) for v in form.unpack(np.zeros_like(form.start))]
        owners = np.repeat(form.form.hyper_names, sizes)
        return (
            f"the evidence hardly depends on {', '.join(sorted(set(owners[flat])))} at the mode (an optimum at a "
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
