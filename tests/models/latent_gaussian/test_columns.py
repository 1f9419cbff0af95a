"""Columns of a latent matrix taken by lists, beside the same model that takes them by slices."""

import numpy as np
import pymc as pm
import pytest

import pymc_ep as pmep

X = np.array([-1.0, 0.0, 1.0, 2.0])
RNG = np.random.default_rng(6)
Y = RNG.normal(size=(6, 1)) + RNG.normal(0.5, 0.3, size=(6, 1)) * X + RNG.normal(0, 0.2, size=(6, 4))
COVARIANCE = np.array([[1.0, 0.3, 0.1], [0.3, 0.5, 0.0], [0.1, 0.0, 0.7]])
WAYS = {
    "one": lambda b: b[:, [0]] + b[:, [1]] * X,
    "last": lambda b: b[:, [-2]] * X + b[:, [-3]],
    "two": lambda b: b[:, [0, 1]] @ np.stack([np.ones(4), X]),
}


def fitted(predictor):
    with pm.Model() as model:
        b = pm.MvNormal("b", np.zeros(3), COVARIANCE, shape=(6, 3))
        pm.Normal("y", predictor(b), 0.2, observed=Y)
    return pmep.fit(model=model, draws=0, progressbar=False)


@pytest.mark.parametrize("way", WAYS)
def test_columns_by_lists(way):
    found, expected = fitted(WAYS[way]), fitted(lambda b: b[:, 0:1] + b[:, 1:2] * X)
    np.testing.assert_allclose(found["posterior_mean"]["b"], expected["posterior_mean"]["b"], atol=1e-10)
    np.testing.assert_allclose(found["fit"]["log_evidence"], expected["fit"]["log_evidence"], atol=1e-9)


def test_columns_of_one_sum_in_two_likelihoods():
    """PyTensor 3 took such columns, at zero noise, for arrays of one value."""
    x, group = np.linspace(-1.0, 1.0, 8), np.arange(8) % 3
    counts = RNG.poisson(1.0, 8)

    def outcomes(first, second):
        pm.Normal("y", first, 0.5, observed=x)
        pm.Poisson("k", pm.math.exp(second), observed=counts)

    with pm.Model() as by_columns:
        effect = pm.Normal("effect", 0.0, 1.0, shape=(3, 2))
        eta = pm.Normal("level", 0.0, 1.0, shape=2) + x[:, None] * pm.Normal("slope", 0.0, 1.0, shape=2) + effect[group]
        outcomes(eta[:, 0], eta[:, 1])
    with pm.Model() as apart:
        of_each = []
        for k in range(2):
            level, slope = pm.Normal(f"level_{k}", 0.0, 1.0), pm.Normal(f"slope_{k}", 0.0, 1.0)
            of_each.append(level + x * slope + pm.Normal(f"effect_{k}", 0.0, 1.0, shape=3)[group])
        outcomes(*of_each)
    found, expected = (pmep.fit(model=model, draws=0, progressbar=False) for model in (by_columns, apart))
    np.testing.assert_allclose(found["fit"]["log_evidence"], expected["fit"]["log_evidence"], atol=1e-8)
    np.testing.assert_allclose(found["posterior_mean"]["slope"][1], expected["posterior_mean"]["slope_1"], atol=1e-8)
