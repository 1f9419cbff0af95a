"""Variational Bayes for symmetric pairs, against a dense implementation, Monte Carlo and its own bound."""

import copy

import numpy as np
import pytest
from scipy.special import digamma, expit, logsumexp

from pymc_ep.models.paired_symbols.engine.state import first_state
from pymc_ep.models.paired_symbols.engine.symmetric import SymmetricBayes
from pymc_ep.models.paired_symbols.engine.values import (
    Block,
    GammaFactor,
    PairCounts,
    PairedPrior,
    Points,
    Popularity,
    Rows,
    Side,
)

from .symmetric_dense import SymmetricDense
from .test_paired_symbols import Problem

N, K = 6, 3
RNG = np.random.default_rng(4)
COUNTS = np.triu(RNG.poisson(0.8, (N, N)), 1).astype(float)
COUNTS[2] = COUNTS[:, 2] = 0.0
COUNTS += COUNTS.T
RATIO = 1.5


def prior_of(n=N, width=K, ratio=RATIO, gammas=()):
    factors = Block(np.zeros((n, width)), np.ones((n, width)), 0 if gammas else -1)
    side = Side(factors, Block(np.zeros(n), np.ones(n)), np.ones(n))
    return PairedPrior(side, side, gammas, ratio)


def cells_of(counts):
    i, j = np.nonzero(counts)
    return PairCounts.of(i, j, counts[i, j], counts.shape)


def started(engine, prior, seed=3, points=Points()):  # noqa: B008
    problem = Problem(prior)
    return problem, engine.init(problem, first_state(prior, np.zeros(0), seed, points=(points,)))


def dense_of(state, counts, prior):
    (symbols, popularity), n = state.users, len(counts)
    parts = [part.copy() for part in (*symbols, *popularity)]
    return SymmetricDense(counts, prior.censored_ratio * counts.sum() / 2, *parts, np.ones((n, n)), star=state.xi)


@pytest.mark.parametrize("sequential", [False, True], ids=["bulk", "sequential"])
@pytest.mark.parametrize("backend", ["numpy", "numba"])
def test_sweeps_are_those_of_a_dense_implementation(sequential, backend):
    prior = prior_of()
    engine = SymmetricBayes(cells_of(COUNTS), sequential=sequential, extrapolate=False, backend=backend)
    problem, state = started(engine, prior)
    dense = dense_of(state, COUNTS, prior)
    dense.update_xi()
    for _ in range(5):
        state = engine.step(problem, state)
        dense.sweep(sequential)
        (symbols, popularity) = state.users
        assert state.items is state.users
        np.testing.assert_allclose(symbols.mean, dense.u, rtol=0, atol=1e-10)
        np.testing.assert_allclose(symbols.variance, dense.u_var, rtol=0, atol=1e-10)
        np.testing.assert_allclose(symbols.bias, dense.b, rtol=0, atol=1e-10)
        np.testing.assert_allclose(popularity.censored, dense.s, rtol=0, atol=1e-10)
        np.testing.assert_allclose(popularity.concentration, dense.alpha, rtol=0, atol=1e-9)
        assert state.xi == pytest.approx(dense.star, abs=1e-10)
        assert state.log_bound == pytest.approx(dense.bound(), abs=1e-9)


@pytest.mark.parametrize("sequential", [False, True], ids=["bulk", "sequential"])
def test_every_line_raises_the_bound(sequential):
    prior = prior_of()
    dense = dense_of(started(SymmetricBayes(cells_of(COUNTS)), prior)[1], COUNTS, prior)
    dense.update_xi()
    for _ in range(60):
        dense.sweep(sequential)
    names, bounds = zip(*dense.lines)
    rises = np.diff(bounds)
    assert rises.min() > -1e-10, names[1 + int(np.argmin(rises))]
    assert bounds[-1] - bounds[0] > 5.0 and rises[-20:].max() < 1e-3


@pytest.mark.parametrize("gammas", [(), (GammaFactor(np.array(2.0), np.array(0.7)),)], ids=["fixed", "learned"])
def test_extrapolated_sweeps_raise_the_bound(gammas):
    rng = np.random.default_rng(1)
    u = 1.5 * rng.normal(size=(40, 2))
    counts = np.triu(rng.poisson(1.5 * expit(u @ u.T)), 1).astype(float)
    counts += counts.T
    sweeps, bounds = {}, {}
    for extrapolate in (False, True):
        engine = SymmetricBayes(cells_of(counts), extrapolate=extrapolate, tol=1e-8, backend="numba")
        problem, state = started(engine, prior_of(40, 3, 1.0, gammas), 0)
        while engine.finished(state) is None:
            before, state = state, engine.step(problem, state)
            assert state.objective > before.objective - 1e-9
        sweeps[extrapolate], bounds[extrapolate] = state.loop, state.log_bound
    assert sweeps[True] < 0.7 * sweeps[False]
    assert bounds[True] > bounds[False] - 1e-2


def log_evidence(counts, ratio, size=400_000):
    """Log density of the stream by draws of the prior, and its standard error, by a sum over ordered pairs."""
    rng, n = np.random.default_rng(0), len(counts)
    u, b, pi = rng.normal(size=(size, n)), rng.normal(size=(size, n)), rng.dirichlet(np.ones(n), size)
    log_p, kept = np.zeros(size), np.zeros(size)
    for i in range(n):
        for j in range(n):
            if i != j:
                chance = pi[:, i] * pi[:, j] * expit(u[:, i] * u[:, j] + b[:, i] + b[:, j])
                kept += chance
                if i < j:
                    log_p += counts[i, j] * np.log(2.0 * chance)
    log_p += ratio * counts.sum() / 2 * np.log1p(-kept)
    found = logsumexp(log_p) - np.log(size)
    return found, np.exp(log_p - found).std() / np.sqrt(size)


def test_the_bound_is_below_the_evidence():
    counts = np.array([[0.0, 2.0, 1.0], [2.0, 0.0, 0.0], [1.0, 0.0, 0.0]])
    engine = SymmetricBayes(cells_of(counts))
    problem, state = started(engine, prior_of(3, 1, 1.0), 0)
    for _ in range(300):
        state = engine.step(problem, state)
    exact, error = log_evidence(counts, 1.0)
    assert error < 0.01
    # The gap is the divergence of independent factors from the posterior.
    assert exact - 3.0 < state.log_bound < exact - 3 * error


def test_a_step_of_censored_symbols_is_halved_where_the_fixed_point_lowers_the_bound():
    """Two groups that prefer themselves: most of a censored pair is in one, and the fixed point has it in the other."""
    engine, prior = SymmetricBayes(cells_of(COUNTS)), prior_of()
    _, state = started(engine, prior)
    mean = np.zeros((N, K))
    mean[:, 0] = np.repeat([4.0, -4.0], N // 2)
    symbols = state.users.symbols._replace(mean=mean, variance=np.full((N, K), 0.01))
    s = np.repeat([0.9, 0.1], N // 2) / (N // 2)
    rows = Rows(symbols, Popularity.of(np.ones(N), COUNTS.sum(axis=1), RATIO * COUNTS.sum(), s))
    state = engine.init(Problem(prior), state._replace(users=rows, items=rows))
    dense = dense_of(state, COUNTS, prior)
    dense.update_xi()
    before = dense.bound()
    assert before == pytest.approx(state.log_bound, abs=1e-9)
    undamped = np.exp(digamma(dense.alpha) + dense.omega() @ s)
    dense.s = undamped / undamped.sum()
    assert dense.bound() < before - 1.0
    dense.s = engine._censored(state, dense.alpha)
    assert dense.bound() > before + 1.0


def test_points_maximise_the_bound_without_their_entropies():
    prior, points = prior_of(), Points(factors=True)
    engine = SymmetricBayes(cells_of(COUNTS), points=points)
    problem, state = started(engine, prior, points=points)
    bounds = [state.log_bound]
    for _ in range(60):
        state = engine.step(problem, state)
        bounds.append(state.log_bound)
    assert np.diff(bounds).min() > -1e-9
    assert not state.users.symbols.variance.any() and state.users.symbols.bias_variance.all()
    dense, tiny = dense_of(state, COUNTS, prior), 1e-14
    dense.u_var = np.full((N, K), tiny)
    dense.update_xi()
    assert state.log_bound == pytest.approx(dense.bound() - 0.5 * np.log(2 * np.pi * np.e * tiny) * N * K, abs=1e-6)
    at_best = dense.bound()
    for sign in (-1.0, 1.0):
        other = copy.deepcopy(dense)
        other.u[1] += sign * 0.05
        other.update_xi()
        assert other.bound() < at_best + 1e-6


def test_constant_messages_are_a_fixed_point_of_popularities():
    engine = SymmetricBayes(cells_of(COUNTS), constant_messages=True)
    problem, state = started(engine, prior_of())
    for _ in range(9):
        before, state = state, engine.step(problem, state)
        assert state.objective > before.objective - 1e-9
    concentration, s = state.users.popularity
    np.testing.assert_allclose(concentration, 1.0 + COUNTS.sum(axis=1) + RATIO * COUNTS.sum() * s)
    np.testing.assert_allclose(np.diff(np.log(s) - digamma(concentration)), 0.0, atol=1e-8)
