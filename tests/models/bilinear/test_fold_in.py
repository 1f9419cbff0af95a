"""New rows of a bilinear model's matrices: against maxima by SciPy, the fit itself, and fits of their own."""

import arviz as az
import numpy as np
import pymc as pm
import pytest
import scipy.optimize
import scipy.special

import pymc_ep as pmep
from pymc_ep.models.bilinear.engine import block_ascent as block_rows

I, J, D, N = 12, 9, 2, 150  # noqa: E741
RNG = np.random.default_rng(5)
ROWS, COLS = RNG.integers(0, I, N), RNG.integers(0, J, N)
F = (0.8 * RNG.normal(size=(I, D))[ROWS] * RNG.normal(size=(J, D))[COLS]).sum(axis=1) + 1
COUNTS = RNG.poisson(np.exp(F))
COORDS = {"item": [f"item {k}" for k in range(I)], "user": 100 + np.arange(J), "factor": ["one", "two"]}
QUIET = {"progressbar": False, "random_seed": 1, "draws": 0}
MASKED = np.ma.array([0, 1, 2, 0, 0], mask=[0, 0, 1, 0, 0])
KINDS = ("poisson", "negative binomial", "truncated", "bits")


def model_of(kind="poisson"):
    with pm.Model(coords=COORDS) as model:
        V = pm.Normal("V", 0, pm.HalfNormal("s", 1), dims=("item", "factor"))
        U = pm.Normal("U", 0.1, 0.9, dims=("user", "factor"))
        offset = pm.Normal("c", -0.2, 0.5, dims="user")[COLS] + 0.3
        if kind == "bits":
            pmep.BilinearBernoulli("y", V, U, ROWS, COLS, offset=offset, observed=COUNTS > 2)
        else:
            options = {"alpha": 2.5} if kind == "negative binomial" else {"truncated": kind == "truncated"}
            y = np.maximum(COUNTS, kind == "truncated")
            pmep.BilinearPoisson("y", V, U, ROWS, COLS, offset=offset, observed=y, **options)
    return model


@pytest.fixture(scope="module")
def fits():
    found = {}
    for kind in (*KINDS, "full"):
        model, covariance = model_of(kind), "full" if kind == "full" else "diagonal"
        found[kind] = model, pmep.fit(model=model, tol=1e-10, max_iter=1000, covariance=covariance, **QUIET)
    return found


def cells_of(model, side, which):
    """The cells of some rows of one side, which are numbered anew."""
    own, other = (ROWS, COLS) if side == 0 else (COLS, ROWS)
    here = np.isin(own, which)
    y = model.rvs_to_values[model["y"]].data[here]
    indices = np.searchsorted(which, own[here]), other[here]
    rows, cols = indices if side == 0 else indices[::-1]
    return {"rows": rows, "cols": cols, "observed": y}


def test_rows_of_the_fit_may_be_given_by_their_labels(fits):
    model, idata = fits["poisson"]
    by_label, by_number = ({"rows": rows, "observed": [2, 0]} for rows in (["item 3", "item 10"], [3, 10]))
    one, other = (
        pmep.log_predictive(idata, model, {"y": {**new, "cols": [1, 2]}})["y"].to_numpy()
        for new in (by_label, by_number)
    )
    np.testing.assert_array_equal(one, other)
    one, other = (pmep.fold_in(idata, model, {"user": new})["U_mean"].to_numpy() for new in (by_label, by_number))
    np.testing.assert_array_equal(one, other)
    with pytest.raises(ValueError, match=r"rows of 'y' holds 'item 12', but there is no such row: labels are 'item 0'"):
        pmep.fold_in(idata, model, {"user": {"rows": ["item 12"], "observed": [2]}})


@pytest.mark.parametrize("kind", [*KINDS, "full"])
@pytest.mark.parametrize(("key", "side"), [("item", 0), ("V", 0), ("user", 1)])
def test_rows_of_the_fit_are_where_the_fit_has_them(fits, kind, key, side):
    model, idata = fits[kind]
    which = np.array([1, 4, 5])
    found = pmep.fold_in(idata, model, {key: cells_of(model, side, which)})
    dim, names = (("item", ("V",)), ("user", ("U", "c")))[side]
    for name in names:
        sd = idata["posterior_sd"][name].to_numpy()[which]
        error = found[f"{name}_mean"].to_numpy() - idata["posterior_mean"][name].to_numpy()[which]
        np.testing.assert_allclose(error / sd, 0, atol=5e-4)
        np.testing.assert_allclose(found[f"{name}_sd"], sd, rtol=5e-4)
        assert found[f"{name}_mean"].dims[0] == dim
    assert bool(found[f"{names[0]}_converged"].all())
    np.testing.assert_array_equal(found[dim], np.arange(3))
    assert list(found["factor"].values) == ["one", "two"]


NEW = {"rows": np.array([0, 3, 11, 7, 3]), "cols": np.array([0, 0, 0, 2, 2]), "observed": np.array([4, 0, 2, 9, 1])}


def test_the_bound_and_where_it_is_largest(fits):
    """By SciPy, of the bound written out; the row between has no cell and keeps its prior."""
    model, idata = fits["poisson"]
    found = pmep.fold_in(idata, model, {"user": NEW})
    n, b = idata["posterior_mean"]["V"].to_numpy(), idata["posterior_sd"]["V"].to_numpy() ** 2
    prior_mean, prior_sd = np.array([0.1, 0.1, -0.2]), np.array([0.9, 0.9, 0.5])
    for k in (0, 2):
        here = NEW["cols"] == k
        i, y = NEW["rows"][here], NEW["observed"][here]

        def fall(x, i=i, y=y):
            m, a = x[:2], np.exp(x[3:5])
            r = 1 - a * b[i]
            if (r <= 0).any():
                return np.inf
            log_rate = 0.3 + (-0.5 * np.log(r) + (m * n[i] + (a * n[i] ** 2 + b[i] * m**2) / 2) / r).sum(axis=1)
            log_rate += x[2] + np.exp(x[5]) / 2
            cells = y * (n[i] @ m + x[2] + 0.3) - np.exp(log_rate) - scipy.special.gammaln(y + 1)
            ratio = np.exp(x[3:]) / prior_sd**2
            return 0.5 * (ratio + ((x[:3] - prior_mean) / prior_sd) ** 2 - 1 - np.log(ratio)).sum() - cells.sum()

        best = scipy.optimize.minimize(fall, [0.1, 0.1, 0, -3, -3, -3], method="Nelder-Mead", options=FINE)
        assert found["U_bound"][k] == pytest.approx(-best.fun, abs=1e-8)
        np.testing.assert_allclose(found["U_mean"][k], best.x[:2], atol=1e-4)
        np.testing.assert_allclose(found["c_sd"][k], np.exp(best.x[5] / 2), rtol=1e-4)
    assert found["U_bound"][1] == pytest.approx(0, abs=1e-12)
    np.testing.assert_allclose([*found["U_mean"][1], found["c_mean"][1]], prior_mean)
    np.testing.assert_allclose([*found["U_sd"][1], found["c_sd"][1]], prior_sd)


FINE = {"xatol": 1e-7, "fatol": 1e-12, "maxiter": 20_000, "maxfev": 20_000}


def test_a_fit_with_the_other_matrix_known_is_the_same():
    model = model_of("negative binomial")
    idata = pmep.fit(model=model, hyper="fixed", estimate=["V"], **QUIET)
    found = pmep.fold_in(idata, model, {"user": NEW})
    with pm.Model() as alone:
        V = pm.Normal("V", idata["posterior_mean"]["V"].to_numpy(), 1e-6)
        U, c = pm.Normal("U", 0.1, 0.9, shape=(3, D)), pm.Normal("c", -0.2, 0.5, shape=3)
        offset = c[NEW["cols"]] + 0.3
        pmep.BilinearPoisson("y", V, U, NEW["rows"], NEW["cols"], alpha=2.5, offset=offset, observed=NEW["observed"])
    fitted = pmep.fit(model=alone, tol=1e-12, max_iter=1000, **QUIET)
    for name in ("U", "c"):
        for what in ("mean", "sd"):
            np.testing.assert_allclose(found[f"{name}_{what}"], fitted[f"posterior_{what}"][name], atol=1e-4)


def test_of_points_the_mode_is_found(fits):
    model, _ = fits["bits"]
    idata = pmep.fit(model=model, hyper="fixed", estimate=["V", "U", "c"], **QUIET)
    cells = {"rows": NEW["rows"], "observed": [1, 1, 0, 0, 1]}
    found, V = pmep.fold_in(idata, model, {"user": cells}), idata["posterior_mean"]["V"].to_numpy()

    def fall(x):
        f = V[cells["rows"]] @ x[:2] + x[2] + 0.3
        prior = ((x - [0.1, 0.1, -0.2]) / [0.9, 0.9, 0.5]) ** 2 / 2
        return np.logaddexp(0, f).sum() - np.dot(cells["observed"], f) + prior.sum()

    best = scipy.optimize.minimize(fall, np.zeros(3), method="BFGS", options={"gtol": 1e-9}).x
    np.testing.assert_allclose([*found["U_mean"][0], found["c_mean"][0]], best, atol=1e-4)
    assert not found["U_sd"].any() and not found["c_sd"].any()
    assert "times the prior density of U and c" in found.attrs["bound_is"]


def test_on_a_container_from_disk(fits, tmp_path):
    model, idata = fits["poisson"]
    idata.to_netcdf(tmp_path / "fit.nc")
    found, again = (pmep.fold_in(one, model, {"user": NEW}) for one in (idata, az.from_netcdf(tmp_path / "fit.nc")))
    assert found.equals(again)
    found.to_netcdf(tmp_path / "rows.nc")


def test_offsets_and_parameters_of_new_cells(fits):
    model, idata = fits["negative binomial"]
    known, same, other = (
        pmep.fold_in(idata, model, {"user": NEW | more})["U_mean"]
        for more in ({}, {"offset": np.full(5, 0.3), "alpha": 2.5}, {"alpha": 0.1})
    )
    np.testing.assert_allclose(known, same)
    assert np.abs(known - other)[[0, 2]].min() > 1e-4
    with pytest.raises(pmep.InvalidDataError, match=r"'y' has the alpha -1\.0 at index 0, which must be positive"):
        pmep.fold_in(idata, model, {"user": NEW | {"alpha": -1}})


def test_rows_short_of_their_maximum_are_counted(fits, monkeypatch):
    model, idata = fits["negative binomial"]
    monkeypatch.setattr(block_rows, "_ROUNDS", 2)
    monkeypatch.setattr(block_rows, "_STEPS", 1)
    with pytest.warns(pmep.ConvergenceWarning, match="2 of 3 new rows of 'U' did not converge; 'U_converged' tells"):
        found = pmep.fold_in(idata, model, {"user": NEW})
    np.testing.assert_array_equal(found["U_converged"], [False, True, False])


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        ({"item": NEW, "user": NEW}, ValueError, "one matrix at a time"),
        ({"users": NEW}, ValueError, r"'users' are not.*'item' \(the rows of 'V'\) or 'user' \(the rows of 'U'\)"),
        ({"user": NEW | {"rows": [0, 0, 0, 12, 0]}}, pmep.InvalidDataError, "row 12 at index 3.*rows 0 to 11"),
        (
            {"user": NEW | {"cols": [0, 0, 10**10, 0, 0]}},
            pmep.InvalidDataError,
            "10000000000 at index 2 of cols.*with 5 cells nearly all of so many are empty",
        ),
        ({"user": NEW | {"cols": [0, 0, -1, 0, 0]}}, pmep.InvalidDataError, "-1 at index 2 of cols, but these count"),
        ({"user": NEW | {"cols": [0.0] * 5}}, pmep.InvalidDataError, "cols of type float64"),
        ({"user": NEW | {"observed": [0, 1, -2, 0, 0]}}, pmep.InvalidDataError, "value -2.* at index 2"),
        ({"user": NEW | {"observed": [1, 1]}}, pmep.InvalidDataError, r"observations of shape \(2,\)"),
        ({"user": {"cols": 0, "observed": [1, 1]}}, pmep.InvalidDataError, "'rows' is missing"),
        ({"user": NEW | {"observed": MASKED}}, pmep.InvalidDataError, "observed that are masked at index 2; leave"),
        ({"user": NEW | {"offset": [0, 0, np.nan, 0, 0]}}, pmep.InvalidDataError, "offset nan at index 2"),
        ({"user": NEW | {"offset": [0, 0]}}, pmep.InvalidDataError, r"offset of new cells of 'y' has the shape \(2,\)"),
        ({"user": {"rows": [], "observed": []}}, pmep.InvalidDataError, "has no cells"),
        ({"user": NEW | {"beta": 1}}, pmep.InvalidDataError, "there is no 'beta'"),
    ],
)
def test_new_rows_that_there_are_not(fits, data, error, message):
    model, idata = fits["poisson"]
    with pytest.raises(error, match=message):
        pmep.fold_in(idata, model, data)


def test_priors_that_say_nothing_of_new_rows():
    with pm.Model(coords=COORDS) as model:
        V = pm.Normal("V", np.arange(I)[:, None] / 10, 1, dims=("item", "factor"))
        U = pm.Flat("U", dims=("user", "factor"))
        pmep.BilinearPoisson("y", V, U, ROWS, COLS, observed=COUNTS)
    idata = pmep.fit(model=model, **QUIET, max_iter=500)
    with pytest.raises(pmep.UnsupportedModelError, match="prior of 'V' differs from row to row"):
        pmep.fold_in(idata, model, {"item": NEW})
    with pytest.raises(pmep.InvalidDataError, match="new row 1 of 'U' has no cell and 'U' a flat prior"):
        pmep.fold_in(idata, model, {"user": NEW})
    cells = {"rows": ROWS[COLS == 4], "observed": COUNTS[COLS == 4]}
    found = pmep.fold_in(idata, model, {"user": cells})
    np.testing.assert_allclose(found["U_mean"][0], idata["posterior_mean"]["U"][4], atol=2e-2)


def test_fits_of_other_models_and_of_other_sizes(fits):
    with pm.Model() as gaussian:
        pm.Normal("y", pm.Normal("m"), 1, observed=[0.5])
    told = r"fold_in takes fits of other models, such as 'Poisson, bilinear'.*fit by 'ep', which offers predict"
    with pytest.raises(pmep.UnsupportedModelError, match=told):
        pmep.fold_in(pmep.fit(model=gaussian, **QUIET), gaussian, {"user": NEW})
    with pm.Model(coords=COORDS | {"user": range(J + 1)}) as larger:
        V = pm.Normal("V", 0, pm.HalfNormal("s", 1), dims=("item", "factor"))
        U, c = pm.Normal("U", 0.1, 0.9, dims=("user", "factor")), pm.Normal("c", -0.2, 0.5, dims="user")
        pmep.BilinearPoisson("y", V, U, ROWS, COLS, offset=c[COLS] + 0.3, observed=COUNTS)
    with pytest.raises(ValueError, match=r"holds 9 rows of 3 numbers for 'U' and its bias.* 10 x 2, and the bias 'c'"):
        pmep.fold_in(fits["poisson"][1], larger, {"user": NEW})
