"""Averages over a mixture, as over hyperparameters, from values of its components."""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from scipy.special import logsumexp

from pymc_ep.contracts.posterior import Moments
from pymc_ep.numerics.interpolation.spline import Spline

__all__ = ["FEW", "LeftOut", "left_out_between", "left_out_of_all", "mixed_moments", "weighted_mean_and_sd"]

FEW = 0.1
"""Relative effective sample size of the hyperparameters below which a left-out density is in doubt. Of one outlier in
each of 17 data sets those with 7% and less, twelve, were 0.1 to 10 nats off, those with 17% and more at most 0.02;
other observations had 70% and more."""
_BATCH_DRAWS = 100
"""Draws of the hyperparameters in one batch of interpolated predictive densities.

It bounds memory, to 100 n doubles; batches of 10 to 1000 take the same time."""


class LeftOut(NamedTuple):
    """Leave-one-out log densities under a mixture over theta.

    Attributes
    ----------
    loo : ndarray, (n,)
        log p(y_i | y_-i).
    loo_ess : ndarray, (n,)
        Relative effective sample size of the values of theta in each: 1 where an observation hardly moves theta, next
        to 0 where theta given the others is in the tail of theta given all.
    """

    loo: np.ndarray
    loo_ess: np.ndarray


def mixed_moments(components: Iterable[tuple[float, dict[str, Moments]]]) -> dict[str, Moments]:
    """Return the moments of variables under a mixture, by name, from the weight and the moments of each component.

    A generator of components saves memory, as only one is needed at a time.
    """
    total = 0.0
    means: dict[str, np.ndarray] = {}
    squares: dict[str, np.ndarray] = {}
    for weight, moments in components:
        total += weight
        for name, (mean, sd) in moments.items():
            before = means.get(name, np.zeros_like(mean))
            # Squares about the mean so far (West 1979): those about zero would cancel.
            after = before + weight / total * (mean - before)
            means[name] = after
            squares[name] = squares.get(name, np.zeros_like(mean)) + weight * (sd**2 + (mean - before) * (mean - after))
    return {name: Moments(mean, np.sqrt(squares[name] / total)) for name, mean in means.items()}


def weighted_mean_and_sd(values: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and standard deviation, (*shape) each, of values (s, *shape); the weights, (s,), sum to one."""
    mean = np.tensordot(weights, values, axes=1)
    return mean, np.sqrt(np.tensordot(weights, (values - mean) ** 2, axes=1))


def left_out_of_all(weights: np.ndarray, log_predictives: np.ndarray) -> LeftOut:
    """Return log p(y_i | y_-i) from log p(y_i | y_-i, theta_j), (k, n), and posterior weights of theta_j, (k,).

    1 / p(y_i | y_-i) is the posterior mean of 1 / p(y_i | y_-i, theta) (Gelfand, Dey and Chang 1992).
    """
    counting, log_weights = _counting(weights)
    return _left_out(weights, [log_weights[:, None] - log_predictives[counting]])


def left_out_between(fits: np.ndarray, log_predictives: np.ndarray, thetas: np.ndarray, weights: np.ndarray) -> LeftOut:
    """Return `left_out_of_all` over more values of theta than have log p(y_i | y_-i, theta), by interpolation.

    Averages of 1 / p depend on the tails of theta where an observation is an outlier: few values miss them.

    Parameters
    ----------
    fits : ndarray, (k, p)
        Values of theta with known log densities, `log_predictives`, (k, n).
    thetas : ndarray, (m, p)
        Values of theta with posterior `weights`, (m,).
    """
    # Interpolated as deviance residuals, which are smoother than log densities in the tails.
    highest = log_predictives.max(axis=0) + 1.0
    residuals = Spline(fits, np.sqrt(highest - log_predictives))
    # 1 / p(y_i | y_-i) = sum_j w_j / p(y_i | y_-i, theta_j), with log p(y_i | y_-i, theta) = highest - residual^2.
    counting, log_weights = _counting(weights)
    thetas = thetas[counting]
    count = -(-len(thetas) // _BATCH_DRAWS)
    batches = zip(np.array_split(thetas, count), np.array_split(log_weights, count))
    return _left_out(weights, [share[:, None] + residuals(batch) ** 2 - highest for batch, share in batches])


def _counting(weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return which weights, (m,), are not zero to double precision, as bools, and the logs of these."""
    counting = weights > np.finfo(float).tiny
    return counting, np.log(weights[counting])


def _left_out(weights: np.ndarray, log_ratios: list[np.ndarray]) -> LeftOut:
    """Return what follows from batches of log (w_j / p(y_i | y_-i, theta_j)), (., n), and all weights w_j, (m,)."""
    # The sum of w_j / p_j, and the sum of (w_j / p_j)^2.
    total, squares = (logsumexp([logsumexp(k * batch, axis=0) for batch in log_ratios], axis=0) for k in (1.0, 2.0))
    return LeftOut(-total, np.exp(2.0 * total - squares) * np.square(weights).sum() / weights.sum() ** 2)
