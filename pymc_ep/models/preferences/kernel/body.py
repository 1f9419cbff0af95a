"""Gaussian utilities of many users, each compared in pairs of a few items, NumPy bodies.

The utilities f of a user's n items have the prior N(m, S), where S is V V^T + s2 K at these items. Their P compared
differences d = f_i - f_j have Gaussian factors exp(b d - p d^2 / 2). With S = L L^T, with D the (P, n) matrix of rows
e_i - e_j, and with H = D^T diag(p) D,

    A = I + L^T H L = R R^T,    W = R^{-1} L^T,    cov(f | factors) = W^T W.

There is no division by precisions, so that repeated or contradictory comparisons need no special treatment. Costs are
cubic in the items, O(n^3 + P n), and not in the comparisons (Khan, Ko and Seeger 2014 take O(P^3)).
"""

from typing import NamedTuple

import numpy as np
import scipy.linalg

__all__ = [
    "Comparisons",
    "Differences",
    "add_losses",
    "difference_means",
    "difference_moments",
    "precision_losses",
    "prior_factors",
]


class Comparisons(NamedTuple):
    """Pairs of items that users compared.

    Attributes
    ----------
    item_ends, pair_ends : ndarray of int64, (U + 1,)
        User u has the items ``items[item_ends[u]:item_ends[u + 1]]``, all different, and the comparisons from
        ``pair_ends[u]`` up to ``pair_ends[u + 1]``.
    items : ndarray of int32, (N,)
        Compared items of all users, one user after the other.
    firsts, seconds : ndarray of int32, (P,)
        The two items of a comparison, as positions among the items of its user.
    """

    item_ends: np.ndarray
    items: np.ndarray
    pair_ends: np.ndarray
    firsts: np.ndarray
    seconds: np.ndarray

    @property
    def n_users(self) -> int:
        """Number of users U."""
        return len(self.item_ends) - 1

    @property
    def square_ends(self) -> np.ndarray:
        """Ends of the users' n x n matrices where these are laid out one after the other, (U + 1,)."""
        return np.concatenate([[0], np.cumsum(np.diff(self.item_ends) ** 2)])

    @property
    def square_places(self) -> tuple[np.ndarray, np.ndarray]:
        """Row and column of each entry of the users' n x n matrices, as places in `items`, (sum of n^2,) each."""
        counts = np.diff(self.item_ends)
        begin, ends, n = (np.repeat(array, counts**2) for array in (self.item_ends[:-1], self.square_ends[:-1], counts))
        row, column = np.divmod(np.arange(len(n)) - ends, n)
        return begin + row, begin + column

    @property
    def places(self) -> tuple[np.ndarray, np.ndarray]:
        """Places in `items` of the first and of the second item of each comparison, (P,) each."""
        begin = np.repeat(self.item_ends[:-1], np.diff(self.pair_ends))
        return begin + self.firsts, begin + self.seconds

    def n_items(self, u: int) -> int:
        """Return the number n of items of a user."""
        return int(self.item_ends[u + 1] - self.item_ends[u])

    def some(self, users: np.ndarray) -> tuple["Comparisons", np.ndarray, np.ndarray, np.ndarray]:
        """Return the comparisons of `users`, (k,), and three index arrays into the arrays of all users.

        They are the places of these users' items, comparisons and entries of n x n matrices.
        """
        ends = self.item_ends, self.pair_ends, self.square_ends
        counts = [np.diff(old)[users] for old in ends]
        new_ends = [np.concatenate([[0], np.cumsum(count)]) for count in counts]
        items, pairs, squares = (
            np.arange(new[-1]) + np.repeat(old[:-1][users] - new[:-1], count)
            for old, new, count in zip(ends, new_ends, counts)
        )
        comparisons = Comparisons(new_ends[0], self.items[items], new_ends[1], self.firsts[pairs], self.seconds[pairs])
        return comparisons, items, pairs, squares

    def of_user(self, u: int) -> tuple[slice, slice]:
        """Return slices of the items and of the comparisons of a user."""
        return slice(*self.item_ends[u : u + 2]), slice(*self.pair_ends[u : u + 2])


class Differences(NamedTuple):
    """Posterior of the differences of compared utilities.

    Attributes
    ----------
    mean, variance : ndarray, (P,)
        Posterior moments.
    log_det : ndarray, (U,)
        log |A| of each user.
    whitened : ndarray, (sum of n^2,)
        W^T of each user, (n, n), one after the other.
    """

    mean: np.ndarray
    variance: np.ndarray
    log_det: np.ndarray
    whitened: np.ndarray

    @classmethod
    def empty(cls, comparisons: Comparisons) -> "Differences":
        """Return arrays of zeros in the right shapes, to be overwritten."""
        n_pairs = len(comparisons.firsts)
        sizes = n_pairs, n_pairs, comparisons.n_users, comparisons.square_ends[-1]
        return cls(*map(np.zeros, sizes))


def prior_factors(
    comparisons: Comparisons, factors: np.ndarray, kernel: np.ndarray, scale: float
) -> tuple[np.ndarray, int]:
    """Return the Cholesky factors L of the prior covariances of the users' items, one after the other.

    Parameters
    ----------
    comparisons : Comparisons
    factors : ndarray, (I, D)
        V.
    kernel : ndarray, (I, I) or (0, 0)
        K; without entries it is the identity.
    scale : float
        s2.

    Returns
    -------
    ndarray, (sum of n^2,)
    int
        Index of the first user whose covariance is not positive definite, or -1.
    """
    ends = comparisons.square_ends
    out = np.zeros(ends[-1])
    for u in range(comparisons.n_users):
        items = comparisons.items[comparisons.of_user(u)[0]]
        between = kernel[np.ix_(items, items)] if kernel.size else np.eye(len(items))
        covariance = factors[items] @ factors[items].T + scale * between
        try:
            out[ends[u] : ends[u + 1]] = np.linalg.cholesky(covariance).ravel()
        except np.linalg.LinAlgError:
            return out, u
    return out, -1


def difference_moments(
    comparisons: Comparisons,
    lower: np.ndarray,
    mean: np.ndarray,
    shift: np.ndarray,
    precision: np.ndarray,
) -> Differences:
    """Return the posterior of the differences of compared utilities.

    Parameters
    ----------
    comparisons : Comparisons
    lower : ndarray, (sum of n^2,)
        The factors L.
    mean : ndarray, (P,)
        Prior means of the differences.
    shift, precision : ndarray, (P,)
        b and p.
    """
    squares, out = comparisons.square_ends, Differences.empty(comparisons)
    for u in range(comparisons.n_users):
        entries, (_, pairs) = slice(*squares[u : u + 2]), comparisons.of_user(u)
        factor, user_precision = lower[entries].reshape(comparisons.n_items(u), -1), precision[pairs]
        # A = I + (D L)^T diag(p) D L = R R^T, W^T = L R^-T, and variances diag(D W^T W D^T).
        rows = _rows(comparisons, u, factor)
        root = np.linalg.cholesky(np.eye(len(factor)) + rows.T @ (user_precision[:, None] * rows))
        white = scipy.linalg.solve_triangular(root, factor.T, lower=True, check_finite=False).T
        out.whitened[entries] = white.ravel()
        out.variance[pairs] = (_rows(comparisons, u, white) ** 2).sum(axis=1)
        out.log_det[u] = 2.0 * np.log(np.diag(root)).sum()
    mean = difference_means(comparisons, out.whitened, mean, shift, precision)
    return out._replace(mean=mean)


def difference_means(
    comparisons: Comparisons,
    whitened: np.ndarray,
    mean: np.ndarray,
    shift: np.ndarray,
    precision: np.ndarray,
) -> np.ndarray:
    """Return the posterior means of differences, (P,), for any shifts, given `Differences.whitened` at `precision`."""
    squares, out = comparisons.square_ends, np.zeros(len(mean))
    for u in range(comparisons.n_users):
        _, pairs = comparisons.of_user(u)
        rows = _rows(comparisons, u, whitened[squares[u] : squares[u + 1]].reshape(comparisons.n_items(u), -1))
        # mu + D W^T W D^T (b - p mu).
        out[pairs] = mean[pairs] + rows @ (rows.T @ (shift[pairs] - precision[pairs] * mean[pairs]))
    return out


def precision_losses(comparisons: Comparisons, whitened: np.ndarray, precision: np.ndarray) -> np.ndarray:
    """Return H - H cov(f | factors) H of each user, one after the other, (sum of n^2,).

    This matrix Q, (n, n), equals (H^{-1} + S)^{-1} where H has an inverse. The posterior covariance of all items,
    compared or not, is S - S Q S.
    """
    squares = comparisons.square_ends
    out = np.zeros(squares[-1])
    for u in range(comparisons.n_users):
        entries, (_, pairs) = slice(*squares[u : u + 2]), comparisons.of_user(u)
        white = whitened[entries].reshape(comparisons.n_items(u), -1)
        # H - (H W^T) (H W^T)^T, with H = D^T diag(p) D.
        design = _rows(comparisons, u, np.eye(len(white)))
        through = design.T @ (precision[pairs, None] * _rows(comparisons, u, white))
        laplacian = design.T @ (precision[pairs, None] * design)
        out[entries] = (laplacian - through @ through.T).ravel()
    return out


def add_losses(comparisons: Comparisons, losses: np.ndarray, weights: np.ndarray, total: np.ndarray) -> None:
    """Add Q - w w^T of each user to a matrix of all items, (I, I).

    Parameters
    ----------
    comparisons : Comparisons
    losses : ndarray, (sum of n^2,)
        Q.
    weights : ndarray, (N,)
        w.
    total : ndarray, (I, I)
        Matrix that is changed in place.
    """
    squares = comparisons.square_ends
    for u in range(comparisons.n_users):
        entries, (items, _) = slice(*squares[u : u + 2]), comparisons.of_user(u)
        rows, w = comparisons.items[items], weights[items]
        # The items of a user are all different.
        total[np.ix_(rows, rows)] += losses[entries].reshape(len(rows), -1) - np.outer(w, w)


def _rows(comparisons: Comparisons, u: int, values: np.ndarray) -> np.ndarray:
    """Return row i minus row j of a user's matrix `values`, (n, n), for each of its comparisons of i and j, (P, n)."""
    _, pairs = comparisons.of_user(u)
    return values[comparisons.firsts[pairs]] - values[comparisons.seconds[pairs]]
