"""Inputs of predictions of bilinear models: new cells, offsets and likelihood parameters."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pymc as pm
from numpy.typing import ArrayLike

from pymc_ep.exceptions import InvalidDataError
from pymc_ep.models.bilinear.compiled import CompiledBilinear
from pymc_ep.models.bilinear.distribution import require_unmasked
from pymc_ep.models.bilinear.engine.values import NewCells
from pymc_ep.results.row_labels import numbered_rows, row_dims

__all__ = ["matrix_names", "offsets_and_parameters", "read_cells"]

_INDICES = ("rows", "cols")
"""Keys of the indices of new cells, left side first."""
_MOST_GAPS = 10**6
"""Largest number of new rows without a cell. More of them raise an error: row numbers then are probably something else,
such as user ids, and dense arrays of rows would be large."""


def matrix_names(form: CompiledBilinear) -> tuple[str, str]:
    """Return the names of the left and of the right matrix."""
    left, right = (matrix.name for matrix in form.form.matrices)
    return left, right


def read_cells(
    model: pm.Model, form: CompiledBilinear, theta: np.ndarray, given: Mapping[str, ArrayLike], new: int | None = None
) -> NewCells:
    """Return the new cells that a mapping describes.

    Parameters
    ----------
    model : pymc.Model
        Model with the labels of rows.
    form : CompiledBilinear
    theta : ndarray, (p,)
        Unconstrained hyperparameters.
    given : mapping of str to array_like
        ``rows`` and ``cols``, positions or labels, and ``observed``. Also ``offset``, without biases, and parameters of
        the likelihood; a value that all cells of the fit share may be left out.
    new : {0, 1}, optional
        Side, 0 left or 1 right, whose index counts new rows. If this index is a scalar, by default 0, it applies to all
        cells.

    Raises
    ------
    InvalidDataError
        For indices out of range, and observations outside their domain.
    """
    name, needed, parameters = form.form.cells.name, (*_INDICES, "observed"), _cell_parameters(form, theta)
    cells = dict(given) if isinstance(given, Mapping) else {}
    if new is not None and isinstance(given, Mapping):
        cells.setdefault(_INDICES[new], 0)
    wrong = [f"{key!r} is missing" for key in needed if key not in cells]
    wrong += [f"there is no {key!r}" for key in cells if key not in (*needed, *parameters)]
    if wrong:
        raise InvalidDataError(
            f"New cells of {name!r} are a mapping of 'rows', 'cols' and 'observed', and maybe of "
            f"{', '.join(map(repr, parameters))}: {wrong[0]}."
        )
    for key in needed:
        require_unmasked(f"New cells of {name!r} have {key}", cells[key])
    y, indices = np.atleast_1d(cells["observed"]), [np.asarray(cells[key]) for key in _INDICES]
    indices = [np.full(y.shape, i) if k == new and not i.ndim else np.atleast_1d(i) for k, i in enumerate(indices)]
    for k, (key, dim) in enumerate(zip(_INDICES, row_dims(model, matrix_names(form)))):
        if indices[k].dtype.kind in "OSU" and k != new:
            indices[k] = numbered_rows(model, dim, indices[k], form.shapes[k][0], f"{key} of {name!r}")[0]
    for key, index in zip(_INDICES, indices):
        if index.size and not np.issubdtype(index.dtype, np.integer):
            raise InvalidDataError(
                f"New cells of {name!r} have {key} of type {index.dtype}; give whole numbers, counted from zero, or "
                f"labels of fitted rows."
            )
    form.require_cells(y, *(np.zeros_like(index) if k == new else index for k, index in enumerate(indices)))
    if new is not None:
        empty = (
            f", and with {y.size} cells nearly all of so many are empty; number rows without gaps, as by numpy.unique"
        )
        for bad, why in ((indices[new] < 0, "; correct it"), (indices[new] >= _MOST_GAPS + y.size, empty)):
            if bad.any():
                k = int(np.argmax(bad))
                raise InvalidDataError(
                    f"New cells of {name!r} have {indices[new][k]} at index {k} of {_INDICES[new]}, but these count "
                    f"new rows of {form.form.matrices[new].name!r} from 0{why}."
                )
    others = [_for_all(name, key, cells.get(key), values, y.size) for key, values in parameters.items()]
    form.require_numbers(others[0], others[1:])
    return NewCells(y.astype(float), indices[0], indices[1], others[0], tuple(others[1:]))


def offsets_and_parameters(
    form: CompiledBilinear, theta: np.ndarray, given: Mapping[str, Any]
) -> tuple[float, tuple[float, ...]]:
    """Return one offset and parameters of the likelihood: as given, or the value shared by all cells of the fit.

    Raises
    ------
    InvalidDataError
        If a value is not given and differs from cell to cell in the fit.
    """
    name, parameters = form.form.cells.name, _cell_parameters(form, theta)
    if unknown := [key for key in given if key not in parameters]:
        raise InvalidDataError(
            f"There is no {unknown[0]!r} of {name!r} that cells share; there is {', '.join(map(repr, parameters))}."
        )
    first, *others = (_for_all(name, key, given.get(key), values, 1) for key, values in parameters.items())
    form.require_numbers(first, others)
    return float(first[0]), tuple(float(parameter[0]) for parameter in others)


def _cell_parameters(form: CompiledBilinear, theta: np.ndarray) -> dict[str, np.ndarray]:
    """Return offset and likelihood parameters of the cells of the fit, (n,) each, by name."""
    prior = form.prior(theta)
    return {"offset": prior.offset} | dict(zip(form.form.cells.site.parameters, prior.parameters))


def _for_all(name: str, key: str, given: ArrayLike | None, fitted: np.ndarray, size: int) -> np.ndarray:
    """Return values for new cells, (size,): as given, or else the value shared by all cells of the fit."""
    if given is None:
        if np.ptp(fitted) > 0:
            raise InvalidDataError(
                f"The {key} of {name!r} differs from cell to cell in the fit; give that of the new cells as {key!r}."
            )
        given = fitted[0]
    values = np.asarray(given, dtype=float)
    if values.shape not in ((), (1,), (size,)):
        raise InvalidDataError(
            f"The {key} of new cells of {name!r} has the shape {values.shape}; give one number, or one for each of the "
            f"{size} cells."
        )
    return np.broadcast_to(values, (size,))
