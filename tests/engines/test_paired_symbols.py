"""Variational Bayes for paired symbols, against a dense implementation, Monte Carlo and its own bound."""

import copy

import numpy as np
import pytest
from scipy.special import expit, logsumexp

from pymc_ep.engines.partitions import LocalPartitions, added
from pymc_ep.models.paired_symbols.engine.bound import side_terms, updated_gammas
from pymc_ep.models.paired_symbols.engine.divided import DividedPairs
from pymc_ep.models.paired_symbols.engine.state import first_state
from pymc_ep.models.paired_symbols.engine.values import Block, GammaFactor, PairCounts, PairedPrior, Points, Side
from pymc_ep.models.paired_symbols.engine.variational_bayes import VariationalBayes

from .paired_dense import Dense

I, J, K = 6, 5, 3  # noqa: E741
RNG = np.random.default_rng(4)
COUNTS = RNG.poisson(0.8, (I, J)).astype(float)
COUNTS[2] = 0.0
RATIO = 1.5
GAMMA = GammaFactor(np.array(2.0), np.array(0.7))


def prior_of(shape=(I, J, K), ratio=RATIO, gammas=()):
    def side(n):
        factors = Block(np.zeros((n, shape[2])), np.ones((n, shape[2])), 0 if gammas else -1)
        return Side(factors, Block(np.zeros(n), np.ones(n)), np.ones(n))

    return PairedPrior(side(shape[0]), side(shape[1]), gammas, ratio)


class Problem:
    """A model without hyperparameters."""

    def __init__(self, prior):
        self.fixed = prior

    def prior(self, theta):
        return self.fixed


def pairs_of(counts, n_parts=1):
    """Pairs in parts, whose users alternate."""
    if n_parts == 1:
        return DividedPairs.whole(cells_of(counts))
    rows = tuple(np.arange(k, len(counts), n_parts) for k in range(n_parts))
    parts = LocalPartitions([cells_of(counts[own]) for own in rows])
    return DividedPairs(parts, rows, counts.sum(axis=1), counts.sum(axis=0), int((counts > 0).sum()))


def cells_of(counts):
    i, j = np.nonzero(counts)
    return PairCounts.of(i, j, counts[i, j], counts.shape)


def dense_of(state, counts, prior):
    gamma = tuple(map(float, state.gammas[0])) if state.gammas else ()
    parts = [part.copy() for side in (state.users, state.items) for part in side.symbols]
    return Dense(
        counts,
        prior.censored_ratio * counts.sum(),
        *(parts[k] for k in (0, 1, 4, 5, 2, 3, 6, 7)),
        state.users.popularity.concentration,
        state.items.popularity.concentration,
        state.users.popularity.censored,
        state.items.popularity.censored,
        np.ones(counts.shape),
        star=state.xi,
        gamma=gamma,
        gamma_prior=tuple(map(float, prior.gammas[0])) if prior.gammas else (),
    )


@pytest.fixture(params=["numpy", "numba"])
def backend(request):
    return request.param


@pytest.mark.parametrize("gammas", [(), (GAMMA,)], ids=["fixed", "learned"])
@pytest.mark.parametrize("sequential", [False, True], ids=["bulk", "sequential"])
@pytest.mark.parametrize("n_parts", [1, 3])
def test_sweeps_are_those_of_a_dense_implementation(gammas, sequential, backend, n_parts):
    prior = prior_of(gammas=gammas)
    pairs = pairs_of(COUNTS, n_parts)
    engine = VariationalBayes(pairs, sequential=sequential, extrapolate=False, backend=backend)
    problem = Problem(prior)
    state = engine.init(problem, first_state(prior, np.zeros(0), 3))
    dense = dense_of(engine.whole(state), COUNTS, prior)
    dense.update_xi()
    for _ in range(4):
        state = engine.step(problem, state)
        users, items = engine.whole(state)[:2]
        dense.sweep(sequential)
        np.testing.assert_allclose(users.symbols.mean, dense.u, rtol=0, atol=1e-10)
        np.testing.assert_allclose(items.symbols.variance, dense.v_var, rtol=0, atol=1e-10)
        np.testing.assert_allclose(items.symbols.bias, dense.c, rtol=0, atol=1e-10)
        np.testing.assert_allclose(users.popularity.censored, dense.s, rtol=0, atol=1e-10)
        np.testing.assert_allclose(items.popularity.concentration, dense.beta, rtol=0, atol=1e-9)
        assert state.xi == pytest.approx(dense.star, abs=1e-10)
        assert state.log_bound == pytest.approx(dense.bound(), abs=1e-9)


@pytest.mark.parametrize("sequential", [False, True], ids=["bulk", "sequential"])
def test_every_line_raises_the_bound(sequential):
    prior = prior_of(gammas=(GAMMA,))
    state = first_state(prior, np.zeros(0), 3)
    dense = dense_of(state, COUNTS, prior)
    for _ in range(60):
        dense.sweep(sequential)
    names, bounds = zip(*dense.lines)
    rises = np.diff(bounds)
    assert rises.min() > -1e-10, names[1 + int(np.argmin(rises))]
    assert bounds[-1] - bounds[0] > 10.0 and rises[-20:].max() < 1e-3


def test_both_variants_end_at_the_same_bound():
    prior = prior_of()
    ends = []
    for sequential in (False, True):
        engine, problem = VariationalBayes(pairs_of(COUNTS), sequential=sequential), Problem(prior)
        state = engine.init(problem, first_state(prior, np.zeros(0), 3))
        for _ in range(800):
            state = engine.step(problem, state)
        ends.append(state.log_bound)
    assert ends[0] == pytest.approx(ends[1], abs=1e-4)


def log_evidence(counts, prior, size=400_000):
    """Log density of the stream by draws of the prior, and its standard error."""
    rng = np.random.default_rng(0)
    n, m = counts.shape
    precision = np.ones(size)
    if prior.gammas:
        precision = rng.gamma(prior.gammas[0].shape, 1 / prior.gammas[0].rate, size)
    u, v = (rng.normal(size=(size, k, 1)) / np.sqrt(precision)[:, None, None] for k in (n, m))
    a = u @ v.swapaxes(1, 2) + rng.normal(size=(size, n, 1)) + rng.normal(size=(size, 1, m))
    pi, psi = rng.dirichlet(np.ones(n), size), rng.dirichlet(np.ones(m), size)
    cells = np.log(pi)[:, :, None] + np.log(psi)[:, None]
    censored = logsumexp(cells + np.log(expit(-a)), axis=(1, 2))
    log_p = (counts * (cells + np.log(expit(a)))).sum(axis=(1, 2)) + prior.censored_ratio * counts.sum() * censored
    found = logsumexp(log_p) - np.log(size)
    return found, np.exp(log_p - found).std() / np.sqrt(size)


@pytest.mark.parametrize("gammas", [(), (GAMMA,)], ids=["fixed", "learned"])
def test_the_bound_is_below_the_evidence(gammas):
    counts = np.array([[2.0, 0.0], [1.0, 1.0]])
    prior = prior_of((2, 2, 1), 1.0, gammas)
    engine, problem = VariationalBayes(pairs_of(counts)), Problem(prior)
    state = engine.init(problem, first_state(prior, np.zeros(0), 0))
    for _ in range(300):
        state = engine.step(problem, state)
    exact, error = log_evidence(counts, prior)
    assert error < 0.01
    # The gap is the divergence of independent factors from the posterior, about 4 nats here.
    assert exact - 6.0 < state.log_bound < exact - 3 * error


def terms_of(prior, state):
    return tuple(
        side_terms(side, rows, np.zeros(len(side.concentration)), 1.0, rows.popularity.concentration.sum())
        for side, rows in zip((prior.users, prior.items), (state.users, state.items))
    )


def test_the_precision_is_the_best_gamma():
    prior = prior_of(gammas=(GAMMA,))
    state = first_state(prior, np.zeros(0), 3)
    dense = dense_of(state, COUNTS, prior)
    best = updated_gammas(prior, terms_of(prior, state))[0]
    dense.gamma = tuple(map(float, best))
    at_best = dense.bound()
    for shape, rate in ((1.02, 1.0), (0.98, 1.0), (1.0, 1.02), (1.0, 0.98)):
        other = copy.copy(dense)
        other.gamma = best.shape * shape, best.rate * rate
        assert other.bound() < at_best


def test_precisions_of_columns_are_updated_by_column():
    gammas = (GammaFactor(np.full(K, 2.0), np.full(K, 0.7)),)
    prior = prior_of(gammas=gammas)
    state = first_state(prior, np.zeros(0), 3)
    found = updated_gammas(prior, terms_of(prior, state))[0]
    square = sum((rows.symbols.mean**2 + rows.symbols.variance).sum(axis=0) for rows in state[:2])
    np.testing.assert_allclose(found.shape, 2.0 + 0.5 * (I + J))
    np.testing.assert_allclose(found.rate, 0.7 + 0.5 * square)


def test_constant_messages_do_not_prune_rare_symbols():
    rng = np.random.default_rng(0)
    counts = rng.poisson(np.outer(np.ones(30), 4.0 * 0.8 ** np.arange(25))).astype(float)
    popularity = {}
    for constant in (False, True):
        prior = prior_of((30, 25, 2), 1.0)
        engine = VariationalBayes(pairs_of(counts), constant_messages=constant)
        problem = Problem(prior)
        state = engine.init(problem, first_state(prior, np.zeros(0), 0))
        for _ in range(150):
            state = engine.step(problem, state)
        popularity[constant] = state.items.popularity.censored
    seen = counts.sum(axis=0) / counts.sum()
    rare = (seen > 0) & (seen < 0.01)
    error = {constant: np.abs(np.log(t[rare] / seen[rare])).mean() for constant, t in popularity.items()}
    assert error[True] < error[False]


def test_a_complete_matrix_has_no_cells_for_the_common_bound():
    counts = np.ones((3, 3))
    prior = prior_of((3, 3, 2), 1.0)
    engine, problem = VariationalBayes(pairs_of(counts)), Problem(prior)
    state = engine.init(problem, first_state(prior, np.zeros(0), 0))
    bounds = [state.log_bound]
    for _ in range(100):
        state = engine.step(problem, state)
        bounds.append(state.log_bound)
    assert state.xi == 1.0
    assert np.isfinite(bounds).all() and np.diff(bounds).min() > -1e-10


def test_single_precision_is_near_double():
    prior = prior_of()
    found = {}
    for dtype in ("float64", "float32"):
        engine, problem = VariationalBayes(pairs_of(COUNTS), backend="numba"), Problem(prior)
        state = engine.init(problem, first_state(prior, np.zeros(0), 3, dtype))
        for _ in range(50):
            state = engine.step(problem, state)
        found[dtype] = engine.whole(state)
        assert found[dtype].users.symbols.mean.dtype == dtype
    means = (found[dtype].users.symbols.mean for dtype in ("float32", "float64"))
    np.testing.assert_allclose(*means, atol=1e-4)
    assert found["float32"].log_bound == pytest.approx(found["float64"].log_bound, abs=1e-3)


def test_extrapolation_ends_at_the_same_bound_in_fewer_sweeps():
    rng = np.random.default_rng(1)
    u, v = rng.normal(size=(40, 2)), rng.normal(size=(30, 2))
    counts = rng.poisson(2.0 * expit(u @ v.T)).astype(float)
    prior = prior_of((40, 30, 3), 1.0)
    sweeps, bounds = {}, {}
    for extrapolate in (False, True):
        engine = VariationalBayes(pairs_of(counts), extrapolate=extrapolate, tol=1e-8)
        problem = Problem(prior)
        state = engine.init(problem, first_state(prior, np.zeros(0), 0))
        while engine.finished(state) is None:
            before, state = state, engine.step(problem, state)
            assert state.objective > before.objective - 1e-9
        sweeps[extrapolate], bounds[extrapolate] = state.loop, state.log_bound
    assert sweeps[True] < 0.6 * sweeps[False]
    assert bounds[True] > bounds[False] - 1e-3


def test_points_maximise_the_bound_without_their_entropies():
    """With items as points the objective is the dense bound without entropies of the items, and never falls."""
    prior, points = prior_of(), (Points(), Points(factors=True, bias=True))
    engine = VariationalBayes(pairs_of(COUNTS), points=points)
    problem = Problem(prior)
    state = engine.init(problem, first_state(prior, np.zeros(0), 3, points=points))
    bounds = [state.log_bound]
    for _ in range(60):
        state = engine.step(problem, state)
        bounds.append(state.log_bound)
    assert np.diff(bounds).min() > -1e-9
    state = engine.whole(state)
    assert not state.items.symbols.variance.any() and state.users.symbols.variance.all()
    dense = dense_of(state, COUNTS, prior)
    # A variance so small that only its entropy tells it from zero.
    tiny = 1e-14
    dense.v_var, dense.c_var = np.full((J, K), tiny), np.full(J, tiny)
    dense.update_xi()
    entropies = 0.5 * np.log(2 * np.pi * np.e * tiny) * J * (K + 1)
    assert state.log_bound == pytest.approx(dense.bound() - entropies, abs=1e-6)
    for part in ("v", "c"):
        at_best = dense.bound()
        for sign in (-1.0, 1.0):
            other = copy.deepcopy(dense)
            getattr(other, part)[2] += sign * 0.05
            other.update_xi()
            assert other.bound() < at_best + 1e-6


@pytest.mark.parametrize("options", [{}, {"constant_messages": True}, {"sequential": True}], ids=str)
def test_parts_make_the_same_sweeps_as_the_whole(options, monkeypatch):
    """With extrapolated sweeps, learned precisions by column, items in blocks, and a part without pairs."""
    rng = np.random.default_rng(5)
    counts = rng.poisson(0.6, (14, 9)).astype(float)
    counts[2::7] = 0.0
    prior = prior_of((14, 9, 3), 1.5, (GammaFactor(np.full(3, 2.0), np.full(3, 0.7)),))
    whole, found = [], {}
    for n_parts in (1, 2, 7):
        pairs = pairs_of(counts, n_parts)
        engine, problem = VariationalBayes(pairs, **options), Problem(prior)
        if n_parts > 1:
            monkeypatch.setattr(LocalPartitions, "term_bytes", 300)
        state = engine.init(problem, first_state(prior, np.zeros(0), 3))
        bounds = [state.log_bound]
        for _ in range(30):
            state = engine.step(problem, state)
            bounds.append(state.log_bound)
        whole.append(bounds)
        found[n_parts] = engine.whole(state), engine.summarised(problem, state, calibrate=False).log_normalisers
    np.testing.assert_allclose(whole[1:], [whole[0]] * 2, rtol=0, atol=1e-9)
    for n_parts in (2, 7):
        for one, other in zip(flat(found[n_parts]), flat(found[1]), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-9)


def flat(values):
    if isinstance(values, tuple):
        return [part for one in values for part in flat(one)]
    return [] if values is None else [values]


def test_terms_add_up_by_their_parts():
    one, other = (np.arange(2.0), None, (1.0, GAMMA)), (np.ones(2), 2.0, (3.0, GAMMA))
    total = added(one, other)
    assert total[0].tolist() == [1.0, 2.0] and total[1] == 2.0 and total[2][0] == 4.0
    assert isinstance(total[2][1], GammaFactor) and float(total[2][1].rate) == pytest.approx(1.4)
    with pytest.raises(ValueError, match="3 parts need as many values, and got 2"):
        LocalPartitions([0, 1, 2]).place([1, 2])
