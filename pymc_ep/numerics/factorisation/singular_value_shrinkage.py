"""Gaussian matrix factorisation by shrinkage of singular values, in closed form (Nakajima et al. 2013).

An m x n matrix is L R^T plus noise of variance s2 in each entry, with independent columns l_k ~ N(0, a_k I) of L and
r_k ~ N(0, b_k I) of R, for k = 1, ..., K. The best variational posterior, of least free energy, is the same if
only the rows of L and R are independent under it as if all entries are. Its means of l_k and r_k are multiples of a
pair of singular vectors of the matrix, and all entries of a column have one variance. Singular values in decreasing
order belong to columns in decreasing order of c_k = a_k b_k.
"""

from typing import NamedTuple

import numpy as np

__all__ = ["Shrunk", "best_variances", "shrink", "shrink_empirically", "shrink_to_points", "threshold"]


class Shrunk(NamedTuple):
    """The posterior of each pair of columns.

    Attributes
    ----------
    left, right : ndarray, (K,)
        Norms of the means of l_k and r_k.
    left_variance, right_variance : ndarray, (K,)
        Variance of each entry of l_k, and of r_k.
    """

    left: np.ndarray
    right: np.ndarray
    left_variance: np.ndarray
    right_variance: np.ndarray


def threshold(shape: tuple[int, int], noise: float, product: np.ndarray) -> np.ndarray:
    """Return the singular values, (K,), up to which means are zero, for the products c, (K,), of prior variances.

    `shape` is (m, n), and `noise` s2.
    """
    m, n = shape
    # h + sqrt(h^2 - m n s2^2) is the square of the threshold, h = ((m + n) s2 + s2^2 / c) / 2.
    half = ((m + n) * noise + noise**2 / product) / 2
    return np.sqrt(half + np.sqrt(half**2 - m * n * noise**2))


def shrink(singular: np.ndarray, shape: tuple[int, int], noise: float, left: np.ndarray, right: np.ndarray) -> Shrunk:
    """Return the best variational posterior at given prior variances.

    Parameters
    ----------
    singular : ndarray, (K,)
        Singular value that belongs to each pair of columns; zero for a pair without one.
    shape : (m, n)
    noise : float
        Variance s2.
    left, right : ndarray, (K,)
        Prior variances a and b of the columns.
    """
    (m, n), c = shape, left * right
    kept = singular > threshold(shape, noise, c)
    value = np.where(kept, singular, 1.0)
    root = np.sqrt((m - n) ** 2 + 4 * value**2 / c)
    # gamma = |l| |r| = lambda - s2 / (2 lambda) (m + n + sqrt((m - n)^2 + 4 lambda^2 / c)).
    gamma = np.where(kept, value - noise / (2 * value) * (m + n + root), 0.0)
    # delta = |l| / |r| = (a / s2) (lambda - gamma - n s2 / lambda).
    delta = left / (2 * value) * _plus_root(m - n, 4 * value**2 / c)
    norms = np.sqrt(gamma * delta), np.sqrt(gamma / delta)
    return Shrunk(*norms, *best_variances(norms, shape, noise, left, right))


def best_variances(
    norms: tuple[np.ndarray, np.ndarray], shape: tuple[int, int], noise: float, left: np.ndarray, right: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the best variances, v and w, (K,) each, of columns l and r whose means have given norms.

    They solve 1 / v = 1 / left + (right norm^2 + n w) / s2 and 1 / w = 1 / right + (left norm^2 + m v) / s2, and are
    below the prior variances even where the means are zero. For the other arguments see `shrink`.
    """
    (m, n), (left_norm, right_norm) = shape, norms
    a, b = noise / left + right_norm**2, noise / right + left_norm**2
    # a v + n v w = s2 and b w + m v w = s2: a m v^2 + (a b + s2 (n - m)) v - b s2 = 0, and w in the same way.
    return (
        2 * noise * b / _plus_root(a * b + noise * (n - m), 4 * a * b * m * noise),
        2 * noise * a / _plus_root(a * b + noise * (m - n), 4 * a * b * n * noise),
    )


def shrink_empirically(singular: np.ndarray, shape: tuple[int, int], noise: float) -> Shrunk:
    """Return the best variational posterior at the optimal prior variances, with a = b for each pair of columns.

    A column whose optimal prior variance is zero is pruned. For arguments see `shrink`.
    """
    m, n = shape
    q = singular**2 / noise - (m + n)
    # x = lambda gamma / s2; a column is kept if its free energy is below that of a pruned one.
    x = np.where(q > 0, (q + np.sqrt(np.maximum(q**2 - 4 * m * n, 0.0))) / 2, 0.0)
    kept = (q**2 >= 4 * m * n) & (m * np.log1p(x / m) + n * np.log1p(x / n) < x)
    # c = a b = lambda gamma / (m n); only this product is determined: a = b = sqrt c.
    prior = np.sqrt(x[kept] * noise / (m * n))
    out = Shrunk(*(np.zeros(singular.shape) for _ in Shrunk._fields))
    for whole, values in zip(out, shrink(singular[kept], shape, noise, prior, prior)):
        whole[kept] = values
    return out


def shrink_to_points(singular: np.ndarray, noise: float, left: np.ndarray, right: np.ndarray) -> Shrunk:
    """Return the mode of the columns' posterior, with variances of zero; for arguments see `shrink`.

    At a given product g of norms, |l|^2 / (2 a) + |r|^2 / (2 b) is at least g / sqrt(a b): the penalty is a nuclear
    norm.
    """
    # argmin of (lambda - g)^2 / (2 s2) + g / sqrt(a b), at |l| / |r| = sqrt(a / b).
    gamma = np.maximum(singular - noise / np.sqrt(left * right), 0.0)
    ratio, zeros = np.sqrt(left / right), np.zeros(singular.shape)
    return Shrunk(np.sqrt(gamma * ratio), np.sqrt(gamma / ratio), zeros, zeros)


def _plus_root(a: np.ndarray | float, b: np.ndarray) -> np.ndarray:
    """Return a + sqrt(a^2 + b) for b > 0, without cancellation for a < 0."""
    # (a + sqrt(a^2 + b)) (sqrt(a^2 + b) - a) = b.
    root = np.sqrt(a**2 + b)
    return np.where(a > 0, a + root, b / (root - np.minimum(a, 0.0)))
