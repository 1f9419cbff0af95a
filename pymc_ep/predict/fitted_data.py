"""Data of a model that have changed since its fit, and their values in the fit."""

import numpy as np
import pymc as pm
import xarray as xr
from pytensor.compile.sharedvalue import SharedVariable

from pymc_ep.compat import Container, group, has_group

__all__ = ["changed_data"]


def changed_data(idata: Container, model: pm.Model) -> dict[SharedVariable, np.ndarray]:
    """Return the shared variables whose values have changed since a fit, mapped to their values in the fit.

    The container holds values of the fit as ``constant_data``, as observations, and as lengths of dims. Variables added
    to the model after the fit are in none of these.
    """
    groups = ("fit", "constant_data", "observed_data")
    held = {name: group(idata, name) if has_group(idata, name) else xr.Dataset() for name in groups}
    fitted_values: dict[SharedVariable, np.ndarray] = {}
    for name, values in held["constant_data"].items():
        if isinstance(variable := model.named_vars.get(str(name)), SharedVariable):
            fitted_values[variable] = values.to_numpy()
    for variable in model.observed_RVs:
        values = model.rvs_to_values[variable]
        if values.owner is not None and len(values.owner.inputs) == 1:
            (values,) = values.owner.inputs  # a cast of the data
        if isinstance(values, SharedVariable) and variable.name in held["observed_data"]:
            fitted_values[values] = held["observed_data"][variable.name].to_numpy()
    sizes = {str(dim): size for dataset in held.values() for dim, size in dataset.sizes.items()}
    for dim, length in model.dim_lengths.items():
        if isinstance(length, SharedVariable) and dim in sizes:
            fitted_values[length] = np.asarray(sizes[dim])
    return {
        variable: values.astype(variable.dtype)
        for variable, values in fitted_values.items()
        if not np.array_equal(variable.get_value(borrow=True), values, equal_nan=values.dtype.kind == "f")
    }
