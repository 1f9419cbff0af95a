"""Integrals and moments of densities in closed form."""

from functools import partial

import numpy as np
import pytest
from scipy import stats

from pymc_ep.evidence.integration.cloud import bridged, by_cells, weighted

LOG_SCALE = 3.7


def skewed(p):
    """A density of independent log-gammas, times exp(3.7); their variances are trigamma(4)."""
    law = stats.loggamma(4.0)
    rng = np.random.default_rng(p)
    return lambda z: law.logpdf(z).sum(axis=1) + LOG_SCALE, law.rvs((6000, p), random_state=rng), law


@pytest.mark.parametrize("p", [1, 2, 4])
def test_importance_weights(p):
    log_density, draws, law = skewed(p)
    cloud = weighted(log_density, draws)
    np.testing.assert_allclose(cloud.log_integral, LOG_SCALE, atol=2e-3 * p)
    np.testing.assert_allclose(cloud.weights.sum(), 1.0)
    np.testing.assert_allclose(cloud.weights @ cloud.z, law.mean(), atol=2e-3 * p)
    np.testing.assert_allclose(cloud.weights @ (cloud.z - law.mean()) ** 2, law.var(), rtol=5e-3 * p)
    assert 0.2 < cloud.effective <= 1.0


@pytest.mark.parametrize("p", [1, 6])
def test_bridge(p):
    log_density, draws, _ = skewed(p)
    cloud = bridged(log_density, draws, np.random.default_rng(0))
    np.testing.assert_allclose(cloud.log_integral, LOG_SCALE, atol=0.05)
    assert cloud.effective == pytest.approx(1.0)


def test_where_nothing_is_known_there_is_no_mass():
    """A normal density cut off at zero has half the integral."""
    draws = np.abs(np.random.default_rng(1).normal(size=(4000, 1)))
    cut = lambda z: np.where(z[:, 0] > 0, stats.norm.logpdf(z[:, 0]), -np.inf)  # noqa: E731
    np.testing.assert_allclose(weighted(cut, draws).log_integral, np.log(0.5), atol=2e-3)
    np.testing.assert_allclose(bridged(cut, draws, np.random.default_rng(2)).log_integral, np.log(0.5), atol=0.05)


def test_peaks_are_weighed_by_their_integrals():
    """Two normals with masses 0.9 and 0.1, of which draws show equal shares: mean and integral are exact."""
    rng, peaks = np.random.default_rng(3), np.array([[-6.0], [6.0]])
    draws = np.concatenate([rng.normal(size=(1000, 1)) + peak for peak in peaks])

    def mixture(z):
        return LOG_SCALE + np.logaddexp(*(np.log(w) + stats.norm.logpdf(z[:, 0], c) for w, c in ((0.9, -6), (0.1, 6))))

    for represent, atol in ((weighted, 2e-3), (partial(bridged, rng=rng), 0.05)):
        cloud = by_cells(represent, mixture, draws, peaks)
        np.testing.assert_allclose(cloud.log_integral, LOG_SCALE, atol=atol)
        np.testing.assert_allclose(cloud.weights.sum(), 1.0)
        np.testing.assert_allclose(cloud.weights @ cloud.z, -4.8, atol=6 * atol)
