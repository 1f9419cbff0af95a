"""Observed Gaussian vectors against closed forms, and against quadrature of PyMC's own density."""

import numpy as np
import pymc as pm
import pytest
from scipy import stats
from scipy.special import logsumexp

import pymc_ep as pmep
from pymc_ep.compat import group, group_names

RNG = np.random.default_rng(4)
X = np.linspace(0.0, 5.0, 25)
Y = np.sin(X) + 0.2 * RNG.normal(size=25)
COVARIANCE = np.exp(-0.5 * (X[:, None] - X) ** 2) + 0.04 * np.eye(25)
QUIET = {"progressbar": False, "random_seed": 1}


def line():
    with pm.Model(coords={"x": X}) as model:
        b = pm.Normal("b", 0.3, 2.0, shape=2)
        pm.MvNormal("y", b[0] + b[1] * X, cov=COVARIANCE, observed=Y, dims="x")
    return model


def test_a_line_seen_through_correlated_noise():
    """Evidence, coefficients and the density of each value given the others, by the Gaussian of all values."""
    model = line()
    found = pmep.fit(model=model, **QUIET)
    design = np.column_stack([np.ones(25), X])
    total, mean = COVARIANCE + 4.0 * design @ design.T, design @ [0.3, 0.3]
    np.testing.assert_allclose(
        float(found["fit"]["log_evidence"]), stats.multivariate_normal(mean, total).logpdf(Y), atol=1e-6
    )
    gain = np.linalg.solve(total, design * 4.0).T
    np.testing.assert_allclose(found["posterior_mean"]["b"], 0.3 + gain @ (Y - mean), atol=1e-6)
    expected = 4.0 * np.eye(2) - 4.0 * gain @ design
    np.testing.assert_allclose(found["posterior_sd"]["b"], np.sqrt(np.diagonal(expected)), rtol=1e-5)
    np.testing.assert_allclose(np.cov(found["posterior"]["b"].values.reshape(-1, 2).T), expected, rtol=0.15, atol=0.02)
    precision = np.linalg.inv(total)
    residual = precision @ (Y - mean) / np.diagonal(precision)
    np.testing.assert_allclose(
        found["fit"]["y_loo"], stats.norm.logpdf(residual, scale=np.diagonal(precision) ** -0.5), atol=1e-5
    )
    # The sites' densities are not those of the model.
    assert "log_likelihood" not in group_names(found)
    total = pmep.loo(found)
    total = total.elpd if hasattr(total, "elpd") else total.elpd_loo
    np.testing.assert_allclose(total, float(found["fit"]["y_loo"].sum()), rtol=1e-6)


def test_its_predictions_are_joint():
    model = line()
    found = pmep.fit(model=model, **QUIET)
    refused = pytest.raises(pmep.UnsupportedModelError, match=r"'y' is a vector of correlated values.*sample_posterior")
    with model, refused:
        pmep.predict(found, response=True)
    with refused:
        pmep.log_predictive(found, model, {"y": Y})
    with model:
        drawn = pm.sample_posterior_predictive(found, random_seed=2, progressbar=False)
    values = group(drawn, "posterior_predictive")["y"].values.reshape(-1, 25)
    np.testing.assert_allclose(np.corrcoef(values[:, 3], values[:, 4])[0, 1], 0.95, atol=0.03)


def quadrature(model, grids):
    """Moments of the variables and log evidence, by PyMC's density on a grid of its unconstrained values."""
    density = model.compile_logp()
    names = [v.name for v in model.value_vars]
    mesh = np.stack(np.meshgrid(*grids, indexing="ij"), axis=-1).reshape(-1, len(grids))
    logs = np.array([float(density(dict(zip(names, row)))) for row in mesh])
    total = logsumexp(logs)
    weight = np.exp(logs - total)
    cell = np.log([grid[1] - grid[0] for grid in grids]).sum()
    values = {n: np.exp(v) if n.endswith("_log__") else v for n, v in zip(names, mesh.T)}
    moments = {}
    for name, value in values.items():
        mean = weight @ value
        moments[name.removesuffix("_log__")] = mean, np.sqrt(weight @ (value - mean) ** 2)
    return moments, total + cell


def marginal_process():
    with pm.Model() as model:
        ell, sigma = pm.InverseGamma("ell", 3.0, 3.0), pm.HalfNormal("sigma", 1.0)
        gp = pm.gp.Marginal(cov_func=pm.gp.cov.ExpQuad(1, ell))
        gp.marginal_likelihood("y", X=X[:, None], y=Y, sigma=sigma)
    return model, [np.linspace(-1.0, 1.5, 50), np.linspace(-2.8, -0.5, 50)]


def autoregression():
    y = np.zeros(60)
    for t in range(1, 60):
        y[t] = 0.6 * y[t - 1] + RNG.normal()
    with pm.Model() as model:
        rho, sigma = pm.Normal("rho", 0.0, 1.0), pm.HalfNormal("sigma", 1.0)
        pm.AR("y", rho=[rho], sigma=sigma, init_dist=pm.Normal.dist(0, 2), observed=y)
    return model, [np.linspace(-0.2, 1.2, 60), np.linspace(-0.6, 0.6, 60)]


def random_walk():
    with pm.Model() as model:
        sigma = pm.HalfNormal("sigma", 1.0)
        walk = np.cumsum(RNG.normal(0.0, 0.5, 30))
        pm.GaussianRandomWalk("y", sigma=sigma, init_dist=pm.Normal.dist(0, 2), observed=walk)
    return model, [np.linspace(-2.0, 1.0, 300)]


@pytest.mark.parametrize("make", [marginal_process, autoregression, random_walk])
def test_hyperparameters_alone(make):
    model, grids = make()
    moments, log_evidence = quadrature(model, grids)
    found = pmep.fit(model=model, draws=0, **QUIET)
    assert bool(found["fit"]["converged"])
    np.testing.assert_allclose(float(found["fit"]["log_evidence"]), log_evidence, atol=0.02)
    for name, (mean, sd) in moments.items():
        assert abs(float(found["posterior_mean"][name]) - mean) < 0.03 * sd
        np.testing.assert_allclose(float(found["posterior_sd"][name]), sd, rtol=0.03)


def test_a_singular_covariance_is_refused_by_name():
    with pm.Model() as model:
        level = pm.Normal("level", 0.0, 1.0)
        pm.MvNormal("y", level * np.ones(2), cov=np.ones((2, 2)), observed=[0.3, 0.4])
    with pytest.raises(
        pmep.NumericalError, match=r"made by level, y, is not positive definite.*multiple of the identity"
    ):
        pmep.fit(model=model, **QUIET)
