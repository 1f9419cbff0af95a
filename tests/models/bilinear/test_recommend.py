"""Recommendations, against all cells of small models by draws of the posterior."""

import arviz as az
import numpy as np
import pymc as pm
import pytest
import scipy.stats

import pymc_ep as pmep
from pymc_ep.numerics import memory

I, J, D, N = 60, 7, 2, 170  # noqa: E741
RNG = np.random.default_rng(8)
ROWS, COLS = RNG.integers(0, I, N), RNG.integers(0, J, N)
F = (0.8 * RNG.normal(size=(I, D))[ROWS] * RNG.normal(size=(J, D))[COLS]).sum(axis=1)
COUNTS = RNG.poisson(np.exp(F))
COORDS = {"item": [f"item {k}" for k in range(I)], "user": 100 + np.arange(J)}
QUIET = {"progressbar": False, "random_seed": 1, "draws": 0}
SURVIVAL = {
    "poisson": lambda f: -np.expm1(-np.exp(f)),
    "negative binomial": lambda f: scipy.stats.nbinom(2.5, 2.5 / (2.5 + np.exp(f))).sf(0),
    "truncated": lambda f: scipy.stats.poisson(np.exp(f)).sf(1) / scipy.stats.poisson(np.exp(f)).sf(0),
    "bits": lambda f: 1 / (1 + np.exp(-f)),
}


def model_of(kind="poisson", coords=COORDS, offset=0.3):
    with pm.Model(coords=coords) as model:
        V = pm.Normal("V", 0, 1, shape=(I, D), dims=("item", "factor"))
        U = pm.Normal("U", 0.1, 0.9, shape=(J, D), dims=("user", "factor"))
        offset = pm.Normal("b", -0.2, 0.5, shape=I, dims="item")[ROWS] + offset
        if kind == "bits":
            pmep.BilinearBernoulli("y", V, U, ROWS, COLS, offset=offset, observed=COUNTS > 1)
        else:
            options = {"alpha": 2.5} if kind == "negative binomial" else {"truncated": kind == "truncated"}
            y = np.maximum(COUNTS, kind == "truncated")
            pmep.BilinearPoisson("y", V, U, ROWS, COLS, offset=offset, observed=y, **options)
    return model


@pytest.fixture(scope="module")
def fits():
    return {kind: (model := model_of(kind), pmep.fit(model=model, **QUIET)) for kind in SURVIVAL}


def draws(idata, name, size=20_000):
    mean, sd = (idata[f"posterior_{what}"][name].to_numpy() for what in ("mean", "sd"))
    return mean + sd * np.random.default_rng(3).normal(size=(size, *mean.shape))


@pytest.mark.parametrize("kind", SURVIVAL)
def test_they_are_the_best_of_all_cells(fits, kind):
    model, idata = fits[kind]
    found = pmep.recommend(idata, model, user=[103, 100], n=8)
    assert found["item"].dims == ("user", "rank") and list(found["user"].values) == [103, 100]
    assert list(found["rank"].values) == list(range(1, 9))
    V, U, b = (draws(idata, name) for name in ("V", "U", "b"))
    for row, j in enumerate((3, 0)):
        f = np.einsum("sid,sd->si", V, U[:, j]) + b + 0.3
        expected = SURVIVAL[kind](f).mean(axis=0)
        place = np.array([COORDS["item"].index(label) for label in found["item"].values[row]])
        # Predictors are taken for Gaussian there, and drawn 20,000 times here.
        np.testing.assert_allclose(found["probability"][row], expected[place], atol=0.012)
        assert (np.diff(found["probability"][row]) <= 0).all()
        np.testing.assert_allclose(found["predictor_mean"][row], f.mean(axis=0)[place], atol=0.05)
        np.testing.assert_allclose(found["predictor_sd"][row], f.std(axis=0)[place], rtol=0.05)
        others = np.setdiff1d(np.arange(I), [*place, *ROWS[j == COLS]])
        assert expected[others].max() < expected[place].min() + 0.012
        assert not set(place) & set(ROWS[j == COLS])
    assert found.attrs["probability_is"] == ("P(y > 1)" if kind == "truncated" else "P(y > 0)")


def test_by_the_mean_of_the_predictor_they_are_exact(fits):
    model, idata = fits["poisson"]
    found = pmep.recommend(idata, model, item=["item 5"], by="predictor_mean", n=J, exclude_observed=False)
    V, U, b = (idata["posterior_mean"][name].to_numpy() for name in ("V", "U", "b"))
    f = U @ V[5] + b[5] + 0.3
    np.testing.assert_allclose(found["predictor_mean"][0], np.sort(f)[::-1])
    np.testing.assert_array_equal(found["user"][0], 100 + np.argsort(-f))
    assert found.attrs["by"] == "predictor_mean" and found["probability"].shape == (1, J)


def test_among_candidates(fits):
    """The ranking of all without the others, by labels or positions; NaN where fewer than others are left."""
    model, idata = fits["poisson"]
    stock = ["item 9", "item 3", "item 40", "item 41", "item 3"]
    whole = pmep.recommend(idata, model, user=[100, 103], n=I)
    for candidates in (stock, np.array(stock)):
        found = pmep.recommend(idata, model, user=[100, 103], candidates=candidates)
        for row, j in enumerate((0, 3)):
            left = [name for name in whole["item"].values[row] if isinstance(name, str)]
            assert set(left) == set(COORDS["item"]) - {COORDS["item"][k] for k in ROWS[j == COLS]}
            kept = [name for name in left if name in stock]
            given = [name for name in found["item"].values[row] if isinstance(name, str)]
            assert given == kept and found.sizes["rank"] <= 4
    with pytest.raises(ValueError, match=r"candidates= has the shape \(0,\); give one row"):
        pmep.recommend(idata, model, user=[100], candidates=[])
    with pytest.raises(ValueError, match="candidates= holds 'item 60', but there is no such row"):
        pmep.recommend(idata, model, user=[100], candidates=["item 60"])


def test_chunks_change_nothing(fits, monkeypatch):
    model, idata = fits["bits"]
    known = pmep.recommend(idata, model, user=100 + np.arange(J), n=5, by="predictor_mean")
    monkeypatch.setattr(memory, "CHUNK", 1)
    again = pmep.recommend(idata, model, user=100 + np.arange(J), n=5, by="predictor_mean")
    assert known["item"].equals(again["item"])
    for name in ("predictor_mean", "predictor_sd"):
        np.testing.assert_allclose(known[name], again[name], rtol=1e-12)


def test_positions_and_a_container_from_disk(fits, tmp_path):
    model, idata = fits["poisson"]
    idata.to_netcdf(tmp_path / "fit.nc")
    by_label = pmep.recommend(idata, model, item="item 7", n=2)
    by_position = pmep.recommend(az.from_netcdf(tmp_path / "fit.nc"), model, item=7, n=2)
    assert by_label.equals(by_position) and list(by_label["item"].values) == ["item 7"]
    by_label.to_netcdf(tmp_path / "best.nc")
    plain = model_of(coords={})
    found = pmep.recommend(pmep.fit(model=plain, **QUIET), plain, U=[3], n=4)
    assert found["item"].dtype.kind == "i" and list(found["user"].values) == [3]


def test_for_rows_that_were_folded_in(fits):
    model, idata = fits["negative binomial"]
    here = COLS == 2
    cells = {"rows": ROWS[here], "cols": np.ones(here.sum(), dtype=int), "observed": COUNTS[here]}
    new = pmep.fold_in(idata, model, {"user": cells})
    found = pmep.recommend(idata, model, user=new, n=6, by="predictor_mean")
    known = pmep.recommend(idata, model, user=102, n=6, by="predictor_mean")
    assert list(found["user"].values) == [0, 1]
    np.testing.assert_allclose(found["predictor_mean"][1], known["predictor_mean"][0], atol=2e-2)
    np.testing.assert_array_equal(found["item"][1], known["item"][0])
    with pytest.raises(ValueError, match="item= is a dataset that fold_in did not return for rows of 'V'"):
        pmep.recommend(idata, model, item=new)


def test_some_of_the_rows_that_were_folded_in(fits):
    """Cells keep the numbers that rows have in the whole."""
    model, idata = fits["poisson"]
    cells = {"rows": np.arange(60), "cols": np.repeat([0, 1], [59, 1]), "observed": np.ones(60, dtype=int)}
    new = pmep.fold_in(idata, model, {"user": cells})
    part = pmep.recommend(idata, model, user=new.isel(user=[1]), n=59)
    assert list(part["user"].values) == [1] and "item 59" not in part["item"].values
    both = pmep.recommend(idata, model, user=new, n=99)
    assert both["rank"].size == 59 and both["item"].notnull().sum("rank").values.tolist() == [1, 59]
    assert both["probability"].notnull().sum("rank").values.tolist() == [1, 59]
    with pytest.raises(ValueError, match="has other labels than fold_in gave it"):
        pmep.recommend(idata, model, user=new.assign_coords(user=["ann", "bob"]), n=1)


def test_rows_that_were_folded_in_keep_their_covariances():
    """Recommendations for a row of the fit that is folded in again are those for the row itself."""
    model = model_of()
    idata = pmep.fit(model=model, covariance="full", tol=1e-10, max_iter=1000, **QUIET)
    here = COLS == 2
    new = pmep.fold_in(idata, model, {"user": {"rows": ROWS[here], "observed": COUNTS[here]}})
    assert new["U_factor"].shape == (1, D, D)
    found, known = (pmep.recommend(idata, model, user=who, n=5) for who in (new, 102))
    np.testing.assert_array_equal(found["item"], known["item"])
    np.testing.assert_allclose(found["predictor_sd"], known["predictor_sd"], atol=1e-3)


def test_labels_that_rows_share_and_numbers_that_are_none():
    labels = ["item 0", "item 0", *(f"item {k}" for k in range(2, I))]
    model = model_of(coords={"item": labels, "user": 1990.0 + np.arange(J)})
    idata = pmep.fit(model=model, **QUIET)
    with pytest.raises(ValueError, match="holds 'item 0', which is the label of 2 rows"):
        pmep.recommend(idata, model, item="item 0", n=2)
    assert list(pmep.recommend(idata, model, user=1992, n=2)["user"].values) == [1992.0]
    with pytest.raises(ValueError, match="user= holds 1, but there is no such row"):
        pmep.recommend(idata, model, user=1, n=2)


def test_coordinates_have_to_be_those_of_the_fit(fits):
    _, idata = fits["poisson"]
    turned = model_of(coords=COORDS | {"item": COORDS["item"][::-1]})
    with pytest.raises(ValueError, match="coordinates of 'item' are not those of the fit"):
        pmep.recommend(idata, turned, user=100)


def test_offsets_that_differ_have_to_be_given():
    model = model_of(offset=np.linspace(0, 1, N))
    idata = pmep.fit(model=model, **QUIET)
    with pytest.raises(pmep.InvalidDataError, match="offset of 'y' differs from cell to cell"):
        pmep.recommend(idata, model, user=100)
    low, high = (pmep.recommend(idata, model, user=100, cells={"offset": v}, n=3) for v in (0.0, 1.0))
    np.testing.assert_allclose(high["predictor_mean"].max() - low["predictor_mean"].max(), 1.0, atol=0.2)
    with pytest.raises(pmep.InvalidDataError, match="no 'alpha' of 'y' that cells share; there is 'offset'"):
        pmep.recommend(idata, model, user=100, cells={"alpha": 1.0})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "rows of one matrix"),
        ({"user": 100, "item": 0}, "rows of one matrix"),
        ({"users": 100}, "'users' are not the rows of a matrix"),
        ({"user": 3}, "user= holds 3, but there is no such row: labels are 100 to 106"),
        ({"item": I}, "item= holds 60.*positions are 0 to 59"),
        ({"item": "item 60"}, "item= holds 'item 60'.*labels are 'item 0' to 'item 59'"),
        ({"user": {100: 1}}, "user= is a dict; give labels or positions of rows"),
        ({"item": []}, r"item= has the shape \(0,\)"),
        ({"user": 100, "n": 0}, "n=0 must be a whole number of at least 1"),
        ({"user": 100, "exclude_observed": "no"}, "exclude_observed='no' must be True or False"),
        ({"user": 100, "by": "rate"}, "by='rate' must be one of 'probability', 'predictor_mean'"),
    ],
)
def test_what_cannot_be_recommended(fits, options, message):
    model, idata = fits["poisson"]
    with pytest.raises(ValueError, match=message):
        pmep.recommend(idata, model, **options)


def test_gaussian_cells_are_not_ranked():
    with pm.Model() as model:
        V, U = pm.Normal("V", 0, 1, shape=(3, 1)), pm.Normal("U", 0, 1, shape=(2, 1))
        pm.Normal("z", (V[[0, 1, 2]] * U[[0, 1, 1]]).sum(axis=-1), 1.0, observed=[0.3, -0.2, 1.1])
    with pytest.raises(pmep.UnsupportedModelError, match="'z' is Gaussian; rank by the means"):
        pmep.recommend(pmep.fit(model=model, **QUIET), model, U=0)


def test_probabilities_of_wide_predictors():
    """By quadrature on a fine grid, where one rule for all cells would err in the third digit."""
    with pm.Model() as model:
        V, U = (pm.Normal(name, 0, 2.5, shape=(n, D)) for name, n in (("V", I), ("U", J)))
        pmep.BilinearPoisson("y", V, U, ROWS[:20], COLS[:20], offset=-4.0, observed=COUNTS[:20])
    found = pmep.recommend(pmep.fit(model=model, **QUIET), model, U=np.arange(J), n=10)
    mean, sd = (found[f"predictor_{what}"].to_numpy()[..., None] for what in ("mean", "sd"))
    assert sd.max() > 2
    z = np.linspace(-10, 10, 20_001)
    expected = (SURVIVAL["poisson"](mean + sd * z) * scipy.stats.norm.pdf(z)).sum(axis=-1) * (z[1] - z[0])
    np.testing.assert_allclose(found["probability"], expected, atol=1e-4)
