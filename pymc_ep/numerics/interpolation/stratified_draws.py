"""Stratified draws of a few representatives from many weighted points."""

import numpy as np
import scipy

__all__ = ["nearest", "stratified"]

_SETS = 32
"""Number of sets of draws from which the best is chosen: more sets match the moments better, but cost time."""


def nearest(points: np.ndarray, centres: np.ndarray) -> np.ndarray:
    """Return the index, (m,), of the nearest of `centres`, (k, p), for each of `points`, (m, p)."""
    return scipy.spatial.cKDTree(centres).query(points)[1]


def stratified(points: np.ndarray, weights: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """Return indices, (count,), of `points`, (m, p), drawn by `weights`, (m,): one from each of `count` cells.

    Cells of equal weight come from halving along the coordinate of the largest variance, so that an average over the
    draws errs by the variation within cells alone (Cochran 1977, chapter 5). Heavy points may be drawn more than once.
    Of 32 such sets, the returned one has means and variances nearest to the weighted means and variances of all points
    (Morgan and Rubin 2012).
    """
    weights = weights / weights.sum()
    entries, shares, starts = _cells(points, weights, count)
    chosen = entries[_one_of_each(shares, starts, rng)]
    mean = weights @ points
    sd = np.sqrt(weights @ (points - mean) ** 2)
    white = np.divide(points - mean, sd, out=np.zeros_like(points), where=np.ptp(points, axis=0) > 0)
    # Means and mean squares less 1 of each set: both are zero for all points by their weights.
    moments = np.stack([[white[indices].mean(axis=0), (white[indices] ** 2).mean(axis=0) - 1.0] for indices in chosen])
    spread = moments.std(axis=0)
    off = np.divide(moments, spread, out=np.zeros_like(moments), where=spread > 0)
    return chosen[np.argmin((off**2).sum(axis=(1, 2)))]


def _cells(points: np.ndarray, weights: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return `count` cells of equal weight, one after another.

    Returns
    -------
    entries : ndarray of int
        Indices of the points in each cell. A point may belong to several cells.
    shares : ndarray
        Weight of each of these points in its cell.
    starts : ndarray of int, (count,)
        Place of the first entry of each cell.
    """
    ranks = np.argsort(np.argsort(points, axis=0, kind="stable"), axis=0)
    entries, shares = np.arange(len(points)), weights
    # `counts` are the numbers of cells into which the present ones are still to be cut.
    starts, counts = np.zeros(1, dtype=int), np.array([count])
    while (cut := np.flatnonzero(counts > 1)).size:
        cell = np.repeat(np.arange(len(starts)), np.diff(starts, append=len(entries)))
        inside, total = points[entries], np.add.reduceat(shares, starts)
        mean = np.add.reduceat(shares[:, None] * inside, starts) / total[:, None]
        spread = np.add.reduceat(shares[:, None] * (inside - mean[cell]) ** 2, starts)
        order = np.argsort(cell * len(points) + ranks[entries, np.argmax(spread, axis=1)[cell]])
        entries, shares = entries[order], shares[order]
        before = np.cumsum(shares)
        left = counts[cut] // 2
        at = before[starts[cut]] - shares[starts[cut]] + total[cut] * left / counts[cut]
        last = np.append(starts[1:], len(entries))[cut] - 1
        k = np.clip(np.searchsorted(before, at), starts[cut], last)
        # The point at the cut belongs to both sides.
        right = np.maximum(before[k] - at, 0.0)
        shares[k] -= right
        entries, shares = np.insert(entries, k + 1, entries[k]), np.insert(shares, k + 1, right)
        # An entry more for each cut before.
        starts = starts + np.searchsorted(cut, np.arange(len(starts)))
        starts = np.insert(starts, cut + 1, k + np.arange(1, len(k) + 1))
        counts = np.insert(counts, cut + 1, counts[cut] - left)
        counts[cut + np.arange(len(cut))] = left
    return entries, shares, starts


def _one_of_each(shares: np.ndarray, starts: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return places among the entries of `_cells`, (sets, cells): in each set one from each cell, drawn by `shares`.

    They begin with the last cell.
    """
    totals = np.add.reduceat(shares, starts)
    within = np.cumsum(shares)
    # Inverse of the cumulative shares, at one uniform number in each cell.
    before, uniform = within[starts] - shares[starts], rng.random((_SETS, len(starts)))[:, ::-1]
    drawn = np.searchsorted(within, before + uniform * totals)
    return np.clip(drawn, starts, np.append(starts[1:], len(shares)) - 1)[:, ::-1]
