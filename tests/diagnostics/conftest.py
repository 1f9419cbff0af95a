"""Small fits that several tests of the diagnostics share."""

import numpy as np
import pymc as pm
import pytest

import pymc_ep as pmep

N = 9
X = np.linspace(0.0, 3.0, N)
KERNEL = np.exp(-0.5 * np.subtract.outer(X, X) ** 2) + 1e-6 * np.eye(N)
REALS = np.array([0.4, 0.1, -0.6, 0.9, 1.4, 0.3, -0.2, 0.8, 2.9])
COUNTS = np.array([2, 0, 1, 8, 13, 3, 0, 1, 2])
NOISE = 0.5


def gaussian_model():
    with pm.Model(coords={"x": X}) as model:
        f = pm.MvNormal("f", np.full(N, 0.3), KERNEL, dims="x")
        pm.Normal("y", f, NOISE, observed=REALS, dims="x")
    return model


def poisson_model():
    with pm.Model(coords={"x": X}) as model:
        f = pm.MvNormal("f", np.full(N, 0.3), KERNEL, dims="x")
        pm.Poisson("y", pm.math.exp(f), observed=COUNTS, dims="x")
    return model


@pytest.fixture(scope="session")
def gaussian():
    model = gaussian_model()
    return model, pmep.fit(model=model, draws=250, log_likelihood=True, random_seed=1, progressbar=False)


@pytest.fixture(scope="session")
def poisson():
    model = poisson_model()
    return model, pmep.fit(model=model, draws=1000, log_likelihood=True, random_seed=2, progressbar=False)
