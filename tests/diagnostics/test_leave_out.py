"""Leave-one-out and leave-group-out densities against closed forms, quadrature, refits and ArviZ's own comparison."""

from dataclasses import replace

import arviz as az
import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from scipy import stats
from scipy.special import logsumexp

import pymc_ep as pmep
from pymc_ep.compat import make_container
from pymc_ep.diagnostics import leave_out, refits
from pymc_ep.forms import compiled_form
from pymc_ep.results import fit_group

from .conftest import KERNEL, NOISE, REALS, N, X

GROUP = np.array([0, 1, 2, 0, 1, 1, 2, 0, 0])


def pointwise(found):
    return found.elpd_i if hasattr(found, "elpd_i") else found.loo_i


def excess_of(found):
    return found["p"] if hasattr(found, "elpd_i") else found["p_loo"]


def log_density_given_others(y, mean, covariance, own):
    """The conditional density of some elements of a Gaussian vector."""
    rest = np.setdiff1d(np.arange(len(y)), own)
    gain = covariance[np.ix_(own, rest)] @ np.linalg.inv(covariance[np.ix_(rest, rest)])
    conditional = covariance[np.ix_(own, own)] - gain @ covariance[np.ix_(rest, own)]
    return stats.multivariate_normal(mean[own] + gain @ (y[rest] - mean[rest]), conditional).logpdf(y[own])


def test_observations_and_groups_under_gaussian_noise_in_closed_form(gaussian):
    model, result = gaussian
    covariance, mean = KERNEL + NOISE**2 * np.eye(N), np.full(N, 0.3)
    found = pmep.loo(result)
    expected = [log_density_given_others(REALS, mean, covariance, np.array([i])) for i in range(N)]
    np.testing.assert_allclose(pointwise(found), expected, rtol=1e-5)
    np.testing.assert_allclose(found["se"], np.sqrt(N * np.var(expected)), rtol=1e-4)
    # lppd by the moments of the posterior, of which the draws are 1000, in the fit or made on request.
    gain = KERNEL @ np.linalg.inv(covariance)
    at, spread = mean + gain @ (REALS - mean), np.sqrt((KERNEL - gain @ KERNEL).diagonal() + NOISE**2)
    excess = stats.norm(at, spread).logpdf(REALS).sum() - np.sum(expected)
    without = pmep.fit(model=model, random_seed=1, progressbar=False)
    for scores in (found, pmep.loo(without, model)):
        np.testing.assert_allclose(excess_of(scores), excess, atol=0.1)
    assert np.isnan(excess_of(pmep.loo(without)))
    groups = pmep.loo(result, model, groups=GROUP)
    expected = [log_density_given_others(REALS, mean, covariance, np.flatnonzero(g == GROUP)) for g in range(3)]
    np.testing.assert_allclose(pointwise(groups), expected, rtol=1e-5)
    assert pointwise(groups).dims == ("y_group",)
    singles = pmep.loo(result, model, groups="x")
    np.testing.assert_allclose(pointwise(singles), pointwise(found), rtol=1e-6)
    np.testing.assert_array_equal(pointwise(singles)["x"], X)


def test_pairs_of_counts_by_quadrature():
    """Two groups of two: the cavity of each is the prior, known exactly, and the integral has two dimensions."""
    y, covariance = np.array([3, 7, 0, 1]), np.array([[0.8, 0.5], [0.5, 0.6]])
    with pm.Model() as model:
        f = [pm.MvNormal(f"f{k}", [0.4, 1.0], covariance) for k in range(2)]
        pm.Poisson("y", pm.math.exp(pm.math.concatenate(f)), observed=y)
    found = pmep.loo(pmep.fit(model=model, draws=0, progressbar=False), model, groups=[0, 0, 1, 1])
    z = np.linspace(-8, 8, 801)
    root = np.linalg.cholesky(covariance)
    grid = np.stack(np.meshgrid(z, z, indexing="ij"))
    eta = np.array([0.4, 1.0])[:, None, None] + np.tensordot(root, grid, axes=1)
    mass = stats.norm.logpdf(grid).sum(axis=0) + 2 * np.log(z[1] - z[0])
    for k in range(2):
        log_density = stats.poisson.logpmf(y[2 * k : 2 * k + 2, None, None], np.exp(eta)).sum(axis=0)
        # What EP's evidence of two counts is off by.
        np.testing.assert_allclose(pointwise(found)[k], logsumexp(log_density + mass), atol=2e-3)


def grouped_counts(keep=slice(None), draws=0, **options):
    rng = np.random.default_rng(5)
    county = np.repeat(np.arange(6), 4)
    x = rng.normal(size=24)
    y = rng.poisson(np.exp(0.5 + 0.4 * x + rng.normal(0, 0.7, 6)[county]))
    with pm.Model(coords={"county": np.arange(6)}) as model:
        tau = pm.HalfNormal("tau", 1.0)
        level, slope = pm.Normal("level", 0.0, 1.0), pm.Normal("slope", 0.0, 1.0)
        effect = pm.Normal("effect", 0.0, tau, dims="county")
        index = pm.Data("index", county[keep])
        pm.Poisson("y", pm.math.exp(level + slope * x[keep] + effect[index]), observed=y[keep])
        return model, pmep.fit(draws=draws, random_seed=0, progressbar=False, **options), county


@pytest.mark.parametrize("hyper", ["fixed", "integrate"])
def test_groups_of_counts_against_refits(hyper):
    """Two fits' evidences differ by the density of what the smaller one lacks."""
    model, result, county = grouped_counts(hyper=hyper)
    found = pmep.loo(result, model, groups="index")
    assert pointwise(found).dims == ("index",)
    whole = float(fit_group(result)["log_evidence"])
    for g in (1, 4):
        smaller = grouped_counts(county != g, hyper=hyper)[1]
        expected = whole - float(fit_group(smaller)["log_evidence"])
        np.testing.assert_allclose(pointwise(found)[g], expected, atol=0.02)


def test_arviz_compares_models_whose_draws_have_no_density():
    """Where ArviZ's own leave-one-out is NaN and its comparison fails."""
    counts = np.array([0, 0, 1, 0, 3, 1, 0, 0, 2, 0])
    fits = {}
    for name, sd in (("wide", 2.0), ("narrow", 0.05)):
        with pm.Model():
            f = pm.MvNormal("f", np.full(10, 0.5), sd**2 * (np.eye(10) + 0.5))
            pmep.RectifiedPoisson("y", f, observed=counts)
            fits[name] = pmep.fit(log_likelihood=True, random_seed=1, progressbar=False)
    found = {name: pmep.loo(one) for name, one in fits.items()}
    table = az.compare(found)
    total = {name: float(fit_group(one)["y_loo"].sum()) for name, one in fits.items()}
    assert list(table.index) == sorted(total, key=total.get, reverse=True)
    column = "elpd" if "elpd" in table else "elpd_loo"
    np.testing.assert_allclose(table[column], [total[name] for name in table.index], rtol=0.05)
    assert "4000" in str(found["wide"])


def test_transforms_of_a_mixture_over_hyperparameters():
    """A scale mixture of normals: y_i given the others is Student's t, whose scale they learn."""
    y = np.array([0.3, -1.0, 2.0, 0.1, -0.4])
    with pm.Model() as model:
        s = pm.HalfNormal("s", 2.0)
        pm.Normal("y", pm.Normal("f", 0.0, s, shape=5), 0.5, observed=y)
        result = pmep.fit(hyper="integrate", draws=0, progressbar=False)
    found = pmep.loo_pit(result, model)
    scale = np.linspace(1e-4, 12, 20_001)
    prior = stats.halfnorm(scale=2.0).pdf(scale)
    density = stats.norm(0.0, np.sqrt(scale**2 + 0.25)).pdf(y[:, None])
    for i in range(5):
        weight = prior * np.delete(density, i, axis=0).prod(axis=0)
        cdf = stats.norm(0.0, np.sqrt(scale**2 + 0.25)).cdf(y[i])
        np.testing.assert_allclose(found["y_upper"][i], (weight * cdf).sum() / weight.sum(), atol=2e-3)
        expected = np.log((weight * density[i]).sum() / weight.sum())
        np.testing.assert_allclose(pointwise(pmep.loo(result))[i], expected, atol=5e-3)


def test_bad_input(gaussian, poisson):
    model, result = gaussian
    with pytest.raises(ValueError, match=r"groups='county' is neither a dim of 'y' \(x\) nor a pm\.Data"):
        pmep.loo(result, model, groups="county")
    with pytest.raises(ValueError, match=r"labels of shape \(3,\), but 'y' has observations of shape \(9,\)"):
        pmep.loo(result, model, groups=[0, 1, 2])
    with pytest.raises(ValueError, match="'z' is no observed variable with a site; these are y"):
        pmep.loo(result, var_name="z")
    with pytest.raises(ValueError, match=r"sites and|data of the model have changed"):
        pmep.loo(result, poisson[0], groups=GROUP)


def test_methods_without_cavities_are_refused(gaussian):
    fit = fit_group(gaussian[1]).drop_vars("y_loo").assign_attrs(method="dsb")
    with pytest.raises(ValueError, match="A fit by 'dsb' has no cavities"):
        pmep.loo(make_container({"fit": fit}))


def test_a_group_that_alone_determines_an_effect_is_refused():
    with pm.Model() as model:
        a = pm.Flat("a", shape=2)
        pm.Normal("y", a[[0, 0, 1, 1]], 1.0, observed=[0.1, 0.3, 1.0, 2.0])
        result = pmep.fit(draws=0, progressbar=False)
    with pytest.raises(ValueError, match="Nothing predicts a group of 'y', that at index 0"):
        pmep.loo(result, model, groups=[0, 0, 1, 1])
    assert np.isnan(excess_of(pmep.loo(result)))


def test_scores_are_not_those_of_data_set_since():
    """Scores of the result are of the fitted counts; data that no observed variable depends on may change."""
    with pm.Model() as model:
        counts, elsewhere = pm.Data("counts", [1.0, 2.0, 0.0, 4.0]), pm.Data("elsewhere", [0.0])
        level = pm.Normal("level", 0.0, 1.0)
        pm.Poisson("y", pm.math.exp(level), observed=counts)
        pm.Deterministic("moved", level + elsewhere)
        idata = pmep.fit(draws=20, log_likelihood=True, progressbar=False, random_seed=1)
        before = pmep.loo(idata, model)
        pm.set_data({"elsewhere": [1.0]})
        np.testing.assert_array_equal(pointwise(pmep.loo(idata, model)), pointwise(before))
        pm.set_data({"counts": [1.0, 2.0, 0.0, 5.0]})
        with pytest.raises(ValueError, match="'counts' has changed since the fit, whose scores"):
            pmep.loo(idata, model)
        pm.set_data({"counts": [1.0, 2.0, 0.0, 4.0]})
        np.testing.assert_array_equal(pointwise(pmep.loo(idata, model)), pointwise(before))


def test_scores_of_what_did_not_converge_warn(poisson, monkeypatch):
    """As ArviZ's comparison shows it: of a fit short of its end, and of groups whose own fits are."""
    model, result = poisson
    assert not pmep.loo(result)["warning"] and not pmep.loo(result, model, groups=GROUP)["warning"]
    with pytest.warns(pmep.ConvergenceWarning, match="stopped after 1"):
        short = pmep.fit(model=model, max_iter=1, draws=0, progressbar=False)
    assert pmep.loo(short)["warning"]
    loose = pmep.fit(model=model, tol=0.1, draws=0, progressbar=False)
    assert not pmep.loo(loose, model, groups=GROUP)["warning"]
    monkeypatch.setattr(leave_out, "_MAX_ITER", 1)
    assert not pmep.loo(loose)["warning"] and pmep.loo(loose, model, groups=GROUP)["warning"]


def log_evidence_of_normals(y):
    """Of y ~ N(mu, sigma^2), mu ~ N(0, 1), sigma ~ HalfNormal(10), by quadrature over sigma."""
    sigma = np.exp(np.linspace(np.log(0.05), np.log(80.0), 4001))
    n, mean = len(y), y.mean()
    log_density = stats.norm.logpdf(y[:, None], mean, sigma).sum(axis=0) + np.log(sigma * np.sqrt(2 * np.pi / n))
    log_density += stats.norm.logpdf(mean, 0.0, np.sqrt(1.0 + sigma**2 / n)) + stats.halfnorm(scale=10.0).logpdf(sigma)
    return logsumexp(log_density + np.log(sigma)) + np.log(np.log(sigma[1] / sigma[0]))


def test_an_outlier_that_moves_the_hyperparameters_is_left_out_by_a_refit():
    """Without it they are where none of their draws is, so that its density by these is off by 20 nats."""
    y = np.append(np.linspace(-1.0, 1.0, 12), 60.0)
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("level", 0, 1), pm.HalfNormal("sigma", 10.0), observed=y)
        result = pmep.fit(random_seed=1, progressbar=False)
    expected = log_evidence_of_normals(y) - log_evidence_of_normals(y[:12])
    for groups, what in ((None, "observations"), (np.arange(13), "groups")):
        found = pmep.loo(result, model, groups=groups, progressbar=False)
        assert not found["warning"]
        np.testing.assert_allclose(pointwise(found)[12], expected, atol=0.02)
        with pytest.warns(pmep.ConvergenceWarning, match=rf"Without some {what} \(12\) the hyperparameters"):
            assert pmep.loo(result, model, groups=groups, refit=False)["warning"]
    with pytest.warns(pmep.ConvergenceWarning, match="Give loo the model"):
        assert pmep.loo(result)["warning"]
    fit = fit_group(result)
    ess = fit["y_loo_ess"].to_numpy()
    assert ess[12] < 0.1 < 0.9 < ess[:12].min()
    assert fit["converged"] and "without observation 12 of 'y' the hyperparameters are elsewhere" in fit.attrs["status"]


@pytest.mark.parametrize("two_predictors", [False, True])
def test_a_group_that_moves_the_hyperparameters_is_left_out_by_a_refit(two_predictors):
    """Of a matrix of observations, with one predictor or two: the evidence is that of a model without its column."""
    rng = np.random.default_rng(3)
    y = rng.normal(size=(5, 7)) + rng.normal(size=7)
    y[:, 4] += 20.0

    def fitted(columns):
        with pm.Model() as model:
            effect = pm.Normal("effect", 0.0, pm.HalfNormal("between", 2.0), shape=7)[columns]
            level, log_scale = pm.Normal("level", 0.0, 5.0), pm.Normal("log_scale", 0.0, 1.0)
            slope = pm.Normal("slope", 0.0, 0.1) if two_predictors else 0.0
            scale = pm.math.exp(log_scale + slope * np.arange(5.0)[:, None])
            pm.Normal("y", level + effect, pt.broadcast_to(scale, (5, len(columns))), observed=y[:, columns])
            return model, pmep.fit(draws=0, progressbar=False)

    model, result = fitted(np.arange(7))
    labels = np.broadcast_to(np.arange(7), (5, 7))
    found = pmep.loo(result, model, groups=labels, progressbar=False)
    without = fitted(np.delete(np.arange(7), 4))[1]
    evidences = [float(fit_group(fit)["log_evidence"]) for fit in (result, without)]
    np.testing.assert_allclose(pointwise(found)[4], evidences[0] - evidences[1], atol=1e-3)
    assert not found["warning"]


@pytest.mark.parametrize("stop", [KeyboardInterrupt, None])
def test_interrupted_refits_leave_what_they_did_not_reach(stop, monkeypatch):
    """Of two outliers: the fit without the second is interrupted, before it has a state or in one."""
    with pm.Model() as model:
        scale, level = pm.HalfNormal("scale", 10.0, shape=2), pm.Normal("level", 0.0, 1.0)
        y = np.r_[np.linspace(-1.0, 1.0, 8), 30.0, np.linspace(-1.0, 1.0, 8), 40.0]
        pm.Normal("y", level, scale[np.repeat([0, 1], 9)], observed=y)
        result = pmep.fit(draws=0, progressbar=False)
    method, solved = refits.get_method("ep", compiled_form(model).form), []

    def solve(call):
        if solved and stop:
            raise stop
        solved.append(method.solve(call))
        return solved[0] if len(solved) == 1 else replace(solved[1], converged=False, status="interrupted after 3 fits")

    monkeypatch.setattr(refits, "get_method", lambda *_: replace(method, solve=solve))
    with pytest.warns(pmep.ConvergenceWarning, match=r"Without some observations \(17\) the"):
        found = pointwise(pmep.loo(result, model, progressbar=False))
    before = fit_group(result)["y_loo"]
    assert found[8] != before[8] and found[17] == before[17]
