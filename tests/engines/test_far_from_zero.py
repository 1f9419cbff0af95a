"""Data far from zero: evidence, gradient and moments are those of the same data about zero, or of 50 digits."""

from functools import cache

import mpmath
import numpy as np
import pymc as pm
import pytest
import scipy.sparse

import pymc_ep as pmep
from pymc_ep.evidence.ep.evidence import evidence_of
from pymc_ep.forms import compiled_form
from pymc_ep.models.latent_gaussian.methods.ep import OPTIONS
from pymc_ep.numerics.backend.twofold import twofold_product

N = 49
RNG = np.random.default_rng(0)
X = np.linspace(-1.0, 1.0, N)
# Multiples of 1/64, which are added to whole numbers below 2^46 without rounding.
Y = np.round(64 * (np.sin(3 * X) + RNG.normal(size=N))) / 64
GROUP = np.repeat(np.arange(7), 7)
KERNEL = np.exp(-0.5 * (X[:, None] - X) ** 2 / 0.1) + 1e-6 * np.eye(N)

LATENTS = {
    "field": lambda at, s: pm.MvNormal("f", np.full(N, at), KERNEL),
    "regression": lambda at, s: pm.math.dot(np.c_[np.ones(N), X], pm.Normal("b", [at, 0.0], 3.0, shape=2)),
    "groups": lambda at, s: pm.Normal("u", pm.Normal("a", at, 2.0), s, shape=7)[GROUP],
}
NOISES = {
    "normal": lambda f, s, y: pm.Normal("y", f, s, observed=y),
    "student": lambda f, s, y: pm.StudentT("y", nu=4, mu=f, sigma=s, observed=y),
    "laplace": lambda f, s, y: pm.Laplace("y", f, s, observed=y),
    "asymmetric": lambda f, s, y: pm.AsymmetricLaplace("y", kappa=1.5, mu=f, b=s, observed=y),
}


@cache
def located(latent, noise, at):
    with pm.Model() as model:
        s = pm.HalfNormal("s", 2.0, initval=1.0)
        NOISES[noise](LATENTS[latent](at, s), s, Y + at)
    return model


def evidence_at_start(model, solver):
    evidence = evidence_of(compiled_form(model), OPTIONS | {"solver": solver})
    at = evidence.at(evidence.form.start)
    return at, evidence.gradient(at)


@pytest.mark.parametrize("solver", ["observations", "coefficients"])
@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("latent", LATENTS)
def test_evidence_and_gradient_do_not_depend_on_the_origin(latent, noise, solver):
    near, slope = evidence_at_start(located(latent, noise, 0.0), solver)
    for at in (1e8, 1e12):
        far, far_slope = evidence_at_start(located(latent, noise, at), solver)
        assert far.run.status.converged
        np.testing.assert_allclose(far.log_z, near.log_z, rtol=1e-10)
        np.testing.assert_allclose(far_slope, slope, rtol=1e-8)


@pytest.mark.parametrize("noise", NOISES)
def test_moments_do_not_depend_on_the_origin(noise):
    near, far = (
        pmep.fit(model=located("groups", noise, at), draws=0, progressbar=False, hyper="optimize") for at in (0.0, 1e8)
    )
    for name, origin in (("a", 1e8), ("u", 1e8), ("s", 0.0)):
        spread = near["posterior_sd"][name]
        moved = (far["posterior_mean"][name] - origin - near["posterior_mean"][name]) / spread
        np.testing.assert_allclose(moved, 0.0, atol=3e-7, err_msg=name)
        np.testing.assert_allclose(far["posterior_sd"][name], spread, rtol=1e-6, err_msg=name)
    np.testing.assert_allclose(far["fit"]["y_loo"], near["fit"]["y_loo"], rtol=1e-6)


@pytest.mark.parametrize(("at", "sd"), [(1e8, 1e10), (1.6e9, 1e9), (1e12, 1e14)])
def test_a_wide_prior_about_zero_against_fifty_digits(at, sd):
    with mpmath.workdps(50):
        design, y = mpmath.matrix(np.c_[np.ones(N), X].tolist()), mpmath.matrix((Y + at).tolist())
        prior = mpmath.mpf(sd) ** 2
        precision = design.T * design + mpmath.eye(2) / prior
        shift = design.T * y
        covariance = precision**-1
        log_det = mpmath.log(mpmath.det(precision)) + 2 * mpmath.log(prior) + N * mpmath.log(2 * mpmath.pi)
        log_z = float(-((y.T * y)[0] - (shift.T * covariance * shift)[0] + log_det) / 2)
        mean = [float(v) for v in covariance * shift]
        spread = [float(mpmath.sqrt(covariance[k, k])) for k in range(2)]
    with pm.Model():
        b = pm.Normal("b", 0.0, sd, shape=2)
        pm.Normal("y", b[0] + b[1] * X, 1.0, observed=Y + at)
        found = pmep.fit(draws=0, progressbar=False)
    np.testing.assert_allclose(found["fit"]["log_evidence"], log_z, rtol=1e-12)
    # To a unit of the last digit of what is as large as the data.
    np.testing.assert_allclose(found["posterior_mean"]["b"], mean, rtol=1e-15, atol=at * 5e-16)
    np.testing.assert_allclose(found["posterior_sd"]["b"], spread, rtol=1e-10)


@pytest.mark.parametrize("noise", NOISES)
def test_a_flat_level_finds_data_anywhere(noise):
    found = []
    for at in (0.0, 1e12):
        with pm.Model():
            NOISES[noise](pm.Flat("a") + pm.Normal("slope", 0.0, 1.0) * X, 1.0, Y + at)
            found.append(pmep.fit(draws=0, progressbar=False))
    near, far = found
    np.testing.assert_allclose(far["fit"]["log_evidence"], near["fit"]["log_evidence"], rtol=1e-10)
    np.testing.assert_allclose(far["posterior_mean"]["slope"], near["posterior_mean"]["slope"], rtol=1e-8)
    np.testing.assert_allclose(far["posterior_sd"]["a"], near["posterior_sd"]["a"], rtol=1e-8)
    assert abs(float(far["posterior_mean"]["a"]) - 1e12 - float(near["posterior_mean"]["a"])) < 2e-4


def test_sparse_designs_keep_their_digits():
    """Crossed effects under a wide level: R is kept as a sparse matrix."""
    rng = np.random.default_rng(1)
    rows, columns = rng.integers(0, 40, 400), rng.integers(0, 40, 400)
    y = np.round(64 * rng.normal(size=400)) / 64
    found = []
    for at in (0.0, 1e12):
        with pm.Model():
            level = pm.Normal("a", 0.0, 1e13)
            u, v = pm.Normal("u", 0.0, 1.0, shape=40), pm.Normal("v", 0.0, 1.0, shape=40)
            pm.StudentT("y", nu=4, mu=level + u[rows] + v[columns], sigma=1.0, observed=y + at)
            found.append(pmep.fit(draws=0, progressbar=False))
    near, far = found
    # The density of the level at the data, under its prior.
    level = float(near["posterior_mean"]["a"])
    moved = float(near["fit"]["log_evidence"]) - 0.5 * ((1e12 + level) ** 2 - level**2) / 1e26
    np.testing.assert_allclose(far["fit"]["log_evidence"], moved, rtol=1e-10)
    np.testing.assert_allclose(far["posterior_mean"]["u"], near["posterior_mean"]["u"], atol=1e-8)


def test_data_that_doubles_have_rounded_are_told():
    with pm.Model():
        a = pm.Normal("a", 1e16, 3.0)
        pm.Normal("y", a, 1.0, observed=1e16 + 2 * np.round(RNG.normal(size=20)))
        with pytest.warns(pmep.ConvergenceWarning, match=r"of 'y' is 1e\+16, where doubles are 2 apart"):
            pmep.fit(draws=0, progressbar=False)


@pytest.mark.parametrize("sparse", [False, True])
def test_twofold_products_against_fifty_digits(sparse):
    rng = np.random.default_rng(2)
    matrix = rng.normal(size=(20, 6)) * (rng.random((20, 6)) < 0.5) * 1e10
    vector = rng.normal(size=6)
    start = -np.round(matrix @ vector, -2)
    with mpmath.workdps(50):
        exact = [
            float(mpmath.mpf(s) + mpmath.fsum(mpmath.mpf(a) * mpmath.mpf(b) for a, b in zip(row, vector)))
            for s, row in zip(start, matrix)
        ]
    given = scipy.sparse.csr_array(matrix) if sparse else matrix
    np.testing.assert_allclose(twofold_product(start, given, vector), exact, rtol=1e-14, atol=1e-20)


def test_evidence_of_data_far_from_the_prior_keeps_its_digits():
    """A walk whose data lie a thousand prior deviations away, seen with a noise of 3e-4: log Z is about -1e6."""
    y, noise = np.array([-1265.421, -623.274]), 10**-3.5
    with pm.Model() as model:
        walk = pm.GaussianRandomWalk("f", sigma=1.0, init_dist=pm.Normal.dist(0.0, 1.0), steps=1)
        pm.Normal("y", walk, noise, observed=y)
    with mpmath.workdps(50):
        covariance = mpmath.matrix([[1, 1], [1, 2]]) + mpmath.mpf(noise) ** 2 * mpmath.eye(2)
        residual = mpmath.matrix(y.tolist())
        square = (residual.T * mpmath.lu_solve(covariance, residual))[0]
        log_z = float(-(square + mpmath.log(mpmath.det(covariance)) + 2 * mpmath.log(2 * mpmath.pi)) / 2)
    for solver in ("observations", "coefficients"):
        found = pmep.fit(model=model, draws=0, progressbar=False, solver=solver)
        np.testing.assert_allclose(found["fit"]["log_evidence"], log_z, rtol=1e-13)
