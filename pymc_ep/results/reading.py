"""Read what a fit has put into its container, fresh or loaded from disk."""

import json
from typing import Any

import numpy as np
import xarray as xr

from pymc_ep.compat import group, group_names, has_group

__all__ = ["fit_group", "fit_state", "moments_of", "settings"]


def fit_group(container: Any) -> xr.Dataset:
    """Return the group ``fit`` of a container that `pymc_ep.fit` made.

    Raises
    ------
    ValueError
        When the container has no such group.
    """
    return _own_group(container, "fit")


def fit_state(container: Any) -> dict[str, np.ndarray]:
    """Return the engine's state, field by field, as arrays in memory.

    Raises
    ------
    ValueError
        When the container has no such group.
    TypeError
        For what is no container.
    """
    return {str(name): field.to_numpy() for name, field in _own_group(container, "fit_state").data_vars.items()}


def settings(container: Any) -> dict[str, Any]:
    """Return the settings with which `pymc_ep.fit` was called.

    Raises
    ------
    ValueError
        When the container has no group ``fit``.
    """
    return json.loads(fit_group(container).attrs.get("settings", "{}"))


def _own_group(container: Any, name: str) -> xr.Dataset:
    if not hasattr(container, "groups"):
        raise TypeError(
            f"A {type(container).__name__} is no result of a fit; pass what pymc_ep.fit returned, or a file of it that "
            f"ArviZ has read."
        )
    if not has_group(container, name):
        found = ", ".join(group_names(container)) or "none"
        raise ValueError(
            f"The container has no group {name!r} (its groups: {found}), so pymc_ep did not make it; "
            f"pass what pymc_ep.fit returned, or a file that was saved from it."
        )
    return group(container, name)


def moments_of(container: Any, name: str) -> tuple[xr.DataArray, xr.DataArray] | None:
    """Return the posterior mean and standard deviation of a variable, or None where the fit has none.

    Raises
    ------
    ValueError
        When the container has no group ``fit``.
    """
    fit = fit_group(container)
    if f"{name}_mean" not in fit or f"{name}_sd" not in fit:
        return None
    return fit[f"{name}_mean"].rename(name), fit[f"{name}_sd"].rename(name)
