"""Chains under densities whose moments are known, and the wall."""

import numpy as np

from pymc_ep.evidence.integration.walkers import Walkers


def gaussian(sd):
    return lambda z: (-0.5 * ((z / sd) ** 2).sum(axis=1), -z / sd**2)


def everywhere(z):
    return np.ones(len(z), dtype=bool)


def test_moments_of_a_gaussian():
    sd = np.array([0.5, 1.0, 2.0])
    walkers = Walkers(np.zeros((400, 3)), np.random.default_rng(0))
    walkers.move(gaussian(sd), everywhere, 30)
    z = np.concatenate(walkers.move(gaussian(sd), everywhere, 40))
    np.testing.assert_allclose(z.mean(axis=0) / sd, 0.0, atol=0.06)
    np.testing.assert_allclose(z.std(axis=0) / sd, 1.0, rtol=0.04)
    assert walkers.refused_share == 0.0


def test_no_chain_passes_the_wall():
    """Refused beyond zero, the draws are those of the half-normal, whose mean is sqrt(2 / pi)."""
    walkers = Walkers(np.full((400, 1), 0.5), np.random.default_rng(1))
    known = lambda z: z[:, 0] > 0  # noqa: E731
    walkers.move(gaussian(1.0), known, 30)
    z = np.concatenate(walkers.move(gaussian(1.0), known, 60))
    assert z.min() > 0
    np.testing.assert_allclose(z.mean(), np.sqrt(2 / np.pi), atol=0.03)
    assert 0.1 < walkers.refused_share < 0.7
    assert np.all(walkers.refused[:, 0] <= 0)


def test_places_without_a_density_are_left_alone():
    def target(z):
        value, gradient = gaussian(1.0)(z)
        return np.where(z[:, 0] < 1, value, np.nan), gradient

    walkers = Walkers(np.zeros((100, 1)), np.random.default_rng(2))
    assert np.concatenate(walkers.move(target, everywhere, 50)).max() < 1
