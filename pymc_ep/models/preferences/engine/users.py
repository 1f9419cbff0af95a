"""Fit of all users of a part, given the prior, and sums over them; see `pymc_ep.engines.partitions` for parts."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from scipy.sparse import coo_array, csr_array

from pymc_ep.exceptions import NumericalError
from pymc_ep.models.preferences.engine.approximations import Approximation
from pymc_ep.models.preferences.engine.expectation import Settled, settle
from pymc_ep.models.preferences.engine.kernels import Curvature, UtilityCovariance
from pymc_ep.models.preferences.engine.values import Sites
from pymc_ep.models.preferences.kernel import Comparisons, add_losses, difference_means, precision_losses, prior_factors
from pymc_ep.sites.base import Site
from pymc_ep.sites.compiled import compile_site

__all__ = ["Effort", "ObservedComparisons", "Totals", "UserFactors", "blocks", "expect", "factorised"]

_NUMBERS = 2**22
"""Largest number of entries of the covariances of a block of users, 32 MiB."""


class Effort(NamedTuple):
    """Tolerance and limit of the iteration of a user's factors, and the backend.

    Attributes
    ----------
    tol : float
        Largest change of a factor, in posterior standard deviations, at which a user has settled.
    max_iter : int
        Largest number of updates of a user.
    backend : str
    """

    tol: float
    max_iter: int
    backend: str = "auto"


class ObservedComparisons(NamedTuple):
    """Data of a part: the comparisons of its users.

    Attributes
    ----------
    comparisons : Comparisons
    observed : ndarray, (P,)
        Zero for comparisons that are held out, and one for all others.
    """

    comparisons: Comparisons
    observed: np.ndarray


class UserFactors(NamedTuple):
    """Gaussian factors of the users of a part.

    Attributes
    ----------
    sites : Sites
    weights : ndarray, (N,)
        w of each user's items, one user after the other. A user's posterior mean is b + S w, with the prior N(b, S).
    log_z, change : ndarray, (U,)
        As in `Settled`.
    """

    sites: Sites
    weights: np.ndarray
    log_z: np.ndarray
    change: np.ndarray

    @classmethod
    def first(cls, comparisons: Comparisons) -> "UserFactors":
        """Return the factors before any update: shifts and precisions of zero."""
        n_pairs, n_users = len(comparisons.firsts), comparisons.n_users
        sites = Sites(np.zeros(n_pairs), np.zeros(n_pairs))
        return cls(sites, np.zeros(len(comparisons.items)), np.zeros(n_users), np.full(n_users, np.inf))

    def of_users(self, comparisons: Comparisons, users: slice) -> "UserFactors":
        """Return the factors of the users in a slice, given the comparisons of all users."""
        items, pairs = (
            slice(*ends[[users.start, users.stop]]) for ends in (comparisons.item_ends, comparisons.pair_ends)
        )
        sites = Sites(*(array[pairs] for array in self.sites))
        return UserFactors(sites, self.weights[items], self.log_z[users], self.change[users])

    @classmethod
    def joined(cls, factors: Sequence["UserFactors"]) -> "UserFactors":
        """Return the factors of all users, given the factors of successive groups of users."""
        sites = Sites(*map(np.concatenate, zip(*(users.sites for users in factors))))
        return cls(sites, *(np.concatenate([users[k] for users in factors]) for k in range(1, len(cls._fields))))


class Response(NamedTuple):
    """Part of the gradient of the log evidence in the prior N(b, S) that is due to changes of the factors with b and S.

    Attributes
    ----------
    slope : ndarray, (I,)
        Sum over users of r, which `_response` defines: the part of the gradient in b.
    curvature : ndarray or csr_array, (I, I)
        Sum over users of -(r w^T + w r^T): minus twice the part of the gradient in S.
    """

    slope: np.ndarray
    curvature: Curvature


class Totals(NamedTuple):
    """Sums over users, whose posteriors have the mean b + S w and the covariance S - S Q S.

    Attributes
    ----------
    log_z : float
        Log evidence.
    held_log_p : float
        Log predictive probability of the comparisons that are held out.
    slope : ndarray, (I,)
        Sum of w: the gradient of the log evidence in b at fixed factors.
    curvature : ndarray or csr_array, (I, I)
        Sum of Q - w w^T: minus twice the gradient of the log evidence in S at fixed factors.
    response : Response, optional
        None where the log evidence is stationary in the factors.
    """

    log_z: float
    held_log_p: float
    slope: np.ndarray
    curvature: Curvature
    response: Response | None = None

    @property
    def derivatives(self) -> tuple[np.ndarray, Curvature]:
        """Gradient of the log evidence in b, (I,), and minus twice its gradient in S, (I, I), with `response`."""
        if self.response is None:
            return self.slope, self.curvature
        return self.slope + self.response.slope, self.curvature + self.response.curvature


def expect(
    data: ObservedComparisons,
    before: UserFactors,
    mean: np.ndarray,
    covariance: UtilityCovariance,
    site: Site,
    approximation: Approximation,
    effort: Effort,
) -> tuple[UserFactors, Totals]:
    """Return the settled factors of a part's users, iterated from `before`, and sums over the users.

    The prior of utilities is N(mean, covariance).

    Raises
    ------
    NumericalError
        If the prior covariance of the items of a user is not positive definite.
    """
    comparisons, observed = data
    factors, held_log_p, size, compiled = [], 0.0, len(mean), compile_site(site)
    curvature = _no_curvature(covariance)
    response = Response(np.zeros(size), _no_curvature(covariance)) if approximation.response else None
    for block, _, pairs in blocks(comparisons):
        first = Sites(before.sites.shift[pairs], before.sites.precision[pairs])
        lower = factorised(block, covariance, effort.backend)
        settled = settle(block, lower, mean, first, compiled, approximation, observed[pairs], **effort._asdict())
        if (held := observed[pairs] == 0).any():
            # log of the integral of t(d) N(d; m, v).
            held_log_p += float(compiled.moments(np.ones(1), settled.mean[held], settled.variance[held]).log_z.sum())
        # w = D^T (shift - precision m), m the posterior means of the differences.
        weights = item_sums(block, settled.sites.shift - settled.sites.precision * settled.mean)
        losses = precision_losses(block, settled.whitened, settled.sites.precision, backend=effort.backend)
        curvature = _with_users(curvature, block, losses, weights, effort.backend)
        if response is not None and approximation.response is not None:
            derivative = approximation.response(compiled, settled.mean, settled.variance)
            moved = _response(block, settled, observed[pairs] * derivative, effort.backend)
            np.add.at(response.slope, block.items, moved)
            rows, columns = block.square_places
            across, none = -moved[rows] * weights[columns] - weights[rows] * moved[columns], np.zeros_like(weights)
            summed = _with_users(response.curvature, block, across, none, effort.backend)
            response = response._replace(curvature=summed)
        factors.append(UserFactors(settled.sites, weights, settled.log_z, settled.change))
    after = UserFactors.joined(factors)
    slope = np.bincount(comparisons.items, after.weights, size)
    return after, Totals(float(after.log_z.sum()), held_log_p, slope, curvature, response)


def factorised(comparisons: Comparisons, covariance: UtilityCovariance, backend: str = "auto") -> np.ndarray:
    """Return Cholesky factors of the prior covariances of users' items, (sum of n^2,); raise if one does not exist."""
    lower, failed = prior_factors(comparisons, *covariance, backend=backend)
    if failed >= 0:
        items = comparisons.items[comparisons.of_user(failed)[0]]
        raise NumericalError(
            f"The prior covariance of the items {', '.join(map(str, items[:5]))}{' ...' if len(items) > 5 else ''} is "
            f"not positive definite: give the utilities a larger jitter=, such as 0.1."
        )
    return lower


def item_sums(comparisons: Comparisons, values: np.ndarray) -> np.ndarray:
    """Return the sum of `values`, (P,), over the comparisons of each item of each user, (N,): minus where it lost."""
    # D^T x, where D has the rows e_i - e_j.
    firsts, seconds = comparisons.places
    return np.bincount(firsts, values, len(comparisons.items)) - np.bincount(seconds, values, len(comparisons.items))


def _response(comparisons: Comparisons, settled: Settled, derivative: np.ndarray, backend: str) -> np.ndarray:
    """Return r = (I + H S)^{-1} D^T s, (N,), for derivatives s of the evidence in the differences at the mode, (P,).

    D, H and S are as in `pymc_ep.models.preferences.kernel.body`.
    """
    # (I + H S)^-1 = I - H C with C = (S^-1 + H)^-1 and H = D^T diag(p) D, hence r = D^T (s - p o (D C D^T s)).
    none = np.zeros_like(derivative)
    spread = difference_means(comparisons, settled.whitened, none, derivative, none, backend=backend)
    return item_sums(comparisons, derivative - settled.sites.precision * spread)


def blocks(comparisons: Comparisons) -> Iterator[tuple[Comparisons, np.ndarray, np.ndarray]]:
    """Yield blocks of users: their comparisons, and the indices of their items and comparisons in arrays of all users.

    The covariances of a block have at most `_NUMBERS` entries, unless a single user's have more.
    """
    squares, begin = comparisons.square_ends, 0
    while begin < comparisons.n_users:
        end = int(np.searchsorted(squares, squares[begin] + _NUMBERS, side="right")) - 1
        users = np.arange(begin, max(end, begin + 1))
        yield comparisons.some(users)[:3]
        begin = users[-1] + 1


def _no_curvature(covariance: UtilityCovariance) -> Curvature:
    """Return zeros, (I, I): dense where the kernel is a matrix, or for at most `_NUMBERS` entries; else sparse."""
    n_items = len(covariance.factors)
    if n_items**2 <= max(_NUMBERS, covariance.matrix.size):
        return np.zeros((n_items, n_items))
    return csr_array((n_items, n_items))


def _with_users(
    total: Curvature, comparisons: Comparisons, losses: np.ndarray, weights: np.ndarray, backend: str
) -> Curvature:
    """Return `total`, (I, I), plus Q - w w^T of each user at its items; a dense `total` is changed in place."""
    if isinstance(total, np.ndarray):
        add_losses(comparisons, losses, weights, total, backend=backend)
        return total
    rows, columns = comparisons.square_places
    values = losses - weights[rows] * weights[columns]
    places = comparisons.items[rows], comparisons.items[columns]
    return total + coo_array((values, places), shape=total.shape).tocsr()
