"""Sites of a softmax against Gauss-Hermite quadrature, sampling and closed forms, and their rows."""

import pickle

import numpy as np
import pytest
from scipy import stats

from pymc_ep.evidence.ep.cavities import cavities
from pymc_ep.exceptions import InvalidDataError
from pymc_ep.sites import compile_site
from pymc_ep.sites.likelihoods.categorical import THREE_CATEGORIES, softmax_site
from pymc_ep.sites.rows_of_many import (
    covariances,
    number_of_rows,
    precision_rows,
    precisions,
    slopes,
    sums,
    variance_rows,
)
from pymc_ep.sites.softmax_moments import log_probabilities, softmax_moments


def cavity(n, log_odds, scale, seed=0):
    """Means and covariances with standard deviations of the order of `scale`."""
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(n, log_odds, log_odds + 1)) * scale / np.sqrt(log_odds + 1)
    return rng.normal(size=(n, log_odds)) * scale, root @ root.transpose(0, 2, 1)


def counts_of(n, categories, total, seed=0):
    rng = np.random.default_rng(seed)
    return np.array([rng.multinomial(total, rng.dirichlet(np.ones(categories))) for _ in range(n)]).astype(float)


def exact(counts, mean, covariance, power, nodes):
    """Log Z, mean and covariance of one tilted density, by a product rule about the cavity of its own moments."""
    x, w = np.polynomial.hermite_e.hermegauss(nodes)
    grid = np.array(np.meshgrid(*[x] * len(mean))).reshape(len(mean), -1)
    log_weight = np.log(np.array(np.meshgrid(*[w / w.sum()] * len(mean))).reshape(len(mean), -1)).sum(axis=0)
    centre, spread = mean, covariance
    for _ in range(30):
        eta = centre[:, None] + np.linalg.cholesky(spread) @ grid
        log_q = stats.multivariate_normal(centre, spread).logpdf(eta.T)
        log_p = stats.multivariate_normal(mean, covariance).logpdf(eta.T) + power * (counts @ log_probabilities(eta))
        log_mass = log_weight + log_p - log_q
        log_z = np.logaddexp.reduce(log_mass)
        share = np.exp(log_mass - log_z)
        centre = eta @ share
        spread = (eta * share) @ eta.T - np.outer(centre, centre)
    return log_z, centre, spread


@pytest.mark.parametrize(("log_odds", "total", "power"), [(2, 1, 1.0), (2, 6, 0.7), (3, 1, 1.0), (3, 20, 1.0)])
@pytest.mark.parametrize("scale", [0.2, 1.0])
def test_moments_agree_with_quadrature(log_odds, total, power, scale):
    n = 4
    counts, (mean, covariance) = counts_of(n, log_odds + 1, total), cavity(n, log_odds, scale)
    at = softmax_moments(counts, mean, covariance, np.full(n, power))
    for i in range(n):
        log_z, centre, spread = exact(counts[i], mean[i], covariance[i], power, 40 if log_odds == 2 else 24)
        sd = np.sqrt(np.diag(spread))
        assert at.log_z[i] == pytest.approx(log_z, abs=2e-3)
        np.testing.assert_allclose((at.mean[i] - centre) / sd, 0.0, atol=3e-3)
        np.testing.assert_allclose((at.covariance[i] - spread) / np.outer(sd, sd), 0.0, atol=5e-3)


def test_little_information_keeps_its_digits():
    # To first order in the variance of the cavity, the site is that of the Fisher information.
    mean, covariance = np.array([[0.3, -0.4, 0.1]]), 1e-10 * np.array([np.diag([1.0, 2.0, 3.0]) + 0.3])
    p = np.exp(log_probabilities(mean.T))[1:, 0]
    counts = np.array([[0.0, 1.0, 0.0, 0.0]])
    at = softmax_moments(counts, mean, covariance, np.ones(1))
    np.testing.assert_allclose(at.precision[0], np.diag(p) - np.outer(p, p), rtol=1e-5)
    np.testing.assert_allclose(at.gradient[0], counts[0, 1:] - p, rtol=1e-6)


@pytest.mark.parametrize("log_odds", [3, 5])
def test_gradient_is_that_of_log_z(log_odds):
    n, step = 3, 1e-4
    counts, (mean, covariance) = counts_of(n, log_odds + 1, 1, seed=2), cavity(n, log_odds, 0.4, seed=2)
    power = np.ones(n)
    at = softmax_moments(counts, mean, covariance, power)
    for k in range(log_odds):
        up, down = (softmax_moments(counts, mean + s * step * np.eye(log_odds)[k], covariance, power) for s in (1, -1))
        np.testing.assert_allclose(at.gradient[:, k], (up.log_z - down.log_z) / (2 * step), atol=5e-4)
    curvature = np.linalg.inv(np.linalg.inv(at.precision) + covariance)
    np.testing.assert_allclose(at.covariance, covariance - covariance @ curvature @ covariance, atol=1e-9)


@pytest.mark.parametrize("log_odds", [2, 4])
def test_any_category_may_come_first(log_odds):
    n = 5
    counts, (mean, covariance) = counts_of(n, log_odds + 1, 3, seed=1), cavity(n, log_odds, 0.8, seed=1)
    order = np.roll(np.arange(log_odds + 1), 2)
    # Log-odds to the first category of the new order, of all categories in the old one.
    of_all = np.concatenate([np.zeros((1, log_odds)), np.eye(log_odds)])[order]
    turned = of_all[1:] - of_all[0]
    at = softmax_moments(counts, mean, covariance, np.ones(n))
    other = softmax_moments(counts[:, order], mean @ turned.T, turned @ covariance @ turned.T, np.ones(n))
    # The nodes are others.
    np.testing.assert_allclose(other.log_z, at.log_z, atol=1e-3)
    np.testing.assert_allclose(other.mean, at.mean @ turned.T, atol=2e-3)
    np.testing.assert_allclose(other.covariance, turned @ at.covariance @ turned.T, atol=1e-2)


def test_moments_are_smooth_where_categories_are_exchangeable():
    """An exchangeable prior and equal counts leave no principal axes, with which a rule could turn."""
    covariance = np.array([9.0 * (np.eye(3) + 1.0)] * 2)
    covariance[1] += 1e-9 * np.diag([1.0, -1.0, 0.5])
    for counts in ([0.0, 1.0, 0.0, 0.0], [2.0, 2.0, 2.0, 2.0]):
        at = softmax_moments(np.array([counts] * 2), np.zeros((2, 3)), covariance, np.ones(2))
        np.testing.assert_allclose(at.mean[1], at.mean[0], atol=1e-7)
        np.testing.assert_allclose(at.covariance[1], at.covariance[0], atol=1e-7)


def test_three_categories_agree_with_their_generated_kernel():
    y = np.array([0.0, 1.0, 2.0, 1.0])
    mean, covariance = cavity(4, 2, 0.7)
    rows = np.tile(y, 3), sums(mean), variance_rows(covariance)
    one, other = (compile_site(site).moments(*rows) for site in (THREE_CATEGORIES, softmax_site(3, False)))
    for field, tolerance in (("log_z", 1e-4), ("mean", 1e-3), ("variance", 2e-3), ("precision", 3e-3)):
        np.testing.assert_allclose(getattr(other, field), getattr(one, field), atol=tolerance)


def test_third_moments_agree_with_the_generated_kernel():
    y = np.array([0.0, 1.0, 2.0])
    mean, covariance = cavity(3, 2, 0.5, seed=4)
    rows = np.tile(y, 3), sums(mean), variance_rows(covariance)
    one, other = (compile_site(site).third_moments(*rows) for site in (THREE_CATEGORIES, softmax_site(3, False)))
    np.testing.assert_allclose(other, one, atol=3e-4)


def test_log_density_is_that_of_scipy():
    counts, log_odds = counts_of(6, 4, 5), np.random.default_rng(0).normal(size=(2, 3, 6))
    p = np.exp(log_probabilities(log_odds[0]))
    expected = [stats.multinomial(5, p[:, i] / p[:, i].sum()).logpmf(counts[i]) for i in range(6)]
    site = compile_site(softmax_site(4, True))
    total = np.full(6, 5.0)
    found = site.log_density(total, log_odds[:, 0], log_odds[:, 1], log_odds[:, 2], total, *counts.T)
    assert found.shape == (2, 6)
    np.testing.assert_allclose(site.log_density(total, *log_odds[0], total, *counts.T), expected, rtol=1e-12)


@pytest.mark.parametrize("predictors", [2, 3, 5])
def test_rows_of_several_predictors(predictors):
    rng = np.random.default_rng(0)
    mean, covariance = cavity(4, predictors, 1.0)
    np.testing.assert_allclose(covariances(variance_rows(covariance), predictors), covariance, atol=1e-12)
    matrices = covariance - 0.3 * np.eye(predictors)
    np.testing.assert_allclose(precisions(precision_rows(matrices), predictors), matrices, atol=1e-12)
    # A quadratic form of the predictors is a sum over rows.
    eta = sums(mean).reshape(number_of_rows(predictors), -1)
    by_rows = (precision_rows(matrices).reshape(eta.shape) * eta**2).sum(axis=0)
    np.testing.assert_allclose(by_rows, np.einsum("ni,nij,nj->n", mean, matrices, mean))
    slope = rng.normal(size=eta.size)
    along = (slope.reshape(eta.shape) * eta).sum(axis=0)
    np.testing.assert_allclose(along, (slopes(slope, predictors) * mean).sum(axis=1))


class Posterior:
    """Posterior of the rows of sites with given covariances."""

    def __init__(self, mean, covariance, weights):
        self.mean, self.variance, self.weights = sums(mean), variance_rows(covariance), weights
        self.remainder = np.ones_like(self.mean)


def test_cavities_of_several_predictors():
    n, predictors = 3, 4
    mean, covariance = cavity(n, predictors, 1.0)
    matrices = np.array([0.2 * np.diag(np.arange(1.0, 5.0))] * n)
    inverse = np.linalg.inv(covariance) + matrices
    posterior, slope = np.linalg.inv(inverse), np.random.default_rng(1).normal(size=(n, predictors))
    weights = np.concatenate([slope.T.ravel(), np.zeros(n * (number_of_rows(predictors) - predictors))])
    at = cavities(
        Posterior(mean, posterior, weights), precision_rows(matrices), 1.0, joint=[(slice(0, len(weights)), predictors)]
    )
    np.testing.assert_allclose(covariances(at.variance, predictors), covariance, rtol=1e-9)
    moved = np.einsum("nij,nj->ni", covariance, slope)
    np.testing.assert_allclose(at.mean.reshape(-1, n)[:predictors].T, mean - moved, rtol=1e-9)
    np.testing.assert_allclose(at.pull[:n], (slope * moved).sum(axis=1), rtol=1e-9)
    widened = np.linalg.slogdet(np.eye(predictors) + matrices @ covariance)[1]
    np.testing.assert_allclose(at.log_widened[:n], widened, rtol=1e-9)
    assert not at.pull[n:].any() and not at.log_widened[n:].any()


def test_pickled_as_what_it_is_made_of():
    assert pickle.loads(pickle.dumps(softmax_site(4, True))) is softmax_site(4, True)


@pytest.mark.parametrize(
    ("site", "y", "parameters", "message"),
    [
        (softmax_site(4, False), [0, 4], [], r"'y' has the value 4 at index 1.*categories from 0 to 3"),
        (THREE_CATEGORIES, [0, 3], [], r"'y' has the value 3 at index 1.*categories from 0 to 2"),
        (softmax_site(4, False), [0, 4], [], r"'y' has the value 4 at index 1, but .*Correct it"),
        (softmax_site(3, True), [3, 2], [[3, 3], [1, 1], [1, 1], [1, 0]], r"at index 1.*counts that add up to n"),
    ],
)
def test_bad_observations_are_named(site, y, parameters, message):
    with pytest.raises(InvalidDataError, match=message):
        site.validate_parameters(parameters, "y", np.array(y))
