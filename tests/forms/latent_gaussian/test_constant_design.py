"""Designs that are formed once: as the graph gives them, at every value of the hyperparameters and for new data."""

import numpy as np
import pymc as pm
import pytest

import pymc_ep as pmep
from pymc_ep.forms import compiled_form
from pymc_ep.forms.latent_gaussian import constant_design as designs
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
        "in parts": {"_MAX_DENSITY": 0.5, "_MIN_PRODUCTS": 0.0, "_BATCH_SIZE": 5 * N},
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
