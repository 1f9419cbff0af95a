"""Log densities of observations at many draws of their predictors, one row per draw."""

from collections.abc import Callable
from typing import Any

import numpy as np

from pymc_ep.numerics.backend.namespace import Array
from pymc_ep.numerics.memory import chunks

__all__ = ["BLOCK", "by_rows"]

BLOCK = 2**15
"""Elements of an array that are processed at a time: such a block and its temporaries fit in the cache."""

Shapes = tuple[tuple[int | None, int | None], ...]


def by_rows(
    compiled_for: Callable[[Shapes], Callable[..., Any]], y: Array, eta: Array, *parameters: Array
) -> np.ndarray:
    """Return log t, of the broadcast shape of the arguments; if this has two or more axes, the first is the draws.

    Parameters
    ----------
    compiled_for : callable
        ``compiled_for(shapes)`` returns a function ``(y, eta, *parameters) -> [log t]`` of matrices with these static
        shapes, in which sides of 1 are broadcast.
    y, eta, *parameters : array_like
    """
    arrays = [np.asarray(array, dtype=np.float64) for array in (y, eta, *parameters)]
    shape = np.broadcast_shapes(*(array.shape for array in arrays))
    rows, columns = (shape[0], shape[1:]) if len(shape) > 1 else (1, shape)
    matrix = rows, int(np.prod(columns))
    y, eta, *others = (np.broadcast_to(array, shape).reshape(matrix) for array in arrays)
    y, *others = (_told_once(array) for array in (y, *others))
    arrays = [y, eta, *others]
    lengths = tuple((1 if len(a) == 1 else None, 1 if a.shape[1] == 1 else None) for a in arrays)
    evaluate = compiled_for((lengths[0], (None, None), *lengths[2:]))
    out = np.empty(eta.shape)
    for block in chunks(len(eta), eta.shape[1], BLOCK):
        out[block] = evaluate(*(a if len(a) == 1 else a[block] for a in arrays))[0]
    return out.reshape(shape)


def _told_once(array: np.ndarray) -> np.ndarray:
    """Return a matrix cut to one row, or column, if all are equal, so that log t is computed once for all of them."""
    if array.size and (array == array[:1]).all():
        array = array[:1]
    if array.size and (array == array[:, :1]).all():
        array = array[:, :1]
    return array
