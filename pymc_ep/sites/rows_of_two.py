"""Rows by which engines represent sites of two predictors: one for eta_1, for eta_2 and for eta_1 + eta_2.

The three variances determine the covariance of the predictors. The three precisions represent any site
exp(b' eta - eta' Pi eta / 2): Pi_12 is the precision of the sum, Pi_11 - Pi_12 and Pi_22 - Pi_12 are the precisions of
the two.
"""

import numpy as np

__all__ = ["ROWS", "covariance_of", "covariance_rows", "precision_of", "precision_rows", "slopes_of", "sum_rows"]

ROWS = 3
"""Number of rows of an observation."""


def sum_rows(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return the rows, (3 n,), of n vectors of two predictors, from the first and second elements, (n,) each."""
    return np.concatenate([first, second, first + second])


def covariance_rows(first: np.ndarray, second: np.ndarray, both: np.ndarray) -> np.ndarray:
    """Return the variances of the rows, (3 n,), from two variances and a covariance, (n,) each."""
    return np.concatenate([first, second, first + second + 2.0 * both])


def precision_rows(first: np.ndarray, second: np.ndarray, both: np.ndarray) -> np.ndarray:
    """Return the precisions of the rows, (3 n,), from the elements 11, 22 and 12 of Pi, (n,) each."""
    return np.concatenate([first - both, second - both, both])


def covariance_of(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return both variances and the covariance, (n,) each, from the variances of the rows, (3 n,)."""
    first, second, of_sum = rows.reshape(ROWS, -1)
    return first, second, 0.5 * (of_sum - first - second)


def precision_of(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the elements 11, 22 and 12 of Pi, (n,) each, from the precisions of the rows, (3 n,)."""
    first, second, both = rows.reshape(ROWS, -1)
    return first + both, second + both, both


def slopes_of(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return slopes in both predictors, (n,) each, from slopes in rows, (3 n,): the sum's slope adds to each."""
    first, second, of_sum = rows.reshape(ROWS, -1)
    return first + of_sum, second + of_sum
