"""Predictive densities of new cells of a bilinear model, and their calibration."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pymc as pm
import xarray as xr

from pymc_ep.exceptions import UnsupportedModelError
from pymc_ep.forms.bilinear_posterior import BilinearPosterior
from pymc_ep.forms.bilinear_values import NewCells
from pymc_ep.forms.compiled_bilinear import CompiledBilinear
from pymc_ep.predict.bilinear import read_cells

__all__ = ["log_predictive_of_cells", "transforms_of_cells"]

_DRAWS = 1000
"""Of rows of the left matrix for each cell."""


def log_predictive_of_cells(
    model: pm.Model, form: CompiledBilinear, posterior: BilinearPosterior, data: Mapping[str, Any]
) -> xr.Dataset:
    """Return log integrals of p(y | f) Q(f), one for each new cell.

    Parameters
    ----------
    model : pymc.Model
    form : CompiledBilinear
    posterior : BilinearPosterior
    data : mapping of str to mapping
        By the name of the observed variable, what `read_cells` takes.

    Raises
    ------
    InvalidDataError
        For cells that there are not, and for observations that cannot be.
    """
    name, new = _read(model, form, posterior, data)
    found = posterior.log_predictive(new, _DRAWS, np.random.default_rng(0))
    return xr.Dataset({name: ((f"{name}_cell",), found)})


def transforms_of_cells(
    model: pm.Model, form: CompiledBilinear, posterior: BilinearPosterior, data: Mapping[str, Any]
) -> xr.Dataset:
    """Return ``<y>_lower`` and ``<y>_upper``, P(Y < y) and P(Y <= y), of new cells as in `log_predictive_of_cells`."""
    name, new = _read(model, form, posterior, data)
    found = zip(("lower", "upper"), posterior.transforms(new, _DRAWS, np.random.default_rng(0)))
    arrays = {f"{name}_{which}": ((f"{name}_cell",), part) for which, part in found}
    return xr.Dataset(arrays, attrs={"domain": form.form.cells.site.domain})


def _read(
    model: pm.Model, form: CompiledBilinear, posterior: BilinearPosterior, data: Mapping[str, Any]
) -> tuple[str, NewCells]:
    name = form.form.cells.name
    if list(data) != [name]:
        raise UnsupportedModelError(f"The model's cells are those of {name!r}; give these, not {', '.join(data)}.")
    return name, read_cells(model, form, posterior.theta, data[name])
