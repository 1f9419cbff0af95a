"""Initial values of hyperparameters against PyMC's initial point."""

import numpy as np
import pymc as pm
import pytest

from pymc_ep.graphs.hyperparameters import initial_values


def test_values_are_those_of_the_initial_point():
    with pm.Model() as model:
        level = pm.Gamma("level", 2.0, 1.0)
        share = pm.Beta("share", level, 2.0, shape=3)
        given = pm.HalfNormal("given", initval=np.array([0.3, 4.0]), shape=2)
        pm.Normal("latent", 0, level, shape=(4, 2))
    expected = model.initial_point()
    values = [model.rvs_to_values[rv] for rv in (given, share)]
    for value, found in zip(values, initial_values(model, values)):
        np.testing.assert_allclose(found, expected[value.name], rtol=1e-12)
    (found,) = initial_values(model, values[:1], {given: np.array([1.0, 2.0])})
    np.testing.assert_allclose(found, np.log([1.0, 2.0]), atol=1e-12)


def test_values_that_are_drawn_follow_the_seed():
    with pm.Model() as model:
        x = pm.Normal("x", initval="prior")
    values = [model.rvs_to_values[x]]
    one, again, other = (float(initial_values(model, values, random_seed=k)[0]) for k in (1, 1, 2))
    assert one == again != other


def test_values_of_other_variables_are_not_formed():
    """Those of a latent variable would not fit into memory."""
    with pm.Model() as model:
        scale = pm.HalfNormal("scale")
        pm.Normal("latent", 0, scale, shape=(10**8, 10**6))
    (found,) = initial_values(model, [model.rvs_to_values[scale]])
    assert float(found) == pytest.approx(0.0)
