"""Entries of a linear map that is given by its products only.

Curtis, Powell and Reid (1974) read several columns of a sparse matrix off one product, if no row has entries in two of
them. Here the sparsity pattern is unknown, but local: an output depends on unknowns that lie close together. The
unknowns are divided into cells. One product is with a comb, a vector with a tooth of 1 at the same place in each cell.
A second product, with teeth 1, 2, 3 and so on, identifies the tooth that each output depends on. Cells grow until
products with random vectors confirm the matrix.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import product

import numpy as np
import scipy.sparse

__all__ = ["MOST_UNKNOWNS", "probe"]

MOST_UNKNOWNS = 2**14
"""Largest number of unknowns of a map that is not local at which `probe` returns its matrix: each column takes one
product."""
_WIDTHS = 4, 8, 16, 32
"""Least widths of cells, tried in turn. Each doubling takes four times as many products in two dimensions; maps
that are wider than the last count as not local."""
_NOISE = 1e-13
"""Size of an output, relative to the largest, below which it is a zero with a rounding error, as from a convolution by
FFT."""
_INTEGER_TOL = 0.05
"""Largest distance of a ratio from an integer for it to count as the index of a tooth. Rounding is far smaller; a ratio
that mixes two teeth is caught here or by the random products."""
_PRODUCT_TOL = 1e-10
"""Largest difference between two computations of a product, relative to the largest entry: rounding with a margin."""


def probe(forward: Callable[[np.ndarray], np.ndarray], shape: Sequence[int]) -> scipy.sparse.csr_array | None:
    """Return the matrix of a linear map, (n, N); None if it is not local and N exceeds `MOST_UNKNOWNS`.

    Parameters
    ----------
    forward : callable
        Takes x of the given shape, returns (n,).
    shape : sequence of int
        Shape of x; N is the product of its sides.
    """
    shape = tuple(shape)
    unknowns = int(np.prod(shape))
    random = np.random.default_rng(0).standard_normal((2, *shape))
    expected = np.array([forward(x) for x in random])
    for width in _WIDTHS:
        # Two products for each place in a cell: no fewer than one for each column.
        if 2 * width ** len(shape) >= unknowns:
            break
        matrix = _by_cells(forward, shape, width)
        if matrix is not None and _agrees(matrix, random, expected):
            return matrix
    if unknowns > MOST_UNKNOWNS:
        return None
    return _by_columns(forward, shape)


def _agrees(matrix: scipy.sparse.csr_array, random: np.ndarray, expected: np.ndarray) -> bool:
    image = (matrix @ random.reshape(len(random), -1).T).T
    return bool(np.abs(image - expected).max(initial=0.0) <= _PRODUCT_TOL * np.abs(expected).max(initial=0.0))


def _by_cells(
    forward: Callable[[np.ndarray], np.ndarray], shape: tuple[int, ...], width: int
) -> scipy.sparse.csr_array | None:
    """Return the matrix of a map whose outputs depend on one tooth of each comb at most; None for other maps."""
    rows, columns, values, n = [], [], [], 0
    for places in _teeth(shape, width):
        teeth = np.ravel_multi_index(np.ix_(*places), shape).ravel()
        comb, numbered = np.zeros(shape), np.zeros(shape)
        comb.flat[teeth] = 1.0
        numbered.flat[teeth] = np.arange(1.0, len(teeth) + 1)
        # A row whose only entry a is at tooth k gives a and a k, of ratio k.
        response, ratio = forward(comb), forward(numbered)
        n = len(response)
        (seen,) = np.nonzero(np.abs(response) > _NOISE * np.abs(response).max(initial=0.0))
        ratio = ratio[seen] / response[seen]
        number = np.rint(ratio)
        if np.any(np.abs(ratio - number) > _INTEGER_TOL) or np.any((number < 1) | (number > len(teeth))):
            return None
        rows.append(seen)
        columns.append(teeth[number.astype(int) - 1])
        values.append(response[seen])
    entries = np.concatenate(values), (np.concatenate(rows), np.concatenate(columns))
    return scipy.sparse.csr_array(entries, shape=(n, int(np.prod(shape))))


def _teeth(shape: tuple[int, ...], width: int) -> Iterator[tuple[np.ndarray, ...]]:
    """Yield the teeth for each place in a cell, as indices along each axis; cells are `width` wide or wider.

    Axes are divided evenly, so that teeth keep their distance across a periodic border too.
    """
    along = []
    for length in shape:
        starts = np.arange(cells := max(1, length // width)) * length // cells
        widths = np.diff(np.append(starts, length))
        along.append([starts[widths > place] + place for place in range(int(widths.max()))])
    return product(*along)


def _by_columns(forward: Callable[[np.ndarray], np.ndarray], shape: tuple[int, ...]) -> scipy.sparse.csr_array:
    unit, columns = np.zeros(shape), []
    for index in range(unit.size):
        unit.flat[index] = 1.0
        column = forward(unit)
        columns.append(scipy.sparse.csr_array(np.where(np.abs(column) > _NOISE * np.abs(column).max(), column, 0.0)))
        unit.flat[index] = 0.0
    return scipy.sparse.vstack([c.reshape(1, -1) for c in columns], format="csr").T.tocsr()
