"""From a result back to its posterior, and the Gaussian moments of predictors under it."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pymc as pm
import xarray as xr

from pymc_ep.engines import engines, get_engine
from pymc_ep.exceptions import UnsupportedModelError
from pymc_ep.forms.average import PosteriorAverage
from pymc_ep.forms.bilinear import Bilinear
from pymc_ep.forms.bilinear_posterior import BilinearPosterior
from pymc_ep.forms.compiled import CompiledLatentGaussian
from pymc_ep.forms.compiled_bilinear import CompiledBilinear
from pymc_ep.forms.latent_gaussian import AffineVariable
from pymc_ep.forms.mixture import PosteriorMixture
from pymc_ep.forms.other_data import OfOtherData, exchanged, made_of
from pymc_ep.forms.posterior import LatentPosterior, Moments
from pymc_ep.forms.protocols import CompiledForm
from pymc_ep.predict.fitted_data import changed_data
from pymc_ep.recognise import compiled_form
from pymc_ep.results import fit_group, fit_state, model_dims, posterior_moments, settings

__all__ = ["bilinear_posterior_of", "posterior_of", "predictor_moments_of", "single_posterior_of"]


def posterior_of(idata: Any, model: pm.Model, wanted: Sequence[str]) -> LatentPosterior | PosteriorMixture:
    """Rebuild the posterior of a fit, over a form that also knows the wanted variables.

    Where data of the model have changed since, by `pymc.set_data`, the posterior is that of the fitted data, which the
    container holds, and the wanted variables are those of the present data.

    Raises
    ------
    ValueError
        Where `idata` is no result of `pymc_ep.fit`, or of another model, or where latent variables themselves are made
        of what has changed.
    """
    changed = changed_data(idata, model)
    if not changed:
        return _posterior_at_present(idata, model, wanted)
    with exchanged(changed):
        form = _posterior_at_present(idata, model, wanted).form
    behind, of_latent = made_of(form.form, settings(idata)["latent"])
    changed = {variable: value for variable, value in changed.items() if variable in behind}
    if not changed or type(form) is not CompiledLatentGaussian:
        return _posterior_at_present(idata, model, wanted)
    for name, own in of_latent.items():
        if touched := [str(variable.name) for variable in changed if variable in own]:
            raise ValueError(
                f"Prior or shape of {name!r} depend on {touched[0]!r}, which has changed since the fit, so that it is "
                f"another variable now. Set the data of the fit again, and put what is new into a variable of its own, "
                f"such as a gp.conditional; or fit anew."
            )
    engine = get_engine(fit_group(idata).attrs["method"], form.form)
    return engine.rebuild(OfOtherData(form, changed), fit_state(idata))


def _posterior_at_present(idata: Any, model: pm.Model, wanted: Sequence[str]) -> LatentPosterior | PosteriorMixture:
    """Rebuild the posterior of a fit whose data are those of the model."""
    state = fit_state(idata)
    form = compiled_form(model, settings(idata)["latent"], wanted=tuple(wanted))
    if not isinstance(form, CompiledLatentGaussian):
        raise UnsupportedModelError(_why_not_gaussian(form))
    engine = get_engine(fit_group(idata).attrs["method"], form.form)
    n, p = sum(y.size for y in form.observed()), form.start.size
    if state["shift"].size != n or state["theta"].size != p:
        raise ValueError(
            f"The result holds {state['shift'].size} sites and {state['theta'].size} hyperparameters, but the model "
            f"now has {n} observations and {p} hyperparameters. Set the data of the fit again, or fit anew."
        )
    posterior = engine.rebuild(form, state)
    prior = posterior.mode[1]
    present = {"observed": np.concatenate([np.ravel(y) for y in form.observed()]), "prior_mean": prior.mean}
    if "prior_variance" in state:
        present["prior_variance"] = np.asarray(prior.gaussian.variances())
    _require_unchanged(state, present)
    return posterior


def _why_not_gaussian(form: CompiledForm) -> str:
    names = ", ".join(map(repr, form.form.latent_names))
    observed = ", ".join(repr(group.name) for group in form.form.groups)
    if isinstance(form, CompiledBilinear):
        return (
            f"The predictors of {observed} are inner products of {names}, which are not Gaussian, so that they have no "
            f"Gaussian predictions and no sites; use the moments in the group 'fit', pm.sample_posterior_predictive, "
            f"or log_predictive and diagnostics.predictive_pit of new cells."
        )
    return (
        f"The model of {observed} is of the form {type(form.form).__name__}, whose posterior of {names} has no sites "
        f"and no Gaussian predictions; use the draws and moments of the fit, or pm.sample_posterior_predictive."
    )


def _require_unchanged(state: Mapping[str, np.ndarray], present: Mapping[str, np.ndarray]) -> None:
    """Raise where numbers that a fit has kept are not those of the model as it is now."""
    for name, now in present.items():
        held, scale = state[name], np.max(np.abs(now.astype(float)), initial=1e-300)
        if held.shape != now.shape or not np.allclose(held, now, rtol=1e-6, atol=1e-9 * scale):
            what = f"{name.replace('_', ' ')} {'differ' if name.endswith('s') else 'differs'}"
            raise ValueError(
                f"The data of the model have changed since the fit (its {what}). Set those of the fit again, and put "
                f"new inputs into variables of their own; or fit anew."
            )


def bilinear_posterior_of(idata: Any, model: pm.Model) -> tuple[CompiledBilinear, BilinearPosterior] | None:
    """Rebuild the posterior of a fit of a bilinear model; None where it is none.

    Raises
    ------
    ValueError
        Where the model's matrices, priors or data are no longer those of the fit.
    """
    method = fit_group(idata).attrs["method"]
    if not any(engine.form is Bilinear for engine in engines() if engine.name == method):
        return None
    form = compiled_form(model, settings(idata)["latent"])
    if not isinstance(form, CompiledBilinear):
        return None
    state = fit_state(idata)
    posterior = get_engine(fit_group(idata).attrs["method"], form.form).rebuild(form, state)
    sides = zip((posterior.left, posterior.right), form.form.matrices, form.form.biases, form.shapes[:2])
    for rows, matrix, bias, (n, d) in sides:
        if rows.mean.shape != (n, d + (bias is not None)):
            held, width = rows.mean.shape
            now = f"{n} x {d}" + ("" if bias is None else f", and the bias {bias.name!r}")
            raise ValueError(
                f"The result holds {held} rows of {width} numbers for {matrix.name!r} and its bias, if it had one; in "
                f"the model it is now {now}. Set the data, dims and variables of the fit again, or fit anew."
            )
        _require_labels(idata, model, matrix.name)
    if posterior.theta.size != form.start.size:
        raise ValueError(
            f"The result holds {posterior.theta.size} hyperparameters, but the model now has {form.start.size}. Set "
            f"the data and variables of the fit again, or fit anew."
        )
    _require_unchanged(state, form.fingerprint(posterior.theta))
    return form, posterior


def _require_labels(idata: Any, model: pm.Model, name: str) -> None:
    """Raise where rows of a matrix are labelled otherwise than in the fit."""
    dim, held = model_dims(model, name)[0], posterior_moments(idata, "mean")[name]
    labels = model.coords.get(dim)
    if (
        labels is None
        or dim not in held.coords
        or held.indexes[dim].equals(xr.IndexVariable(dim, list(labels)).to_index())
    ):
        return
    raise ValueError(
        f"The coordinates of {dim!r} are not those of the fit, which are the labels of its rows of {name!r}; give the "
        f"model those of the fit, in their order, or fit anew."
    )


def single_posterior_of(idata: Any, model: pm.Model) -> LatentPosterior | PosteriorMixture:
    """Rebuild the posterior of a fit whose sites are looked at.

    Raises
    ------
    ValueError
        As `posterior_of`.
    UnsupportedModelError
        Where it is an average over translated grids, each with sites of its own.
    """
    posterior = _posterior_at_present(idata, model, [])
    if isinstance(posterior, PosteriorAverage):
        raise UnsupportedModelError(
            f"The result averages posteriors on {len(posterior.parts)} translated grids, which have sites of their own "
            f"each; fit with translations=1 to look at one of them."
        )
    return posterior


def predictor_moments_of(posterior: LatentPosterior, name: str, predictor: Any) -> Moments:
    """Return the posterior moments of one likelihood's predictor."""
    return posterior.moments([AffineVariable(name, predictor)])[name]
