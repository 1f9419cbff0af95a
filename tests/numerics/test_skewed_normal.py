"""Monotone cubics of normal variables: moments and inverse by quadrature, and their mixtures of normals."""

import numpy as np
import pytest
from scipy.special import ndtr, ndtri

from pymc_ep.numerics.skewed_normal import MOST_SKEWED, gaussian_parts, limited, skewed, skewed_moves, unskewed

U = np.linspace(-9.0, 9.0, 18_001)
MASS = np.exp(-0.5 * U**2) / np.exp(-0.5 * U**2).sum()
SKEWNESS = [0.0, 1e-9, 1e-5, 0.02, -0.3, 0.7, -1.1, MOST_SKEWED]


@pytest.mark.parametrize("k", SKEWNESS)
def test_moments_inverse_and_slope(k):
    values = skewed(U, np.array(k))
    assert np.all(np.diff(values) >= 0)
    # Straight tails take 7e-6 of the variance and 2e-4 of the skewness, where that is largest.
    np.testing.assert_allclose([MASS @ values, MASS @ values**2], [0.0, 1.0], atol=1e-5)
    np.testing.assert_allclose(MASS @ values**3, k, rtol=1e-4, atol=1e-9)
    inside = np.abs(U) < 4
    np.testing.assert_allclose(unskewed(values[inside], np.array(k)), U[inside], atol=1e-5)


def moved(own, total):
    """Sum of the moves of all shares."""
    return np.polynomial.polynomial.polyval(U, skewed_moves(*limited(np.array(own), np.array(total))).sum(axis=1))


@pytest.mark.parametrize("k", SKEWNESS)
@pytest.mark.parametrize("shares", [[1.0], [0.3, 0.7], [1.5, -0.5]])
def test_shares_add_up_to_the_cubic(k, shares):
    inside = np.abs(U) < 4
    found = U + moved(k * np.array(shares), [k] * len(shares))
    np.testing.assert_allclose(found[inside], skewed(U, np.array(k))[inside], atol=1e-12)


def test_a_share_without_a_total_is_a_parabola_and_too_large_a_total_is_cut():
    np.testing.assert_allclose(moved([0.3], [0.0]), 0.05 * (U**2 - 1.0), atol=1e-12)
    np.testing.assert_allclose(moved([3.0, 2.0], [5.0, 5.0]), moved([MOST_SKEWED], [MOST_SKEWED]), atol=1e-12)


@pytest.mark.parametrize(("k", "error"), [(0.0, 3e-3), (0.3, 5e-3), (0.7, 1e-2), (-1.0, 2e-2)])
def test_normals_whose_mixture_is_nearly_the_density(k, error):
    weights, mean, sd = gaussian_parts(np.array([k, 0.0]))
    assert mean.shape == sd.shape == (len(weights), 2)
    np.testing.assert_allclose([weights.sum(), weights @ mean[:, 0]], [1.0, 0.0], atol=1e-12)
    np.testing.assert_allclose(weights @ (mean**2 + sd**2), 1.0, rtol=1e-12)
    np.testing.assert_allclose(weights @ (mean**3 + 3 * mean * sd**2)[:, 0], k, atol=5e-3)
    levels = np.array([0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99])
    grid = np.linspace(-8, 8, 8001)
    below = weights @ ndtr((grid - mean[:, :1]) / sd[:, :1])
    np.testing.assert_allclose(np.interp(levels, below, grid), skewed(ndtri(levels), np.array(k)), atol=error)
