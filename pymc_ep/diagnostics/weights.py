"""Importance weights of draws from an approximation, and their summaries."""

from typing import NamedTuple

import numpy as np
from scipy.special import logsumexp

from pymc_ep.compat import pareto_shape

__all__ = ["LEAST_DRAWS", "Importance", "importance"]

LEAST_DRAWS = 25
"""Draws below which the tail has fewer than five weights, too few for a fit (Vehtari et al. 2024, section 6)."""
_NEARLY_EQUAL = 0.9
"""Relative effective sample size above which the tail of the weights says nothing. Pareto k is the shape of the
largest weights, however nearly equal all are: at a relative size of 0.99 every other right fit has k above 0.7."""


class Importance(NamedTuple):
    """Summary of importance weights w = p / q.

    Attributes
    ----------
    pareto_k : float or None
        Shape of the generalised Pareto distribution of the largest weights. The variance of a weighted mean is finite
        below 0.5, and up to about 0.7 weighted means are of use (Vehtari, Simpson, Gelman, Yao and Gabry 2024). None
        where the weights are nearly equal, so that their tail means nothing.
    ess : float
        (sum w)^2 / sum w^2: how many draws from p would estimate as well (Kong 1992).
    log_mean : float
        Log of the mean weight; the mean is an unbiased estimate of the integral of p.
    mcse : float
        Monte Carlo standard error of `log_mean` to first order. It means nothing where `pareto_k` is above 0.7.
    """

    pareto_k: float | None
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
    relative = np.exp(log_weights - log_mean)
    # (sum w)^2 / sum w^2 = s^2 / sum r^2 with r = w / mean w, as sum r = s.
    ess = float(size**2 / np.square(relative).sum())
    # Delta method: sd(log mean w) = sd(w) / (s^1/2 mean w).
    mcse = float(relative.std(ddof=1) / np.sqrt(size))
    shape = None if ess > _NEARLY_EQUAL * size else pareto_shape(log_weights)
    return Importance(shape, ess, log_mean, mcse)
