"""Rankers of the benchmark of implicit feedback: peers by their definitions, paired symbols by `rank_items`."""

import numpy as np
import pytest
from scipy import sparse

import pymc_ep as pmep
from docs.benchmarks import _rankers, implicit_feedback
from docs.benchmarks._pairs import scored, split_of


@pytest.fixture(scope="module")
def split():
    pairs = np.random.default_rng(0).random((30, 40)) < np.linspace(0.02, 0.5, 40)
    return split_of(sparse.csr_array(pairs.astype(float)), 0)


def test_ease_is_the_regression_on_other_items(split):
    X, penalty = split.learned.toarray(), 3.0
    P = np.linalg.inv(X.T @ X + penalty * np.eye(X.shape[1]))
    B = -P / np.diag(P)
    np.fill_diagonal(B, 0.0)
    users = np.arange(len(X))
    np.testing.assert_allclose(_rankers.ease(split, penalty).scores(users), X @ B, atol=1e-5)


def test_rows_of_ials_are_modes(split):
    X, penalty, weight = split.learned, 0.02, 0.3
    V = np.random.default_rng(1).standard_normal((X.shape[1], 3))
    U = _rankers.least_squares(X, V, penalty, weight)
    scores, counts = U @ V.T, X.sum(axis=1)
    gradient = (X.toarray() * (scores - 1.0) + weight * scores) @ V
    gradient += penalty * (counts + weight * len(V))[:, None] * U
    np.testing.assert_allclose(gradient[counts > 0], 0.0, atol=1e-10)


def test_exponents_are_the_best(split):
    log_popularity = _rankers.popularity(split, 0.5).scores(np.zeros(1, dtype=int))[0]
    scores = np.random.default_rng(2).standard_normal(split.learned.shape)
    scores[split.users, split.items] += 1.0
    ranker = _rankers.Ranker(lambda users: scores[users], 0.0)

    def mean_log_p(powers):
        log_p = _rankers.tempered(ranker, log_popularity, powers).scores
        return scored(split, log_p, log_probabilities=True).summary(split)["log_p"]

    best = _rankers.exponents(split, ranker, log_popularity)
    others = [(best[0] + a, best[1] + b) for a, b in ((0.1, 0), (-0.1, 0), (0, 0.1), (0, -0.1))]
    assert mean_log_p(best) > max(map(mean_log_p, others))


@pytest.mark.parametrize("points", [True, False])
def test_paired_symbols_rank_as_rank_items(split, points):
    model, idata, seconds = implicit_feedback.fit_of(split, implicit_feedback.AROUND | {"points": points, "factors": 2})
    for by, ranker in implicit_feedback.rankers(idata, seconds).items():
        wanted = pmep.rank_items(idata, model, by=by, user=split.users, item=split.items)
        found = scored(split, ranker.scores)
        np.testing.assert_allclose(found.rank, wanted["rank"])
        np.testing.assert_allclose(found.position, wanted["position"] - 1.0)
