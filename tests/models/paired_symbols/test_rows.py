"""Rankings, new rows and predictive probabilities of paired symbols, against all cells of a small model."""

import sys

import numpy as np
import pymc as pm
import pytest
import xarray as xr
from scipy import sparse
from scipy.special import expit

import pymc_ep as pmep
from pymc_ep.compat import group
from pymc_ep.numerics import memory

I, J, K = 60, 40, 2  # noqa: E741
USERS, ITEMS = 100 + np.arange(I), [f"item {k}" for k in range(J)]
QUIET = {"progressbar": False, "random_seed": 1, "draws": 0, "max_iter": 2000}


def counts_of():
    rng = np.random.default_rng(5)
    u, v = 2.5 * rng.normal(size=(I, K)), 2.5 * rng.normal(size=(J, K))
    p = np.outer(rng.dirichlet(np.full(I, 3.0)), rng.dirichlet(np.full(J, 3.0))) * expit(u @ v.T)
    return rng.multinomial(2000, p.ravel() / p.sum()).reshape(I, J)


COUNTS = counts_of()


def model_of(counts=COUNTS, biases=True):
    with pm.Model(coords={"user": USERS[: len(counts)], "item": ITEMS, "factor": range(K)}) as model:
        U, V = pm.Normal("U", 0, 1, dims=("user", "factor")), pm.Normal("V", 0, 1, dims=("item", "factor"))
        b = pm.Normal("bu", 0, 1, dims="user") if biases else 0
        c = pm.Normal("bi", 0, 1, dims="item") if biases else 0
        pmep.PairedSymbols("views", U, V, b, c, observed=sparse.csr_array(counts))
    return model


@pytest.fixture(scope="module", params=[True, False], ids=["biases", "none"])
def fitted(request):
    model = model_of(biases=request.param)
    return model, pmep.fit(model=model, **QUIET | {"tol": 1e-9})


def dense(idata):
    """Mean and sd of a, (I, J), and p(item | user)."""
    mean, sd = (group(idata, f"posterior_{what}") for what in ("mean", "sd"))
    u, v = mean["U"].to_numpy(), mean["V"].to_numpy()
    uu, vv = (mean[name].to_numpy() ** 2 + sd[name].to_numpy() ** 2 for name in ("U", "V"))
    a, variance = u @ v.T, uu @ vv.T - (u**2) @ (v**2).T
    if "bu" in mean:
        a = a + mean["bu"].to_numpy()[:, None] + mean["bi"].to_numpy()
        variance = variance + sd["bu"].to_numpy()[:, None] ** 2 + sd["bi"].to_numpy() ** 2
    p = expit(a / np.sqrt(1 + np.pi * variance / 8)) * mean["views_item_popularity"].to_numpy()
    return a, np.sqrt(variance), p / p.sum(axis=1, keepdims=True)


def calibrated(idata):
    """Log of (concentration + k)^c exp(d E a), (I, J)."""
    fit = group(idata, "fit")
    concentration = group(idata, "fit_state")["item_concentration"].to_numpy()
    popularity = np.log(concentration + float(fit["popularity_smoothing"]))
    return float(fit["popularity_exponent"]) * popularity + float(fit["preference_exponent"]) * dense(idata)[0]


@pytest.mark.parametrize("by", [None, "probability", "predictor_mean"])
def test_recommendations_are_the_best_unseen_items(fitted, by):
    model, idata = fitted
    a, sd, p = dense(idata)
    scores = {"probability": p, "predictor_mean": a, None: np.exp(calibrated(idata))}[by]
    found = pmep.recommend(idata, model, user=[103, 100], n=4, by=by)
    assert found.attrs["by"] == (by or "calibrated_probability")
    for row, i in enumerate((3, 0)):
        score = np.where(COUNTS[i] > 0, -np.inf, scores[i])
        if by is None:
            share = score[COUNTS[i] == 0] / score[COUNTS[i] == 0].sum()
            np.testing.assert_allclose(found["calibrated_probability"].values[row], np.sort(share)[:-5:-1], rtol=1e-6)
        best = np.argsort(-score)[:4]
        assert found["item"].values[row].tolist() == [ITEMS[j] for j in best]
        np.testing.assert_allclose(found["probability"].values[row], p[i, best], rtol=1e-6)
        np.testing.assert_allclose(found["predictor_mean"].values[row], a[i, best], atol=1e-6)
        np.testing.assert_allclose(found["predictor_sd"].values[row], sd[i, best], rtol=1e-6)
    users = pmep.recommend(idata, model, item=["item 2"], n=3, exclude_observed=False)
    assert users["user"].dims == ("item", "rank") and users["user"].dtype == USERS.dtype


def test_chunks_change_nothing(fitted, monkeypatch):
    model, idata = fitted
    whole = pmep.recommend(idata, model, user=USERS, n=3)
    monkeypatch.setattr(memory, "CHUNK", 1)
    xr.testing.assert_allclose(pmep.recommend(idata, model, user=USERS, n=3), whole)


@pytest.mark.parametrize("by", [None, "probability"])
def test_ranks_are_shares_of_unseen_items_below(fitted, by):
    model, idata = fitted
    p = calibrated(idata) if by is None else dense(idata)[2]
    users, items = np.nonzero(COUNTS == 0)
    users, items = users[::7], items[::7]
    found = pmep.rank_items(idata, model, by=by, user=USERS[users], item=[ITEMS[j] for j in items])
    for k, (i, j) in enumerate(zip(users, items)):
        unseen = p[i][COUNTS[i] == 0]
        assert found["position"].values[k] == 1 + (unseen > p[i, j]).sum()
        assert found["rank"].values[k] == pytest.approx(1 - (unseen > p[i, j]).sum() / (len(unseen) - 1))
    assert found["user"].values.tolist() == USERS[users].tolist()


def test_metrics_are_those_of_the_recommended_lists(fitted):
    """By definition, from lists of `recommend`: which of them are held out, and where."""
    model, idata = fitted
    users, items = (part[::5] for part in np.nonzero(COUNTS == 0))
    ranks = pmep.rank_items(idata, model, user=USERS[users], item=[ITEMS[j] for j in items])
    found = pmep.rank_metrics(ranks, k=6)
    lists = pmep.recommend(idata, model, user=USERS, n=J)
    for i in np.unique(users):
        held_out = {ITEMS[j] for j in items[users == i]}
        first = lists["item"].sel(user=USERS[i]).values.tolist()
        places = [r for r, item in enumerate(first[:6], start=1) if item in held_out]
        ideal = sum(1 / np.log2(1 + r) for r in range(1, 1 + min(6, len(held_out))))
        probability = dict(zip(first, lists["calibrated_probability"].sel(user=USERS[i]).values))
        expected = {
            "hit": float(bool(places)),
            "precision": len(places) / 6,
            "recall": len(places) / len(held_out),
            "ndcg": sum(1 / np.log2(1 + r) for r in places) / ideal,
            "recip_rank": 1 / places[0] if places else 0,
            "log_score": np.mean([np.log(probability[item]) for item in held_out]),
        }
        assert found.loc[USERS[i]].to_dict() == pytest.approx(expected)
    by_mean = pmep.rank_items(idata, model, by="predictor_mean", user=USERS[users], item=[ITEMS[j] for j in items])
    assert "log_score" not in pmep.rank_metrics(by_mean)


def test_metrics_by_hand():
    """Of five places: held out are two at 1 and 4 of a, one at 6 of b."""
    ranks = xr.Dataset(
        {"position": ("pair", [1.0, 4.0, 6.0]), "log_probability": ("pair", np.log([0.5, 0.125, 0.01]))},
        coords={"user": ("pair", ["a", "a", "b"])},
        attrs={"ranked_for": "user"},
    )
    found = pmep.rank_metrics(ranks, k=5)
    ndcg = (1 + 1 / np.log2(5)) / (1 + 1 / np.log2(3))
    assert found.loc["a"].to_dict() == pytest.approx(
        {"hit": 1, "precision": 0.4, "recall": 1, "ndcg": ndcg, "recip_rank": 1, "log_score": np.log(0.25)}
    )
    none = {"hit": 0, "precision": 0, "recall": 0, "ndcg": 0, "recip_rank": 0, "log_score": np.log(0.01)}
    assert found.loc["b"].to_dict() == pytest.approx(none)
    with pytest.raises(ValueError, match="ranks= has no positions of pairs"):
        pmep.rank_metrics(ranks.drop_vars("position"))
    with pytest.raises(ValueError, match="k=0"):
        pmep.rank_metrics(ranks, k=0)


def test_ties_count_half():
    counts = np.zeros((3, J), dtype=int)
    counts[0, 0] = counts[1, 1] = counts[2, 0] = 1
    with pm.Model() as model:
        U, V = pm.Normal("U", 0, 1e-6, shape=(3, K)), pm.Normal("V", 0, 1e-6, shape=(J, K))
        pmep.PairedSymbols("views", U, V, observed=sparse.csr_array(counts))
        idata = pmep.fit(constant_messages=True, **QUIET)
    by_mean = pmep.rank_items(idata, model, by="predictor_mean", U=[0], V=[5])
    assert 0.0 <= float(by_mean["rank"][0]) <= 1.0
    # Items 2 to 39 have no pair, and so one popularity; 37 others are equal to item 5, and item 1 is above.
    unseen = group(idata, "posterior_mean")["views_item_popularity"].to_numpy()[2:]
    assert np.ptp(unseen) < 1e-9
    found = pmep.rank_items(idata, model, U=[0], V=[5])
    assert 0.3 < float(found["rank"][0]) < 0.6


def test_neighbours_have_the_largest_cosines(fitted):
    model, idata = fitted
    v = group(idata, "posterior_mean")["V"].to_numpy()
    v = v / np.linalg.norm(v, axis=1, keepdims=True)
    found = pmep.similar(idata, model, item=["item 4", "item 0"], n=5)
    for row, j in enumerate((4, 0)):
        cosine = v @ v[j]
        cosine[j] = -np.inf
        best = np.argsort(-cosine)[:5]
        assert found["neighbour"].values[row].tolist() == [ITEMS[k] for k in best]
        np.testing.assert_allclose(found["similarity"].values[row], cosine[best], rtol=1e-6)


@pytest.mark.parametrize("side", ["user", "item"])
def test_a_row_that_was_fitted_is_folded_in_as_it_was(fitted, side):
    model, idata = fitted
    table = COUNTS if side == "user" else COUNTS.T
    found = pmep.fold_in(idata, model, {side: sparse.csr_array(table)})
    mean, sd = (group(idata, f"posterior_{what}") for what in ("mean", "sd"))
    name, bias = ("U", "bu") if side == "user" else ("V", "bi")
    assert found[f"{name}_converged"].all()
    np.testing.assert_allclose(found[f"{name}_mean"], mean[name], atol=2e-3)
    np.testing.assert_allclose(found[f"{name}_sd"], sd[name], rtol=2e-3)
    if bias in mean:
        np.testing.assert_allclose(found[f"{bias}_mean"], mean[bias], atol=2e-3)
    assert found[name + "_mean"].dims == (side, "factor")


def test_new_rows_are_recommended_for(fitted):
    model, idata = fitted
    pairs = [[0, 1], [0, 2], [2, 5]]
    new = pmep.fold_in(idata, model, {"user": pairs})
    xr.testing.assert_equal(pmep.fold_in(idata, model, {"user": [[i, ITEMS[j]] for i, j in pairs]}), new)
    assert "1 of 3 new rows, the first one 1, have no pair" in new.attrs["status"]
    found = pmep.recommend(idata, model, user=new, n=20)
    for row, seen in enumerate(({1, 2}, set(), {5})):
        assert not seen & {ITEMS.index(one) for one in found["item"].values[row].tolist()}
    chosen = pmep.recommend(idata, model, user=new.isel(user=[2]), n=20)
    assert chosen["item"].values.tolist() == found["item"].values[2:].tolist()


def test_rows_short_of_their_maximum_are_counted(fitted, monkeypatch):
    model, idata = fitted
    monkeypatch.setattr(sys.modules["pymc_ep.models.paired_symbols.predict.fold_in"], "_ROUNDS", 1)
    with pytest.warns(pmep.ConvergenceWarning, match="2 of 2 new rows of 'U' did not converge; 'U_converged' tells"):
        found = pmep.fold_in(idata, model, {"user": [[0, 1], [1, 2]]})
    assert not found["U_converged"].any()


def test_log_predictive_probabilities(fitted):
    model, idata = fitted
    _, _, p = dense(idata)
    pairs = [[3, 1], [0, 4], [3, 0]]
    found = pmep.log_predictive(idata, model, {"views": pairs})
    np.testing.assert_allclose(found["views"], np.log(p[tuple(np.transpose(pairs))]), rtol=1e-6)
    held_out = sparse.csr_array(([2, 1], ([3, 0], [1, 4])), shape=(I, J))
    again = pmep.log_predictive(idata, model, {"views": held_out})
    np.testing.assert_allclose(again["views"], np.log(p[[0, 3], [4, 1]]), rtol=1e-6)


def test_what_is_asked_wrongly_is_named(fitted):
    model, idata = fitted
    with pytest.raises(ValueError, match="holds 'nobody', but there is no such row"):
        pmep.similar(idata, model, item=["nobody"], n=2)
    assert pmep.similar(idata, model, item=["item 0"], n=40)["rank"].size == 39
    with pytest.raises(ValueError, match="takes rows of both matrices"):
        pmep.rank_items(idata, model, user=[100])
    with pytest.raises(ValueError, match="rows of the same matrix"):
        pmep.rank_items(idata, model, user=[100], U=[101])
    with pytest.raises(ValueError, match="has 2 rows and 'item' 1; give pairs"):
        pmep.rank_items(idata, model, user=[100, 101], item=["item 0"])
    i, j = np.argwhere(COUNTS > 0)[0]
    with pytest.raises(ValueError, match="and observed pairs are left out"):
        pmep.rank_items(idata, model, user=[USERS[i]], item=[ITEMS[j]])
    with pytest.raises(pmep.InvalidDataError, match="cells= is for likelihoods with an offset"):
        pmep.recommend(idata, model, user=[100], n=2, cells={"offset": 1.0})
    with pytest.raises(pmep.InvalidDataError, match=r"views: new user.* has the fitted row 40 at row 0"):
        pmep.fold_in(idata, model, {"user": [[0, 40]]})
    with pytest.raises(ValueError, match="new user: item holds 'item 40', but there is no such row"):
        pmep.fold_in(idata, model, {"user": [[0, "item 40"]]})
    with pytest.raises(pmep.InvalidDataError, match=r"new user have labels .*'ann'.*number them from 0"):
        pmep.fold_in(idata, model, {"user": [["ann", "item 1"]]})
    with pytest.raises(pmep.InvalidDataError, match="are a mapping; give a SciPy sparse matrix"):
        pmep.fold_in(idata, model, {"user": {"rows": [0]}})
    with pytest.raises(pmep.UnsupportedModelError, match="stream of pairs, which has no Gaussian predictions"):
        pmep.predict(idata, model, var_names=["U"])
    with pytest.raises(pmep.UnsupportedModelError, match="no order, and so no probability integral transform"):
        pmep.diagnostics.predictive_pit(idata, model, {"views": [[0, 0]]})
    with pytest.raises(ValueError, match="data of the model have changed"):
        pmep.recommend(idata, model_of(np.maximum(COUNTS, 1), "bu" in model.named_vars), user=[100], n=1)


def test_priors_that_differ_from_row_to_row_have_no_new_rows():
    with pm.Model() as model:
        U, V = pm.Normal("U", 0, np.linspace(0.5, 1, I)[:, None], shape=(I, K)), pm.Normal("V", 0, 1, shape=(J, K))
        pmep.PairedSymbols("views", U, V, observed=sparse.csr_array(COUNTS))
        idata = pmep.fit(**QUIET)
        with pytest.raises(pmep.UnsupportedModelError, match="'U' differs from row to row"):
            pmep.fold_in(idata, model, {"U": [[0, 1]]})
        assert pmep.fold_in(idata, model, {"V": [[0, 1]]})["V_mean"].shape == (1, K)


def test_users_of_an_item_and_other_fits_have_no_calibration(fitted):
    model, idata = fitted
    found = pmep.recommend(idata, model, item=["item 2"], n=3)
    assert found.attrs["by"] == "probability" and "calibrated_probability" not in found
    with pytest.raises(ValueError, match="by='calibrated_probability' must be one of 'prob"):
        pmep.recommend(idata, model, item=["item 2"], n=3, by="calibrated_probability")
    plain = pmep.fit(model=model, calibrate=False, **QUIET)
    assert pmep.recommend(plain, model, user=[100], n=2).attrs["by"] == "probability"
    assert "preference_exponent" not in group(plain, "fit")
    with pytest.raises(ValueError, match=r"calibrate='yes' must be True or False"):
        pmep.fit(model=model, calibrate="yes", **QUIET)
