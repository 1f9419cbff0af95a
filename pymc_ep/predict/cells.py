"""Log predictive densities of new cells of a bilinear model."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import xarray as xr

from pymc_ep.exceptions import InvalidDataError, UnsupportedModelError
from pymc_ep.forms.bilinear_posterior import BilinearPosterior
from pymc_ep.forms.compiled_bilinear import CompiledBilinear

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
        By the name of the observed variable: ``rows``, ``cols`` and ``observed``, and where they are not the same for
        all cells of the fit ``offset``, which biases are no part of, and parameters of the likelihood.

    Raises
    ------
    InvalidDataError
        For cells that there are not, and for observations that cannot be.
    """
    name = form.form.cells.name
    if list(data) != [name]:
        raise UnsupportedModelError(f"The model's cells are those of {name!r}; give these, not {', '.join(data)}.")
    given = dict(data[name]) if isinstance(data[name], Mapping) else {}
    prior = form.prior(posterior.theta)
    known = {"offset": prior.offset} | dict(zip(form.form.cells.site.parameters, prior.parameters))
    needed = ("rows", "cols", "observed")
    wrong = [f"{key!r} is missing" for key in needed if key not in given]
    wrong += [f"there is no {key!r}" for key in given if key not in (*needed, *known)]
    if wrong:
        raise InvalidDataError(
            f"New cells of {name!r} are a mapping of 'rows', 'cols' and 'observed', and maybe of "
            f"{', '.join(map(repr, known))}: {wrong[0]}."
        )
    rows, cols, y = (np.atleast_1d(given[key]) for key in ("rows", "cols", "observed"))
    form.require_cells(y, rows, cols)
    others = [_for_all(name, key, given.get(key), values, y.size) for key, values in known.items()]
    found = posterior.log_predictive(
        y.astype(float), rows, cols, others[0], others[1:], _DRAWS, np.random.default_rng(0)
    )
    return xr.Dataset({name: ((f"{name}_cell",), found)})


def _for_all(name: str, key: str, given: Any, fitted: np.ndarray, size: int) -> np.ndarray:
    """Return what is given for new cells, or what all cells of the fit have."""
    if given is None:
        if np.ptp(fitted) > 0:
            raise InvalidDataError(
                f"The {key} of {name!r} differs from cell to cell in the fit; give that of the new cells as {key!r}."
            )
        given = fitted[0]
    return np.broadcast_to(np.asarray(given, dtype=float), (size,))
