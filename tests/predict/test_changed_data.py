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
    np.testing.assert_allclose(idata["fit"]["c_mean"], draws.mean(("chain", "draw")), atol=0.02)
    np.testing.assert_allclose(idata["fit"]["c_sd"], draws.std(("chain", "draw")), rtol=0.05)
