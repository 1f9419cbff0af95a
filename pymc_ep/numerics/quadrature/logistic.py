"""Mean of a logistic sigmoid of a Gaussian."""

import numpy as np
from scipy.special import log_expit

__all__ = ["log_mean_sigmoid"]


def log_mean_sigmoid(mean: np.ndarray, sd: np.ndarray) -> np.ndarray:
    """Return log E sig(a) for Gaussian a, by MacKay's (1992) approximation: E sig(a) is off by 0.02 at most."""
    return log_expit(mean / np.sqrt(1.0 + np.pi / 8.0 * sd**2))
