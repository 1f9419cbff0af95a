"""Positions of rows that users give by the labels of a model's dims."""

from typing import Any

import numpy as np
import pandas as pd
import pymc as pm
from pytensor.graph.basic import Variable
from pytensor.tensor.variable import TensorVariable

from pymc_ep.exceptions import InvalidDataError

__all__ = ["numbered", "positions"]


def numbered(what: str, given: Any, variable: TensorVariable) -> np.ndarray:
    """Return indices, (n,), of rows of a variable: `given` if it has numbers, else the positions of these labels.

    Labels are the coordinates of the variable's first dim.

    Raises
    ------
    InvalidDataError
        As `positions`.
    """
    values = np.asarray(given)
    if values.dtype.kind == "O":
        # Columns of a table of several types.
        values = np.array(values.tolist())
    if values.dtype.kind in "biuf":
        return values
    model = pm.Model.get_context(error_if_none=False)
    dims = model.named_vars_to_dims.get(variable.name) if model is not None else None
    labels = model.coords.get(dims[0]) if dims else None
    return positions(what, given, labels, variable.type.shape[0])


def positions(what: str, given: Any, labels: Any, size: int | None) -> np.ndarray:
    """Return the positions of rows, (n,), that are given by label, or by position.

    Parameters
    ----------
    what : str
        Names the argument in messages.
    given : array_like, (n,)
        Labels; positions where `labels` is None; integers are positions too where labels are no numbers.
    labels : sequence, optional
        Labels of all rows.
    size : int, optional
        Number of rows, where known.

    Raises
    ------
    InvalidDataError
        For unknown rows, and arrays that are no vectors or symbolic.
    """
    if isinstance(given, Variable):
        raise InvalidDataError(f"{what} is symbolic; give arrays, or write pm.Bernoulli of a difference of utilities.")
    values = np.asarray(given)
    if values.ndim != 1:
        raise InvalidDataError(f"{what} has the shape {values.shape}; give a vector, one entry for each.")
    names = None if labels is None else pd.Index(labels)
    integers = np.issubdtype(values.dtype, np.integer)
    if names is None or (integers and not pd.api.types.is_numeric_dtype(names.dtype)):
        n = len(names) if names is not None else size
        kind = f"positions are 0 to {n - 1}" if n is not None else "positions are whole numbers from 0"
        if not (integers or np.issubdtype(values.dtype, np.floating)):
            raise InvalidDataError(f"{what} has {values.tolist()[0]!r}, but its dim has no labels: {kind}.")
        bad = (values < 0) | (values != np.round(values)) | (values >= (np.inf if n is None else n))
        indices = values
    else:
        if not names.is_unique:
            twice = names[names.duplicated()][0]
            raise InvalidDataError(f"{what} needs labels that differ, and {twice!r} is that of several rows.")
        indices, kind = names.get_indexer(values), f"labels are {names[0]!r} to {names[-1]!r}"
        bad = indices < 0
    if bad.any():
        k = int(np.argmax(bad))
        raise InvalidDataError(f"{what} has {values.tolist()[k]!r} at index {k}, but there is no such row: {kind}.")
    return indices.astype(np.int64)
