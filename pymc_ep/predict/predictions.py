"""Predictions of variables: Gaussian ones in closed form, observed ones on their own scale by quadrature."""

from collections.abc import Sequence

import numpy as np
import pymc as pm
import xarray as xr

from pymc_ep.compat import Container
from pymc_ep.concurrency import one_at_a_time
from pymc_ep.contracts.form import Likelihood
from pymc_ep.contracts.posterior import SitePosterior
from pymc_ep.exceptions import UnsupportedModelError
from pymc_ep.graphs.context import model_of
from pymc_ep.predict.drawn_response import drawn_response
from pymc_ep.predict.log_predictive import at_predictor, likelihoods, require_separate
from pymc_ep.predict.rebuild import posterior_of
from pymc_ep.predict.response import expected_response, observation_quantiles, predictor_quantiles
from pymc_ep.results import labelled

__all__ = ["predict"]

_QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
"""Default quantiles: the intervals of 90% and 50% that the plots draw, and the median."""


@one_at_a_time
def predict(
    idata: Container,
    model: pm.Model | None = None,
    *,
    var_names: str | Sequence[str] | None = None,
    response: bool = False,
    kind: str = "expectation",
    quantiles: Sequence[float] = _QUANTILES,
) -> xr.Dataset:
    """Predict variables of a model: Gaussian ones in closed form, or observed ones on their own scale.

    Parameters
    ----------
    idata : arviz.InferenceData or xarray.DataTree
        Result of `pymc_ep.fit`, also one read back from disk.
    model : pymc.Model, optional
        The fitted model. It may have gained variables since, such as a ``gp.conditional``, or got other data by
        `pymc.set_data`: predictions are then for the present data, from the posterior given the fitted data.
    var_names : str or sequence of str, optional
        Latent variables, Deterministics affine in them, or Gaussian variables that depend on them. With `response`
        observed variables, or likelihoods added to the model; by default all observed ones.
    response : bool
        Whether to predict on the scale of the observations, through the inverse link.
    kind : {"expectation", "observation"}
        With `response`: the posterior of the expected observation, such as a rate or a probability; or the predictive
        distribution of a new observation, whose mean is the same and whose spread includes the likelihood's.
    quantiles : sequence of float
        With `response`: levels of the returned quantiles.

    Returns
    -------
    xarray.Dataset
        ``<name>_mean`` and ``<name>_sd`` with the model's dims and coords; with `response` also ``<name>_quantile``,
        whose first dim is ``quantile``. Uncertainty of the hyperparameters is included: to first order about their
        mode, or by the mixture where the fit is one. Responses are computed by quadrature, under predictors that are as
        skewed as the draws. For likelihoods without a registered site they come from the fit's draws, with new
        observations drawn from seed 0. For categories they are the probability of each, with a last dim
        ``<name>_category``. For censored observations they are predictions without the bounds.

    Raises
    ------
    UnsupportedModelError
        For a variable that is not affine in the latent ones, for new observations of categories, whose numbers
        have no mean, and for likelihoods without a registered site where the fit has no draws.
    ValueError
        Where result and model do not belong together.
    """
    model = model_of(model)
    if kind not in ("expectation", "observation"):
        raise ValueError(f"kind={kind!r} must be 'expectation' or 'observation'.")
    if not len(quantiles) or not all(0 < q < 1 for q in quantiles):
        raise ValueError(f"quantiles={quantiles!r} must be numbers between 0 and 1, at least one.")
    if var_names is None and not response:
        raise ValueError(
            "predict needs var_names=, the variables to predict; or response=True, for all observed variables on their "
            "own scale."
        )
    if var_names is None:
        var_names = [variable.name for variable in model.observed_RVs]
    names = [var_names] if isinstance(var_names, str) else list(var_names)
    posterior = posterior_of(idata, model, names)
    if response:
        datasets = [
            _response(model, posterior, group, kind, quantiles)
            if group.site.response is not None
            else drawn_response(idata, model, group, kind, quantiles)
            for group in likelihoods(posterior.form.form, names)
        ]
        return xr.merge(datasets, combine_attrs="drop_conflicts")
    require_separate(posterior.form.form, names)
    affine = {v.name: v for v in posterior.form.form.affine}
    for name in names:
        if name not in affine:
            raise UnsupportedModelError(
                f"{name!r} is not Gaussian given the hyperparameters, so it has no Gaussian prediction; use "
                f"response=True of what is observed, pm.sample_posterior_predictive, or log_predictive for the density "
                f"of new observations."
            )
    by_name = posterior.moments([affine[name] for name in names])
    variables: dict[str, tuple[str, np.ndarray]] = {}
    for name, moments in by_name.items():
        variables |= {f"{name}_mean": (name, moments.mean), f"{name}_sd": (name, moments.sd)}
    return labelled(model, variables)


def _response(
    model: pm.Model,
    posterior: SitePosterior,
    group: Likelihood,
    kind: str,
    quantiles: Sequence[float],
) -> xr.Dataset:
    """Return mean, sd and quantiles of one likelihood's expected or new observations."""
    name = group.name
    weights, predictors = [], []
    for weight, component in posterior.components():
        weights.append(weight)
        predictors.append(at_predictor(component, group))
    component_weights = np.array(weights)
    mean, sd, observation_sd = expected_response(component_weights, predictors)
    if kind == "expectation":
        levels = predictor_quantiles(component_weights, predictors, np.array(quantiles))
    else:
        sd, levels = observation_sd, observation_quantiles(name, component_weights, predictors, np.array(quantiles))
    out = labelled(model, {f"{name}_mean": (name, mean), f"{name}_sd": (name, sd)})
    each = [labelled(model, {f"{name}_quantile": (name, level)}) for level in levels]
    return out.merge(xr.concat(each, xr.IndexVariable("quantile", list(quantiles)), combine_attrs="drop_conflicts"))
