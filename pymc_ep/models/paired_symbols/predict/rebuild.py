"""Rebuild the posterior of paired symbols from a result."""

from typing import cast

import pymc as pm

from pymc_ep.compat import Container
from pymc_ep.evidence.fit_mixture import FitMixture
from pymc_ep.forms.cache import compiled_form
from pymc_ep.forms.registry import get_method
from pymc_ep.models.paired_symbols.compiled import CompiledPairedSymbols
from pymc_ep.models.paired_symbols.posterior import PairedSymbolsPosterior
from pymc_ep.results import fit_method, fit_state, latent_of
from pymc_ep.results.row_labels import require_labels
from pymc_ep.results.unchanged import require_unchanged

__all__ = ["paired_symbols_posterior"]


def paired_symbols_posterior(
    idata: Container, model: pm.Model
) -> PairedSymbolsPosterior | FitMixture[PairedSymbolsPosterior]:
    """Return the posterior of a fit of paired symbols, rebuilt from its result.

    Raises
    ------
    ValueError
        If the model's matrices, priors or data have changed since the fit.
    """
    form = cast(CompiledPairedSymbols, compiled_form(model, latent_of(idata, model)))
    state = fit_state(idata)
    rebuilt = get_method(fit_method(idata), form.form).rebuild(form, state)
    posterior = cast(PairedSymbolsPosterior | FitMixture[PairedSymbolsPosterior], rebuilt)
    centre = posterior.centre if isinstance(posterior, FitMixture) else posterior
    *sizes, width = form.shapes
    for side, symbols, n in zip(form.form.sides, centre.symbols, sizes):
        if symbols.mean.shape != (n, width):
            held = " x ".join(map(str, symbols.mean.shape))
            raise ValueError(
                f"The result holds {held} values of {side.factors.name!r}, and in the model it is now {n} x {width}. "
                f"Set the data, dims and variables of the fit again, or fit anew."
            )
        require_labels(idata, model, side.factors.name)
    if posterior.theta.size != form.start.size or len(centre.gammas) != len(form.form.precisions):
        raise ValueError(
            "The result is of a model with other hyperparameters or precisions. Set the variables of the fit again, or "
            "fit anew."
        )
    require_unchanged(state, form.fingerprint(posterior.theta))
    return posterior
