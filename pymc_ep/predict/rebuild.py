"""Rebuild the posterior of a result."""

from collections.abc import Callable, Sequence
from typing import TypeVar, cast

import numpy as np
import pymc as pm
from pytensor.graph.traversal import ancestors

from pymc_ep.compat import Container
from pymc_ep.contracts.form import CompiledForm, CompiledSiteForm
from pymc_ep.contracts.posterior import SitePosterior
from pymc_ep.exceptions import UnsupportedModelError
from pymc_ep.forms import compiled_form, entry_of, get_method
from pymc_ep.forms.registry import FormEntry, Predictions, solved_by
from pymc_ep.graphs.lengths import require_lengths, require_lengths_of
from pymc_ep.graphs.shared_values import exchanged
from pymc_ep.predict.fitted_data import changed_data
from pymc_ep.results import fit_method, fit_state, latent_of, settings
from pymc_ep.results.unchanged import require_unchanged

__all__ = ["own_predictions", "posterior_of", "registered", "require_fitted_data", "single_posterior_of"]

Registered = TypeVar("Registered")
"""Type of what `registered` picks from the registry's entry of a form."""


def posterior_of(idata: Container, model: pm.Model, wanted: Sequence[str]) -> SitePosterior:
    """Return the posterior of a fit, rebuilt from its result, over a form that includes the wanted variables.

    After `pymc.set_data` this is still the posterior given the fitted data, which the container holds. The wanted
    variables follow from the present data.

    Raises
    ------
    ValueError
        Where `idata` is no result of `pymc_ep.fit`, or of another model, or where the latent variables themselves
        depend on changed data.
    """
    changed = changed_data(idata, model)
    if not changed:
        return _posterior_at_present(idata, model, wanted)
    require_lengths_of(model, wanted)
    with exchanged(changed):
        form = _posterior_at_present(idata, model, wanted).form
    dependencies, latent_dependencies = form.form.made_of(settings(idata)["latent"])
    changed = {variable: value for variable, value in changed.items() if variable in dependencies}
    fitted = form.fitted_to(changed) if changed else None
    if fitted is None:
        return _posterior_at_present(idata, model, wanted)
    for name, behind in latent_dependencies.items():
        if touched := [str(variable.name) for variable in changed if variable in behind]:
            raise ValueError(
                f"Prior or shape of {name!r} depend on {touched[0]!r}, which has changed since the fit, so that it is "
                f"another variable now. Set the data of the fit again, and put what is new into a variable of its own, "
                f"such as a gp.conditional; or fit anew."
            )
    method = get_method(fit_method(idata), form.form)
    return cast(SitePosterior, method.rebuild(fitted, fit_state(idata)))


def require_fitted_data(idata: Container, model: pm.Model) -> None:
    """Raise where data on which observed or latent variables depend have changed since the fit.

    Raises
    ------
    ValueError
        Where such data have changed; the message names them.
    """
    changed = changed_data(idata, model)
    if not changed:
        return
    form = cast(CompiledSiteForm, compiled_form(model, latent_of(idata, model))).form
    observed = [model.rvs_to_values[variable] for variable in model.observed_RVs]
    behind = form.made_of(settings(idata)["latent"])[0].union(ancestors(observed))
    if touched := [str(variable.name) for variable in changed if variable in behind]:
        raise ValueError(
            f"{touched[0]!r} has changed since the fit, whose scores are those of the data it was fitted to. Set these "
            f"again, or fit anew; pmep.log_predictive scores new observations."
        )


def _posterior_at_present(idata: Container, model: pm.Model, wanted: Sequence[str]) -> SitePosterior:
    """Return the posterior of a fit; raise a ValueError unless the present data of the model are the fitted ones."""
    state = fit_state(idata)
    form = compiled_form(model, latent_of(idata, model), wanted=tuple(wanted))
    if not entry_of(form.form).gaussian:
        raise UnsupportedModelError(_why_not_gaussian(form))
    cast(CompiledSiteForm, form).solve_in(settings(idata).get("solver", "auto"))
    method = get_method(fit_method(idata), form.form)
    # Sites of two predictors have more rows than observations.
    n, p = sum(len(y) for y in cast(CompiledSiteForm, form).residuals()), form.start.size
    if state["shift"].size != n or state["theta"].size != p:
        raise ValueError(
            f"The result holds {state['shift'].size} sites and {state['theta'].size} hyperparameters, but the model "
            f"now has {sum(y.size for y in form.observed())} observations and {p} hyperparameters. Set the data of the "
            f"fit again, or fit anew."
        )
    posterior = cast(SitePosterior, method.rebuild(form, state))
    prior = posterior.mode[1]
    present = {"observed": np.concatenate([np.ravel(y) for y in form.observed()]), "prior_mean": prior.mean}
    if "prior_variance" in state:
        present["prior_variance"] = np.asarray(prior.gaussian.variances())
    require_unchanged(state, present, [str(variable.name) for variable in changed_data(idata, model)])
    return posterior


def _why_not_gaussian(form: CompiledForm) -> str:
    if (predictions := entry_of(form.form).predictions) is not None:
        return predictions.remark(form.form)
    names = ", ".join(map(repr, form.form.latent_names))
    observed = ", ".join(repr(group.name) for group in form.form.groups)
    return (
        f"The model of {observed} is of the form {type(form.form).__name__}, whose posterior of {names} has no sites "
        f"and no Gaussian predictions; use the draws and moments of the fit, or pm.sample_posterior_predictive."
    )


def own_predictions(idata: Container, model: pm.Model) -> Predictions | None:
    """Return the predictions that a form without Gaussian predictors has registered; None for all other forms."""
    return registered(idata, model, lambda entry: entry.predictions)


def registered(idata: Container, model: pm.Model, pick: Callable[[FormEntry], Registered | None]) -> Registered | None:
    """Return ``pick(entry)`` of the registry's entry of a fit's form, such as its predictions; None without one."""
    if all(pick(entry) is None for entry in solved_by(fit_method(idata))):
        # Nothing is compiled for this question alone.
        return None
    return pick(entry_of(compiled_form(model, latent_of(idata, model)).form))


def single_posterior_of(idata: Container, model: pm.Model) -> SitePosterior:
    """Return the posterior of a fit, which must have sites, rebuilt from its result.

    Raises
    ------
    ValueError
        As `posterior_of`.
    UnsupportedModelError
        Where the posterior has no sites, such as an average over translated grids.
    """
    require_lengths(model)
    posterior = _posterior_at_present(idata, model, [])
    if posterior.without_sites:
        raise UnsupportedModelError(posterior.without_sites)
    return posterior
