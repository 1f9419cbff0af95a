"""The integral of a density from draws of it, by bridge sampling."""

from collections.abc import Callable

import numpy as np
import scipy.linalg
from scipy.special import logsumexp

__all__ = ["log_integral"]

_ITERATIONS = 100
_SETTLED = 1e-8


def log_integral(log_density: Callable[[np.ndarray], np.ndarray], draws: np.ndarray, rng: np.random.Generator) -> float:
    """Return the log of the integral of a density, not normalised, given draws of it, (m, p).

    A Gaussian with the moments of one half of the draws is bridged to the other half by the iteration of Meng and Wong
    (1996, equation 4.1), whose error is that of the Gaussian's overlap with the density.
    """
    p = draws.shape[1]
    fitted, rest = np.array_split(rng.permutation(draws), 2)
    centre, factor = fitted.mean(axis=0), np.linalg.cholesky(np.atleast_2d(np.cov(fitted, rowvar=False)))
    drawn = centre + rng.standard_normal(rest.shape) @ factor.T

    def log_ratio(points: np.ndarray) -> np.ndarray:
        white = scipy.linalg.solve_triangular(factor, (points - centre).T, lower=True)
        log_normal = -0.5 * ((white**2).sum(axis=0) + p * np.log(2 * np.pi)) - np.log(np.diagonal(factor)).sum()
        return log_density(points) - log_normal

    at_rest, at_drawn = log_ratio(rest), log_ratio(drawn)
    log_r = float(np.median(at_rest))
    for _ in range(_ITERATIONS):
        # The number of draws is the same on both sides and cancels.
        above = logsumexp(at_drawn - np.logaddexp(at_drawn, log_r))
        below = logsumexp(-np.logaddexp(at_rest, log_r))
        log_r, before = float(above - below), log_r
        if abs(log_r - before) < _SETTLED:
            break
    return log_r
