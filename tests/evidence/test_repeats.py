"""Observations that share a predictor: fits against quadrature, and against what tells them apart."""

import math
import warnings

import numpy as np
import pymc as pm
import pytest
import scipy.integrate
import scipy.special

import pymc_ep as pmep
from pymc_ep.evidence.ep.evidence import evidence_of
from pymc_ep.forms import compiled_form
from pymc_ep.models.latent_gaussian.methods.ep import OPTIONS

GRID = np.linspace(-90.0, 90.0, 360_001)
COUNTS = np.array([0, 1, 0, 0, 2, 0, 0, 1, 0, 0, 0, 3])
TRIALS = np.array([1, 3, 2, 5, 1, 4])
PASSED = np.array([1, 3, 1, 5, 1, 4])


def of_counts(log_rate, y=COUNTS):
    return y[:, None] * log_rate - np.exp(log_rate) - scipy.special.gammaln(y[:, None] + 1)


def of_trials(log_p, log_q):
    combinations = np.log(scipy.special.comb(TRIALS, PASSED))[:, None]
    return combinations + PASSED[:, None] * log_p + (TRIALS - PASSED)[:, None] * log_q


# The likelihood in a model, and the log density of each observation on the grid.
MODELS = {
    "ones under a logit": (
        lambda f: pm.Bernoulli("y", logit_p=f, observed=np.ones(20)),
        np.tile(-np.logaddexp(0, -GRID), (20, 1)),
    ),
    "zeros under a log": (
        lambda f: pm.Poisson("y", pm.math.exp(f), observed=np.zeros(57)),
        np.tile(-np.exp(GRID), (57, 1)),
    ),
    "counts": (lambda f: pm.Poisson("y", pm.math.exp(f), observed=COUNTS), of_counts(GRID)),
    "softplus": (
        lambda f: pmep.SoftplusPoisson("y", f, observed=COUNTS),
        of_counts(np.log(np.maximum(np.logaddexp(0, GRID), 1e-300))),
    ),
    "overdispersed": (
        lambda f: pm.NegativeBinomial("y", mu=pm.math.exp(f), alpha=0.7, observed=COUNTS),
        COUNTS[:, None] * (GRID - np.logaddexp(np.log(0.7), GRID))
        + 0.7 * (np.log(0.7) - np.logaddexp(np.log(0.7), GRID))
        + scipy.special.gammaln(COUNTS[:, None] + 0.7)
        - scipy.special.gammaln(0.7)
        - scipy.special.gammaln(COUNTS[:, None] + 1),
    ),
    "probit": (
        lambda f: pm.Bernoulli("y", p=pm.math.invprobit(f), observed=np.ones(57)),
        np.tile(scipy.special.log_ndtr(GRID), (57, 1)),
    ),
    "trials": (
        lambda f: pm.Binomial("y", TRIALS, p=pm.math.invprobit(f), observed=PASSED),
        of_trials(scipy.special.log_ndtr(GRID), scipy.special.log_ndtr(-GRID)),
    ),
}


def exact(log_t, sd):
    """Mean, sd and log evidence under N(0, sd^2), and log p(y_i | y_-i) of each observation."""
    step = GRID[1] - GRID[0]
    log_prior = -0.5 * (GRID / sd) ** 2 - 0.5 * math.log(2 * np.pi * sd**2)
    log_p = log_t.sum(axis=0) + log_prior
    log_z = scipy.special.logsumexp(log_p) + math.log(step)
    weight = np.exp(log_p - log_p.max())
    weight /= weight.sum()
    mean = weight @ GRID
    without = [scipy.special.logsumexp(log_p - own) + math.log(step) for own in log_t]
    return mean, np.sqrt(weight @ (GRID - mean) ** 2), log_z, log_z - np.array(without)


@pytest.mark.parametrize("kind", MODELS)
def test_one_predictor_is_exact(kind):
    likelihood, log_t = MODELS[kind]
    with pm.Model(), warnings.catch_warnings():
        warnings.simplefilter("error", pmep.ConvergenceWarning)
        likelihood(pm.Normal("f", 0.0, 10.0) + np.zeros(len(log_t)))
        found = pmep.fit(draws=0, progressbar=False)
    mean, sd, log_z, left_out = exact(log_t, 10.0)
    np.testing.assert_allclose(found["posterior_mean"]["f"], mean, rtol=1e-7, atol=1e-7)
    np.testing.assert_allclose(found["posterior_sd"]["f"], sd, rtol=1e-7)
    np.testing.assert_allclose(found["fit"]["log_evidence"], log_z, atol=1e-7)
    np.testing.assert_allclose(found["fit"]["y_loo"], left_out, atol=1e-6)


def test_rectified_counts_are_exact():
    y, sd = np.array([0, 2, 0, 1, 1]), 4.0
    with pm.Model():
        pmep.RectifiedPoisson("y", pm.Normal("f", 0.0, sd) + np.zeros(5), observed=y)
        found = pmep.fit(draws=0, progressbar=False)
    weight = scipy.integrate.quad(lambda f: f**4 * math.exp(-5 * f - 0.5 * (f / sd) ** 2), 0, 40)[0]
    moment = scipy.integrate.quad(lambda f: f**5 * math.exp(-5 * f - 0.5 * (f / sd) ** 2), 0, 40)[0]
    np.testing.assert_allclose(found["posterior_mean"]["f"], moment / weight, rtol=1e-9)
    expected = math.log(weight) - 0.5 * math.log(2 * np.pi * sd**2) - math.log(2.0)
    np.testing.assert_allclose(found["fit"]["log_evidence"], expected, rtol=1e-9)


def grouped(likelihood, groups=4, n=30, offset=0.0, seed=0):
    """A model of groups of observations, with hyperparameters."""
    rng = np.random.default_rng(seed)
    group = rng.integers(groups, size=n)
    with pm.Model() as model:
        scale = pm.HalfNormal("scale", 1.0)
        level = pm.Normal("level", 0.0, 2.0)
        effect = pm.Normal("effect", 0.0, scale, shape=groups)
        likelihood(level + effect[group] + offset, rng.poisson(1.5, size=n))
    return model


def negative_binomial(eta, y):
    pm.NegativeBinomial("y", mu=pm.math.exp(eta), alpha=pm.Gamma("alpha", 2.0, 1.0), observed=y)


def gamma(eta, y):
    pm.Gamma("y", alpha=(alpha := pm.Gamma("alpha", 2.0, 1.0)), beta=alpha / pm.math.exp(eta), observed=y + 0.5)


def bernoulli(eta, y):
    pm.Bernoulli("y", logit_p=eta, observed=np.minimum(y, 1))


@pytest.mark.parametrize("likelihood", [negative_binomial, gamma, bernoulli])
@pytest.mark.parametrize(("groups", "solver"), [(4, "observations"), (4, "coefficients"), (150, "coefficients")])
def test_gradient_against_differences(likelihood, groups, solver):
    form = compiled_form(grouped(likelihood, groups, n=3 * groups))
    evidence = evidence_of(form, OPTIONS | {"solver": solver, "tol": 1e-11})
    theta = np.full(form.start.size, -0.3)
    at = evidence.at(theta)
    assert at.repeats.any and len(at.problem.mean) <= groups
    found = evidence.gradient(at)
    for k, step in enumerate(1e-4 * np.eye(theta.size)):
        difference = (evidence.at(theta + step).value - evidence.at(theta - step).value) / 2e-4
        np.testing.assert_allclose(found[k], difference, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize(
    ("mode", "options"),
    [("JAX", {}), (None, {"schedule": "sequential", "max_iter": 1000}), (None, {"solver": "observations"})],
)
def test_the_ways_of_a_fit_agree(mode, options):
    model = grouped(gamma, groups=3, n=12)
    usual = evidence_of(compiled_form(model), OPTIONS | {"tol": 1e-10})
    other = evidence_of(
        compiled_form(model, compile_kwargs=None if mode is None else {"mode": mode}),
        OPTIONS | {"tol": 1e-10} | options,
    )
    expected, found = (one.at(one.form.start) for one in (usual, other))
    np.testing.assert_allclose(found.log_z, expected.log_z, atol=1e-7)
    np.testing.assert_allclose(found.sites, expected.sites, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(other.gradient(found), usual.gradient(expected), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(other.leave_one_out(found), usual.leave_one_out(expected), atol=1e-6)


def test_equal_by_chance_is_not_equal():
    """A slope that starts at zero, and dispersions that start at one value."""
    x, y = np.array([0.0, 1.0, 2.0, 0.0]), np.array([1, 3, 0, 2])
    with pm.Model() as model:
        slope = pm.Uniform("slope", -1.0, 1.0, initval=0.0)
        alpha = pm.Gamma("alpha", 2.0, 1.0, shape=4)
        eta = pm.Normal("f", 0.0, 1.0) + slope * x
        pm.NegativeBinomial("y", mu=pm.math.exp(eta), alpha=alpha, observed=y)
    with pm.Model() as without_dispersion:
        slope = pm.Uniform("slope", -1.0, 1.0, initval=0.0)
        pm.Poisson("y", pm.math.exp(pm.Normal("f", 0.0, 1.0) + slope * x), observed=y)
    for one, distinct in ((model, 4), (without_dispersion, 3)):
        evidence = evidence_of(compiled_form(one), OPTIONS)
        assert len(evidence.at(evidence.form.start).problem.mean) == distinct


def test_what_follows_a_fit_sees_each_observation():
    model = grouped(bernoulli)
    told_apart = grouped(bernoulli, offset=1e-9 * np.arange(30))
    fits = [pmep.fit(model=one, random_seed=1, progressbar=False) for one in (model, told_apart)]
    for name in ("y_loo", "y_site_precision", "y_site_shift"):
        assert fits[0]["fit"][name].shape == (30,)
    # With so weak evidence EP of single observations is nearly exact, too.
    np.testing.assert_allclose(fits[0]["fit"]["y_loo"], fits[1]["fit"]["y_loo"], atol=0.05)
    np.testing.assert_allclose(fits[0]["posterior_sd"]["effect"], fits[1]["posterior_sd"]["effect"], rtol=0.03)
    again = pmep.fit(model=model, start=fits[0], draws=0, progressbar=False)
    np.testing.assert_allclose(again["fit"]["log_evidence"], fits[0]["fit"]["log_evidence"], atol=1e-3)
    told = [pmep.diagnose(fit, one) for fit, one in zip(fits, (model, told_apart))]
    assert told[0]["y_evidence_share"].shape == (30,)
    np.testing.assert_allclose(told[0]["y_evidence_share"].sum(), told[0]["cumulant_correction"], atol=1e-3)


def test_groups_of_observations_left_out():
    """Half of the observations of each predictor, given the other half, by quadrature."""
    rng = np.random.default_rng(0)
    group, half = rng.integers(4, size=30), np.arange(30) % 2
    y = rng.poisson(1.5, size=30)
    with pm.Model() as model:
        pm.Poisson("y", pm.math.exp(pm.Normal("effect", 0.0, 2.0, shape=4)[group]), observed=y)
        found = pmep.loo(pmep.fit(draws=0, progressbar=False), model, groups=half)
    log_p = of_counts(GRID, y)
    log_prior = -0.5 * (GRID / 2.0) ** 2
    for k, value in enumerate(np.ravel(found.elpd_i if hasattr(found, "elpd_i") else found.loo_i)):
        expected = 0.0
        for own in (group == j for j in range(4)):
            whole, rest = (log_p[own & used].sum(axis=0) + log_prior for used in (np.full(30, True), half != k))
            expected += scipy.special.logsumexp(whole) - scipy.special.logsumexp(rest)
        np.testing.assert_allclose(value, expected, atol=1e-6)


def test_new_groups_are_seen_by_a_sampler():
    group, other = np.array([0, 0, 1, 1, 2, 2]), np.array([0, 1, 0, 1, 2, 2])
    with pm.Model() as model:
        which = pm.Data("which", group)
        effect = pm.Normal("effect", 0.0, pm.HalfNormal("scale", 1.0), shape=3)
        pm.Poisson("y", pm.math.exp(effect[which]), observed=[0, 4, 1, 2, 0, 1])
    marginal = pmep.marginalize(model, ["effect"])
    density = marginal.compile_logp()
    point = marginal.initial_point()
    before = float(density(point))
    with model:
        pm.set_data({"which": other})
    with marginal:
        if "which" in marginal.named_vars:
            pm.set_data({"which": other})
    after = float(density(point))
    fresh = float(pmep.marginalize(model, ["effect"]).compile_logp()(point))
    np.testing.assert_allclose(after, fresh, rtol=1e-8)
    assert abs(after - before) > 1e-3
