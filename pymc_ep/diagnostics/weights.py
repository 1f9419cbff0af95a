"""Importance weights of draws from an approximation, and what they say of it."""

from typing import NamedTuple

import numpy as np
from scipy.special import logsumexp

from pymc_ep.compat import pareto_shape

__all__ = ["LEAST_DRAWS", "Importance", "importance"]

LEAST_DRAWS = 25
"""Draws below which the largest weights are too few to fit a tail to: five of them (Vehtari et al. 2024, section 6)."""
_EQUAL = 1e-6
"""Range of log weights up to which they are the same number for every purpose, and differ by rounding alone."""


class Importance(NamedTuple):
    """Summary of importance weights w = p / q.

    Attributes
    ----------
    pareto_k : float
        Shape of the generalised Pareto distribution of the largest weights. The variance of a weighted mean is finite
        below 0.5, and up to about 0.7 weighted means are of use (Vehtari, Simpson, Gelman, Yao and Gabry 2024).
        Minus infinity where all weights are equal.
    ess : float
        (sum w)^2 / sum w^2: how many draws from p would estimate as well (Kong 1992).
    log_mean : float
        Log of the mean weight; the mean is an unbiased estimate of the integral of p.
    mcse : float
        Monte Carlo standard error of `log_mean` to first order. It means nothing where `pareto_k` is above 0.7.
    """

    pareto_k: float
    ess: float
    log_mean: float
    mcse: float


def importance(log_weights: np.ndarray) -> Importance:
    """Summarise independent importance weights.

    Parameters
    ----------
    log_weights : ndarray, (s,)
        Minus infinity for draws of density zero; at least one is finite, and s is at least `LEAST_DRAWS`.
    """
    size = log_weights.size
    log_mean = float(logsumexp(log_weights) - np.log(size))
    if np.ptp(log_weights) <= _EQUAL:
        return Importance(-np.inf, float(size), log_mean, 0.0)
    relative = np.exp(log_weights - log_mean)
    ess = size**2 / np.square(relative).sum()
    mcse = relative.std(ddof=1) / np.sqrt(size)
    return Importance(pareto_shape(log_weights), float(ess), log_mean, float(mcse))
