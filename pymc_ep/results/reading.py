"""Read the groups of a result, fresh or loaded from disk."""

import json
from typing import Any, NoReturn

import numpy as np
import pymc as pm
import xarray as xr

from pymc_ep.compat import Container, group, group_names, has_group
from pymc_ep.exceptions import InvalidDataError, at_index, first_index
from pymc_ep.results.seal import altered, name_of, written

__all__ = ["fit_group", "fit_method", "fit_state", "hyper_modes", "latent_of", "posterior_moments", "settings"]

_ALTERED = ", so it is not what pymc_ep.fit returned; pass that, or a file that was saved from it, or fit anew."
_LARGEST = 1e150
"""Bound on the values of a state: squares of larger values overflow."""
_MODE_PREFIX = "hyper_mode_"
"""Prefix of the modes of hyperparameters in the group ``fit``."""


def fit_group(container: Container) -> xr.Dataset:
    """Return the group ``fit`` of a container that `pymc_ep.fit` made.

    Raises
    ------
    ValueError
        When the container has no such group, or the group lacks an attribute. The returned dataset raises it later,
        when an array is read that is missing or has changed since the fit.
    """
    fit = _own_group(container, "fit")
    for name in written(fit, "attribute"):
        _require(name in fit.attrs, "fit", "attribute", name)
    return _Group(fit.data_vars, fit.coords, fit.attrs)


def fit_method(container: Container) -> str:
    """Return the name of the method that fitted.

    Raises
    ------
    ValueError
        When the container has no group ``fit``, or the group's attribute ``method`` is missing or has changed.
    """
    fit = fit_group(container)
    _require("method" in fit.attrs, "fit", "attribute", "method")
    _require_unaltered(fit, "fit", "attribute", "method")
    return fit.attrs["method"]


def fit_state(container: Container) -> dict[str, np.ndarray]:
    """Return the engine's state, field by field, as arrays in memory.

    Raises
    ------
    ValueError
        When the container has no such group, a number in the group is not finite or too large for any fit, or an array
        is missing or has changed since the fit. The returned dict raises it later for a key that it lacks.
    TypeError
        For an object that is not a container.
    """
    group = _own_group(container, "fit_state")
    state = _Held("array", "fit_state", {str(name): field.to_numpy() for name, field in group.data_vars.items()})
    for name, values in state.items():
        if values.dtype.kind == "f" and not (inside := np.abs(values.astype(np.float64, copy=False)) < _LARGEST).all():
            index = first_index(~inside)
            raise InvalidDataError(
                f"The array {name!r} in the group 'fit_state' of the result has the value "
                f"{values[index]}{at_index(index)}{_ALTERED}"
            )
    for name in written(group, "array"):
        _require(name in state, "fit_state", "array", name)
        _require_unaltered(group, "fit_state", "array", name)
    return state


def hyper_modes(container: Container) -> dict[str, xr.DataArray]:
    """Return the modes of the hyperparameters by name, or the values at which a fit fixed them.

    Raises
    ------
    ValueError
        When the container is no result of a fit.
    """
    fit = fit_group(container)
    names = dict.fromkeys([*written(fit, "array"), *map(str, fit)])
    return {name.removeprefix(_MODE_PREFIX): fit[name] for name in names if name.startswith(_MODE_PREFIX)}


def posterior_moments(container: Container, what: str) -> xr.Dataset:
    """Return the posterior ``"mean"``, ``"sd"`` or ``"mode"`` of each variable for which a fit stored it.

    Raises
    ------
    ValueError
        When the container is no result of a fit.
    """
    fit_group(container)
    name = f"posterior_{what}"
    if not has_group(container, name):
        return xr.Dataset()
    moments = group(container, name)
    return _Group(moments.data_vars, moments.coords, moments.attrs)


def settings(container: Container) -> dict[str, Any]:
    """Return the settings with which `pymc_ep.fit` was called.

    Raises
    ------
    ValueError
        When the container has no group ``fit``, or the settings cannot be read. The returned dict raises it later for a
        setting that it lacks.
    """
    text = fit_group(container).attrs.get("settings", "{}")
    try:
        values = json.loads(text)
    except (TypeError, ValueError):
        values = None
    if not isinstance(values, dict):
        raise InvalidDataError(f"The attribute 'settings' of the result's group 'fit' is no JSON object{_ALTERED}")
    return _Held("setting", "fit", values)


def latent_of(container: Container, model: pm.Model) -> list[str]:
    """Return the names of a fit's latent variables; raise unless the model has these and the hyperparameters.

    Raises
    ------
    ValueError
        When the container is no result of a fit, or one of a model with other variables.
    """
    latent = settings(container)["latent"]
    missing = [name for name in [*latent, *hyper_modes(container)] if name not in model.named_vars]
    if missing:
        others = [rv.name for rv in model.free_RVs if rv.name not in latent]
        raise ValueError(
            f"The result is that of another model: it has {', '.join(map(repr, missing))}, and this model has "
            f"{', '.join(map(repr, others)) or 'nothing'} instead. Give the model of the fit, or fit this one."
        )
    return latent


class _Held(dict[str, Any]):
    """Entries of a group of a result, by name; a missing entry raises an InvalidDataError with its name."""

    def __init__(self, kind: str, group: str, entries: dict[str, Any]):
        super().__init__(entries)
        self._kind, self._group = kind, group

    def __missing__(self, name: str) -> NoReturn:
        raise InvalidDataError(_absent(self._group, self._kind, name))


class _Group(xr.Dataset):
    """Group of a result, which raises InvalidDataError when an array is read that is missing or has changed.

    ``in`` is True for all arrays that the fit wrote, missing ones included.
    """

    __slots__ = ()

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or name in written(self, "array")

    def __getitem__(self, name: Any) -> Any:
        if isinstance(name, str) and (group_name := name_of(self)):
            _require(name in self.variables or name in self.dims, group_name, "array", name)
            _require_unaltered(self, group_name, "array", name)
        return super().__getitem__(name)


def _require(there: bool, group: str, kind: str, name: str) -> None:
    if not there:
        raise InvalidDataError(_absent(group, kind, name))


def _absent(group: str, kind: str, name: str) -> str:
    return f"The group {group!r} of the result has no {kind} {name!r}{_ALTERED}"


def _require_unaltered(dataset: xr.Dataset, group: str, kind: str, name: str) -> None:
    if altered(dataset, kind, name):
        raise InvalidDataError(f"The {kind} {name!r} in the group {group!r} of the result has changed{_ALTERED}")


def _own_group(container: Container, name: str) -> xr.Dataset:
    if not hasattr(container, "groups"):
        raise TypeError(
            f"A {type(container).__name__} is no result of a fit; pass what pymc_ep.fit returned, or a file of it that "
            f"ArviZ has read."
        )
    if not has_group(container, name):
        names = ", ".join(group_names(container)) or "none"
        raise InvalidDataError(
            f"The container has no group {name!r} (its groups: {names}), so pymc_ep did not make it; "
            f"pass what pymc_ep.fit returned, or a file that was saved from it."
        )
    return group(container, name)
