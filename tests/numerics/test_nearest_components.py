"""Draws moved between components, against Gaussians whose mean and width are known at each place."""

import numpy as np
import pytest

from pymc_ep.numerics.interpolation.nearest_components import NearestComponents, calibrated_weights


def means_of(z):
    return np.stack([3.0 * z[:, 0] + z[:, -1] ** 2, -z.sum(axis=1)], axis=1)


def widths_of(z):
    return np.exp(np.stack([0.5 * z[:, 0], -0.3 * z[:, -1]], axis=1))


@pytest.mark.parametrize("p", [1, 3, 6])
def test_moved_draws_have_the_distribution_of_their_places(p):
    rng = np.random.default_rng(p)
    components, places = rng.normal(size=(200, p)), rng.normal(size=(4000, p))
    near = NearestComponents(components, places)
    at = components[near.used][near.index]
    normal = rng.normal(size=(4000, 2))
    draws = means_of(at) + widths_of(at) * normal
    before = (draws - means_of(places)) / widths_of(places)
    near.move(draws, means_of(components[near.used]))
    moved = (draws - means_of(places)) / widths_of(places)
    # What is left is the error of the widths, which are known from the draws alone.
    assert np.sqrt(np.mean((moved - normal) ** 2)) < 0.1 * np.sqrt(np.mean((before - normal) ** 2)) + 0.03


def test_draws_at_the_components_stay_where_they_are():
    rng = np.random.default_rng(0)
    components, index = rng.normal(size=(20, 2)), rng.integers(20, size=300)
    near = NearestComponents(components, components[index])
    assert np.array_equal(near.used[near.index], index)
    draws = rng.normal(size=(300, 5))
    moved = draws.copy()
    near.move(moved, rng.normal(size=(len(near.used), 5)))
    assert np.array_equal(moved, draws)


def test_few_draws_and_values_without_variance():
    rng = np.random.default_rng(1)
    components, places = rng.normal(size=(200, 4)), rng.normal(size=(3, 4))
    near = NearestComponents(components, places)
    means = np.tile([1.0, 2.0], (len(near.used), 1))
    draws = means[near.index].copy()
    draws[:, 0] += 1.0
    near.move(draws, means)
    np.testing.assert_allclose(draws, [[2.0, 2.0]] * 3)


@pytest.mark.parametrize("p", [1, 2, 3])
def test_weighted_components_have_the_moments_of_the_places(p):
    rng = np.random.default_rng(p)
    places = rng.normal(size=(4000, p)) @ rng.normal(size=(p, p)) + 3.0
    components = places[:300]
    weights = calibrated_weights(components, places)
    assert np.all(weights > 0.0)
    np.testing.assert_allclose(weights.sum(), 1.0)
    np.testing.assert_allclose(weights @ components, places.mean(axis=0))
    np.testing.assert_allclose(
        np.cov(components, rowvar=False, aweights=weights, bias=True), np.cov(places, rowvar=False, bias=True)
    )
    assert np.ptp(calibrated_weights(places, places)) < 1e-12
