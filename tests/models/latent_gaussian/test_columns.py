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
