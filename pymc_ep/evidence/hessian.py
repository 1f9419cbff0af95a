"""The curvature of log evidence plus log prior, by differences of exact gradients."""

import numpy as np

from pymc_ep.contracts.evidence import EvidenceFit, FitState, LogEvidence
from pymc_ep.exceptions import InvalidDataError, NumericalError

__all__ = ["STEP", "curvature", "scaled_curvature"]

STEP = 1e-3
"""Half-width of the central differences of gradients on the unconstrained scale. Most parameters are of order 1 there,
so that truncation is of order 1e-6."""
_STEP_OF_SD = 1e-2
"""Largest half-width in posterior standard deviations. It limits the half-width to less than `STEP` for hyperparameters
with a standard deviation below 0.1."""


def scaled_curvature(evidence: LogEvidence, at: EvidenceFit) -> tuple[np.ndarray, FitState, bool]:
    """Return `curvature` at half-widths far below the posterior standard deviations, found in up to three rounds."""
    steps = np.full(at.theta.size, STEP)
    for _ in range(3):
        estimate = curvature(evidence, at, steps)
        diagonal = estimate[0].diagonal()
        # Standard deviation given all others, H_ii^-1/2: at most the marginal one.
        sd = 1.0 / np.sqrt(np.where(diagonal > 0, diagonal, 1.0))
        shorter = np.minimum(steps, _STEP_OF_SD * sd)
        if not estimate[2] or np.all(shorter > 0.1 * steps):
            break
        steps = shorter
    return estimate


def curvature(evidence: LogEvidence, at: EvidenceFit, steps: np.ndarray) -> tuple[np.ndarray, FitState, bool]:
    """Return derivatives of gradient and state at a fit, by central differences with half-widths `steps`, (p,).

    Returns
    -------
    hessian : ndarray, (p, p)
        Minus the Hessian of the log density.
    d_state : tuple of ndarray, (p, ...)
        Derivatives of the arrays of the state in theta.
    clean : bool
        Whether all fits converged and all elements are finite.
    """
    p = at.theta.size
    hessian, clean = np.zeros((p, p)), True
    d_state = tuple(np.zeros((p, *array.shape)) for array in at.state)
    for i in range(p):
        step = np.zeros(p)
        step[i] = steps[i]
        try:
            low, high = (evidence.at(at.theta + sign * step, at.state) for sign in (-1.0, 1.0))
        except (NumericalError, InvalidDataError):
            return hessian, d_state, False
        clean &= low.status.converged and high.status.converged
        # Row i of -d^2 f / dtheta dtheta^T: (f'(theta - h e_i) - f'(theta + h e_i)) / (2 h).
        hessian[i] = -(evidence.gradient(high) - evidence.gradient(low)) / (2 * steps[i])
        for array, before, after in zip(d_state, low.state, high.state):
            array[i] = (after - before) / (2 * steps[i])
    hessian = (hessian + hessian.T) / 2
    return hessian, d_state, bool(clean and np.all(np.isfinite(hessian)))
