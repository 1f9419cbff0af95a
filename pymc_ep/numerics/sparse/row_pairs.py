"""Pairs of entries of one row of a sparse matrix."""

import numpy as np

__all__ = ["count_row_pairs", "row_pairs"]


def count_row_pairs(starts: np.ndarray) -> int:
    """Return the number of pairs that `row_pairs` lists."""
    counts = np.diff(starts).astype(np.int64)
    return int((counts * (counts + 1) // 2).sum())


def row_pairs(starts: np.ndarray, most: float = np.inf) -> tuple[np.ndarray, np.ndarray]:
    """Return all pairs of entries of one row, as the indices of both entries, the first no later than the second.

    Parameters
    ----------
    starts : ndarray of int, (rows + 1,)
        Index of the first entry of each row, and the total number of entries.
    most : float
        Rows with more entries are left out.
    """
    counts = np.diff(starts)
    firsts, seconds = [np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=np.int64)]
    for count in np.unique(counts[(counts > 0) & (counts <= most)]):
        begins = starts[:-1][counts == count].astype(np.int64)[:, None]
        lower, upper = np.triu_indices(count)
        firsts.append((begins + lower).ravel())
        seconds.append((begins + upper).ravel())
    return np.concatenate(firsts), np.concatenate(seconds)
