"""Results that are not as a fit returned them are refused in a sentence that names the part."""

import re
from itertools import cycle

import arviz as az
import numpy as np
import pymc as pm
import pytest
import xarray as xr

import pymc_ep as pmep
from pymc_ep.compat import group, group_names, make_container

OPTIONS = {"draws": 5, "random_seed": 0, "progressbar": False}


def counted():
    with pm.Model() as model:
        pm.Poisson("y", pm.math.exp(pm.Normal("f", 0, pm.HalfNormal("s", 1), shape=3)), observed=[0, 2, 1])
    return model


def field():
    with pm.Model() as model:
        u = pmep.SparseField("f", operator=np.eye(3), potential=pm.Laplace.dist(0, 1), shape=3)
        pm.Normal("y", u, 0.5, observed=[0.0, 2.0, 1.0])
    return model


def bilinear():
    with pm.Model() as model:
        V, U = pm.Normal("V", 0, 1, shape=(3, 1)), pm.Normal("U", 0, 1, shape=(2, 1))
        pmep.BilinearPoisson("y", V, U, [0, 1, 2], [0, 1, 0], observed=[0, 2, 1])
    return model


def predict(idata, model):
    return pmep.predict(idata, model, var_names=["f"])


CASES = {
    "ep": (counted, "shift", predict),
    "dsb": (field, "precision", predict),
    "vg": (bilinear, "left_mean", lambda idata, model: pmep.recommend(idata, model, V=[0], n=1)),
}


@pytest.fixture(scope="module")
def fits():
    models = {method: build() for method, (build, *_) in CASES.items()}
    return {method: (model, pmep.fit(method, model=model, **OPTIONS)) for method, model in models.items()}


def altered(idata, change):
    groups = {name: group(idata, name).copy(deep=True) for name in group_names(idata)}
    change(groups)
    return make_container(groups)


def uses(method, model, idata):
    return {
        "predict": lambda: CASES[method][2](idata, model),
        "diagnose": lambda: pmep.diagnose(idata, model),
        "start": lambda: pmep.fit(method, model=model, start=idata, **OPTIONS),
    }


@pytest.mark.parametrize("use", ["predict", "diagnose", "start"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -1e308])
@pytest.mark.parametrize("method", CASES)
def test_numbers_that_no_fit_has(method, value, use, fits):
    (model, idata), name = fits[method], CASES[method][1]

    def change(groups):
        groups["fit_state"][name].to_numpy().flat[0] = value

    with pytest.raises(
        ValueError, match=f"array '{name}' in the group 'fit_state' of the result has the value {re.escape(str(value))}"
    ):
        uses(method, model, altered(idata, change))[use]()


@pytest.mark.parametrize("use", ["predict", "diagnose", "start"])
@pytest.mark.parametrize("method", CASES)
def test_an_array_that_is_missing(method, use, fits):
    model, idata = fits[method]

    def change(groups):
        groups["fit_state"] = groups["fit_state"].drop_vars("theta")

    with pytest.raises(ValueError, match="'fit_state' of the result has no array 'theta'"):
        uses(method, model, altered(idata, change))[use]()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("{latent", "'settings' of the result's group 'fit' is no JSON object"),
        ("[1]", "'settings' of the result's group 'fit' is no JSON object"),
        ("{}", "'fit' of the result has no setting 'latent'"),
        (None, "'fit' of the result has no setting 'latent'"),
    ],
)
def test_settings_that_cannot_be_read(settings, message, fits):
    model, idata = fits["ep"]

    def change(groups):
        groups["fit"].attrs.pop("settings")
        groups["fit"].attrs |= {} if settings is None else {"settings": settings}

    with pytest.raises(ValueError, match=message):
        predict(altered(idata, change), model)


@pytest.mark.parametrize("use", ["predict", "diagnose"])
def test_a_result_without_a_method(use, fits):
    model, idata = fits["ep"]

    def change(groups):
        groups["fit"].attrs.pop("method")

    with pytest.raises(ValueError, match="'fit' of the result has no attribute 'method'"):
        uses("ep", model, altered(idata, change))[use]()


CHANGES = {
    "scaled": lambda x: 3 * x + 1,
    "shorter": lambda x: x.ravel()[1:],
    "longer": lambda x: np.append(x, x),
    "flat": lambda x: x.ravel()[None],
    "other type": lambda x: x.astype(np.float32 if x.dtype == np.float64 else np.float64),
    "words": lambda x: x.astype(str),
    "permuted": lambda x: np.roll(x.ravel(), 1).reshape(x.shape),
    "missing": None,
}


def replaced(idata, where, name, change):
    def alter(groups):
        values = groups[where][name].to_numpy()
        groups[where] = groups[where].drop_vars(name)
        if change is not None:
            groups[where][name] = [f"{name}_altered_{k}" for k in range(change(values).ndim)], change(values)

    return altered(idata, alter)


@pytest.mark.parametrize("method", CASES)
def test_no_array_of_the_state_is_read_unless_it_is_as_the_fit_wrote_it(method, fits):
    """Every array, and in turn every change that changes it."""
    model, idata = fits[method]
    kinds = cycle(CHANGES.values())
    for name, array in group(idata, "fit_state").data_vars.items():
        values = array.to_numpy()
        change = next(kinds)
        while change is not None and np.array_equal(change(values), values) and change(values).dtype == values.dtype:
            change = next(kinds)
        spoilt = replaced(idata, "fit_state", name, change)
        for use in uses(method, model, spoilt).values():
            with pytest.raises(pmep.InvalidDataError, match=f"'{name}' in the group 'fit_state'|no array '{name}'"):
                use()


READERS = {
    "loo": lambda idata, model: pmep.loo(idata),
    "start_point": lambda idata, model: pmep.start_point(idata),
    "convergence": lambda idata, model: pmep.plots.plot_convergence(idata),
    "diagnose": lambda idata, model: pmep.diagnose(idata, model),
    "forest": lambda idata, model: pmep.plots.plot_forest(idata, var_names=["f"]),
}


@pytest.mark.parametrize(
    ("where", "name", "change", "reader"),
    [
        ("fit", "y_loo", "scaled", "loo"),
        ("fit", "hyper_mode_s", "missing", "start_point"),
        ("fit", "objective", "shorter", "convergence"),
        ("fit", "converged", "longer", "convergence"),
        ("fit", "converged", "missing", "diagnose"),
        ("fit", "log_evidence", "missing", "diagnose"),
        ("fit", "log_evidence", "scaled", "diagnose"),
        ("posterior_mean", "f", "missing", "start_point"),
        ("posterior_mean", "f", "words", "start_point"),
        ("posterior_sd", "f", "words", "forest"),
    ],
)
def test_what_readers_take_from_other_groups_is_named_too(where, name, change, reader, fits):
    model, idata = fits["ep"]
    with pytest.raises(pmep.InvalidDataError, match=f"'{name}' in the group '{where}'|'{where}' .*no array '{name}'"):
        READERS[reader](replaced(idata, where, name, CHANGES[change]), model)


def test_a_mean_where_no_chain_can_start(fits):
    spoilt = replaced(fits["ep"][1], "posterior_mean", "f", lambda x: np.where(np.arange(3) == 1, np.nan, x))
    with pytest.raises(pmep.InvalidDataError, match="value nan at index 1 of 'f', where no chain can start"):
        pmep.start_point(spoilt)


@pytest.mark.parametrize(("name", "reader"), [("status", "diagnose"), ("objective_is", "convergence")])
def test_an_attribute_that_is_missing(name, reader, fits):
    model, idata = fits["ep"]
    with pytest.raises(pmep.InvalidDataError, match=f"'fit' of the result has no attribute '{name}'"):
        READERS[reader](altered(idata, lambda groups: groups["fit"].attrs.pop(name)), model)


def test_the_method_of_another_fit(fits):
    model, idata = fits["ep"]
    spoilt = altered(idata, lambda groups: groups["fit"].attrs.update(method="dsb"))
    with pytest.raises(pmep.InvalidDataError, match="attribute 'method' in the group 'fit' of the result has changed"):
        predict(spoilt, model)


def test_fewer_draws_selected_rows_and_files_are_still_read(fits, tmp_path):
    model, _ = fits["ep"]
    idata = pmep.fit("ep", model=model, hyper="optimize", log_likelihood=True, **OPTIONS)

    def select(groups):
        for name in ("posterior", "fit"):
            groups[name] = groups[name].isel(draw=slice(None, None, 2))
        for name in ("posterior_mean", "posterior_sd"):
            groups[name] = groups[name].isel(f_dim_0=[2, 0])

    selected = altered(idata, select)
    selected.to_netcdf(tmp_path / "selected.nc")
    for one in (selected, az.from_netcdf(tmp_path / "selected.nc")):
        assert pmep.diagnose(one, model)["converged"]
        xr.testing.assert_equal(predict(one, model), predict(idata, model))
        np.testing.assert_array_equal(pmep.start_point(one)["f"], pmep.start_point(idata)["f"][[2, 0]])
        assert pmep.plots.plot_forest(one, var_names=["f"]) is not None
