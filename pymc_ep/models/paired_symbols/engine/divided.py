"""Pairs in parts, each with users of its own."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from pymc_ep.engines.partitions import LocalPartitions, Partitions
from pymc_ep.models.paired_symbols.engine.values import PairCounts, rows_of

__all__ = ["DividedPairs"]


class DividedPairs(NamedTuple):
    """Pairs in parts; all pairs of a user lie in the same part.

    Attributes
    ----------
    partitions : Partitions
        Parts whose data are `PairCounts`, with users numbered from zero in each part.
    rows : tuple of ndarray or slice
        Positions of the users of each part among all users.
    users, items : ndarray, (I,) and (J,)
        Number of pairs of each user and of each item.
    n_cells : int
        Number of distinct pairs.
    digest : ndarray, optional
        Hash of the pairs if they are in files; None for pairs in the model.
    """

    partitions: Partitions
    rows: tuple[Any, ...]
    users: np.ndarray
    items: np.ndarray
    n_cells: int
    digest: np.ndarray | None = None

    @property
    def total(self) -> float:
        """Number of pairs D."""
        return float(self.users.sum())

    @classmethod
    def whole(cls, pairs: PairCounts) -> "DividedPairs":
        """Return the pairs as a single part."""
        cells = len(pairs.by_user.others)
        return cls(LocalPartitions([pairs]), (pairs.rows,), pairs.users, pairs.items, cells)

    def split(self, values: Any) -> list[Any]:
        """Return, for each part, its users' rows of an array, (I, ...), or of each array in nested tuples."""
        return [rows_of(values, rows) for rows in self.rows]

    def joined(self, values: Sequence[Any]) -> Any:
        """Return the values of all users, (I, ...), from the values of each part: the inverse of `split`."""
        first = values[0]
        if len(values) == 1 and self.rows[0] == slice(None):
            return first
        if isinstance(first, tuple):
            fields = [self.joined([value[k] for value in values]) for k in range(len(first))]
            return type(first)(*fields)
        out = np.empty((len(self.users), *first.shape[1:]), first.dtype)
        for rows, array in zip(self.rows, values):
            out[rows] = array
        return out
