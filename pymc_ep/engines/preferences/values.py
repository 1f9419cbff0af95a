"""Values of the preference model: the prior of utilities, and comparisons by user."""

from functools import cached_property
from typing import NamedTuple

import numpy as np
import scipy.linalg

from pymc_ep.exceptions import InvalidDataError
from pymc_ep.kernels.comparisons import Comparisons

__all__ = ["ComparedUsers", "Kernel", "Learned", "UtilityGradient", "UtilityPrior"]


class UtilityPrior(NamedTuple):
    """Prior of the utilities of a user: N(b, V V^T + s2 K).

    Attributes
    ----------
    mean : ndarray, (I,)
        b.
    factors : ndarray, (I, D)
        V; D may be 0.
    scale : float
        s2.
    """

    mean: np.ndarray
    factors: np.ndarray
    scale: float


class UtilityGradient(NamedTuple):
    """Derivatives of a function of the prior of utilities, of the shapes of its parts.

    Attributes
    ----------
    mean : ndarray, (I,)
    covariance : ndarray, (I, I)
        In S = V V^T + s2 K, symmetric.
    """

    mean: np.ndarray
    covariance: np.ndarray


class Learned(NamedTuple):
    """Which parts of the prior are learned."""

    mean: bool
    factors: bool
    scale: bool


class Kernel:
    """Covariance K = L L^T of utilities between items.

    Parameters
    ----------
    matrix : ndarray, (I, I)
    """

    def __init__(self, matrix: np.ndarray):
        self.matrix = np.ascontiguousarray(matrix, dtype=float)

    @cached_property
    def root(self) -> np.ndarray:
        """L, lower triangular."""
        try:
            return np.linalg.cholesky(self.matrix)
        except np.linalg.LinAlgError:
            least = float(scipy.linalg.eigvalsh(self.matrix, subset_by_index=(0, 0))[0])
            raise InvalidDataError(
                f"kernel= is not positive definite: its least eigenvalue is {least:.3g}, as where two items have equal "
                f"features; give the utilities a larger jitter=, such as 0.1."
            ) from None

    def times(self, x: np.ndarray) -> np.ndarray:
        """Return L x."""
        return self.root @ x

    def transposed(self, x: np.ndarray) -> np.ndarray:
        """Return L^T x."""
        return self.root.T @ x

    def solve(self, x: np.ndarray) -> np.ndarray:
        """Return L^{-1} x."""
        return scipy.linalg.solve_triangular(self.root, x, lower=True, check_finite=False)

    def extended(self, x: np.ndarray, known: np.ndarray) -> np.ndarray:
        """Return K_no K_oo^{-1} x at the items that are not in `known`, (I,), for x at those that are."""
        old = scipy.linalg.cho_factor(self.matrix[np.ix_(known, known)], lower=True, check_finite=False)
        return self.matrix[np.ix_(~known, known)] @ scipy.linalg.cho_solve(old, x)


class ComparedUsers(NamedTuple):
    """Comparisons of the users that made any, in the order of users.

    Attributes
    ----------
    users : ndarray of int64, (U,)
        Users with comparisons, as positions among all users.
    comparisons : Comparisons
        The preferred item of each comparison comes first.
    order : ndarray of int64, (P,)
        Places of the comparisons as they were given.
    """

    users: np.ndarray
    comparisons: Comparisons
    order: np.ndarray

    @classmethod
    def of(cls, users: np.ndarray, winners: np.ndarray, losers: np.ndarray, n_items: int) -> "ComparedUsers":
        """Return comparisons by user; arguments are (P,) each."""
        order = np.argsort(users, kind="stable")
        distinct, own, counts = np.unique(users[order], return_inverse=True, return_counts=True)
        # The items of each user, sorted, with the places of both sides of its comparisons among them.
        keys = own * np.int64(n_items) + np.stack([winners[order], losers[order]])
        known, places = np.unique(keys, return_inverse=True)
        item_ends = np.searchsorted(known, np.arange(len(distinct) + 1) * np.int64(n_items))
        firsts, seconds = places.reshape(2, -1) - item_ends[own]
        comparisons = Comparisons(
            item_ends.astype(np.int64),
            (known % n_items).astype(np.int32),
            np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
            firsts.astype(np.int32),
            seconds.astype(np.int32),
        )
        return cls(distinct, comparisons, order)
