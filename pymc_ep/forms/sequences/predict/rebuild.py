"""Rebuild a trained network from a result."""

from typing import cast

import pymc as pm

from pymc_ep.compat import Container
from pymc_ep.forms.cache import compiled_form
from pymc_ep.forms.registry import get_method
from pymc_ep.forms.sequences.compiled import CompiledSequences
from pymc_ep.forms.sequences.posterior import SequencesPosterior
from pymc_ep.kernels.recurrent import Weights
from pymc_ep.results import fit_method, fit_state, settings
from pymc_ep.results.row_labels import require_labels
from pymc_ep.results.unchanged import require_unchanged

__all__ = ["sequences_posterior"]


def sequences_posterior(idata: Container, model: pm.Model) -> SequencesPosterior:
    """Rebuild the points of a fit of sequences.

    Raises
    ------
    ValueError
        If the model's weights or data are no longer those of the fit.
    """
    form = cast(CompiledSequences, compiled_form(model, settings(idata)["latent"]))
    state = fit_state(idata)
    posterior = cast(SequencesPosterior, get_method(fit_method(idata), form.form).rebuild(form, state))
    values = posterior.values()
    for what, one, shape in zip(Weights._fields, form.form.tables, form.shapes):
        if one is None:
            if state[what].size:
                raise ValueError(
                    f"The result holds {what!r} weights, and in the model there are none. Give repeats= and bias= of "
                    f"the fit again, or fit anew."
                )
            continue
        value = values[one.name]
        if value.shape != shape:
            raise ValueError(
                f"The result holds {one.name!r} of shape {value.shape}, and in the model it is now {shape}. Set the "
                f"data, dims and variables of the fit again, or fit anew."
            )
        if not (form.pooled and one is form.form.recurrent):
            require_labels(idata, model, one.name)
    require_unchanged(state, form.fingerprint())
    return posterior
