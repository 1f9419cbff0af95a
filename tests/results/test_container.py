"""The container against what PyMC and ArviZ make of it: structure, disk, statistics, plots, predictions."""

import arviz as az
import matplotlib.pyplot as plt
import numpy as np
import pymc as pm
import pytest

from pymc_ep.compat import PYMC_6, group, group_names, has_group
from pymc_ep.exceptions import InvalidDataError, UnsupportedModelError
from pymc_ep.results import build_container, check_dims, fit_group, fit_state, model_dims, settings

CHAINS, DRAWS = 2, 50
SHAPES = {"s": (), "f": (5,), "g": (2, 3), "h": (2,), "double": (5,)}
STATE = {
    "precision": np.arange(5.0),
    "covariance": np.eye(3, dtype=np.float32),
    "count": np.int64(4),
    "active": np.array([True, False]),
    "nothing": np.zeros((0, 3)),
    "index": np.arange(3, dtype=np.int32),
    "labels": np.array(["first", "b"]),
}
SETTINGS = {"power": 1.0, "draws": None, "exact": True, "grid": {"n": np.int64(3)}, "ids": np.arange(2)}


@pytest.fixture(scope="module")
def model():
    coords = {"year": 1851.5 + np.arange(5), "group": ["north", "south"]}
    with pm.Model(coords=coords) as model:
        x = pm.Data("x", np.arange(5.0), dims="year")
        c = pm.Data("c", 2.0)
        s = pm.HalfNormal("s", 1.0)
        f = pm.Normal("f", 0.0, s, dims="year")
        g = pm.Normal("g", 0.0, 1.0, shape=(2, 3))
        h = pm.Normal("h", dims="group")
        pm.Deterministic("double", 2 * f + c * x, dims="year")
        pm.Poisson("y", pm.math.exp(f), observed=[1, 2, 0, 3, 1], dims="year")
        pm.Normal("z", g.sum() + h.sum(), 1.0, observed=np.zeros(4))
    return model


def parts(model):
    rng = np.random.default_rng(3)
    posterior = {name: np.abs(rng.normal(size=(CHAINS, DRAWS, *shape))) for name, shape in SHAPES.items()}
    log_likelihood = {name: -1 - rng.random((CHAINS, DRAWS, n)) / 10 for name, n in (("y", 5), ("z", 4))}
    fit = {
        "z_loo": (model_dims(model, "z"), np.zeros(4)),
        "log_evidence": ((), -3.2),
        "converged": ((), True),
        "n_iter": ((), 7),
        "objective": (("iteration",), np.arange(7.0)),
    }
    attrs = {"method": "ep", "status": "Converged in 7 sweeps.", "run_time": np.float64(1.25), "settings": SETTINGS}
    return {
        "posterior": posterior,
        "log_likelihood": log_likelihood,
        "moments": {"posterior_mean": {"f": np.zeros(5)}, "posterior_sd": {"g": np.ones((2, 3))}, "posterior_mode": {}},
        "fit": fit,
        "fit_attrs": attrs,
        "fit_state": STATE,
    }


@pytest.fixture
def container(model):
    return build_container(model, **parts(model))


@pytest.fixture
def saved(container, tmp_path):
    path = str(tmp_path / "fit.nc")
    container.to_netcdf(path)
    return az.from_netcdf(path)


@pytest.fixture(scope="module")
def sampled(model):
    sampler = {"nuts_sampler": "pymc"} if PYMC_6 else {}
    with model:
        idata = pm.sample(
            draws=4,
            tune=2,
            chains=2,
            cores=1,
            progressbar=False,
            random_seed=1,
            compute_convergence_checks=False,
            **sampler,
        )
        pm.compute_log_likelihood(idata, progressbar=False)
    return idata


@pytest.mark.parametrize("name", ["posterior", "log_likelihood", "observed_data", "constant_data"])
def test_same_structure_as_sample(container, sampled, name):
    ours, theirs = group(container, name), group(sampled, name)
    assert type(container) is type(sampled)
    assert set(ours.data_vars) == set(theirs.data_vars)
    assert set(ours.coords) == set(theirs.coords)
    for variable in theirs.data_vars:
        assert ours[variable].dims == theirs[variable].dims
        assert ours[variable].dtype == theirs[variable].dtype
    for coord in set(theirs.coords) - {"draw"}:
        np.testing.assert_array_equal(ours[coord], theirs[coord])
    if name.endswith("data"):
        assert ours.equals(theirs)
    assert ours.attrs["inference_library"] == "pymc_ep"
    assert ours.attrs["inference_library_version"]


def test_fit_is_labelled_and_scalars_have_no_dims(container):
    fit = fit_group(container)
    np.testing.assert_array_equal(container["posterior_mean"]["f"]["year"], 1851.5 + np.arange(5))
    assert container["posterior_sd"]["g"].dims == ("g_dim_0", "g_dim_1")
    assert fit["objective"].dims == ("iteration",)
    assert container["fit"]["log_evidence"].dims == () and float(container["fit"]["log_evidence"]) == -3.2
    assert float(container["posterior_mean"]["f"].sel(year=1853.5)) == 0.0


def test_everything_survives_the_disk(container, saved):
    assert set(group_names(saved)) == set(group_names(container))
    for name in group_names(container):
        before, after = group(container, name), group(saved, name)
        assert after.load().equals(before)
        assert dict(after.data_vars.dtypes) == dict(before.data_vars.dtypes)
    assert fit_group(saved)["converged"].dtype == bool and bool(fit_group(saved)["converged"])
    assert fit_group(saved).attrs["status"] == "Converged in 7 sweeps."
    assert fit_group(saved).attrs["run_time"] == 1.25
    expected = {"power": 1.0, "draws": None, "exact": True, "grid": {"n": 3}, "ids": [0, 1]}
    assert settings(saved) == settings(container) == expected
    for state in (fit_state(container), fit_state(saved)):
        assert list(state) == list(STATE)
        for name, field in STATE.items():
            np.testing.assert_array_equal(state[name], field, strict=field.dtype.kind != "U" and np.ndim(field) > 0)
            assert state[name].dtype == field.dtype


@pytest.mark.filterwarnings("ignore:The inplace keyword:DeprecationWarning")  # ArviZ 0.x with pandas 3
def test_statistics(saved):
    summary = az.summary(saved)
    assert {"s", "f[1851.5]", "h[north]", "g[1, 2]", "double[1855.5]"} <= set(summary.index)
    loo = az.loo(saved, var_name="y")
    assert np.isfinite(getattr(loo, "elpd_loo", getattr(loo, "elpd", np.nan)))
    table = az.compare({"one": saved, "two": saved}, var_name="y")
    assert set(table.index) == {"one", "two"}


@pytest.mark.parametrize("plot", [az.plot_trace, az.plot_forest])
@pytest.mark.filterwarnings("ignore")
def test_plots(saved, plot):
    plot(saved, var_names=["s", "f"])
    plt.close("all")


def test_predictions(model, saved):
    with model:
        del saved["log_likelihood"]
        pm.compute_log_likelihood(saved, progressbar=False)
        pm.sample_posterior_predictive(saved, extend_inferencedata=True, progressbar=False, random_seed=2)
    f, y = group(saved, "posterior")["f"].values, np.array([1, 2, 0, 3, 1])
    np.testing.assert_allclose(
        group(saved, "log_likelihood")["y"], y * f - np.exp(f) - np.log([1, 2, 1, 6, 1]), rtol=1e-10
    )
    assert group(saved, "posterior_predictive")["y"].dims == ("chain", "draw", "year")


def test_no_draws_means_no_posterior(model):
    container = build_container(model, **{**parts(model), "posterior": None, "log_likelihood": None})
    assert not has_group(container, "posterior") and not has_group(container, "log_likelihood")
    assert has_group(container, "fit")


def test_own_dims_are_refused_in_a_model():
    with pm.Model(coords={"iteration": range(3)}) as model:
        pm.Normal("x", dims="iteration")
    with pytest.raises(UnsupportedModelError, match="rename that dim"):
        check_dims(model)


def test_attributes_that_netcdf_refuses_are_named(model):
    wrong = {**parts(model), "fit_attrs": {"warm": True}}
    with pytest.raises(TypeError, match="'warm' is a bool"):
        build_container(model, **wrong)


def test_a_foreign_container_is_refused(sampled):
    for read in (fit_group, fit_state, settings):
        with pytest.raises(ValueError, match=r"pass what pymc_ep\.fit returned"):
            read(sampled)


def test_dims_of_other_lengths_are_refused_before_the_fit():
    with pm.Model(coords={"site": range(4)}) as model:
        pm.Normal("f", shape=8, dims="site")
    with pytest.raises(InvalidDataError, match="'f' has 8 values along axis 0, but its dim 'site' has 4 labels"):
        check_dims(model)


def test_dims_that_are_partly_named(model):
    assert model_dims(model, "s") == ()
    assert model_dims(model, "h") == ("group",)
    with pm.Model(coords={"a": range(2)}) as partial:
        pm.Data("m", np.zeros((2, 3)), dims=("a", None))
    container = build_container(
        partial, posterior=None, log_likelihood=None, moments={}, fit={}, fit_attrs={}, fit_state={"x": np.zeros(2)}
    )
    assert not has_group(container, "posterior")
    assert model_dims(partial, "m") == group(container, "constant_data")["m"].dims
    assert model_dims(partial, "m")[0] == "a"
