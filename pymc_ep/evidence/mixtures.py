"""Averages over a mixture, as over hyperparameters, from values of its components."""

from collections.abc import Iterable

import numpy as np
from scipy.special import logsumexp

from pymc_ep.contracts.posterior import Moments

__all__ = ["left_out_of_all", "mixed_moments", "weighted_mean_and_sd"]


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


def left_out_of_all(weights: np.ndarray, log_predictives: np.ndarray) -> np.ndarray:
    """Return log p(y_i | y_-i), (n,), from log p(y_i | y_-i, theta_j), (k, n), and posterior weights of theta_j, (k,).

    1 / p(y_i | y_-i) is the posterior mean of 1 / p(y_i | y_-i, theta) (Gelfand, Dey and Chang 1992).
    """
    return -logsumexp(-log_predictives, axis=0, b=weights[:, None])
