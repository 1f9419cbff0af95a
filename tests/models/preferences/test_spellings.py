"""Spellings of one model: each is recognised and has the posterior of the main one."""

import numpy as np
import pymc as pm
import pytest

import pymc_ep as pmep

U, N = 5, 6
RNG = np.random.default_rng(11)
FEATURES, MEAN = RNG.normal(size=(N, 2)), RNG.normal(size=N)
KERNEL = np.exp(-((FEATURES[:, None] - FEATURES) ** 2).sum(-1) / 2.0)
USERS = np.repeat(np.arange(U), 6)
WINNERS = RNG.integers(0, N, len(USERS))
LOSERS = (WINNERS + RNG.integers(1, N, len(USERS))) % N
OWN = USERS == 3
ONE = {"winners": WINNERS[OWN], "losers": LOSERS[OWN]}


def fitted(model):
    return pmep.fit(model=model, draws=0, progressbar=False)


def utilities(*, one=False, **prior):
    """The main spelling."""
    with pm.Model() as model:
        f = pmep.PreferenceUtility("f", **prior, **({} if one else {"n_users": U}))
        rows = ONE if one else {"users": USERS, "winners": WINNERS, "losers": LOSERS}
        pmep.PairwiseProbit("prefers", f, **rows)
    return fitted(model)


def same(found, expected, u=None):
    for what in ("posterior_mean", "posterior_sd"):
        of = expected[what]["f"].values
        np.testing.assert_allclose(found[what]["f"], of if u is None else of[u], atol=2e-6)
    if u is None:
        evidence = [float(idata["fit"]["log_evidence"]) for idata in (found, expected)]
        assert evidence[0] == pytest.approx(evidence[1], abs=1e-7)


PRIOR = {"b": MEAN, "kernel": KERNEL, "jitter": 0.1, "sigma": 0.8}
COVARIANCE = 0.64 * (KERNEL + 0.1 * np.eye(N))


def test_an_observed_bernoulli_of_a_difference_is_a_comparison():
    with pm.Model() as model:
        f = pmep.PreferenceUtility("f", **PRIOR, n_users=U)
        first, second = np.where(OWN, LOSERS, WINNERS), np.where(OWN, WINNERS, LOSERS)
        pm.Bernoulli("prefers", p=pm.math.invprobit(f[USERS, first] - f[USERS, second]), observed=1 - OWN)
    same(fitted(model), utilities(**PRIOR))


def test_one_user_is_that_user_among_others():
    """Users are independent given the prior."""
    same(utilities(one=True, **PRIOR), utilities(**PRIOR), u=3)


def test_one_user_by_an_observed_bernoulli():
    with pm.Model() as model:
        f = pmep.PreferenceUtility("f", **PRIOR)
        pm.Bernoulli("prefers", p=pm.math.invprobit(f[ONE["winners"]] - f[ONE["losers"]]), observed=np.ones(OWN.sum()))
    same(fitted(model), utilities(one=True, **PRIOR))


def test_a_gaussian_process_is_compared_as_utilities_are():
    """Without V: utilities of a pm.gp.Latent, and of an MvNormal."""
    expected = utilities(one=True, **PRIOR)
    with pm.Model() as model:
        gp = pm.gp.Latent(
            mean_func=_AtItems(MEAN), cov_func=0.64 * (pm.gp.cov.ExpQuad(2, 1.0) + pm.gp.cov.WhiteNoise(np.sqrt(0.1)))
        )
        f = gp.prior("f", FEATURES, jitter=0.0)
        pmep.PairwiseProbit("prefers", f, **ONE)
    same(fitted(model), expected)
    with pm.Model() as model:
        f = pm.MvNormal("f", MEAN, COVARIANCE)
        pmep.PairwiseProbit("prefers", f, **ONE)
    same(fitted(model), expected)


class _AtItems(pm.gp.mean.Mean):
    """Mean given at each item."""

    def __init__(self, values):
        self.values = values

    def __call__(self, X):
        return pm.math.stack(list(self.values))


def test_factors_alone_equal_their_covariance():
    """Without a kernel: V V^T and independent items."""
    V = RNG.normal(size=(N, 2))
    expected = utilities(one=True, V=V, sigma=0.8)
    with pm.Model() as model:
        f = pm.MvNormal("f", np.zeros(N), V @ V.T + 0.64 * np.eye(N))
        pmep.PairwiseProbit("prefers", f, **ONE)
    same(fitted(model), expected)


def test_a_mean_alone_equals_independent_items():
    expected = utilities(one=True, b=MEAN, sigma=0.8)
    with pm.Model() as model:
        pmep.PairwiseProbit("prefers", pm.Normal("f", MEAN, 0.8), **ONE)
    same(fitted(model), expected)


def test_a_covariance_function_equals_its_matrix():
    by_function = {"b": MEAN, "kernel": pm.gp.cov.ExpQuad(2, 1.0), "X": FEATURES, "jitter": 0.1, "sigma": 0.8}
    same(utilities(**by_function), utilities(**PRIOR))
