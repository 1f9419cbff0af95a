"""Rows by which engines know sites of two predictors: those of eta_1, of eta_2 and of eta_1 + eta_2.

Three variances tell a covariance of two predictors, and three precisions any site exp(b' eta - eta' Pi eta / 2): Pi_12
is the precision of the sum, Pi_11 - Pi_12 and Pi_22 - Pi_12 those of the two.
"""

import numpy as np

__all__ = ["ROWS", "covariance_rows", "precision_rows", "sum_rows"]

ROWS = 3
"""Rows of an observation."""


def sum_rows(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return the rows of a vector of two predictors, (3 n,)."""
    return np.concatenate([first, second, first + second])


def covariance_rows(first: np.ndarray, second: np.ndarray, both: np.ndarray) -> np.ndarray:
    """Return the variances of the rows, (3 n,), of two variances and a covariance, (n,) each."""
    return np.concatenate([first, second, first + second + 2.0 * both])


def precision_rows(first: np.ndarray, second: np.ndarray, both: np.ndarray) -> np.ndarray:
    """Return the precisions of the rows, (3 n,), of the elements 11, 22 and 12 of Pi, (n,) each."""
    return np.concatenate([first - both, second - both, both])
