"""The bundled data are what their source says."""

import numpy as np

from pymc_ep.datasets import load_coal


def test_coal_has_the_published_dates():
    dates = load_coal()
    assert dates.shape == (191,) and dates.dtype == np.float64
    assert np.all(np.diff(dates) >= 0)
    # 15 March 1851 and 22 March 1962
    np.testing.assert_allclose([dates[0], dates[-1]], [1851 + 74 / 365, 1962 + 80.5 / 365], atol=2 / 365)
    assert np.sum(np.diff(dates) == 0) == 1
    # Before the change near 1890 a disaster came about every four months, afterwards about one a year (Jarrett 1979).
    assert 3.0 < np.sum(dates < 1890) / 39 < 3.4
    assert 0.8 < np.sum(dates >= 1890) / 72 < 1.1
