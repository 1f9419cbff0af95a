"""Gaussian factors of the comparisons of many users, each on its own (Khan, Ko and Seeger 2014, section 3.1).

The factors of all comparisons are updated at once. An update factorises one matrix for each user, of the size of the
user's items. A user whose factors have settled is left out of further updates. Each user has its own length of steps.
"""

from typing import NamedTuple

import numpy as np

from pymc_ep.models.preferences.engine.approximations import Approximation
from pymc_ep.models.preferences.engine.values import Sites
from pymc_ep.models.preferences.kernel import Comparisons, Differences, difference_means, difference_moments
from pymc_ep.sites.base import Tilted
from pymc_ep.sites.compiled import CompiledSite

__all__ = ["Settled", "item_differences", "settle"]

_LONGER, _SHORTER = 1.25, 0.5
"""Multiples of a user's step after one that brought its factors closer to a fixed point, and after one that did not."""
_LEAST_STEP = 0.05
"""Shortest step, as a share of the update. Log-concave factors settle with longer steps."""
_INNER = 12
"""Largest number of updates of the shifts alone after an update of all factors. They take no factorisation, and save
many updates that do."""
_MATCHED = 0.03
"""Distance of tilted and posterior means, relative to their distance before any shift, at which they count as matched.
A closer match is wasted, as the next update of the precisions moves the means by more."""


class Settled(NamedTuple):
    """Settled factors of all users, and the posterior under them.

    Attributes
    ----------
    sites : Sites
    log_z : ndarray, (U,)
        Log evidence of each user.
    change : ndarray, (U,)
        Largest change of a factor in a further update, in posterior standard deviations.
    mean, variance : ndarray, (P,)
        Posterior moments of the differences of compared utilities.
    whitened : ndarray, (sum of n^2,)
        As in `pymc_ep.models.preferences.kernel.Differences`.
    """

    sites: Sites
    log_z: np.ndarray
    change: np.ndarray
    mean: np.ndarray
    variance: np.ndarray
    whitened: np.ndarray


class _Update(NamedTuple):
    """Update of all factors from one posterior.

    Attributes
    ----------
    at : Differences
        The posterior.
    cavity : ndarray, (P,)
        Variances of the cavities; zeros without cavities.
    tilted : Tilted
        The new factors.
    log_z, change : ndarray, (U,)
        As in `Settled`.
    """

    at: Differences
    cavity: np.ndarray
    tilted: Tilted
    log_z: np.ndarray
    change: np.ndarray


def settle(
    comparisons: Comparisons,
    lower: np.ndarray,
    item_mean: np.ndarray,
    sites: Sites,
    site: CompiledSite,
    approximation: Approximation,
    observed: np.ndarray,
    *,
    tol: float,
    max_iter: int,
    backend: str = "auto",
) -> Settled:
    """Return the factors of all users, iterated until no factor of a user changes by more than `tol`.

    Parameters
    ----------
    comparisons : Comparisons
        At least one comparison of each user.
    lower : ndarray, (sum of n^2,)
        Cholesky factors, (n, n), of the prior covariances of each user's n items, one after the other.
    item_mean : ndarray, (I,)
        Prior mean of the utilities of all items.
    sites : Sites
        First factors, such as zeros.
    site : CompiledSite
        Likelihood of a comparison.
    approximation : Approximation
    observed : ndarray, (P,)
        One for comparisons with a factor. Comparisons with a zero are predicted only, and their factors stay as given.
    tol : float
        In posterior standard deviations.
    max_iter : int
        Largest number of updates of a user.
    backend : str
    """
    n_users, n_pairs = comparisons.n_users, len(comparisons.firsts)
    shift, precision = (np.array(array) for array in sites)
    log_z, change, step = np.zeros(n_users), np.full(n_users, np.inf), np.ones(n_users)
    mean, variance, whitened = np.zeros(n_pairs), np.zeros(n_pairs), np.zeros(len(lower))
    users = np.arange(n_users)
    for iteration in range(max_iter):
        active, _, pairs, squares = comparisons.some(users)
        prior_mean = item_differences(active, item_mean[active.items])
        current = Sites(shift[pairs], precision[pairs])
        kept = observed[pairs]
        update = _update(active, lower[squares], prior_mean, current, site, approximation, kept, backend)
        grown = update.change >= change[users]
        step[users] = np.clip(step[users] * np.where(grown, _SHORTER, _LONGER), _LEAST_STEP, 1.0)
        log_z[users], change[users] = update.log_z, update.change
        mean[pairs], variance[pairs], whitened[squares] = update.at.mean, update.at.variance, update.at.whitened
        unsettled = update.change > tol
        if not unsettled.any() or iteration + 1 == max_iter:
            break
        new = _matched(active, prior_mean, current, update, site, kept, backend)
        # Users that have settled keep the factors under which their moments are known.
        length = kept * np.repeat(np.where(unsettled, step[users], 0.0), np.diff(active.pair_ends))
        shift[pairs] += length * (new.shift - current.shift)
        precision[pairs] += length * (new.precision - current.precision)
        users = users[unsettled]
    return Settled(Sites(shift, precision), log_z, change, mean, variance, whitened)


def item_differences(comparisons: Comparisons, values: np.ndarray) -> np.ndarray:
    """Return the value of the first item minus the value of the second, (P,); `values`, (N,), are of users' items."""
    firsts, seconds = comparisons.places
    return values[firsts] - values[seconds]


def _update(
    comparisons: Comparisons,
    lower: np.ndarray,
    prior_mean: np.ndarray,
    sites: Sites,
    site: CompiledSite,
    approximation: Approximation,
    kept: np.ndarray,
    backend: str,
) -> _Update:
    """Return the posterior under the factors `sites`, and the new factors that it gives."""
    shift, precision = sites
    at = difference_moments(comparisons, lower, prior_mean, shift, precision, backend=backend)
    slope = shift - precision * at.mean
    cavity, tilted = approximation.update(site, at, sites)
    # In posterior sds about m, a factor changes by |dp| v in its precision and |db - dp m| v^1/2 in its slope at m.
    d_precision = tilted.precision - precision
    moved = np.abs(tilted.shift - shift - d_precision * at.mean) * np.sqrt(at.variance)
    moved = kept * np.maximum(np.abs(d_precision) * at.variance, moved)
    # sum_k [c_k - s_k (m_k - mu_k) / 2] with s = b - p m and c = log_z + log(1 + p v_c) / 2 + v_c s^2 / 2.
    # The terms of the cavity are safe for factors of no or great precision, see `evidence.ep.sweep`.
    terms = tilted.log_z + 0.5 * np.log1p(precision * cavity) + 0.5 * cavity * slope**2
    terms -= 0.5 * slope * (at.mean - prior_mean)
    begin = comparisons.pair_ends[:-1]
    log_z = np.add.reduceat(kept * terms, begin) - 0.5 * at.log_det
    return _Update(at, cavity, tilted, log_z, np.maximum.reduceat(moved, begin))


def _matched(
    comparisons: Comparisons,
    prior_mean: np.ndarray,
    sites: Sites,
    update: _Update,
    site: CompiledSite,
    kept: np.ndarray,
    backend: str,
) -> Sites:
    """Return the updated factors, after further updates of the shifts that bring tilted and posterior means together.

    Factor precisions and cavity variances are unchanged meanwhile. The shift that reproduces a tilted mean is a Newton
    step where the factor's precision equals the tilted one, and too long a step where the tilted precision is larger.
    A user's step is therefore shortened until its means come closer. Without cavities the means agree at once.
    """
    at, cavity, begin = update.at, update.cavity, comparisons.pair_ends[:-1]
    counts, precision = np.diff(comparisons.pair_ends), sites.precision

    def distance(tilted: Tilted, mean: np.ndarray) -> np.ndarray:
        return np.sqrt(np.add.reduceat(kept * (tilted.mean - mean) ** 2 / at.variance, begin))

    best, shift, length = update.tilted, sites.shift, np.ones(comparisons.n_users)
    gap = first = distance(best, at.mean)
    for _ in range(_INNER):
        unmatched = gap > _MATCHED * first
        if not unmatched.any():
            break
        step = kept * np.repeat(np.where(unmatched, length, 0.0), counts)
        # b = g + p m_t gives the factor times its cavity the mean m_t, as the tilted one has g = (m_t - m_c) / v_c.
        trial = shift + step * (best.gradient + precision * best.mean - shift)
        mean = difference_means(comparisons, at.whitened, prior_mean, trial, precision, backend=backend)
        # m_c = m - v_c (b - p m).
        trial_moments = site.moments(np.ones(1), mean - cavity * (trial - precision * mean), cavity)
        trial_gap = distance(trial_moments, mean)
        closer = unmatched & (trial_gap < gap)
        taken = np.repeat(closer, counts)
        best = Tilted(*(np.where(taken, new, old) for new, old in zip(trial_moments, best)))
        shift, gap = np.where(taken, trial, shift), np.where(closer, trial_gap, gap)
        length = np.where(closer, np.minimum(1.0, 2.0 * length), length / 4.0)
    return Sites(best.shift, best.precision)
