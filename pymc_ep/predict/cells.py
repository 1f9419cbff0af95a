"""Log predictive densities of new cells of a bilinear model."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import xarray as xr

from pymc_ep.exceptions import UnsupportedModelError
from pymc_ep.forms.bilinear_posterior import BilinearPosterior
from pymc_ep.forms.compiled_bilinear import CompiledBilinear
from pymc_ep.predict.bilinear import read_cells

__all__ = ["log_predictive_of_cells"]

_DRAWS = 1000
"""Of rows of the left matrix for each cell."""


def log_predictive_of_cells(
    form: CompiledBilinear, posterior: BilinearPosterior, data: Mapping[str, Any]
) -> xr.Dataset:
    """Return log integrals of p(y | f) Q(f), one for each new cell.

    Parameters
    ----------
    form : CompiledBilinear
    posterior : BilinearPosterior
    data : mapping of str to mapping
        By the name of the observed variable, what `read_cells` takes.

    Raises
    ------
    InvalidDataError
        For cells that there are not, and for observations that cannot be.
    """
    name = form.form.cells.name
    if list(data) != [name]:
        raise UnsupportedModelError(f"The model's cells are those of {name!r}; give these, not {', '.join(data)}.")
    new = read_cells(form, posterior.theta, data[name])
    rng = np.random.default_rng(0)
    found = posterior.log_predictive(new.y, new.rows, new.cols, new.offset, new.parameters, _DRAWS, rng)
    return xr.Dataset({name: ((f"{name}_cell",), found)})
