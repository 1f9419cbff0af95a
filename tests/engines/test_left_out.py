"""Calibration by pairs left out, against rows of data without them, held-out pairs, and a search for the exponents."""

import numpy as np
import pytest
import scipy.optimize
from scipy.special import log_expit, logsumexp

from pymc_ep.engines.partitions import LocalPartitions
from pymc_ep.models.paired_symbols.engine import left_out
from pymc_ep.models.paired_symbols.engine.divided import DividedPairs
from pymc_ep.models.paired_symbols.engine.state import first_state
from pymc_ep.models.paired_symbols.engine.updates import background
from pymc_ep.models.paired_symbols.engine.values import Block, PairCounts, PairedPrior, Points, Side, expected_priors
from pymc_ep.models.paired_symbols.engine.variational_bayes import VariationalBayes
from pymc_ep.models.paired_symbols.kernel import Censored, Priors, Symbols, update_rows

I, J, K = 80, 40, 2  # noqa: E741
NO_THETA = np.zeros(0)
NO_POINTS = Points(), Points()


def softmax_counts(seed=0):
    """Distinct pairs whose probabilities are exponential in the preferences, so that a sigmoid of them is too flat."""
    rng = np.random.default_rng(seed)
    u, v = 2.0 * rng.normal(size=(I, K)), rng.normal(size=(J, K))
    scores = u @ v.T + 0.5 * rng.normal(size=J) + rng.gumbel(size=(I, J))
    best = np.argsort(-scores, axis=1)[:, :8]
    counts = np.zeros((I, J))
    np.put_along_axis(counts, best, 1.0, axis=1)
    return counts


COUNTS = softmax_counts()
COUNTS[3, 4] = 2.0


def side_of(n):
    return Side(Block(np.zeros((n, K)), np.ones((n, K))), Block(np.zeros(n), np.ones(n)), np.ones(n))


PRIOR = PairedPrior(side_of(I), side_of(J), (), 2.0)


class Problem:
    def prior(self, theta):
        return PRIOR


def cells_of(counts):
    i, j = np.nonzero(counts)
    return PairCounts.of(i, j, counts[i, j], counts.shape)


def fitted(counts=COUNTS, sweeps=200, points=NO_POINTS, n_parts=1):
    pairs = DividedPairs.whole(cells_of(counts))
    if n_parts > 1:
        rows = tuple(np.arange(k, I, n_parts) for k in range(n_parts))
        parts = LocalPartitions([cells_of(counts[own]) for own in rows])
        pairs = DividedPairs(parts, rows, counts.sum(axis=1), counts.sum(axis=0), int((counts > 0).sum()))
    engine = VariationalBayes(pairs, points=points)
    state = engine.init(Problem(), first_state(PRIOR, NO_THETA, 0, points=points))
    for _ in range(sweeps):
        state = engine.step(Problem(), state)
    return engine, state


def pieces(engine, state, monkeypatch):
    """Pairs left out and rows of their items, as the calibration has them."""
    caught = {}

    def best(left, alone, items, concentration):
        caught["found"] = left, alone
        return None

    with monkeypatch.context() as context:
        context.setattr(left_out, "_best", best)
        engine.summarised(Problem(), state)
    return caught["found"]


@pytest.mark.parametrize("points", [NO_POINTS, (Points(), Points(True, True))], ids=["full", "points"])
@pytest.mark.parametrize("n_parts", [1, 3])
def test_rows_are_those_of_data_without_the_pair(points, n_parts, monkeypatch):
    engine, state = fitted(sweeps=30, points=points, n_parts=n_parts)
    left, alone = pieces(engine, state, monkeypatch)
    users, items = engine.whole(state)[:2]
    n = PRIOR.censored_ratio * COUNTS.sum()
    of_users, of_items = (background(rows.symbols, rows.popularity.censored) for rows in (users, items))
    assert len(left.items) == I
    for k in range(I):
        i = np.flatnonzero((users.symbols.mean == left.before.mean[k]).all(axis=1))[0]
        j = left.items[k]
        assert COUNTS[i, j] == left.counts[k] > 0
        rest = COUNTS.copy()
        rest[i, j] = 0.0
        for side, own, other, cells, row, of_other, found, which in (
            (PRIOR.users, users, items, cells_of(rest[i : i + 1]).by_user, i, of_items, left.users, 0),
            (PRIOR.items, items, users, cells_of(rest[:, j : j + 1]).by_item, j, of_users, alone, 1),
        ):
            one = Symbols(*(part[row : row + 1] for part in own.symbols))
            priors = Priors(*(part[row : row + 1] for part in expected_priors(side, ())))
            s, t = own.popularity.censored[row : row + 1], other.popularity.censored
            censored = Censored(n, s, t, of_other, state.xi)
            expected = points[which].of(update_rows(cells, one, other.symbols, priors, censored))
            for part, exact in zip(found, expected):
                np.testing.assert_allclose(part[k], exact[0], rtol=1e-8, atol=1e-9)


def test_held_out_pairs_are_predicted_nearly_as_well_as_by_the_best_exponents():
    """Exponents by closed-form updates, which never see the held-out pairs, beside those that fit them best."""
    counts = softmax_counts(1)
    held = np.array([np.random.default_rng(i).choice(np.flatnonzero(row)) for i, row in enumerate(counts)])
    learned = counts.copy()
    learned[np.arange(I), held] = 0.0
    engine, state = fitted(learned)
    users, items = engine.whole(state)[:2]
    u, v = users.symbols, items.symbols
    found = engine.summarised(Problem(), state).calibration
    concentration, preferences = items.popularity.concentration, u.mean @ v.mean.T + u.bias[:, None] + v.bias

    def mean_log_p(scores):
        unseen = np.where(learned > 0, -np.inf, scores)
        return float((scores[np.arange(I), held] - logsumexp(unseen, axis=1)).mean())

    def of(smoothing, popularity, preference):
        return mean_log_p(popularity * np.log(concentration + np.abs(smoothing)) + preference * preferences)

    best = scipy.optimize.minimize(lambda e: -of(*e), np.ones(3), method="Nelder-Mead")
    by_sigmoid = mean_log_p(np.log(concentration) + log_expit(preferences))
    assert of(*found[:3]) > -best.fun - 0.05
    assert of(*found[:3]) > by_sigmoid + 0.2


def log_probabilities(left, alone, items, concentration, smoothing, exponents):
    """Log probability of each pair left out among the items that its user has not been seen with, in loops."""
    out = []
    ends = np.cumsum(left.n_seen)
    for k, j in enumerate(left.items):
        seen = set(left.seen[ends[k] - left.n_seen[k] : ends[k]].tolist()) - {int(j)}
        scores = []
        for other in range(len(concentration)):
            mass, v, c = concentration[other], items.mean[other], items.bias[other]
            if other == j:
                mass, v, c = mass - left.counts[k], alone.mean[k], alone.bias[k]
            a = left.users.mean[k] @ v + left.users.bias[k] + c
            score = exponents[0] * np.log(mass + smoothing) + exponents[1] * a
            scores.append(-np.inf if other in seen else score)
        out.append(scores[j] - logsumexp(scores))
    return np.array(out)


def test_exponents_are_the_most_probable(monkeypatch):
    engine, state = fitted()
    left, alone = pieces(engine, state, monkeypatch)
    items, popularity = state.items

    found, tried = engine.summarised(Problem(), state).calibration, {}
    for smoothing in (0.0, found.smoothing, 16.0):

        def loss(exponents, k=smoothing):
            log_p = log_probabilities(left, alone, items, popularity.concentration, k, exponents)
            return -log_p.sum() + 0.5 * np.sum((exponents - 1.0) ** 2)

        best = scipy.optimize.minimize(loss, np.ones(2), method="Nelder-Mead", options={"xatol": 1e-6, "fatol": 1e-9})
        log_p = log_probabilities(left, alone, items, popularity.concentration, smoothing, best.x)
        tried[smoothing] = log_p.mean(), best.x
    best_log_p, exponents = tried[found.smoothing]
    # The smoothing has an exponential prior of mean 2.
    assert found.smoothing == max(tried, key=lambda k: I * tried[k][0] - k / 2.0)
    np.testing.assert_allclose(found[1:3], exponents, atol=1e-4)
    assert found.log_probability == pytest.approx(best_log_p, abs=1e-6) and found.n == I
    # The sigmoid is too flat for these data.
    assert found.preference > 1.3


def test_a_sum_over_drawn_items_is_near_that_over_all(monkeypatch):
    engine, state = fitted()
    whole = engine.summarised(Problem(), state).calibration
    # Draws with replacement are most of the items: weights of one that is left out are with the others.
    monkeypatch.setattr(left_out, "_CANDIDATES", J - 1)
    np.testing.assert_allclose(engine.summarised(Problem(), state).calibration[1:3], whole[1:3], atol=0.3)
    concentration = np.exp(np.random.default_rng(0).normal(size=5000))
    monkeypatch.setattr(left_out, "_CANDIDATES", 4096)
    which, log_weights = left_out._candidates(concentration)
    for power in (0.5, 1.0, 2.0):
        estimate = logsumexp(power * np.log(concentration[which]) + log_weights)
        assert estimate == pytest.approx(logsumexp(power * np.log(concentration)), abs=0.1)


def test_few_users_have_no_calibration():
    counts = COUNTS.copy()
    counts[29:] = 0.0
    engine, state = fitted(counts, sweeps=3)
    assert engine.summarised(Problem(), state).calibration is None
    counts[29] = COUNTS[29]
    engine, state = fitted(counts, sweeps=3)
    assert engine.summarised(Problem(), state).calibration.n == 30
