"""Covariances K of utilities between items: a dense matrix, or one of low rank plus a multiple of the identity."""

from functools import cached_property
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np
import scipy.linalg
from scipy.sparse import csr_array

from pymc_ep.exceptions import InvalidDataError
from pymc_ep.models.preferences.engine.values import UtilityPrior

__all__ = ["Curvature", "DenseKernel", "Kernel", "LowRankKernel", "UtilityCovariance"]

Curvature: TypeAlias = np.ndarray | csr_array
"""Symmetric matrix, (I, I), of sums over users; sparse for many items under a kernel of low rank, otherwise dense."""


class UtilityCovariance(NamedTuple):
    """Prior covariance of the utilities of a user, S = A A^T + c M.

    Attributes
    ----------
    factors : ndarray, (I, k)
        A.
    matrix : ndarray, (I, I) or (0, 0)
        M; without entries it is the identity.
    scale : float
        c.
    """

    factors: np.ndarray
    matrix: np.ndarray
    scale: float

    def block(self, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
        """Return the block of S, (r, c), at the indices `rows`, (r,), and `columns`, (c,)."""
        matrix = self.matrix[np.ix_(rows, columns)] if self.matrix.size else rows[:, None] == columns
        return self.factors[rows] @ self.factors[columns].T + self.scale * matrix

    def columns(self, items: np.ndarray) -> np.ndarray:
        """Return the columns of S of n items, (I, n)."""
        return self.block(np.arange(len(self.factors)), items)

    def entries(self, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
        """Return the entries of S at n pairs of a row and a column, (n,)."""
        values = self.matrix[rows, columns] if self.matrix.size else rows == columns
        return np.einsum("nk,nk->n", self.factors[rows], self.factors[columns]) + self.scale * values

    def differences(self, firsts: np.ndarray, seconds: np.ndarray) -> np.ndarray:
        """Return the prior variances, (n,), of the differences f_i - f_j, for n items i and j."""
        # S_ii + S_jj - 2 S_ij.
        both = self.entries(firsts, firsts) + self.entries(seconds, seconds)
        return both - 2.0 * self.entries(firsts, seconds)


class Kernel(Protocol):
    """Covariance K = L L^T of utilities between items."""

    def require_definite(self) -> None:
        """Raise InvalidDataError unless K, of all items, compared or not, is positive definite."""

    def covariance(self, prior: UtilityPrior) -> UtilityCovariance:
        """Return V V^T + s2 K."""

    def product(self, x: np.ndarray) -> np.ndarray:
        """Return K x."""

    def times(self, x: np.ndarray) -> np.ndarray:
        """Return L x."""

    def transposed(self, x: np.ndarray) -> np.ndarray:
        """Return L^T x."""

    def solve(self, x: np.ndarray) -> np.ndarray:
        """Return L^{-1} x."""

    def inner(self, curvature: Curvature) -> float:
        """Return sum_ij K_ij C_ij, the inner product of K and a curvature C."""

    def gradient(self, curvature: Curvature) -> tuple[np.ndarray, ...]:
        """Return the derivatives of `inner` in the arrays that define the kernel."""

    def draws(self, size: int, rng: np.random.Generator) -> np.ndarray:
        """Return draws of N(0, K), (size, I)."""

    def extended(self, x: np.ndarray, is_old: np.ndarray) -> np.ndarray:
        """Return K_no K_oo^{-1} x at new items n, for x at old items o, which the mask `is_old`, (I,), marks."""


class DenseKernel:
    """A dense matrix K = L L^T, with L lower triangular.

    Parameters
    ----------
    matrix : ndarray, (I, I)
        K.
    """

    def __init__(self, matrix: np.ndarray):
        self.matrix = np.ascontiguousarray(matrix, dtype=float)

    @cached_property
    def _root(self) -> np.ndarray:
        """L, lower triangular."""
        try:
            return np.linalg.cholesky(self.matrix)
        except np.linalg.LinAlgError:
            least = float(scipy.linalg.eigvalsh(self.matrix, subset_by_index=(0, 0))[0])
            raise InvalidDataError(
                f"kernel= is not positive definite: its least eigenvalue is {least:.3g}, as where two items have equal "
                f"features; give the utilities a larger jitter=, such as 0.1."
            ) from None

    def require_definite(self) -> None:
        """Raise InvalidDataError unless K is positive definite; its Cholesky factor is kept for draws."""
        _ = self._root

    def covariance(self, prior: UtilityPrior) -> UtilityCovariance:
        """Return V V^T + s2 K."""
        return UtilityCovariance(prior.factors, self.matrix, prior.scale)

    def product(self, x: np.ndarray) -> np.ndarray:
        """Return K x."""
        return self.matrix @ x

    def times(self, x: np.ndarray) -> np.ndarray:
        """Return L x."""
        return self._root @ x

    def transposed(self, x: np.ndarray) -> np.ndarray:
        """Return L^T x."""
        return self._root.T @ x

    def solve(self, x: np.ndarray) -> np.ndarray:
        """Return L^{-1} x."""
        return scipy.linalg.solve_triangular(self._root, x, lower=True, check_finite=False)

    def inner(self, curvature: Curvature) -> float:
        """Return sum_ij K_ij C_ij, the inner product of K and a curvature C; no temporary matrix is formed."""
        return float(np.vdot(self.matrix, curvature))

    def gradient(self, curvature: Curvature) -> tuple[np.ndarray, ...]:
        """Return the derivative of `inner` in K."""
        return (np.asarray(curvature),)

    def draws(self, size: int, rng: np.random.Generator) -> np.ndarray:
        """Return draws of N(0, K), (size, I)."""
        return rng.standard_normal((size, len(self.matrix))) @ self._root.T

    def extended(self, x: np.ndarray, is_old: np.ndarray) -> np.ndarray:
        """Return K_no K_oo^{-1} x at new items n, for x at old items o, which the mask `is_old`, (I,), marks."""
        old = scipy.linalg.cho_factor(self.matrix[np.ix_(is_old, is_old)], lower=True, check_finite=False)
        return self.matrix[np.ix_(~is_old, is_old)] @ scipy.linalg.cho_solve(old, x)


class LowRankKernel:
    """A kernel K = R R^T + j I = L L^T, stored as R and j alone, with L symmetric.

    With R = U diag(s) W^T the root is L = sqrt(j) I + U diag(sqrt(s^2 + j) - sqrt(j)) U^T. For r = 0, K is j I.

    Parameters
    ----------
    root : ndarray, (I, r)
        R.
    jitter : float
        j, positive.
    """

    def __init__(self, root: np.ndarray, jitter: np.ndarray | float):
        self.root, self.jitter = np.asarray(root, dtype=float), float(jitter)

    @cached_property
    def _spectrum(self) -> tuple[np.ndarray, np.ndarray]:
        """U, (I, r), and the square roots of s^2 + j, (r,)."""
        left, values, _ = scipy.linalg.svd(self.root, full_matrices=False, check_finite=False)
        return left, np.hypot(values, np.sqrt(self.jitter))

    def require_definite(self) -> None:
        """Do nothing: K is positive definite, as j is positive."""

    def covariance(self, prior: UtilityPrior) -> UtilityCovariance:
        """Return V V^T + s2 K."""
        # V V^T + s2 (R R^T + j I) = A A^T + s2 j I, with A = [V, s2^1/2 R].
        factors = np.hstack([prior.factors, np.sqrt(prior.scale) * self.root])
        return UtilityCovariance(factors, np.zeros((0, 0)), prior.scale * self.jitter)

    def product(self, x: np.ndarray) -> np.ndarray:
        """Return K x."""
        return self.root @ (self.root.T @ x) + self.jitter * x

    def times(self, x: np.ndarray) -> np.ndarray:
        """Return L x."""
        left, values = self._spectrum
        sqrt_jitter = np.sqrt(self.jitter)
        return sqrt_jitter * x + (left * (values - sqrt_jitter)) @ (left.T @ x)

    def transposed(self, x: np.ndarray) -> np.ndarray:
        """Return L^T x."""
        return self.times(x)

    def solve(self, x: np.ndarray) -> np.ndarray:
        """Return L^{-1} x."""
        left, values = self._spectrum
        # L^-1 = I / sqrt(j) + U diag(1 / sqrt(s^2 + j) - 1 / sqrt(j)) U^T.
        inverse = 1.0 / np.sqrt(self.jitter)
        return inverse * x + (left * (1.0 / values - inverse)) @ (left.T @ x)

    def inner(self, curvature: Curvature) -> float:
        """Return sum_ij K_ij C_ij, the inner product of K and a curvature C."""
        # <R R^T + j I, C> = <C R, R> + j tr C.
        return float(((curvature @ self.root) * self.root).sum() + self.jitter * curvature.trace())

    def gradient(self, curvature: Curvature) -> tuple[np.ndarray, ...]:
        """Return the derivatives of `inner` in R and j."""
        return 2.0 * (curvature @ self.root), np.asarray(curvature.trace())

    def draws(self, size: int, rng: np.random.Generator) -> np.ndarray:
        """Return draws of N(0, K), (size, I)."""
        n_items, rank = self.root.shape
        # R z + sqrt(j) e.
        noise = np.sqrt(self.jitter) * rng.standard_normal((size, n_items))
        return noise + rng.standard_normal((size, rank)) @ self.root.T

    def extended(self, x: np.ndarray, is_old: np.ndarray) -> np.ndarray:
        """Return K_no K_oo^{-1} x at new items n, for x at old items o, which the mask `is_old`, (I,), marks."""
        # R_n R_o^T (R_o R_o^T + j I)^-1 x = R_n (R_o^T R_o + j I)^-1 R_o^T x.
        old = self.root[is_old]
        small = old.T @ old + self.jitter * np.eye(self.root.shape[1])
        return self.root[~is_old] @ scipy.linalg.solve(small, old.T @ x, assume_a="pos")
