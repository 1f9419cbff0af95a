"""Observed pairs of symbols as they are stored: pairs, (D, 2), or rows of two symbols and a count, (n, 3)."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy import sparse

from pymc_ep.distributions.counts import MOST
from pymc_ep.exceptions import InvalidDataError

__all__ = ["SIDES", "as_counts", "labelled_pairs", "packed_links", "packed_pairs", "require_others"]

SIDES = ("user", "item")
"""Words for the two sides of a pair, in messages."""


def labelled_pairs(observed: Any) -> np.ndarray | None:
    """Return pairs of labels, (D, 2), as an array; None for counts, and for pairs of numbers."""
    if sparse.issparse(observed):
        return None
    pairs = np.asarray(observed)
    return pairs if pairs.ndim == 2 and pairs.shape[1] == 2 and pairs.dtype.kind in "OSU" else None


def packed_pairs(name: str, observed: Any, shape: Sequence[int | None], sides: tuple[str, str] = SIDES) -> np.ndarray:
    """Return pairs, (D, 2), as they are given, or the counts of a sparse matrix in rows of user, item, count, (n, 3).

    Parameters
    ----------
    name : str
        The observed variable, for messages.
    observed : array_like or SciPy sparse
    shape : (int or None, int or None)
        Numbers of users and items, where known.
    sides : (str, str)
        Words for users and items in messages.

    Raises
    ------
    InvalidDataError
        For indices out of range, counts that are negative or fractional, and shapes that differ.
    """
    if sparse.issparse(observed):
        return _packed_counts(name, observed, shape, sides)
    pairs = np.asarray(observed)
    if pairs.shape == (0,):
        pairs = np.zeros((0, 2), dtype=np.int64)
    if pairs.ndim != 2 or pairs.shape[1] != 2:
        raise InvalidDataError(
            f"{name!r} has observations of shape {pairs.shape}; give pairs of user and item, (D, 2), or a SciPy sparse "
            f"matrix of counts, (users, items)."
        )
    pairs = _whole(f"{name!r} has the index", pairs)
    for column, (side, n) in enumerate(zip(sides, shape)):
        _require_range(name, side, pairs[:, column], n)
    return pairs


def packed_links(name: str, observed: Any, n: int | None) -> np.ndarray:
    """Return observed pairs of n symbols in the form of `packed_pairs`, each pair in one of its two orders.

    Counts must be symmetric, or all on one side of the diagonal.

    Raises
    ------
    InvalidDataError
        As `packed_pairs`, and for a symbol that is paired with itself, and counts that differ between the orders of a
        pair.
    """
    if sparse.issparse(observed) and any(m != (n or observed.shape[0]) for m in observed.shape):
        number = "as many rows as columns" if n is None else f"{n} rows and columns, one for each symbol"
        raise InvalidDataError(f"{name!r} has counts of shape {observed.shape}; give {number}.")
    rows = packed_pairs(name, observed, (n, n), ("symbol", "symbol"))
    require_others(name, rows)
    if rows.shape[1] == 2:
        return rows
    above = rows[:, 0] < rows[:, 1]
    if not above.any():
        rows, above = rows[:, [1, 0, 2]], ~above
    elif not above.all():
        _require_symmetric(name, rows, observed.shape)
    return rows[above]


def _require_symmetric(name: str, rows: np.ndarray, shape: tuple[int, int]) -> None:
    table = sparse.csr_array((rows[:, 2], (rows[:, 0], rows[:, 1])), shape=shape)
    difference = (table - table.T).tocoo()
    uneven = np.flatnonzero(difference.data)
    if uneven.size:
        i, j = sorted(int(index[uneven[0]]) for index in (difference.row, difference.col))
        raise InvalidDataError(
            f"{name!r} has the count {table[i, j]} at row {i} and column {j}, but {table[j, i]} at row {j} and column "
            f"{i}, and its pairs have no order; give symmetric counts, or each pair once, above the diagonal."
        )


def require_others(name: str, rows: np.ndarray) -> None:
    """Raise InvalidDataError for a symbol that is paired with itself."""
    self_paired = (rows[:, 0] == rows[:, 1]) & (as_counts(rows)[2] > 0)
    if self_paired.any():
        k = int(np.argmax(self_paired))
        where = f"at row {k}" if rows.shape[1] == 2 else f"at row and column {rows[k, 0]}"
        raise InvalidDataError(
            f"{name!r} has the symbol {rows[k, 0]} with itself {where}, but such pairs are never observed; leave them "
            f"out."
        )


def _packed_counts(name: str, observed: Any, shape: Sequence[int | None], sides: tuple[str, str]) -> np.ndarray:
    if any(n not in (None, length) for n, length in zip(shape, observed.shape)):
        raise InvalidDataError(
            f"{name!r} has counts of shape {observed.shape}, but there are {shape[0]} {sides[0]}s and {shape[1]} "
            f"{sides[1]}s; transpose the counts, or correct the matrices."
        )
    table = observed.tocoo(copy=True)
    values = _whole(f"{name!r} has the count", table.data, (table.row, table.col))
    if (values < 0).any():
        k = int(np.argmax(values < 0))
        raise InvalidDataError(
            f"{name!r} has the count {values[k]} at row {table.row[k]} and column {table.col[k]}; counts are at "
            f"least 0."
        )
    table.data = values
    # Cells that are listed twice are added up, as SciPy does.
    table.sum_duplicates()
    positive = table.data > 0
    rows = np.stack([array[positive].astype(np.int64) for array in (table.row, table.col, table.data)], axis=1)
    return rows[np.lexsort((rows[:, 1], rows[:, 0]))]


def _whole(what: str, values: np.ndarray, places: tuple[np.ndarray, np.ndarray] | None = None) -> np.ndarray:
    """Return values as integers; raise for the first one that is not whole, or that a double cannot hold."""
    if values.dtype.kind not in "biuf":
        raise InvalidDataError(f"{what}es of type {values.dtype}; give whole numbers.")
    doubles = values.astype(np.float64)
    bad = (doubles != np.floor(doubles)) | (np.abs(doubles) > MOST)
    if bad.any():
        k = np.unravel_index(int(np.argmax(bad)), values.shape)
        where = f"at row {k[0]}" if places is None else f"at row {places[0][k]} and column {places[1][k]}"
        wrong = "is no whole number" if doubles[k] != np.floor(doubles[k]) else "is beyond 2**53"
        raise InvalidDataError(f"{what} {values[k]} {where}, which {wrong}; correct it.")
    return values.astype(np.int64)


def _require_range(name: str, side: str, index: np.ndarray, n: int | None) -> None:
    bad = (index < 0) | (index >= (np.inf if n is None else n))
    if bad.any():
        k = int(np.argmax(bad))
        end = "" if n is None else f" and less than {n}, the number of rows of its matrix"
        raise InvalidDataError(
            f"{name!r} has the {side} {index[k]} at row {k}, but indices are at least 0{end}; correct it."
        )


def as_counts(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return users, items and counts, (n,) each, of stored observations."""
    return rows[:, 0], rows[:, 1], rows[:, 2] if rows.shape[1] == 3 else np.ones(len(rows))
