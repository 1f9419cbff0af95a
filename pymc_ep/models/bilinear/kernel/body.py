"""Moments of inner products of Gaussian rows of two matrices, for given pairs of rows.

The inner product f = v^T u of rows with independent entries v_d ~ N(m_d, a_d), u_d ~ N(n_d, b_d) has the moments

    E f = sum_d m_d n_d,        Var f = sum_d a_d n_d^2 + b_d m_d^2 + a_d b_d,
    log E e^f = sum_d -log(r_d) / 2 + (m_d n_d + (a_d n_d^2 + b_d m_d^2) / 2) / r_d,        r_d = 1 - a_d b_d,

the last of which is finite where every r_d > 0 (Ko and Khan 2014, proposition 2). Elsewhere the formula may have
finite values, which mean nothing, so every r_d is checked. Pairs are processed in chunks: no array has the size
pairs times columns.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from pymc_ep.numerics.memory import chunks
from pymc_ep.numerics.pairs import Pairs

__all__ = ["Rows", "log_mean_exp", "log_mean_exp_pullback", "variance", "variance_pullback"]

_CHUNK = 16_384
"""Number of pairs in a chunk, whose rows fit in the cache."""


class Rows(NamedTuple):
    """Gaussian rows with independent entries, or derivatives in their moments.

    Attributes
    ----------
    mean, variance : ndarray, (I, K)
        Moments of each entry.
    """

    mean: np.ndarray
    variance: np.ndarray

    @property
    def conditional_sd(self) -> np.ndarray:
        """Standard deviation of each entry given the entries before it in its row, (I, K)."""
        return np.sqrt(self.variance)

    def at(self, indices: np.ndarray) -> "Rows":
        """Return the rows at given indices."""
        return Rows(*(array[indices] for array in self))

    def moved(self, normal: np.ndarray) -> np.ndarray:
        """Return draws of the rows, (s, I, K), from standard normal numbers of that shape."""
        return self.mean + np.sqrt(self.variance) * normal

    def variance_along(self, directions: np.ndarray) -> np.ndarray:
        """Return the variances, (s, I), of the inner products of each row with `directions`, (s, I, K)."""
        return np.einsum("sid,id->si", directions**2, self.variance)


def log_mean_exp(pairs: Pairs, own: Rows, other: Rows) -> tuple[np.ndarray, np.ndarray]:
    """Return E f and log E e^f of each pair, (n,) each; the latter is infinite where E e^f does not exist."""
    out, log_out = np.empty(len(pairs.others)), np.empty(len(pairs.others))
    for chunk, i, j in _chunks(pairs):
        m, a, n, b = own.mean[i], own.variance[i], other.mean[j], other.variance[j]
        product, r = m * n, 1.0 - a * b
        # Where some r_d <= 0 the result is infinite; r_d = 1 in its place keeps the logarithm finite.
        proper = r > 0.0
        r = np.where(proper, r, 1.0)
        terms = (product + 0.5 * (a * n**2 + b * m**2)) / r - 0.5 * np.log(r)
        out[chunk] = product.sum(axis=1)
        log_out[chunk] = np.where(proper.all(axis=1), terms.sum(axis=1), np.inf)
    return out, log_out


def log_mean_exp_pullback(pairs: Pairs, own: Rows, other: Rows, of_mean: np.ndarray, of_log: np.ndarray) -> Rows:
    """Return the derivatives of sum(of_mean * E f + of_log * log E e^f) in the moments of `own`, (I, K) each.

    The weights `of_mean` and `of_log` are (n,).
    """

    def derivatives(
        m: np.ndarray, a: np.ndarray, n: np.ndarray, b: np.ndarray, weight: np.ndarray, weight_log: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        r = 1.0 - a * b
        # d log E e^f / dm = g, d log E e^f / da = (b / r + g^2) / 2.
        g = (n + b * m) / r
        return weight * n + weight_log * g, 0.5 * weight_log * (b / r + g**2)

    return _summed(pairs, own, other, of_mean, of_log, derivatives)


def variance(pairs: Pairs, own: Rows, other: Rows) -> tuple[np.ndarray, np.ndarray]:
    """Return E f and Var f of each pair, (n,) each."""
    out, spread = np.empty(len(pairs.others)), np.empty(len(pairs.others))
    for chunk, i, j in _chunks(pairs):
        m, a, n, b = own.mean[i], own.variance[i], other.mean[j], other.variance[j]
        out[chunk] = np.einsum("cd,cd->c", m, n)
        spread[chunk] = (a * (n**2 + b) + b * m**2).sum(axis=1)
    return out, spread


def variance_pullback(pairs: Pairs, own: Rows, other: Rows, of_mean: np.ndarray, of_variance: np.ndarray) -> Rows:
    """Return the derivatives of sum(of_mean * E f + of_variance * Var f) in the moments of `own`, (I, K) each.

    The weights `of_mean` and `of_variance` are (n,).
    """

    def derivatives(
        m: np.ndarray, a: np.ndarray, n: np.ndarray, b: np.ndarray, weight: np.ndarray, weight_variance: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        # d Var f / dm = 2 b m, d Var f / da = n^2 + b.
        return weight * n + 2.0 * weight_variance * b * m, weight_variance * (n**2 + b)

    return _summed(pairs, own, other, of_mean, of_variance, derivatives)


def _summed(
    pairs: Pairs,
    own: Rows,
    other: Rows,
    first: np.ndarray,
    second: np.ndarray,
    derivatives: Callable[..., tuple[np.ndarray, np.ndarray]],
) -> Rows:
    """Return, for each own row, the sum of `derivatives` over its pairs, (I, K) each."""
    out = Rows(np.zeros_like(own.mean), np.zeros_like(own.variance))
    for chunk, i, j in _chunks(pairs):
        weights = first[chunk, None], second[chunk, None]
        terms = derivatives(own.mean[i], own.variance[i], other.mean[j], other.variance[j], *weights)
        # First pairs of the own rows of a chunk; a row may continue in the next chunk.
        starts = np.flatnonzero(np.diff(i, prepend=-1))
        for total, term in zip(out, terms):
            total[i[starts]] += np.add.reduceat(term, starts, axis=0)
    return out


def _chunks(pairs: Pairs) -> Iterator[tuple[slice, np.ndarray, np.ndarray]]:
    """Yield the slice of each chunk of pairs, and the indices of the own and of the other rows of its pairs."""
    for chunk in chunks(len(pairs.own), 1, _CHUNK):
        yield chunk, pairs.own[chunk], pairs.others[chunk]
