"""Designs that are formed once: as the graph gives them, at every value of the hyperparameters and for new data."""

import numpy as np
import pymc as pm
import pytest

import pymc_ep as pmep
from pymc_ep.forms import compiled_form
from pymc_ep.models.latent_gaussian import constant_design as designs
from pymc_ep.numerics.gaussian.coefficient_space import FactorPrior
from pymc_ep.numerics.gaussian.sparse_coefficient_space import SparseFactorPrior

N, GROUPS = 90, 12


def grouped(group, x):
    with pm.Model() as model:
        group, x = pm.Data("group", group), pm.Data("x", x)
        mu, tau = pm.Normal("mu", 0.0, 2.0), pm.HalfNormal("tau", 1.0)
        level = pm.Normal("level", mu, tau, shape=GROUPS)
        slope = pm.Normal("slope", 0.0, [0.5, 1.5], shape=2)
        eta = level[group] + slope[0] * x + slope[1] * x**2
        pm.Poisson("y", pm.math.exp(eta), observed=np.arange(N) % 4)
    return model


@pytest.fixture
def data():
    rng = np.random.default_rng(0)
    return rng.integers(GROUPS, size=N), rng.normal(size=N)


def covariance(group, x, tau):
    design = np.column_stack([x, x**2]) * [0.5, 1.5]
    return 4.0 + tau**2 * (group[:, None] == group) + design @ design.T


@pytest.mark.parametrize("sparse", [False, True])
def test_prior_is_that_of_the_present_data(data, sparse, monkeypatch):
    if sparse:
        monkeypatch.setattr(designs, "_MAX_DENSITY", 0.5)
        monkeypatch.setattr(designs, "_MIN_PRODUCTS", 0.0)
    model = grouped(*data)
    form = compiled_form(model)
    form.solve_in("coefficients")
    for tau in (0.7, 1.9):
        prior = form.prior(np.array([np.log(tau)]))
        assert isinstance(prior.gaussian, SparseFactorPrior if sparse else FactorPrior)
        np.testing.assert_allclose(prior.gaussian.covariance_matrix(), covariance(*data, tau), rtol=1e-12)
    group, x = data[0][::-1].copy(), data[1] + 0.3
    with model:
        pm.set_data({"group": group, "x": x})
    prior = compiled_form(model).prior(np.array([np.log(0.7)]))
    np.testing.assert_allclose(prior.gaussian.covariance_matrix(), covariance(group, x, 0.7), rtol=1e-12)


def test_all_ways_to_hold_the_design_give_one_fit(data, monkeypatch):
    fits = {}
    for name, settings in {
        "dense": {},
        "sparse": {"_MAX_DENSITY": 0.5, "_MIN_PRODUCTS": 0.0},
        "not kept": {"_MAX_STORED": 0},
        "in parts": {"_MAX_DENSITY": 0.5, "_MIN_PRODUCTS": 0.0, "CHUNK": 5 * N},
    }.items():
        with monkeypatch.context() as context:
            for setting, value in settings.items():
                context.setattr(designs, setting, value)
            idata = pmep.fit(model=grouped(*data), draws=0, solver="coefficients")
        fits[name] = idata
    for found in fits.values():
        assert bool(found["fit"]["converged"])
        np.testing.assert_allclose(found["fit"]["log_evidence"], fits["not kept"]["fit"]["log_evidence"], atol=1e-8)
        np.testing.assert_allclose(found["fit"]["hyper_mode_tau"], fits["not kept"]["fit"]["hyper_mode_tau"], atol=1e-7)
        np.testing.assert_allclose(
            found["posterior_mean"]["level"], fits["not kept"]["posterior_mean"]["level"], atol=1e-7
        )
        np.testing.assert_allclose(found["posterior_sd"]["level"], fits["not kept"]["posterior_sd"]["level"], atol=1e-7)


@pytest.mark.parametrize("sparse", [False, True])
def test_a_map_with_hyperparameters_in_it_is_not_kept(data, sparse, monkeypatch):
    """At zero all entries vanish, though not their derivatives."""
    if sparse:
        monkeypatch.setattr(designs, "_MAX_DENSITY", 0.5)
        monkeypatch.setattr(designs, "_MIN_PRODUCTS", 0.0)
    group, _ = data
    with pm.Model() as model:
        load = pm.Normal("load", 0.0, 1.0)
        level = pm.Normal("level", 0.0, 1.0, shape=GROUPS)
        pm.Poisson("y", pm.math.exp(load * level[group]), observed=np.arange(N) % 4)
    form = compiled_form(model, ["level"])
    form.solve_in("coefficients")
    for value in (0.0, 0.5, 2.0):
        prior = form.prior(np.array([value])).gaussian
        assert isinstance(prior, SparseFactorPrior if sparse else FactorPrior)
        np.testing.assert_allclose(prior.covariance_matrix(), value**2 * (group[:, None] == group), atol=1e-12)
        # d/d load of the sum over the entries of R, each a load.
        ones = np.ones_like(prior[0])
        found = form.pullback(np.array([value]), np.zeros(N), ones, [()], density="none")
        np.testing.assert_allclose(found, N, rtol=1e-12)


def effects_of_several_kinds():
    """Maps of one entry a predictor and part of a block, and others: differences, sums, a regression, zeros."""
    rng = np.random.default_rng(3)
    group, other = rng.integers(GROUPS, size=N), rng.integers(GROUPS, size=N)
    x = np.where(np.arange(N) < 20, 0.0, rng.normal(size=N))
    with pm.Model() as model:
        level = pm.Normal("level", 0.0, 1.5, shape=GROUPS)
        pair = pm.Normal("pair", 0.0, 0.7, shape=(GROUPS, 2))
        skill = pm.Normal("skill", 0.0, 1.0, shape=GROUPS)
        unused = pm.Normal("unused", 0.0, 1.0, shape=3)
        slopes = pm.Normal("slopes", 0.0, 1.0, shape=2)
        eta = -2.0 * level[group] + pair[group, 0] + x * pair[group, 1] + skill[group] - skill[other]
        eta = eta + 0.0 * unused.sum() + pm.math.dot(np.column_stack([x, x**2]), slopes)
        pm.Deterministic("total", level.sum() + 3.0 * pair[:, 1])
        pm.Poisson("y", pm.math.exp(eta), observed=np.arange(N) % 3)
    same = group[:, None] == group
    steps = np.eye(GROUPS)[group] - np.eye(GROUPS)[other]
    curve = np.column_stack([x, x**2])
    return model, (4 * 1.5**2 + 0.49 * (1.0 + np.outer(x, x))) * same + steps @ steps.T + curve @ curve.T


def test_maps_are_found_whatever_they_are():
    model, expected = effects_of_several_kinds()
    form = compiled_form(model)
    form.solve_in("coefficients")
    covariance = form.prior(form.start).gaussian.covariance_matrix()
    np.testing.assert_allclose(covariance, expected, rtol=1e-12, atol=1e-12)
    (total,) = (m for name, m in form.affine_moments(form.start).items() if name == "total")
    np.testing.assert_allclose(total.variance, GROUPS * 1.5**2 + 9.0 * 0.49, rtol=1e-12)


def test_maps_of_single_entries_are_found_without_units(monkeypatch):
    """Units of thousands of effects would be a dense matrix of all predictors by all effects."""
    rng = np.random.default_rng(4)
    n, groups = 3000, 1500
    with pm.Model() as model:
        level, slope = pm.Normal("level", 0.0, 1.0, shape=groups), pm.Normal("slope", 0.0, 1.0, shape=(groups, 2))
        group = rng.permutation(np.arange(n) % groups)
        eta = level[group] + (slope[group] * rng.normal(size=(n, 2))).sum(axis=-1)
        pm.Poisson("y", pm.math.exp(eta), observed=rng.poisson(1.0, size=n))
    form = compiled_form(model)
    monkeypatch.setattr(designs.np, "eye", lambda *sizes, **places: pytest.fail("units are pushed"))
    form.solve_in("coefficients")
    assert form.prior(form.start).gaussian.pattern.blocks.members[0].shape == (groups, 3)


@pytest.mark.parametrize("likelihood", ["counts", "normal"])
def test_effects_of_groups_of_two_are_those_of_dense_algebra(likelihood):
    """As many effects as half the observations: blocks cost less than a matrix of either."""
    rng = np.random.default_rng(5)
    n = 600
    group = rng.permutation(np.arange(n) // 2)
    eta = 0.4 + rng.normal(size=n // 2)[group]

    def model():
        with pm.Model() as built:
            mu, tau = pm.Normal("mu", 0.0, 2.0), pm.HalfNormal("tau", 1.0)
            effect = pm.Normal("effect", 0.0, tau, shape=n // 2)
            if likelihood == "counts":
                pm.Poisson("y", pm.math.exp(mu + effect[group]), observed=rng.poisson(np.exp(eta)))
            else:
                pm.Normal("y", mu + effect[group], 0.5, observed=eta + 0.5 * rng.normal(size=n))
        return built

    built = model()
    assert "300 blocks of up to 1, and 1 that couple with all" in pmep.explain(built)
    blocks = pmep.fit(model=built, random_seed=1, hyper="optimize")
    dense = pmep.fit(model=built, random_seed=1, hyper="optimize", solver="observations")
    for name in ("log_evidence", "hyper_mode_tau"):
        np.testing.assert_allclose(blocks["fit"][name], dense["fit"][name], rtol=1e-6)
    for name in ("mu", "effect"):
        for group_name in ("posterior_mean", "posterior_sd"):
            np.testing.assert_allclose(blocks[group_name][name], dense[group_name][name], rtol=1e-4, atol=1e-5)
    drawn = blocks["posterior"]["effect"]
    error = np.abs(drawn.mean(("chain", "draw")) - dense["posterior_mean"]["effect"]) / dense["posterior_sd"]["effect"]
    assert float(error.max()) < 5.0 / np.sqrt(4000)
