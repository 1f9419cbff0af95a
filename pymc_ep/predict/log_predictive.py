"""Log predictive densities of new observations."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pymc as pm
import xarray as xr
from scipy.special import logsumexp

from pymc_ep.compat import Container
from pymc_ep.concurrency import one_at_a_time
from pymc_ep.contracts.form import Likelihood, SiteForm
from pymc_ep.contracts.posterior import SitePosterior
from pymc_ep.evidence.ep.sweep import KNOWN
from pymc_ep.exceptions import InvalidDataError, UnsupportedModelError
from pymc_ep.graphs.context import model_of
from pymc_ep.numerics.skewed_normal import gaussian_parts, skewed
from pymc_ep.predict.rebuild import own_predictions, posterior_of
from pymc_ep.results import labelled
from pymc_ep.sites import CompiledSite, check_finite
from pymc_ep.sites.likelihoods.categorical import SoftmaxSite

__all__ = [
    "AtPredictor",
    "at_predictor",
    "at_predictors",
    "likelihoods",
    "log_predictive",
    "require_observations",
    "require_separate",
]

_EVEN = 1e-3
"""Largest skewness of a density that counts as Gaussian: quantiles differ by 3e-4 standard deviations."""


@one_at_a_time
def log_predictive(idata: Container, model: pm.Model | None, data: Mapping[str, Any]) -> xr.Dataset:
    """Return log integrals of ``p(y* | f*) Q(f*)`` over the predictor f*, one for each new observation y*.

    Parameters
    ----------
    idata : arviz.InferenceData or xarray.DataTree
        Result of `pymc_ep.fit`.
    model : pymc.Model or None
        The fitted model, with a likelihood for the new observations, such as
        ``pmep.RectifiedPoisson("y_new", f_new)`` after a ``gp.conditional``; None takes the model of the context.
    data : mapping of str to array_like
        New observations by the name of their variable, each of the shape of its predictor. New cells of a bilinear
        model are a mapping with ``rows``, ``cols`` and ``observed``. The mapping also has ``offset``, without biases,
        and parameters of the likelihood, if these are not the same for all cells of the fit. Sequences are continued by
        a list of one array of items for each user, or a mapping of some users to their arrays.

    Returns
    -------
    xarray.Dataset
        One array a variable, with the model's dims and coords. ``Q(f*)`` has the posterior mean, variance and skewness
        of the predictor, and includes the uncertainty of the hyperparameters to first order; the likelihood's own
        parameters are at their mode. Where the fit is a mixture over the hyperparameters, so is this density. For cells
        of a bilinear model it is a Monte Carlo estimate over the rows of one matrix, by quadrature over the rows of the
        other.

    Raises
    ------
    InvalidDataError
        For observations outside the likelihood's domain, or of a wrong shape.
    """
    model = model_of(model)
    if not isinstance(data, Mapping) or not data:
        raise ValueError("log_predictive takes a mapping of names of variables to their new observations.")
    if (predictions := own_predictions(idata, model)) is not None:
        return predictions.log_predictive(model, predictions.rebuild(idata, model), data)
    posterior = posterior_of(idata, model, list(data))
    variables: dict[str, tuple[str, np.ndarray]] = {}
    for group, values in zip(likelihoods(posterior.form.form, list(data)), data.values()):
        # log sum_k w_k int p(y | f) N(f; m_k, v_k) df, over the Gaussian parts k of all components.
        log_integrals = [
            np.log(weight * share) + gaussian
            for weight, component in posterior.components()
            for share, gaussian in _log_predictive(component, group, np.asarray(values))
        ]
        variables[group.name] = (group.name, np.asarray(logsumexp(log_integrals, axis=0)))
    return labelled(model, variables)


def likelihoods(form: SiteForm, names: Sequence[str]) -> list[Likelihood]:
    """Return the likelihoods with these names, part of the fit or added to the model since; raise for other names."""
    groups = {g.name: g for g in (*form.groups, *form.predictions)}
    for name in names:
        if name not in groups:
            raise UnsupportedModelError(
                f"{name!r} is no likelihood with a site; these are {', '.join(groups) or 'none'}."
            )
    require_separate(form, names)
    return [groups[name] for name in names]


def require_separate(form: SiteForm, names: Sequence[str]) -> None:
    """Raise where one of the names is an observed vector, whose values have no predictions of their own."""
    for group in form.groups:
        if group.correlated and group.name in names:
            raise UnsupportedModelError(
                f"{group.name!r} is a vector of correlated values, whose prediction is joint: use "
                f"pm.sample_posterior_predictive(idata, var_names=[{group.name!r}]), or predict() of a gp.conditional."
            )


class AtPredictor(NamedTuple):
    """Site and parameters of a likelihood, and posterior moments of its predictors; arrays have the predictors' shape.

    Attributes
    ----------
    site : CompiledSite
    mean, variance : ndarray
        m and s^2 of the predictors.
    parameters : list of ndarray
        Parameters of the likelihood.
    skewness : ndarray
        Skewness of the predictors m + s T(u), with u standard normal and the cubic T of
        `pymc_ep.numerics.skewed_normal`.
    """

    site: CompiledSite
    mean: np.ndarray
    variance: np.ndarray
    parameters: list[np.ndarray]
    skewness: np.ndarray

    def at_normal(self, normal: np.ndarray) -> np.ndarray:
        """Return predictors m + s T(u), (k, *shape), at standard normal values u that broadcast to that shape."""
        return self.mean + np.sqrt(self.variance) * skewed(normal, self.skewness)

    def gaussians(self) -> "list[tuple[float, AtPredictor]]":
        """Return weights and Gaussian components of a mixture that is nearly the density of the predictors."""
        if np.abs(self.skewness).max(initial=0.0) < _EVEN:
            return [(1.0, self)]
        # m + s T(u) is nearly a mixture of N(m + s m_k, (s s_k)^2).
        sd, none = np.sqrt(self.variance), np.zeros_like(self.skewness)
        return [
            (weight, self._replace(mean=self.mean + sd * mean, variance=self.variance * width**2, skewness=none))
            for weight, mean, width in zip(*gaussian_parts(self.skewness))
        ]

    def rows(self, index: Any) -> "AtPredictor":
        """Return the predictors at `index` of the ravelled arrays."""
        return AtPredictor(
            self.site,
            self.mean.ravel()[index],
            self.variance.ravel()[index],
            [p.ravel()[index] for p in self.parameters],
            self.skewness.ravel()[index],
        )


def at_predictor(posterior: SitePosterior, group: Likelihood) -> AtPredictor:
    """Return the site, the density of its predictors and the parameters for new observations of a likelihood."""
    name = group.name
    if group.site.predictors > 1:
        raise UnsupportedModelError(
            f"{name!r} has several predictors, of which this takes one: compare draws of "
            f"pm.sample_posterior_predictive(idata, var_names=[{name!r}]) with the data instead."
        )
    moments = posterior.moments([group.affine_predictor])[name]
    skewness = posterior.skewness([group.affine_predictor], {name: moments.sd})[name]
    site, parameters = _site_at(posterior, group, moments.mean.shape)
    return AtPredictor(site, moments.mean, np.maximum(moments.sd**2, KNOWN), parameters, skewness)


def _site_at(
    posterior: SitePosterior, group: Likelihood, shape: tuple[int, ...]
) -> tuple[CompiledSite, list[np.ndarray]]:
    """Return the site of a likelihood, and its parameters at the shape of the predictors."""
    site, parameters = posterior.form.site_at(posterior.theta, group)
    size = int(np.prod(shape))
    for parameter, values in zip(site.site.parameters, parameters):
        if values.size not in (1, size):
            raise InvalidDataError(
                f"{group.name!r} has {values.size} values of {parameter}, as many as it had observations in the model, "
                f"but predictors of shape {shape}. Make the observations a pm.Data, and set as many of any value with "
                f"the new inputs."
            )
    return site, [np.broadcast_to(p, size).reshape(shape) for p in parameters]


def at_predictors(posterior: SitePosterior, group: Likelihood) -> AtPredictor:
    """Return `at_predictor` for a site of r predictors: moments are (r, *shape), parameters (*shape), skewness zero."""
    moments = posterior.moments([group.affine_predictor])[group.name]
    site, parameters = _site_at(posterior, group, moments.mean.shape[1:])
    variance = np.maximum(moments.sd**2, KNOWN)
    return AtPredictor(site, moments.mean, variance, parameters, np.zeros_like(variance))


def _of_several_predictors(posterior: SitePosterior, group: Likelihood, y: np.ndarray) -> np.ndarray:
    """Return the log integrals of a likelihood over all of its predictors, at the shape of `y`."""
    at = at_predictors(posterior, group)
    parameters, shape = at.parameters, at.mean.shape[1:]
    if isinstance(group.site, SoftmaxSite) and group.site.counted:
        require_rows_of_counts(group.name, group.site, y, shape)
        counts, y = np.moveaxis(y, -1, 0), y.sum(axis=-1)
        parameters = [y, *counts]
    else:
        require_observations(group, y, shape)
    group.site.validate_parameters(parameters, group.name, y)
    rows = np.asarray(y, dtype=float).ravel()
    first, *others = (np.tile(np.ravel(values), len(at.mean)) for values in (rows, *parameters))
    tilted = at.site.moments(first, at.mean.ravel(), at.variance.ravel(), 1.0, *others)
    log_z = np.asarray(tilted.log_z)[: rows.size]
    check_finite([log_z], rows, at.mean[0].ravel(), at.variance[0].ravel(), group.name)
    return log_z.reshape(y.shape)


def require_rows_of_counts(name: str, site: SoftmaxSite, y: np.ndarray, shape: tuple[int, ...]) -> None:
    """Raise InvalidDataError unless new counts of categories fit their predictors' shape, and are counts."""
    if y.shape != (*shape, site.categories):
        raise InvalidDataError(
            f"{name!r} has counts of shape {(*shape, site.categories)} but the given values have shape {y.shape}. Give "
            f"a row of counts for each; for others set their inputs in the model first, by pm.set_data."
        )
    site.validate(y, name)


def require_observations(group: Likelihood, y: np.ndarray, shape: tuple[int, ...]) -> None:
    """Raise InvalidDataError for new observations of another shape than their predictors, or outside the domain.

    Raise UnsupportedModelError for a likelihood whose density mixes the observations of the fit.
    """
    if group.site.holds_observations:
        raise UnsupportedModelError(
            f"{group.name!r} has a density of its own that mixes observations, and so none of new ones; write it as a "
            f"pm.CustomDist whose logp takes them one by one."
        )
    if y.shape != shape:
        raise InvalidDataError(
            f"{group.name!r} has predictors of shape {shape} but the given values have shape {y.shape}. "
            f"Give one value for each; for others set their inputs in the model first, by pm.set_data."
        )
    group.site.validate(y, group.name)


def _log_predictive(posterior: SitePosterior, group: Likelihood, y: np.ndarray) -> Iterator[tuple[float, np.ndarray]]:
    """Yield the weight of each Gaussian component, and log integrals of the likelihood over it, at the shape of `y`."""
    if group.site.predictors > 1:
        yield 1.0, _of_several_predictors(posterior, group, y)
        return
    at = at_predictor(posterior, group)
    require_observations(group, y, at.mean.shape)
    for weight, predictor in at.gaussians():
        tilted = predictor.site.moments(y, predictor.mean, predictor.variance, 1.0, *predictor.parameters)
        check_finite(tilted, y, predictor.mean, predictor.variance, group.name)
        yield weight, np.asarray(tilted.log_z)
