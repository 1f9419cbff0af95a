"""A result belongs to the data it was made from."""

import arviz as az
import numpy as np
import pymc as pm
import pytest
from scipy import stats

import pymc_ep as pmep


def regression():
    rng = np.random.default_rng(2)
    x = rng.normal(size=30)
    with pm.Model() as model:
        data, other = pm.Data("x", x), pm.Data("unused", [1.0])
        b = pm.Normal("b", 0.0, 10.0)
        pm.Normal("y", b * data, 1.0, observed=x + rng.normal(size=30))
        pm.Deterministic("scaled", b * other[0])
    return model


def test_sites_are_not_looked_at_after_the_inputs_changed():
    model = regression()
    idata = pmep.fit(model=model, draws=0)
    with model:
        pm.set_data({"x": np.arange(30.0)})
    with pytest.raises(ValueError, match=r"data of the model have changed.*prior variance"):
        pmep.diagnose(idata, model)


@pytest.mark.parametrize("solver", ["observations", "coefficients"])
def test_predictions_at_new_inputs_in_closed_form(solver):
    """Of another number, under Gaussian noise: regression with a conjugate prior."""
    rng = np.random.default_rng(2)
    x, new = rng.normal(size=30), np.array([0.5, -2.0, 7.0])
    y = x + rng.normal(size=30)
    with pm.Model() as model:
        mu = pm.Deterministic("mu", pm.Normal("b", 0.0, 10.0) * pm.Data("x", x))
        pm.Normal("y", mu, 1.0, observed=pm.Data("seen", y))
        idata = pmep.fit(draws=0, solver=solver)
        pm.set_data({"x": new, "seen": np.zeros(3)})
    found = pmep.predict(idata, model, var_names=["mu", "b"])
    precision = x @ x + 0.01
    np.testing.assert_allclose(found["b_mean"], x @ y / precision, rtol=1e-9)
    np.testing.assert_allclose(found["mu_mean"], new * (x @ y) / precision, rtol=1e-9)
    np.testing.assert_allclose(found["mu_sd"], np.abs(new) / np.sqrt(precision), rtol=1e-9)
    scores = pmep.log_predictive(idata, model, {"y": np.array([0.0, 1.0, 5.0])})["y"]
    law = stats.norm(new * (x @ y) / precision, np.sqrt(1.0 + new**2 / precision))
    np.testing.assert_allclose(scores, law.logpdf([0.0, 1.0, 5.0]), rtol=1e-9)
    np.testing.assert_array_equal(model["x"].get_value(), new)
    with model:
        pm.set_data({"x": x, "seen": y})
    np.testing.assert_allclose(pmep.predict(idata, model, var_names=["mu"])["mu_mean"], x * float(found["b_mean"]))


def test_observations_that_cannot_change_with_the_inputs():
    model = regression()
    with model:
        pm.Deterministic("mu", model["b"] * model["x"])
        idata = pmep.fit(draws=0)
        pm.set_data({"x": np.array([0.5, -2.0, 7.0])})
    found = pmep.predict(idata, model, var_names=["mu", "b"])
    np.testing.assert_allclose(found["mu_mean"], np.array([0.5, -2.0, 7.0]) * float(found["b_mean"]))
    with pytest.raises(pmep.InvalidDataError, match=r"'y' has 30 values of sigma.*Make the observations a pm\.Data"):
        pmep.log_predictive(idata, model, {"y": np.array([0.0, 1.0, 5.0])})


def visits(x, group):
    """Counts of groups with coordinates, whose inputs, groups and labels are data."""
    rng = np.random.default_rng(6)
    with pm.Model(coords={"group": list("abcd"), "visit": np.arange(20)}) as model:
        x = pm.Data("x", x, dims="visit")
        index = pm.Data("index", group, dims="visit")
        seen = pm.Data("seen", rng.poisson(2.0, size=20), dims="visit")
        spread = pm.HalfNormal("spread", 1.0)
        level, slope = pm.Normal("level", 0.0, 1.0), pm.Normal("slope", 0.0, 1.0)
        effect = pm.Normal("effect", 0.0, spread, dims="group")
        eta = pm.Deterministic("eta", level + slope * x + effect[index], dims="visit")
        pm.Poisson("y", pm.math.exp(eta), observed=seen, dims="visit")
    return model


@pytest.mark.parametrize("hyper", ["optimize", "integrate"])
def test_predictions_at_new_inputs_are_those_of_a_variable_of_their_own(hyper, tmp_path):
    rng = np.random.default_rng(7)
    model = visits(rng.normal(size=20), np.repeat(np.arange(4), 5))
    with model:
        idata = pmep.fit(hyper=hyper, draws=0, progressbar=False)
        idata.to_netcdf(tmp_path / "fit.nc")
        x, group = np.array([0.3, -1.0, 2.0]), np.array([3, 0, 0])
        pm.Deterministic("other", model["level"] + model["slope"] * x + model["effect"][group])
        pm.Poisson("y_other", pm.math.exp(model["other"]), shape=3)
        before = pmep.predict(idata, var_names=["other", "eta"])
        scores = pmep.log_predictive(idata, None, {"y_other": np.array([0, 1, 9])})
        pm.set_data({"x": x, "index": group, "seen": np.zeros(3, dtype=int)}, coords={"visit": [100, 101, 102]})
        for result in (idata, az.from_netcdf(tmp_path / "fit.nc")):
            found = pmep.predict(result, var_names=["other", "eta", "effect"])
            for what in ("mean", "sd"):
                np.testing.assert_allclose(found[f"eta_{what}"], before[f"other_{what}"], rtol=1e-6)
                np.testing.assert_allclose(found[f"other_{what}"], before[f"other_{what}"], rtol=1e-6)
            assert found["eta_mean"].coords["visit"].to_numpy().tolist() == [100, 101, 102]
            again = pmep.log_predictive(result, None, {"y": np.array([0, 1, 9])})
            np.testing.assert_allclose(again["y"], scores["y_other"], rtol=1e-6)
        assert found["effect_mean"].sizes == {"group": 4}


def test_latent_variables_made_of_changed_data_are_refused():
    inputs = np.linspace(0.0, 1.0, 5)[:, None]
    with pm.Model() as model:
        X = pm.Data("X", inputs)
        f = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(1, 0.5)).prior("f", X=X)
        pm.Poisson("y", pm.math.exp(f), observed=[0, 1, 3, 2, 1])
        idata = pmep.fit(draws=0, progressbar=False)
        pm.set_data({"X": inputs + 1.0})
    # The covariance is that of before, but the function is looked at elsewhere.
    with pytest.raises(ValueError, match=r"Prior or shape of 'f\w*' depend on 'X', which has changed.*gp\.conditional"):
        pmep.predict(idata, model, var_names=["f"])


CELLS = {"rows": [0, 1, 2, 0], "cols": [1, 0, 1, 0], "offset": [2.0, 2.0, 2.0, 2.0], "y": [3, 0, 5, 1]}


def bilinear(sd=1.0, likelihood=pmep.BilinearPoisson):
    with pm.Model() as model:
        V, U = pm.Normal("V", 0, sd, shape=(3, 1)), pm.Normal("U", 0, 1, shape=(2, 1))
        rows, cols, offset, y = (pm.Data(name, values) for name, values in CELLS.items())
        likelihood("seen", V, U, rows, cols, offset=offset, observed=y)
    return model


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ({"rows": [0, 1, 2, 1]}, "cells differ"),
        ({"y": [3, 0, 5, 2]}, "cells differ"),
        ({"offset": [0.0] * 4}, "offset differs"),
        ({name: values[:2] for name, values in CELLS.items()}, "cells differ"),
    ],
    ids=["rows", "observed", "offset", "fewer"],
)
@pytest.mark.parametrize("ask", ["log_predictive", "fold_in", "recommend"])
def test_bilinear_predictions_after_the_data_changed_are_refused(ask, changed, what):
    model = bilinear()
    idata = pmep.fit("vg", model=model, draws=0, progressbar=False)
    questions = {
        "log_predictive": lambda: pmep.log_predictive(
            idata, model, {"seen": {"rows": [0], "cols": [0], "observed": [1], "offset": 0.0}}
        ),
        "fold_in": lambda: pmep.fold_in(idata, model, {"V": {"cols": [0], "observed": [1], "offset": 0.0}}),
        "recommend": lambda: pmep.recommend(idata, model, n=1, V=[0], exclude_observed=False),
    }
    before = questions[ask]()
    with model:
        pm.set_data(changed)
    with pytest.raises(ValueError, match=f"data of the model have changed since the fit .its {what}"):
        questions[ask]()
    with model:
        pm.set_data(CELLS)
    assert questions[ask]().equals(before)


def test_a_bilinear_fit_belongs_to_its_prior_and_likelihood():
    idata = pmep.fit("vg", model=bilinear(), draws=0, progressbar=False)
    new = {"V": {"cols": [0], "observed": [1], "offset": 0.0}}
    for sd in (0.5, 1.0001):
        with pytest.raises(ValueError, match="its prior variance differs"):
            pmep.fold_in(idata, bilinear(sd=sd), new)
    bits = {**CELLS, "y": [1, 0, 1, 1]}
    with pytest.raises(ValueError, match="its cells differ"):
        pmep.fold_in(
            idata,
            bilinear(
                likelihood=lambda *args, observed, **options: pmep.BilinearBernoulli(
                    *args, observed=bits["y"], **options
                )
            ),
            new,
        )


def test_data_that_no_observation_depends_on_may_change():
    model = regression()
    idata = pmep.fit(model=model, draws=0)
    with model:
        pm.set_data({"unused": [3.0]})
    found = pmep.predict(idata, model, var_names=["scaled", "b"])
    np.testing.assert_allclose(found["scaled_mean"], 3 * found["b_mean"])


def test_moments_of_ordered_hyperparameters_are_those_of_the_draws():
    rng = np.random.default_rng(4)
    y = np.concatenate([rng.normal(-1, 1, 20), rng.normal(2, 1, 20)])
    group = np.repeat([0, 1], 20)
    with pm.Model() as model:
        c = pm.Normal("c", 0, 2, shape=2, transform=pm.distributions.transforms.ordered, initval=[-1.0, 1.0])
        u = pm.Normal("u", 0.0, 0.5, shape=40)
        pm.Normal("y", c[group] + u, 0.9, observed=y)
    idata = pmep.fit(model=model, latent=["u"], draws=2000, random_seed=1)
    draws = idata["posterior"]["c"]
    np.testing.assert_allclose(idata["posterior_mean"]["c"], draws.mean(("chain", "draw")), atol=0.02)
    np.testing.assert_allclose(idata["posterior_sd"]["c"], draws.std(("chain", "draw")), rtol=0.05)
