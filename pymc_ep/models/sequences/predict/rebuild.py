"""Rebuild a trained network from a result."""

from typing import cast

import pymc as pm

from pymc_ep.compat import Container
from pymc_ep.forms.cache import compiled_form
from pymc_ep.forms.registry import get_method
from pymc_ep.models.sequences.compiled import CompiledSequences
from pymc_ep.models.sequences.kernel import Weights
from pymc_ep.models.sequences.posterior import SequencesPosterior
from pymc_ep.results import fit_method, fit_state, latent_of
from pymc_ep.results.row_labels import require_labels
from pymc_ep.results.unchanged import require_unchanged

__all__ = ["sequences_posterior"]


def sequences_posterior(idata: Container, model: pm.Model) -> SequencesPosterior:
    """Return the point estimates of a fit of sequences, rebuilt from its result.

    Raises
    ------
    ValueError
        If the model's weights or data have changed since the fit.
    """
    form = cast(CompiledSequences, compiled_form(model, latent_of(idata, model)))
    state = fit_state(idata)
    tables = [*zip(Weights._fields, form.form.tables, form.shapes), ("shared", form.form.shared, form.shapes[0][-3:])]
    for what, variable, shape in tables:
        saved_shape = state[what].shape
        if (variable is None) != (not state[what].size):
            with_weights, without = ("result", "model") if variable is None else ("model", "result")
            raise ValueError(
                f"The {with_weights} has {what!r} weights, and the {without} has none. Give repeats=, bias= and "
                f"spread= of the fit again, or fit anew."
            )
        if variable is None:
            continue
        expected = (1, *shape) if form.pooled and variable is form.form.recurrent else shape
        if saved_shape != expected:
            raise ValueError(
                f"The result holds {variable.name!r} of shape {saved_shape}, and in the model it is now {expected}. "
                f"Set the data, dims and variables of the fit again, or fit anew."
            )
        if expected == shape:
            require_labels(idata, model, variable.name)
    require_unchanged(state, form.fingerprint())
    return cast(SequencesPosterior, get_method(fit_method(idata), form.form).rebuild(form, state))
