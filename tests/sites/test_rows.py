"""Log densities of many draws at once, whatever of their arguments repeats, against SciPy."""

import numpy as np
import pytest
import scipy.stats

from pymc_ep.sites.compiled import compile_site

RNG = np.random.default_rng(3)
Y = RNG.standard_normal((3, 2))
ETA = RNG.standard_normal((7, 3, 2))
SIGMAS = {
    "one": np.array(0.7),
    "one for each draw": 0.5 + RNG.random((7, 1, 1)),
    "one for each observation": 0.5 + RNG.random((3, 2)),
    "its own for each": 0.5 + RNG.random((7, 3, 2)),
    "one for each column": np.broadcast_to(0.5 + RNG.random((7, 1, 2)), (7, 3, 2)),
}


@pytest.mark.parametrize("sigma", SIGMAS.values(), ids=SIGMAS)
@pytest.mark.parametrize("y", [Y, np.full((3, 2), 0.4), np.array(0.4)], ids=["varied", "equal", "scalar"])
def test_every_way_to_repeat(y, sigma):
    found = compile_site("normal").log_density(y, ETA, sigma)
    assert found.shape == ETA.shape
    np.testing.assert_allclose(found, scipy.stats.norm.logpdf(y, ETA, sigma), rtol=1e-12)


@pytest.mark.parametrize("shape", [(), (4,), (1, 4), (4, 1), (0, 4), (4, 0), (70_000, 3)])
def test_shapes(shape):
    """A scalar, a single row, none, and more rows than a block holds."""
    eta = RNG.standard_normal(shape)
    counts = np.arange(shape[-1]) if shape else 2
    found = compile_site("poisson").log_density(counts, eta)
    np.testing.assert_allclose(found, scipy.stats.poisson.logpmf(counts, np.exp(eta)), rtol=1e-10)


def test_nan_stays_where_it_is():
    eta = ETA.copy()
    eta[2, 1, 0] = np.nan
    found = compile_site("normal").log_density(Y, eta, 1.0)
    assert np.argwhere(np.isnan(found)).tolist() == [[2, 1, 0]]
