"""What the pictures of paired symbols draw, read back from their axes."""

import numpy as np
import pymc as pm
import pytest
import xarray as xr
from matplotlib import pyplot

import pymc_ep as pmep
from pymc_ep.compat import group
from pymc_ep.plots import pairs as pictures


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


@pytest.fixture(scope="module")
def with_biases():
    """A fit with users of 0, 1, 3, 4 and 5 pairs, a bias of the items and a fixed one of the users."""
    pairs = [[1, 0]] + [[2, j] for j in (0, 1, 5)] + [[3, j] for j in (1, 2, 3, 4)] + [[4, j] for j in (0, 1, 2, 3, 5)]
    with pm.Model(coords={"user": list("abcde"), "item": range(10, 16), "factor": range(2)}) as model:
        U, V = pm.Normal("U", 0, 1, dims=("user", "factor")), pm.Normal("V", 0, 1, dims=("item", "factor"))
        bi = pm.Normal("bi", 0, 1, dims="item")
        pmep.PairedSymbols("views", U, V, -0.5, bi, censored_ratio=2.0, observed=pairs)
        return pmep.fit(draws=0, progressbar=False, max_iter=1000), model


def preferences_of(idata):
    """Posterior means of sigmoid(a), (users, items), with the moments of products element by element."""
    mean, sd = group(idata, "posterior_mean"), group(idata, "posterior_sd")
    (U, V, bi), (of_U, of_V, of_bi) = ([one[name].values for name in ("U", "V", "bi")] for one in (mean, sd))
    second = np.einsum("ik,jk->ij", U**2 + of_U**2, V**2 + of_V**2)
    variance = second - np.einsum("ik,jk->ij", U**2, V**2) + of_bi**2
    return 1.0 / (1.0 + np.exp(-(U @ V.T - 0.5 + bi) / np.sqrt(1.0 + np.pi * variance / 8.0)))


def drawn(panel):
    """The densities of a panel, and their labels."""
    return [patch.get_data() for patch in panel.patches], [text.get_text() for text in panel.get_legend().get_texts()]


@pytest.mark.parametrize("side", ["user", "item"])
def test_preferences_are_spread_over_the_other_side_by_activity(with_biases, side):
    idata, model = with_biases
    expected = preferences_of(idata) if side == "user" else preferences_of(idata).T
    groups = {"1 to 3": [1, 2], "4 to 15": [3, 4]} if side == "user" else {"1 to 3": list(range(6))}
    panel = pmep.plots.plot_preference(idata, f"views_{side}_popularity", model)
    densities, labels = drawn(panel)
    assert labels == list(groups)
    for (density, edges, _), rows in zip(densities, groups.values()):
        assert density @ np.diff(edges) == pytest.approx(1.0)
        below = np.array([(expected[rows] < edge).sum() for edge in edges])
        np.testing.assert_allclose(density, np.diff(below) / expected[rows].size / np.diff(edges))
    assert panel.get_title() == f"views_{side}_popularity" and "probability" in panel.get_xlabel()


def test_few_rows_stand_for_all_and_take_little_memory(with_biases, monkeypatch):
    idata, model = with_biases
    expected, edges = preferences_of(idata), np.linspace(0.0, 1.0, 51)
    alone = [np.histogram(row, edges, density=True)[0] for row in expected]
    with model:
        panel = pmep.plots.plot_preference(idata, "views_user_popularity", n=1, title="r = 2")
    again = pmep.plots.plot_preference(idata, "views_user_popularity", model, n=1)
    for (density, *_), (same, *_), rows in zip(drawn(panel)[0], drawn(again)[0], ([1, 2], [3, 4])):
        assert any(np.allclose(density, alone[row]) for row in rows)
        np.testing.assert_array_equal(density, same)
    assert panel.get_title() == "r = 2"
    monkeypatch.setattr(pictures, "_NUMBERS", 11)
    bounded = pmep.plots.plot_preference(idata, "views_user_popularity", model)
    np.testing.assert_array_equal(drawn(bounded)[0][0][0], drawn(panel)[0][0][0])


def test_preferences_need_known_popularities_of_named_rows(with_biases):
    idata, model = with_biases
    with pytest.raises(ValueError, match="no popularities 'views'; it has 'views_user_popularity', 'views_item_po"):
        pmep.plots.plot_preference(idata, "views", model)
    with pytest.raises(ValueError, match="n=0 must be a whole number of at least 1"):
        pmep.plots.plot_preference(idata, "views_user_popularity", model, n=0)
    with pm.Model() as unnamed:
        U, V = pm.Normal("U", 0, 1, shape=(3, 1)), pm.Normal("V", 0, 1, shape=(4, 1))
        pmep.PairedSymbols("views", U, V, observed=[[0, 1], [1, 2]])
        without = pmep.fit(draws=0, progressbar=False)
    with pytest.raises(ValueError, match=r"'views_item_popularity' has no dim, .* give the matrix of its side dims="):
        pmep.plots.plot_preference(without, "views_item_popularity", unnamed)


def test_ranks_are_averaged_in_bins_that_double():
    ranks = xr.Dataset({"rank": ("pair", [0.5, 1.0, 0.2, 0.4, 0.6])})
    panel = pmep.plots.plot_rank_by_activity(ranks, [1, 1, 2, 3, 9], label="fit")
    line = panel.lines[0]
    np.testing.assert_allclose(line.get_ydata().astype(float), [0.75, 0.3, 0.6])
    np.testing.assert_allclose(line.get_xdata().astype(float), 2.0 ** np.array([0.5, 1.5, 3.5]))
    assert [text.get_text() for text in panel.get_legend().get_texts()] == ["fit"]
    with pytest.raises(ValueError, match=r"pairs= has the shape \(2,\), and there are 5 ranks"):
        pmep.plots.plot_rank_by_activity(ranks, [1, 2])
