"""Rebuild the posterior of a bilinear model from a result."""

from typing import cast

import pymc as pm

from pymc_ep.compat import Container
from pymc_ep.forms.cache import compiled_form
from pymc_ep.forms.registry import get_method
from pymc_ep.models.bilinear.compiled import CompiledBilinear
from pymc_ep.models.bilinear.posterior import BilinearMixture, BilinearPosterior
from pymc_ep.results import fit_method, fit_state, latent_of
from pymc_ep.results.row_labels import require_labels
from pymc_ep.results.unchanged import require_unchanged

__all__ = ["bilinear_posterior"]


def bilinear_posterior(idata: Container, model: pm.Model) -> BilinearPosterior | BilinearMixture:
    """Rebuild the posterior of a fit of a bilinear model.

    Raises
    ------
    ValueError
        If the model's matrices, priors or data have changed since the fit.
    """
    form = cast(CompiledBilinear, compiled_form(model, latent_of(idata, model)))
    state = fit_state(idata)
    rebuilt = get_method(fit_method(idata), form.form).rebuild(form, state)
    posterior = cast(BilinearPosterior | BilinearMixture, rebuilt)
    centre = posterior.centre if isinstance(posterior, BilinearMixture) else posterior
    sides = zip((centre.left, centre.right), form.form.matrices, form.form.biases, form.shapes[:2])
    for rows, matrix, bias, (n, d) in sides:
        if rows.mean.shape != (n, d + (bias is not None)):
            held, width = rows.mean.shape
            now = f"{n} x {d}" + ("" if bias is None else f", and the bias {bias.name!r}")
            raise ValueError(
                f"The result holds {held} rows of {width} numbers for {matrix.name!r} and its bias, if it had one; in "
                f"the model it is now {now}. Set the data, dims and variables of the fit again, or fit anew."
            )
        require_labels(idata, model, matrix.name)
    if posterior.theta.size != form.start.size:
        raise ValueError(
            f"The result holds {posterior.theta.size} hyperparameters, but the model now has {form.start.size}. Set "
            f"the data and variables of the fit again, or fit anew."
        )
    require_unchanged(state, form.fingerprint(posterior.theta))
    return posterior
