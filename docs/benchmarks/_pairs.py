"""Pairs of users and items with one held-out item a user, and how rankings of items are scored on them."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy import sparse

from pymc_ep import datasets

__all__ = ["BINS", "DATA", "Scores", "Split", "pairs_of", "scored", "split_of"]

DATA = ("ML-1M", "Gowalla", "Foursquare", "LastFM")
TOP = 20
BINS = (1, 4, 8, 16, 32, 64, 128, np.inf)
"""Edges of the bins of users by their number of pairs."""
_NUMBERS = 2**24
"""Largest number of scores in a block of users."""


class Split(NamedTuple):
    """Learned pairs and one held-out pair a user.

    Attributes
    ----------
    learned : csr_array, (users, items)
        Ones.
    users, items : ndarray, (n,)
        Held-out pairs.
    """

    learned: sparse.csr_array
    users: np.ndarray
    items: np.ndarray

    @property
    def cold(self) -> np.ndarray:
        """Whether a held-out item has no learned pair, (n,)."""
        return (self.learned.sum(axis=0) == 0)[self.items]


def pairs_of(name: str) -> sparse.csr_array:
    """Return the distinct pairs of a data set as ones, (users, items)."""
    if name == "ML-1M":
        table = datasets.load_movielens("1m")
        table, columns = table[table["rating"] >= 4], ("user", "item")
    elif name == "Gowalla":
        table, columns = datasets.load_gowalla(), ("user", "place")
    elif name == "Foursquare":
        table, columns = datasets.load_checkins("foursquare-nyc"), ("user", "place")
    else:
        table, columns = datasets.load_lastfm(), ("user", "artist")
    counts = datasets.from_pairs(table.drop_duplicates(list(columns)), *columns).counts
    return sparse.csr_array(counts)


def split_of(pairs: sparse.csr_array, seed: int) -> Split:
    """Return pairs without a random one of each user that has at least two."""
    rng = np.random.default_rng(seed)
    counts = np.diff(pairs.indptr)
    users = np.flatnonzero(counts >= 2)
    place = pairs.indptr[users] + rng.integers(0, counts[users])
    kept = np.ones(pairs.nnz, dtype=bool)
    kept[place] = False
    own = np.repeat(np.arange(pairs.shape[0]), counts)
    learned = sparse.csr_array((np.ones(kept.sum()), (own[kept], pairs.indices[kept])), shape=pairs.shape)
    return Split(learned, users, pairs.indices[place])


class Scores(NamedTuple):
    """How held-out items rank among the unseen items of their users.

    Attributes
    ----------
    rank : ndarray, (n,)
        Share of the other unseen items below, ties counted half.
    position : ndarray, (n,)
        From 0, the mean of those among equals.
    log_p : ndarray, (n,)
        Log probability among the unseen items; NaN for scores that are no probabilities.
    log_p_all : ndarray, (n,)
        The same among all items.
    """

    rank: np.ndarray
    position: np.ndarray
    log_p: np.ndarray
    log_p_all: np.ndarray

    def summary(self, split: Split) -> dict[str, float]:
        """Return means over users, and over those whose item is warm."""
        warm = ~split.cold
        found = {
            "rank": self.rank.mean(),
            "warm_rank": self.rank[warm].mean(),
            "recall": (self.position < TOP).mean(),
            "ndcg": np.where(self.position < TOP, 1.0 / np.log2(self.position + 2.0), 0.0).mean(),
            "log_p": self.log_p.mean(),
            "warm_log_p": self.log_p[warm].mean(),
            "log_p_all": self.log_p_all.mean(),
            "cold": split.cold.mean(),
        }
        return {name: float(value) for name, value in found.items()}

    def by_activity(self, split: Split) -> list[float]:
        """Return the mean rank of users in bins of their number of pairs."""
        counts = np.diff(split.learned.indptr)[split.users]
        which = np.digitize(counts, BINS) - 1
        return [float(self.rank[which == k].mean()) if (which == k).any() else np.nan for k in range(len(BINS) - 1)]


def scored(split: Split, scores: Callable[[np.ndarray], np.ndarray], *, log_probabilities: bool = False) -> Scores:
    """Return how held-out items rank by scores, (k, items), of k users."""
    n, step = len(split.users), max(1, _NUMBERS // split.learned.shape[1])
    rank, position, log_p, log_p_all = (np.full(n, np.nan) for _ in range(4))
    for here in (slice(begin, begin + step) for begin in range(0, n, step)):
        users, items = split.users[here], split.items[here]
        found = np.array(scores(users), dtype=float)
        own = found[np.arange(len(users)), items]
        seen = split.learned[users].tocoo()
        found[seen.row, seen.col] = -np.inf
        if log_probabilities:
            log_p_all[here], log_p[here] = own, own - np.log(np.exp(found).sum(axis=1))
        above, equal = (found > own[:, None]).sum(axis=1), (found == own[:, None]).sum(axis=1) - 1
        position[here] = above + 0.5 * equal
        rank[here] = 1.0 - position[here] / ((found > -np.inf).sum(axis=1) - 1)
    return Scores(rank, position, log_p, log_p_all)
