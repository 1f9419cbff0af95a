"""Integrals of likelihoods of cells over Gaussian predictors, by a trapezoidal rule about the mode of the integrand.

A Gauss-Hermite rule at the moments of the predictor fails for a likelihood that is much narrower than the Gaussian, or
far from its mean. Here the nodes are f = mode + sd sinh(t) for equidistant t, where mode and sd are from Laplace's
approximation of the product of the likelihood and the Gaussian. Nodes are dense near the mode, where the product may be
narrow. Nodes end where the Gaussian makes the product negligible: the product of a log-concave likelihood and N(f; m,
v) is at most exp(-(f - mode)^2 / (2 v)) times its maximum. The error of the trapezoidal rule falls exponentially in the
number of nodes (Trefethen and Weideman 2014), for a single peak and for a Gaussian times a steep sigmoid.
"""

from typing import Any

import numpy as np
from scipy.special import logsumexp

from pymc_ep.sites.cells.base import CellSite

__all__ = ["LEAST_NODES", "log_integral"]

LEAST_NODES, _STEP = 40, 0.35
"""Least number of nodes, and largest distance in t between neighbours. The integral of a Gaussian peak is then
accurate to 1e-9."""
_REACH = 6.5
"""Distance of the last node from the mode, in standard deviations sqrt(v): the product there is at most exp(-21) of its
maximum."""
_MAX_STEPS = 100
"""Largest number of Newton steps; about ten are taken."""
_TOLERANCE = 0.1
"""Length of a Newton step, in units of sd, at which iterations end."""
_LEAST_VARIANCE = 1e-24
"""Lower limit of the variance v, in place of zero."""


def log_integral(
    site: CellSite, y: np.ndarray, mean: np.ndarray, variance: np.ndarray, *parameters: np.ndarray
) -> np.ndarray:
    """Return the log of the integral of p(y | f) N(f; mean, variance) over f.

    Parameters
    ----------
    site : CellSite
        Likelihood p(y | f), log-concave in f without truncation.
    y, mean, variance : ndarray
        Observations, and moments of their predictors; a variance may be zero.
    *parameters : ndarray
        Parameters of the likelihood, in the order of ``site.parameters``.

    Returns
    -------
    ndarray
        Of the broadcast shape of all arguments.
    """
    variance = np.maximum(variance, _LEAST_VARIANCE)
    away, sd = _peak(site, y, mean, variance, parameters)
    # sd sinh(reach) = _REACH sqrt(v).
    reach = np.arcsinh(_REACH * np.sqrt(variance) / sd)
    count = max(LEAST_NODES, 1 + int(np.ceil(2.0 * reach.max(initial=0.0) / _STEP)))
    step = 2.0 * reach / (count - 1)
    logs = []
    for k in range(count):
        t = (k - 0.5 * (count - 1)) * step
        x = away + sd * np.sinh(t)
        # f = mean + x and df = sd cosh(t) dt.
        logs.append(site.log_density(y, mean + x, *parameters) - 0.5 * x**2 / variance + np.log(np.cosh(t)))
    return logsumexp(logs, axis=0) + np.log(step * sd) - 0.5 * np.log(2 * np.pi * variance)


def _peak(
    site: CellSite, y: np.ndarray, mean: np.ndarray, variance: np.ndarray, parameters: tuple[Any, ...]
) -> tuple[np.ndarray, np.ndarray]:
    """Return x, the mode of p(y | f) N(f; mean, variance) minus the mean, and sd = curvature^(-1/2) there.

    The curvature is computed without truncation, see `CellSite.slopes`.

    Newton's method for d log / df = 0 starts at the maximum of the likelihood, or at the mean if this maximum is
    infinite: for a rate e^f this avoids steps to rates that overflow. A step that leaves a bracket of the mode, or is
    more than half as long as the one before, is replaced by bisection once both ends of the bracket are finite.
    """
    x = site.peak(y, *parameters) - mean
    x = np.where(np.isfinite(x), x, 0.0)
    low, high, longest = np.full(x.shape, -np.inf), np.full(x.shape, np.inf), np.full(x.shape, np.inf)
    for _ in range(_MAX_STEPS):
        slope, curvature = site.slopes(y, mean + x, *parameters)
        # Slope and curvature of log p(y | f) - x^2 / (2 v).
        slope, curvature = slope - x / variance, curvature + 1.0 / variance
        low, high = np.where(slope > 0, x, low), np.where(slope > 0, high, x)
        ahead = x + slope / curvature
        halved = np.isfinite(high - low) & ~((ahead >= low) & (ahead <= high) & (np.abs(ahead - x) <= longest))
        ahead = np.where(halved, 0.5 * (low + high), ahead)
        longest = 0.5 * np.abs(ahead - x)
        x, far = ahead, np.abs(ahead - x) * np.sqrt(curvature) > _TOLERANCE
        if not far.any():
            break
    _, curvature = site.slopes(y, mean + x, *parameters)
    return x, (curvature + 1.0 / variance) ** -0.5
