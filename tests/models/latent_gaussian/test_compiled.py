"""The compiled form: moments of affine variables, exact pullbacks, and the posterior built on them."""

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest

from pymc_ep.exceptions import NumericalError
from pymc_ep.forms import compiled_form
from pymc_ep.models.latent_gaussian.posterior import LatentPosterior
from pymc_ep.numerics.backend.cholesky import counts

N = 6
X = np.linspace(0.0, 2.0, N)[:, None]
REALS = np.array([0.2, -0.4, 1.0, 0.6, 2.0, -1.2])
GROUP = np.array([0, 0, 1, 1, 2, 2])


@pytest.fixture(scope="module")
def form():
    """A non-centred GP plus a centred hierarchy, with a learned scale of each."""
    with pm.Model() as model:
        amp = pm.HalfNormal("amp", 1.0)
        tau = pm.HalfNormal("tau", 1.0, shape=3)
        mu = pm.Normal("mu", 0.4, 2.0)
        a = pm.Normal("a", mu, tau, shape=3)
        f = pm.gp.Latent(cov_func=amp**2 * pm.gp.cov.ExpQuad(1, 0.8)).prior("f", X=X)
        pm.Deterministic("contrast", a[1:] - a[0])
        pm.Deterministic("exp_f", pt.exp(f))
        pm.Normal("y", f + a[GROUP], 0.5, observed=REALS)
    return compiled_form(model)


THETA = np.array([0.2, -0.3, 0.1, 0.4])
AMP, TAU = np.exp(THETA[0]), np.exp(THETA[1:])
KERNEL = AMP**2 * np.exp(-0.5 * (X - X.T) ** 2 / 0.64) + 1e-6 * np.eye(N)
GATHER = np.eye(3)[GROUP]
LEVELS = 4.0 + np.diag(TAU**2)


def about_the_data(shift, precision):
    """Shifts of sites whose predictors are counted from the observations."""
    return shift - precision * REALS


def test_moments_of_affine_variables(form):
    parts = form.affine_moments(THETA)
    assert set(parts) == {"mu", "a", "f_rotated_", "f", "contrast"}
    step = np.array([[-1.0, 1.0, 0.0], [-1.0, 0.0, 1.0]])
    expected = {
        "mu": (0.4, np.full((1, N), 4.0), [4.0]),
        "a": (np.full(3, 0.4), LEVELS @ GATHER.T, LEVELS.diagonal()),
        "f": (np.zeros(N), KERNEL, KERNEL.diagonal()),
        "f_rotated_": (np.zeros(N), np.linalg.cholesky(KERNEL).T, np.ones(N)),
        "contrast": (np.zeros(2), step @ LEVELS @ GATHER.T, (step @ LEVELS @ step.T).diagonal()),
    }
    for name, (mean, cross, variance) in expected.items():
        np.testing.assert_allclose(parts[name].mean, mean, atol=1e-12, err_msg=name)
        np.testing.assert_allclose(parts[name].cross, cross, atol=1e-9, err_msg=name)
        np.testing.assert_allclose(parts[name].variance, variance, atol=1e-12, err_msg=name)


def test_pullback_is_the_adjoint_of_finite_differences(form):
    rng = np.random.default_rng(0)
    d_mean, root, d_sigma = rng.normal(size=N), rng.normal(size=(N, N)), rng.normal(size=N)
    d_covariance = root + root.T

    def value(theta):
        prior = form.prior(theta)
        pushed = (
            d_mean @ prior.mean + (d_covariance * prior.gaussian.covariance).sum() + d_sigma @ prior.parameters[0][0]
        )
        return pushed + prior.log_prior

    h = 1e-5
    numeric = [(value(THETA + h * e) - value(THETA - h * e)) / (2 * h) for e in np.eye(4)]
    found = form.pullback(THETA, d_mean, d_covariance, [[d_sigma]])
    np.testing.assert_allclose(found, numeric, rtol=1e-7, atol=1e-7)


def test_posterior_at_fixed_hyperparameters_is_regression(form):
    """Gaussian sites of precision 4 on REALS: joint moments of everything by one Gaussian conditional."""
    precision, shift = np.full(N, 4.0), 4.0 * REALS
    none = np.zeros((0, N))
    posterior = LatentPosterior(form, THETA, about_the_data(shift, precision), precision, np.zeros((0, 4)), none, none)
    total = KERNEL + GATHER @ LEVELS @ GATHER.T + 0.25 * np.eye(N)
    weights = np.linalg.solve(total, REALS - 0.4)
    moments = posterior.moments()
    cross = {"a": LEVELS @ GATHER.T, "f": KERNEL, "f_rotated_": np.linalg.cholesky(KERNEL).T}
    prior = {"a": (0.4, LEVELS), "f": (0.0, KERNEL), "f_rotated_": (0.0, np.eye(N))}
    values, likelihood, *_ = posterior.draws(20_000, np.random.default_rng(1), log_likelihood=True)
    for name, part in cross.items():
        covariance = prior[name][1] - part @ np.linalg.solve(total, part.T)
        sd = np.sqrt(covariance.diagonal())
        mean = prior[name][0] + part @ weights
        np.testing.assert_allclose(moments[name].mean, mean, atol=1e-8, err_msg=name)
        np.testing.assert_allclose(moments[name].sd, sd, rtol=1e-6, err_msg=name)
        error = (values[name].mean(axis=0) - mean) / sd
        np.testing.assert_allclose(error, 0.0, atol=5 / np.sqrt(20_000), err_msg=name)
        scaled = (np.cov(values[name].T) - covariance) / np.outer(sd, sd)
        np.testing.assert_allclose(scaled, 0.0, atol=7 / np.sqrt(20_000), err_msg=name)
    np.testing.assert_allclose(values["exp_f"], np.exp(values["f"]), rtol=1e-10)
    np.testing.assert_allclose(values["contrast"], values["a"][:, 1:] - values["a"][:, :1], atol=1e-12)
    residual = REALS - values["f"] - values["a"][:, GROUP]
    np.testing.assert_allclose(likelihood["y"], -0.5 * np.log(2 * np.pi * 0.25) - 2 * residual**2, atol=1e-6)
    # a and f compete for the same data: their draws are of one joint distribution.
    joint = np.cov(values["a"][:, 0], values["f"][:, 0])[0, 1]
    expected = -(LEVELS @ GATHER.T)[0] @ np.linalg.solve(total, KERNEL[:, 0])
    np.testing.assert_allclose(joint, expected, atol=0.02)


def test_hyperparameters_have_log_normal_moments(form):
    none = np.zeros((4, N))
    directions = np.diag([0.1, 0.2, 0.3, 0.4])
    posterior = LatentPosterior(form, THETA, 4.0 * REALS, np.full(N, 4.0), directions, none, none)
    moments = posterior.hyper_moments()
    spread = np.array([0.1, 0.2, 0.3, 0.4])
    mean = np.exp(THETA + spread**2 / 2)
    sd = mean * np.sqrt(np.expm1(spread**2))
    np.testing.assert_allclose(moments["amp"].mean, mean[0], rtol=1e-10)
    np.testing.assert_allclose(moments["tau"].mean, mean[1:], rtol=1e-10)
    np.testing.assert_allclose(np.r_[moments["amp"].sd, moments["tau"].sd], sd, rtol=1e-8)


def test_precisions_that_leave_zero_along_a_direction(form):
    """Moved to first order a weak site is negative on one side; its mean's slope is that of the formula, unclipped."""
    precision, shift = np.full(N, 4.0), 4.0 * REALS
    precision[2], shift[2] = 0.01, 0.0
    directions, d_precision = 0.1 * np.eye(4), np.zeros((4, N))
    d_precision[3, 2] = 1.0
    own, d_own = about_the_data(shift, precision), about_the_data(np.zeros((4, N)), d_precision)
    posterior = LatentPosterior(form, THETA, own, precision, directions, d_own, d_precision)
    found = posterior.moments()["f"]

    def mean(step, direction):
        theta = THETA + step * directions[direction]
        kernel = np.exp(2 * theta[0]) * np.exp(-0.5 * (X - X.T) ** 2 / 0.64) + 1e-6 * np.eye(N)
        prior = kernel + GATHER @ (4.0 + np.diag(np.exp(2 * theta[1:]))) @ GATHER.T
        moved = precision + step * d_precision[direction]
        weights = np.linalg.solve(np.eye(N) + np.diag(moved) @ prior, shift - moved * 0.4)
        return kernel @ weights

    slopes = [(mean(0.05, i) - mean(-0.05, i)) / 0.1 for i in range(4)]
    still = LatentPosterior(form, THETA, own, precision, np.zeros((0, 4)), np.zeros((0, N)), np.zeros((0, N)))
    expected = np.sqrt(still.moments()["f"].sd ** 2 + np.square(slopes).sum(axis=0))
    np.testing.assert_allclose(found.sd, expected, rtol=1e-6)


def test_a_difference_without_a_posterior_is_made_shorter(form):
    """Precisions that run to -10 within the usual width: the derivative is taken from nearer the mode."""
    precision, shift = np.full(N, 0.5), 0.5 * REALS
    d_precision = np.zeros((4, N))
    d_precision[3] = 200.0
    posterior = LatentPosterior(form, THETA, shift, precision, 0.1 * np.eye(4), np.zeros((4, N)), d_precision)
    assert all(low[2].proper and high[2].proper for _, low, high in posterior._differences)
    assert posterior._differences[3][0] < posterior._differences[0][0]
    assert np.all(np.isfinite(posterior.moments()["f"].sd))


def test_negative_variances_are_no_rounding():
    """A covariance with a negative eigenvalue, and sites that see it."""
    bad = np.array([[1.0, 1.2], [1.2, 1.0]])
    with pm.Model() as model:
        f = pm.MvNormal("f", np.zeros(2), bad)
        pm.Normal("y", f, 10.0, observed=[0.0, 1.0])
        pm.Deterministic("difference", f[0] - f[1])
    posterior = LatentPosterior(
        compiled_form(model), np.zeros(0), np.zeros(2), np.full(2, 0.01), *[np.zeros((0, k)) for k in (0, 2, 2)]
    )
    with pytest.raises(NumericalError, match=r"'difference' is -.*not positive definite"):
        posterior.moments()


def test_nothing_is_done_twice(form, monkeypatch):
    """What is known at the mode is taken, and a likelihood's parameters are compiled once."""
    none = np.zeros((0, N))
    state = (form, THETA, 4.0 * REALS, np.full(N, 4.0), np.zeros((0, 4)), none, none)
    first = LatentPosterior(*state)
    known = LatentPosterior(*state, mode=first.mode[1:])
    before = counts["factorizations"]
    np.testing.assert_array_equal(known.moments()["f"].sd, first.moments()["f"].sd)
    assert counts["factorizations"] == before
    _, (sigma,) = form.site_at(THETA, form.form.groups[0])
    monkeypatch.setattr(pytensor, "function", None)
    np.testing.assert_array_equal(form.site_at(THETA + 1.0, form.form.groups[0])[1][0], sigma)
