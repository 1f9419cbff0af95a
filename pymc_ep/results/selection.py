"""Selection of variables and their elements by ArviZ's ``var_names``, ``filter_vars`` and ``coords``."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr

from pymc_ep.exceptions import did_you_mean

__all__ = ["require_dims", "selected", "selected_names"]

_FILTERS = (None, "like", "regex")
"""Values of ``filter_vars``: names in full, parts of names, and regular expressions that are searched in names."""


def selected_names(
    available: Iterable[str], var_names: str | Sequence[str] | None, filter_vars: str | None = None
) -> list[str]:
    """Return the names of variables that `var_names` selects: all for None, and all but x for ``"~x"``.

    Parameters
    ----------
    available : iterable of str
    var_names : str or sequence of str, optional
    filter_vars : {None, "like", "regex"}

    Raises
    ------
    ValueError
        For an unknown filter, and for a name or pattern that matches no available variable.
    """
    available = list(dict.fromkeys(map(str, available)))
    if filter_vars not in _FILTERS:
        raise ValueError(f"filter_vars={filter_vars!r} must be one of {', '.join(map(repr, _FILTERS))}.")
    if var_names is None:
        return available
    given = [var_names] if isinstance(var_names, str) else list(var_names)
    kept: list[str] = []
    left_out: list[str] = []
    for pattern in given:
        without = pattern.startswith("~") and pattern not in available
        wanted = pattern.removeprefix("~") if without else pattern
        matches = [name for name in available if _matches(name, wanted, filter_vars)]
        if not matches:
            raise ValueError(
                f"There are neither draws nor moments of {wanted!r}, but of "
                f"{', '.join(map(repr, available)) or 'nothing'}.{did_you_mean(wanted, available)}"
            )
        (left_out if without else kept).extend(matches)
    every = available if left_out and not kept else kept
    return [name for name in dict.fromkeys(every) if name not in left_out]


def _matches(name: str, pattern: str, filter_vars: str | None) -> bool:
    if filter_vars is None:
        return name == pattern
    return pattern in name if filter_vars == "like" else re.search(pattern, name) is not None


def require_dims(coords: Mapping[str, Any] | None, variables: Iterable[xr.DataArray]) -> None:
    """Raise a ValueError for coordinates of a dim that no variable has."""
    dims = list(dict.fromkeys(str(dim) for values in variables for dim in values.dims))
    for dim in coords or {}:
        if dim not in dims:
            raise ValueError(
                f"coords= has the dim {dim!r}; the variables have {', '.join(map(repr, dims)) or 'none'}."
                f"{did_you_mean(dim, dims)}"
            )


def selected(values: xr.DataArray, coords: Mapping[str, Any] | None, *, squeeze: bool = False) -> xr.DataArray:
    """Return the elements of a variable at given coordinates; coordinates of dims that it lacks are ignored.

    Parameters
    ----------
    values : xarray.DataArray
    coords : mapping of str to scalar, sequence or slice, optional
        Labels by dim.
    squeeze : bool
        Whether dims with one selected label are dropped; else they stay.

    Raises
    ------
    ValueError
        For a label that the dim does not have.
    """
    for dim, labels in (coords or {}).items():
        if dim not in values.dims:
            continue
        wanted = labels if isinstance(labels, slice) else np.atleast_1d(labels)
        try:
            values = values.sel({dim: wanted})
        except KeyError as error:
            present = values[dim].to_numpy().tolist()
            missing = next((label for label in np.atleast_1d(labels).tolist() if label not in present), labels)
            raise ValueError(
                f"coords= asks for {missing!r}, which is no label of {dim!r}.{did_you_mean(missing, map(str, present))}"
            ) from error
        if squeeze and values.sizes[dim] == 1:
            values = values.squeeze(dim)
    return values
