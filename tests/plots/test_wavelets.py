"""What the pictures of wavelet coefficients draw, read back from their axes."""

import numpy as np
import pytest
import pywt
import xarray as xr
from matplotlib import pyplot

import pymc_ep as pmep
from pymc_ep.compat import make_container
from pymc_ep.operators import Wavelet2D

SHAPE, LEVELS = (16, 8), 2


@pytest.fixture(autouse=True)
def _closed():
    yield
    pyplot.close("all")


@pytest.fixture
def image():
    return np.random.default_rng(0).normal(size=SHAPE)


def container(image, states):
    coefficients = Wavelet2D(SHAPE, "haar", LEVELS).forward(image)
    found = {"u_indicator": (("j",), states(coefficients)), "u_coefficient_mean": (("j",), coefficients)}
    return make_container({"fit": xr.Dataset(found), "posterior_mean": xr.Dataset({"u": (("r", "c"), image)})})


def test_states_lie_where_the_transform_puts_its_coefficients(image):
    panel = pmep.plots.plot_states(container(image, lambda s: 1.0 / (1.0 + s**2)), "u", cmap="gray")
    (shown,) = panel.images
    arranged, _ = pywt.coeffs_to_array(pywt.wavedec2(image, "haar", "periodization", level=LEVELS))
    expected = 1.0 / (1.0 + arranged**2)
    expected[: SHAPE[0] >> LEVELS, : SHAPE[1] >> LEVELS] = np.nan
    np.testing.assert_allclose(shown.get_array().filled(np.nan), expected, rtol=1e-12)
    assert shown.get_clim() == (0.0, 1.0) and shown.get_cmap().name == "gray"


def test_coefficients_count_by_the_probability_of_their_states(image):
    axes = pmep.plots.plot_coefficients(container(image, lambda s: np.full(len(s), 0.25)), "u")
    assert [axis.get_title() for axis in axes] == ["level 0", "level 1"]
    for level, axis in enumerate(axes):
        low, high = (sum(bar.get_height() for bar in bars) for bars in axis.containers)
        size = 3 * image.size / 4 ** (level + 1)
        np.testing.assert_allclose((low, high), (0.75 * size, 0.25 * size))


def test_a_field_without_states_is_refused(image):
    with pytest.raises(ValueError, match=r"no v_indicator; variables with states of their coefficients: 'u'"):
        pmep.plots.plot_states(container(image, np.abs), "v")
