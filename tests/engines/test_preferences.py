"""Engine of preferences: against dense EP, importance sampling, finite differences and numerical maximisation."""

from itertools import pairwise

import numpy as np
import pytest
import scipy.optimize
import scipy.sparse
from scipy.stats import norm

from pymc_ep.engines.base import Report
from pymc_ep.engines.loop import run
from pymc_ep.engines.partitions import LocalPartitions
from pymc_ep.models.preferences.engine import maximisation
from pymc_ep.models.preferences.engine.approximations import EXPECTATION
from pymc_ep.models.preferences.engine.em import PreferenceEM
from pymc_ep.models.preferences.engine.evidence import ComparisonEvidence
from pymc_ep.models.preferences.engine.evidence_search import maximise
from pymc_ep.models.preferences.engine.kernels import DenseKernel, LowRankKernel
from pymc_ep.models.preferences.engine.maximisation import Statistics, first_factors, maximised
from pymc_ep.models.preferences.engine.users import Effort, ObservedComparisons, UserFactors
from pymc_ep.models.preferences.engine.values import ComparedUsers, Learned, UtilityPrior
from pymc_ep.sites.base import get_site

from .preference_dense import contrasts, dense_ep, simulated

EVERY = Learned(mean=True, factors=True, scale=True)


UNSEEN = {"report": Report(), "save": lambda state: None}


class Problem:
    """Parameters of the prior as hyperparameters: b, V and log s, with a flat prior."""

    def __init__(self, prior, kernel):
        self.shape, self.kernel = prior.factors.shape, kernel

    def prior(self, theta):
        n, d = self.shape
        return UtilityPrior(theta[:n], theta[n:-1].reshape(n, d), float(np.exp(2.0 * theta[-1]))), self.kernel

    def log_prior(self, theta):
        return 0.0

    def gradient(self, theta, slope, curvature):
        prior, kernel = self.prior(theta)
        in_factors, in_scale = -curvature @ prior.factors, -prior.scale * kernel.inner(curvature)
        return np.concatenate([slope, in_factors.ravel(), [in_scale]])

    def theta_of(self, theta, prior):
        return np.concatenate([prior.mean, prior.factors.ravel(), [0.5 * np.log(prior.scale)]])


def problem(
    seed=0, parts=1, held=None, tol=1e-11, link="probit", approximation=EXPECTATION, scaled=1.0, kernel=None, **sizes
):
    (mean, factors, scale, matrix), rows = simulated(seed=seed, **sizes)
    prior = UtilityPrior(mean, np.sqrt(scaled) * factors, scaled * scale)
    compared = ComparedUsers.of(*rows, len(mean))
    n_pairs = len(compared.order)
    observed = np.ones(n_pairs) if held is None else 1.0 - held
    own = Problem(prior, DenseKernel(matrix) if kernel is None else kernel)
    cuts = np.linspace(0, len(compared.users), parts + 1).astype(int)
    some = [compared.comparisons.some(np.arange(a, b)) for a, b in pairwise(cuts)]
    data = [ObservedComparisons(one, observed[pairs]) for one, _, pairs, _ in some]
    partitions = LocalPartitions(data)
    evidence = ComparisonEvidence(
        partitions,
        len(compared.users),
        int(observed.sum()),
        get_site(link),
        Effort(tol, 500),
        approximation,
        holds_out=held is not None,
    )
    first = evidence.at(
        own,
        own.theta_of(None, prior),
        partitions.place([UserFactors.first(one.comparisons) for one in data]),
    )
    return own, evidence, first, compared, rows, prior


def test_factors_equal_dense_ep():
    own, _, first, compared, (users, winners, losers), prior = problem(n_users=6)
    covariance = prior.factors @ prior.factors.T + prior.scale * own.kernel.matrix
    (factors,) = first.users
    for place, u in enumerate(compared.users):
        mine = users == u
        precision, shift, at, _, log_z = dense_ep(prior.mean, covariance, winners[mine], losers[mine])
        items, pairs = compared.comparisons.of_user(place)
        given = np.flatnonzero(mine)
        order = np.searchsorted(given, compared.order[pairs])
        np.testing.assert_allclose(factors.sites.precision[pairs], precision[order], atol=1e-8)
        np.testing.assert_allclose(factors.sites.shift[pairs], shift[order], atol=1e-8)
        assert factors.log_z[place] == pytest.approx(log_z, abs=1e-8)
        found = prior.mean + covariance[:, compared.comparisons.items[items]] @ factors.weights[items]
        np.testing.assert_allclose(found, at, atol=1e-7)


def test_repeated_and_contradictory_comparisons_settle_under_a_wide_prior():
    winners, losers = np.array([0, 0, 0, 1, 1, 2, 0]), np.array([1, 1, 1, 0, 2, 0, 2])
    compared = ComparedUsers.of(np.zeros(7, dtype=int), winners, losers, 3)
    prior, kernel = UtilityPrior(np.zeros(3), np.zeros((3, 0)), 100.0), np.eye(3)
    own = Problem(prior, DenseKernel(kernel))
    parts = LocalPartitions([ObservedComparisons(compared.comparisons, np.ones(7))])
    evidence = ComparisonEvidence(parts, 1, 7, get_site("probit"), Effort(1e-10, 500))
    first = evidence.at(own, own.theta_of(None, prior), parts.place([UserFactors.first(compared.comparisons)]))
    assert first.users[0].change.max() <= 1e-10
    *_, log_z = dense_ep(np.zeros(3), 100.0 * np.eye(3), winners, losers, rounds=400)
    assert first.objective == pytest.approx(log_z, abs=1e-7)


def test_evidence_agrees_with_importance_sampling():
    own, _, first, compared, (users, winners, losers), prior = problem(n_users=3, seed=4)
    covariance = prior.factors @ prior.factors.T + prior.scale * own.kernel.matrix
    rng = np.random.default_rng(0)
    for place, u in enumerate(compared.users):
        mine = users == u
        draws = rng.multivariate_normal(prior.mean, covariance, size=400_000)
        log_p = norm.logcdf(draws @ contrasts(winners[mine], losers[mine], len(prior.mean)).T).sum(axis=1)
        weights = np.exp(log_p)
        error = weights.std() / weights.mean() / np.sqrt(len(weights))
        # EP's own error is below 0.02 nats for each of these users.
        assert first.users[0].log_z[place] == pytest.approx(np.log(weights.mean()), abs=0.02 + 3.0 * error)


def test_gradient_equals_finite_differences():
    own, evidence, first, *_ = problem(n_users=10)
    gradient = evidence.gradient(own, first)
    rng = np.random.default_rng(1)
    for _ in range(4):
        direction = rng.normal(size=first.theta.size)
        ends = [evidence.at(own, first.theta + h * direction, first.users).objective for h in (1e-4, -1e-4)]
        assert gradient @ direction == pytest.approx((ends[0] - ends[1]) / 2e-4, rel=1e-5, abs=1e-6)


def expected_log_density(prior, kernel, moments):
    """Return the expected log density of utilities with these posterior moments, per user."""
    covariance = prior.factors @ prior.factors.T + prior.scale * kernel
    inverse, log_det = np.linalg.inv(covariance), np.linalg.slogdet(covariance)[1]
    terms = [np.trace(inverse @ (xi + np.outer(m - prior.mean, m - prior.mean))) for m, xi in moments]
    return -0.5 * (log_det + np.mean(terms))


@pytest.mark.parametrize(
    ("learned", "items_at_once"),
    [
        (EVERY, 400),
        (EVERY, 0),
        (Learned(False, True, True), 400),
        (Learned(True, True, False), 400),
        (Learned(True, False, False), 400),
    ],
    ids=["all", "all, by products with vectors", "without mean", "without scale", "mean"],
)
def test_update_of_the_prior_is_the_numerical_maximum(learned, items_at_once, monkeypatch):
    monkeypatch.setattr(maximisation, "_DENSE", items_at_once)
    own, evidence, first, compared, (users, winners, losers), prior = problem(n_users=6, n_items=7)
    kernel = own.kernel.matrix
    covariance = prior.factors @ prior.factors.T + prior.scale * kernel
    moments = []
    for u in compared.users:
        mine = users == u
        _, _, at, posterior, _ = dense_ep(prior.mean, covariance, winners[mine], losers[mine])
        moments.append((at, posterior))
    totals, n = first.totals, evidence.n_users
    found = maximised(prior, own.kernel, Statistics(totals.slope / n, totals.curvature / n), learned)

    def placed(x):
        theta = own.theta_of(None, prior)
        theta[: len(prior.mean)] = x[: len(prior.mean)] if learned.mean else prior.mean
        if learned.factors:
            theta[len(prior.mean) : -1] = x[len(prior.mean) : -1]
        if learned.scale:
            theta[-1] = x[-1]
        return own.prior(theta)[0]

    best = scipy.optimize.minimize(
        lambda x: -expected_log_density(placed(x), kernel, moments), own.theta_of(None, prior), options={"gtol": 1e-9}
    )
    assert expected_log_density(found, kernel, moments) == pytest.approx(-best.fun, abs=1e-7)
    assert -best.fun > expected_log_density(prior, kernel, moments) + 1e-3


ROOT = np.random.default_rng(8).normal(size=(12, 3))
LOW_RANK = {"of rank 3": (LowRankKernel(ROOT, 0.3), ROOT @ ROOT.T + 0.3 * np.eye(12))}
LOW_RANK["identity"] = LowRankKernel(np.zeros((12, 0)), 1.0), np.eye(12)
KERNELS = pytest.mark.parametrize(("kernel", "matrix"), LOW_RANK.values(), ids=LOW_RANK)


@KERNELS
def test_products_of_low_rank_are_those_of_the_matrix(kernel, matrix):
    rng = np.random.default_rng(2)
    x, root = rng.normal(size=(12, 2)), kernel.times(np.eye(12))
    np.testing.assert_allclose(root @ root.T, matrix, atol=1e-13)
    np.testing.assert_allclose(kernel.product(x), matrix @ x, atol=1e-12)
    np.testing.assert_allclose(kernel.times(x), root @ x, atol=1e-12)
    np.testing.assert_allclose(kernel.transposed(x), root.T @ x, atol=1e-12)
    np.testing.assert_allclose(kernel.solve(root @ x), x, atol=1e-12)
    curvature = rng.normal(size=(12, 12))
    curvature += curvature.T
    assert kernel.inner(curvature) == pytest.approx((curvature * matrix).sum(), rel=1e-12)
    known = np.arange(12) % 3 > 0
    expected = matrix[np.ix_(~known, known)] @ np.linalg.solve(matrix[np.ix_(known, known)], x[known])
    np.testing.assert_allclose(kernel.extended(x[known], known), expected, atol=1e-12)
    draws = kernel.draws(200_000, rng)
    np.testing.assert_allclose(draws.T @ draws / len(draws), matrix, atol=0.08)


@KERNELS
def test_derivatives_of_low_rank_equal_finite_differences(kernel, matrix):
    rng = np.random.default_rng(2)
    curvature, step, own = rng.normal(size=(12, 12)), rng.normal(size=kernel.root.shape), 0.7
    curvature += curvature.T
    ends = [LowRankKernel(kernel.root + h * step, kernel.jitter + h * own).inner(curvature) for h in (1e-5, -1e-5)]
    in_root, in_jitter = kernel.gradient(curvature)
    assert (in_root * step).sum() + in_jitter * own == pytest.approx((ends[0] - ends[1]) / 2e-5, rel=1e-7)


@KERNELS
@pytest.mark.parametrize("sparse", [False, True], ids=["array", "sparse"])
def test_low_rank_equals_the_matrix(kernel, matrix, sparse, monkeypatch):
    dense, dense_evidence, expected, *_ = problem(n_users=33, kernel=DenseKernel(matrix))
    if sparse:
        monkeypatch.setattr("pymc_ep.models.preferences.engine.users._NUMBERS", 100)
    own, evidence, first, _, _, prior = problem(n_users=33, kernel=kernel)
    assert scipy.sparse.issparse(first.totals.curvature) == sparse
    assert first.objective == pytest.approx(expected.objective, abs=1e-9)
    found = first.totals.curvature.toarray() if sparse else first.totals.curvature
    np.testing.assert_allclose(found, expected.totals.curvature, atol=1e-9)
    np.testing.assert_allclose(
        evidence.gradient(own, first), dense_evidence.gradient(dense, expected), rtol=1e-8, atol=1e-8
    )
    after, expected_after = (
        maximised(prior, one.kernel, Statistics(state.totals.slope / 33, state.totals.curvature / 33), EVERY)
        for one, state in ((own, first), (dense, expected))
    )
    assert after.scale == pytest.approx(expected_after.scale, rel=1e-8)
    np.testing.assert_allclose(after.mean, expected_after.mean, atol=1e-9)
    # Factors are equal up to a rotation.
    squares = after.factors @ after.factors.T, expected_after.factors @ expected_after.factors.T
    np.testing.assert_allclose(*squares, atol=1e-8)


@pytest.mark.parametrize("n_items", [30, 450], ids=["all eigenpairs", "the leading ones"])
def test_first_factors_are_the_leading_directions_of_the_gradient_in_any_order(n_items):
    """With K = I and V = 0, Cb = s2 I - s2^2 T: lengths are s2 times the root of the eigenvalues of -T."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(40, n_items)) * (rng.random((40, n_items)) < 0.2)
    curvature, slope = rows.T @ rows / n_items - np.outer(rows[0], rows[0]), 3.0 * rows[1]
    curvature[:, -1] = curvature[-1] = slope[-1] = 0.0  # An item without comparisons.
    prior, kernel = (
        UtilityPrior(np.zeros(n_items), np.zeros((n_items, 2)), 0.49),
        LowRankKernel(np.zeros((n_items, 0)), 1.0),
    )
    factors = first_factors(prior, kernel, Statistics(slope, curvature), EVERY)
    values, vectors = np.linalg.eigh(-(curvature + np.outer(slope, slope)))
    expected = 0.7 * vectors[:, :-3:-1] * np.sqrt(0.49 * values[:-3:-1])
    np.testing.assert_allclose(factors @ factors.T, expected @ expected.T, atol=1e-8)
    order = rng.permutation(n_items)
    moved = first_factors(prior, kernel, Statistics(slope[order], curvature[np.ix_(order, order)]), EVERY)
    np.testing.assert_allclose(moved @ moved.T, (factors @ factors.T)[np.ix_(order, order)], atol=1e-8)


def test_em_raises_the_evidence_and_lbfgs_finds_more():
    own, evidence, first, *_ = problem(n_users=40, tol=1e-8)
    em = run(PreferenceEM(evidence, EVERY, tol=1e-9), own, first, max_iter=16)
    assert (np.diff(em.objective) > 0).all()
    search = maximise(
        evidence, own, first.theta, first.users, tol=1e-9, max_iter=15, report=Report(), save=lambda state: None
    )
    assert search.state.chosen.objective > em.state.objective
    found = evidence.at(own, search.state.chosen.theta, search.state.chosen.users)
    assert np.linalg.norm(evidence.gradient(own, found)) < np.linalg.norm(evidence.gradient(own, first))


def test_parts_add_up_to_the_whole():
    whole, parts = problem(n_users=11)[2], problem(n_users=11, parts=3)[2]
    assert parts.objective == pytest.approx(whole.objective, rel=1e-12)
    np.testing.assert_allclose(parts.totals.curvature, whole.totals.curvature, atol=1e-12)
    np.testing.assert_allclose(parts.totals.slope, whole.totals.slope, atol=1e-12)


def test_held_out_comparisons_are_predicted_and_not_learned_from():
    rows = simulated(n_users=9)[1]
    n_pairs = len(rows[0])
    compared = ComparedUsers.of(*rows, 12)
    held = np.zeros(n_pairs, dtype=bool)
    held[compared.comparisons.pair_ends[1:] - 1] = True
    own, _, first, _, (users, winners, losers), prior = problem(n_users=9, held=held)
    covariance = prior.factors @ prior.factors.T + prior.scale * own.kernel.matrix
    log_z, log_p = 0.0, 0.0
    for place, u in enumerate(compared.users):
        pairs = compared.comparisons.of_user(place)[1]
        *kept, out = compared.order[pairs]
        assert (users[kept] == u).all()
        _, _, at, posterior, own_log_z = dense_ep(prior.mean, covariance, winners[kept], losers[kept])
        row = contrasts(winners[[out]], losers[[out]], len(prior.mean))[0]
        log_z += own_log_z
        log_p += norm.logcdf(row @ at / np.sqrt(1.0 + row @ posterior @ row))
    assert first.totals.log_z == pytest.approx(log_z, abs=1e-7)
    assert first.score == first.totals.held_log_p == pytest.approx(log_p, abs=1e-7)


def test_search_returns_the_state_of_the_highest_score():
    held = np.random.default_rng(0).random(20 * 7) < 0.3
    own, evidence, first, *_ = problem(n_users=20, held=held, tol=1e-7)
    found = maximise(
        evidence, own, first.theta, first.users, tol=1e-12, max_iter=60, report=Report(), save=lambda state: None
    )
    chosen = found.state.chosen
    assert found.status.converged
    assert chosen.score >= first.score
    again = evidence.at(own, chosen.theta, chosen.users)
    assert again.score == pytest.approx(chosen.score, abs=1e-5)
