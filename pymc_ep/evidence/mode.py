"""Hyperparameters at the maximum of log evidence plus log prior, and the curvature there."""

from typing import Generic, NamedTuple

import numpy as np
import scipy.linalg

from pymc_ep.contracts.evidence import FitState, LogEvidence, OwnFit
from pymc_ep.engines.interrupt import INTERRUPTS, reached
from pymc_ep.evidence.hessian import scaled_curvature
from pymc_ep.evidence.lbfgs_search import FAR, WIDEST, Objective, search
from pymc_ep.exceptions import InvalidDataError, NumericalError

__all__ = [
    "Hyper",
    "endless_directions",
    "endless_sentence",
    "fit_fixed",
    "held_fixed",
    "hyper_names_of",
    "maximise",
    "why_not_settled",
]

_SETTLED = 1e-3
"""Largest element of the gradient, relative to max(|value|, 1), at which a search counts as settled: rounding of a
large value hides smaller slopes."""
_NEAR_SD = 0.03
"""Length of the Newton step to the mode, in posterior standard deviations, below which a search counts as settled
whatever its gradient. It equals the standard error of a mean over 1000 draws."""
_BEYOND = 15.0, 20.0
"""Two distances of a logarithm or logit from its start, factors of 3e6 and 5e8, at which the density is compared. A
proper density falls from the first to the second."""
_NEARER = 8.0, 12.0
"""Two such distances for use where fits at `_BEYOND` fail. The scale of the data may be as large as these factors, so
that a rising density need not be improper. Only a density that is constant between the two counts as not falling."""
_OFF_CENTRE = 1e-3
"""Standard deviation, relative to 1 + |theta|, of random steps from theta of the hyperparameters that do not move far
out. At the initial point of PyMC they may equal their prior mean to the last digit. Even a proper density is then
infinite where the scale of that prior goes to zero."""
_NO_FALL = 1e-3
"""Change of the log density between the distances of `_BEYOND` or `_NEARER`, in nats, up to which the density counts as
constant: above rounding."""


class Hyper(NamedTuple, Generic[OwnFit]):
    """A fit at the mode of the hyperparameters, and their covariance there.

    Attributes
    ----------
    at : EvidenceFit
        The fit at the mode.
    factor : ndarray, (p, p), optional
        L, with L L^T the covariance of the unconstrained hyperparameters; None where they are held fixed.
    d_state : tuple of ndarray, (p, ...)
        Derivatives of each array of `at.state` along the columns of L; (0, ...) without L.
    trace : ndarray, (hyper_iteration,)
        Log evidence plus log prior at each evaluation of the optimiser.
    converged : bool
        Whether the search settled at a maximum.
    sentence : str
        Why the search did not settle, or why there is no covariance; empty where there is nothing to explain.
    interrupted : bool
        Whether the user interrupted the search.
    """

    at: OwnFit
    factor: np.ndarray | None
    d_state: FitState
    trace: np.ndarray
    converged: bool
    sentence: str
    interrupted: bool = False


def fit_fixed(evidence: LogEvidence[OwnFit], theta: np.ndarray, start: FitState | None = None) -> Hyper[OwnFit]:
    """Return the fit at `theta`, (p,), from the state `start`, as a `Hyper` whose hyperparameters are held fixed."""
    try:
        at = evidence.at(theta, start)
    except INTERRUPTS as stop:
        at = reached(stop)
    return held_fixed(at, np.array([at.value]), True, "")


def held_fixed(at: OwnFit, trace: np.ndarray, converged: bool, sentence: str) -> Hyper[OwnFit]:
    """Return the `Hyper` of a fit whose hyperparameters are held fixed, and so have no covariance."""
    return Hyper(at, None, tuple(np.zeros((0, *array.shape)) for array in at.state), trace, converged, sentence)


def maximise(
    evidence: LogEvidence[OwnFit], theta: np.ndarray, start: FitState | None = None, *, spread: bool = True
) -> Hyper[OwnFit]:
    """Maximise log evidence plus log prior over the unconstrained hyperparameters by L-BFGS.

    Parameters
    ----------
    evidence : LogEvidence
    theta : ndarray, (p,)
        Where to start.
    start : tuple of ndarray, optional
        State of a fit to start from.
    spread : bool
        Whether the curvature is computed; if not, the hyperparameters are held fixed at the mode.

    Returns
    -------
    Hyper
        Its covariance is the inverse of the curvature, from central differences of the exact gradient. Where the
        Hessian is indefinite, as at an optimum on the boundary, there is no covariance, and draws stay at the mode.
        After an interruption, the best fit so far.
    """
    if theta.size == 0:
        return fit_fixed(evidence, theta, start)
    objective = Objective(evidence, start)
    try:
        return _maximise(objective, theta, spread)
    except INTERRUPTS as stop:
        sentence = f"interrupted after {objective.evaluations} evaluations of the evidence"
        # A fit counts as the best only once its gradient is known.
        best = held_fixed(reached(stop, objective.best or objective.latest), np.array(objective.trace), False, sentence)
        return best._replace(interrupted=True)


def _maximise(objective: Objective[OwnFit], theta: np.ndarray, spread: bool) -> Hyper[OwnFit]:
    evidence = objective.evidence
    endless = search(objective, theta)
    best = objective.at
    trace = np.array(objective.trace)
    if endless and (sentence := why_not_settled(objective, theta, 1.0)):
        return held_fixed(best, trace, False, f"{sentence}; the hyperparameters are held there")
    if not spread:
        sentence = why_not_settled(objective, theta, max(1.0, abs(best.value)))
        return held_fixed(best, trace, not sentence, sentence)
    hessian, d_state, clean = scaled_curvature(evidence, best)
    why = _why_no_spread(evidence, hessian, clean)
    # Rounding of a large value hides a small slope.
    size = max(1.0, abs(best.value))
    sentence = why_not_settled(objective, theta, size, None if why else hessian)
    if why:
        return held_fixed(best, trace, not sentence, "; ".join(filter(None, [sentence, why])))
    # L L^T = H^-1; with theta = mode + L z, d state / dz = L^T d state / dtheta.
    factor = scipy.linalg.cholesky(np.linalg.inv(hessian), lower=True)
    along = tuple(np.tensordot(factor.T, derivative, axes=1) for derivative in d_state)
    return Hyper(best, factor, along, trace, not sentence, sentence)


def why_not_settled(objective: Objective, start: np.ndarray, size: float, hessian: np.ndarray | None = None) -> str:
    """Return why the search has not settled, with names of hyperparameters; empty if it has.

    The search began at `start`, (p,). `size` is the scale of the value, in nats, by which gradients are judged, and
    `hessian`, (p, p), minus the Hessian of the value, if it is known.
    """
    evidence, at, gradient = objective.evidence, objective.at, objective.slope
    largest = float(np.max(np.abs(gradient)))
    if largest < _SETTLED * size:
        return ""
    # The Newton step H^-1 g has the squared length g^T H^-1 g in posterior standard deviations.
    if hessian is not None and gradient @ np.linalg.solve(hessian, gradient) < _NEAR_SD**2:
        return ""
    values = evidence.form.constrained(at.theta)
    not_settled = f"hyperparameters not settled after {objective.evaluations} evaluations"
    away = evidence.form.transformed & (np.abs(at.theta - start) > FAR) & (gradient * (at.theta - start) > 0)
    if away.any():
        running = [f"{name} (now {_abbreviated(values[name])})" for name in hyper_names_of(evidence, away)]
        told = f"{not_settled}: evidence times prior still rises as {', '.join(running)} runs to a boundary"
        slopes = [evidence.form.rows.log_prior_gradients(at.theta[None], jacobian=way)[1][0] for way in (True, False)]
        with_jacobian = gradient + (slopes[0] - slopes[1] if evidence.density == "natural" else 0.0)
        if not np.any(away & (with_jacobian * (at.theta - start) > 0)):
            return (
                f"{told}, where its density is infinite but not its mass; hyper='integrate' and hyper='sample' need no "
                f"such mode"
            )
        return (
            f"{told}, as a noise scale does under data without noise, or the scale of other hyperparameters; fix it, "
            f"or give it a proper prior that keeps away from there: with one, hyper='sample' needs no mode"
        )
    steepest = hyper_names_of(evidence, np.abs(gradient) == largest)[0]
    return (
        f"{not_settled}: gradient {largest:.2g} in {steepest} (now {_abbreviated(values[steepest])}); start "
        f"elsewhere with start={{...}}"
    )


def hyper_names_of(evidence: LogEvidence, selected: np.ndarray) -> list[str]:
    """Return the names of the hyperparameters with a selected unconstrained coordinate; `selected` is (p,), of bool."""
    form = evidence.form
    sizes = [np.size(v) for v in form.unpack(np.zeros_like(form.start))]
    return sorted(set(np.repeat(form.form.hyper_names, sizes)[selected]))


def _abbreviated(value: np.ndarray) -> str:
    return np.array2string(np.asarray(value), precision=3, threshold=4, edgeitems=2)


def _why_no_spread(evidence: LogEvidence, hessian: np.ndarray, clean: bool) -> str:
    """Return the reason why there is no Gaussian about the mode; empty if there is one."""
    if not clean:
        return "a fit next to the mode of the hyperparameters did not converge; they are held at the mode"
    eigenvalues = scipy.linalg.eigvalsh(hessian)
    # By the curvature itself first: rounding may make one negative that is nearly zero.
    flat = evidence.form.transformed & (np.abs(hessian.diagonal()) < WIDEST**-2)
    if not flat.any() and eigenvalues[0] <= 1e-12 * max(1.0, eigenvalues[-1]):
        return (
            "the curvature at the mode of the hyperparameters is not positive (an optimum at a boundary, or a flat "
            "direction); they are held at the mode"
        )
    if not flat.any():
        flat = evidence.form.transformed & (np.sqrt(np.linalg.inv(hessian).diagonal()) > WIDEST)
    if flat.any():
        return (
            f"the evidence hardly depends on {', '.join(hyper_names_of(evidence, flat))} at the mode (an optimum at a "
            f"boundary); the hyperparameters are held at the mode"
        )
    return ""


def endless_directions(evidence: LogEvidence, theta: np.ndarray, scale: np.ndarray | None = None) -> list[str]:
    """Return each hyperparameter along which the density does not fall far out, as ``name = the farthest value``.

    Where the density on the unconstrained scale does not fall, the posterior is improper, or nearly so. One coordinate
    moves at a time, up and down; a direction in which its log prior falls is no reason for a fit. Logarithms and logits
    move from the model's start by `_BEYOND`, or by `_NEARER` where fits fail. Other coordinates move from `theta`,
    (p,), by these distances times `scale`, (p,); without `scale` they are left out.
    """
    directions = []
    form = evidence.form
    others = theta + _OFF_CENTRE * (1.0 + np.abs(theta)) * np.random.default_rng(0).standard_normal(theta.size)
    for i in np.flatnonzero(form.transformed if scale is None else np.ones(theta.size, dtype=bool)):
        unit = 1.0 if scale is None or form.transformed[i] else scale[i]
        for sign in (-1.0, 1.0):
            # Measured from the model's own start, or from zero: a start that the user gave may lie far out itself.
            outer = np.where(form.transformed, sign * np.maximum(sign * form.start, 0.0), theta)
            base = np.where(axis := np.arange(theta.size) == i, outer, others)
            for distances, most_rise in ((_BEYOND, np.inf), (_NEARER, _NO_FALL)):
                points = [base + sign * distance * unit * axis for distance in distances]
                rise = _rise(evidence, points)
                if rise is None:
                    continue
                if -_NO_FALL < rise < most_rise:
                    name = hyper_names_of(evidence, axis)[0]
                    directions.append(f"{name} = {_abbreviated(form.constrained(points[1])[name])}")
                break
    return directions


def endless_sentence(directions: list[str]) -> str:
    """Return a sentence for messages from the result of `endless_directions`."""
    return (
        f"the density of the hyperparameters does not fall on the way to {', '.join(directions)}, so that under a flat "
        f"prior their posterior is improper, and under a very wide one as good as that"
    )


def _rise(evidence: LogEvidence, points: list[np.ndarray]) -> float | None:
    """Return the rise of the log density from the first to the second of two points, (p,) each.

    Minus infinity where the log prior falls by itself; None where one of the two fits fails.
    """
    with np.errstate(all="ignore"):
        log_prior = evidence.form.rows.log_prior(np.array(points))
    if not np.all(np.isfinite(log_prior)) or log_prior[1] < log_prior[0] - _NO_FALL:
        return -np.inf
    try:
        near, far_out = (evidence.at(point) for point in points)
    except (NumericalError, InvalidDataError):
        return None
    trusted = near.status.converged and far_out.status.converged
    return far_out.value - near.value if trusted and np.isfinite(near.value) else None
