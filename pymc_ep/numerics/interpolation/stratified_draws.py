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
    cells, shares = _cells(points, weights, count)
    sets = _one_of_each(shares, rng)
    chosen = np.concatenate(cells)[sets]
    mean = weights @ points
    sd = np.sqrt(weights @ (points - mean) ** 2)
    white = np.divide(points - mean, sd, out=np.zeros_like(points), where=np.ptp(points, axis=0) > 0)
    # Means and mean squares less 1 of each set: both are zero for all points by their weights.
    moments = np.stack([[white[indices].mean(axis=0), (white[indices] ** 2).mean(axis=0) - 1.0] for indices in chosen])
    spread = moments.std(axis=0)
    off = np.divide(moments, spread, out=np.zeros_like(moments), where=spread > 0)
    return chosen[np.argmin((off**2).sum(axis=(1, 2)))]


def _cells(points: np.ndarray, weights: np.ndarray, count: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Return `count` cells of equal weight: for each the indices of its points, and the weight of each point in it."""
    cells: list[np.ndarray] = []
    shares: list[np.ndarray] = []
    waiting = [(np.arange(len(points)), weights, count)]
    while waiting:
        indices, share, n_cells = waiting.pop()
        if n_cells == 1:
            cells.append(indices)
            shares.append(share)
            continue
        inside = points[indices]
        spread = share @ (inside - share @ inside / share.sum()) ** 2
        order = np.argsort(inside[:, np.argmax(spread)], kind="stable")
        indices, share = indices[order], share[order]
        before = np.cumsum(share)
        cut = before[-1] * (n_cells // 2) / n_cells
        k = int(np.searchsorted(before, cut))
        # The point at the cut belongs to both sides.
        left, right = share[: k + 1].copy(), share[k:].copy()
        right[0] = before[k] - cut
        left[-1] -= right[0]
        waiting += [(indices[: k + 1], left, n_cells // 2), (indices[k:], right, n_cells - n_cells // 2)]
    return cells, shares


def _one_of_each(shares: list[np.ndarray], rng: np.random.Generator) -> np.ndarray:
    """Return positions in the concatenated cells, (sets, cells): in each set one draw from each cell, by `shares`."""
    ends = np.cumsum([len(share) for share in shares])
    starts = ends - [len(share) for share in shares]
    totals = np.array([share.sum() for share in shares])
    before = np.concatenate([[0.0], np.cumsum(totals)[:-1]])
    within = np.cumsum(np.concatenate(shares))
    # Inverse of the cumulative shares, at one uniform number in each cell.
    drawn = np.searchsorted(within, before + rng.random((_SETS, len(shares))) * totals)
    return np.clip(drawn, starts, ends - 1)
