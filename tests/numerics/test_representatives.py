"""Stratified draws against weights and moments of all points."""

import numpy as np
import pytest

from pymc_ep.numerics.interpolation.stratified_draws import _cells, nearest, stratified


def test_nearest_is_that_of_all_distances():
    rng = np.random.default_rng(0)
    points, centres = rng.normal(size=(50, 3)), rng.normal(size=(7, 3))
    expected = ((points[:, None] - centres) ** 2).sum(axis=-1).argmin(axis=1)
    np.testing.assert_array_equal(nearest(points, centres), expected)


@pytest.mark.parametrize(("p", "better"), [(1, 20.0), (2, 5.0), (4, 1.5)])
def test_moments_err_less_than_those_of_independent_draws(p, better):
    rng = np.random.default_rng(1)
    points = rng.normal(size=(6000, p))
    weights = np.exp(points[:, 0])  # moves the mean of the first coordinate to one
    exact = weights @ points / weights.sum()
    drawn = [points[stratified(points, weights, 500, rng)] for _ in range(20)]
    assert np.sqrt(np.mean([(own.mean(axis=0) - exact) ** 2 for own in drawn])) < 1 / np.sqrt(500) / better
    variance = weights @ (points - exact) ** 2 / weights.sum()
    off = np.array([((own - exact) ** 2).mean(axis=0) / variance - 1.0 for own in drawn])
    assert np.sqrt(np.mean(off**2)) < np.sqrt(2 / 500) / better


def test_weights_are_frequencies():
    points = np.array([[0.0], [1.0], [2.0]])
    chosen = stratified(points, np.array([0.2, 0.0, 0.6]), 8, np.random.default_rng(2))
    np.testing.assert_array_equal(np.bincount(chosen, minlength=3), [2, 0, 6])


def test_a_constant_coordinate_changes_nothing():
    rng = np.random.default_rng(3)
    points, weights = rng.normal(size=(200, 2)), np.full(200, 1 / 200)
    widened = np.column_stack([points, np.ones(200)])
    one, other = (stratified(p, weights, 20, np.random.default_rng(4)) for p in (points, widened))
    np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("count", [1, 7, 64, 900])
def test_cells_have_equal_weights_and_share_all_points(count):
    rng = np.random.default_rng(3)
    points, weights = rng.normal(size=(600, 2)), rng.gamma(0.3, size=600)
    entries, shares, starts = _cells(points, weights, count)
    assert len(starts) == count and np.all(shares >= 0)
    np.testing.assert_allclose(np.add.reduceat(shares, starts), weights.sum() / count)
    np.testing.assert_allclose(np.bincount(entries, shares, len(points)), weights, atol=1e-12)
