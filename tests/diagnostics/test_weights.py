"""Importance weights whose tail, effective number and mean are known."""

import numpy as np
import pytest
from scipy import stats

from pymc_ep.diagnostics.weights import importance


def gaussian_log_weights(size, p_sd):
    """Log weights of draws from N(0, 1) for the target N(0, p_sd^2)."""
    x = np.random.default_rng(1).normal(size=size)
    return stats.norm.logpdf(x, 0, p_sd) - stats.norm.logpdf(x)


@pytest.mark.parametrize("shape", [0.3, 0.5, 0.8])
def test_pareto_weights_have_their_own_shape(shape):
    """The tail above a threshold of a generalised Pareto distribution has the same shape."""
    found = [importance(np.log(stats.genpareto(shape).rvs(20_000, random_state=seed))).pareto_k for seed in range(12)]
    assert abs(np.mean(found) - shape) < 4 * np.std(found) / np.sqrt(len(found)) + 0.03


def test_bounded_weights_have_a_short_tail():
    assert importance(np.log(np.random.default_rng(2).uniform(size=4000))).pareto_k < 0.0


def test_a_wide_target_has_heavy_weights():
    """For normals of variances s^2 and 1 the weights have the tail index 1 - 1 / s^2."""
    for p_sd in (1.3, 3.0):
        found = importance(gaussian_log_weights(200_000, p_sd))
        assert abs(found.pareto_k - (1 - p_sd**-2)) < 0.15


@pytest.mark.parametrize("spread", [0.0, 1e-9, 0.05, 0.2])
def test_the_tail_of_nearly_equal_weights_means_nothing(spread):
    """However heavy-tailed the largest of them are among themselves."""
    noise = np.where(np.arange(4000) % 20 == 0, np.random.default_rng(4).pareto(0.5, size=4000), 0.0)
    found = importance(spread * np.minimum(noise, 5.0) / 5.0)
    assert found.pareto_k is None
    assert found.ess > 0.9 * 4000


def test_mean_and_effective_number_of_normal_weights():
    """With a narrower target: E w = 1 and E w^2 = 1 / (s (2 - s^2)^(1/2))."""
    s, size = 0.7, 50_000
    found = importance(gaussian_log_weights(size, s) + 3.0)
    second = 1 / (s * np.sqrt(2 - s**2))
    assert abs(found.log_mean - 3.0) < 4 * found.mcse
    np.testing.assert_allclose(found.ess / size, 1 / second, rtol=0.02)
    np.testing.assert_allclose(found.mcse, np.sqrt((second - 1) / size), rtol=0.05)


def test_draws_without_density_count():
    log_weights = np.where(np.arange(1000) % 2 == 0, -np.inf, 0.1 * np.random.default_rng(3).normal(size=1000))
    found = importance(log_weights)
    np.testing.assert_allclose(found.ess, 500, rtol=0.03)
    np.testing.assert_allclose(found.log_mean, np.log(0.5), atol=0.03)
    assert np.isfinite(found.pareto_k)


def test_equal_weights():
    found = importance(np.full(100, -7.0) + 1e-9 * np.arange(100))
    assert found.pareto_k is None
    np.testing.assert_allclose([found.ess, found.mcse], [100, 0], atol=1e-6)
    np.testing.assert_allclose(found.log_mean, -7.0, atol=1e-7)
