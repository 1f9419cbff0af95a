"""A result belongs to the data it was made from."""

import numpy as np
import pymc as pm
import pytest

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


def test_predicting_after_the_inputs_changed_is_refused():
    model = regression()
    idata = pmep.fit(model=model, draws=0)
    with model:
        pm.set_data({"x": np.arange(30.0)})
    with pytest.raises(ValueError, match=r"data of the model have changed.*prior variance"):
        pmep.predict(idata, model, var_names=["b"])


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
    with pytest.raises(ValueError, match="its prior variance differs"):
        pmep.fold_in(idata, bilinear(sd=0.5), new)
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
