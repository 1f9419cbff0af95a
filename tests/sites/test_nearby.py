"""Moments at other cavity means: the same whether the nodes of all sites were kept, or of some of them."""

import numpy as np
import pytest

from pymc_ep.sites import compiled
from pymc_ep.sites.compiled import compile_site


@pytest.mark.parametrize("loop", [False, True])
@pytest.mark.parametrize("kept", [1, 150_000, 10**9])
@pytest.mark.parametrize("width", [0.05, 4.0])
def test_moments_nearby_are_moments_there(kept, width, loop, monkeypatch):
    monkeypatch.setattr(compiled, "_KEPT", kept)
    site = compile_site("logit", loop=loop)
    rng = np.random.default_rng(1)
    y = (rng.random(3000) < 0.5).astype(float)
    mean, variance = rng.normal(size=3000), width**2 * rng.uniform(0.5, 1.5, size=3000)
    first, nearby = site.moments_and_nearby(y, mean, variance, 1.0)
    for found, expected in zip(first, site.moments(y, mean, variance, 1.0)):
        np.testing.assert_array_equal(found, expected)
    moved = mean + width * rng.uniform(-1.5, 1.5, size=3000)
    for found, expected in zip(nearby(moved), site.moments(y, moved, variance, 1.0)):
        np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-12)
