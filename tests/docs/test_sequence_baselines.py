"""Baselines of the benchmark of sequences beside sums by hand and over all paths; scores beside counting."""

from functools import partial
from itertools import product

import numpy as np
import pytest

from docs.benchmarks import _sequence_baselines as baselines
from docs.benchmarks import _sequence_data as data
from docs.benchmarks._sequence_networks import predictor_of, trained

N_ITEMS = 4
TASK = data.Task(
    [np.array([0, 1, 0, 1, 2]), np.array([2, 0, 1]), np.array([3, 3, 0, 1, 1, 0])],
    [np.array([0, 1]), np.array([], dtype=int), np.array([1, 2, 3])],
    N_ITEMS,
)
EVERY = slice(None)
METHODS = {
    "uniform": baselines.uniform,
    "1-gram": partial(baselines.unigram, epsilon=0.3),
    "own 1-gram": partial(baselines.own_unigram, epsilon=0.3, weight=2.0),
    "2-gram": partial(baselines.bigram, epsilon=0.3),
    "counts, mixed": partial(baselines.mixed_counts, epsilon=0.3, weights=[0.1, 0.2, 0.3, 0.4]),
    "factors": partial(baselines.factors, n_factors=2, penalty=0.1, weight=0.2, slope=1.5),
    "HMM": partial(baselines.hidden_markov, n_states=3, epsilon=0.1, iterations=4),
}


@pytest.mark.parametrize("method", METHODS)
def test_probabilities_sum_to_one(method):
    log_p = METHODS[method](TASK)(EVERY)
    assert log_p.shape == (5, N_ITEMS)
    np.testing.assert_allclose(np.exp(log_p).sum(axis=1), 1.0, atol=1e-12)


def test_two_grams_by_hand():
    """Two is followed by zero once, zero by one four times, one by zero twice and by one and two once each."""
    epsilon = 0.5
    counts = {2: [1, 0, 0, 0], 0: [0, 4, 0, 0], 1: [2, 1, 1, 0]}
    before, items = [2, 0, 0, 1, 2], [0, 1, 1, 2, 3]
    wanted = [np.log((counts[b][i] + epsilon) / (sum(counts[b]) + 4 * epsilon)) for b, i in zip(before, items)]
    scores = data.scored(TASK, baselines.bigram(TASK, epsilon))
    np.testing.assert_allclose(scores.log_p, wanted, rtol=1e-14)


def test_one_grams_by_hand():
    shared = (np.array([5, 6, 2, 2]) - [0, 1, 0, 0] + 0.5) / (14 + 2)
    np.testing.assert_allclose(np.exp(baselines.unigram(TASK, 0.5)(EVERY)), np.tile(shared, (5, 1)), rtol=1e-14)
    own = np.array([[2, 2, 1, 0]] * 2 + [[2, 2, 0, 2]] * 3) + 3.0 * shared
    found = baselines.own_unigram(TASK, 0.5, 3.0)(EVERY)
    np.testing.assert_allclose(np.exp(found), own / own.sum(axis=1, keepdims=True), rtol=1e-14)


def by_paths(items, start, transitions, emissions):
    """Probability of items, and expected states, transitions and starts given these, by the sum over all paths."""
    total, states = 0.0, np.zeros((len(items), len(start)))
    pairs = np.zeros_like(transitions)
    for path in product(range(len(start)), repeat=len(items)):
        p = start[path[0]] * np.prod(transitions[path[:-1], path[1:]]) * np.prod(emissions[path, items])
        total += p
        states[range(len(items)), path] += p
        np.add.at(pairs, (path[:-1], path[1:]), p)
    return total, states / total, pairs / total


def test_states_of_markov_models_by_all_paths():
    rng = np.random.default_rng(0)
    start, transitions = rng.dirichlet(np.ones(2)), rng.dirichlet(np.ones(2), 2)
    emissions = rng.dirichlet(np.ones(N_ITEMS), 2)
    events = baselines.Packed(TASK.before)
    states, pairs, first = baselines._expected(events, start, transitions, emissions)
    wanted = [by_paths(items, start, transitions, emissions) for items in TASK.before]
    of_places = np.empty_like(states)
    of_places[events.places] = states
    np.testing.assert_allclose(of_places, np.concatenate([s for _, s, _ in wanted]), rtol=1e-12)
    np.testing.assert_allclose(pairs, sum(p for *_, p in wanted), rtol=1e-12)
    np.testing.assert_allclose(first, sum(s[0] for _, s, _ in wanted), rtol=1e-12)
    _, joint = baselines._filtered(events, start, transitions, emissions)
    log_p = np.empty(len(joint))
    log_p[events.places] = np.log(joint.sum(axis=1))
    each = np.split(log_p, np.cumsum([len(items) for items in TASK.before])[:-1])
    np.testing.assert_allclose([own.sum() for own in each], np.log([p for p, *_ in wanted]), rtol=1e-12)


def test_new_items_share_what_known_ones_had():
    """The event of each of two users follows 0 1 0, and 3."""
    task = data.Task([np.array([0, 1, 0]), np.array([3])], [np.array([2]), np.array([2])], N_ITEMS)
    found = data.of_new_items(task, lambda here: np.log([[0.1, 0.2, 0.3, 0.4], [0.1, 0.2, 0.3, 0.4]])[here])
    np.testing.assert_allclose(np.exp(found(EVERY)), [[0, 0, 3 / 7, 4 / 7], [1 / 6, 2 / 6, 3 / 6, 0]], atol=1e-15)


def test_ties_count_by_chance(monkeypatch):
    """Of a user's items two are likelier, and one as likely: it is among the first three in two orders of two."""
    monkeypatch.setattr(data, "TOP", 3)
    log_p = np.log(np.array([[0.2, 0.3, 0.3, 0.2], [0.4, 0.1, 0.2, 0.3]] + [[0.1, 0.2, 0.3, 0.4]] * 3))
    scores = data.scored(TASK, lambda here: log_p[here])
    np.testing.assert_allclose(scores.recall, [0.5, 0.0, 1.0, 1.0, 1.0])
    np.testing.assert_allclose(data.user_mean(TASK.users, scores.recall), (0.25 + 1.0) / 2)


@pytest.mark.filterwarnings("ignore:The result of ml may be off")
def test_validation_events_are_those_of_a_fit():
    train = [np.arange(n) % N_ITEMS for n in (3, 20, 21, 60)]
    task = data.validation_of(train, N_ITEMS)
    assert [len(items) for items in task.after] == [1, 1, 2, 3]
    found = trained(task._replace(before=train), {"hidden": 2}, {"epochs": 1, "seed": 0})
    assert int(found.idata["fit"]["n_held_out"]) == 7
    scores = data.scored(task, predictor_of(task, found))
    held_out = float(found.idata["fit"]["held_out_nats"])
    np.testing.assert_allclose(-scores.log_p.mean(), held_out, rtol=1e-5)


def test_terciles_are_of_rising_entropy():
    sequences = [np.arange(n) for n in (1, 8, 2, 4, 16, 3)]
    entropy = data.entropies(sequences)
    np.testing.assert_allclose(entropy, np.log([1, 8, 2, 4, 16, 3]), atol=1e-14)
    assert data.terciles(entropy).tolist() == [0, 2, 0, 1, 2, 1]


def test_mixed_counts_by_hand():
    """The fourth event is a two, after a one, of a user whose events were 3 3 0 1 1 0 1: a two is none of them."""
    weights = [0.1, 0.2, 0.3, 0.4]
    found = np.exp(baselines.mixed_counts(TASK, 0.5, weights)(EVERY)[3])
    shared = (np.array([5, 5, 2, 2]) + 1.0) / 18
    after_one = (np.array([2, 1, 1, 0]) + 0.5) / 6
    counted = 0.5 ** (np.arange(7)[::-1] / baselines.HALF_LIFE)
    own = np.array([2, 3, 0, 2]) / 7, np.bincount([3, 3, 0, 1, 1, 0, 1], counted) / counted.sum()
    expected = weights[0] * shared + weights[1] * after_one + weights[2] * own[0] + weights[3] * own[1]
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_best_weights_are_no_worse_than_others():
    rng = np.random.default_rng(0)
    best = -data.scored(TASK, baselines.mixed_counts(TASK, 0.5, baselines.best_weights(TASK, 0.5))).log_p.mean()
    for weights in rng.dirichlet(np.ones(4), 50):
        assert -data.scored(TASK, baselines.mixed_counts(TASK, 0.5, weights)).log_p.mean() > best - 1e-6
