"""Log densities of observations given all others by fits without them, where one fit cannot tell."""

from collections.abc import Sequence
from typing import cast

import numpy as np
import pymc as pm

from pymc_ep.compat import Container
from pymc_ep.contracts.form import CompiledSiteForm
from pymc_ep.contracts.method import Call
from pymc_ep.engines.interrupt import INTERRUPTS, is_interrupt
from pymc_ep.engines.progress import progress
from pymc_ep.exceptions import InvalidDataError, NumericalError, UnsupportedModelError
from pymc_ep.forms import compiled_form, get_method
from pymc_ep.numerics.backend.threads import limited_threads
from pymc_ep.results import fit_group, fit_method, latent_of, settings

__all__ = ["log_densities_by_refits"]


def log_densities_by_refits(
    idata: Container, model: pm.Model, name: str, parts: Sequence[np.ndarray], *, progressbar: bool
) -> np.ndarray:
    """Return the log density of each part of an observed variable given all other observations, (parts,).

    It is log p(y) - log p(y without the part), where the second log evidence is by a fit with the same options.

    Parameters
    ----------
    idata : arviz.InferenceData or xarray.DataTree
        Result of `pymc_ep.fit`.
    model : pymc.Model
        The fitted model, with the data of the fit.
    name : str
        The observed variable.
    parts : sequence of ndarray
        Ravelled indices of the observations of each part.
    progressbar : bool
        Shown once two seconds have passed.

    Returns
    -------
    ndarray, (parts,)
        NaN for a part without which there is no fit, or none that converged, and for all parts where hyperparameters
        are not integrated over. Ctrl-C leaves NaN for the parts that are not reached.
    """
    out, fit, asked = np.full(len(parts), np.nan), fit_group(idata), settings(idata)
    if not len(parts) or asked["hyper"] != "integrate":
        return out
    form = cast(CompiledSiteForm, compiled_form(model, latent_of(idata, model)))
    method = get_method(fit_method(idata), form.form)
    options = {option: asked[option] for option in method.options if option in asked}
    n = fit[f"{name}_loo"].size
    with progress("loo", progressbar) as report, limited_threads(form.work, "auto"):
        report.phase("fits without outliers", len(parts))
        for k, part in enumerate(parts):
            form_without = form.subset(name, np.setdiff1d(np.arange(n), part))
            if form_without is None:
                break
            try:
                solution = method.solve(Call(form_without, form_without.start, "integrate", options=options))
            except (InvalidDataError, NumericalError, UnsupportedModelError):
                continue
            except INTERRUPTS as stop:
                if is_interrupt(stop):
                    break
                raise
            if solution.converged:
                out[k] = float(fit["log_evidence"]) - solution.scalars["log_evidence"]
            elif "interrupted" in solution.status:
                break
            report.advance()
    return out
