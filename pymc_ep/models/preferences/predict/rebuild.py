"""Rebuild the posterior of preferences from a result."""

from typing import TypeAlias, cast

import pymc as pm

from pymc_ep.compat import Container
from pymc_ep.forms.cache import compiled_form
from pymc_ep.forms.registry import get_method
from pymc_ep.models.preferences.compiled import CompiledPreferences
from pymc_ep.models.preferences.posterior import PreferencePosterior
from pymc_ep.models.preferences.posterior_mixture import PreferenceMixture
from pymc_ep.results import fit_method, fit_state, latent_of
from pymc_ep.results.unchanged import require_unchanged

__all__ = ["UtilityPosterior", "preference_posterior"]

UtilityPosterior: TypeAlias = PreferencePosterior | PreferenceMixture
"""Posterior at one value of the hyperparameters, or integrated over the hyperparameters."""


def preference_posterior(idata: Container, model: pm.Model) -> UtilityPosterior:
    """Return the posterior of a fit of preferences, rebuilt from its result.

    Raises
    ------
    ValueError
        If the model's data or hyperparameters have changed since the fit.
    """
    form = cast(CompiledPreferences, compiled_form(model, latent_of(idata, model)))
    state = fit_state(idata)
    if state["theta"].size != form.start.size:
        raise ValueError(
            "The result is of a model with other hyperparameters. Set the variables of the fit again, or fit anew."
        )
    require_unchanged(state, form.fingerprint())
    rebuilt = get_method(fit_method(idata), form.form).rebuild(form, state)
    return cast(UtilityPosterior, rebuilt)
