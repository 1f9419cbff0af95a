"""Common mistakes of users: each is named, with the variable and the cure."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op

import pymc_ep as pmep
from pymc_ep.results import check_dims

N = 6
X = np.linspace(-1.0, 1.0, N)
Y = np.array([0.3, -0.4, 1.0, 1.3, 0.2, 1.9])
GROUP = np.array([0, 0, 1, 1, 2, 2])
QUIET = {"draws": 0, "progressbar": False}


def line(x=X):
    return pm.Normal("a", 0.0, 2.0) + pm.Normal("b", 0.0, 2.0) * x


class BlackBox(Op):
    """A function without a gradient."""

    def make_node(self, x):
        return Apply(self, [pt.as_tensor(x)], [pt.dvector()])

    def perform(self, node, inputs, outputs):
        outputs[0][0] = np.sin(inputs[0] * X)


def black_box():
    pm.Normal("y", BlackBox()(pm.Normal("a")), 1.0, observed=Y)


def complex_covariate():
    pm.Normal("y", line(np.fft.fft(X)), 1.0, observed=Y)


def initial_value():
    pm.Normal("y", line(), pm.HalfNormal("s", initval=-1.0), observed=Y)


def normal_noise():
    pm.Normal("y", line(), pm.Normal("s"), observed=Y)


def cut_points():
    pm.OrderedLogistic("y", line(), pm.Normal("cuts", shape=2), observed=GROUP)


def negative_scale_of_categories():
    pm.OrderedProbit("y", line(), np.array([-1.0, 1.0]), sigma=-1.0, observed=GROUP)


def one_negative_scale():
    pm.Normal("y", pm.Normal("beta", 0.0, np.array([1.0, 2.0, -1.0]), shape=3)[GROUP], 1.0, observed=Y)


def negative_precision():
    pm.Normal("y", pm.Normal("a", 0.0, tau=-1.0) * X, 1.0, observed=Y)


def lkj():
    chol, _, _ = pm.LKJCholeskyCov("chol", n=2, eta=0.0, sd_dist=pm.Exponential.dist(1.0))
    pm.Normal("y", pm.MvNormal("u", np.zeros(2), chol=chol, shape=(3, 2))[GROUP, 0], 1.0, observed=Y)


@pytest.mark.parametrize(
    ("write", "error", "message"),
    [
        (black_box, pmep.UnsupportedModelError, r"'y'.*no gradient \(.*BlackBox.*pm\.Slice"),
        (complex_covariate, pmep.UnsupportedModelError, r"'y' has complex parameters.*real"),
        (initial_value, pmep.InvalidDataError, r"initial value of 's', initval=-1\.0, lies outside"),
        (normal_noise, pmep.InvalidDataError, r"'y'.*sigma = 0\.0.*from 's' = 0\.0: start elsewhere.*HalfNormal"),
        (
            cut_points,
            pmep.InvalidDataError,
            r"'y'.*increase\. It follows from 'cuts' = \[0\. 0\.\].*\.ordered",
        ),
        (negative_scale_of_categories, pmep.InvalidDataError, r"cutpoints of 'y' increase.*sigma.*negative"),
        (one_negative_scale, pmep.InvalidDataError, r"'beta', normal.*sigma > 0 does not hold for -1\.0 at index 2\."),
        (negative_precision, pmep.InvalidDataError, r"'a', normal.*sigma > 0.*for -1\.0, which follows from.*tau"),
        (lkj, pmep.InvalidDataError, r"prior of 'chol'.*eta > 0 does not hold for 0\.0"),
    ],
)
def test_what_is_wrong_with_the_model(write, error, message):
    with pm.Model() as model:
        write()
    with pytest.raises(error, match=message):
        pmep.fit(model=model, **QUIET)


def test_labels_of_several_parts_are_refused_before_the_fit():
    with pm.Model(coords={"c": [("a", 1), ("a", 3), ("b", 2)]}) as model:
        pm.Normal("u", dims="c")
    with pytest.raises(pmep.UnsupportedModelError, match=r"dim 'c' has the label \('a', 1\).*strings, such as 'a 1'"):
        check_dims(model)


@pytest.fixture(scope="module")
def fitted():
    """A model of groups at inputs, and its fit."""
    with pm.Model() as model:
        x, g = pm.Data("x", X), pm.Data("g", GROUP)
        eta = pm.Deterministic("eta", line(x) + pm.Normal("u", 0.0, 1.0, shape=3)[g])
        pm.Normal("y", eta, 1.0, observed=Y)
    return model, pmep.fit(model=model, **QUIET)


@pytest.fixture
def changed(fitted):
    """The same, with other data until the end of the test."""
    yield fitted
    pm.set_data({"x": X, "g": GROUP}, model=fitted[0])


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"x": X[:4]}, r"\(4,\) and \(6,\) meet in 'eta'.*'g' has shape \(6,\), 'x' has shape \(4,\); pm\.set_data"),
        (
            {"x": X[:2], "g": [0, 3]},
            r"indexes 'u' out of range: index 3 is out of .*model that has it from the start",
        ),
        (
            {"x": [np.nan, 1.0], "g": [0, 1]},
            r"variance of 'eta' is nan at index 0\. Check design.*of pm\.set_data",
        ),
    ],
)
def test_predictions_at_what_is_no_input(changed, data, message):
    model, idata = changed
    pm.set_data({name: np.array(values, dtype=model[name].dtype) for name, values in data.items()}, model=model)
    with pytest.raises((pmep.InvalidDataError, pmep.NumericalError), match=message):
        pmep.predict(idata, model, var_names="eta")


def test_an_index_out_of_range_after_a_fit(changed):
    """As at the first fit."""
    model, _ = changed
    pm.set_data({"g": np.array([0, 0, 1, 1, 2, 7], dtype=model["g"].dtype)}, model=model)
    with pytest.raises(pmep.InvalidDataError, match="indexes 'u' out of range: index 7"):
        pmep.fit(model=model, **QUIET)


def test_inputs_in_the_place_of_the_model(fitted):
    model, idata = fitted
    with pytest.raises(TypeError, match=r"type ndarray.*pm\.set_data first"):
        pmep.predict(idata, X)
    with pytest.raises(pmep.InvalidDataError, match=r"shape \(6,\).*shape \(2,\).*by pm\.set_data"):
        pmep.log_predictive(idata, model, {"y": Y[:2]})


def test_the_result_of_another_model(fitted):
    _, idata = fitted
    with pm.Model() as other:
        pm.Normal("y", pm.Normal("c", shape=N), 1.0, observed=Y)
    with pm.Model() as wider:
        x, g = pm.Data("x", X), pm.Data("g", GROUP)
        eta = pm.Deterministic("eta", line(x) + pm.Normal("u", 0.0, 3.0, shape=3)[g])
        pm.Normal("y", eta, 1.0, observed=Y)
    for call in (pmep.diagnose, lambda idata, model: pmep.predict(idata, model, response=True)):
        with pytest.raises(ValueError, match=r"another model: it has 'a', 'b', 'u', and this model has 'c' instead"):
            call(idata, other)
        with pytest.raises(ValueError, match=r"another model: its prior variance differs, and its shared data do not"):
            call(idata, wider)


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((1000,), {}, r"no int; give draws by keyword: fit\(draws=1000\)"),
        ((), {"target_accept": 0.9}, r"'target_accept'.*hyper='sample'.*sample_kwargs={'target_accept'"),
        ((), {"tune": 500}, r"'tune'.*argument of pm\.sample.*sample_kwargs"),
        ((), {"nuts_sampler": "numpyro"}, r"'nuts_sampler'.*argument of pm\.sample"),
        ((), {"idata_kwargs": {}}, r"'idata_kwargs'.*by log_likelihood=True"),
    ],
)
def test_calls_like_those_of_sample(fitted, arguments, options, message):
    with pytest.raises((TypeError, ValueError), match=message):
        pmep.fit(*arguments, model=fitted[0], progressbar=False, **options)


def test_missing_labels_are_told_as_pandas_codes_them():
    for index in (np.array([0, 0, -1, 1, 2, 2]), None):
        with pm.Model() as model:
            group = pm.Data("group", np.array([0, 0, -1, 1, 2, 2])) if index is None else index
            pm.Normal("y", pm.Normal("u", shape=3)[group], 1.0, observed=Y)
        with pytest.warns(UserWarning, match=r"'y' takes the last value of 'u' at index 2, where its index is -1"):
            pmep.fit(model=model, **QUIET)
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("u", shape=3)[[-1, -2, -3, -1, -2, -3]], 1.0, observed=Y)
    pmep.fit(model=model, **QUIET)
