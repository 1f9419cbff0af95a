"""What the pictures of paired symbols draw, read back from their axes."""

import numpy as np
import pymc as pm
import pytest
import xarray as xr
from matplotlib import pyplot

import pymc_ep as pmep
from pymc_ep.compat import group


@pytest.fixture(autouse=True)
def _closed():
    yield
    pyplot.close("all")


def test_popularities_are_drawn_against_pairs():
    pairs = [[0, 0], [0, 1], [1, 0], [2, 0], [2, 2], [3, 1]]
    with pm.Model(coords={"user": list("abcd"), "item": list("wxyz"), "factor": range(2)}):
        U, V = pm.Normal("U", 0, 1, dims=("user", "factor")), pm.Normal("V", 0, 1, dims=("item", "factor"))
        pmep.PairedSymbols("views", U, V, observed=pairs)
        idata = pmep.fit(draws=0, progressbar=False, max_iter=1000)
    fit = group(idata, "fit")
    assert fit["views_item_popularity_pairs"].dims == ("item",)
    assert fit["views_item_popularity_pairs"].values.tolist() == [3, 2, 1, 0]
    assert float(fit["views_item_popularity_censored"].sum()) == pytest.approx(1.0)
    panel = pmep.plots.plot_popularity(idata, "views_item_popularity")
    mean, censored, line = panel.lines
    expected = group(idata, "posterior_mean")["views_item_popularity"].values[:3]
    np.testing.assert_allclose(mean.get_ydata(), expected)
    np.testing.assert_array_equal(censored.get_xdata(), [3, 2, 1])
    np.testing.assert_allclose(line.get_ydata(), [1 / 6, 3 / 6])
    assert panel.get_xscale() == panel.get_yscale() == "log" and panel.get_xlabel() == "observed pairs"
    with pytest.raises(ValueError, match="no popularities 'views'; it has 'views_user_popularity', 'views_item_po"):
        pmep.plots.plot_popularity(idata, "views")


def test_ranks_are_averaged_in_bins_that_double():
    ranks = xr.Dataset({"rank": ("pair", [0.5, 1.0, 0.2, 0.4, 0.6])})
    panel = pmep.plots.plot_rank_by_activity(ranks, [1, 1, 2, 3, 9], label="fit")
    line = panel.lines[0]
    np.testing.assert_allclose(line.get_ydata().astype(float), [0.75, 0.3, 0.6])
    np.testing.assert_allclose(line.get_xdata().astype(float), 2.0 ** np.array([0.5, 1.5, 3.5]))
    assert [text.get_text() for text in panel.get_legend().get_texts()] == ["fit"]
    with pytest.raises(ValueError, match=r"pairs= has the shape \(2,\), and there are 5 ranks"):
        pmep.plots.plot_rank_by_activity(ranks, [1, 2])
