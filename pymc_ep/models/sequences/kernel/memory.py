"""Memories of the items that users had before: the share of an item in them.

In a memory of half-life H an event counts half as much after H others, so that the share of an item i before event t is

    s(i) = sum_{s < t} [y_s = i] 2^{-(t - 1 - s) / H} / sum_{s < t} 2^{-(t - 1 - s) / H},

which for infinite H is the item's share of the user's earlier events. The last event has the weight one, so that no sum
vanishes. Before the first event all items have the same share.
"""

from collections.abc import Sequence

import numpy as np

__all__ = ["event_log_shares", "last_log_shares", "recalled"]


def event_log_shares(
    items: np.ndarray, ends: np.ndarray, n_items: int, half_lives: Sequence[float] | np.ndarray
) -> np.ndarray:
    """Return log shares, (N, K): of each event's item in the K memories of its user just before the event.

    Parameters
    ----------
    items : ndarray of int, (N,)
        Items of the events, one user after the other.
    ends : ndarray of int, (U + 1,)
        The events of user u are ``items[ends[u] : ends[u + 1]]``.
    n_items : int
    half_lives : sequence of float, (K,)
    """
    if not len(half_lives):
        return np.empty((len(items), 0))
    lengths = np.diff(ends)
    users = np.repeat(np.arange(len(lengths)), lengths)
    times = np.arange(len(items)) - np.repeat(ends[:-1], lengths)
    log_shares = np.empty((len(items), len(half_lives)))
    # Events of one user and item, in the order of time; of equally many before them together.
    order = np.argsort(users * n_items + items, kind="stable")
    begins = np.flatnonzero(np.diff(users[order] * n_items + items[order], prepend=-1))
    rank = np.arange(len(items)) - np.repeat(begins, np.diff(begins, append=len(items)))
    by_rank = np.argsort(rank, kind="stable")
    groups = np.split(by_rank, np.cumsum(np.bincount(rank))[:-1]) if len(items) else []
    for k, half_life in enumerate(half_lives):
        decayed = np.zeros(len(items))
        for group in groups[1:]:
            current, previous = order[group], order[group - 1]
            # a(t) = 2^{-(t - s) / H} a(s) + 2^{-(t - 1 - s) / H}, the share's numerator, s the item's last time.
            others = times[current] - times[previous] - 1
            decayed[current] = decayed[previous] * 2.0 ** (-(others + 1) / half_life) + 2.0 ** (-others / half_life)
        with np.errstate(divide="ignore", invalid="ignore"):
            log_shares[:, k] = np.log(decayed / _total(times, half_life))
    log_shares[times == 0] = -np.log(n_items)
    return log_shares


def last_log_shares(
    histories: Sequence[np.ndarray], n_items: int, half_lives: Sequence[float] | np.ndarray
) -> np.ndarray:
    """Return log shares, (k, K, I): of all I items in the K memories of k users, after all their events.

    Parameters
    ----------
    histories : sequence of ndarray of int, (k,)
        Items of the events of each user.
    n_items : int
    half_lives : sequence of float, (K,)
    """
    all_shares = np.full((len(histories), len(half_lives), n_items), -np.log(n_items))
    for user_shares, items in zip(all_shares, histories):
        for log_shares, half_life in zip(user_shares, half_lives if len(items) else ()):
            decayed = np.bincount(items, 2.0 ** (-np.arange(len(items))[::-1] / half_life), n_items)
            with np.errstate(divide="ignore"):
                log_shares[:] = np.log(decayed / _total(len(items), half_life))
    return all_shares


def recalled(uniform: np.ndarray, times: np.ndarray, half_life: float) -> np.ndarray:
    """Return the ages, (n,), of earlier events drawn from a memory at `times`, (n,), by numbers `uniform`, (n,).

    The age of the last event before a time is 1, the age of the first event is the time.
    """
    if np.isinf(half_life):
        return 1 + (uniform * times).astype(np.int64)
    # P(age <= a) = (1 - q^a) / (1 - q^t) with q = 2^{-1 / H}, inverted at u: a = log(1 - u (1 - q^t)) / log q.
    rate = -np.log(2.0) / half_life
    ages = np.ceil(np.log1p(uniform * np.expm1(times * rate)) / rate).astype(np.int64)
    return np.clip(ages, 1, times)


def _total(times: np.ndarray | int, half_life: float) -> np.ndarray:
    """Return the total weight in a memory of all events before `times`."""
    if np.isinf(half_life):
        return np.asarray(times, dtype=float)
    # sum_{k < t} q^k = (q^t - 1) / (q - 1), with q = 2^{-1 / H}.
    rate = -np.log(2.0) / half_life
    return np.expm1(times * rate) / np.expm1(rate)
