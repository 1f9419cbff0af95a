"""The gradient of log evidence plus log prior against finite differences, through PyMC's own graphs."""

from functools import cache

import numpy as np
import pymc as pm
import pytest
import scipy.special

import pymc_ep as pmep
from pymc_ep.contracts.evidence import DesignPoint, nearest_points
from pymc_ep.evidence.ep.engine import EP
from pymc_ep.evidence.ep.evidence import Evidence, evidence_of
from pymc_ep.forms import compiled_form
from pymc_ep.models.latent_gaussian.methods.ep import OPTIONS

X = np.linspace(0.0, 4.0, 9)[:, None]
COUNTS = np.array([0, 1, 3, 2, 0, 1, 4, 2, 1])
REALS = np.array([0.2, -0.4, 1.0, 0.6, 6.0, -1.2, 0.3, 0.9, 0.1])
SIGNS = np.array([0, 1, 1, 0, 1, 0, 0, 1, 1])


def normal(f):
    pm.Normal("y", f, pm.HalfNormal("sigma", 1.0), observed=REALS)


def laplace(f):
    pm.Laplace("y", f, pm.HalfNormal("b", 1.0), observed=REALS)


def student_t(f):
    pm.StudentT("y", nu=pm.Gamma("nu", 3.0, 1.0), mu=f, sigma=pm.HalfNormal("sigma", 1.0), observed=REALS)


# What makes the likelihood, the hyperparameters that it adds, and the mean level.
LIKELIHOODS = {
    "normal": (normal, ["sigma"], 0.2),
    "laplace": (laplace, ["b"], 0.2),
    "student_t": (student_t, ["nu", "sigma"], 0.2),
    "poisson": (lambda f: pm.Poisson("y", pm.math.exp(f), observed=COUNTS), [], 0.5),
    "softplus_poisson": (lambda f: pmep.SoftplusPoisson("y", f, observed=COUNTS), [], 1.0),
    "rectified_poisson": (lambda f: pmep.RectifiedPoisson("y", f, observed=COUNTS), [], 1.5),
    "rectified_poisson without mass at zero": (
        lambda f: pmep.RectifiedPoisson("y", f, zero_mass=False, observed=COUNTS),
        [],
        1.5,
    ),
    "probit": (lambda f: pm.Bernoulli("y", p=pm.math.invprobit(f), observed=SIGNS), [], 0.2),
    "logit": (lambda f: pm.Bernoulli("y", logit_p=f, observed=SIGNS), [], 0.2),
}


@cache
def recognised(name):
    likelihood, added, centre = LIKELIHOODS[name]
    with pm.Model() as model:
        ell = pm.InverseGamma("ell", mu=1.5, sigma=1.0)
        amp = pm.HalfNormal("amp", 2.0)
        level = pm.Normal("level", centre, 1.0)
        cov = amp**2 * pm.gp.cov.Matern52(1, ell)
        f = pm.gp.Latent(mean_func=pm.gp.mean.Constant(level), cov_func=cov).prior("f", X=X)
        likelihood(f)
    form = compiled_form(model, ("f",))
    assert set(form.form.hyper_names) == {"ell", "amp", "level", *added}
    return form


@pytest.mark.parametrize("power", [1.0, 0.5])
@pytest.mark.parametrize("name", LIKELIHOODS)
def test_gradient(name, power):
    form = recognised(name)
    evidence = Evidence(form, EP(form.sites, power=power, tol=1e-10), max_iter=400)
    theta = form.start + 0.1 * np.random.default_rng(1).normal(size=form.start.size)
    centre = evidence.at(theta)
    assert centre.run.status.converged, centre.run.status.sentence
    gradient = evidence.gradient(centre)

    def value(i, step):
        moved = theta.copy()
        moved[i] += step
        at = evidence.at(moved, centre.sites)
        assert at.run.status.converged
        return at.value

    # Central differences of fourth order.
    h = 2e-3
    numeric = [
        (8 * (value(i, h) - value(i, -h)) - (value(i, 2 * h) - value(i, -2 * h))) / (12 * h) for i in range(theta.size)
    ]
    np.testing.assert_allclose(gradient, numeric, rtol=1e-6, atol=1e-6)
    # log evidence and log prior are kept apart.
    np.testing.assert_allclose(centre.value - centre.log_z, centre.prior.log_prior)


def closed_form(theta):
    """log evidence plus log prior of the model with Gaussian noise, written out; theta may be complex."""
    ell, amp, sigma = np.exp(theta[0]), np.exp(theta[1]), np.exp(theta[3])
    level = theta[2]
    r = np.sqrt(5.0) * np.abs(X - X.T) / ell
    # gp.Latent stabilises its covariance by 1e-6.
    covariance = amp**2 * (1 + r + r**2 / 3) * np.exp(-r) + (sigma**2 + 1e-6) * np.eye(len(X))
    residual = REALS - level
    evidence = -0.5 * (
        residual @ np.linalg.solve(covariance, residual)
        + np.log(np.linalg.det(covariance))
        + len(X) * np.log(2 * np.pi)
    )
    alpha = 1.5**2 + 2.0
    beta = 1.5 * (alpha - 1.0)
    prior = alpha * np.log(beta) - scipy.special.gammaln(alpha) - (alpha + 1) * np.log(ell) - beta / ell
    prior += 0.5 * np.log(2 / np.pi) - np.log(2.0) - amp**2 / 8
    prior += -0.5 * np.log(2 * np.pi) - 0.5 * (level - 0.2) ** 2
    prior += 0.5 * np.log(2 / np.pi) - sigma**2 / 2
    return evidence + prior


def test_gaussian_evidence_is_the_marginal_likelihood():
    """For Gaussian noise value and gradient are those of the closed form, differentiated by complex steps."""
    form = recognised("normal")
    assert form.form.hyper_names == ("ell", "amp", "level", "sigma")
    theta = form.start + 0.1
    evidence = Evidence(form, EP(form.sites), max_iter=5)
    at = evidence.at(theta)
    np.testing.assert_allclose(at.value, closed_form(theta), rtol=1e-8)
    slope = [closed_form(theta + 1e-30j * unit).imag / 1e-30 for unit in np.eye(4)]
    np.testing.assert_allclose(evidence.gradient(at), slope, rtol=1e-8)


@pytest.mark.parametrize("sigma", [1e-3, 3e-7, 1e-8])
@pytest.mark.parametrize("solver", ["observations", "coefficients"])
def test_the_gradient_of_a_noise_scale_far_below_the_priors(sigma, solver):
    """Cavities of Gaussian sites are flat there; differences of the density of the data, to 50 digits."""
    n, sd = 6, 0.7
    y = np.sin(np.arange(n))
    with pm.Model() as model:
        scale = pm.HalfNormal("scale", 1.0)
        pm.Normal("y", pm.Normal("f", 0.0, sd, shape=n), scale, observed=y)
    form = compiled_form(model)
    evidence = evidence_of(form, OPTIONS | {"solver": solver}, density="none")
    gradient = evidence.gradient(evidence.at(np.log([sigma])))
    # log N(y; 0, sd^2 + sigma^2) in log sigma.
    total = sd**2 + sigma**2
    expected = np.sum(y**2 / total - 1.0) * sigma**2 / total
    np.testing.assert_allclose(gradient, [expected], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("name", ["poisson", "logit"])
def test_a_fit_between_others_is_near_enough(name):
    """log Z and its gradient are those of a fit by itself, and the start is nearer than the nearest fit."""
    form = recognised(name)
    evidence, rng = evidence_of(form, OPTIONS), np.random.default_rng(2)
    points = []
    for theta in form.start + 0.4 * rng.normal(size=(14, form.start.size)):
        at = evidence.at(theta)
        gradient = evidence.gradient(at)
        points.append(DesignPoint(theta, at.log_z, gradient, at.log_prior, at.state, evidence.kept(at)))
    theta = np.mean([point.theta for point in points[:5]], axis=0)
    near, between, alone = nearest_points(points, theta, 1)[0], evidence.explored(theta, points), evidence.at(theta)
    assert 0.0 < np.abs(between.sites[0] - alone.sites[0]).max() < 1e-4
    np.testing.assert_allclose(between.log_z, alone.log_z, atol=1e-7)
    np.testing.assert_allclose(evidence.gradient(between), evidence.gradient(alone), atol=1e-4)
    assert between.run.change[0] < 0.5 * evidence.settled(theta, near.state).run.change[0]


def test_few_coefficients_of_many_observations():
    """All sites err together: the tolerance of a fit between others is smaller than for as many effects."""
    rng, n = np.random.default_rng(3), 4000
    x = rng.normal(size=n)
    with pm.Model() as model:
        slope = pm.Normal("slope", 0.0, pm.HalfNormal("scale", 1.0), shape=2)
        pm.Bernoulli("y", logit_p=slope[0] + slope[1] * x, observed=rng.random(n) < 1 / (1 + np.exp(-x)))
    form = compiled_form(model, ("slope",))
    evidence, points = evidence_of(form, OPTIONS), []
    for theta in np.array([[-2.0], [0.0], [1.0]]):
        at = evidence.at(theta)
        kept, gradient = evidence.kept(at), evidence.gradient(at)
        points.append(DesignPoint(theta, at.log_z, gradient, at.log_prior, at.state, kept))
    for theta in np.array([[-1.0], [-0.5], [1.5]]):
        between, alone = evidence.explored(theta, points), evidence.at(theta)
        np.testing.assert_allclose(between.log_z, alone.log_z, atol=1e-6)
        np.testing.assert_allclose(evidence.gradient(between), evidence.gradient(alone), atol=2e-3)
