"""The container that a fit returns: groups, dims, coordinates and attributes. Nothing is computed here."""

import json
import warnings
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np
import pymc as pm
import xarray as xr
from pymc.backends.arviz import coords_and_dims_for_inferencedata, find_constants, find_observations
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant, Variable

from pymc_ep.compat import Container, dim_names, make_container, to_dataset
from pymc_ep.exceptions import InvalidDataError, UnsupportedModelError
from pymc_ep.results.seal import sealed

__all__ = ["build_container", "check_dims", "labelled", "model_dims"]

_OWN_DIMS = ("iteration", "hyper_iteration", "hyper_point")
"""Dims of the group ``fit``, which no model may use."""
_SAMPLE_DIMS = ("chain", "draw")
"""Leading dims of draws."""


def build_container(
    model: pm.Model,
    *,
    posterior: Mapping[str, np.ndarray] | None,
    log_likelihood: Mapping[str, np.ndarray] | None,
    moments: Mapping[str, Mapping[str, np.ndarray]],
    fit: Mapping[str, tuple[Sequence[str], Any]],
    fit_attrs: Mapping[str, Any],
    fit_state: Mapping[str, np.ndarray],
    others: Mapping[str, xr.Dataset] | None = None,
) -> Container:
    """Put the parts of a solution into a container of the type that `pymc.sample` returns.

    Parameters
    ----------
    model : pymc.Model
        Gives dims, coordinates, observed and constant data.
    posterior : mapping of str to ndarray, shape (chain, draw, *shape), or None
        Joint draws of the free variables and Deterministics; with None there is no group ``posterior``.
    log_likelihood : mapping of str to ndarray, shape (chain, draw, *shape), or None
        Log density of every observation at every draw.
    moments : mapping of str to mapping of str to ndarray
        Posterior means, standard deviations and modes by variable, each in a group of its own, such as
        ``posterior_mean``: in one group ``level_sd`` could be a variable, or the standard deviation of ``level``.
    fit : mapping of str to (dims, values)
        Variables of the group ``fit``; `model_dims` gives the dims of a model variable.
        Model coordinates are attached; scalars have no dims.
    fit_attrs : mapping
        Attributes of the group ``fit``: str, int or float, and ``settings``, a mapping that is stored as
        one JSON string (netCDF knows neither None nor bool nor mappings).
    fit_state : mapping of str to ndarray
        The engine's state, one array a field.
    others : mapping of str to xarray.Dataset, optional
        Further groups, stored as they are, unless a group made here has the same name.

    Returns
    -------
    arviz.InferenceData or xarray.DataTree

    Raises
    ------
    UnsupportedModelError
        When a dim of the model has a name that the container needs, see `check_dims`.
    TypeError
        When an attribute cannot be stored.
    """
    check_dims(model)
    coords, dims = coords_and_dims_for_inferencedata(model)
    shared = _library_attrs()

    def labelled(variables: Mapping[str, np.ndarray], **options: Any) -> xr.Dataset:
        given = {"dims": dims, **options}
        return to_dataset(variables, coords=_matching_coords(coords, given["dims"], variables), attrs=shared, **given)

    groups = {}
    if posterior is not None:
        groups["posterior"] = labelled(posterior, sample_dims=_SAMPLE_DIMS)
    if log_likelihood is not None:
        # A row of counts of categories has one.
        of_rows = {n: list(dims.get(n, ()))[: v.ndim - len(_SAMPLE_DIMS)] for n, v in log_likelihood.items()}
        groups["log_likelihood"] = labelled(
            log_likelihood, sample_dims=_SAMPLE_DIMS, skip_event_dims=True, dims=of_rows
        )
    groups |= {name: sealed(name, labelled(values), free=True) for name, values in moments.items() if values}
    groups["observed_data"] = labelled(find_observations(model))
    if constants := find_constants(model):
        groups["constant_data"] = labelled(constants)
    of_fit = labelled(
        {name: np.asarray(values) for name, (_, values) in fit.items()},
        dims={name: list(given) for name, (given, _) in fit.items()},
    )
    groups["fit"] = sealed("fit", of_fit, _netcdf_attrs(fit_attrs))
    state = {name: ([f"{name}_dim_{i}" for i in range(np.ndim(field))], field) for name, field in fit_state.items()}
    groups["fit_state"] = sealed("fit_state", xr.Dataset(state, attrs=shared))
    return make_container(groups | {name: given for name, given in (others or {}).items() if name not in groups})


def labelled(
    model: pm.Model, variables: Mapping[str, tuple[str, np.ndarray]], new: Mapping[str, Any] | None = None
) -> xr.Dataset:
    """Return a dataset of arrays that have the dims and coordinates of model variables.

    Parameters
    ----------
    model : pymc.Model
    variables : mapping of str to (str, ndarray)
        By name in the dataset: the model variable whose dims the array has, and the values of the array.
    new : mapping of str to array_like, optional
        Coordinates of some dims that differ from the model's.
    """
    coords = coords_and_dims_for_inferencedata(model)[0] | dict(new or {})
    dims = {name: list(model_dims(model, of))[: values.ndim] for name, (of, values) in variables.items()}
    arrays = {name: values for name, (_, values) in variables.items()}
    return to_dataset(arrays, coords=_matching_coords(coords, dims, arrays), dims=dims, attrs=_library_attrs())


def _matching_coords(
    coords: Mapping[str, Any], dims: Mapping[str, Sequence[str | None]], variables: Mapping[str, np.ndarray]
) -> dict[str, Any]:
    """Return the coordinates whose length agrees with every array, as `pymc.sample` does; warn of others.

    PyMC does not compare the length of a Deterministic with its dims.
    """
    kept = dict(coords)
    for name, values in variables.items():
        for dim, length in zip(reversed(dims.get(name, ())), reversed(np.shape(values))):
            if dim in kept and len(kept[dim]) != length:
                warnings.warn(
                    f"The coordinates of the dim {dim!r} are left out of the result: there are {len(kept.pop(dim))}, "
                    f"but {name!r} has {length} values along it. Give {name!r} dims of its own length.",
                    UserWarning,
                    stacklevel=2,
                )
    return kept


def model_dims(model: pm.Model, name: str) -> tuple[str, ...]:
    """Return the dims that the model variable `name` has in the container, as `pymc.sample` names them."""
    _, dims = coords_and_dims_for_inferencedata(model)
    return dim_names(name, model[name].ndim, dims.get(name, ()))


def check_dims(model: pm.Model) -> None:
    """Raise when a dim of the model has a name that the group ``fit`` needs for its iterations and points.

    Raise as well for labels of several parts, and where a variable and its dims differ in length. Call it before a long
    computation; `build_container` calls it again.
    """
    for dim in _OWN_DIMS:
        if dim in model.coords:
            raise UnsupportedModelError(
                f"The model has a dim {dim!r}, which the group 'fit' of the result needs for itself; "
                f"rename that dim in the model."
            )
    for dim, labels in model.coords.items():
        if pairs := [label for label in labels or () if isinstance(label, tuple | list)]:
            raise UnsupportedModelError(
                f"The dim {dim!r} has the label {pairs[0]!r}, and results hold no labels of several parts, as those of "
                f"a pandas.MultiIndex: make them strings, such as {' '.join(map(str, pairs[0]))!r}."
            )
    for rv in model.basic_RVs:
        observed = rv in model.observed_RVs
        shape = _known_shape(model.rvs_to_values[rv]) if observed else rv.type.shape
        for axis, (dim, size) in enumerate(zip(model.named_vars_to_dims.get(rv.name, ()), shape)):
            labels = model.coords.get(dim)
            if labels is not None and size is not None and size != len(labels):
                what = "observations" if observed else "values"
                raise InvalidDataError(
                    f"{rv.name!r} has {size} {what} along axis {axis}, but its dim {dim!r} has {len(labels)} labels; "
                    f"give it a dim of its own, or none."
                )


def _known_shape(value: Variable) -> tuple[int, ...]:
    """Return the shape of data; () for data that are computed from other data."""
    if isinstance(value, Constant):
        return np.shape(value.data)
    return value.get_value(borrow=True).shape if isinstance(value, SharedVariable) else ()


@cache
def _installed() -> str:
    """Return the installed version of this package, looked up once."""
    try:
        return version("pymc_ep")
    except PackageNotFoundError:  # run from a source tree that is not installed
        return "unknown"


def _library_attrs() -> dict[str, str]:
    """Return the attributes that name the library and its version."""
    return {"inference_library": "pymc_ep", "inference_library_version": _installed()}


def _netcdf_attrs(attrs: Mapping[str, Any]) -> dict[str, str | int | float]:
    """Return attributes in types that netCDF takes, with ``settings`` as JSON; raise a TypeError for other types."""
    stored: dict[str, str | int | float] = {}
    for name, value in attrs.items():
        if name == "settings":
            stored[name] = json.dumps(value, default=_to_python)
            continue
        value = _to_python(value) if isinstance(value, np.generic) else value
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise TypeError(
                f"The attribute {name!r} is a {type(value).__name__}, but attributes are str, int or float; "
                f"put it into 'settings' or make it a variable of the group 'fit'."
            )
        stored[name] = value
    return stored


def _to_python(value: object) -> object:
    """Return NumPy values as Python's own, and all else that JSON does not know as text."""
    return value.tolist() if isinstance(value, np.generic | np.ndarray) else str(value)
