"""Values of the preference model: the prior of utilities, and comparisons by user."""

from typing import NamedTuple

import numpy as np

from pymc_ep.models.preferences.kernel import Comparisons

__all__ = ["ComparedUsers", "Learned", "Sites", "UtilityPrior"]


class UtilityPrior(NamedTuple):
    """Prior of the utilities of a user: N(b, V V^T + s2 K).

    Attributes
    ----------
    mean : ndarray, (I,)
        b.
    factors : ndarray, (I, D)
        V; D may be 0.
    scale : float
        s2.
    """

    mean: np.ndarray
    factors: np.ndarray
    scale: float


class Learned(NamedTuple):
    """Flags of the parts of the prior that are learned."""

    mean: bool
    factors: bool
    scale: bool


class Sites(NamedTuple):
    """Gaussian factors exp(shift d - precision d^2 / 2) of the differences d.

    Attributes
    ----------
    shift, precision : ndarray, (P,)
    """

    shift: np.ndarray
    precision: np.ndarray


class ComparedUsers(NamedTuple):
    """Comparisons of the users that made at least one, sorted by user.

    Attributes
    ----------
    users : ndarray of int64, (U,)
        Users with comparisons, as positions among all users.
    comparisons : Comparisons
        The preferred item of each comparison comes first.
    order : ndarray of int64, (P,)
        Position of each comparison in the order in which the model gives them.
    """

    users: np.ndarray
    comparisons: Comparisons
    order: np.ndarray

    @classmethod
    def of(cls, users: np.ndarray, winners: np.ndarray, losers: np.ndarray, n_items: int) -> "ComparedUsers":
        """Return comparisons sorted by user, given positions of users, winners and losers, (P,) each."""
        order = np.argsort(users, kind="stable")
        distinct, user_index, counts = np.unique(users[order], return_inverse=True, return_counts=True)
        # The items of each user, sorted, with the places of both sides of its comparisons among them.
        keys = user_index * np.int64(n_items) + np.stack([winners[order], losers[order]])
        unique_keys, places = np.unique(keys, return_inverse=True)
        item_ends = np.searchsorted(unique_keys, np.arange(len(distinct) + 1) * np.int64(n_items))
        firsts, seconds = places.reshape(2, -1) - item_ends[user_index]
        comparisons = Comparisons(
            item_ends.astype(np.int64),
            (unique_keys % n_items).astype(np.int32),
            np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
            firsts.astype(np.int32),
            seconds.astype(np.int32),
        )
        return cls(distinct, comparisons, order)

    def capped(self, most: int, seed: int, n_items: int) -> "ComparedUsers":
        """Return at most `most` comparisons of each user, drawn uniformly from its comparisons."""
        comparisons, counts = self.comparisons, np.diff(self.comparisons.pair_ends)
        user_index = np.repeat(np.arange(comparisons.n_users), counts)
        drawn = np.lexsort((np.random.default_rng(seed).random(len(user_index)), user_index))
        # Places in the order of users are those of the draws: the first ones of each user are kept.
        rank = np.arange(len(user_index)) - np.repeat(comparisons.pair_ends[:-1], counts)
        kept = np.sort(drawn[rank < most])
        winners, losers = (comparisons.items[place][kept].astype(np.int64) for place in comparisons.places)
        compared = ComparedUsers.of(self.users[user_index[kept]], winners, losers, n_items)
        return compared._replace(order=self.order[kept[compared.order]])

    def spread(self, some: "ComparedUsers", values: np.ndarray, n_items: int) -> np.ndarray:
        """Return values of all users' items, (N,): `values` at the items of `some`, a capped subset, else zero."""
        keys, some_keys = (
            np.repeat(compared.users, np.diff(compared.comparisons.item_ends)) * np.int64(n_items)
            + compared.comparisons.items
            for compared in (self, some)
        )
        out = np.zeros(len(keys))
        out[np.searchsorted(keys, some_keys)] = values
        return out
