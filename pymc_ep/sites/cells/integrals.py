"""Integrals of likelihoods of cells over Gaussian predictors, by a trapezoidal rule about the mode of the integrand.

A Gauss-Hermite rule at the moments of the predictor misses a likelihood that is much narrower than the Gaussian, or far
from its mean. Here the nodes are f = mode + sd sinh(t) for equidistant t, with the mode of the product and the standard
deviation from its curvature there. They are dense near the mode, where the product may be narrow, and end where the
Gaussian alone makes it negligible: the product of a log-concave likelihood and N(f; m, v) is at most
exp(-(f - mode)^2 / (2 v)) times its maximum. The error of the trapezoidal rule falls exponentially in the number of
nodes (Trefethen and Weideman 2014), both for a single peak and for a Gaussian cut off by a step.
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
"""Distance of the last node from the mode, in prior standard deviations: the product is at most exp(-21) of its maximum
there."""
_MOST = 100
"""Limit on Newton steps; about ten are taken."""
_NEAR = 0.1
"""Length of a Newton step, in standard deviations of the product, below which the search for the mode ends."""
_LEAST = 1e-24
"""Least variance of a predictor: takes the place of zero for predictors that are known exactly."""


def log_integral(
    site: CellSite, y: np.ndarray, mean: np.ndarray, variance: np.ndarray, *parameters: np.ndarray
) -> np.ndarray:
    """Return log of the integral of p(y | f) N(f; mean, variance), of the common shape of all arguments.

    Parameters
    ----------
    site : CellSite
    y, mean, variance : ndarray
        Observations, and moments of their predictors; a variance may be zero.
    *parameters : ndarray
        Of the likelihood.
    """
    variance = np.maximum(variance, _LEAST)
    away, sd = _peak(site, y, mean, variance, parameters)
    reach = np.arcsinh(_REACH * np.sqrt(variance) / sd)
    count = max(LEAST_NODES, 1 + int(np.ceil(2.0 * reach.max(initial=0.0) / _STEP)))
    step = 2.0 * reach / (count - 1)
    logs = []
    for k in range(count):
        t = (k - 0.5 * (count - 1)) * step
        x = away + sd * np.sinh(t)
        logs.append(site.log_density(y, mean + x, *parameters) - 0.5 * x**2 / variance + np.log(np.cosh(t)))
    return logsumexp(logs, axis=0) + np.log(step * sd) - 0.5 * np.log(2 * np.pi * variance)


def _peak(
    site: CellSite, y: np.ndarray, mean: np.ndarray, variance: np.ndarray, parameters: tuple[Any, ...]
) -> tuple[np.ndarray, np.ndarray]:
    """Return the approximate mode of p(y | f) N(f; mean, variance), less the mean, and the sd from the curvature there.

    Newton steps start at the maximum of the likelihood if that is finite: a mode at a rate e^f is then approached from
    above, without overflow. Once the mode is bracketed, a step that leaves the bracket, or is more than half as long as
    the one before, is replaced by bisection.
    """
    x = site.peak(y, *parameters) - mean
    x = np.where(np.isfinite(x), x, 0.0)
    low, high, longest = np.full(x.shape, -np.inf), np.full(x.shape, np.inf), np.full(x.shape, np.inf)
    for _ in range(_MOST):
        slope, bend = site.slopes(y, mean + x, *parameters)
        slope, bend = slope - x / variance, bend + 1.0 / variance
        low, high = np.where(slope > 0, x, low), np.where(slope > 0, high, x)
        ahead = x + slope / bend
        halved = np.isfinite(high - low) & ~((ahead >= low) & (ahead <= high) & (np.abs(ahead - x) <= longest))
        ahead = np.where(halved, 0.5 * (low + high), ahead)
        longest = 0.5 * np.abs(ahead - x)
        x, far = ahead, np.abs(ahead - x) * np.sqrt(bend) > _NEAR
        if not far.any():
            break
    _, bend = site.slopes(y, mean + x, *parameters)
    return x, (bend + 1.0 / variance) ** -0.5
