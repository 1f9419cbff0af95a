"""The curvature of log evidence plus log prior, by differences of exact gradients."""

import numpy as np

from pymc_ep.exceptions import InvalidDataError, NumericalError
from pymc_ep.hyper.evidence.evidence import Evidence, EvidenceAt

__all__ = ["STEP", "curvature", "scaled_curvature"]

STEP = 1e-3
"""Half-width of the central differences of gradients on the unconstrained scale. Most parameters are of order 1 there,
so that truncation is of order 1e-6."""
_STEP_OF_SD = 1e-2
"""Largest half-width in posterior standard deviations. It replaces `STEP` for hyperparameters known to less than
0.1."""


def scaled_curvature(evidence: Evidence, at: EvidenceAt) -> tuple[np.ndarray, np.ndarray, np.ndarray, bool]:
    """Return `curvature` with half-widths short against the standard deviations that it implies, in three rounds."""
    steps = np.full(at.theta.size, STEP)
    for _ in range(3):
        found = curvature(evidence, at, steps)
        diagonal = found[0].diagonal()
        sd = 1.0 / np.sqrt(np.where(diagonal > 0, diagonal, 1.0))
        shorter = np.minimum(steps, _STEP_OF_SD * sd)
        if not found[3] or np.all(shorter > 0.1 * steps):
            break
        steps = shorter
    return found


def curvature(evidence: Evidence, at: EvidenceAt, steps: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, bool]:
    """Difference gradients and sites at a fit, with half-widths `steps`, (p,).

    Returns
    -------
    hessian : ndarray, (p, p)
        Minus the Hessian of the log density.
    d_shift, d_precision : ndarray, (p, n)
        Derivatives of the sites in theta.
    clean : bool
        Whether all fits converged and all elements are finite.
    """
    p = at.theta.size
    hessian, d_shift, d_precision, clean = np.zeros((p, p)), [], [], True
    sites = at.sites
    for i in range(p):
        step = np.zeros(p)
        step[i] = steps[i]
        try:
            low, high = (evidence.at(at.theta + sign * step, sites) for sign in (-1.0, 1.0))
        except (NumericalError, InvalidDataError):
            zeros = np.zeros((p, len(sites[0])))
            return hessian, zeros, zeros, False
        clean &= low.run.status.converged and high.run.status.converged
        hessian[i] = -(evidence.gradient(high) - evidence.gradient(low)) / (2 * steps[i])
        of_shift, of_precision = ((after - before) / (2 * steps[i]) for before, after in zip(low.sites, high.sites))
        d_shift.append(of_shift)
        d_precision.append(of_precision)
    hessian = (hessian + hessian.T) / 2
    return hessian, np.array(d_shift), np.array(d_precision), bool(clean and np.all(np.isfinite(hessian)))
