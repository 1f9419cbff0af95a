"""Moments of inner products of Gaussian rows, each with its own covariance matrix, for given pairs of rows.

With v ~ N(m, A), A = L L^T, and u ~ N(n, B) independent, f = v^T u has the moments

    E f = m^T n,        Var f = n^T A n + m^T B m + tr(A B),
    log E e^f = m^T n + m^T B m / 2 - log|M| / 2 + w^T M^{-1} w / 2,    w = L^T (n + B m),    M = I - L^T B L,

the last of which is finite where M is positive definite (Ko and Khan 2014, proposition 2; this form has no inverse of
A or B, and either may be singular). Under the distribution weighted by e^f, u has the mean h and the covariance H,

    h = n + B m + B L M^{-1} w,        H = B + B L M^{-1} L^T B,

and the derivatives of log E e^f are h in m and (H + h h^T) / 2 in A.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from pymc_ep.numerics.memory import chunks
from pymc_ep.numerics.pairs import Pairs

__all__ = ["FactoredRows", "FullRows", "log_mean_exp", "log_mean_exp_pullback", "variance", "variance_pullback"]

_CHUNK = 2**18
"""Largest number of covariance entries in a chunk of pairs."""


class FullRows(NamedTuple):
    """Gaussian rows with covariance matrices, or derivatives in their moments.

    Attributes
    ----------
    mean : ndarray, (I, K)
    covariance : ndarray, (I, K, K)
    """

    mean: np.ndarray
    covariance: np.ndarray


class FactoredRows(NamedTuple):
    """Gaussian rows with Cholesky factors of their covariance matrices, or derivatives in these.

    Attributes
    ----------
    mean : ndarray, (I, K)
    factor : ndarray, (I, K, K)
        Lower triangular Cholesky factors. The row and column of an entry of variance zero are zero.
    """

    mean: np.ndarray
    factor: np.ndarray

    @property
    def full(self) -> FullRows:
        """The same rows with covariances in place of factors."""
        return FullRows(self.mean, self.factor @ self.factor.swapaxes(1, 2))

    @property
    def variance(self) -> np.ndarray:
        """Variance of each entry, (I, K)."""
        return (self.factor**2).sum(axis=2)

    @property
    def conditional_sd(self) -> np.ndarray:
        """Standard deviation of each entry given the entries before it in its row, (I, K)."""
        return np.einsum("idd->id", self.factor)

    def at(self, indices: np.ndarray) -> "FactoredRows":
        """Return the rows at given indices."""
        return FactoredRows(*(array[indices] for array in self))

    def moved(self, normal: np.ndarray) -> np.ndarray:
        """Return draws of the rows, (s, I, K), from standard normal numbers of that shape."""
        return self.mean + (self.factor @ normal[..., None])[..., 0]

    def variance_along(self, directions: np.ndarray) -> np.ndarray:
        """Return the variances, (s, I), of the inner products of each row with `directions`, (s, I, K)."""
        # d^T A d = |L^T d|^2.
        return ((directions[..., None, :] @ self.factor)[..., 0, :] ** 2).sum(axis=-1)


def log_mean_exp(pairs: Pairs, own: FactoredRows, other: FullRows) -> tuple[np.ndarray, np.ndarray]:
    """Return E f and log E e^f of each pair, (n,) each; the latter is infinite where E e^f does not exist."""
    out, log_out = np.empty(len(pairs.others)), np.empty(len(pairs.others))
    for chunk, i, j in _chunks(pairs, own):
        m, n = own.mean[i], other.mean[j]
        tilted, _, roots, _, rotated = _weighted(own, other, i, j)
        proper = np.all(roots > 0.0, axis=1)
        roots = np.where(proper[:, None], roots, 1.0)
        out[chunk] = _dot(m, n)
        # m^T n + (m^T B m + w^T M^-1 w - log|M|) / 2 by the eigenvalues of M.
        log_mean = out[chunk] + 0.5 * (_dot(m, tilted - n) + (rotated**2 / roots - np.log(roots)).sum(axis=1))
        log_out[chunk] = np.where(proper, log_mean, np.inf)
    return out, log_out


def log_mean_exp_pullback(
    pairs: Pairs, own: FactoredRows, other: FullRows, of_mean: np.ndarray, of_log: np.ndarray
) -> FullRows:
    """Return the derivatives of sum(of_mean * E f + of_log * log E e^f) in mean and covariance of `own`.

    They are (I, K) and (I, K, K). The weights `of_mean` and `of_log` are (n,).
    """

    def derivatives(
        i: np.ndarray, j: np.ndarray, weight: np.ndarray, weight_log: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        tilted, across, roots, axes, rotated = _weighted(own, other, i, j)
        # With M = E D E^T and z = D^-1/2 E^T L^T B: h = n + B m + z^T D^-1/2 E^T w, H = B + z^T z.
        z = (axes.swapaxes(1, 2) @ across) / np.sqrt(roots)[:, :, None]
        h = tilted + np.einsum("cl,clk->ck", rotated / np.sqrt(roots), z)
        spread = other.covariance[j] + z.swapaxes(1, 2) @ z + _outer(h)
        return weight[:, None] * other.mean[j] + weight_log[:, None] * h, 0.5 * weight_log[:, None, None] * spread

    return _summed(pairs, own, of_mean, of_log, derivatives)


def variance(pairs: Pairs, own: FactoredRows, other: FullRows) -> tuple[np.ndarray, np.ndarray]:
    """Return E f and Var f of each pair, (n,) each."""
    out, spread = np.empty(len(pairs.others)), np.empty(len(pairs.others))
    for chunk, i, j in _chunks(pairs, own):
        m, L, n, b = own.mean[i], own.factor[i], other.mean[j], other.covariance[j]
        out[chunk] = _dot(m, n)
        # n^T A n = |L^T n|^2, tr(A B) = sum of (B L) * L elementwise.
        along = np.einsum("ckl,ck->cl", L, n)
        spread[chunk] = (along**2).sum(axis=1) + np.einsum("ck,ckl,cl->c", m, b, m) + ((b @ L) * L).sum(axis=(1, 2))
    return out, spread


def variance_pullback(
    pairs: Pairs, own: FactoredRows, other: FullRows, of_mean: np.ndarray, of_variance: np.ndarray
) -> FullRows:
    """Return the derivatives of sum(of_mean * E f + of_variance * Var f) in mean and covariance of `own`.

    They are (I, K) and (I, K, K). The weights `of_mean` and `of_variance` are (n,).
    """

    def derivatives(
        i: np.ndarray, j: np.ndarray, weight: np.ndarray, weight_variance: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        n, b = other.mean[j], other.covariance[j]
        # d Var f / dm = 2 B m, d Var f / dA = n n^T + B.
        in_mean = weight[:, None] * n + 2.0 * weight_variance[:, None] * np.einsum("ckl,cl->ck", b, own.mean[i])
        return in_mean, weight_variance[:, None, None] * (_outer(n) + b)

    return _summed(pairs, own, of_mean, of_variance, derivatives)


def _weighted(own: FactoredRows, other: FullRows, i: np.ndarray, j: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return n + B m, L^T B, the eigenvalues and eigenvectors of M, and w in the basis of the eigenvectors.

    `i` and `j` are the own and other rows of c pairs; vectors are (c, K), matrices (c, K, K).
    """
    m, L, b = own.mean[i], own.factor[i], other.covariance[j]
    tilted = other.mean[j] + np.einsum("ckl,cl->ck", b, m)
    across = L.swapaxes(1, 2) @ b
    # M = I - L^T B L has the same eigenvectors, and its eigenvalues are one minus these.
    shrinkage, axes = np.linalg.eigh(across @ L)
    along = np.einsum("cmk,cm->ck", L, tilted)
    return tilted, across, 1.0 - shrinkage, axes, np.einsum("ckl,ck->cl", axes, along)


def _dot(one: np.ndarray, two: np.ndarray) -> np.ndarray:
    return np.einsum("ck,ck->c", one, two)


def _outer(rows: np.ndarray) -> np.ndarray:
    return rows[:, :, None] * rows[:, None, :]


def _summed(
    pairs: Pairs,
    own: FactoredRows,
    first: np.ndarray,
    second: np.ndarray,
    derivatives: Callable[..., tuple[np.ndarray, np.ndarray]],
) -> FullRows:
    """Return, for each own row, the sum of `derivatives` over its pairs, (I, K) and (I, K, K)."""
    out = FullRows(np.zeros_like(own.mean), np.zeros_like(own.factor))
    for chunk, i, j in _chunks(pairs, own):
        starts = np.flatnonzero(np.diff(i, prepend=-1))
        for total, term in zip(out, derivatives(i, j, first[chunk], second[chunk])):
            total[i[starts]] += np.add.reduceat(term, starts, axis=0)
    return out


def _chunks(pairs: Pairs, own: FactoredRows) -> Iterator[tuple[slice, np.ndarray, np.ndarray]]:
    """Yield the slice of each chunk of pairs, and the indices of the own and of the other rows of its pairs."""
    for chunk in chunks(len(pairs.own), own.mean.shape[1] ** 2, _CHUNK):
        yield chunk, pairs.own[chunk], pairs.others[chunk]
