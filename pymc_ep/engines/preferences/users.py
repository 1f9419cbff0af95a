"""A pass over the users of a part, given the prior; see `pymc_ep.engines.partitions`."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from pymc_ep.engines.preferences.expectation import Settled, Sites, settle
from pymc_ep.engines.preferences.values import UtilityPrior
from pymc_ep.exceptions import NumericalError
from pymc_ep.kernels.comparisons import Comparisons, add_losses, precision_losses, prior_factors
from pymc_ep.sites.base import Site, Tilted
from pymc_ep.sites.compiled import compile_site

__all__ = ["Effort", "ObservedComparisons", "Totals", "UserFactors", "blocks", "expect", "factorised", "item_weights"]

_NUMBERS = 2**22
"""Largest number of entries of the covariances of a block of users, 32 MiB."""


class Effort(NamedTuple):
    """How far the factors of a user are iterated.

    Attributes
    ----------
    tol : float
        Largest change of a factor, in posterior standard deviations, at which a user has settled.
    max_iter : int
    backend : str
    """

    tol: float
    max_iter: int
    backend: str = "auto"


class ObservedComparisons(NamedTuple):
    """Data of a part.

    Attributes
    ----------
    comparisons : Comparisons
    observed : ndarray, (P,)
        One, or zero for comparisons that are held out.
    """

    comparisons: Comparisons
    observed: np.ndarray


class UserFactors(NamedTuple):
    """Gaussian factors of the users of a part.

    Attributes
    ----------
    sites : Sites
    weights : ndarray, (N,)
        w of each user's items: with S the prior covariance, the posterior mean is b + S w.
    log_z, change : ndarray, (U,)
        As in `Settled`.
    """

    sites: Sites
    weights: np.ndarray
    log_z: np.ndarray
    change: np.ndarray

    @classmethod
    def first(cls, comparisons: Comparisons) -> "UserFactors":
        """Return factors of one, before any is updated."""
        n_pairs, n_users = len(comparisons.firsts), comparisons.n_users
        sites = Sites(np.zeros(n_pairs), np.zeros(n_pairs))
        return cls(sites, np.zeros(len(comparisons.items)), np.zeros(n_users), np.full(n_users, np.inf))

    def of_users(self, comparisons: Comparisons, users: slice) -> "UserFactors":
        """Return the factors of successive users, given the comparisons of all."""
        items, pairs = (
            slice(*ends[[users.start, users.stop]]) for ends in (comparisons.item_ends, comparisons.pair_ends)
        )
        sites = Sites(*(part[pairs] for part in self.sites))
        return UserFactors(sites, self.weights[items], self.log_z[users], self.change[users])

    @classmethod
    def joined(cls, parts: Sequence["UserFactors"]) -> "UserFactors":
        """Return the factors of successive users."""
        sites = Sites(*map(np.concatenate, zip(*(part.sites for part in parts))))
        return cls(sites, *(np.concatenate([part[k] for part in parts]) for k in range(1, len(cls._fields))))


class Totals(NamedTuple):
    """Sums over users.

    Attributes
    ----------
    log_z : float
    held_log_p : float
        Log predictive probability of the comparisons that are held out.
    slope : ndarray, (I,)
        Of w: the gradient of the log evidence in b.
    curvature : ndarray, (I, I)
        Of Q - w w^T, where S - S Q S is the posterior covariance: minus twice the gradient of the log evidence in S.
    """

    log_z: float
    held_log_p: float
    slope: np.ndarray
    curvature: np.ndarray


def expect(
    data: ObservedComparisons, own: UserFactors, prior: UtilityPrior, kernel: np.ndarray, site: Site, effort: Effort
) -> tuple[UserFactors, Totals]:
    """Settle the factors of the users of a part, from those of an earlier prior.

    Raises
    ------
    NumericalError
        If the prior covariance of the items of a user is not positive definite.
    """
    comparisons, observed = data
    found, held_log_p, curvature = [], 0.0, np.zeros((len(prior.mean),) * 2)
    moments = partial(_moments, site)
    for some, _, pairs in blocks(comparisons):
        first = Sites(own.sites.shift[pairs], own.sites.precision[pairs])
        lower = factorised(some, prior, kernel, effort.backend)
        settled = settle(some, lower, prior.mean, first, moments, observed[pairs], **effort._asdict())
        if (held := observed[pairs] == 0).any():
            held_log_p += float(moments(settled.mean[held], settled.variance[held]).log_z.sum())
        weights = item_weights(some, settled)
        losses = precision_losses(some, settled.whitened, settled.sites.precision, backend=effort.backend)
        add_losses(some, losses, weights, curvature, backend=effort.backend)
        found.append(UserFactors(settled.sites, weights, settled.log_z, settled.change))
    after = UserFactors.joined(found)
    slope = np.bincount(comparisons.items, after.weights, len(prior.mean))
    return after, Totals(float(after.log_z.sum()), held_log_p, slope, curvature)


def factorised(comparisons: Comparisons, prior: UtilityPrior, kernel: np.ndarray, backend: str = "auto") -> np.ndarray:
    """Return the Cholesky factors of the prior covariances of the users' items; raise if one has none."""
    lower, failed = prior_factors(comparisons, prior.factors, kernel, prior.scale, backend=backend)
    if failed >= 0:
        items = comparisons.items[comparisons.of_user(failed)[0]]
        raise NumericalError(
            f"The prior covariance of the items {', '.join(map(str, items[:5]))}{' ...' if len(items) > 5 else ''} is "
            f"not positive definite: give the utilities a larger jitter=, such as 0.1."
        )
    return lower


def item_weights(comparisons: Comparisons, settled: Settled) -> np.ndarray:
    """Return w, (N,), see `UserFactors`: the slopes of the factors at the posterior mean, with signs of their items."""
    firsts, seconds = comparisons.places
    slope = settled.sites.shift - settled.sites.precision * settled.mean
    total = np.bincount(firsts, slope, len(comparisons.items))
    return total - np.bincount(seconds, slope, len(comparisons.items))


def _moments(site: Site, mean: np.ndarray, variance: np.ndarray) -> Tilted:
    """Return the tilted moments of the factor of a comparison that the first item has won."""
    return compile_site(site).moments(np.ones_like(mean), mean, variance)


def blocks(comparisons: Comparisons) -> Iterator[tuple[Comparisons, np.ndarray, np.ndarray]]:
    """Yield comparisons of users whose covariances fit a buffer, with the places of their items and comparisons."""
    squares, begin = comparisons.square_ends, 0
    while begin < comparisons.n_users:
        end = int(np.searchsorted(squares, squares[begin] + _NUMBERS, side="right")) - 1
        users = np.arange(begin, max(end, begin + 1))
        yield comparisons.some(users)[:3]
        begin = users[-1] + 1
