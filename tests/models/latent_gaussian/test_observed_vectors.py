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
    found = pmep.fit(model=model, log_likelihood=True, **QUIET)
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
        pmep.predict(found, model, var_names=["y"])
    with refused:
        pmep.log_predictive(found, model, {"y": Y})
    with model:
        drawn = pm.sample_posterior_predictive(found, random_seed=2, progressbar=False)
    values = group(drawn, "posterior_predictive")["y"].values.reshape(-1, 25)
    design = np.column_stack([np.ones(25), X])
    posterior = np.linalg.inv(np.eye(2) / 4.0 + design.T @ np.linalg.solve(COVARIANCE, design))
    mean = design @ posterior @ (design.T @ np.linalg.solve(COVARIANCE, Y) + 0.3 / 4.0)
    predictive = COVARIANCE + design @ posterior @ design.T
    sd = np.sqrt(np.diagonal(predictive))
    np.testing.assert_allclose(values.mean(axis=0), mean, atol=0.08 * sd.max())
    np.testing.assert_allclose(np.cov(values.T) / np.outer(sd, sd), predictive / np.outer(sd, sd), atol=0.1)


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


def test_nearly_singular_covariances():
    """A walk whose start is uncertain, a nearly noiseless process, and two values that are all but the same."""
    steps = 0.05 * np.random.default_rng(0).normal(size=60)
    with pm.Model() as walk:
        s = pm.HalfNormal("s", 1.0)
        start = pm.Normal.dist(0.0, 100.0)
        pm.GaussianRandomWalk("y", sigma=s, init_dist=start, observed=np.cumsum(steps))
    found = pmep.fit(model=walk, draws=0, **QUIET)
    logs = np.linspace(-4.0, -1.5, 2000)
    density = stats.norm.logpdf(steps[1:, None], 0.0, np.exp(logs)).sum(axis=0)
    density += stats.halfnorm.logpdf(np.exp(logs)) + logs + stats.norm.logpdf(steps[0], 0.0, 100.0)
    weight = np.exp(density - logsumexp(density))
    np.testing.assert_allclose(found["fit"]["log_evidence"], logsumexp(density) + np.log(logs[1] - logs[0]), atol=0.01)
    np.testing.assert_allclose(found["posterior_mean"]["s"], weight @ np.exp(logs), rtol=2e-3)
    smooth = 2500.0 * np.exp(-0.5 * (X[:, None] - X) ** 2) + 1e-4 * np.eye(25)
    twins = np.array([[1.0, 1.0 - 1e-7], [1.0 - 1e-7, 1.0]])
    for covariance, y in ((smooth, 50.0 * np.sin(X)), (twins, np.array([0.3, 0.3]))):
        with pm.Model() as model:
            pm.MvNormal("y", pm.Normal("level", 0.0, 1.0) * np.ones(len(y)), cov=covariance, observed=y)
        expected = stats.multivariate_normal(np.zeros(len(y)), covariance + 1.0).logpdf(y)
        found = pmep.fit(model=model, draws=0, **QUIET)
        np.testing.assert_allclose(found["fit"]["log_evidence"], expected, rtol=1e-6)


def test_rows_of_a_batch_and_new_data():
    """Several observed vectors, with dims and covariates that change; evidence in closed form."""
    covariance = np.array([[1.0, 0.5, 0.2], [0.5, 2.0, 0.3], [0.2, 0.3, 1.5]])
    y = RNG.normal(size=(5, 3))
    with pm.Model(coords={"row": range(5), "what": list("abc")}) as model:
        x = pm.Data("x", np.arange(5.0))
        b = pm.Normal("b", 0.0, 1.0, dims="what")
        pm.MvNormal("y", b * x[:, None], cov=covariance, observed=y, dims=("row", "what"))
    for values in (np.arange(5.0), np.linspace(-1.0, 1.0, 5)):
        pm.set_data({"x": values}, model=model)
        design = np.kron(values[:, None], np.eye(3))
        total = np.kron(np.eye(5), covariance) + design @ design.T
        expected = stats.multivariate_normal(np.zeros(15), total).logpdf(y.ravel())
        found = pmep.fit(model=model, draws=10, **QUIET)
        np.testing.assert_allclose(found["fit"]["log_evidence"], expected, atol=1e-6)


def test_a_singular_covariance_is_refused_by_name():
    with pm.Model() as model:
        level = pm.Normal("level", 0.0, 1.0)
        pm.MvNormal("y", level * np.ones(2), cov=np.ones((2, 2)), observed=[0.3, 0.4])
    with pytest.raises(
        pmep.NumericalError, match=r"made by level, y, is not positive definite.*multiple of the identity"
    ):
        pmep.fit(model=model, **QUIET)


@pytest.mark.parametrize(
    ("observe", "message"),
    [
        (
            lambda: pm.ZeroSumNormal("y", 1.0, observed=[1.0, -1.0]),
            "'y' has the distribution ZeroSumNormal.*no density",
        ),
        (
            lambda: pm.CAR("y", np.zeros(2), W=np.array([[0, 1], [1, 0]]), alpha=0.5, tau=1.0, observed=[1.0, -1.0]),
            "'y' has the distribution CAR, which is supported as a latent variable only",
        ),
        (
            lambda: pm.MvNormal("y", pm.Normal("m"), cov=np.eye(2), observed=np.array([1.0, np.nan])),
            "'y' is a vector with missing values.*shorter vector",
        ),
    ],
    ids=["sum", "areas", "missing"],
)
@pytest.mark.filterwarnings("ignore:Data in y contains missing values")
def test_vectors_that_are_refused(observe, message):
    with pm.Model() as model:
        observe()
    with pytest.raises(pmep.UnsupportedModelError, match=message):
        pmep.fit(model=model, **QUIET)


def test_a_vector_beside_latent_variables_has_no_log_likelihood():
    with pm.Model(coords={"x": range(3)}) as model:
        s, b = pm.HalfNormal("s", 1.0), pm.Normal("b", 0.0, 1.0, shape=4)
        pm.MvNormal("z", np.zeros(3), cov=s**2 * np.eye(3), observed=[1.0, 2.0, 3.0], dims="x")
        pm.Poisson("k", pm.math.exp(s * b), observed=[1, 2, 3, 4])
    found = pmep.fit(model=model, hyper="optimize", draws=10, log_likelihood=True, **QUIET)
    assert list(group(found, "log_likelihood").data_vars) == ["k"]
