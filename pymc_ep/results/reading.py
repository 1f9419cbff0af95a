"""Read the groups of a result, fresh or loaded from disk."""

import json
from typing import Any

import numpy as np
import xarray as xr

from pymc_ep.compat import Container, group, group_names, has_group

__all__ = ["fit_group", "fit_state", "hyper_modes", "posterior_moments", "settings"]

_MODE_PREFIX = "hyper_mode_"
"""Prefix of the modes of hyperparameters in the group ``fit``."""


def fit_group(container: Container) -> xr.Dataset:
    """Return the group ``fit`` of a container that `pymc_ep.fit` made.

    Raises
    ------
    ValueError
        When the container has no such group.
    """
    return _own_group(container, "fit")


def fit_state(container: Container) -> dict[str, np.ndarray]:
    """Return the engine's state, field by field, as arrays in memory.

    Raises
    ------
    ValueError
        When the container has no such group.
    TypeError
        For an object that is not a container.
    """
    return {str(name): field.to_numpy() for name, field in _own_group(container, "fit_state").data_vars.items()}


def hyper_modes(container: Container) -> dict[str, xr.DataArray]:
    """Return the modes of the hyperparameters by name, or the values at which they were held.

    Raises
    ------
    ValueError
        When the container is no result of a fit.
    """
    fit = fit_group(container)
    return {name.removeprefix(_MODE_PREFIX): fit[name] for name in map(str, fit) if name.startswith(_MODE_PREFIX)}


def posterior_moments(container: Container, what: str) -> xr.Dataset:
    """Return the posterior ``"mean"``, ``"sd"`` or ``"mode"`` of each variable for which a fit stored it.

    Raises
    ------
    ValueError
        When the container is no result of a fit.
    """
    fit_group(container)
    name = f"posterior_{what}"
    return group(container, name) if has_group(container, name) else xr.Dataset()


def settings(container: Container) -> dict[str, Any]:
    """Return the settings with which `pymc_ep.fit` was called.

    Raises
    ------
    ValueError
        When the container has no group ``fit``.
    """
    return json.loads(fit_group(container).attrs.get("settings", "{}"))


def _own_group(container: Container, name: str) -> xr.Dataset:
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
