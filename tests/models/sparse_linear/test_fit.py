"""Sparse fields from the model block to the container, by each method."""

import sys
import time

import joblib
import numpy as np
import pymc as pm
import pytest
import scipy.sparse.linalg

import pymc_ep as pmep
from pymc_ep.compat import group, group_names

SHAPE = 10, 12
TRUTH = np.pad(np.full((5, 6), 8.0), ((2, 3), (3, 3)), constant_values=3.0)
NOISE = 0.5


@pytest.fixture(scope="module")
def noisy_model():
    noisy = TRUTH + np.random.default_rng(1).normal(0, NOISE, SHAPE)
    with pm.Model(coords={"row": range(SHAPE[0]), "column": range(SHAPE[1])}) as model:
        b = pm.HalfNormal("b", 2)
        u = pmep.SparseField(
            "u", operator=pmep.operators.Gradient2D(SHAPE), potential=pm.Laplace.dist(0, b), dims=("row", "column")
        )
        pm.Deterministic("level", u.mean())
        pm.Normal("y", u, NOISE, observed=noisy, dims=("row", "column"))
    return model


def fitted(model, method, **options):
    return pmep.fit(method, model=model, random_seed=1, progressbar=False, **options)


@pytest.fixture(scope="module")
def by_ep(noisy_model):
    return fitted(noisy_model, "ep")


@pytest.fixture(scope="module")
def by_bounds(noisy_model):
    return fitted(noisy_model, "dsb")


def relative_error(result, part="posterior_mean"):
    return np.sqrt(np.mean((result[part]["u"].to_numpy() - TRUTH) ** 2)) / NOISE


def test_edges_are_kept(by_ep, by_bounds):
    assert relative_error(by_ep) < 0.75
    assert relative_error(by_bounds) < 0.75


def test_the_bound_rises_and_lies_below_the_evidence(by_ep, by_bounds):
    fit = group(by_bounds, "fit")
    objective = fit["objective"].to_numpy()
    assert np.all(np.diff(objective) >= -1e-9 * np.abs(objective[1:]))
    assert bool(fit["converged"])
    # EP's evidence is no bound, but off by far less than the double loop's is below it.
    assert float(fit["log_evidence"]) < float(group(by_ep, "fit")["log_evidence"])


def test_layout(by_ep, by_bounds):
    for result in (by_ep, by_bounds):
        fit = group(result, "fit")
        assert result["posterior_mean"]["u"].dims == ("row", "column")
        assert fit["y_site_precision"].dims == ("row", "column")
        assert result["posterior_sd"]["level"].shape == ()
        posterior = group(result, "posterior")
        assert posterior["u"].shape == (4, 25, *SHAPE)
        np.testing.assert_allclose(posterior["level"], posterior["u"].mean(("row", "column")), rtol=1e-12)


def test_predictions_from_disk(noisy_model, by_bounds, tmp_path):
    by_bounds.to_netcdf(tmp_path / "fit.nc")
    if group_names(by_bounds)[0].startswith("/") or hasattr(by_bounds, "children"):
        from xarray import open_datatree

        loaded = open_datatree(tmp_path / "fit.nc", engine="h5netcdf")
    else:
        from arviz import from_netcdf

        loaded = from_netcdf(tmp_path / "fit.nc")
    found = pmep.predict(loaded, noisy_model, var_names=["u", "level"])
    np.testing.assert_allclose(found["u_sd"], by_bounds["posterior_sd"]["u"], rtol=1e-9)
    np.testing.assert_allclose(found["level_mean"], by_bounds["posterior_mean"]["level"], rtol=1e-9)


def test_sampled_variances_estimate_the_exact_ones(noisy_model):
    hyper = {"hyper": "fixed", "start": {"b": 0.7}}
    exact = fitted(noisy_model, "dsb", **hyper)
    options = {"variance": "perturb-and-map", "n_samples": 200, "outer": 30, "tol": 1e-2}
    sampled = fitted(noisy_model, "dsb", log_likelihood=True, **options, **hyper)
    fit = group(sampled, "fit")
    assert "log_evidence" not in fit
    assert set(group(sampled, "log_likelihood").data_vars) == {"y"}
    assert "no determinant of the posterior precision" in fit.attrs["left_out"]
    np.testing.assert_allclose(sampled["posterior_mean"]["u"], exact["posterior_mean"]["u"], atol=0.1)
    # A standard deviation from k draws has the relative standard error (2 k)^(-1/2) = 0.05; all 120 lie within 4.5.
    np.testing.assert_allclose(sampled["posterior_sd"]["u"], exact["posterior_sd"]["u"], rtol=0.225)
    again = pmep.predict(sampled, noisy_model, var_names=["u"])
    np.testing.assert_allclose(again["u_sd"], sampled["posterior_sd"]["u"], rtol=1e-9)


def test_the_mode_has_no_moments(noisy_model):
    result = fitted(noisy_model, "map", hyper="fixed", start={"b": 0.7})
    assert "log_evidence" not in result["fit"]
    assert not {"posterior", "posterior_mean", "posterior_sd"} & set(group_names(result))
    assert relative_error(result, "posterior_mode") < 1.0
    with pytest.raises(pmep.UnsupportedModelError, match="mode of a density alone"):
        pmep.predict(result, noisy_model, var_names=["u"])


def test_the_mode_minimises_the_density(noisy_model):
    """Against the value of PyMC's own log density at points nearby."""
    result = fitted(noisy_model, "map", hyper="fixed", start={"b": 0.7})
    mode = result["posterior_mode"]["u"].to_numpy()
    logp = noisy_model.compile_logp(vars=[noisy_model["u"], noisy_model["y"]])
    best = logp({"u": mode, "b_log__": np.log(0.7)})
    rng = np.random.default_rng(0)
    for size in (1e-3, 1e-2, 0.1):
        for _ in range(5):
            assert logp({"u": mode + size * rng.standard_normal(SHAPE), "b_log__": np.log(0.7)}) < best


def test_a_warm_start_is_at_the_end_at_once(noisy_model, by_bounds):
    again = fitted(noisy_model, "dsb", start=by_bounds, draws=0)
    fit, first = group(again, "fit"), group(by_bounds, "fit")
    assert int(fit["n_iter"]) < int(first["n_iter"])
    np.testing.assert_allclose(float(fit["log_evidence"]), float(first["log_evidence"]), atol=1e-2)


def test_what_each_method_takes():
    table = [line.split() for line in pmep.supported().splitlines()]
    methods = {row[0]: set() for row in table}
    for row in table:
        methods[row[0]] |= {"ep", "dsb", "map"} & set(row)
    assert methods["Laplace"] == methods["StudentT"] == {"ep", "dsb", "map"}
    assert methods["RectifiedPoisson"] == {"ep"}
    assert methods["SparseField"] == {"ep", "dsb", "map"}
    assert methods["WaveletTree"] == {"ep", "dsb", "map"}


def test_a_likelihood_without_bound_is_named(noisy_model):
    with pm.Model() as model:
        u = pmep.SparseField("u", operator=np.eye(3), potential=pm.Laplace.dist(0, 1.0))
        pmep.RectifiedPoisson("counts", u, observed=[1, 2, 0])
    with pytest.raises(pmep.UnsupportedModelError, match=r"'counts'.*method='ep'"):
        fitted(model, "dsb")


def test_explained(noisy_model):
    said = pmep.explain(noisy_model)
    assert "potential        u: 218 terms, site laplace" in said
    assert "ep, dsb, map" in said


def test_sampled_variances_learn_scales_beside_precise_observations():
    """Draws that start from those of the loop before must move, however small the potentials are beside the data."""
    rng = np.random.default_rng(2)
    picture = np.cumsum(np.cumsum(rng.normal(0, 0.05, (16, 16)), axis=0), axis=1)
    seen = rng.random((16, 16)) < 0.4
    with pm.Model() as model:
        b = pm.HalfNormal("b", 1, shape=2)
        u = pmep.SparseField(
            "u", operator=pmep.operators.Wavelet2D((16, 16), "db2", 2), potential=pm.Laplace.dist(0, b)
        )
        pm.Normal("y", u[seen], 0.003, observed=picture[seen])
    exact = group(fitted(model, "dsb", draws=0), "fit")
    sampled = group(fitted(model, "dsb", variance="perturb-and-map", n_samples=100, draws=0), "fit")
    assert bool(sampled["converged"])
    np.testing.assert_allclose(sampled["hyper_mode_b"], exact["hyper_mode_b"], rtol=0.25)


def test_a_scale_is_found_from_afar():
    """Moves that grow slowly were extrapolated backwards where no bound is known, and tau never left its start."""
    rng = np.random.default_rng(0)
    bright = np.zeros((10, 10))
    bright[3:5, 4:7] = 6.0
    with pm.Model() as model:
        tau = pm.HalfNormal("tau", 5)
        u = pmep.SparseField("u", operator=pmep.operators.Gradient2D((22, 22)), potential=pm.Laplace.dist(0, 1 / tau))
        pmep.SoftplusPoisson("y", u[6:16, 6:16], observed=rng.poisson(0.4 + bright))
    near, far = (group(fitted(model, "dsb", variance="exact", start={"tau": t}, draws=0), "fit") for t in (0.2, 5.0))
    options = {"variance": "perturb-and-map", "n_samples": 30, "outer": 100, "draws": 0}
    sampled = group(fitted(model, "dsb", start={"tau": 5.0}, **options), "fit")
    assert all(bool(found["converged"]) for found in (near, far, sampled))
    np.testing.assert_allclose(far["hyper_mode_tau"], near["hyper_mode_tau"], rtol=1e-3)
    np.testing.assert_allclose(sampled["hyper_mode_tau"], near["hyper_mode_tau"], rtol=0.1)


@pytest.mark.filterwarnings("ignore::pymc_ep.ConvergenceWarning")
def test_threads_change_no_digit():
    """Draws call compiled maps, which keep their inputs in one place, and an operator that uses one array again."""
    rng = np.random.default_rng(0)
    scene, size = rng.normal(size=(30, 144)), 144
    kept = np.zeros(size)

    def turned(x):
        kept[:] = x
        time.sleep(0.0)
        kept[::2], kept[1::2] = (kept[::2] + kept[1::2]) / 2**0.5, (kept[::2] - kept[1::2]) / 2**0.5
        return kept

    turn = scipy.sparse.linalg.LinearOperator((size, size), matvec=turned, rmatvec=turned, dtype=float)
    with pm.Model() as model:
        u = pmep.SparseField("u", operator=turn, potential=pm.Laplace.dist(0, 1), shape=size)
        pm.Normal("y", pm.math.dot(scene, u), 0.1, observed=rng.normal(size=30))

    def sd():
        options = {"variance": "perturb-and-map", "n_samples": 30, "outer": 1, "draws": 0}
        return fitted(model, "dsb", **options)["posterior_sd"]["u"]

    one = sd()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with joblib.parallel_config("threading", n_jobs=4):
            np.testing.assert_array_equal(sd(), one)
    finally:
        sys.setswitchinterval(interval)
