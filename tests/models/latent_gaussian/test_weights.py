"""Weights of observations: a distribution whose density is a power of another's, as Bambi writes `weighted(y, w)`."""

from functools import partial

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

import pymc_ep as pmep
from pymc_ep.compat import group, group_names

X = np.linspace(-1.0, 1.0, 6)
COUNTS = np.array([1, 0, 3, 2, 4, 6])
Y = np.array([0.3, -0.2, 1.0, 0.7, 1.9, 2.5])
TIMES = np.array([1, 3, 2, 1, 1, 2])


def log_density(value, rate, weights):
    return weights * pm.logp(pm.Poisson.dist(rate), value)


def fitted(rows, weights=None, by_potential=False, **options):
    with pm.Model() as model:
        level, slope = pm.Normal("level", 0.0, 1.0), pm.Normal("slope", 0.0, pm.HalfNormal("tau", 1.0))
        rate = pm.math.exp(level + slope * X[rows])
        if weights is None:
            pm.Poisson("y", rate, observed=COUNTS[rows])
        elif by_potential:
            pm.Potential("y", log_density(COUNTS[rows], rate, weights).sum())
        else:
            density = partial(log_density, weights=weights)

            def draw(rate, size):
                return pm.Poisson.dist(rate, size=size)

            pm.CustomDist("y", rate, logp=density, dist=draw, dtype="int64", observed=COUNTS[rows])
    return pmep.fit(model=model, draws=20, random_seed=1, progressbar=False, log_likelihood=True, **options)


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
    """At the mode of the scale: draws of it begin to differ where two fits differ by rounding."""
    found = fitted(np.arange(6), (np.arange(6) < 4).astype(float), hyper="optimize")
    wanted = fitted(np.arange(4), hyper="optimize")
    np.testing.assert_allclose(found["posterior_mean"]["slope"], wanted["posterior_mean"]["slope"], atol=1e-6)


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


def assert_same(found, wanted, names):
    for part in ("posterior_mean", "posterior_sd"):
        for name in names:
            np.testing.assert_allclose(found[part][name], wanted[part][name], atol=1e-6)
    np.testing.assert_allclose(found["fit"]["log_evidence"], wanted["fit"]["log_evidence"], atol=1e-6)


@pytest.mark.parametrize("weights", [TIMES, np.ones(6, dtype=int)], ids=["repeated", "once"])
def test_weights_may_stand_in_a_potential(weights):
    """As by `pm.sample`, it has neither data nor log likelihoods of its own."""
    found = fitted(np.arange(6), weights, by_potential=True)
    assert_same(found, fitted(np.repeat(np.arange(6), weights)), ["level", "slope", "tau"])
    assert "log_likelihood" not in group_names(found)
    assert "observed_data" not in group_names(found) or not group(found, "observed_data").data_vars


def weighted(write, scale=0.7, slope=lambda: pm.Normal("slope", 0.0, 1.0)):
    """A line through data with known or unknown noise; `write` adds these to the model, given weights of two."""
    with pm.Model() as model:
        x = pm.Data("x", X)
        line = pm.Deterministic("line", pm.Normal("level", 0.0, 1.0) + slope() * x)
        write(line, scale() if callable(scale) else scale)
    return model


def as_potential(line, sd):
    pm.Potential("terms", 2.0 * pm.logp(pm.Normal.dist(line, sd), Y).sum())


def twice(line, sd):
    pm.Normal("y", pt.concatenate([line, line]), sd, observed=np.tile(Y, 2))


def laplace_slope():
    return pm.Laplace("slope", 0.0, 0.5)


def noise():
    return pm.HalfNormal("sd", 1.0)


@pytest.mark.parametrize("options", [{}, {"slope": laplace_slope}, {"scale": noise}], ids=["", "laplace", "scale"])
def test_a_factor_of_the_sum_is_one_of_its_terms(options):
    hyper = {"draws": 0, "progressbar": False, "hyper": "optimize", "tol": 1e-10}
    found, wanted = (pmep.fit(model=weighted(write, **options), **hyper) for write in (as_potential, twice))
    assert_same(found, wanted, ["level", "slope"])


def test_a_penalty_on_a_field_is_an_observation_of_zero():
    found = []
    for by_potential in (True, False):
        with pm.Model() as model:
            u = pmep.SparseField("u", operator=np.eye(3), potential=pm.Laplace.dist(0, 0.7))
            pm.Normal("y", u, 0.5, observed=Y[:3])
            if by_potential:
                pm.Potential("sums", -(u.sum() ** 2) + 0.5 * np.log(1 / np.pi))
            else:
                pm.Normal("sums", u.sum(), np.sqrt(0.5), observed=0.0)
        found.append(pmep.fit(model=model, draws=0, progressbar=False))
    assert_same(*found, ["u"])


def test_a_potential_with_two_modes_beside_a_laplace_variable():
    """It is fitted with that variable as a hyperparameter; the sparse linear form has one mode."""

    def squared(line, sd):
        pm.Potential("terms", pm.logp(pm.Normal.dist(line**2, sd), 1.0).sum())

    with pytest.raises(pmep.UnsupportedModelError, match="'terms' is the same for a predictor and its negative"):
        pmep.explain(weighted(squared, slope=laplace_slope), latent=["level", "slope"])


def test_potentials_beside_observations_that_follow_new_data():
    def both(line, sd):
        pm.Normal("y", line, sd, observed=Y)
        pm.Potential("terms", pm.logp(pm.Normal.dist(line, sd), pm.Data("given", Y)))

    model = weighted(both)
    idata = pmep.fit(model=model, draws=20, random_seed=1, progressbar=False, log_likelihood=True)
    assert_same(idata, pmep.fit(model=weighted(twice), draws=0, progressbar=False), ["level", "slope"])
    assert set(idata["log_likelihood"].data_vars) == {"y"}
    assert "potential        terms: 6 terms, site potential" in pmep.explain(model)
    with model:
        pm.set_data({"x": [0.0]})
        with pytest.raises(pmep.InvalidDataError, match=r"meet in 'terms'.*'x' has shape \(1,\)"):
            pmep.predict(idata, model, var_names=["line"])
        pm.set_data({"given": [0.0]})
        line = pmep.predict(idata, model, var_names=["line"])
    np.testing.assert_allclose(line["line_mean"], [idata["posterior_mean"]["level"]], rtol=1e-10)
    np.testing.assert_allclose(line["line_sd"], [idata["posterior_sd"]["level"]], rtol=1e-10)


def test_what_a_potential_has_none_of_is_refused():
    model = weighted(as_potential)
    idata = pmep.fit(model=model, draws=0, progressbar=False)
    with pytest.raises(ValueError, match="no cavities of observed variables"):
        pmep.loo(idata, model)
    with pytest.raises(ValueError, match="terms of potentials have no scores"):
        pmep.loo_pit(idata, model)
    with pytest.raises(pmep.UnsupportedModelError, match="'terms' is no likelihood with a site"):
        pmep.log_predictive(idata, model, {"terms": Y})
    with pytest.raises(pmep.UnsupportedModelError, match="'terms' is no likelihood with a site"):
        pmep.predict(idata, model, var_names=["terms"], response=True)


def test_a_constraint_has_the_moments_of_a_truncated_normal():
    with pm.Model() as model:
        f = pm.Normal("f", 0.0, 1.0)
        pm.Potential("positive", pt.switch(f > 0, 0.0, -np.inf))
    idata = pmep.fit(model=model, draws=0, progressbar=False)
    np.testing.assert_allclose(idata["posterior_mean"]["f"], np.sqrt(2 / np.pi), rtol=1e-6)
    np.testing.assert_allclose(idata["posterior_sd"]["f"], np.sqrt(1 - 2 / np.pi), rtol=1e-6)
    np.testing.assert_allclose(idata["fit"]["log_evidence"], np.log(0.5), atol=1e-6)


def test_the_marginal_model_has_no_potential_of_latent_variables():
    model = weighted(as_potential, scale=noise)
    marginal = pmep.marginalize(model)
    assert [p.name for p in marginal.potentials] == ["ep_log_evidence"]
