"""Integrals of likelihoods of cells over Gaussian predictors, against fine grids; the slopes that lead there."""

import numpy as np
import pytest
import scipy.special
from scipy import stats

from pymc_ep.sites.cells.integrals import log_integral

from .test_cells import SITES, every_site

COUNTS = np.array([1.0, 2.0, 40.0, 1000.0, 30000.0])


def observations(name):
    if name in ("bernoulli", "normal"):
        return SITES[name][1]
    return COUNTS if "truncated" in name else np.append(COUNTS, 0.0)


def on_a_grid(density, mean, sd, points=20_001):
    """log of the integral of e^density N(f; mean, sd^2), by the trapezoidal rule where the integrand is not negligible.

    It is largest between the mean and where the likelihood is, which is nowhere beyond the largest observation.
    """
    low, high = mean - 40 * sd, max(mean, COUNTS.max()) + 40 * sd
    for _ in range(6):
        f = np.linspace(low, high, points)
        log = np.nan_to_num(density(f) + stats.norm.logpdf(f, mean, sd), nan=-np.inf)
        some = np.flatnonzero(log > log.max() - 60.0)
        low, high = f[max(some[0] - 1, 0)], f[min(some[-1] + 1, points - 1)]
    return scipy.special.logsumexp(log) + np.log(f[1] - f[0])


@every_site
@pytest.mark.parametrize(("sd", "tolerance"), [(0.0, 1e-10), (0.01, 1e-7), (0.4, 2e-6), (2.0, 1e-4), (7.0, 2e-4)])
def test_against_a_fine_grid(name, sd, tolerance):
    site, _, parameters = SITES[name]
    own = [p[:1] for p in parameters]
    y, mean = (part.ravel() for part in np.meshgrid(observations(name), [-30.0, -4.0, 0.5, 6.0]))
    with np.errstate(over="ignore"):
        found = log_integral(site, y, mean, np.full(y.shape, sd**2), *own)
        for k in range(len(y)):

            def density(f, k=k):
                return site.log_density(y[k], f, *own)

            expected = density(mean[k : k + 1])[0] if sd == 0.0 else on_a_grid(density, mean[k], sd)
            assert found[k] == pytest.approx(expected, rel=1e-12, abs=tolerance), (y[k], mean[k])


def test_normal_cells_have_a_closed_form():
    site, y, (sigma,) = SITES["normal"]
    mean, variance = np.array([-1.0, 0.0, 2.0, -300.0]), np.array([0.3, 1e-8, 1e4, 2.0])
    for scale in (1.0, 1e-3):
        expected = stats.norm.logpdf(y, mean, np.sqrt(variance + (scale * sigma) ** 2))
        np.testing.assert_allclose(log_integral(site, y, mean, variance, scale * sigma), expected, atol=5e-6)


def test_many_draws_of_few_cells_are_one_array():
    site, y, _ = SITES["softplus"]
    mean, variance = np.random.default_rng(0).normal(size=(3, 4)), np.full((3, 4), 0.5)
    found = log_integral(site, y, mean, variance)
    assert found.shape == (3, 4)
    np.testing.assert_allclose(found[1], log_integral(site, y, mean[1], variance[1]), rtol=1e-12)


@every_site
def test_slopes_are_those_of_differences_and_vanish_at_the_peak(name):
    site, _, parameters = SITES[name]
    own, h = [p[:1] for p in parameters], 1e-5
    for y in observations(name)[:3]:
        f = np.linspace(-6.0, 5.0, 23)
        first, bend = site.slopes(y, f, *own)
        differences = (site.log_density(y, f + h, *own) - site.log_density(y, f - h, *own)) / (2 * h)
        np.testing.assert_allclose(first, differences, rtol=1e-6, atol=1e-6)
        curved = (site.slopes(y, f - h, *own)[0] - site.slopes(y, f + h, *own)[0]) / (2 * h)
        if "truncated" in name:
            assert (curved <= bend + 1e-6).all()
        else:
            np.testing.assert_allclose(curved, bend + np.zeros_like(f), rtol=1e-5, atol=1e-6)
            peak = site.peak(np.array([y]), *own)
            if np.isfinite(peak).all():
                np.testing.assert_allclose(site.slopes(y, peak, *own)[0], 0.0, atol=1e-9 * (1 + y))
