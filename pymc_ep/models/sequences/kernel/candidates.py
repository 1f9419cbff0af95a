"""Items that a softmax sums over instead of all items: the items of a window's events, and a sample of the others."""

from typing import NamedTuple

import numpy as np

__all__ = ["Candidates", "sampled_candidates"]


class Candidates(NamedTuple):
    """Items of which a softmax sums exponentials of logits, times factors, in place of the sum over all items.

    Attributes
    ----------
    items : ndarray of int, (c,)
        Distinct items.
    offsets : ndarray, (c,)
        Logarithms of the factors.
    targets : ndarray of int, (n,)
        Index in `items` of the item of each event.
    """

    items: np.ndarray
    offsets: np.ndarray
    targets: np.ndarray

    def places(self, n_items: int) -> np.ndarray:
        """Return the index in `items` of each of I items, (I,), -1 for items that are no candidates."""
        positions = np.full(n_items, -1)
        positions[self.items] = np.arange(len(self.items))
        return positions


def sampled_candidates(items: np.ndarray, n_items: int, n: int, rng: np.random.Generator) -> Candidates:
    """Return the distinct values of `items` and `n` of the M other items, drawn without replacement.

    Each drawn item stands for M / n items, so that the sum estimates the sum over all items without bias. The logarithm
    of the sum is biased (as in Jean, Cho, Memisevic and Bengio 2015), less so for larger n, and not at all for n >= M.
    """
    distinct, places = np.unique(items, return_inverse=True)
    others = np.delete(np.arange(n_items), distinct)
    if n >= len(others):
        return Candidates(np.append(distinct, others), np.zeros(n_items), places)
    drawn = rng.choice(others, n, replace=False, shuffle=False)
    offsets = np.repeat([0.0, np.log(len(others) / n)], [len(distinct), n])
    return Candidates(np.append(distinct, drawn), offsets, places)
