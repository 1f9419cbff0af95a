"""Few of many points that stand for all of them."""

import numpy as np
from scipy.spatial import cKDTree

__all__ = ["balanced", "nearest", "representatives"]

_ROUNDS = 5
"""Of k-means."""
_TRIED = 50
"""Systematic samples that are compared."""


def nearest(points: np.ndarray, centres: np.ndarray) -> np.ndarray:
    """Return the index of the centre, of (k, p), nearest to each of the points, (m, p)."""
    return cKDTree(centres).query(points)[1]


def representatives(points: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """Return indices of at most `count` points, (m, p), spread as all are, by a few rounds of k-means (Lloyd 1982)."""
    distinct = np.unique(points, axis=0)
    if len(distinct) <= count:
        return nearest(distinct, points)
    centres = distinct[rng.choice(len(distinct), count, replace=False)]
    for _ in range(_ROUNDS):
        own = nearest(points, centres)
        sizes = np.bincount(own, minlength=len(centres))
        sums = np.zeros_like(centres)
        np.add.at(sums, own, points)
        centres = sums[sizes > 0] / sizes[sizes > 0, None]
    return np.unique(nearest(centres, points))


def balanced(points: np.ndarray, weights: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """Return indices of `count` of the points, (m, p), drawn by their weights, (m,), whose moments are those of all.

    Of several systematic samples, each in a random order of the points, the one whose means, standard deviations and
    outer quantiles are nearest to the weighted points' own.
    """
    share = weights / weights.sum()
    mean = share @ points
    sd = np.sqrt(share @ (points - mean) ** 2)
    order = np.argsort(points, axis=0)
    levels = (0.05, 0.5, 0.95)
    cumulative = np.cumsum(share[order], axis=0)
    quantiles = np.array(
        [[points[order[np.searchsorted(c, q), i], i] for i, c in enumerate(cumulative.T)] for q in levels]
    )
    best, least = np.zeros(0, dtype=int), np.inf
    for _ in range(_TRIED):
        shuffled = rng.permutation(len(points))
        places = (rng.random() + np.arange(count)) / count
        chosen = shuffled[np.minimum(np.searchsorted(np.cumsum(share[shuffled]), places), len(points) - 1)]
        part = points[chosen]
        errors = [part.mean(axis=0) - mean, part.std(axis=0) - sd, *(np.quantile(part, levels, axis=0) - quantiles)]
        if (error := float(np.abs(np.array(errors) / sd).max())) < least:
            best, least = chosen, error
    return best
