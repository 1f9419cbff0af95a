"""Weights of observations: a distribution whose density is a power of another's, as Bambi writes `weighted(y, w)`."""

from functools import partial

import numpy as np
import pymc as pm
import pytest

import pymc_ep as pmep

X = np.linspace(-1.0, 1.0, 6)
COUNTS = np.array([1, 0, 3, 2, 4, 6])
TIMES = np.array([1, 3, 2, 1, 1, 2])


def log_density(value, rate, weights):
    return weights * pm.logp(pm.Poisson.dist(rate), value)


def fitted(rows, weights=None):
    with pm.Model() as model:
        level, slope = pm.Normal("level", 0.0, 1.0), pm.Normal("slope", 0.0, pm.HalfNormal("tau", 1.0))
        rate = pm.math.exp(level + slope * X[rows])
        if weights is None:
            pm.Poisson("y", rate, observed=COUNTS[rows])
        else:
            density = partial(log_density, weights=weights)

            def draw(rate, size):
                return pm.Poisson.dist(rate, size=size)

            pm.CustomDist("y", rate, logp=density, dist=draw, dtype="int64", observed=COUNTS[rows])
    return pmep.fit(model=model, draws=20, random_seed=1, progressbar=False, log_likelihood=True)


def test_whole_weights_are_repetitions():
    found = fitted(np.arange(6), TIMES)
    wanted = fitted(np.repeat(np.arange(6), TIMES))
    np.testing.assert_allclose(found["fit"]["log_evidence"], wanted["fit"]["log_evidence"], atol=1e-6)
    for name in ("level", "slope", "tau"):
        np.testing.assert_allclose(found["posterior_mean"][name], wanted["posterior_mean"][name], atol=1e-4)
        np.testing.assert_allclose(found["posterior_sd"][name], wanted["posterior_sd"][name], rtol=1e-4)
    draws = found["posterior"]
    rates = np.exp(draws["level"].to_numpy()[..., None] + draws["slope"].to_numpy()[..., None] * X)
    plain = pm.logp(pm.Poisson.dist(rates), COUNTS).eval()
    np.testing.assert_allclose(found["log_likelihood"]["y"], TIMES * plain, rtol=1e-6)


def test_fractions_of_weights_are_powers():
    """Half of everything, of data that came twice, is the data once."""
    found = fitted(np.repeat(np.arange(6), 2), np.full(12, 0.5))
    wanted = fitted(np.arange(6))
    np.testing.assert_allclose(found["fit"]["log_evidence"], wanted["fit"]["log_evidence"], atol=1e-3)
    np.testing.assert_allclose(found["posterior_mean"]["slope"], wanted["posterior_mean"]["slope"], atol=5e-3)


def test_weights_of_zero_leave_out():
    found = fitted(np.arange(6), (np.arange(6) < 4).astype(float))
    wanted = fitted(np.arange(4))
    np.testing.assert_allclose(found["posterior_mean"]["slope"], wanted["posterior_mean"]["slope"], atol=1e-4)


def test_weights_without_a_distribution_to_draw_from():
    """The density is the same, with or without ``dist=``."""
    found = []
    for more in ({}, {"dist": lambda rate, size: pm.Poisson.dist(rate, size=size)}):
        with pm.Model():
            rate = pm.math.exp(pm.Normal("level", 0.0, 1.0) + pm.Normal("slope", 0.0, 1.0) * X)
            density = partial(log_density, weights=TIMES)
            pm.CustomDist("y", rate, logp=density, dtype="int64", observed=COUNTS, **more)
            found.append(pmep.fit(draws=0, progressbar=False))
    np.testing.assert_allclose(*(one["fit"]["log_evidence"] for one in found), rtol=1e-12)
    np.testing.assert_allclose(*(one["posterior_mean"]["slope"] for one in found), rtol=1e-10)


def test_a_density_that_mixes_observations_is_refused():
    with pm.Model() as model:
        level = pm.Normal("level", 0.0, 1.0)

        def mixed(value, mu):
            return pm.logp(pm.Normal.dist(mu, 1.0), value) * value.sum()

        pm.CustomDist("y", level * X, logp=mixed, dist=lambda mu, size: pm.Normal.dist(mu, 1.0), observed=X + 1.0)
    assert pmep.fit(model=model, draws=0, progressbar=False)["fit"]["converged"], "a constant of the data"
    with pm.Model() as model:
        level = pm.Normal("level", 0.0, 1.0, shape=6)

        def mixed(value, mu):
            return pm.logp(pm.Normal.dist(mu, 1.0), value) * mu.sum()

        pm.CustomDist("y", level, logp=mixed, dist=lambda mu, size: pm.Normal.dist(mu, 1.0), observed=X)
    with pytest.raises(pmep.UnsupportedModelError, match=r"'y'.*not elementwise"):
        pmep.fit(model=model, progressbar=False)


def test_new_observations_have_the_density_of_their_own():
    """Under weights of one: that of the distribution; and none where the density mixes observations."""
    new = COUNTS + 1

    def whole(value, rate):
        return pm.logp(pm.Poisson.dist(rate), value) + 0.0 * value.sum()

    found = []
    for density in (partial(log_density, weights=np.ones(6)), None, whole):
        with pm.Model() as model:
            rate = pm.math.exp(pm.Normal("level", 0.0, 1.0) + X)
            if density is None:
                pm.Poisson("y", rate, observed=COUNTS)
            else:
                draw = lambda rate, size: pm.Poisson.dist(rate, size=size)  # noqa: E731
                pm.CustomDist("y", rate, logp=density, dist=draw, dtype="int64", observed=COUNTS)
        idata = pmep.fit(model=model, draws=0, progressbar=False)
        if density is whole:
            with pytest.raises(
                pmep.UnsupportedModelError, match="'y' has a density of its own that mixes observations"
            ):
                pmep.log_predictive(idata, model, {"y": new})
        else:
            found.append(pmep.log_predictive(idata, model, {"y": new})["y"].to_numpy())
    np.testing.assert_allclose(found[0], found[1], atol=1e-6)
