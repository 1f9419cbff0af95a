"""Results that are not as a fit returned them are refused in a sentence that names the part."""

import re

import numpy as np
import pymc as pm
import pytest

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
