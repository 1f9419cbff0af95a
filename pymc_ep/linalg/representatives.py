"""Few of many points that stand for all of them."""

import numpy as np
from scipy.spatial import cKDTree

__all__ = ["nearest", "stratified"]


def nearest(points: np.ndarray, centres: np.ndarray) -> np.ndarray:
    """Return the index of the centre, of (k, p), nearest to each of the points, (m, p)."""
    return cKDTree(centres).query(points)[1]


def stratified(points: np.ndarray, weights: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """Return indices of `count` of the points, (m, p), drawn by their weights, (m,), one from each of as many cells.

    Cells of equal weight come from halving along the coordinate of the largest variance, so that an average over the
    draws errs by the variation within cells alone (Cochran 1977, chapter 5). Heavy points may be drawn more than once.
    """
    chosen: list[int] = []
    waiting = [(np.arange(len(points)), weights / weights.sum(), count)]
    while waiting:
        here, share, cells = waiting.pop()
        if cells == 1:
            chosen.append(int(here[np.searchsorted(np.cumsum(share), rng.random() * share.sum())]))
            continue
        part = points[here]
        spread = share @ (part - share @ part / share.sum()) ** 2
        order = np.argsort(part[:, np.argmax(spread)], kind="stable")
        here, share = here[order], share[order]
        before = np.cumsum(share)
        cut = before[-1] * (cells // 2) / cells
        k = int(np.searchsorted(before, cut))
        # The point at the cut belongs to both sides.
        left, right = share[: k + 1].copy(), share[k:].copy()
        right[0] = before[k] - cut
        left[-1] -= right[0]
        waiting += [(here[: k + 1], left, cells // 2), (here[k:], right, cells - cells // 2)]
    return np.array(chosen)
