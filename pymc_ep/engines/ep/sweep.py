"""One sweep of expectation propagation: a pure function of arrays, run by NumPy or jitted by JAX."""

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np

from pymc_ep.numerics.backend.namespace import namespace, while_loop
from pymc_ep.numerics.gaussian.protocol import GaussianPosterior, GaussianPrior
from pymc_ep.sites.base import Tilted
from pymc_ep.sites.compiled import CompiledSite

__all__ = [
    "KNOWN",
    "Problem",
    "Sweep",
    "cavities",
    "group_slices",
    "joined_moments",
    "match_means",
    "sweep",
    "sweep_of",
]


KNOWN = 1e-12
"""Cavity variance that stands for 0 in the moments of a site whose predictor is known; no moment of another site and
no posterior moment depends on it."""

_VANISHES = 1e-9
"""Part of a precision, without that of the site, that is none."""
_MATCHED = 0.03
"""Fraction of their first distance at which the means count as matched; the precisions change by more than that."""
_EXACT = 1e-11
"""Distance, in posterior standard deviations over all sites, at which they are matched to rounding."""
_FAILED = 4
"""Steps that one which took the means apart counts for, towards their limit: the precisions have to change first."""


class Problem(NamedTuple):
    """What EP sees of a model at one value of the hyperparameters.

    Attributes
    ----------
    mean : array, (n,)
        Prior mean of the predictors.
    prior : GaussianPrior
        Of the predictors about that mean.
    observed : tuple of array
        Observations of each group of sites, ravelled; they add up to n.
    parameters : tuple of tuple of array
        Site parameters of each group, each of the group's length.
    """

    mean: Any
    prior: GaussianPrior
    observed: tuple[Any, ...]
    parameters: tuple[tuple[Any, ...], ...]


class Sweep(NamedTuple):
    """One evaluation of all site updates at given sites.

    Attributes
    ----------
    shift, precision : array, (n,)
        The updated sites.
    posterior : GaussianPosterior
        Under the given sites.
    cavity_mean, cavity_variance : array, (n,)
    tilted : Tilted
    log_z : scalar
        EP's log evidence for the given sites; stationary in them at a fixed point.
    change : scalar
        Largest change of a site, in units that do not depend on the scale of the predictor: of pi_i V_i, and
        of the slope at the mean times the standard deviation.
    proper : bool scalar
        Whether posterior and cavities are proper and the tilted moments finite.
    rounding : scalar
        What rounding may make of `change`.
    """

    shift: Any
    precision: Any
    posterior: GaussianPosterior
    cavity_mean: Any
    cavity_variance: Any
    tilted: Tilted
    log_z: Any
    change: Any
    proper: Any
    rounding: Any


def cavities(
    posterior: GaussianPosterior, shift: Any, precision: Any, power: float, exact: Any = False
) -> tuple[Any, Any]:
    """Return mean and variance of the posterior without a fraction `power` of each site.

    Where `exact`, (n,) of bool, says that a site is Gaussian, nothing that follows depends on its cavity's variance,
    not even the evidence, to which it gives log t at the posterior mean. Its cavity need not be proper then: others may
    give a predictor more variance than the site alone does, as mixtures of two peaks do. The posterior's stands in.
    """
    xp = namespace(posterior.mean)
    kept = (1.0 - power) + power * posterior.remainder
    kept = xp.where(exact & (kept <= _VANISHES), 1.0, kept)
    variance = posterior.variance / kept
    return posterior.mean - power * variance * (shift - precision * posterior.mean), variance


def log_evidence(problem: Problem, precision: Any, power: float, at: tuple) -> Any:
    """Return EP's log evidence, in a form that is safe for zero precisions and singular covariances.

    About the posterior mean m, at which a site has the slope a = b - pi m, a cavity of variance v has the mean
    m - eta v a, and what a site's normaliser (Rasmussen and Williams 2006, section 3.6.3) and the Gaussian integral
    have in common is gone:

        log Z = sum_i [(log Zhat_i + log(1 + eta pi_i v_i) / 2) / eta + eta v_i a_i^2 / 2] - a^T (m - m0) / 2
                - log|I + K Pi| / 2.

    Neither precise sites nor cavities that know next to nothing leave large terms to cancel.
    """
    posterior, cavity_variance, log_z = at
    xp = namespace(posterior.mean)
    slope = posterior.weights
    widened = 1.0 + power * precision * cavity_variance
    terms = (log_z + 0.5 * xp.log(widened)) / power + 0.5 * power * cavity_variance * slope**2
    return terms.sum() - 0.5 * (slope * (posterior.mean - problem.mean)).sum() - 0.5 * posterior.log_det


def sweep(
    problem: Problem,
    shift: Any,
    precision: Any,
    *,
    moments: Callable[..., tuple[Tilted, Callable[[Any], Tilted]]],
    gaussian: Sequence[bool],
    power: float,
    log_concave: bool,
    inner: int,
) -> Sweep:
    """Evaluate all site updates at the given sites: one cubic factorisation, and n tilted moments 1 + inner times.

    With ``inner = 0`` that is an update of plain EP. Otherwise the means are matched first, see `match_means`, and the
    sites read off there: a map with the same fixed points.
    """
    xp = namespace(problem.mean)
    posterior = problem.prior.posterior(problem.mean, shift, precision, log_concave=log_concave)
    exact = xp.concatenate([xp.full(len(y), own) for y, own in zip(problem.observed, gaussian)])
    cavity_mean, cavity_variance = cavities(posterior, shift, precision, power, exact)
    # A predictor without prior variance is known: its site changes nothing, and contributes t at that value.
    known = problem.prior.variances() <= 0
    proper = posterior.proper & xp.all(known | ((posterior.variance > 0) & (cavity_variance > 0)))
    safe = xp.where(proper & ~known, cavity_variance, xp.where(known, KNOWN, 1.0))
    tilted, nearby = moments(xp.where(proper, cavity_mean, 0.0), safe, problem.observed, problem.parameters)
    log_z = log_evidence(problem, precision, power, (posterior, cavity_variance, tilted.log_z))
    d_precision = tilted.precision / power - precision
    d_slope = tilted.shift / power - shift - d_precision * posterior.mean
    change = xp.maximum(
        xp.max(xp.abs(d_precision) * posterior.variance), xp.max(xp.abs(d_slope) * xp.sqrt(xp.abs(posterior.variance)))
    )
    refined = tilted
    if inner:
        limit = xp.where(proper, inner, 0)
        refined = match_means(problem, posterior, shift, precision, tilted, nearby, power, limit, exact)
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
    shift: Any,
    precision: Any,
    tilted: Tilted,
    nearby: Callable[[Any], Tilted],
    power: float,
    limit: Any,
    exact: Any,
) -> Tilted:
    """Move the shifts until posterior and tilted means agree, at fixed precisions and cavity variances.

    This costs products with vectors only. A shift that would give its site the tilted mean is a Newton step where the
    precision is the tilted one, and too long where the site curves more; it is shortened until the means come closer.

    Parameters
    ----------
    posterior : GaussianPosterior
        Under the given sites.
    tilted : Tilted
        At the cavities of that posterior.
    nearby : callable
        Tilted moments at other cavity means.
    limit : int scalar
        Most evaluations of the tilted moments.
    exact : array of bool, (n,)
        Which sites are Gaussian.

    Returns
    -------
    Tilted
        At the means reached.
    """
    xp = namespace(problem.mean)
    sd = xp.sqrt(xp.abs(posterior.variance))

    def distance(at: Any, mean: Any) -> Any:
        return xp.sqrt((((at.mean - mean) / xp.where(sd > 0, sd, 1.0)) ** 2).sum())

    first = distance(tilted, posterior.mean)

    def unmatched(state: tuple) -> Any:
        count, _, apart, *_ = state
        return (count < limit) & (apart > _MATCHED * first) & (apart > _EXACT)

    def update(state: tuple) -> tuple:
        count, part, apart, shift, *fields = state
        best = Tilted(*fields)
        trial = shift + part * (best.gradient / power + precision * best.mean - shift)
        moved = problem.prior.shifted(posterior, problem.mean, trial, precision)
        here = nearby(cavities(moved, trial, precision, power, exact)[0])
        apart_here = distance(here, moved.mean)
        closer = apart_here < apart
        kept = (xp.where(closer, new, old) for new, old in zip((apart_here, trial, *here), (apart, shift, *best)))
        part = xp.where(closer, xp.minimum(1.0, 2.0 * part), part / 4.0)
        return (count + xp.where(closer, 1, _FAILED), part, *kept)

    one = xp.ones_like(first)
    _, _, _, _, *fields = while_loop(unmatched, update, (xp.zeros_like(limit), one, first, shift, *tilted))
    return Tilted(*fields)


@lru_cache(maxsize=64)
def sweep_of(
    sites: tuple[CompiledSite, ...], power: float, log_concave: bool, inner: int, on_jax: bool
) -> Callable[..., Sweep]:
    """Return the sweep with its static choices fixed; cached, so that JAX compiles it once and not for each fit."""
    moments = partial(joined_moments, sites, power)
    gaussian = tuple(site.site.gaussian for site in sites)
    evaluate = partial(sweep, moments=moments, gaussian=gaussian, power=power, log_concave=log_concave, inner=inner)
    if on_jax:
        from pymc_ep.sites.compiled_jax import jit

        return jit(evaluate)
    return evaluate


def group_slices(observed: Sequence[Any]) -> list[slice]:
    """Return where each group's sites lie among all n, for the groups' ravelled observations."""
    ends = np.cumsum([y.shape[0] for y in observed])
    return [slice(int(end) - y.shape[0], int(end)) for y, end in zip(observed, ends)]


def joined_moments(
    sites: Sequence[CompiledSite],
    power: float,
    cavity_mean: Any,
    cavity_variance: Any,
    observed: Sequence[Any],
    parameters: Sequence[Sequence[Any]],
) -> tuple[Tilted, Callable[[Any], Tilted]]:
    """Return the tilted moments of all groups of sites, joined, each field (n,), and those at other cavity means."""
    slices = group_slices(observed)
    firsts, nearby = zip(
        *(
            site.moments_and_nearby(y, cavity_mean[here], cavity_variance[here], power, *values)
            for site, y, values, here in zip(sites, observed, parameters, slices)
        )
    )

    def joined(parts: Sequence[Tilted]) -> Tilted:
        if len(parts) == 1:
            return parts[0]
        return Tilted(*(namespace(cavity_mean).concatenate(field) for field in zip(*parts)))

    return joined(firsts), lambda mean: joined([moments(mean[here]) for moments, here in zip(nearby, slices)])
