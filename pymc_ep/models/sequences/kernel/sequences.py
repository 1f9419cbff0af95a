"""Sequences of many users: windows of their events, and log probabilities of all events."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import logsumexp

from pymc_ep.models.sequences.kernel.body import Weights, Window, forward, log_softmax, window_gradient
from pymc_ep.models.sequences.kernel.past import Past, event_past

__all__ = [
    "Scores",
    "Sequences",
    "log_probabilities",
    "longest_first",
    "next_log_probabilities",
    "sum_gradient",
    "window_of",
]

_EVENTS = 2**15
"""Number of events by which users are grouped in passes over whole sequences; a group has at most as many besides the
events of its first user. With 32 units and three gates, states and gates of so many events take 32 MiB."""
_TIMES = 512
"""Length of windows, in events of a user, where no gradient is computed."""


class Sequences(NamedTuple):
    """Events of U users, one user after the other.

    Attributes
    ----------
    items : ndarray of int, (N,)
    ends : ndarray of int, (U + 1,)
        The events of user u are ``items[ends[u] : ends[u + 1]]``.
    past : Past
        Past of all events.
    following : ndarray of int, (N,), optional
        For each event, the context of its user's next event.
    """

    items: np.ndarray
    ends: np.ndarray
    past: Past
    following: np.ndarray | None = None

    @classmethod
    def of_parts(
        cls, histories: Sequence[np.ndarray], n_items: int, half_lives: Sequence[float] | np.ndarray = ()
    ) -> "Sequences":
        """Return the sequences of users, given an array of items for each user and the half-lives of memories."""
        items, ends = np.concatenate(histories), np.append(0, np.cumsum([len(history) for history in histories]))
        return cls(items, ends, event_past(items, ends, n_items, half_lives))

    def in_context(self, contexts: np.ndarray, then: int = 0) -> "Sequences":
        """Return the sequences with the `contexts`, (N,), of events; `then` is of the event after each user's last."""
        following = np.append(contexts[1:], then)
        following[self.ends[1:][self.lengths > 0] - 1] = then
        return self._replace(following=following)

    @classmethod
    def of_rows(
        cls,
        users: np.ndarray,
        items: np.ndarray,
        n_users: int,
        n_items: int,
        half_lives: Sequence[float] | np.ndarray = (),
    ) -> tuple["Sequences", np.ndarray]:
        """Return the sequences of N rows of user and item, in any order of users, and the row of each event, (N,)."""
        order = np.argsort(users, kind="stable")
        ends = np.cumsum(np.bincount(users, minlength=n_users))[:-1]
        return cls.of_parts(np.split(items[order], ends), n_items, half_lives), order

    @property
    def lengths(self) -> np.ndarray:
        """Number of events of each user, (U,)."""
        return np.diff(self.ends)


class Scores(NamedTuple):
    """Log probabilities of events, in the order of the sequences, and the states of all users after them, (U, D)."""

    values: np.ndarray
    last: np.ndarray


def longest_first(lengths: np.ndarray, users: np.ndarray) -> np.ndarray:
    """Return users with events in the order of falling lengths, (P,), as `window_of` takes them."""
    order = users[np.argsort(-lengths[users], kind="stable")]
    return order[lengths[order] > 0]


def window_of(
    sequences: Sequences, lengths: np.ndarray, users: np.ndarray, begin: int, size: int
) -> tuple[Window, np.ndarray]:
    """Return the events at the times from `begin` on, `size` times at most, of users with `lengths` events each.

    Parameters
    ----------
    sequences : Sequences
    lengths : ndarray of int, (U,)
        Number of events to which each user's sequence is cut.
    users : ndarray of int, (P,)
        Users in the order of falling lengths.
    begin, size : int

    Returns
    -------
    window : Window
        Events of the first of `users`, all users with an event at time `begin`.
    places : ndarray of int, (n,)
        Place of each event in the sequences.
    """
    window_lengths = np.minimum(lengths[users] - begin, size)
    window_lengths = window_lengths[window_lengths > 0]
    # Number of window lengths above t, for each time t.
    counts = np.cumsum(np.bincount(window_lengths)[::-1])[::-1][1:] if len(window_lengths) else window_lengths
    times = np.repeat(np.arange(len(counts)), counts)
    window = Window(times, counts)
    places = sequences.ends[users[window.users]] + begin + times
    following = None if sequences.following is None else sequences.following[places]
    items, past = sequences.items[places], sequences.past.of(places)
    return window._replace(items=items, past=past, following=following), places


def log_probabilities(
    weights: Weights, sequences: Sequences, first: np.ndarray, begins: np.ndarray | None = None
) -> Scores:
    """Return log probabilities of each user's events from a given event on, by default of all events.

    Parameters
    ----------
    weights : Weights
    sequences : Sequences
    first : ndarray, (U, D)
        States before all events.
    begins : ndarray of int, (U,), optional
        Index, in each user's sequence, of the first event of which to return the log probability. Earlier events only
        determine the state.
    """
    lengths, last = sequences.lengths, first.copy()
    values = np.zeros(len(sequences.items), dtype=first.dtype)
    wanted = np.ones(len(values), dtype=bool)
    if begins is not None:
        wanted = np.arange(len(values)) >= np.repeat(sequences.ends[:-1] + begins, lengths)
    for users in _groups(lengths):
        user_weights, h = _own(weights, users), first[users]
        for begin in range(0, int(lengths[users[0]]), _TIMES):
            window, places = window_of(sequences, lengths, users, begin, _TIMES)
            n = int(window.counts[0])
            tape = forward(_first_users(user_weights, n), window, h[:n])
            h[:n] = tape.last
            is_wanted = wanted[places]
            assert window.past is not None, "windows of sequences have a past"
            past = window.past.of(is_wanted)
            values[places[is_wanted]] = log_softmax(weights, tape.states[is_wanted], window.items[is_wanted], past)[0]
        last[users] = h
    return Scores(values[wanted], last)


def next_log_probabilities(
    weights: Weights, states: np.ndarray, log_shares: np.ndarray, is_known: np.ndarray
) -> np.ndarray:
    """Return the log probabilities of all I items as the next item of k users, (k, I).

    Parameters
    ----------
    weights : Weights
    states : ndarray, (k, D)
    log_shares : ndarray, (k, K, I)
        Logarithms of the shares of all items in the K memories of each user.
    is_known : ndarray of bool, (k, I)
        Whether each user had each item before.
    """
    logits = states @ weights.outputs.T
    if len(weights.known):
        logits += is_known * weights.shift(states)[:, None]
    # log(exp(l_i) + sum_k exp(l_k) s_k(i)) - log sum_j exp(l_j), over items i and memories k, and over both as j.
    of_memories = states @ weights.memory[:, :-1].T + weights.memory[:, -1] + np.log(len(weights.outputs))
    total = logsumexp(np.concatenate([logits, of_memories], axis=1), axis=1, keepdims=True)
    for logit, log_share in zip(of_memories.T, log_shares.swapaxes(0, 1)):
        logits = np.logaddexp(logits, logit[:, None] + log_share)
    return logits - total


def sum_gradient(weights: Weights, sequences: Sequences, first: np.ndarray, cotangents: np.ndarray) -> Weights:
    """Return the gradient of the sum of log probabilities of all events, weighted by `cotangents`, (N,)."""
    total, lengths = Weights(*map(np.zeros_like, weights)), sequences.lengths
    for users in _groups(lengths):
        window, places = window_of(sequences, lengths, users, 0, int(lengths[users[0]]))
        gradient = window_gradient(_own(weights, users), window, first[users], cotangents=cotangents[places]).gradient
        if len(weights.recurrent) == 1:
            total.recurrent[...] += gradient.recurrent
        else:
            total.recurrent[users] = gradient.recurrent
        total.inputs[gradient.items] += gradient.inputs
        total.outputs[...] += gradient.outputs
        total.memory[...] += gradient.memory
        total.known[...] += gradient.known
        total.bias[...] += gradient.bias
    return total


def _groups(lengths: np.ndarray) -> Iterator[np.ndarray]:
    """Yield groups of users with events, users of most events first; `_EVENTS` limits the events of a group."""
    users = longest_first(lengths, np.arange(len(lengths)))
    group = (np.cumsum(lengths[users]) - 1) // _EVENTS
    yield from (chunk for chunk in np.split(users, np.flatnonzero(np.diff(group)) + 1) if len(chunk))


def _own(weights: Weights, users: np.ndarray) -> Weights:
    """Return weights with the recurrent matrices of some users."""
    return weights if len(weights.recurrent) == 1 else weights._replace(recurrent=weights.recurrent[users])


def _first_users(weights: Weights, n: int) -> Weights:
    return weights if len(weights.recurrent) == 1 else weights._replace(recurrent=weights.recurrent[:n])
