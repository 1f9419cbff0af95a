"""Pairs of rows of two matrices, sorted by the row of one of them."""

from typing import NamedTuple

import numpy as np

__all__ = ["Pairs"]


class Pairs(NamedTuple):
    """Pairs of a row of one matrix, the own row, and a row of another matrix, the other row, sorted by own row.

    Attributes
    ----------
    ends : ndarray of int, (I + 1,)
        The pairs of own row i are ``ends[i]:ends[i + 1]``.
    others : ndarray of int, (n,)
        Index of the other row of each pair.
    order : ndarray of int, (n,)
        Index of each pair in the original order.
    """

    ends: np.ndarray
    others: np.ndarray
    order: np.ndarray

    @classmethod
    def of(cls, own: np.ndarray, others: np.ndarray, n_own: int) -> "Pairs":
        """Return the pairs of the own rows `own` and other rows `others`, indices, (n,); the I own rows are `n_own`."""
        order = np.argsort(own, kind="stable")
        ends = np.concatenate([[0], np.cumsum(np.bincount(own, minlength=n_own))])
        return cls(ends, others[order], order)

    @classmethod
    def of_labels(cls, labels: np.ndarray, own: np.ndarray, others: np.ndarray) -> "Pairs":
        """Return the pairs whose own row is in `labels`, (I,); own rows are renumbered by their places in `labels`."""
        mask = np.isin(own, labels)
        place = {label: k for k, label in enumerate(labels.tolist())}
        numbers = np.array([place[label] for label in own[mask].tolist()], dtype=np.int64)
        return cls.of(numbers, others[mask], len(labels))

    @property
    def own(self) -> np.ndarray:
        """Index of the own row of each pair, (n,)."""
        return np.repeat(np.arange(len(self.ends) - 1), np.diff(self.ends))

    def of_rows(self, rows: np.ndarray) -> tuple["Pairs", np.ndarray]:
        """Return the pairs of the own rows `rows`, renumbered from zero, and the indices of these m pairs, (m,)."""
        counts = np.diff(self.ends)[rows]
        ends = np.concatenate([[0], np.cumsum(counts)])
        places = np.arange(ends[-1]) + np.repeat(self.ends[rows] - ends[:-1], counts)
        return Pairs(ends, self.others[places], self.order[places]), places

    def total(self, values: np.ndarray) -> np.ndarray:
        """Return the sums, (I,) or (I, K), of values of pairs, (n,) or (n, K), over the pairs of each own row."""
        out, some = np.zeros((len(self.ends) - 1, *values.shape[1:])), np.diff(self.ends) > 0
        if some.any():
            out[some] = np.add.reduceat(values, self.ends[:-1][some], axis=0)
        return out
