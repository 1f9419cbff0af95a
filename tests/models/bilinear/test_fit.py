"""Bilinear models from the model block to the container."""

from functools import cache

import arviz as az
import numpy as np
import pymc as pm
import pytest
import scipy.integrate
import scipy.optimize
import scipy.stats

import pymc_ep as pmep
from pymc_ep.compat import group
from pymc_ep.diagnostics import predictive_pit
from pymc_ep.modes import numpy_mode
from pymc_ep.results.reading import settings

I, J, D, N = 12, 9, 2, 150  # noqa: E741
RNG = np.random.default_rng(5)
ROWS, COLS = RNG.integers(0, I, N), RNG.integers(0, J, N)
F = (
    (0.8 * RNG.normal(size=(I, D))[ROWS] * RNG.normal(size=(J, D))[COLS]).sum(axis=1)
    + 0.3 * RNG.normal(size=I)[ROWS]
    + 1
)
COUNTS = RNG.poisson(np.exp(F))
COORDS = {"item": [f"item {k}" for k in range(I)], "user": range(J), "factor": range(D)}
QUIET = {"progressbar": False, "random_seed": 1}


def matrices():
    s = pm.HalfNormal("s", 1)
    return pm.Normal("V", 0, s, dims=("item", "factor")), pm.Normal("U", 0, 1, dims=("user", "factor"))


@cache
def counts_model():
    """The model of many fits, none of which changes it: compiled once."""
    with pm.Model(coords=COORDS) as model:
        V, U = matrices()
        b = pm.Normal("b", 0, pm.HalfNormal("sb", 1), dims="item")
        c = pm.Normal("c", 0, 0.5, dims="user")
        mu = pm.Normal("mu", 0, 2)
        pm.Deterministic("length", (V**2).sum(axis=-1) + mu, dims="item")
        offset = b[ROWS] + c[COLS] + mu
        pmep.BilinearPoisson("y", V, U, ROWS, COLS, offset=offset, observed=COUNTS)
    return model


@pytest.fixture(scope="module", params=["diagonal", "full"])
def fitted(request):
    model = counts_model()
    return model, pmep.fit(model=model, draws=400, log_likelihood=True, covariance=request.param, **QUIET)


def covariance_of(idata):
    return settings(idata)["covariance"]


def densities_of(idata):
    fit = group(idata, "fit")
    return fit["log_p"].to_numpy().ravel(), fit["log_q"].to_numpy().ravel()


def logp_of_draws(model, idata, names, held):
    """PyMC's log density of five draws of variables, and of the data, at given unconstrained hyperparameters."""
    logp = model.compile_logp(vars=[model[name] for name in (*names, "y")], mode=numpy_mode())
    draws = {name: group(idata, "posterior")[name].to_numpy() for name in names}
    draws = {name: v.reshape(-1, *v.shape[2:]) for name, v in draws.items()}
    return np.array([logp(held | {name: v[k] for name, v in draws.items()}) for k in range(5)])


def assert_mean_is(values, expected):
    """Up to four standard errors, and rounding."""
    assert abs(values.mean() - expected) < 4 * values.std() / len(values) ** 0.5 + 1e-9


def test_densities_of_draws(fitted):
    """log p is PyMC's own; and the mean of log p - log q is the bound, which for rates e^f is exact."""
    model, idata = fitted
    fit = group(idata, "fit")
    log_p, log_q = densities_of(idata)
    held = {f"{name}_log__": np.log(float(fit[f"hyper_mode_{name}"])) for name in ("s", "sb")}
    held["mu"] = float(fit["hyper_mode_mu"])
    np.testing.assert_allclose(log_p[:5], logp_of_draws(model, idata, ("V", "U", "b", "c"), held), rtol=1e-10)
    assert_mean_is(log_p - log_q, float(fit["log_evidence"]))


@pytest.mark.parametrize("estimate", [(), ("V",), ("V", "U")])
def test_densities_of_draws_beside_points_and_other_priors(estimate):
    """Covariances of rows and a flat bias; with points the bound holds their prior density."""
    with pm.Model() as model:
        V = pm.MvNormal("V", np.zeros(D), np.array([[0.5, 0.2], [0.2, 0.3]]), shape=(I, D))
        U = pm.Normal("U", 0.1, 0.7, shape=(J, D))
        b = pm.Flat("b", shape=I)
        pmep.BilinearPoisson("y", V, U, ROWS, COLS, offset=b[ROWS], observed=COUNTS)
        idata = pmep.fit(draws=400, log_likelihood=True, estimate=[*estimate, "b"], **QUIET)
    log_p, log_q = densities_of(idata)
    np.testing.assert_allclose(log_p[:5], logp_of_draws(model, idata, ("V", "U", "b"), {}), rtol=1e-10)
    assert_mean_is(log_p - log_q, float(group(idata, "fit")["log_evidence"]))


def test_the_container(fitted):
    _, idata = fitted
    fit, posterior = group(idata, "fit"), group(idata, "posterior")
    assert fit.attrs["method"] == "vg" and bool(fit["converged"])
    assert idata["posterior_mean"]["V"].dims == ("item", "factor") and idata["posterior_sd"]["b"].dims == ("item",)
    assert posterior["U"].dims == ("chain", "draw", "user", "factor")
    assert (np.diff(fit["objective"]) >= -1e-9).all()
    assert fit["hyper_trace_s"].shape == fit["objective"].shape
    # Independent draws: their means are those of the posterior up to four standard errors.
    for name in ("V", "U", "b", "c"):
        error = (
            (posterior[name].mean(("chain", "draw")) - idata["posterior_mean"][name]) / idata["posterior_sd"][name] * 40
        )
        assert float(np.abs(error).max()) < 5
        ratio = posterior[name].std(("chain", "draw")) / idata["posterior_sd"][name]
        assert float(np.abs(ratio - 1).max()) < 0.12
    length = (posterior["V"] ** 2).sum("factor") + posterior["mu"]
    np.testing.assert_allclose(posterior["length"], length.transpose(*posterior["length"].dims), rtol=1e-9)
    found = np.asarray(fit["y_predictor_mean"])
    assert np.corrcoef(found, F)[0, 1] > 0.8


def test_draws_of_rows_have_their_covariance(fitted):
    """Entries of a row and its bias: with independent entries, and with those of the saved factors."""
    _, idata = fitted
    posterior, state = group(idata, "posterior"), group(idata, "fit_state")
    for matrix, bias, side in (("V", "b", "left"), ("U", "c", "right")):
        draws = np.concatenate([np.asarray(posterior[matrix]), np.asarray(posterior[bias])[..., None]], axis=-1)
        centred = (draws - np.asarray(state[f"{side}_mean"])).reshape(-1, *draws.shape[2:])
        if covariance_of(idata) == "full":
            factor = np.asarray(state[f"{side}_factor"])
            assert np.abs(factor[:, -1, :-1]).max() > 0.01
            whitened = np.linalg.solve(factor, centred[..., None])[..., 0]
        else:
            whitened = centred / np.sqrt(np.asarray(state[f"{side}_variance"]))
        found = np.einsum("sid,sie->ide", whitened, whitened) / len(whitened)
        np.testing.assert_allclose(found, np.tile(np.eye(D + 1), (len(found), 1, 1)), atol=5 * np.sqrt(2 / 1600))


def test_log_likelihoods_and_predictors_are_those_of_the_draws(fitted):
    _, idata = fitted
    posterior, fit = group(idata, "posterior"), group(idata, "fit")
    V, U, b, c, mu = (np.asarray(posterior[name]) for name in ("V", "U", "b", "c", "mu"))
    f = (V[:, :, ROWS] * U[:, :, COLS]).sum(axis=-1) + b[:, :, ROWS] + c[:, :, COLS] + mu[..., None]
    expected = scipy.stats.poisson(np.exp(f)).logpmf(COUNTS)
    np.testing.assert_allclose(group(idata, "log_likelihood")["y"], expected, rtol=1e-8, atol=1e-8)
    error = (f.mean(axis=(0, 1)) - fit["y_predictor_mean"]) / f.std(axis=(0, 1)) * 40
    assert float(np.abs(error).max()) < 5
    assert float(np.abs(f.std(axis=(0, 1)) / fit["y_predictor_sd"] - 1).max()) < 0.12


def test_pymcs_own_way_of_writing_it_is_the_same_model(fitted):
    with pm.Model(coords=COORDS) as model:
        V, U = matrices()
        b = pm.Normal("b", 0, pm.HalfNormal("sb", 1), dims="item")
        c, mu = pm.Normal("c", 0, 0.5, dims="user"), pm.Normal("mu", 0, 2)
        rate = pm.math.exp(c[COLS] + mu + (U[COLS] * V[ROWS]).sum(axis=1) + b[ROWS])
        pm.Poisson("y", rate, observed=COUNTS)
    found = group(pmep.fit("vg", model=model, draws=0, covariance=covariance_of(fitted[1]), **QUIET), "fit")
    known = group(fitted[1], "fit")
    np.testing.assert_allclose(found["log_evidence"], known["log_evidence"], atol=0.05)
    np.testing.assert_allclose(found["y_predictor_mean"], known["y_predictor_mean"], atol=0.05)


def test_an_exposure_is_an_offset():
    exposure = RNG.uniform(0.5, 2.0, N)
    bounds = []
    for how in ("factor", "offset"):
        with pm.Model(coords=COORDS) as model:
            V, U = matrices()
            if how == "factor":
                pm.Poisson("y", exposure * pm.math.exp((V[ROWS] * U[COLS]).sum(axis=-1)), observed=COUNTS)
            else:
                pmep.BilinearPoisson("y", V, U, ROWS, COLS, offset=np.log(exposure), observed=COUNTS)
        bounds.append(float(group(pmep.fit(model=model, draws=0, **QUIET), "fit")["log_evidence"]))
    assert bounds[0] == pytest.approx(bounds[1], abs=0.05)


@pytest.mark.parametrize("what", ["alpha", "truncated", "both", "bits"])
def test_other_likelihoods(what):
    alpha = 3.0 if what in ("alpha", "both") else None
    keep = COUNTS > 0 if what in ("truncated", "both") else np.ones(N, dtype=bool)
    rows, cols, y = ROWS[keep], COLS[keep], COUNTS[keep]
    with pm.Model(coords=COORDS) as model:
        V, U = matrices()
        if what == "bits":
            pmep.BilinearBernoulli("y", V, U, rows, cols, observed=y > 2)
        else:
            options = {"alpha": alpha, "truncated": what in ("truncated", "both")}
            pmep.BilinearPoisson("y", V, U, rows, cols, observed=y, **options)
    idata = pmep.fit(model=model, draws=5, log_likelihood=True, chains=2, **QUIET)
    posterior, fit = group(idata, "posterior"), group(idata, "fit")
    assert bool(fit["converged"]) and (np.diff(fit["objective"]) >= -1e-9).all()
    # PyMC's own log density of the observations at a draw.
    point = model.initial_point() | {name: np.asarray(posterior[name][1, 2]) for name in ("V", "U")}
    own = model.compile_logp(vars=[model["y"]], sum=False)(point)[0]
    np.testing.assert_allclose(group(idata, "log_likelihood")["y"][1, 2], own, rtol=1e-5, atol=1e-6)


def test_estimated_matrices_have_no_spread():
    model = counts_model()
    bounds = {}
    for estimate in ([], ["V"], ["U", "V"]):
        idata = pmep.fit(model=model, draws=0, hyper="fixed", estimate=estimate, **QUIET)
        for name in ("V", "U", "b"):
            assert bool((idata["posterior_sd"][name] == 0).all()) == (name in estimate)
        bounds[len(estimate)] = idata["fit"]
    assert "estimated V" in bounds[1].attrs["log_evidence_is"]


@pytest.mark.parametrize("covariance", ["diagonal", "full"])
def test_a_flat_matrix_is_estimated(covariance):
    with pm.Model(coords=COORDS) as model:
        V, U = pm.Flat("V", dims=("item", "factor")), pm.Normal("U", 0, 1, dims=("user", "factor"))
        pmep.BilinearPoisson("y", V, U, ROWS, COLS, observed=COUNTS)
    idata = pmep.fit(model=model, draws=0, max_iter=500, covariance=covariance, **QUIET)
    assert (idata["posterior_sd"]["V"] == 0).all() and (idata["posterior_sd"]["U"] > 0).all()
    assert float(np.abs(idata["posterior_mean"]["V"]).max()) > 0.1


@pytest.mark.parametrize("flat", [False, True], ids=["prior", "flat"])
def test_rows_without_a_cell_are_counted(fitted, flat):
    seen = (ROWS != 3) & (ROWS != 7) & (COLS != 2)
    with pm.Model(coords=COORDS) as model:
        V = pm.Flat("V", dims=("item", "factor")) if flat else pm.Normal("V", 0.5, 0.7, dims=("item", "factor"))
        U = pm.Normal("U", 0, 1, dims=("user", "factor"))
        pmep.BilinearPoisson("y", V, U, ROWS[seen], COLS[seen], observed=COUNTS[seen])
    idata = pmep.fit(model=model, draws=0, max_iter=500, **QUIET)
    status = idata["fit"].attrs["status"]
    assert "; 1 of 9 rows of 'U' have no cell and have their prior as posterior" in status
    if flat:
        assert "2 of 12 rows of 'V' have no cell and are where they started" in status
    else:
        assert "2 of 12 rows of 'V' have no cell and have their prior as posterior" in status
        np.testing.assert_allclose(idata["posterior_mean"]["V"][[3, 7]], 0.5, atol=1e-6)
        np.testing.assert_allclose(idata["posterior_sd"]["V"][[3, 7]], 0.7, rtol=1e-5)
    assert "no cell" not in group(fitted[1], "fit").attrs["status"]


def test_a_saved_fit_is_where_the_next_one_starts(fitted, tmp_path):
    model, idata = fitted
    idata.to_netcdf(tmp_path / "fit.nc")
    back = az.from_netcdf(tmp_path / "fit.nc")
    known = group(idata, "fit")
    for covariance in ("full", "diagonal"):
        again = group(pmep.fit(model=model, start=back, draws=0, covariance=covariance, **QUIET), "fit")
        gain = float(again["objective"][0] - known["objective"][-1])
        if (covariance_of(idata), covariance) == ("full", "diagonal"):
            assert -20.0 < gain < 0.0
        else:
            assert gain == pytest.approx(0.0, abs=1e-8 * abs(float(known["objective"][-1])))
    with pytest.raises(ValueError, match="another estimate="):
        pmep.fit(model=model, start=back, draws=0, estimate=["V"], hyper="fixed", **QUIET)


@pytest.mark.parametrize("covariance", ["diagonal", "full"])
def test_a_checkpoint_is_resumed(covariance, tmp_path):
    model, path = counts_model(), tmp_path / "state.npz"
    with pytest.warns(pmep.ConvergenceWarning, match="stopped after 4 steps"):
        first = pmep.fit(model=model, draws=0, checkpoint=path, max_iter=4, covariance=covariance, **QUIET)
    second = pmep.fit(model=model, draws=0, checkpoint=path, covariance=covariance, **QUIET)
    whole = pmep.fit(model=model, draws=0, covariance=covariance, **QUIET)
    first, second, whole = (group(idata, "fit")["objective"].to_numpy() for idata in (first, second, whole))
    np.testing.assert_array_equal(second[: len(first)], first)
    np.testing.assert_allclose(second, whole, rtol=1e-10)


def test_new_data_are_taken():
    """Cells in shared data: other ones, and other numbers of these, need no new model."""
    with pm.Model(coords=COORDS):
        V, U = matrices()
        rows, cols = pm.Data("rows", ROWS[:60]), pm.Data("cols", COLS[:60])
        pmep.BilinearPoisson("y", V, U, rows, cols, observed=pm.Data("counts", COUNTS[:60]))
        few = group(pmep.fit(draws=0, **QUIET), "fit")
        pm.set_data({"rows": ROWS, "cols": COLS, "counts": COUNTS})
        many = group(pmep.fit(draws=0, **QUIET), "fit")
    assert few["y_predictor_mean"].shape == (60,) and many["y_predictor_mean"].shape == (N,)


def correlated_fit(cov_left, cov_right, covariance, bias=True, **options):
    """Fit rows with covariances, by their values."""
    with pm.Model() as model:
        V = pm.MvNormal("V", np.zeros(D), cov=cov_left, shape=(I, D))
        U = pm.MvNormal("U", np.zeros(D), cov=cov_right, shape=(J, D))
        offset = pm.Normal("b", 0, 0.5, shape=I)[ROWS] if bias else 0.0
        pmep.BilinearPoisson("y", V, U, ROWS, COLS, offset=offset, observed=COUNTS)
    return model, pmep.fit("vg", model=model, draws=0, covariance=covariance, tol=1e-10, **options, **QUIET)


@pytest.mark.parametrize("covariance", ["diagonal", "full"])
def test_rows_with_a_diagonal_covariance_are_independent_entries(covariance):
    scales = np.array([0.6, 0.9])
    _, found = correlated_fit(np.diag(scales**2), np.eye(D), covariance)
    with pm.Model() as model:
        V, U = pm.Normal("V", 0, scales, shape=(I, D)), pm.Normal("U", 0, 1, shape=(J, D))
        b = pm.Normal("b", 0, 0.5, shape=I)
        pmep.BilinearPoisson("y", V, U, ROWS, COLS, offset=b[ROWS], observed=COUNTS)
    expected = pmep.fit("vg", model=model, draws=0, covariance=covariance, tol=1e-10, **QUIET)
    moments = [(f"posterior_{what}", name) for what in ("mean", "sd") for name in ("V", "U", "b")]
    for part, name in (("fit", "log_evidence"), ("fit", "y_predictor_sd"), *moments):
        np.testing.assert_allclose(found[part][name], expected[part][name], rtol=1e-6, atol=1e-4)


def test_rows_with_covariances_turned_about_are_the_same():
    """With V L in place of V and U L^{-T} in place of U no inner product changes, nor does the family of posteriors."""
    cov, turn = np.array([[0.8, 0.5], [0.5, 0.7]]), np.array([[1.0, 0.3], [-0.5, 0.8]])
    _, one = correlated_fit(cov, np.eye(D), "full")
    back = np.linalg.inv(turn)
    _, other = correlated_fit(turn.T @ cov @ turn, back @ back.T, "full")
    assert bool(one["fit"]["converged"]) and bool(other["fit"]["converged"])
    np.testing.assert_allclose(one["fit"]["log_evidence"], other["fit"]["log_evidence"], atol=1e-4)
    for part, name in (("fit", "y_predictor_mean"), ("fit", "y_predictor_sd"), ("posterior_mean", "b")):
        np.testing.assert_allclose(one[part][name], other[part][name], atol=2e-3)
    turned, found = one["posterior_mean"]["V"].to_numpy() @ turn, other["posterior_mean"]["V"].to_numpy()
    # But for the sign of both matrices.
    np.testing.assert_allclose(found, np.sign((found * turned).sum()) * turned, atol=5e-3)


def test_a_correlation_of_factors_is_learned_and_new_rows_have_it():
    with pm.Model() as model:
        r, s = pm.Uniform("r", -1, 1), pm.HalfNormal("s", 1)
        corr = pm.math.stack([pm.math.stack([1.0, r]), pm.math.stack([r, 1.0])])
        V = pm.MvNormal("V", np.zeros(D), cov=s**2 * corr, shape=(I + 1, D))
        U = pm.Normal("U", 0, 1, shape=(J, D))
        pmep.BilinearPoisson("y", V, U, ROWS, COLS, offset=1.0, observed=COUNTS)
        fits = {}
        for covariance in ("diagonal", "full"):
            fits[covariance] = pmep.fit("vg", covariance=covariance, draws=0, tol=1e-10, **QUIET)
        found = pmep.fold_in(fits["full"], model, {"V": {"rows": [1, 1], "cols": [0, 2], "observed": [3, 0]}})
    for covariance, idata in fits.items():
        fit = group(idata, "fit")
        assert "have no cell and have their prior" in fit.attrs["status"]
        s, r = float(fit["hyper_mode_s"]), float(fit["hyper_mode_r"])
        # The mode is where the bound's slope, and with it that of a fit held nearby, vanishes.
        ends = []
        for step in (-1e-2, 1e-2):
            held = pmep.fit(
                "vg", model=model, covariance=covariance, hyper="fixed", start={"s": s, "r": r + step}, draws=0, **QUIET
            )
            ends.append(float(group(held, "fit")["log_evidence"]))
        assert all(end < float(fit["log_evidence"]) + 0.02 for end in ends)
        conditional = s * np.sqrt(1 - r**2)
        expected = s if covariance == "full" else conditional
        np.testing.assert_allclose(idata["posterior_sd"]["V"][I], [expected, expected], rtol=1e-4)
    np.testing.assert_allclose(found["V_sd"][0], [s, s], rtol=1e-4)


def test_a_covariance_that_cannot_be():
    with pytest.raises(
        pmep.InvalidDataError, match=r"rows of 'V' is not positive definite \(its eigenvalues are -1 to 3"
    ):
        correlated_fit(np.array([[1.0, 2.0], [2.0, 1.0]]), np.eye(D), "diagonal")


def test_a_learned_covariance_may_end_where_it_is_none():
    """Counts that tell of no factors: the bound prefers scales of zero, of which a covariance has no inverse."""
    rng = np.random.default_rng(0)
    rows, cols, y = rng.integers(8, size=60), rng.integers(6, size=60), rng.poisson(1.5, 60)
    with pm.Model() as model:
        chol, _, _ = pm.LKJCholeskyCov("chol", n=D, eta=2, sd_dist=pm.HalfNormal.dist(1, shape=D))
        V = pm.MvNormal("V", np.zeros(D), chol=chol, shape=(8, D))
        U = pm.Normal("U", 0, 1, shape=(6, D))
        pmep.BilinearPoisson("y", V, U, rows, cols, offset=pm.Normal("mu", 0, 2), observed=y)
    idata = pmep.fit(model=model, draws=0, **QUIET)
    alone = scipy.stats.poisson(y.mean()).logpmf(y).sum()
    assert idata["fit"]["converged"] and idata["posterior_sd"]["V"].max() < 0.01
    assert alone - 5 < float(idata["fit"]["log_evidence"]) < alone


def test_rows_with_covariances_have_no_singular_values_to_shrink():
    with pm.Model() as model:
        V, U = pm.MvNormal("V", np.zeros(D), np.eye(D), shape=(I, D)), pm.Normal("U", shape=(J, D))
        pmep.BilinearBernoulli("y", V, U, ROWS, COLS, observed=COUNTS > 1)
    assert pmep.explain(model).endswith("methods          vg")
    with pytest.raises(pmep.UnsupportedModelError, match=r"'V' has a covariance of the entries.*method='vg'"):
        pmep.fit("vbmf", model=model, **QUIET)


def test_draws_and_explanations():
    with pm.Model(coords=COORDS) as model:
        V, U = matrices()
        pmep.BilinearPoisson("y", V, U, ROWS, COLS, truncated=True, alpha=2.0, observed=np.maximum(COUNTS, 1))
    distributions = [row[0] for row in pmep.supported().rows if row[3] == "vg" and "bilinear" in row[0]]
    names = ("Bernoulli", "NegBinomial", "Normal", "Poisson", "Poisson", "SoftplusPoisson")
    assert sorted(distributions) == [f"{name}, bilinear" for name in names]
    told = pmep.explain(model)
    assert "likelihood negative_binomial, zeros cut off" in told and "methods          vg, vbmf" in told
    drawn = pm.draw(pmep.BilinearPoisson.dist(np.zeros((2, 1)), np.zeros((3, 1)), [0, 1], [2, 2], offset=3.0), 50)
    assert drawn.shape == (50, 2) and 15 < drawn.mean() < 25
    bits = pm.draw(pmep.BilinearBernoulli.dist(np.zeros((2, 1)), np.zeros((3, 1)), [0, 1], [2, 2], offset=9.0), 5)
    assert bits.all()


NEW = {"rows": np.array([0, 3, 3, 11]), "cols": np.array([8, 0, 1, 8]), "observed": np.array([0, 1, 7, 2])}


def test_log_predictive_of_new_cells(fitted):
    """Against the mean density over draws of the posterior."""
    model, idata = fitted
    found = pmep.log_predictive(idata, model, {"y": NEW})["y"]
    assert found.dims == ("y_cell",)
    again = {"start": idata, "covariance": covariance_of(idata), "max_iter": 4, "tol": 1.0}
    posterior = group(pmep.fit(model=model, draws=5000, **again, **QUIET), "posterior")
    V, U, b, c, mu = (np.concatenate(np.asarray(posterior[name])) for name in ("V", "U", "b", "c", "mu"))
    f = (V[:, NEW["rows"]] * U[:, NEW["cols"]]).sum(axis=-1) + b[:, NEW["rows"]] + c[:, NEW["cols"]] + mu[:, None]
    density = scipy.stats.poisson(np.exp(f)).pmf(NEW["observed"])
    error = density.std(axis=0) / density.mean(axis=0) / np.sqrt(len(f))
    # 20,000 draws there, 1,000 of one matrix here.
    assert np.all(np.abs(np.log(density.mean(axis=0)) - found) < 6 * error * np.sqrt(20) + 1e-3)
    alone = pmep.log_predictive(idata, model, {"y": NEW | {"offset": float(fit_mode(idata, "mu")) + 0.5}})["y"]
    assert np.all(np.abs(alone - found) > 1e-3)


def fit_mode(idata, name):
    return group(idata, "fit")[f"hyper_mode_{name}"]


def test_log_predictive_at_points_is_the_density_there():
    model = counts_model()
    idata = pmep.fit(model=model, draws=0, estimate=["V", "U", "b", "c"], hyper="fixed", **QUIET)
    V, U, b, c = (np.asarray(idata["posterior_mean"][name]) for name in ("V", "U", "b", "c"))
    f = (V[NEW["rows"]] * U[NEW["cols"]]).sum(axis=1) + b[NEW["rows"]] + c[NEW["cols"]] + float(fit_mode(idata, "mu"))
    expected = scipy.stats.poisson(np.exp(f)).logpmf(NEW["observed"])
    np.testing.assert_allclose(pmep.log_predictive(idata, model, {"y": NEW})["y"], expected, rtol=1e-9)


def log_density_of_count(y, mean, sd):
    """log of the integral of p(y | e^f) over a Gaussian f, about the maximum of the product."""

    def log_joint(f):
        return scipy.stats.poisson.logpmf(y, np.exp(f)) + scipy.stats.norm.logpdf(f, mean, sd)

    top = scipy.optimize.minimize_scalar(lambda f: -log_joint(f), bounds=(-20, 20), method="bounded")
    part = scipy.integrate.quad(lambda f: np.exp(log_joint(f) + top.fun), top.x - 8, top.x + 8, points=[top.x])
    return np.log(part[0]) - top.fun


@pytest.mark.parametrize("points", [("V", "b"), ("U", "c")])
def test_log_predictive_is_exact_where_one_matrix_is_a_point(points):
    """Predictors are Gaussian there: against SciPy's adaptive quadrature, far from what is expected too."""
    model = counts_model()
    idata = pmep.fit(model=model, draws=0, estimate=list(points), hyper="fixed", **QUIET)
    at = {"V": NEW["rows"], "b": NEW["rows"], "U": NEW["cols"], "c": NEW["cols"]}
    mean, sd = (
        {name: np.asarray(idata[f"posterior_{what}"][name])[where] for name, where in at.items()}
        for what in ("mean", "sd")
    )
    centre = (mean["V"] * mean["U"]).sum(axis=1) + mean["b"] + mean["c"] + float(fit_mode(idata, "mu"))
    variance = sum(sd[name] ** 2 for name in "bc")
    variance = variance + (mean["V"] ** 2 * sd["U"] ** 2 + mean["U"] ** 2 * sd["V"] ** 2).sum(axis=1)
    observed = np.array([0, 1, 7, 300])
    found = pmep.log_predictive(idata, model, {"y": NEW | {"observed": observed}})["y"]
    expected = [log_density_of_count(*of_cell) for of_cell in zip(observed, centre, np.sqrt(variance))]
    np.testing.assert_allclose(found, expected, atol=1e-5)
    bounds = predictive_pit(idata, model, {"y": NEW})
    rng = np.random.default_rng(1)
    draws = rng.poisson(np.exp(rng.normal(centre, np.sqrt(variance), (40_000, 4))))
    for which, share in (("lower", draws < NEW["observed"]), ("upper", draws <= NEW["observed"])):
        np.testing.assert_allclose(bounds[f"y_{which}"], share.mean(axis=0), atol=4 * 0.5 / 200)


@pytest.mark.parametrize(
    ("cells", "error", "message"),
    [
        ({"y": NEW | {"rows": [0, 12, 0, 0]}}, pmep.InvalidDataError, "'y' has the row 12 at index 1.*rows 0 to 11"),
        ({"y": NEW | {"observed": [0, 0, -1, 0]}}, pmep.InvalidDataError, "value -1.* at index 2"),
        ({"y": {"rows": [0], "observed": [1]}}, pmep.InvalidDataError, "'cols' is missing"),
        ({"y": NEW | {"beta": 1.0}}, pmep.InvalidDataError, "there is no 'beta'"),
        ({"y": COUNTS}, pmep.InvalidDataError, "'rows' is missing"),
        ({"z": NEW}, pmep.UnsupportedModelError, "cells are those of 'y'; give these, not z"),
    ],
)
def test_new_cells_that_there_are_not(fitted, cells, error, message):
    model, idata = fitted
    with pytest.raises(error, match=message):
        pmep.log_predictive(idata, model, cells)


def test_offsets_that_differ_have_to_be_given():
    with pm.Model(coords=COORDS) as model:
        pmep.BilinearPoisson("y", *matrices(), ROWS, COLS, offset=np.linspace(0, 1, N), observed=COUNTS)
    idata = pmep.fit(model=model, draws=0, **QUIET)
    with pytest.raises(pmep.InvalidDataError, match="offset of 'y' differs from cell to cell"):
        pmep.log_predictive(idata, model, {"y": NEW})
    assert pmep.log_predictive(idata, model, {"y": NEW | {"offset": 0.5}})["y"].shape == (4,)


def test_a_fit_that_prunes_every_factor_says_so():
    rng = np.random.default_rng(0)
    bits = (rng.random(N) < 0.5).astype(int)
    with pm.Model() as model:
        s = pm.HalfNormal("s", 1)
        V, U = pm.Normal("V", 0, s, shape=(I, 2)), pm.Normal("U", 0, 1, shape=(J, 2))
        pmep.BilinearBernoulli("y", V, U, ROWS, COLS, observed=bits)
    fit = group(pmep.fit(model=model, draws=0, **QUIET), "fit")
    assert float(fit["hyper_mode_s"]) < 1e-2
    assert "every factor is pruned" in fit.attrs["status"]
    held = group(pmep.fit(model=model, draws=0, hyper="fixed", start={"s": 0.8}, **QUIET), "fit")
    assert "pruned" not in held.attrs["status"]


def test_more_factors_than_rows_are_told():
    with pm.Model() as model:
        V, U = pm.Normal("V", 0, 1, shape=(I, J + 1)), pm.Normal("U", 0, 1, shape=(J, J + 1))
        pmep.BilinearPoisson("y", V, U, ROWS, COLS, observed=COUNTS)
    fit = group(pmep.fit(model=model, draws=0, **QUIET), "fit")
    assert f"of {J + 1} factors no more than {J} can matter" in fit.attrs["status"]


def test_a_covariance_of_which_one_direction_runs_to_none_has_no_mode():
    """Counts of one factor, where there are two columns."""
    rng = np.random.default_rng(3)
    v, u = rng.normal(size=I), rng.normal(size=J)
    counts = rng.poisson(np.exp(1.0 + v[ROWS] * u[COLS]))
    with pm.Model() as model:
        chol = pm.LKJCholeskyCov("L", n=2, eta=2, sd_dist=pm.HalfNormal.dist(1))[0]
        V, U = pm.MvNormal("V", np.zeros(2), chol=chol, shape=(I, 2)), pm.Normal("U", 0, 1, shape=(J, 2))
        pmep.BilinearPoisson("y", V, U, ROWS, COLS, offset=1.0, observed=counts)
    with pytest.warns(pmep.ConvergenceWarning, match="covariance of 'V' ran to a singular one"):
        idata = pmep.fit(model=model, draws=0, **QUIET)
    assert not bool(idata["fit"]["converged"])
    assert float(idata["posterior_sd"]["V"].max()) > 1e-2


@pytest.mark.parametrize("draws", [500, 0])
def test_weights_of_draws_give_the_evidence(draws):
    """Against quadrature over three numbers."""
    with pm.Model() as model:
        V, U = pm.Normal("V", 0.8, 0.3, shape=(1, 1)), pm.Normal("U", 0.5, 0.4, shape=(2, 1))
        pmep.BilinearPoisson("y", V, U, [0, 0], [0, 1], offset=0.2, observed=[3, 0])
        idata = pmep.fit(draws=draws, **QUIET)
    found = pmep.diagnose(idata, model)
    z = np.linspace(-9.0, 9.0, 2001)
    u, weight = 0.5 + 0.4 * z, scipy.stats.norm.pdf(z) * (z[1] - z[0])
    rates = np.exp(np.outer(0.8 + 0.3 * z, u) + 0.2)
    evidence = np.log(weight @ np.prod([scipy.stats.poisson.pmf(y, rates) @ weight for y in (3, 0)], axis=0))
    assert float(found["weights_ess"]) > 0.9 * found["log_weight"].size
    assert "pareto_k" not in found and "nearly equal" in found.attrs["absent"]
    error = float(found["log_evidence_importance"]) - evidence
    assert abs(error) < 4 * float(found["log_evidence_importance_mcse"])
    assert 0 < evidence - float(found["log_evidence"]) < 0.2
    np.testing.assert_allclose(found["importance_correction"], error + evidence - found["log_evidence"], rtol=1e-10)
    assert "inner products" in found.attrs["absent"] and found.attrs["status"].startswith("converged")
    assert len(pmep.plots.plot_diagnose(found)) == 1
    with pytest.raises(ValueError, match="neither sites nor weights"):
        pmep.plots.plot_diagnose(found.drop_vars("log_weight"))


def test_weights_of_more_cells_than_memory_allows_are_absent(monkeypatch):
    model = counts_model()
    monkeypatch.setattr("pymc_ep.diagnostics.report._LIKELIHOODS", 1e3)
    found = pmep.diagnose(pmep.fit(model=model, draws=0, **QUIET), model)
    assert "pareto_k" not in found and "pareto_k" in found.attrs["absent"] and "too many" in found.attrs["absent"]


def test_what_needs_sites_says_so(fitted):
    model, idata = fitted
    with pytest.raises(pmep.UnsupportedModelError, match="predictors of 'y' are inner products of 'V', 'U', 'b'"):
        pmep.predict(idata, model, var_names=["V"])
    start = pmep.start_point(idata)
    assert set(start) == {"V", "U", "b", "c", "s", "sb", "mu"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"estimate": ["W"]}, "estimate= names 'W'.*V, U, b, c"),
        ({"estimate": 3}, "estimate=3 must be the name of a matrix or bias"),
        ({"estimate": ["b"]}, "points of 'b', whose scale 'sb' is to be learned.*hyper='fixed'"),
        ({"seed": "a"}, "seed='a' must be a whole number of at least 0"),
        ({"covariance": "banded"}, "covariance='banded' must be one of 'diagonal', 'full'"),
        ({"tol": 0.0}, "tol=0.0 must be positive"),
        ({"max_iter": 0}, "max_iter=0 must be a whole number of at least 1"),
        ({"hyper": "integrate"}, "hyper='integrate' is not offered"),
        ({"method": "ep"}, "method='ep' does not exist for this model.*'vg'"),
    ],
)
def test_options_out_of_range(options, message):
    with pytest.raises(ValueError, match=message):
        pmep.fit(model=counts_model(), draws=0, **QUIET, **options)


@pytest.mark.filterwarnings("ignore:The result of vg may be off")
def test_variances_of_rows_with_many_cells_do_not_collapse():
    """Log variances once fell by a hundred in a step, from where they rise by one a step, and no ascent went on."""
    rng = np.random.default_rng(0)
    rows, cols = (index.ravel() for index in np.indices((2000, 4)))
    with pm.Model() as model:
        V, U = pm.Normal("V", 0, 1, shape=(2000, 2)), pm.Normal("U", 0, 1, shape=(4, 2))
        pmep.BilinearPoisson("y", V, U, rows, cols, link="softplus", observed=rng.poisson(50, rows.size))
    idata = pmep.fit("vg", model=model, max_iter=3, draws=0, **QUIET)
    assert np.all((idata["posterior_sd"]["U"] > 1e-3) & (idata["posterior_sd"]["U"] < 0.3))
