"""The default treatment of hyperparameters: eight schools against quadrature, and when there is another."""

from functools import cache

import numpy as np
import pymc as pm
import pytest
import scipy.stats
from scipy.special import logsumexp

import pymc_ep as pmep
from pymc_ep.compat import group, make_container, to_dataset
from pymc_ep.evidence import budget

EFFECTS = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
ERRORS = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])
"""Coaching for a test in eight schools (Rubin 1981): estimates and their standard errors."""


def schools(centred):
    with pm.Model() as model:
        mu, tau = pm.Normal("mu", 0, 5), pm.HalfCauchy("tau", 5)
        if centred:
            theta = pm.Normal("theta", mu, tau, shape=8)
        else:
            theta = pm.Deterministic("theta", mu + tau * pm.Normal("offset", 0, 1, shape=8))
        pm.Normal("y", theta, ERRORS, observed=EFFECTS)
    return model


@cache
def exact():
    """Moments and quantiles by a grid of log tau; given tau all is Gaussian."""
    logs = np.linspace(-10.0, 9.0, 4001)
    tau = np.exp(logs)
    log_density, means, variances = [], [], []
    for t in tau:
        total = np.diag(ERRORS**2 + t**2) + 25.0
        cross = t**2 * np.eye(8) + 25.0
        weights = np.linalg.solve(total, np.column_stack([EFFECTS, cross]))
        log_density.append(scipy.stats.multivariate_normal.logpdf(EFFECTS, np.zeros(8), total))
        means.append(cross @ weights[:, 0])
        variances.append(np.diag(cross) - (cross * weights[:, 1:]).sum(axis=0))
    log_density = np.array(log_density) + scipy.stats.halfcauchy.logpdf(tau, scale=5.0) + logs
    evidence = logsumexp(log_density) + np.log(logs[1] - logs[0])
    weight = np.exp(log_density - logsumexp(log_density))
    mean = weight @ means
    sd = np.sqrt(weight @ (np.array(variances) + (means - mean) ** 2))
    quantiles = np.interp([0.05, 0.5, 0.95], np.cumsum(weight), tau)
    return evidence, (weight @ logs, np.sqrt(weight @ logs**2 - (weight @ logs) ** 2)), quantiles, mean, sd


@pytest.mark.parametrize("centred", [True, False])
def test_eight_schools(centred):
    """A scale that the data let be zero has a distribution, and so have the schools."""
    idata = pmep.fit(model=schools(centred), random_seed=1, progressbar=False)
    evidence, (log_mean, log_sd), quantiles, mean, sd = exact()
    fit, draws = group(idata, "fit"), group(idata, "posterior")
    assert bool(fit["converged"])
    assert abs(float(fit["log_evidence"]) - evidence) < 0.01
    logs = np.log(draws["tau"].to_numpy().ravel())
    assert abs(logs.mean() - log_mean) < 0.03 * log_sd
    assert abs(logs.std() / log_sd - 1) < 0.03
    np.testing.assert_allclose(np.quantile(draws["tau"], [0.05, 0.5, 0.95]), quantiles, rtol=0.05)
    np.testing.assert_allclose((idata["posterior_mean"]["theta"] - mean) / sd, 0.0, atol=0.02)
    np.testing.assert_allclose(idata["posterior_sd"]["theta"] / sd, 1.0, rtol=0.02)
    np.testing.assert_allclose((draws["theta"].mean(("chain", "draw")) - mean) / sd, 0.0, atol=0.08)


def many(p):
    rng = np.random.default_rng(0)
    with pm.Model() as model:
        scale = pm.HalfNormal("scale", 1.0, shape=p)
        f = pm.Normal("f", 0.0, 1.0)
        pm.Normal("y", f, scale[:, None], observed=rng.normal(size=(p, 6)))
    return model


def test_too_many_hyperparameters_are_at_their_mode_and_it_says_so():
    with pytest.warns(pmep.ConvergenceWarning, match="26 hyperparameters are too many.*hyper='sample'"):
        idata = pmep.fit(model=many(26), draws=0, progressbar=False)
    assert not bool(group(idata, "fit")["converged"])
    asked = pmep.fit(model=many(26), hyper="optimize", draws=0, progressbar=False)
    assert bool(group(asked, "fit")["converged"])


def test_many_hyperparameters_of_dear_fits_are_at_their_mode(monkeypatch):
    monkeypatch.setattr(budget, "_OPERATIONS", 1e5)
    with pytest.warns(pmep.ConvergenceWarning, match="26 hyperparameters are too many.*at their mode"):
        pmep.fit(model=many(26), draws=10, progressbar=False)


def test_too_many_hyperparameters_are_sampled_where_draws_are_wanted(monkeypatch):
    """By fewer draws than those of whoever asks for chains."""
    asked = {}

    def sample(draws, **options):
        asked.update(options, draws=draws)
        scale = np.exp(0.2 * np.random.default_rng(2).normal(size=(2, draws, 26)))
        data = to_dataset({"scale": scale}, coords={}, dims={}, sample_dims=("chain", "draw"))
        return make_container({"posterior": data})

    monkeypatch.setattr(pm, "sample", sample)
    idata = pmep.fit(model=many(26), chains=2, random_seed=1, progressbar=False)
    assert (asked["draws"], asked["tune"], asked["chains"]) == (250, 500, 2)
    assert group(idata, "fit").attrs["status"].startswith("26 hyperparameters are too many for an emulator")
    assert bool(group(idata, "fit")["converged"])
    assert group(idata, "posterior")["scale"].shape == (2, 250, 26)
    pmep.fit(model=many(26), hyper="sample", chains=2, random_seed=1, progressbar=False)
    assert asked["draws"] == 1000


def test_dear_fits_are_at_the_mode_and_it_says_so(monkeypatch):
    monkeypatch.setattr(budget, "_OPERATIONS", 1e3)
    idata = pmep.fit(model=schools(True), draws=0, progressbar=False)
    assert "as fits of this size are dear" in group(idata, "fit").attrs["status"]
    assert "hyper_ess" not in group(idata, "fit")


def test_spent_fits_are_told(monkeypatch):
    """Where there may be too few fits, the weights say so."""
    monkeypatch.setattr(budget, "_MOST_FITS", (0, 0))
    monkeypatch.setattr(budget, "_LEAST_FITS", (1, 0))
    monkeypatch.setattr("pymc_ep.evidence.integration.integrate._EFFECTIVE", 1.1)
    with pytest.warns(pmep.ConvergenceWarning, match=r"not settled after \d+ fits.*effective sample size.*tau"):
        pmep.fit(model=schools(True), draws=0, progressbar=False)


def test_a_covariance_with_correlations_beside_the_same_draws_of_its_parts():
    """Two correlated effects: the posterior of scales and correlation by a grid over the marginal likelihood."""
    rng = np.random.default_rng(4)
    groups, each = 12, 6
    truth = rng.multivariate_normal([0.0, 0.0], [[1.0, 0.4], [0.4, 0.5]], groups)
    x = np.tile(np.linspace(-1, 1, each), (groups, 1))
    y = truth[:, :1] + truth[:, 1:] * x + 0.5 * rng.normal(size=x.shape)
    with pm.Model() as model:
        chol, _, _ = pm.LKJCholeskyCov("chol", n=2, eta=2, sd_dist=pm.Exponential.dist(1.0))
        u = (chol @ pm.Normal("z", 0, 1, shape=(2, groups))).T
        pm.Normal("y", u[:, :1] + u[:, 1:] * x, 0.5, observed=y)
    idata = pmep.fit(model=model, random_seed=2, progressbar=False)
    design = np.column_stack([np.ones(each), x[0]])
    logs, angles = np.linspace(-3.5, 2.0, 45), np.linspace(-0.98, 0.98, 41)
    s1, s2, r = (part.ravel() for part in np.meshgrid(np.exp(logs), np.exp(logs), angles, indexing="ij"))
    covariance = np.array([[s1**2, r * s1 * s2], [r * s1 * s2, s2**2]]).transpose(2, 0, 1)
    total = design @ covariance @ design.T + 0.25 * np.eye(each)
    log_density = -s1 - s2 + np.log(s1 * s2) + np.log(1 - r**2) - 0.5 * groups * np.linalg.slogdet(total)[1]
    log_density -= 0.5 * np.einsum("gi,kij,gj->k", y, np.linalg.inv(total), y)
    weight = np.exp(log_density - logsumexp(log_density))
    draws = group(idata, "posterior")
    found = {0: draws["chol_stds"][..., 0], 1: draws["chol_stds"][..., 1], 2: draws["chol_corr"][..., 0, 1]}
    for k, values in enumerate((s1, s2, r)):
        mean = weight @ values
        sd = np.sqrt(weight @ (values - mean) ** 2)
        assert abs(float(found[k].mean()) - mean) < 0.06 * sd
        assert abs(float(found[k].std()) / sd - 1) < 0.06


def test_sites_that_jump_are_fitted_at_the_draws():
    """Student-t noise with an outlier: between fits its site is off, and the mean of a group with it."""
    rng = np.random.default_rng(5)
    y = np.concatenate([rng.standard_t(2, size=14), [9.0, -12.0]])
    with pm.Model() as model:
        nu, sigma = pm.Gamma("nu", 2, 0.5), pm.HalfNormal("sigma", 3.0)
        centre = pm.Normal("centre", 0.0, 10.0)
        pm.StudentT("y", nu=nu, mu=centre, sigma=sigma, observed=y)
    idata = pmep.fit(model=model, random_seed=1, progressbar=False)
    log_nu, log_sigma, at = np.linspace(-3, 4, 60), np.linspace(-2.5, 2.5, 60), np.linspace(-5, 5, 201)
    n, s, c = np.meshgrid(np.exp(log_nu), np.exp(log_sigma), at, indexing="ij")
    log_density = sum(scipy.stats.t.logpdf(value, n, c, s) for value in y) + np.log(n * s)
    log_density += scipy.stats.gamma.logpdf(n, 2, scale=2.0) + scipy.stats.halfnorm.logpdf(s, scale=3.0)
    log_density += scipy.stats.norm.logpdf(c, scale=10.0)
    weight = np.exp(log_density - logsumexp(log_density))
    mean = (weight * c).sum()
    sd = np.sqrt((weight * (c - mean) ** 2).sum())
    fit = group(idata, "fit")
    assert f"integrated over by {int(fit['n_evaluations'])} fits" in fit.attrs["status"]
    assert fit.sizes["hyper_point"] <= int(fit["n_evaluations"])
    draws = group(idata, "posterior")["centre"].to_numpy().ravel()
    assert abs(draws.mean() - mean) < 0.1 * sd
    assert abs(draws.std() / sd - 1) < 0.1
    assert abs(float(idata["posterior_sd"]["centre"]) / sd - 1) < 0.1


def test_a_hyperparameter_far_from_zero_is_not_taken_for_endless():
    """A log precision that falls with a covariate: as narrow as its distance from zero, ten times over."""
    rng = np.random.default_rng(5)
    x = rng.normal(size=800)
    y = 1.0 + 0.5 * x + np.exp(-0.5 * (3.0 + 0.2 * x)) * rng.normal(size=800)
    with pm.Model() as model:
        level, slope = pm.Normal("level", 0, 10), pm.Normal("slope", 0, 10)
        theta, phi = pm.Normal("theta", 0, 100), pm.Normal("phi", 0, 100)
        pm.Normal("y", level + slope * x, pm.math.exp(-0.5 * (theta + phi * x)), observed=y)
    fit = pmep.fit(model=model, draws=0, progressbar=False)
    assert bool(fit["fit"]["converged"])
    # The information of a log variance in n observations is n / 2.
    np.testing.assert_allclose(fit["posterior_sd"]["theta"], np.sqrt(2 / 800), rtol=0.05)
    assert abs(float(fit["posterior_mean"]["theta"]) - 3.0) < 3 * np.sqrt(2 / 800)


def test_a_start_at_which_ep_stalls_is_not_the_mode():
    """Stack loss under Student-t noise, from a scale of 0.03: what EP says there compares with nothing."""
    z, y = stack_loss()
    with pm.Model() as model:
        level, slopes = pm.Normal("level", 0, 316), pm.Normal("slopes", 0, 316, shape=3)
        variance = pm.InverseGamma("variance", 0.001, 0.001, initval=1e-3)
        pm.StudentT("y", nu=4, mu=level + z @ slopes, sigma=pm.math.sqrt(variance), observed=y)
    fit = pmep.fit(model=model, draws=0, progressbar=False)
    assert bool(fit["fit"]["converged"])
    assert 1.0 < float(fit["fit"]["hyper_mode_variance"]) < 30.0


def stack_loss():
    """Brownlee (1965): acid lost in 21 days, by flow, temperature and acid of the plant, standardised."""
    flow = [80, 80, 75, 62, 62, 62, 62, 62, 58, 58, 58, 58, 58, 58, 50, 50, 50, 50, 50, 56, 70]
    water = [27, 27, 25, 24, 22, 23, 24, 24, 23, 18, 18, 17, 18, 19, 18, 18, 19, 19, 20, 20, 20]
    acid = [89, 88, 90, 87, 87, 87, 93, 93, 87, 80, 89, 88, 82, 93, 89, 86, 72, 79, 80, 82, 91]
    lost = [42, 37, 37, 28, 18, 18, 19, 20, 15, 14, 14, 13, 11, 12, 8, 7, 8, 8, 9, 15, 15]
    x = np.array([flow, water, acid], dtype=float).T
    return (x - x.mean(axis=0)) / x.std(axis=0, ddof=1), np.array(lost)
