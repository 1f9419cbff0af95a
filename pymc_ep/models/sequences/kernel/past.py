"""The past of events: the share of each event's item in its user's memories, and the items that the user had before."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from pymc_ep.models.sequences.kernel.memory import event_log_shares

__all__ = ["Past", "event_past", "known_items"]


class Past(NamedTuple):
    """The past of n events.

    Attributes
    ----------
    log_shares : ndarray, (n, K)
        Logarithms of the share of each event's item in the K memories of its user.
    listed : ndarray of int, (M,)
        Distinct items of each user in the order of their first events, one user after the other.
    begins : ndarray of int, (n,)
        Index in `listed` of the first item of each event's user.
    counts : ndarray of int, (n,)
        Number of items known before each event: they are ``listed[begins : begins + counts]``.
    most : int
        Largest number of distinct items of a user.
    """

    log_shares: np.ndarray
    listed: np.ndarray
    begins: np.ndarray
    counts: np.ndarray
    most: int

    def of(self, events: np.ndarray | slice) -> "Past":
        """Return the past of some of the events."""
        return self._replace(log_shares=self.log_shares[events], begins=self.begins[events], counts=self.counts[events])

    def among(self, places: np.ndarray) -> "Past":
        """Return the past of the same events with item i renamed to ``places[i]``, or left out if ``places[i]`` is -1.

        The new `listed` has items of the users of these events alone.
        """
        begins, users = np.unique(self.begins, return_inverse=True)
        lengths = np.zeros(len(begins), dtype=np.int64)
        np.maximum.at(lengths, users, self.counts)
        ends = np.cumsum(lengths)
        listed = self.listed[np.repeat(begins - (ends - lengths), lengths) + np.arange(lengths.sum())]
        kept = places[listed] >= 0
        # Items that are left before each of the joined lists' places.
        before = np.append(0, np.cumsum(kept))
        first = (ends - lengths)[users]
        counts = before[first + self.counts] - before[first]
        return self._replace(listed=places[listed[kept]], begins=before[first], counts=counts)

    def pairs(self) -> tuple[np.ndarray, np.ndarray]:
        """Return all pairs of an event and an item known before it: events, ascending, and items, (m,) each."""
        events = np.repeat(np.arange(len(self.counts)), self.counts)
        # Places begins_e, ..., begins_e + counts_e - 1 of each event e, one event after the other.
        first = np.repeat(self.begins - (np.cumsum(self.counts) - self.counts), self.counts)
        return events, self.listed[first + np.arange(len(events))]


def event_past(
    items: np.ndarray, ends: np.ndarray, n_items: int, half_lives: Sequence[float] | np.ndarray = ()
) -> Past:
    """Return the past of N events.

    Parameters
    ----------
    items : ndarray of int, (N,)
        Items of the events, one user after the other.
    ends : ndarray of int, (U + 1,)
        The events of user u are ``items[ends[u] : ends[u + 1]]``.
    n_items : int
    half_lives : sequence of float, (K,)
        Half-lives of the memories.
    """
    lengths = np.diff(ends)
    users = np.repeat(np.arange(len(lengths)), lengths)
    is_first = np.zeros(len(items), dtype=bool)
    is_first[np.unique(users * n_items + items, return_index=True)[1]] = True
    # Number of first events before each event, of all users; less earlier users' it is the number of known items.
    before = np.cumsum(is_first) - is_first
    begins = np.append(before, is_first.sum())[ends[:-1]]
    counts = before - begins[users]
    most = int((counts + is_first).max(initial=0))
    return Past(event_log_shares(items, ends, n_items, half_lives), items[is_first], begins[users], counts, most)


def known_items(histories: Sequence[np.ndarray], n_items: int) -> np.ndarray:
    """Return a mask of the items that each of k users has had, (k, I), given the items of each user's events."""
    is_known = np.zeros((len(histories), n_items), dtype=bool)
    for row, items in zip(is_known, histories):
        row[items] = True
    return is_known
