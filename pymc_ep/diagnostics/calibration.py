"""Calibration of predictions: probability integral transforms, of the data left out by EP's cavities or of new data."""

from collections.abc import Iterable, Mapping, Sequence
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
    at_predictor,
    at_predictors,
    likelihoods,
    require_observations,
    require_one_predictor,
)
from pymc_ep.predict.rebuild import own_predictions, posterior_of, single_posterior_of
from pymc_ep.predict.response import LINES
from pymc_ep.results import labelled
from pymc_ep.sites import CompiledSite, check_finite
from pymc_ep.sites.nested_moments import Cavity
from pymc_ep.sites.rows_of_many import number_of_rows
from pymc_ep.sites.two_predictors import CompiledTwoPredictorSite

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
    _require_two_predictors(form.groups[k])
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
    n = observed[k].size // number_of_rows(predictors)
    values = prior.parameters[k]
    score = _log_predictive(site, name, observed[k], np.arange(observed[k].size), mean, variance, values)[:n]
    first_rows = [np.asarray(value)[:n] for value in values]
    transforms = np.array(_transforms(site, name, observed[k][:n], mean, variance, first_rows))
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
    _require_two_predictors(group)
    mixed = np.zeros((2, *y.shape))
    for weight, component in posterior.components():
        if group.site.predictors == 1:
            at = at_predictor(component, group)
            require_observations(group, y, at.mean.shape)
            gaussians = at.rows(slice(None)).gaussians()
        else:
            at = at_predictors(component, group)
            require_observations(group, y, at.mean.shape[1:])
            gaussians = [(1.0, at)]
        for share, gaussian in gaussians:
            parameters = [parameter.ravel() for parameter in gaussian.parameters]
            transforms = _transforms(
                gaussian.site, name, y.ravel(), gaussian.mean.ravel(), gaussian.variance.ravel(), parameters
            )
            mixed += weight * share * np.reshape(transforms, mixed.shape)
    return _labelled(model, name, mixed, group.site.domain)


def _labelled(model: pm.Model, name: str, transforms: Iterable[np.ndarray], domain: str) -> xr.Dataset:
    """Return a dataset of P(Y < y) and P(Y <= y), with the dims and coords of the variable."""
    pairs = zip(("lower", "upper"), transforms)
    return labelled(model, {f"{name}_{suffix}": (name, values) for suffix, values in pairs}).assign_attrs(domain=domain)


def _require_two_predictors(group: Likelihood) -> None:
    """Raise for a likelihood with more than two predictors."""
    if group.site.predictors > 2:
        require_one_predictor(group)


def _transforms(
    site: CompiledSite,
    name: str,
    y: np.ndarray,
    mean: np.ndarray,
    variance: np.ndarray,
    parameters: Sequence[np.ndarray],
) -> tuple[np.ndarray, np.ndarray]:
    """Return P(Y < y) and P(Y <= y), (n,) each, for Gaussian predictors with `mean` and `variance`, (n,) each.

    With two predictors an observation, their moments are in rows, (3 n,) each.
    """
    if isinstance(site, CompiledTwoPredictorSite):
        return _of_pairs(site, name, y, mean, variance, parameters)
    transform = _TRANSFORMS.get(site.site.domain)
    if transform is None:
        raise UnsupportedModelError(
            f"{name!r} has a {site.site.name} site, whose observations ({site.site.domain}) have no transforms here, "
            f"but those have that are {', '.join(_TRANSFORMS)}; compare draws of pm.sample_posterior_predictive with "
            f"the data instead."
        )
    return transform(site, name, y.astype(float), mean, variance, parameters)


def _of_pairs(
    site: CompiledTwoPredictorSite,
    name: str,
    y: np.ndarray,
    mean: np.ndarray,
    variance: np.ndarray,
    parameters: Sequence[np.ndarray],
) -> tuple[np.ndarray, np.ndarray]:
    """Return P(Y < y) and P(Y <= y), (n,) each, for two predictors: means over eta_2, given which eta_1 is Gaussian."""
    z, weight = standard_normal_rule(_SECOND)
    pairs = Cavity.of_rows(mean, variance)
    second, first = pairs.at(np.repeat(z[:, None], y.size, axis=1))
    inner, arguments = site.given_second(second, parameters)
    observed, given = (np.tile(values, len(z)) for values in (y, pairs.first**2))
    transforms = _transforms(inner, name, observed, first.ravel(), given, [argument.ravel() for argument in arguments])
    lower, upper = (weight @ transform.reshape(first.shape) for transform in transforms)
    return lower, upper


def _counts(
    site: CompiledSite,
    name: str,
    y: np.ndarray,
    mean: np.ndarray,
    variance: np.ndarray,
    parameters: Sequence[np.ndarray],
) -> tuple[np.ndarray, np.ndarray]:
    """Return P(Y < y) and P(Y <= y), (n,) each: sums of the predictive probabilities of counts."""
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
    count = np.arange(len(row)) - first[row]
    mass = np.exp(_log_predictive(site, name, count.astype(float), row, mean, variance, parameters))
    upper = np.add.reduceat(mass, first)
    return upper - mass[first + sizes - 1], upper


def _integers(
    site: CompiledSite,
    name: str,
    y: np.ndarray,
    mean: np.ndarray,
    variance: np.ndarray,
    parameters: Sequence[np.ndarray],
) -> tuple[np.ndarray, np.ndarray]:
    """Return `_counts`, for a density of whole numbers; raise unless it has no mass below zero."""
    below = site.log_density(np.full_like(y, -1.0), mean, *parameters)
    if not np.all(np.isneginf(below)):
        raise UnsupportedModelError(
            f"{name!r} has whole numbers below zero, whose probabilities are not added up here; compare draws of "
            f"pm.sample_posterior_predictive with the data instead."
        )
    return _counts(site, name, y, mean, variance, parameters)


def _continuous(
    site: CompiledSite,
    name: str,
    y: np.ndarray,
    mean: np.ndarray,
    variance: np.ndarray,
    parameters: Sequence[np.ndarray],
) -> tuple[np.ndarray, np.ndarray]:
    """Return P(Y <= y) twice, (n,) each, as P(Y < y) is the same: the integral of the predictive density up to y.

    Observations are mapped to w on the real line, by a logarithm or logit where needed. With w = mean + d t / (1 - t^2)
    the integrand is smooth in t on (-1, 1), power-law tails included, where d is the standard deviation of the normal
    with the same density at the mean. Panels have an edge at t(y) and are shorter towards the ends. The integrals below
    and above y must sum to one, which tests the rule.
    """
    to_line, from_line, log_slope = LINES[site.site.domain]
    rows = np.arange(len(y))
    log_peak = _log_predictive(site, name, from_line(mean), rows, mean, variance, parameters) + log_slope(mean)
    # 1 / (d (2 pi)^1/2) = density at the mean.
    scale = np.exp(-log_peak) / np.sqrt(2 * np.pi)
    with np.errstate(divide="ignore"):
        cut = _to_unit_interval((to_line(y) - mean) / scale)
    edges = np.sort(np.concatenate([np.broadcast_to(_EDGES, (len(y), len(_EDGES))), cut[:, None]], axis=1), axis=1)
    unit, weight = np.polynomial.legendre.leggauss(_NODES)
    width = np.diff(edges)[:, :, None]
    # Nodes (n, panels, nodes in each), and dw/dt = d (1 + t^2) / (1 - t^2)^2.
    t = edges[:, :-1, None] + width * (unit + 1) / 2
    w = mean[:, None, None] + scale[:, None, None] * t / (1 - t**2)
    weight = width * weight / 2 * scale[:, None, None] * (1 + t**2) / (1 - t**2) ** 2
    with np.errstate(over="ignore"):
        point = from_line(w)
    # Panels of width zero have no mass; farther out the inverse of a logarithm or logit overflows.
    used = (width > 0) & np.isfinite(point)
    if site.site.domain != "real":
        with np.errstate(divide="ignore"):
            used &= (np.abs(w - mean[:, None, None]) < _FAR) & np.isfinite(to_line(point))
    row, *_ = np.nonzero(used)
    density = np.zeros(t.shape)
    log_density = _log_predictive(site, name, point[used], row, mean, variance, parameters)
    # Density of w: p(y) dy/dw.
    density[used] = np.exp(log_density + log_slope(w[used]))
    mass = density * weight
    is_below = t < cut[:, None, None]
    below, above = (np.where(side, mass, 0.0).sum(axis=(1, 2)) for side in (is_below, ~is_below))
    total = below + above
    wrong = ~(np.abs(total - 1.0) <= _INTEGRAL_ERROR)
    if wrong.any():
        index = int(np.argmax(wrong))
        raise UnsupportedModelError(
            f"The predictive density of {name!r} for position {index} adds up to {total[index]:.4g} rather than 1, so "
            f"its transforms are not known; compare draws of pm.sample_posterior_predictive with the data instead."
        )
    return below / total, below / total


def _to_unit_interval(x: np.ndarray) -> np.ndarray:
    """Return the t in [-1, 1] with t / (1 - t^2) = x."""
    with np.errstate(invalid="ignore"):
        # Root of x t^2 + t - x = 0, free of cancellation at small x.
        t = 2.0 * x / (1.0 + np.sqrt(1.0 + 4.0 * x**2))
    return np.where(np.isinf(x), np.sign(x), t)


def _log_predictive(
    site: CompiledSite,
    name: str,
    y: np.ndarray,
    row: np.ndarray,
    mean: np.ndarray,
    variance: np.ndarray,
    parameters: Sequence[np.ndarray],
) -> np.ndarray:
    """Return the log predictive density of new observations y, (k,), each under the cavity of its row."""
    tilted = site.moments(y, mean[row], variance[row], 1.0, *(np.asarray(p)[row] for p in parameters))
    check_finite(tilted, y, mean[row], variance[row], name)
    return np.asarray(tilted.log_z)


_TRANSFORMS = {**dict.fromkeys(("count", "binary"), _counts), "integer": _integers, **dict.fromkeys(LINES, _continuous)}
"""Function that computes transforms, by the domain of a site."""
