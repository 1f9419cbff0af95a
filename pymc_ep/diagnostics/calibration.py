"""Calibration of predictions: probability integral transforms, of the data left out by EP's cavities or of new data."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pymc as pm
import xarray as xr

from pymc_ep.compat import Container
from pymc_ep.concurrency import one_at_a_time
from pymc_ep.contracts.form import Likelihood
from pymc_ep.contracts.posterior import SitePosterior
from pymc_ep.diagnostics.leave_out import only_name, weights_without
from pymc_ep.evidence.ep.cavities import cavities
from pymc_ep.evidence.ep.sweep import KNOWN, group_slices
from pymc_ep.exceptions import UnsupportedModelError
from pymc_ep.graphs.context import model_of
from pymc_ep.numerics.quadrature.gauss_hermite import standard_normal_rule
from pymc_ep.predict.log_predictive import (
    AtPredictor,
    at_predictor,
    at_predictors,
    likelihoods,
    require_observations,
)
from pymc_ep.predict.rebuild import own_predictions, posterior_of, single_posterior_of
from pymc_ep.predict.response import LINES
from pymc_ep.results import labelled
from pymc_ep.sites import CompiledSite, check_finite
from pymc_ep.sites.base import Tilted
from pymc_ep.sites.nested_moments import Cavity
from pymc_ep.sites.rows_of_many import number_of_rows
from pymc_ep.sites.two_predictors import CompiledTwoPredictorSite, TwoPredictorSite

__all__ = ["loo_pit", "predictive_pit"]

_MOST_COUNTS = 10**7
"""Most predictive probabilities of single counts that are summed, 80 MB an array: a bound on memory and work."""
_EDGES = np.array([-1.0, -0.999, -0.99, -0.9, -0.5, 0.0, 0.5, 0.9, 0.99, 0.999, 1.0])
"""Edges in t, the variable of `_continuous`, of the panels on which a predictive density is integrated. Panels are
shorter towards the ends, for heavy tails."""
_NODES = 12
"""Gauss-Legendre nodes in each panel; `_INTEGRAL_ERROR` tests that they are enough."""
_FAR = 40.0
"""Distance from the mean, in logarithms or logits, beyond which the density counts as zero: a factor of 2e17."""
_INTEGRAL_ERROR = 1e-3
"""Largest deviation of a density's integral from one, and so the largest error of a transform."""
_SECOND = 20
"""Gauss-Hermite nodes of a second predictor: transforms change by less than 1e-6 from 20 to 40 where it is a log scale
with a standard deviation of a half."""
_NO_WEIGHT = 1e-8
"""Weight of such a node from which its density counts: farther out a scale or shape may be of any size."""
_BELOW = (-1.0, -2.0, -3.0)
"""Whole numbers at which a density is looked at for mass below zero."""


@one_at_a_time
def loo_pit(idata: Container, model: pm.Model | None = None, var_name: str | None = None) -> xr.Dataset:
    """Return leave-one-out probability integral transforms of the observations.

    EP's cavity is the posterior of a predictor without its own observation. The predictive distribution of y_i given
    all others is then the integral of the likelihood over the cavity, without a further fit. Where the model is right,
    the transform P(Y_i <= y_i) is uniform, or for counts the interval from P(Y_i < y_i) to P(Y_i <= y_i) is spread
    uniformly (Czado, Gneiting and Held 2009, Predictive model assessment for count data).

    Parameters
    ----------
    idata : arviz.InferenceData or xarray.DataTree
        Result of `pymc_ep.fit`.
    model : pymc.Model, optional
        The fitted model; by default the model of the context.
    var_name : str, optional
        The observed variable; may be left out where there is one only.

    Returns
    -------
    xarray.Dataset
        ``<y>_lower`` and ``<y>_upper``: P(Y_i < y_i) and P(Y_i <= y_i), equal for continuous observations.
        Hyperparameters are at their mode, or mixed over where the fit does so, by their weights without the
        observation. NaN, as ``<y>_loo`` is, where the cavity is improper, so that the other observations predict
        nothing. The attribute ``domain`` is the domain of the site's observations.

    Raises
    ------
    UnsupportedModelError
        For averages over translated grids, for observations that are neither counts, zeros and ones nor continuous, for
        counts that add up to more than 1e7, and where the integral of a predictive density is not one.
    """
    model = model_of(model)
    posterior = single_posterior_of(idata, model)
    form = posterior.form.form
    name = only_name([group.name for group in form.groups], var_name)
    k = [group.name for group in form.groups].index(name)
    _require_few_predictors(form.groups[k])
    y, site = posterior.form.observed()[k], posterior.form.sites[k]
    log_weights, scores, per_component = [], [], []
    for weight, component in posterior.components():
        transforms, score = _loo_transforms(component, site, name, k)
        log_weights.append(np.log(weight))
        scores.append(score)
        per_component.append(transforms)
    # Of each component, P(Y < y) and P(Y <= y) of each observation: (k, 2, n).
    weights = weights_without(np.array(log_weights), np.array(scores))
    mixed = np.einsum("kn,kpn->pn", weights, np.array(per_component))
    return _labelled(model, name, mixed.reshape(2, *y.shape), site.site.domain)


def _loo_transforms(posterior: SitePosterior, site: CompiledSite, name: str, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the transforms of the observations of group k, (2, n), and their log densities, under their cavities."""
    _, prior, gaussian = posterior.mode
    observed = posterior.form.residuals()
    group_slice, predictors = group_slices(observed)[k], site.site.predictors
    joint = [(group_slice, predictors)] if predictors > 1 else []
    mean, variance, *_ = (moment[group_slice] for moment in cavities(gaussian, posterior.precision, 1.0, joint=joint))
    improper = variance < 0
    variance = np.where(variance > 0, variance, KNOWN)
    # Observations of two predictors are repeated for each of their rows, and parameters are not.
    rows = number_of_rows(predictors)
    n, values = observed[k].size // rows, [np.asarray(value) for value in prior.parameters[k]]
    repeated = [np.tile(value, rows) for value in values]
    score = _log_predictive(_gaussian(site, mean, variance, repeated), name, observed[k])[:n]
    transforms = np.array(_transforms(_gaussian(site, mean, variance, values), name, observed[k][:n]))
    return np.where(improper[:n], np.nan, transforms), score


@one_at_a_time
def predictive_pit(idata: Container, model: pm.Model | None, data: Mapping[str, Any]) -> xr.Dataset:
    """Return probability integral transforms of new observations.

    Parameters
    ----------
    idata : arviz.InferenceData or xarray.DataTree
        Result of `pymc_ep.fit`.
    model : pymc.Model or None
        The fitted model; None takes the model of the context.
    data : mapping of str to array_like
        New observations of one variable, in the form of `pymc_ep.log_predictive`: for new cells of a bilinear model,
        again a mapping.

    Returns
    -------
    xarray.Dataset
        ``<y>_lower`` and ``<y>_upper``: P(Y < y) and P(Y <= y) under the predictive distribution of each observation,
        equal for continuous observations. Otherwise as in `loo_pit`, attribute ``domain`` included.

    Raises
    ------
    InvalidDataError
        For observations outside the likelihood's domain, or of a wrong shape.
    UnsupportedModelError
        For likelihoods and counts as in `loo_pit`.
    """
    model = model_of(model)
    if not isinstance(data, Mapping) or len(data) != 1:
        raise ValueError("predictive_pit takes one variable at a time, a mapping of its name to its new observations.")
    if (predictions := own_predictions(idata, model)) is not None:
        return predictions.transforms(model, predictions.rebuild(idata, model), data)
    ((name, values),) = data.items()
    y, posterior = np.asarray(values), posterior_of(idata, model, [name])
    (group,) = likelihoods(posterior.form.form, [name])
    _require_few_predictors(group)
    mixed = np.zeros((2, *y.shape))
    for weight, component in posterior.components():
        if group.site.predictors == 1:
            at = at_predictor(component, group)
            require_observations(group, y, at.mean.shape)
        else:
            at = at_predictors(component, group)
            require_observations(group, y, at.mean.shape[1:])
        for share, gaussian in at.rows(slice(None)).gaussians():
            mixed += weight * share * np.reshape(_transforms(gaussian, name, y.ravel()), mixed.shape)
    return _labelled(model, name, mixed, group.site.domain)


def _labelled(model: pm.Model, name: str, transforms: Iterable[np.ndarray], domain: str) -> xr.Dataset:
    """Return a dataset of P(Y < y) and P(Y <= y), with the dims and coords of the variable."""
    pairs = zip(("lower", "upper"), transforms)
    return labelled(model, {f"{name}_{suffix}": (name, values) for suffix, values in pairs}).assign_attrs(domain=domain)


def _require_few_predictors(group: Likelihood) -> None:
    """Raise for a likelihood with several predictors, unless of two whose first has moments without a search.

    A search of 0.1 ms at each of some thousand nodes an observation would take minutes.
    """
    site = group.site
    if site.predictors > 1 and (not isinstance(site, TwoPredictorSite) or site.inner.interpreted):
        raise UnsupportedModelError(
            f"{group.name!r} has a {site.name} site, whose transforms would take minutes, or are not known: compare "
            f"draws of pm.sample_posterior_predictive(idata, var_names=[{group.name!r}]) with the data instead."
        )


def _transforms(at: AtPredictor, name: str, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return P(Y < y) and P(Y <= y), (n,) each, for Gaussian predictors, (n,).

    With two predictors an observation, their moments are in rows, (3 n,) each.
    """
    lower, upper, total = _masses(at, name, y)
    wrong = ~(np.abs(total - 1.0) <= _INTEGRAL_ERROR)
    if wrong.any():
        index = int(np.argmax(wrong))
        raise UnsupportedModelError(
            f"The predictive density of {name!r} for position {index} adds up to {total[index]:.4g} rather than 1, so "
            f"its transforms are not known; compare draws of pm.sample_posterior_predictive with the data instead."
        )
    return lower / total, upper / total


def _masses(at: AtPredictor, name: str, y: np.ndarray) -> np.ndarray:
    """Return P(Y < y), P(Y <= y), and the integral of the predictive density, which should be one, (3, n)."""
    if isinstance(at.site, CompiledTwoPredictorSite):
        return _of_pairs(at.site, at, name, y)
    site = at.site.site
    masses = _MASSES.get(site.domain)
    if masses is None:
        raise UnsupportedModelError(
            f"{name!r} has a {site.name} site, whose observations ({site.domain}) have no transforms here, "
            f"but those have that are {', '.join(_MASSES)}; compare draws of pm.sample_posterior_predictive with "
            f"the data instead."
        )
    return masses(at, name, y.astype(float))


def _of_pairs(site: CompiledTwoPredictorSite, at: AtPredictor, name: str, y: np.ndarray) -> np.ndarray:
    """Return `_masses` for two predictors, (3, n): means over eta_2, given which eta_1 is Gaussian."""
    pairs, out = Cavity.of_rows(at.mean, at.variance), np.zeros((3, y.size))
    nodes, weights = standard_normal_rule(_SECOND)
    kept = weights > _NO_WEIGHT
    for z, weight in zip(nodes[kept], weights[kept] / weights[kept].sum()):
        second, first = pairs.at(z)
        inner, arguments = site.given_second(second, at.parameters)
        out += weight * _masses(_gaussian(inner, first, pairs.first**2, arguments), name, y)
    return out


def _counts(at: AtPredictor, name: str, y: np.ndarray) -> np.ndarray:
    """Return `_masses` of counts, (3, n): sums of the predictive probabilities of counts up to y."""
    sizes = y.astype(np.int64) + 1
    if sizes.sum() > _MOST_COUNTS:
        raise UnsupportedModelError(
            f"The counts of {name!r} add up to {int(y.sum())}, and the probabilities of more than {_MOST_COUNTS:.0e} "
            f"single counts are too many to add up; compare draws of "
            f"pm.sample_posterior_predictive with the data instead."
        )
    # Counts 0, ..., y of each observation in turn; P(Y < y) = P(Y <= y) - P(Y = y).
    row = np.repeat(np.arange(len(y)), sizes)
    first = np.cumsum(sizes) - sizes
    count = (np.arange(len(row)) - first[row]).astype(float)
    each, mass = at.rows(row), np.zeros(len(row))
    possible: slice | np.ndarray = slice(None)
    if at.site.site.domain == "integer":
        # A truncated density, for example, gives some of these counts no probability.
        possible = np.asarray(at.site.log_density(count, each.mean, *each.parameters)) > -np.inf
    mass[possible] = np.exp(_log_predictive(each.rows(possible), name, count[possible]))
    upper = np.add.reduceat(mass, first)
    return np.array([upper - mass[first + sizes - 1], upper, np.ones(len(y))])


def _integers(at: AtPredictor, name: str, y: np.ndarray) -> np.ndarray:
    """Return `_counts`, for a density of whole numbers; raise where one of the first below zero has a probability."""
    for below in _BELOW:
        if np.isfinite(at.site.log_density(np.full_like(y, below), at.mean, *at.parameters)).any():
            raise UnsupportedModelError(
                f"{name!r} has whole numbers below zero, whose probabilities are not added up here; compare draws of "
                f"pm.sample_posterior_predictive with the data instead."
            )
    return _counts(at, name, y)


def _continuous(at: AtPredictor, name: str, y: np.ndarray) -> np.ndarray:
    """Return `_masses`, (3, n), of which the first two are equal: integrals of the predictive density up to y.

    Observations are mapped to w on the real line, by a logarithm or logit where needed. With w = c + d t / (1 - t^2)
    the integrand is smooth in t on (-1, 1), power-law tails included, where c is the mean or y, whichever has the
    higher density, and d the standard deviation of the normal with the same density at c. Panels have an edge at t(y)
    and are shorter towards the ends. The integrals below and above y must sum to one, which tests the rule.
    """
    mean, domain = at.mean, at.site.site.domain
    to_line, from_line, log_slope = LINES[domain]

    def density_at(w: np.ndarray, row: np.ndarray) -> np.ndarray:
        """Return the density of w, (k,): p(y) dy/dw. Far out moments may not be finite, and it is zero."""
        with np.errstate(all="ignore"):
            log_p = np.asarray(_tilted(at.rows(row), from_line(w)).log_z) + log_slope(w)
            return np.exp(np.where(np.isfinite(log_p), log_p, -np.inf))

    rows = np.arange(len(y))
    with np.errstate(divide="ignore", over="ignore"):
        at_y = to_line(y)
        heights = np.array([density_at(mean, rows), np.where(np.isfinite(at_y), density_at(at_y, rows), 0.0)])
        centre = np.where(heights[0] >= heights[1], mean, at_y)
        # 1 / (d (2 pi)^1/2) = density at c; where both densities have underflowed, d is of no use.
        highest = heights.max(axis=0)
        scale = 1.0 / (np.where(highest > 0.0, highest, 1.0) * np.sqrt(2 * np.pi))
        cut = _to_unit_interval((at_y - centre) / scale)
    edges = np.sort(np.concatenate([np.broadcast_to(_EDGES, (len(y), len(_EDGES))), cut[:, None]], axis=1), axis=1)
    unit, weight = np.polynomial.legendre.leggauss(_NODES)
    width = np.diff(edges)[:, :, None]
    # Nodes (n, panels, nodes in each), and dw/dt = d (1 + t^2) / (1 - t^2)^2.
    t = edges[:, :-1, None] + width * (unit + 1) / 2
    w = centre[:, None, None] + scale[:, None, None] * t / (1 - t**2)
    weight = width * weight / 2 * scale[:, None, None] * (1 + t**2) / (1 - t**2) ** 2
    with np.errstate(over="ignore"):
        point = from_line(w)
    # Panels of width zero have no mass; farther out the inverse of a logarithm or logit overflows.
    used = (width > 0) & np.isfinite(point)
    if domain != "real":
        with np.errstate(divide="ignore"):
            used &= (np.abs(w - centre[:, None, None]) < _FAR) & np.isfinite(to_line(point))
    row, *_ = np.nonzero(used)
    density = np.zeros(t.shape)
    density[used] = density_at(w[used], row)
    mass = density * weight
    is_below = t < cut[:, None, None]
    below, above = (np.where(side, mass, 0.0).sum(axis=(1, 2)) for side in (is_below, ~is_below))
    return np.array([below, below, below + above])


def _to_unit_interval(x: np.ndarray) -> np.ndarray:
    """Return the t in [-1, 1] with t / (1 - t^2) = x."""
    with np.errstate(invalid="ignore"):
        # Root of x t^2 + t - x = 0, free of cancellation at small x.
        t = 2.0 * x / (1.0 + np.sqrt(1.0 + 4.0 * x**2))
    return np.where(np.isinf(x), np.sign(x), t)


def _log_predictive(at: AtPredictor, name: str, y: np.ndarray) -> np.ndarray:
    """Return the log predictive density of new observations y, (k,), each under its own predictor."""
    tilted = _tilted(at, y)
    check_finite(tilted, y, at.mean, at.variance, name)
    return np.asarray(tilted.log_z)


def _tilted(at: AtPredictor, y: np.ndarray) -> Tilted:
    return at.site.moments(y, at.mean, at.variance, 1.0, *at.parameters)


def _gaussian(
    site: CompiledSite, mean: np.ndarray, variance: np.ndarray, parameters: Iterable[np.ndarray]
) -> AtPredictor:
    """Return predictors without skewness."""
    return AtPredictor(site, mean, variance, list(parameters), np.zeros_like(mean))


_MASSES = {**dict.fromkeys(("count", "binary"), _counts), "integer": _integers, **dict.fromkeys(LINES, _continuous)}
"""Function that computes `_masses`, by the domain of a site."""
