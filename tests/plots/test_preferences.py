"""Pictures of preferences, read back from their axes."""

import numpy as np
import pandas as pd
import pymc as pm
import pytest
import xarray as xr
from matplotlib import pyplot

import pymc_ep as pmep
from pymc_ep.compat import make_container
from pymc_ep.exceptions import InvalidDataError

ITEMS = ["tea", "milk", "rum", "soup", "ale"]
V = np.random.default_rng(0).normal(size=(5, 3))


@pytest.fixture(autouse=True)
def _closed():
    yield
    pyplot.close("all")


@pytest.fixture(scope="module")
def fit():
    """Two people, and items whose factors are learned."""
    winners, losers = ["tea", "tea", "milk", "rum"], ["milk", "rum", "soup", "ale"]
    with pm.Model(coords={"person": ["ann", "bob"], "drink": ITEMS, "factor": range(3)}) as model:
        own = pm.Normal("V", 0, 1, initval=V, dims=("drink", "factor"))
        f = pmep.PreferenceUtility("f", V=own, dims=("person", "drink"))
        pmep.PairwiseProbit("prefers", f, users=["ann", "ann", "ann", "bob"], winners=winners, losers=losers)
        return pmep.fit(hyper="fixed", start={"V": V}, draws=0, progressbar=False), model


def names_on(panel):
    return [text.get_text() for text in panel.texts if text.get_text()]


def test_distances_on_a_map_are_those_of_the_factors(fit):
    panel = pmep.plots.plot_item_map(fit[0], n_labels=3)
    at = panel.lines[2].get_xydata()
    centred = V - V.mean(axis=0)
    variances, directions = np.linalg.eigh(centred.T @ centred)
    expected = centred @ directions[:, 1:]
    np.testing.assert_allclose(at @ at.T, expected @ expected.T, atol=1e-10)
    assert f"{variances[-1] / variances.sum():.0%}" in panel.get_xlabel()
    assert names_on(panel)[0] == ITEMS[int(np.argmax(np.hypot(*at.T)))]
    assert len(names_on(panel)) <= 3


def test_arrows_point_to_where_features_grow(fit):
    at = pmep.plots.plot_item_map(fit[0]).lines[2].get_xydata()
    # One feature is told by the map, one has no part in it, and one does not vary.
    apart = np.linalg.svd(np.column_stack([np.ones(5), at]))[0][:, -1]
    features = pd.DataFrame({"along": at @ [3.0, 4.0] + 7.0, "across": apart, "constant": np.ones(5)})
    panel = pmep.plots.plot_item_map(fit[0], features=features, n_labels=0)
    ends = {}
    for text, arrow in zip(panel.texts[1::2], panel.texts[::2]):
        ends[text.get_text()] = np.array(arrow.xy)
    radius = np.hypot(*at.T).max()
    np.testing.assert_allclose(ends["along"], radius * np.array([0.6, 0.8]), rtol=1e-10)
    assert np.hypot(*ends["across"]) < 1e-10 * radius
    assert "constant" not in ends
    assert panel.get_xlim()[1] > ends["along"][0] and panel.get_ylim()[1] > ends["along"][1]


def test_names_on_a_map_do_not_cover_each_other():
    at = np.column_stack([np.repeat([-1.0, 1.0], 20), np.tile(np.linspace(-1e-3, 1e-3, 20), 2)])
    moments = xr.Dataset({"V": (("film", "factor"), at)})
    idata = make_container({"posterior_mean": moments, "fit": xr.Dataset({"converged": True})})
    # On either side one above the axis, and one below.
    assert len(names_on(pmep.plots.plot_item_map(idata))) == 4


def test_maps_need_factors_and_features_of_each_item(fit):
    with pytest.raises(ValueError, match=r"var_name='f_' is no matrix of the fit, .* the fit has"):
        pmep.plots.plot_item_map(fit[0], "f_")
    with pytest.raises(InvalidDataError, match="features= has 4 rows, and there are 5 items"):
        pmep.plots.plot_item_map(fit[0], features=np.zeros((4, 2)))
    with pytest.raises(InvalidDataError, match=r"features= has nan.*2.*1.*replace"):
        pmep.plots.plot_item_map(fit[0], features=np.where(np.arange(10).reshape(5, 2) == 5, np.nan, 0.0))


def test_ranks_of_a_person_are_drawn_by_item(fit):
    ranks = pmep.rank_items(*fit, person=["bob"])
    panel = pmep.plots.plot_item_ranks(ranks, n=3)
    mean = ranks["mean_rank"].values[0]
    best = np.argsort(mean)[:3]
    assert [text.get_text() for text in panel.get_yticklabels()] == [ITEMS[k] for k in best]
    np.testing.assert_allclose(panel.images[0].get_array(), ranks["rank_probability"].values[0][best])
    np.testing.assert_allclose(panel.lines[0].get_xydata(), np.column_stack([mean[best], np.arange(3)]))
    assert panel.get_title() == "person = bob" and panel.get_xlabel() == "rank"


def test_ranks_that_are_improbable_for_all_are_left_out(fit):
    ranks = pmep.rank_items(*fit, person=["bob"])
    certain = ranks.assign(rank_probability=ranks["rank_probability"].copy(data=np.eye(5)[None]))
    panel = pmep.plots.plot_item_ranks(certain, n=2)
    assert panel.images[0].get_array().shape[1] == 1 + int(np.argsort(ranks["mean_rank"].values[0])[:2].max())


def test_ranks_need_one_person_and_probabilities(fit):
    ranks = pmep.rank_items(*fit, person=["ann", "bob"])
    with pytest.raises(ValueError, match=r"ranks= is of 2 users; select one, as by \.isel\(person=\[0\]\)"):
        pmep.plots.plot_item_ranks(ranks)
    with pytest.raises(ValueError, match="no probabilities of ranks"):
        pmep.plots.plot_item_ranks(ranks[["mean_rank"]])
