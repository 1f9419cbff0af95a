"""Items that a softmax sums over in the place of all: items of a window's events, and a sample of the others."""

from typing import NamedTuple

import numpy as np

__all__ = ["Candidates", "sampled_candidates"]


class Candidates(NamedTuple):
    """Items whose exponentials, each times a factor, are summed in the place of all items'.

    Attributes
    ----------
    items : ndarray of int, (c,)
        All different.
    offsets : ndarray, (c,)
        Logarithms of the factors.
    targets : ndarray of int, (n,)
        Place of each event's item among these.
    """

    items: np.ndarray
    offsets: np.ndarray
    targets: np.ndarray

    def places(self, n_items: int) -> np.ndarray:
        """Return the place of each of all items among these, (I,), or -1."""
        positions = np.full(n_items, -1)
        positions[self.items] = np.arange(len(self.items))
        return positions


def sampled_candidates(items: np.ndarray, n_items: int, n: int, rng: np.random.Generator) -> Candidates:
    """Return the distinct values of some items, (n,), and n of the others, drawn without replacement.

    Of M others each drawn item stands for M / n, so that the sum estimates the sum over all items without bias. Its
    logarithm is biased (as in Jean, Cho, Memisevic and Bengio 2015), by less the larger n, and not at all from M on.
    """
    distinct, places = np.unique(items, return_inverse=True)
    others = np.delete(np.arange(n_items), distinct)
    if n >= len(others):
        return Candidates(np.append(distinct, others), np.zeros(n_items), places)
    drawn = rng.choice(others, n, replace=False, shuffle=False)
    offsets = np.repeat([0.0, np.log(len(others) / n)], [len(distinct), n])
    return Candidates(np.append(distinct, drawn), offsets, places)
