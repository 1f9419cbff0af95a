"""Rows by which engines represent sites of D predictors: one for each predictor, then one for the sum of each pair.

The variances of the rows determine the covariance of the predictors. Their precisions represent any site
exp(b' eta - eta' Pi eta / 2): the sum of i and j has the precision Pi_ij, and predictor i the precision
Pi_ii - sum_(j != i) Pi_ij. Two predictors have the rows of `pymc_ep.sites.rows_of_two`.
"""

import numpy as np

__all__ = ["covariances", "number_of_rows", "precision_rows", "precisions", "slopes", "sums", "variance_rows"]


def number_of_rows(predictors: int) -> int:
    """Return r = D (D + 1) / 2, the number of rows of an observation with D predictors."""
    return predictors * (predictors + 1) // 2


def sums(vectors: np.ndarray) -> np.ndarray:
    """Return the r rows of n vectors of D predictors, (r n,), from these vectors, (n, D)."""
    first, second = np.triu_indices(vectors.shape[1], 1)
    return np.concatenate([vectors, vectors[:, first] + vectors[:, second]], axis=1).T.ravel()


def variance_rows(covariance: np.ndarray) -> np.ndarray:
    """Return the variances of the rows, (r n,), from covariances, (n, D, D)."""
    first, second = np.triu_indices(covariance.shape[1], 1)
    diagonal = np.diagonal(covariance, axis1=1, axis2=2)
    of_sums = diagonal[:, first] + diagonal[:, second] + 2.0 * covariance[:, first, second]
    return np.concatenate([diagonal, of_sums], axis=1).T.ravel()


def covariances(variance: np.ndarray, predictors: int) -> np.ndarray:
    """Return covariances, (n, D, D), from the variances of the rows, (r n,)."""
    rows = variance.reshape(number_of_rows(predictors), -1)
    first, second = np.triu_indices(predictors, 1)
    return _symmetric(rows[:predictors], 0.5 * (rows[predictors:] - rows[first] - rows[second]))


def precisions(precision: np.ndarray, predictors: int) -> np.ndarray:
    """Return Pi, (n, D, D), from the precisions of the rows, (r n,)."""
    rows = precision.reshape(number_of_rows(predictors), -1)
    # Pi_ii = pi_i + sum_(j != i) pi_ij, summed as slopes are, and Pi_ij = pi_ij.
    return _symmetric(slopes(precision, predictors).T, rows[predictors:])


def precision_rows(matrices: np.ndarray) -> np.ndarray:
    """Return the precisions of the rows, (r n,), from Pi, (n, D, D)."""
    first, second = np.triu_indices(matrices.shape[1], 1)
    # pi_i = Pi_ii - sum_(j != i) Pi_ij = 2 Pi_ii - sum_j Pi_ij.
    diagonal = 2.0 * np.diagonal(matrices, axis1=1, axis2=2) - matrices.sum(axis=2)
    return np.concatenate([diagonal, matrices[:, first, second]], axis=1).T.ravel()


def slopes(slope: np.ndarray, predictors: int) -> np.ndarray:
    """Return slopes in predictors, (n, D), from slopes in rows, (r n,): a sum's slope adds to both its predictors'."""
    rows = slope.reshape(number_of_rows(predictors), -1)
    out = rows[:predictors].copy()
    for first, second, of_sum in zip(*np.triu_indices(predictors, 1), rows[predictors:]):
        out[first] += of_sum
        out[second] += of_sum
    return out.T


def _symmetric(diagonal: np.ndarray, between: np.ndarray) -> np.ndarray:
    """Return symmetric matrices, (n, D, D), from their diagonals, (D, n), and elements above, (r - D, n)."""
    size, n = diagonal.shape
    first, second = np.triu_indices(size, 1)
    out = np.empty((n, size, size))
    out[:, range(size), range(size)] = diagonal.T
    out[:, first, second] = out[:, second, first] = between.T
    return out
