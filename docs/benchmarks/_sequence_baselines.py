"""Baselines of the benchmark of sequences: counts, matrix factorisation and hidden Markov models.

Each learns from the events before those of a `Task`, and predicts these by `Predictor`.
"""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import scipy.optimize
from scipy import sparse
from scipy.special import log_softmax

from docs.benchmarks._rankers import alternating_least_squares
from docs.benchmarks._sequence_data import Predictor, Task, scored, user_mean
from pymc_ep.models.sequences.kernel import Sequences, longest_first, window_of
from pymc_ep.models.sequences.kernel.memory import last_log_shares

__all__ = [
    "best_slope",
    "best_weights",
    "bigram",
    "chosen",
    "count_parts",
    "factor_scores",
    "factors",
    "hidden_markov",
    "mixed_counts",
    "nats",
    "own_unigram",
    "uniform",
    "unigram",
]

SWEEPS, STEEPEST = 8, 30.0
"""Of matrix factorisation: sweeps, and the largest factor of its scores."""
HALF_LIFE, EVENTS = 5.0, 64
"""Of mixed counts: that of recent events, and events whose probabilities are held at a time."""


def nats(task: Task, predictor: Predictor) -> float:
    """Return the nats of an event: means over users of those of their events."""
    return -user_mean(task.users, scored(task, predictor).log_p)


def chosen(
    validation: Task, method: Callable[..., Predictor], settings: Iterable[dict[str, Any]]
) -> tuple[dict[str, Any], float]:
    """Return the settings of a method with the fewest nats for the validation events, and these."""
    found = [(nats(validation, method(validation, **one)), i, one) for i, one in enumerate(settings)]
    best, _, one = min(found)
    return one, best


def _same(log_p: np.ndarray, task: Task) -> Predictor:
    """Predict all events alike."""
    n = len(task.items)
    return lambda here: np.tile(log_p, (len(range(n)[here]), 1))


def uniform(task: Task) -> Predictor:
    """Predict all items alike."""
    return _same(np.full(task.n_items, -np.log(task.n_items)), task)


def unigram(task: Task, epsilon: float) -> Predictor:
    """Predict by counts of items, and epsilon more for each."""
    counts = np.bincount(np.concatenate(task.before), minlength=task.n_items) + epsilon
    return _same(np.log(counts / counts.sum()), task)


def own_unigram(task: Task, epsilon: float, weight: float) -> Predictor:
    """Predict by each user's counts of items, and as many more as `weight` by those of all users."""
    counts, users = _visits(task), task.users
    shared = weight * np.exp(unigram(task, epsilon)(slice(0, 1))[0])

    def log_p(here: slice) -> np.ndarray:
        own = counts[users[here]].toarray() + shared
        return np.log(own / own.sum(axis=1, keepdims=True))

    return log_p


def bigram(task: Task, epsilon: float) -> Predictor:
    """Predict by counts of the items that follow the item before, and epsilon more for each."""
    pairs = [(items[:-1], items[1:]) for items in task.before]
    first, second = (np.concatenate(side) for side in zip(*pairs))
    counts = _counted(first, second, (task.n_items, task.n_items))
    previous = task.previous

    def log_p(here: slice) -> np.ndarray:
        own = counts[previous[here]].toarray() + epsilon
        return np.log(own / own.sum(axis=1, keepdims=True))

    return log_p


def count_parts(task: Task, epsilon: float) -> Predictor:
    """Return the probabilities of all items by four counts, (4, k, I), that `mixed_counts` mixes.

    They are counts of all users' items, of what follows the item before, of the user's own events, and of these where
    an event counts half after `HALF_LIFE` others.
    """
    shared = unigram(task, 1.0), bigram(task, epsilon)
    past = task.past

    def parts(here: slice) -> np.ndarray:
        own = np.exp(last_log_shares(past[here], task.n_items, (np.inf, HALF_LIFE)))
        return np.concatenate([np.exp([one(here) for one in shared]), own.swapaxes(0, 1)])

    return parts


def mixed_counts(task: Task, epsilon: float, weights: list[float]) -> Predictor:
    """Predict by a mixture of `count_parts`."""
    parts = count_parts(task, epsilon)
    return lambda here: np.log(np.tensordot(weights, parts(here), axes=1))


def best_weights(task: Task, epsilon: float) -> list[float]:
    """Return the weights of a mixture under which the events of a task are the likeliest, by 200 steps of EM."""
    parts, items, own = count_parts(task, epsilon), task.items, []
    for begin in range(0, len(items), EVENTS):
        here = slice(begin, begin + EVENTS)
        chosen_items = items[here]
        own.append(parts(here)[:, np.arange(len(chosen_items)), chosen_items])
    p = np.concatenate(own, axis=1)
    weights = np.full(len(p), 1.0 / len(p))
    for _ in range(200):
        joint = weights[:, None] * p
        weights = (joint / joint.sum(axis=0)).mean(axis=1)
    return weights.tolist()


def factors(task: Task, n_factors: int, penalty: float, weight: float, slope: float, seed: int = 0) -> Predictor:
    """Predict by softmax(slope u . v), with u . v factors of log(1 + count) by weighted-lambda regularisation.

    A row is penalised in proportion to its entries (Zhou et al. 2008); cells without a count are zeros of some weight.
    """
    scores = factor_scores(task, n_factors, penalty, weight, seed)
    return lambda here: log_softmax(slope * scores(here), axis=1)


def factor_scores(task: Task, n_factors: int, penalty: float, weight: float, seed: int = 0) -> Predictor:
    """Return the scores u . v of all items, in place of log probabilities."""
    counts, users = _visits(task), task.users
    counts.data = np.log1p(counts.data)
    left, right = alternating_least_squares(counts, n_factors, penalty, weight, seed, SWEEPS)
    return lambda here: left[users[here]] @ right.T


def best_slope(task: Task, scores: Predictor) -> float:
    """Return the slope of `factors` with the fewest nats for the events of a task."""

    def loss(slope: float) -> float:
        return nats(task, lambda here: log_softmax(slope * scores(here), axis=1))

    return float(scipy.optimize.minimize_scalar(loss, bounds=(0.0, STEEPEST), options={"maxiter": 15}).x)


def hidden_markov(task: Task, n_states: int, epsilon: float, iterations: int, seed: int = 0) -> Predictor:
    """Predict by a hidden Markov model of all users, fitted by Baum-Welch; epsilon is added to counts of emissions."""
    rng = np.random.default_rng(seed)
    events = Packed(task.before)
    of_items = _counted(events.items, np.arange(len(events.items)), (task.n_items, len(events.items)))
    popular = of_items.sum(axis=1) + epsilon
    start, transitions = np.full(n_states, 1.0 / n_states), rng.dirichlet(np.ones(n_states), n_states)
    emissions = _normalised(popular * rng.gamma(1.0, size=(n_states, task.n_items)))
    for _ in range(iterations):
        states, pairs, first = _expected(events, start, transitions, emissions)
        emissions = _normalised((of_items @ states).T + epsilon)
        start, transitions = _normalised(first), _normalised(pairs)
    both = Packed([np.append(b, a) for b, a in zip(task.before, task.after)])
    before, _ = _filtered(both, start, transitions, emissions)
    wanted = np.concatenate([np.arange(len(b) + len(a)) >= len(b) for b, a in zip(task.before, task.after)])
    predicted = np.empty_like(before)
    predicted[both.places] = before
    predicted = predicted[wanted]
    return lambda here: np.log(predicted[here] @ emissions)


class Packed:
    """Events of all users, by time; attributes as in `pymc_ep.models.sequences.kernel.Window`, and their places."""

    def __init__(self, sequences: list[np.ndarray]):
        lengths = np.array(list(map(len, sequences)))
        users, every = longest_first(lengths, np.arange(len(lengths))), Sequences.of_parts(sequences, 0)
        window, self.places = window_of(every, lengths, users, 0, int(lengths.max()))
        self.items, self.counts, self.begins = window.items, window.counts, window.begins


def _filtered(
    events: Packed, start: np.ndarray, transitions: np.ndarray, emissions: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the probabilities of states given the events before, (N, K), and those times the event's own."""
    before, joint = np.empty((2, len(events.items), len(start)))
    own = emissions.T[events.items]
    predicted = np.tile(start, (events.counts[0], 1))
    for begin, n in zip(events.begins, events.counts):
        here = slice(begin, begin + n)
        before[here] = predicted[:n]
        joint[here] = predicted[:n] * own[here]
        predicted = (joint[here] / joint[here].sum(axis=1, keepdims=True)) @ transitions
    return before, joint


def _expected(
    events: Packed, start: np.ndarray, transitions: np.ndarray, emissions: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the probabilities of states given all events, (N, K), and expected numbers of transitions and starts."""
    _, joint = _filtered(events, start, transitions, emissions)
    own = emissions.T[events.items]
    scale = joint.sum(axis=1, keepdims=True)
    states, pairs = joint / scale, np.zeros_like(transitions)
    # Of each event, the later ones' probability given each state over that given all before.
    later, after = np.ones_like(joint), 0
    for begin, n in zip(events.begins[::-1], events.counts[::-1]):
        if after:
            here, then = slice(begin, begin + after), slice(begin + n, begin + n + after)
            next_one = own[then] * later[then] / scale[then]
            later[here] = next_one @ transitions.T
            pairs += transitions * (states[here].T @ next_one)
        after = n
    states *= later
    return states, pairs, states[: events.counts[0]].sum(axis=0)


def _normalised(weights: np.ndarray) -> np.ndarray:
    return weights / weights.sum(axis=-1, keepdims=True)


def _visits(task: Task) -> sparse.csr_array:
    """Return each user's counts of items before the task's events, (users, items)."""
    users = np.repeat(np.arange(len(task.before)), list(map(len, task.before)))
    return _counted(users, np.concatenate(task.before), (len(task.before), task.n_items))


def _counted(rows: np.ndarray, columns: np.ndarray, shape: tuple[int, int]) -> sparse.csr_array:
    return sparse.csr_array((np.ones(len(rows)), (rows, columns)), shape=shape)
