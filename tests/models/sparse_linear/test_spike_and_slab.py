"""Coefficients under a mixture of two normals, a spike and a slab, against enumeration of their states."""

import itertools

import numpy as np
import pymc as pm
import pytest
from scipy.special import logsumexp
from scipy.stats import beta, halfnorm

import pymc_ep as pmep
from pymc_ep.compat import group

RNG = np.random.default_rng(3)
N, P = 24, 8
X = RNG.standard_normal((N, P))
X[:, 1] = 0.5 * X[:, 0] + RNG.standard_normal(N)
Y = X @ [1.5, 0, 0, 0.3, 0, -2, 0, 0] + RNG.standard_normal(N)
SPIKE, SLAB, WEIGHT = 0.05, 1.5, 0.3
QUIET = {"progressbar": False, "draws": 0}


def one_normal(w, spike, slab):
    return pm.NormalMixture("beta", w=pm.math.stack([1 - w, w]), mu=0, sigma=pm.math.stack([spike, slab]), shape=P)


def two_normals(w, spike, slab):
    normals = [pm.Normal.dist(0.0, spike), pm.Normal.dist(0.0, slab)]
    return pm.Mixture("beta", w=pm.math.stack([1 - w, w]), comp_dists=normals, shape=P)


def model(prior=one_normal, order=None, location=0.0, learn=False):
    order = np.arange(P) if order is None else order
    with pm.Model() as out:
        w = pm.Beta("w", 2, 4) if learn else WEIGHT
        beta = prior(w, SPIKE, pm.HalfNormal("slab", 2) if learn else SLAB)
        pm.Normal("y", location + X[:, order] @ beta, 1.0, observed=Y + location)
    return out


def exact(weight=WEIGHT, slab=SLAB):
    """Log evidence; means, standard deviations and probabilities of the slab of each coefficient."""
    logs, means, variances, states = [], [], [], np.array(list(itertools.product((0, 1), repeat=P)))
    for state in states:
        d = np.where(state, slab, SPIKE) ** 2
        covariance = (X * d) @ X.T + np.eye(N)
        gain = np.linalg.solve(covariance, X * d).T
        log_density = -0.5 * (np.linalg.slogdet(2 * np.pi * covariance)[1] + Y @ np.linalg.solve(covariance, Y))
        logs.append(log_density + np.log(np.where(state, weight, 1 - weight)).sum())
        means.append(gain @ Y)
        variances.append(d - np.einsum("pn,np->p", gain, X * d))
    share = np.exp(logs - logsumexp(logs))
    mean = share @ means
    return logsumexp(logs), mean, np.sqrt(share @ (np.array(variances) + np.square(means)) - mean**2), share @ states


@pytest.mark.parametrize("prior", [one_normal, two_normals])
def test_moments_and_indicators_are_those_of_enumeration(prior):
    found = pmep.fit(model=model(prior), **QUIET)
    log_evidence, mean, sd, slab = exact()
    fit = group(found, "fit")
    assert bool(fit["converged"]) and fit.attrs["method"] == "ep"
    np.testing.assert_allclose(float(fit["log_evidence"]), log_evidence, atol=0.002)
    np.testing.assert_array_less(np.abs(group(found, "posterior_mean")["beta"] - mean), 0.01 * sd)
    np.testing.assert_allclose(group(found, "posterior_sd")["beta"], sd, rtol=0.01)
    np.testing.assert_allclose(fit["beta_indicator"], slab, atol=0.002)


def test_columns_in_another_order_have_the_same_answer():
    order = RNG.permutation(P)
    fits = [pmep.fit(model=model(order=columns), **QUIET) for columns in (np.arange(P), order)]
    evidence = [float(group(found, "fit")["log_evidence"]) for found in fits]
    np.testing.assert_allclose(*evidence, rtol=1e-8)
    first, second = (group(found, "fit")["beta_indicator"].to_numpy() for found in fits)
    np.testing.assert_allclose(first[order], second, atol=1e-6)


def test_correlated_coefficients_in_doubt_are_told():
    """Two columns that are nearly one: either may have the effect."""
    twins = X.copy()
    twins[:, 1] = X[:, 0] + 0.05 * RNG.standard_normal(N)
    with pm.Model() as either:
        beta = one_normal(WEIGHT, SPIKE, SLAB)
        pm.Normal("y", twins @ beta, 1.0, observed=Y)
    with pytest.warns(pmep.ConvergenceWarning, match="'beta' at 0 and 1 are correlated, and both in doubt"):
        pmep.fit(model=either, **QUIET)


def test_the_weight_and_the_slab_are_integrated_over():
    found = pmep.fit(model=model(learn=True), **QUIET)
    assert "hyperparameters integrated over by" in group(found, "fit").attrs["status"]
    nodes, weights = np.polynomial.legendre.leggauss(14)
    w, slab = 0.5 + 0.5 * nodes, 4.0 + 4.0 * nodes
    log_prior = beta(2, 4).logpdf(w)[:, None] + halfnorm(scale=2).logpdf(slab)
    log_density = log_prior + [[exact(p, scale)[0] for scale in slab] for p in w]
    mass = np.exp(log_density - log_density.max()) * weights[:, None] * weights
    log_evidence = np.log(2.0 * mass.sum()) + log_density.max()
    np.testing.assert_allclose(float(group(found, "fit")["log_evidence"]), log_evidence, atol=0.02)
    for name, mean in (("w", mass.sum(axis=1) @ w), ("slab", mass.sum(axis=0) @ slab)):
        np.testing.assert_allclose(float(group(found, "posterior_mean")[name]), mean / mass.sum(), rtol=0.02)


def test_the_double_loop_takes_them_too():
    found = pmep.fit(model=model(), method="dsb", **QUIET)
    assert float(group(found, "fit")["log_evidence"]) < exact()[0]


@pytest.mark.parametrize(
    "prior",
    [
        lambda *_: pm.NormalMixture("beta", w=[0.5, 0.3, 0.2], mu=0, sigma=[0.1, 1.0, 2.0], shape=P),
        lambda *_: pm.NormalMixture("beta", w=[0.5, 0.5], mu=[-1.0, 1.0], sigma=1.0, shape=P),
        lambda *_: pm.Mixture("beta", [0.5, 0.5], [pm.Normal.dist(0, 1), pm.Laplace.dist(0, 1)], shape=P),
    ],
)
def test_other_mixtures_are_refused(prior):
    with pytest.raises(pmep.UnsupportedModelError, match="Laplace ones, or mixtures of two normals about one value"):
        pmep.fit(model=model(prior), **QUIET)
