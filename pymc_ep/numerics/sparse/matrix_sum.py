"""Sums Q = sum_j c_j M_j of sparse symmetric matrices, all of one pattern, and Gaussian fields of precision Q.

Let N, (n, k), be an orthonormal basis of vectors with Q N = 0. A field x is constrained to N^T x = 0, and has the
pseudo-inverse Q^+ as its covariance. Before Q is factored, k nodes are pinned: with a number p > 0, and the columns D,
(n, k), of the identity at these nodes,

    log |Q|_+ = log |Q + p D D^T| - k log p - 2 log |det N^T D|,
    Q^+ = P (Q + p D D^T)^{-1} P,    P = I - N N^T.

log |Q|_+ is the sum of the logs of the non-zero eigenvalues. Its derivative in the entries of Q is
(Q + p D D^T)^{-1}.
"""

import threading
from collections import OrderedDict
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import scipy.linalg
import scipy.sparse

from pymc_ep.numerics.sparse.factor import Analysis, SparseFactor

__all__ = ["MatrixSum", "pinned_nodes"]

_MOST_KEPT = 256
"""Largest number of log determinants that are cached: a fit has about a hundred, and needs each about twice, with many
others in between."""


def pinned_nodes(vectors: np.ndarray) -> np.ndarray:
    """Return k nodes, (k,), for `vectors`, (n, k), such that ``vectors[nodes]`` has a determinant far from zero."""
    _, order = scipy.linalg.qr(vectors.T, mode="r", pivoting=True)
    return np.sort(order[: vectors.shape[1]])


class MatrixSum:
    """The sum Q, (n, n), as a function of coefficients c, (K,): its entries, log determinant, draws and variances.

    Parameters
    ----------
    matrices : sequence of sparse array, (n, n)
        The K matrices M_j, symmetric.
    null_space : ndarray, (n, k), optional
        Independent vectors that all M_j map to zero.

    Attributes
    ----------
    n : int
    rows, columns : ndarray of int, (e,)
        Rows and columns of the entries of Q in the lower triangle, row >= column, with the whole diagonal.
    basis : ndarray, (e, K)
        Entries of all M_j at these places.
    twice : ndarray, (e,)
        2 below the diagonal, 1 on it.
    null_space : ndarray, (n, k)
        N.
    pins : ndarray of int, (k,)
        The pinned nodes, one for each column of D.
    """

    def __init__(self, matrices: Sequence[Any], null_space: np.ndarray | None = None):
        triangles = [scipy.sparse.tril(scipy.sparse.csr_array(matrix, dtype=float)).tocoo() for matrix in matrices]
        n = triangles[0].shape[0]
        entry_keys = [triangle.row.astype(np.int64) * n + triangle.col for triangle in triangles]
        keys = np.unique(np.concatenate([*entry_keys, np.arange(n, dtype=np.int64) * (n + 1)]))
        self.n, self.rows, self.columns = n, keys // n, keys % n
        self.basis = np.zeros((len(keys), len(triangles)))
        for k, (triangle, places) in enumerate(zip(triangles, entry_keys)):
            np.add.at(self.basis[:, k], np.searchsorted(keys, places), triangle.data)
        self.twice = np.where(self.rows == self.columns, 1.0, 2.0)
        self.null_space = np.zeros((n, 0)) if null_space is None else np.linalg.qr(null_space)[0]
        self.pins = pinned_nodes(self.null_space)
        self._lock = threading.Lock()
        self._kept: OrderedDict[bytes, tuple[float, np.ndarray]] = OrderedDict()

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key not in ("_lock", "_analysis", "_kept")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.Lock(), _kept=OrderedDict())

    @property
    def rank(self) -> int:
        """Rank of Q, n - k."""
        return self.n - len(self.pins)

    def values(self, coefficients: np.ndarray) -> np.ndarray:
        """Return the entries of Q at `rows` and `columns`, (e,)."""
        return self.basis @ coefficients

    def times(self, x: np.ndarray) -> np.ndarray:
        """Return the products M_j x of all j, (n, m, K), for x of shape (n, m)."""
        out = np.zeros((*x.shape, self.basis.shape[1]))
        # M x = T x + (T - diag T)^T x for the lower triangle T of M.
        below = self.rows != self.columns
        np.add.at(out, self.rows, self.basis[:, None] * x[self.columns][..., None])
        np.add.at(out, self.columns[below], self.basis[below, None] * x[self.rows[below]][..., None])
        return out

    def log_determinant(self, coefficients: np.ndarray) -> tuple[float, np.ndarray]:
        """Return log |Q|_+ and its gradient in the coefficients, (K,).

        They are minus infinity and zeros if a coefficient is not finite, or if Q has an eigenvalue that is not positive
        outside the null space.
        """
        if not np.isfinite(coefficients).all():
            return -np.inf, np.zeros(len(coefficients))
        key = np.asarray(coefficients, dtype=float).tobytes()
        with self._lock:
            if key not in self._kept:
                self._kept[key] = self._log_determinant(coefficients)
                if len(self._kept) > _MOST_KEPT:
                    self._kept.popitem(last=False)
            log_det, gradient = self._kept[key]
        return log_det, gradient.copy()

    def _log_determinant(self, coefficients: np.ndarray) -> tuple[float, np.ndarray]:
        factor, pin = self._factor(coefficients)
        if not np.isfinite(factor.log_det):
            return -np.inf, np.zeros(len(coefficients))
        # d log |Q|_+ / d c_j = tr((Q + p D D^T)^-1 M_j); p has no effect on log |Q|_+.
        gradient = self.basis.T @ (self.twice * factor.inverse_entries())
        minor = np.linalg.slogdet(self.null_space[self.pins])[1]
        return float(factor.log_det - len(self.pins) * np.log(pin) - 2.0 * minor), gradient

    def draw(self, coefficients: np.ndarray, size: int, rng: np.random.Generator) -> np.ndarray:
        """Return draws of N(0, Q^+), (size, n).

        Raises
        ------
        LinAlgError
            Where Q has an eigenvalue that is not positive outside the null space; the message names the node.
        """
        with self._lock:
            factor, _ = self._factor(coefficients)
            if not factor.proper:
                raise np.linalg.LinAlgError(
                    f"the precision matrix is not positive definite, at node {factor.failed} of {self.n}"
                )
            out = factor.draw(size, rng)
        # x - N N^T x for each row x: the covariance P (Q + p D D^T)^-1 P = Q^+.
        return out - (out @ self.null_space) @ self.null_space.T

    def variances(self, coefficients: np.ndarray) -> np.ndarray:
        """Return the diagonal of Q^+, (n,)."""
        with self._lock:
            factor, _ = self._factor(coefficients)
            inverse_diagonal = factor.inverse_entries()[self.rows == self.columns]
            crossed = factor.solve(self.null_space) if len(self.pins) else self.null_space
        # diag(P S P)_i = S_ii - 2 (S N)_i N_i^T + N_i (N^T S N) N_i^T for S = (Q + p D D^T)^-1.
        within = self.null_space.T @ crossed
        return inverse_diagonal + ((self.null_space @ within - 2.0 * crossed) * self.null_space).sum(axis=1)

    def failed_node(self, coefficients: np.ndarray) -> int | None:
        """Return the node at which the factorisation of Q + p D D^T fails; None if it succeeds."""
        with self._lock:
            factor, _ = self._factor(coefficients)
        return None if factor.proper else factor.failed

    @cached_property
    def _analysis(self) -> Analysis:
        return Analysis(self.rows, self.columns, self.n)

    def _factor(self, coefficients: np.ndarray) -> tuple[SparseFactor, float]:
        """Return the factor of Q + p D D^T, and p, the mean of the diagonal of Q."""
        values, diagonal = self.values(coefficients), np.flatnonzero(self.rows == self.columns)
        pin = float(np.abs(values[diagonal]).mean())
        values[diagonal[self.pins]] += pin
        return self._analysis.factor(values), pin
