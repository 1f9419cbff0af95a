"""Shrinkage of singular values on bilinear models, from the model block to the container."""

import json
from functools import cache

import arviz as az
import numpy as np
import pymc as pm
import pytest
import scipy.stats

import pymc_ep as pmep
from pymc_ep.compat import group

I, J, D, N = 40, 25, 3, 500  # noqa: E741
RNG = np.random.default_rng(5)
CELLS = RNG.choice(I * J, N, replace=False)
ROWS, COLS = CELLS // J, CELLS % J
BASE = 0.3 * RNG.normal(size=N)
F = 1.5 * (RNG.normal(size=(I, D))[ROWS] * RNG.normal(size=(J, D))[COLS]).sum(axis=1) + BASE + 1.0
COUNTS, NUMBERS = RNG.poisson(np.logaddexp(0, F)), F + 0.5 * RNG.normal(size=N)
COORDS = {"item": [f"item {k}" for k in range(I)], "user": range(J), "factor": range(D + 1)}
QUIET = {"progressbar": False, "random_seed": 1}


@cache
def model_of(kind="softplus", *, learned=True):
    """A model that no test changes: compiled once."""
    with pm.Model(coords=COORDS) as model:
        s = pm.HalfNormal("s", 2) if learned else 1.0
        V, U = pm.Normal("V", 0, s, dims=("item", "factor")), pm.Normal("U", 0, 1, dims=("user", "factor"))
        offset = BASE + (pm.Normal("mu", 0, 2) if learned else 1.0)
        if kind == "softplus":
            pmep.BilinearPoisson("y", V, U, ROWS, COLS, offset=offset, link="softplus", observed=COUNTS)
        elif kind == "bernoulli":
            pmep.BilinearBernoulli("y", V, U, ROWS, COLS, offset=offset, observed=F > 0)
        elif kind == "negative binomial":
            pmep.BilinearPoisson("y", V, U, ROWS, COLS, offset=offset, alpha=2.0, observed=COUNTS)
        else:
            sigma = pm.HalfNormal("sigma", 1) if learned else 0.5
            pm.Normal("y", (V[ROWS] * U[COLS]).sum(axis=-1) + offset, sigma, observed=NUMBERS)
    return model


@pytest.fixture(scope="module")
def fitted():
    model = model_of("normal")
    return model, pmep.fit("vbmf", model=model, draws=400, log_likelihood=True, **QUIET)


def test_the_container(fitted):
    _, idata = fitted
    fit, posterior = group(idata, "fit"), group(idata, "posterior")
    assert fit.attrs["method"] == "vbmf" and bool(fit["converged"])
    assert idata["posterior_mean"]["V"].dims == ("item", "factor") and posterior["U"].dims == (
        "chain",
        "draw",
        "user",
        "factor",
    )
    assert (np.diff(fit["objective"]) >= -1e-9 * np.abs(fit["objective"][:-1])).all()
    assert fit["hyper_trace_s"].shape == fit["objective"].shape
    assert float(fit["hyper_mode_sigma"]) == pytest.approx(0.5, rel=0.4)
    for name in ("V", "U"):
        ratio = posterior[name].std(("chain", "draw")) / idata["posterior_sd"][name]
        assert float(np.abs(ratio - 1).max()) < 0.12
    assert np.corrcoef(fit["y_predictor_mean"], F)[0, 1] > 0.95
    # The bound of the fit charges the variance of cells that were not observed too.
    assert float((fit["log_p"] - fit["log_q"]).mean()) > float(fit["log_evidence"]) > -1e4
    settings = json.loads(fit.attrs["settings"])
    assert settings["rank"] == D + 1
    assert settings["kappa"] == pytest.approx(float(fit["hyper_mode_sigma"]) ** -2)
    assert settings["prior_variances"][0][0] == pytest.approx(float(fit["hyper_mode_s"]) ** 2)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        *((kind, {}) for kind in ("softplus", "bernoulli", "normal", "negative binomial")),
        *((kind, {"shrinkage": "map"}) for kind in ("bernoulli", "normal")),
        ("bernoulli", {"init": "zeros"}),
        ("softplus", {"ard": True}),
        ("bernoulli", {"rank": 2}),
    ],
)
def test_likelihoods_and_options(kind, options):
    model = model_of(kind, learned=False)
    idata = pmep.fit("vbmf", model=model, draws=5, log_likelihood=True, chains=2, **QUIET, **options)
    fit, posterior = group(idata, "fit"), group(idata, "posterior")
    assert bool(fit["converged"]) and (np.diff(fit["objective"]) >= -1e-9 * np.abs(fit["objective"][:-1])).all()
    assert bool((idata["posterior_sd"]["V"] == 0).all()) == (options.get("shrinkage") == "map")
    point = model.initial_point() | {name: np.asarray(posterior[name][1, 2]) for name in ("V", "U")}
    own = model.compile_logp(vars=[model["y"]], sum=False)(point)[0]
    np.testing.assert_allclose(group(idata, "log_likelihood")["y"][1, 2], own, rtol=1e-5, atol=1e-6)
    if options.get("shrinkage") == "map":
        # The joint density of all that there is.
        point |= {name: np.asarray(idata["posterior_mean"][name]) for name in ("V", "U")}
        assert float(fit["log_evidence"]) == pytest.approx(float(model.compile_logp()(point)), rel=1e-8)
        assert "of both matrices" in fit.attrs["log_evidence_is"]


def test_points_have_the_highest_density_that_a_climb_finds():
    model = model_of("softplus", learned=False)
    fit = group(pmep.fit("vbmf", model=model, shrinkage="map", tol=1e-9, draws=0, **QUIET), "fit")
    options = {"estimate": ["V", "U"], "tol": 1e-9, "draws": 0}
    climbed = [group(pmep.fit("vg", model=model, seed=seed, **options, **QUIET), "fit") for seed in range(3)]
    assert float(fit["log_evidence"]) == pytest.approx(max(float(one["log_evidence"]) for one in climbed), abs=1e-3)


def test_the_bound_is_below_that_of_independent_entries():
    """It is a bound on the one of the variational Gaussian, at the same prior and for the same posteriors."""
    model = model_of("normal", learned=False)
    ends = {
        m: group(pmep.fit(m, model=model, draws=0, max_iter=3000, tol=1e-8, **QUIET), "fit") for m in ("vg", "vbmf")
    }
    assert float(ends["vbmf"]["log_evidence"]) <= float(ends["vg"]["log_evidence"]) + 1e-3


def test_learned_prior_variances_are_those_of_new_rows_and_of_densities_of_draws():
    """They stand in for the model's in all that comes after the fit."""
    model = model_of("normal", learned=False)
    idata = pmep.fit("vbmf", model=model, ard=True, draws=2000, log_likelihood=True, **QUIET)
    fit, state = group(idata, "fit"), group(idata, "fit_state")
    of_left, of_right = (state[f"{side}_prior_variance"].to_numpy() for side in ("left", "right"))
    np.testing.assert_allclose(
        of_right, (idata["posterior_mean"]["U"] ** 2 + idata["posterior_sd"]["U"] ** 2).mean("user")
    )
    assert (of_left == 0).any() and (of_left > 0).any()
    none = pmep.fold_in(idata, model, {"user": {"rows": [0], "cols": [1], "observed": [0.3], "offset": [0.0]}})
    np.testing.assert_allclose(none["U_sd"][0], of_right**0.5, rtol=1e-5)
    assert not none["U_mean"][0].any() and not none["U_mean"].values[:, of_right == 0].any()
    # The mean of log p - log q is a lower bound on the evidence and, without pseudo-data, no lower than the fit's.
    ratio = (fit["log_p"] - fit["log_q"]).to_numpy().ravel()
    assert ratio.mean() + 4 * ratio.std() / len(ratio) ** 0.5 > float(fit["log_evidence"])
    assert abs(ratio.mean() - float(fit["log_evidence"])) < 60


def test_a_saved_fit_is_where_the_next_one_starts(fitted, tmp_path):
    model, idata = fitted
    idata.to_netcdf(tmp_path / "fit.nc")
    back = az.from_netcdf(tmp_path / "fit.nc")
    again = group(pmep.fit("vbmf", model=model, start=back, draws=0, **QUIET), "fit")
    assert float(again["objective"][0]) == pytest.approx(float(group(idata, "fit")["objective"][-1]), rel=1e-9)
    # The variational Gaussian goes on from it, and shrinkage from that.
    other = pmep.fit("vg", model=model, start=back, draws=0, **QUIET)
    assert float(group(other, "fit")["objective"][0]) > float(again["objective"][0])
    last = group(pmep.fit("vbmf", model=model, start=other, rank=2, draws=0, **QUIET), "fit")
    assert bool(last["converged"]) and (np.diff(last["objective"]) >= -1e-9 * np.abs(last["objective"][:-1])).all()


def test_a_checkpoint_is_resumed(tmp_path):
    model, path = model_of(learned=False), tmp_path / "state.npz"
    with pytest.warns(pmep.ConvergenceWarning, match="stopped after 4 steps.*method='vg' needs fewer"):
        first = pmep.fit("vbmf", model=model, draws=0, checkpoint=path, max_iter=4, **QUIET)
    second = pmep.fit("vbmf", model=model, draws=0, checkpoint=path, **QUIET)
    whole = pmep.fit("vbmf", model=model, draws=0, **QUIET)
    first, second, whole = (group(idata, "fit")["objective"].to_numpy() for idata in (first, second, whole))
    np.testing.assert_array_equal(second[: len(first)], first)
    np.testing.assert_allclose(second, whole, rtol=1e-10)


def test_log_predictive_of_new_cells(fitted):
    """Against the mean density over draws of the posterior."""
    model, idata = fitted
    new = {"rows": np.array([0, 3, 39]), "cols": np.array([8, 0, 24]), "observed": np.array([0.0, -1.0, 2.0])}
    found = pmep.log_predictive(idata, model, {"y": new | {"offset": 0.4}})["y"]
    posterior = group(idata, "posterior")
    V, U = (np.concatenate(np.asarray(posterior[name])) for name in ("V", "U"))
    f = (V[:, new["rows"]] * U[:, new["cols"]]).sum(axis=-1) + 0.4
    density = scipy.stats.norm(f, float(group(idata, "fit")["hyper_mode_sigma"])).pdf(new["observed"])
    error = density.std(axis=0) / density.mean(axis=0) / np.sqrt(len(f))
    assert np.all(np.abs(np.log(density.mean(axis=0)) - found) < 10 * error + 1e-3)


def test_explain_offers_it_where_it_can_work():
    with pm.Model() as model:
        V, U = pm.Normal("V", 0, 1, shape=(I, 2)), pm.Normal("U", 0, 1, shape=(J, 2))
        pmep.BilinearBernoulli("y", V, U, ROWS, COLS, observed=F > 0)
    assert pmep.explain(model).endswith("methods          vg, vbmf")
    with pm.Model() as biased:
        V, U = pm.Normal("V", 0, 1, shape=(I, 2)), pm.Normal("U", 0, 1, shape=(J, 2))
        pmep.BilinearBernoulli("y", V, U, ROWS, COLS, offset=pm.Normal("b", shape=I)[ROWS], observed=F > 0)
    assert pmep.explain(biased).endswith("methods          vg")


def test_what_is_shrunk_to_zero_is_explained():
    few = slice(0, 60)
    with pm.Model() as model:
        V, U = pm.Normal("V", 0, 1, shape=(I, 2)), pm.Normal("U", 0, 1, shape=(J, 2))
        pmep.BilinearBernoulli("y", V, U, ROWS[few], COLS[few], observed=F[few] > 0)
    idata = pmep.fit("vbmf", model=model, draws=0, **QUIET)
    assert bool(idata["fit"]["converged"]) and not idata["posterior_mean"]["V"].any()
    assert "all columns are shrunk to zero, as the largest singular value" in idata["fit"].attrs["status"]


@pytest.mark.parametrize(("largest", "max_iter", "kappa"), [(900, 3, 151), (60, 1000, 10)])
def test_a_bound_that_is_loose_for_a_few_large_counts_is_named(largest, max_iter, kappa):
    counts = COUNTS.copy()
    counts[7] = largest
    with pm.Model() as model:
        V, U = pm.Normal("V", 0, 3, shape=(I, 2)), pm.Normal("U", 0, 3, shape=(J, 2))
        pmep.BilinearPoisson("y", V, U, ROWS, COLS, link="softplus", observed=counts)
    with pytest.warns(Warning, match=f"takes all cells to curve by {kappa}") as warned:
        fit = group(pmep.fit("vbmf", model=model, draws=0, max_iter=max_iter, **QUIET), "fit")
    (one,) = warned
    assert issubclass(one.category, pmep.ConvergenceWarning) == (not fit["converged"]) == (largest == 900)


def test_a_bound_that_is_loose_for_all_counts_alike_is_named():
    # At its likeliest predictor, about y, a count y curves by 1 / y.
    with pm.Model() as model:
        V, U = pm.Normal("V", 0, 10, shape=(I, 2)), pm.Normal("U", 0, 10, shape=(J, 2))
        pmep.BilinearPoisson("y", V, U, ROWS, COLS, link="softplus", observed=np.full(len(ROWS), 100))
    with pytest.warns(pmep.ConvergenceWarning, match="takes all cells to curve by 16.9, .* where 0.01 is typical"):
        pmep.fit("vbmf", model=model, draws=0, max_iter=3, **QUIET)


def test_the_table_and_explanations():
    table = [line.split() for line in pmep.supported().splitlines() if "bilinear" in line]
    names = ["NegBinomial,", "Bernoulli,", "Poisson,", "Normal,", "SoftplusPoisson,"]
    assert sorted(line[0] for line in table if "vbmf" in line) == sorted(names)
    told = pmep.explain(model_of())
    assert "likelihood softplus_poisson, link softplus" in told and "methods          vg, vbmf" in told
    with pm.Model() as model:
        V, U = pm.Normal("V", 0, 1, shape=(I, 2)), pm.Normal("U", 0, 1, shape=(J, 2))
        pm.Poisson("y", pm.math.log1pexp((V[ROWS] * U[COLS]).sum(axis=-1)), observed=COUNTS)
    assert "likelihood softplus_poisson" in pmep.explain(model)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rank": 5}, "rank=5 is more than the 4 columns of 'V' and 'U'"),
        ({"rank": True}, "rank=True must be a whole number of at least 1"),
        ({"ard": "no"}, "ard='no' must be True or False"),
        ({"seed": -1}, "seed=-1 must be a whole number of at least 0"),
        ({"rank": 0}, "rank=0 must be a whole number of at least 1"),
        ({"shrinkage": "soft"}, "shrinkage='soft' must be 'vb' or 'map'"),
        ({"init": "ones"}, "init='ones' must be 'modes' or 'zeros'"),
        ({"ard": True}, "ard=True learns prior variances.*'s'"),
        ({"shrinkage": "map"}, "whose scale 's' is to be learned.*hyper='fixed'"),
        ({"shrinkage": "map", "ard": True, "hyper": "fixed"}, "ard=True needs shrinkage='vb'"),
        ({"tol": 0.0}, "tol=0.0 must be positive"),
        ({"hyper": "integrate"}, "hyper='integrate' is not offered"),
    ],
)
def test_options_out_of_range(options, message):
    with pytest.raises(ValueError, match=message):
        pmep.fit("vbmf", model=model_of(), draws=0, **QUIET, **options)


def test_a_rank_that_the_matrix_cannot_have():
    with pm.Model() as model:
        V, U = pm.Normal("V", 0, 1, shape=(3, 5)), pm.Normal("U", 0, 1, shape=(4, 5))
        pmep.BilinearBernoulli("y", V, U, [0, 1], [1, 2], observed=[0, 1])
    with pytest.raises(ValueError, match=r"rank=4 is more than a matrix of 3 rows \('V'\) and 4 columns"):
        pmep.fit("vbmf", model=model, rank=4, draws=0, **QUIET)
    pmep.fit("vbmf", model=model, draws=0, **QUIET)


def shaped(mean=0.0, scale=1.0):
    return pm.Normal("V", mean, scale, shape=(3, 2)), pm.Normal("U", 0, 1, shape=(4, 2))


def bits(V, U, offset=0.0):
    pmep.BilinearBernoulli("y", V, U, [0, 1], [1, 0], offset=offset, observed=[0, 1])


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            lambda: pmep.BilinearPoisson("y", *shaped(), [0, 1], [1, 0], observed=[1, 2]),
            "'y' has a poisson likelihood and link exp.*link='softplus', or method='vg'",
        ),
        (lambda: bits(*shaped(), offset=pm.Normal("b", 0, 1, shape=3)[[0, 1]]), "'b' is a bias.*method='vg'"),
        (lambda: bits(*shaped(mean=np.eye(3)[:, :2])), "'V' has a prior mean of 1 in row 0 and column 0"),
        (lambda: bits(*shaped(scale=np.array([[1.0], [1.0], [2.0]]))), "'V' has a prior variance in row 2"),
        (
            lambda: bits(*shaped(scale=pm.HalfNormal("s", 1, shape=(3, 1)))),
            "'V' has a prior variance in row 1 that is not that in row 0",
        ),
        (lambda: bits(pm.Flat("V", shape=(3, 2)), pm.Normal("U", 0, 1, shape=(4, 2))), "'V' has a flat prior"),
    ],
)
def test_models_that_do_not_fit(build, message):
    with pm.Model() as model:
        build()
    with pytest.raises(pmep.UnsupportedModelError, match=message):
        pmep.fit("vbmf", model=model, draws=0, **QUIET)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"link": "probit"}, "'y' has link='probit'"),
        ({"link": "softplus", "alpha": 2.0}, "'y' has link='softplus', which does not go with alpha="),
        ({"truncated": "no"}, "'y' has truncated='no', which must be True or False"),
        ({"link": "softplus", "truncated": True}, "which does not go with truncated=True"),
    ],
)
def test_links_that_there_are_not(options, message):
    with pm.Model(), pytest.raises(ValueError, match=message):
        pmep.BilinearPoisson("y", *shaped(), [0, 1], [1, 0], observed=[1, 2], **options)
