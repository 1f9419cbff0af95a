"""One sweep of expectation propagation: a pure function of arrays, run by NumPy or jitted by JAX."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np

from pymc_ep.evidence.ep.cavities import Cavities, JointRows, cavities, change_of_sites
from pymc_ep.exceptions import ImpossibleDensityError
from pymc_ep.numerics.backend.namespace import Array, namespace, while_loop
from pymc_ep.numerics.gaussian.protocol import GaussianPosterior, GaussianPrior
from pymc_ep.sites.base import Tilted
from pymc_ep.sites.compiled import CompiledSite

__all__ = [
    "KNOWN",
    "Kinds",
    "Problem",
    "Sweep",
    "counted_from",
    "group_slices",
    "joined_moments",
    "match_means",
    "sweep",
    "sweep_of",
]


KNOWN = 1e-12
"""Cavity variance that replaces 0 in the moments of a site whose predictor is known. Its value is immaterial: no
posterior moment and no moment of another site depends on it."""

_MATCHED = 0.03
"""Distance of tilted and posterior means, relative to the distance at the start, at which they count as matched. A
closer match is wasted, as the next update of the precisions moves the means by more."""
_EXACT = 1e-11
"""Euclidean distance of the n tilted means from the posterior means, in posterior standard deviations, that is
rounding."""
_REJECTED_COST = 4
"""Number of evaluations for which a rejected step counts towards their limit. After a rejection the means will hardly
match before the precisions change, and further tries are wasted."""


class Problem(NamedTuple):
    """Gaussian prior and sites at one value of the hyperparameters.

    Attributes
    ----------
    mean : array, (n,)
        Prior mean of the predictors.
    prior : GaussianPrior
        Distribution of the predictors about their mean.
    observed : tuple of array
        Observations of each group of sites, ravelled; n in all.
    parameters : tuple of tuple of array
        Site parameters of each group, each of the group's length.
    """

    mean: Array
    prior: GaussianPrior
    observed: tuple[Any, ...]
    parameters: tuple[tuple[Any, ...], ...]


class Kinds(NamedTuple):
    """Kinds of the sites of each group.

    Attributes
    ----------
    gaussian : tuple of bool
        Whether the sites are Gaussian.
    predictors : tuple of int
        Number of predictors of a site.
    """

    gaussian: tuple[bool, ...]
    predictors: tuple[int, ...]

    @classmethod
    def of(cls, sites: Sequence[CompiledSite]) -> "Kinds":
        """Return the kinds of compiled sites."""
        return cls(tuple(s.site.gaussian for s in sites), tuple(s.site.predictors for s in sites))

    def pairs(self, observed: Sequence[Any]) -> list[slice]:
        """Return the rows of each group whose sites have two predictors."""
        return [rows for rows, number in self.joint(observed) if number == 2]

    def joint(self, observed: Sequence[Any]) -> list[JointRows]:
        """Return the rows of each group whose sites have several predictors, with the number of predictors."""
        return [(rows, number) for rows, number in zip(group_slices(observed), self.predictors) if number > 1]


class Sweep(NamedTuple):
    """One evaluation of all site updates at given sites.

    Attributes
    ----------
    shift, precision : array, (n,)
        The updated sites.
    posterior : GaussianPosterior
        The posterior under the given sites.
    cavity_mean, cavity_variance : array, (n,)
    tilted : Tilted
        Moments of the cavities times ``site**power``, fields (n,).
    log_z : scalar
        EP's log evidence for the given sites; stationary in them at a fixed point.
    change : scalar
        Largest change of a site, free of the predictor's unit: the larger of |d pi_i| V_i and |d a_i| V_i^1/2, with the
        slope a_i = b_i - pi_i m_i at the posterior mean.
    proper : bool scalar
        Whether posterior and cavities are proper and the tilted moments finite.
    rounding : scalar
        Rounding error of posterior means, in standard deviations, which is also the relative error of variances.
    """

    shift: Array
    precision: Array
    posterior: GaussianPosterior
    cavity_mean: Array
    cavity_variance: Array
    tilted: Tilted
    log_z: Array
    change: Array
    proper: Array
    rounding: Array


def log_evidence(problem: Problem, posterior: GaussianPosterior, cavity: Cavities, log_z: Array, power: float) -> Array:
    """Return EP's log evidence, in a form that is safe for zero precisions and singular covariances.

    At the posterior mean m a site of shift b and precision pi has the slope a = b - pi m. With eta = `power`, its
    cavity of variance v has the mean m - eta v a, and Zhat, whose log is `log_z`, (n,), is the integral of the cavity
    times t^eta. Terms common to the site normalisers (Rasmussen and Williams 2006, section 3.6.3) and the Gaussian
    integral cancel analytically:

        log Z = sum_i [(log Zhat_i + log(1 + eta pi_i v_i) / 2) / eta + eta v_i a_i^2 / 2]
                - (m - m0)^T K^{-1} (m - m0) / 2 - log|I + K Pi| / 2.

    No large terms are left to cancel numerically, even for very precise sites or nearly flat cavities. The sum is
    stationary in the posterior mean, so that a rounding error of the mean counts to second order only.
    """
    terms = (log_z + 0.5 * cavity.log_widened) / power + 0.5 * cavity.pull
    return terms.sum() - 0.5 * problem.prior.energy(posterior, problem.mean) - 0.5 * posterior.log_det


def sweep(
    problem: Problem,
    shift: Array,
    precision: Array,
    enough: Array,
    *,
    moments: Callable[..., tuple[Tilted, Callable[[Any], Tilted]]],
    kinds: "Kinds",
    power: float,
    log_concave: bool,
    inner: int,
) -> Sweep:
    """Return all site updates at given sites: one cubic factorisation, and up to 1 + inner evaluations of n moments.

    With ``inner = 0`` this is the update of plain EP. Otherwise the means are matched first, see `match_means`, and the
    sites are updated from there. The two updates have the same fixed points. If no site would change by more than
    `enough`, the tolerance, EP has converged, and the means are not matched.
    """
    xp = namespace(problem.mean)
    posterior = problem.prior.posterior(problem.mean, shift, precision, log_concave=log_concave)
    exact = xp.concatenate([xp.full(len(y), is_gaussian) for y, is_gaussian in zip(problem.observed, kinds.gaussian)])
    joint = kinds.joint(problem.observed)
    cavity = cavities(posterior, precision, power, exact, joint=joint)
    cavity_mean, cavity_variance = cavity.mean, cavity.variance
    # A predictor of prior variance zero is known: its site has no effect but a factor t at that value.
    is_known = problem.prior.variances() <= 0
    finite = (cavity_variance > 0) & (cavity_variance < np.inf)
    proper = posterior.proper & xp.all(is_known | ((posterior.variance > 0) & finite))
    safe = xp.where(proper & ~is_known, cavity_variance, xp.where(is_known, KNOWN, 1.0))
    tilted, nearby = moments(xp.where(proper, cavity_mean, 0.0), safe, problem.observed, problem.parameters)
    log_z = log_evidence(problem, posterior, cavity, tilted.log_z, power)
    # Tilted density over cavity is the site's power: changes of pi, and of the slope b - pi m at the posterior mean.
    d_precision = tilted.precision / power - precision
    d_slope = tilted.shift / power - shift - d_precision * posterior.mean
    change = change_of_sites(posterior, d_precision, d_slope, joint)
    refined = tilted
    if inner:
        limit = xp.where(proper & (change > enough), inner, 0)

        def centres(moved: GaussianPosterior) -> Array:
            return cavities(moved, precision, power, exact, joint=joint).mean

        refined = match_means(problem, posterior, shift, precision, tilted, nearby, power, limit, centres)
    for field in (*tilted, *refined):
        proper = proper & xp.all(xp.isfinite(field))
    return Sweep(
        refined.shift / power,
        refined.precision / power,
        posterior,
        cavity_mean,
        cavity_variance,
        tilted,
        log_z,
        change,
        proper,
        problem.prior.rounding(posterior),
    )


def match_means(
    problem: Problem,
    posterior: GaussianPosterior,
    shift: Array,
    precision: Array,
    tilted: Tilted,
    nearby: Callable[[Any], Tilted],
    power: float,
    limit: Array,
    centres: Callable[[GaussianPosterior], Array],
) -> Tilted:
    """Return tilted moments at shifts with which posterior and tilted means agree, at fixed precisions.

    Cavity variances are fixed as well, so that this costs matrix-vector products only. A full step leads to the shift
    that reproduces the tilted mean at the site's precision. It is Newton's step if the updated precision equals the
    site's, and too long if the updated precision is larger. Its length is reduced until the means come closer.

    Parameters
    ----------
    posterior : GaussianPosterior
        The posterior under the given sites.
    tilted : Tilted
        Tilted moments at the cavities of that posterior.
    nearby : callable
        ``nearby(mean)`` returns tilted moments at other cavity means, (n,).
    limit : int scalar
        Most evaluations of the tilted moments.
    centres : callable
        ``centres(posterior)`` returns the cavity means, (n,), of a posterior with the same precisions.

    Returns
    -------
    Tilted
        Tilted moments at the last means that came closer.
    """
    xp = namespace(problem.mean)
    sd = xp.sqrt(xp.abs(posterior.variance))

    def distance(at: Array, mean: Array) -> Array:
        return xp.sqrt((((at.mean - mean) / xp.where(sd > 0, sd, 1.0)) ** 2).sum())

    first = distance(tilted, posterior.mean)

    def unmatched(state: tuple) -> Array:
        count, _, gap, *_ = state
        return (count < limit) & (gap > _MATCHED * first) & (gap > _EXACT)

    def update(state: tuple) -> tuple:
        count, length, gap, shift, *fields = state
        best = Tilted(*fields)
        # b solves (m_c / v + power b) / (1 / v + power pi) = m_t, the tilted mean, as its gradient is (m_t - m_c) / v.
        trial = shift + length * (best.gradient / power + precision * best.mean - shift)
        moved = problem.prior.shifted(posterior, problem.mean, trial, precision)
        at_trial = nearby(centres(moved))
        trial_gap = distance(at_trial, moved.mean)
        closer = trial_gap < gap
        kept = (xp.where(closer, new, old) for new, old in zip((trial_gap, trial, *at_trial), (gap, shift, *best)))
        length = xp.where(closer, xp.minimum(1.0, 2.0 * length), length / 4.0)
        return (count + xp.where(closer, 1, _REJECTED_COST), length, *kept)

    full_length = xp.ones_like(first)
    _, _, _, _, *fields = while_loop(unmatched, update, (xp.zeros_like(limit), full_length, first, shift, *tilted))
    return Tilted(*fields)


def sweep_of(
    sites: tuple[CompiledSite, ...], power: float, log_concave: bool, inner: int, on_jax: bool
) -> Callable[..., Sweep]:
    """Return `sweep` with its keyword arguments fixed; for JAX it is jitted, and cached for later fits."""
    if on_jax:
        return _jitted_sweep(sites, power, log_concave, inner)
    moments = partial(joined_moments, sites, power)
    return partial(sweep, moments=moments, kinds=Kinds.of(sites), power=power, log_concave=log_concave, inner=inner)


@lru_cache(maxsize=64)
def _jitted_sweep(sites: tuple[CompiledSite, ...], power: float, log_concave: bool, inner: int) -> Callable[..., Sweep]:
    from pymc_ep.sites.compiled_jax import jit

    return jit(sweep_of(sites, power, log_concave, inner, on_jax=False))


def group_slices(observed: Sequence[Any]) -> list[slice]:
    """Return the slice of each group among all n sites, from the groups' ravelled observations."""
    ends = np.cumsum([y.shape[0] for y in observed])
    return [slice(int(end) - y.shape[0], int(end)) for y, end in zip(observed, ends)]


@contextmanager
def counted_from(first: int) -> Iterator[None]:
    """Add `first`, the index of a group's first site among all n, to the index of an `ImpossibleDensityError`.

    For a ``with`` block that evaluates sites of the group.
    """
    try:
        yield
    except ImpossibleDensityError as error:
        raise error.moved(first) from None


def joined_moments(
    sites: Sequence[CompiledSite],
    power: float,
    cavity_mean: Array,
    cavity_variance: Array,
    observed: Sequence[Any],
    parameters: Sequence[Sequence[Any]],
) -> tuple[Tilted, Callable[[Any], Tilted]]:
    """Return the tilted moments of all sites, fields (n,), and a function that returns them at other cavity means."""
    slices = group_slices(observed)
    by_group = []
    for site, y, values, rows in zip(sites, observed, parameters, slices):
        with counted_from(rows.start):
            by_group.append(site.moments_and_nearby(y, cavity_mean[rows], cavity_variance[rows], power, *values))
    firsts, nearby = zip(*by_group)

    def moved(moments: Callable[[Any], Tilted], mean: Array, first: int) -> Tilted:
        with counted_from(first):
            return moments(mean)

    def joined(by_group: Sequence[Tilted]) -> Tilted:
        if len(by_group) == 1:
            return by_group[0]
        return Tilted(*(namespace(cavity_mean).concatenate(field) for field in zip(*by_group)))

    return joined(firsts), lambda mean: joined(
        [moved(moments, mean[rows], rows.start) for moments, rows in zip(nearby, slices)]
    )
