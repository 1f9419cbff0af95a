"""Which sites have a compiled loop: the choice follows from the model alone."""

import numpy as np
import pytest
from scipy.stats import gumbel_r

from pymc_ep.evidence.ep.repeats import RepeatedGroup
from pymc_ep.sites import Site, compile_site


def log_gumbel(y, eta):
    return -(y - eta) - np.exp(-(y - eta))


GUMBEL = Site("Gumbel by NumPy", (), "real", log_concave=False, logp=log_gumbel, interpreted=True)


def group(n):
    every = np.arange(n)
    return RepeatedGroup(compile_site(GUMBEL), np.zeros(n), every, every)


@pytest.mark.parametrize(("n", "fits", "loop"), [(200, 60, True), (200, 1, False), (30, 60, False), (100_000, 1, True)])
def test_of_densities_by_size(n, fits, loop):
    for _ in range(2):  # whatever was asked before
        found = group(n).for_fits(fits)
        assert found.single.loop == loop
        assert found.single is compile_site(GUMBEL, loop=loop)


def test_of_sites_by_mode():
    assert compile_site("logit") is compile_site("logit", loop=True)
    assert [compile_site("logit", mode).loop for mode in (None, "NUMBA", "JAX", "FAST_COMPILE")] == [
        True,
        True,
        False,
        False,
    ]


def test_both_routes_agree():
    y, mean = np.linspace(-1, 2, 7), np.linspace(-1, 1, 7)
    routes = [compile_site(GUMBEL, loop=loop).moments(y, mean, 0.7) for loop in (False, True)]
    for by_nodes, by_loop in zip(*routes):
        np.testing.assert_allclose(by_loop, by_nodes, rtol=1e-9, atol=1e-10)
    nodes = mean[0] + np.sqrt(0.7) * np.linspace(-12, 12, 20001)
    weight = np.exp(-((nodes - mean[0]) ** 2) / 1.4) * gumbel_r.pdf(y[0], nodes)
    assert np.isclose(np.average(nodes, weights=weight), routes[1].mean[0])
