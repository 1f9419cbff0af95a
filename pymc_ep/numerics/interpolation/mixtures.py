"""Averages over weighted values of hyperparameters."""

import numpy as np
from scipy.special import logsumexp

__all__ = ["left_out_of_all", "weighted_mean_and_sd"]


def weighted_mean_and_sd(values: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and standard deviation, (*shape) each, of values (s, *shape); the weights, (s,), sum to one."""
    mean = np.tensordot(weights, values, axes=1)
    return mean, np.sqrt(np.tensordot(weights, (values - mean) ** 2, axes=1))


def left_out_of_all(weights: np.ndarray, log_predictives: np.ndarray) -> np.ndarray:
    """Return log p(y_i | y_-i), (n,), from log p(y_i | y_-i, theta_j), (k, n), and posterior weights of theta_j, (k,).

    1 / p(y_i | y_-i) is the posterior mean of 1 / p(y_i | y_-i, theta) (Gelfand, Dey and Chang 1992).
    """
    return -logsumexp(-log_predictives, axis=0, b=weights[:, None])
