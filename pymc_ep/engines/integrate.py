"""Integrate over the hyperparameters: fits on a grid up to three dimensions, on a composite design above.

The density that is integrated is Z(theta) p(theta) on PyMC's unconstrained scale, Jacobian terms included, in
coordinates z in which it is nearly standard normal: theta = mode + z A, with the principal axes of the inverse
curvature at the mode as rows of A, each as long as its standard deviation (Rue, Martino and Chopin 2009, section 6.5).
"""

from typing import NamedTuple

import numpy as np
import scipy.linalg
from scipy.special import logsumexp

from pymc_ep.engines.design import composite_design, composite_weights
from pymc_ep.engines.evidence import Evidence, EvidenceAt
from pymc_ep.engines.hyper import Hyper, Sites, maximise
from pymc_ep.engines.interrupt import INTERRUPTS, reached
from pymc_ep.exceptions import InvalidDataError, NumericalError

__all__ = ["DesignPoint", "Integral", "integrate"]

_GRID_DIMENSIONS = 3
_MOST_DIMENSIONS = 20
"""Hyperparameters beyond which the composite design would need more than 600 fits."""
_SPACING = {1: 0.5, 2: 0.75, 3: 1.5}
"""Distance of neighbours on the grid in z. For a normal density the trapezoidal rule is then exact to 1e-9, in three
dimensions to 5e-4; for one that changes three times as fast, or 1.5 times as fast, to some per cent."""
_DROP = {1: 12.0, 2: 10.0, 3: 10.0}
"""Fall of the log density below its largest value at which the grid ends. Of a normal mass 2e-4 or less lies beyond,
but scales and what they scale are exponentials of these coordinates: their variances are made far out in the tails."""
_MOST_POINTS = {1: 200, 2: 1000, 3: 1000}
"""Fits at which the grid is ended. In one dimension these are 50 standard deviations at the mode to either side."""
_PROBE = np.sqrt(2.0)
"""Where the composite design looks for its scales: a normal log density has fallen by 1 there."""
_LEAST_STRETCH, _MOST_STRETCH = 0.25, 4.0
"""Bounds of those scales, in standard deviations at the mode."""


class DesignPoint(NamedTuple):
    """A fit at one point of the design, without the matrices of its posterior.

    Attributes
    ----------
    z : ndarray, (p,)
    theta : ndarray, (p,)
    value : float
        Log density on the unconstrained scale, evidence included.
    sites : tuple of ndarray, (n,)
    log_predictive : ndarray, (n,)
        Of each observation given the others.
    """

    z: np.ndarray
    theta: np.ndarray
    value: float
    sites: tuple[np.ndarray, np.ndarray]
    log_predictive: np.ndarray


class Integral(NamedTuple):
    """The integral and the points that make it.

    Attributes
    ----------
    mode : Hyper
        The search for the density's mode, where the design has its centre.
    axes : ndarray, (p, p)
        A, a principal axis a row.
    points : list of DesignPoint
    log_weights : ndarray, (k,)
        Of the points; their sum is the integral.
    widths : ndarray, (p,)
        Widths of the grid's cells in z; zeros for the composite design.
    converged : bool
    sentence : str
    """

    mode: Hyper
    axes: np.ndarray
    points: list[DesignPoint]
    log_weights: np.ndarray
    widths: np.ndarray
    converged: bool
    sentence: str

    @property
    def log_evidence(self) -> float:
        """Log of the integral of Z(theta) p(theta)."""
        return float(logsumexp(self.log_weights))

    @property
    def weights(self) -> np.ndarray:
        """Posterior weights of the points, (k,)."""
        return np.exp(self.log_weights - self.log_evidence)


def integrate(evidence: Evidence, theta: np.ndarray, start: Sites = None) -> Integral:
    """Integrate over the hyperparameters.

    Parameters
    ----------
    evidence : Evidence
        With the density on the unconstrained scale.
    theta : ndarray, (p,)
        Where the search for the mode starts.
    start : tuple of ndarray, optional
        Sites to start from.

    Returns
    -------
    Integral
        Without points where the mode has no curvature to standardise by; the mode's sentence says why.

    Raises
    ------
    ValueError
        For more than 20 hyperparameters.
    """
    if theta.size > _MOST_DIMENSIONS:
        raise ValueError(
            f"hyper='integrate' takes up to {_MOST_DIMENSIONS} hyperparameters, but the model has {theta.size} "
            f"(elements of vectors counted); use hyper='sample', or 'optimize'."
        )
    mode = maximise(evidence, theta, start)
    if mode.factor is None:
        cure = "so that they were not integrated over; give them proper priors not much wider than the data allow"
        sentence = "; ".join(filter(None, [mode.sentence, "" if mode.interrupted else cure]))
        mode = mode._replace(converged=False, sentence=sentence)
        return Integral(mode, np.zeros((0, theta.size)), [], np.zeros(0), np.zeros(0), False, mode.sentence)
    variances, vectors = scipy.linalg.eigh(mode.factor @ mode.factor.T)
    explorer = _Explorer(evidence, mode, (vectors * np.sqrt(variances)).T)
    try:
        return _grid(explorer) if theta.size <= _GRID_DIMENSIONS else _composite(explorer)
    except INTERRUPTS as stop:
        why = f"interrupted after {len(explorer.points)} fits around the mode, not integrated over"
        mode = reached(stop, mode)._replace(converged=False, sentence=why, interrupted=True)
        return Integral(mode, np.zeros((0, theta.size)), [], np.zeros(0), np.zeros(0), False, why)


class _Explorer:
    """Fits at points of z, each from the sites of the nearest before it."""

    def __init__(self, evidence: Evidence, mode: Hyper, axes: np.ndarray):
        self.evidence, self.mode, self.axes = evidence, mode, axes
        self.points = [self._point(np.zeros(len(axes)), mode.at)]
        self.failed = 0

    def __call__(self, z: np.ndarray) -> float:
        """Return the log density at z, minus infinity where there is no converged fit."""
        nearest = min(self.points, key=lambda point: float(np.sum((point.z - z) ** 2)))
        try:
            at = self.evidence.settled(self.mode.at.theta + z @ self.axes, nearest.sites)
            converged = at.run.status.converged and np.isfinite(at.value)
        except (NumericalError, InvalidDataError):
            converged = False
        if not converged:
            self.failed += 1
            return -np.inf
        self.points.append(self._point(z, at))
        return at.value

    def _point(self, z: np.ndarray, at: EvidenceAt) -> DesignPoint:
        return DesignPoint(z, at.theta, at.value, at.sites, self.evidence.left_out(at))

    def integral(self, log_weights: np.ndarray, widths: np.ndarray, why: str = "") -> Integral:
        """Put the parts together; the weights are against dz."""
        log_volume = np.linalg.slogdet(self.axes)[1]
        kind = f"hyperparameters integrated over {len(self.points)} fits"
        lost = f"{self.failed} points without a converged fit were left out" if self.failed else ""
        sentence = "; ".join(filter(None, [self.mode.sentence, kind, lost, why]))
        converged = self.mode.converged and not why
        return Integral(self.mode, self.axes, self.points, log_weights + log_volume, widths, converged, sentence)


def _grid(explorer: _Explorer) -> Integral:
    """Walk from the mode to all sides, until the density has fallen by `_DROP` on the way."""
    p = len(explorer.axes)
    spacing, drop = _SPACING[p], _DROP[p]
    steps = [tuple(sign * int(i == j) for j in range(p)) for i in range(p) for sign in (-1, 1)]
    values = {(0,) * p: explorer.points[0].value}
    front = list(values)
    while front and len(values) < _MOST_POINTS[p]:
        cell = front.pop(0)
        if values[cell] < max(values.values()) - drop:
            continue
        for step in steps:
            neighbour = tuple(c + s for c, s in zip(cell, step))
            if neighbour not in values:
                values[neighbour] = explorer(spacing * np.array(neighbour, dtype=float))
                front.append(neighbour)
    least = max(values.values()) - drop
    explorer.points = [point for point in explorer.points if point.value >= least]
    why = ""
    if front:
        farthest = max(explorer.points, key=lambda point: float(np.sum(point.z**2)))
        why = (
            f"the density of the hyperparameters has not fallen by {drop:g} within {len(values)} fits, on the way to "
            f"{explorer.evidence.describe(farthest.theta)}: give them priors that are proper and not much wider than "
            f"the data allow"
        )
    log_weights = np.array([point.value for point in explorer.points]) + p * np.log(spacing)
    return explorer.integral(log_weights, np.full(p, spacing), why)


def _composite(explorer: _Explorer) -> Integral:
    """Weigh the points of a composite design, stretched along each half-axis to the density's own scale.

    With z_i = s_i(sign u_i) u_i the density in u is nearly standard normal also where it falls at different rates to
    both sides; it gains the product of the s_i, for u_i = 0 their mean, since the two limits differ there.
    """
    p = len(explorer.axes)
    top = explorer.points[0].value
    stretch = np.array([[_stretch(top - explorer(sign * _PROBE * e)) for e in np.eye(p)] for sign in (-1.0, 1.0)])
    explorer.points, explorer.failed = explorer.points[:1], 0
    middle, others = composite_weights(design := composite_design(p))
    log_weights = [top + np.log(middle) + np.log(stretch.mean(axis=0)).sum()]
    for u, weight in zip(design, others):
        scale = np.where(u == 0, stretch.mean(axis=0), np.where(u < 0, stretch[0], stretch[1]))
        value = explorer(scale * u)
        if np.isfinite(value):
            log_weights.append(value + np.log(weight) + np.log(scale).sum())
    return explorer.integral(np.array(log_weights) + 0.5 * p * np.log(2 * np.pi), np.zeros(p))


def _stretch(drop: float) -> float:
    """Return the standard deviation of the half-normal whose log density falls by `drop` over `_PROBE`."""
    return float(np.clip(1.0 / np.sqrt(drop), _LEAST_STRETCH, _MOST_STRETCH)) if drop > 0 else _MOST_STRETCH
