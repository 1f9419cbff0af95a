"""Laplace's approximation and the bound of Jaakkola and Jordan: against dense Newton steps, quadrature, differences."""

import numpy as np
import pytest
import scipy.integrate
import scipy.optimize
from scipy.special import expit, log_expit
from scipy.stats import norm

from pymc_ep.engines.loop import run
from pymc_ep.models.preferences.engine.approximations import BOUND, MODE
from pymc_ep.models.preferences.engine.em import PreferenceEM
from pymc_ep.models.preferences.engine.values import Learned

from .preference_dense import contrasts
from .test_preferences import problem

LOG_LINK = {"probit": norm.logcdf, "logit": log_expit}


def dense_laplace(mean, covariance, winners, losers, link):
    """Return mode, posterior covariance and log evidence of one user, by differences of the log joint density."""
    design, precision, size = contrasts(winners, losers, len(mean)), np.linalg.inv(covariance), len(mean)

    def energy(f):
        return 0.5 * (f - mean) @ precision @ (f - mean) - LOG_LINK[link](design @ f).sum()

    def slope(f):
        d = design @ f
        own = np.exp(norm.logpdf(d) - norm.logcdf(d)) if link == "probit" else expit(-d)
        return precision @ (f - mean) - design.T @ own

    mode = scipy.optimize.root(slope, mean, tol=1e-12).x
    steps = 1e-5 * np.eye(size)
    curvature = np.array([(slope(mode + step) - slope(mode - step)) / 2e-5 for step in steps])
    log_det = np.linalg.slogdet(curvature)[1] + np.linalg.slogdet(covariance)[1]
    return mode, np.linalg.inv(curvature), -energy(mode) - 0.5 * log_det


def exact_log_evidence(mean, covariance, winner, loser):
    """Return the log evidence of one comparison by a logit, by quadrature."""
    (row,) = contrasts(np.array([winner]), np.array([loser]), len(mean))
    m, s = row @ mean, np.sqrt(row @ covariance @ row)
    return np.log(scipy.integrate.quad(lambda d: norm.pdf(d, m, s) * expit(d), m - 12 * s, m + 12 * s, limit=200)[0])


@pytest.mark.parametrize("link", LOG_LINK)
def test_laplace_equals_dense_newton(link):
    own, _, first, compared, (users, winners, losers), prior = problem(n_users=5, link=link, approximation=MODE)
    covariance = prior.factors @ prior.factors.T + prior.scale * own.kernel.matrix
    (factors,) = first.users
    for place, u in enumerate(compared.users):
        mine = users == u
        mode, posterior, log_z = dense_laplace(prior.mean, covariance, winners[mine], losers[mine], link)
        items, pairs = compared.comparisons.of_user(place)
        found = prior.mean + covariance[:, compared.comparisons.items[items]] @ factors.weights[items]
        np.testing.assert_allclose(found, mode, atol=1e-7)
        assert factors.log_z[place] == pytest.approx(log_z, abs=1e-6)
        order = np.searchsorted(np.flatnonzero(mine), compared.order[pairs])
        design = contrasts(winners[mine], losers[mine], len(mode))[order]
        precision = np.linalg.inv(covariance) + design.T @ (factors.sites.precision[pairs, None] * design)
        np.testing.assert_allclose(np.linalg.inv(precision), posterior, atol=1e-6)


def test_bound_is_below_the_exact_evidence_and_nears_it_under_a_narrow_prior():
    gaps = []
    for scale in (4.0, 1e-4):
        own, _, first, compared, (users, winners, losers), prior = problem(
            n_users=30, n_pairs=1, link="logit", approximation=BOUND, scaled=scale
        )
        covariance = prior.factors @ prior.factors.T + prior.scale * own.kernel.matrix
        exact = [
            exact_log_evidence(prior.mean, covariance, winners[users == u][0], losers[users == u][0])
            for u in compared.users
        ]
        gaps.append(np.array(exact) - first.users[0].log_z)
        assert (gaps[-1] > 0).all()
    assert gaps[0].max() > 0.05
    assert gaps[1].max() < 1e-3 * gaps[0].max()


def test_bound_is_that_of_the_best_gaussians_below_the_logistic():
    """The maximum over xi of the Gaussian integral, found by a search, for one user."""
    own, _, first, compared, (users, winners, losers), prior = problem(n_users=3, link="logit", approximation=BOUND)
    covariance = prior.factors @ prior.factors.T + prior.scale * own.kernel.matrix
    for place, u in enumerate(compared.users):
        design = contrasts(winners[users == u], losers[users == u], len(prior.mean))
        mean, spread = design @ prior.mean, design @ covariance @ design.T

        def fall(log_xi, mean=mean, spread=spread):
            xi = np.exp(log_xi)
            precision = np.tanh(xi / 2.0) / (2.0 * xi)
            constant = log_expit(xi) - xi / 2.0 + precision * xi**2 / 2.0
            inner = np.linalg.inv(np.eye(len(xi)) + spread * precision)
            pull = mean @ (precision[:, None] * inner) @ (0.5 / precision - 0.5 * mean)
            tail = 0.125 * np.ones(len(xi)) @ inner @ spread @ np.ones(len(xi))
            return -(constant.sum() + 0.5 * np.linalg.slogdet(inner)[1] + pull + tail)

        best = scipy.optimize.minimize(fall, np.zeros(len(mean)), options={"gtol": 1e-9})
        assert first.users[0].log_z[place] == pytest.approx(-best.fun, abs=1e-7)


@pytest.mark.parametrize(("link", "approximation"), [("probit", MODE), ("logit", MODE), ("logit", BOUND)])
def test_gradients_equal_finite_differences(link, approximation):
    held = np.arange(70) % 7 == 3
    own, evidence, first, *_ = problem(n_users=10, link=link, approximation=approximation, held=held)
    gradient = evidence.gradient(own, first)
    rng = np.random.default_rng(1)
    for _ in range(4):
        direction = rng.normal(size=first.theta.size)
        ends = [evidence.at(own, first.theta + h * direction, first.users).objective for h in (1e-4, -1e-4)]
        assert gradient @ direction == pytest.approx((ends[0] - ends[1]) / 2e-4, rel=1e-5, abs=1e-6)


def test_em_never_lowers_the_bound():
    own, evidence, first, *_ = problem(n_users=20, link="logit", approximation=BOUND, tol=1e-9)
    em = run(PreferenceEM(evidence, Learned(True, True, True), tol=1e-9), own, first, max_iter=20)
    assert (np.diff(em.objective) > -1e-9).all()
    assert em.objective[-1] > em.objective[0] + 1.0
