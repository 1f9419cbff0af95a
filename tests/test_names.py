"""Names of a model's variables that end as names of results do."""

import arviz as az
import numpy as np
import pymc as pm
import pytest

import pymc_ep as pmep
from pymc_ep.compat import group, group_names, make_container

NOISE = 0.7
Y = np.array([1.3, -0.2, 0.8, 2.1])
PRIOR = {"level": (1.0, 0.5), "level_sd": (-2.0, 3.0), "level_mean": (0.3, 1.1), "level_mode": (0.0, 0.4)}
"""Means and standard deviations of independent Gaussians, whose sum is observed."""


@pytest.fixture(scope="module")
def model():
    with pm.Model() as model:
        pm.Normal("y", sum(pm.Normal(name, *prior) for name, prior in PRIOR.items()), NOISE, observed=Y)
    return model


@pytest.fixture(scope="module")
def idata(model):
    return pmep.fit(model=model, draws=2000, random_seed=1, progressbar=False)


@pytest.fixture(scope="module")
def exact():
    """Moments by conditioning a Gaussian vector on its sums."""
    mean, sd = np.array(list(PRIOR.values())).T
    design = np.ones((len(Y), len(PRIOR)))
    covariance = np.linalg.inv(np.diag(sd**-2) + design.T @ design / NOISE**2)
    centre = covariance @ (mean / sd**2 + design.T @ Y / NOISE**2)
    return dict(zip(PRIOR, zip(centre, np.sqrt(covariance.diagonal()))))


@pytest.mark.parametrize("name", PRIOR)
def test_moments_are_those_of_the_variable_of_that_name(idata, exact, name):
    mean, sd = exact[name]
    np.testing.assert_allclose(idata["posterior_mean"][name], mean, atol=1e-9)
    np.testing.assert_allclose(idata["posterior_sd"][name], sd, rtol=1e-9)
    assert name not in idata["fit"]


def test_they_are_read_back_and_used(model, idata, exact, tmp_path):
    idata.to_netcdf(str(tmp_path / "fit.nc"))
    saved = az.from_netcdf(str(tmp_path / "fit.nc"))
    assert set(group(saved, "posterior_mean").data_vars) == set(PRIOR)
    start = pmep.start_point(saved)
    found = pmep.predict(saved, model, var_names=["level", "level_sd"])
    for name in ("level", "level_sd"):
        np.testing.assert_allclose(start[name], exact[name][0], atol=1e-9)
        np.testing.assert_allclose(found[f"{name}_mean"], exact[name][0], atol=1e-9)
    again = pmep.fit(model=model, start=saved, draws=0, progressbar=False)
    np.testing.assert_allclose(again["posterior_sd"]["level_sd"], exact["level_sd"][1], rtol=1e-9)
    assert "posterior" not in group_names(again)


def test_moments_without_draws_are_compared(model, exact):
    moments = pmep.fit(model=model, draws=0, progressbar=False)
    rng = np.random.default_rng(0)
    draws = {name: rng.normal(mean, sd, size=(4, 1000)) for name, (mean, sd) in exact.items()}
    chains = make_container({"posterior": az.convert_to_dataset(draws)})
    table = pmep.compare_to_mcmc(moments, chains)
    assert list(table.index) == list(PRIOR)
    np.testing.assert_allclose(table["mean"], [mean for mean, _ in exact.values()], atol=1e-9)
    np.testing.assert_allclose(table["sd_ratio"], 1.0, atol=0.06)


def test_a_hyperparameter_of_such_a_name():
    with pm.Model() as model:
        level_sd = pm.HalfNormal("level_sd", 2.0)
        level = pm.Normal("level", 0.0, level_sd)
        pm.Normal("y", level, NOISE, observed=Y)
    idata = pmep.fit(model=model, hyper="fixed", start={"level_sd": 1.5}, draws=0, progressbar=False)
    precision = 1.5**-2 + len(Y) / NOISE**2
    np.testing.assert_allclose(idata["posterior_mean"]["level_sd"], 1.5, rtol=1e-12)
    np.testing.assert_allclose(idata["posterior_sd"]["level_sd"], 0.0)
    np.testing.assert_allclose(idata["posterior_mean"]["level"], Y.sum() / NOISE**2 / precision, rtol=1e-9)
    np.testing.assert_allclose(idata["posterior_sd"]["level"], precision**-0.5, rtol=1e-9)
