"""Labels of the rows of matrices: a matrix is given by its name or dim, its rows by label or position."""

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import pymc as pm
import xarray as xr
from numpy.typing import ArrayLike

from pymc_ep.compat import Container
from pymc_ep.results.container import model_dims
from pymc_ep.results.reading import posterior_moments

__all__ = ["earlier_rows", "labelled_rows", "numbered_rows", "require_labels", "row_dims", "row_labels", "side_named"]


def row_dims(model: pm.Model, matrices: Sequence[str]) -> tuple[str, str]:
    """Return the dims of the rows of two matrices."""
    left, right = (model_dims(model, name)[0] for name in matrices)
    return left, right


def labelled_rows(model: pm.Model, name: str) -> tuple[str, np.ndarray | None]:
    """Return the dim of a variable's rows, and their labels or None; without a dim, the variable's name and None."""
    dims = model.named_vars_to_dims.get(name)
    if not dims or dims[0] is None:
        return name, None
    labels = model.coords.get(dims[0])
    return dims[0], None if labels is None else np.asarray(labels)


def row_labels(model: pm.Model, dim: str, size: int) -> np.ndarray:
    """Return the labels of a dim, (size,), or positions where the dim has no labels."""
    labels = model.coords.get(dim)
    return np.arange(size) if labels is None else np.asarray(labels)


def numbered_rows(model: pm.Model, dim: str, given: ArrayLike, size: int, what: str) -> tuple[np.ndarray, np.ndarray]:
    """Return positions and labels of rows that are given by position or label; `what` names them in messages."""
    labels, wanted = row_labels(model, dim, size), np.atleast_1d(given)
    if isinstance(given, Mapping):
        raise ValueError(
            f"{what} is a {type(given).__name__}; give labels or positions of rows, or what fold_in returns."
        )
    if not wanted.size or wanted.ndim > 1:
        raise ValueError(f"{what} has the shape {wanted.shape}; give one row, or a list of these.")
    by_position = np.issubdtype(wanted.dtype, np.integer) and not np.issubdtype(labels.dtype, np.number)
    names = list(range(size)) if by_position else labels.tolist()
    positions = {name: k for k, name in enumerate(names)}
    if unknown := [row for row in wanted.tolist() if row not in positions]:
        kind = "positions" if by_position else "labels"
        raise ValueError(
            f"{what} holds {unknown[0]!r}, but there is no such row: {kind} are {names[0]!r} to {names[-1]!r}."
        )
    times = Counter(names)
    if twice := [row for row in wanted.tolist() if times[row] > 1]:
        raise ValueError(
            f"{what} holds {twice[0]!r}, which is the label of {times[twice[0]]} rows; give the coordinates of {dim!r} "
            f"labels that differ."
        )
    numbers = np.array([positions[row] for row in wanted.tolist()])
    return numbers, labels[numbers]


def side_named(model: pm.Model, names: Sequence[str], key: str) -> int:
    """Return the side, 0 or 1, of the matrix with the name `key`, or else with rows of the dim `key`."""
    dims = row_dims(model, names)
    sides = [k for k in range(2) if key == names[k]] or [k for k in range(2) if key == dims[k]]
    if len(sides) == 1 or (sides and names[0] == names[1]):
        return sides[0]
    if sides:
        raise ValueError(f"{key!r} are rows of both {names[0]!r} and {names[1]!r}; name one of these matrices instead.")
    ways = " or ".join(f"{dim!r} (the rows of {name!r})" for name, dim in zip(names, dims))
    raise ValueError(f"{key!r} are not the rows of a matrix of this model; use {ways}.")


def earlier_rows(idata: Container, model: pm.Model, name: str) -> np.ndarray | None:
    """Return, for each row of a variable, (n,), the row of the same label in an earlier fit, -1 for a new label.

    Return None where the rows have no labels in the model or in the fit, or the fit has no such variable.
    """
    dims, held = model_dims(model, name), _held(idata, name)
    labels = model.coords.get(dims[0]) if dims else None
    if held is None or labels is None or dims[0] not in held.coords:
        return None
    positions = {label: k for k, label in enumerate(held[dims[0]].to_numpy().tolist())}
    return np.array([positions.get(label, -1) for label in np.asarray(labels).tolist()], dtype=np.int64)


def _held(idata: Container, name: str) -> xr.DataArray | None:
    """Return the posterior means of a variable in a result, or else its modes; None without either."""
    stored = (posterior_moments(idata, what) for what in ("mean", "mode"))
    return next((dataset[name] for dataset in stored if name in dataset), None)


def require_labels(idata: Container, model: pm.Model, name: str) -> None:
    """Raise a ValueError where both the model and the fit have labels of a matrix's rows, and these labels differ."""
    dim = model_dims(model, name)[0]
    held, labels = _held(idata, name), model.coords.get(dim)
    if (
        labels is None
        or held is None
        or dim not in held.coords
        or held.indexes[dim].equals(xr.IndexVariable(dim, list(labels)).to_index())
    ):
        return
    raise ValueError(
        f"The coordinates of {dim!r} are not those of the fit, which are the labels of its rows of {name!r}; give the "
        f"model those of the fit, in their order, or fit anew."
    )
