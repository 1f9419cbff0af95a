"""EP on sparse linear models: closed forms, quadrature, EP by the book, and all that a user does with a fit."""

from functools import cache

import numpy as np
import pymc as pm
import pytest
import scipy.linalg
import scipy.stats
import xarray as xr

import pymc_ep as pmep
from pymc_ep.compat import PYMC_6, group
from pymc_ep.evidence.ep.engine import EP
from pymc_ep.evidence.ep.evidence import Evidence
from pymc_ep.exceptions import UnsupportedModelError
from pymc_ep.forms import compiled_form
from pymc_ep.modes import numpy_mode
from pymc_ep.numerics.skewed_normal import gaussian_parts, skewed
from pymc_ep.operators import Convolution2D, Gradient2D, Mask, Wavelet2D
from pymc_ep.predict.rebuild import posterior_of
from pymc_ep.results import fit_group

QUIET = {"progressbar": False, "random_seed": 1}
BLUR = np.outer([0.2, 0.6, 0.2], [0.1, 0.7, 0.2])


def differences(shape):
    """Horizontal, then vertical, first differences of an image in C order, entry by entry."""
    rows, columns = shape
    index = np.arange(rows * columns).reshape(shape)
    pairs = [*zip(index[:, :-1].ravel(), index[:, 1:].ravel()), *zip(index[:-1].ravel(), index[1:].ravel())]
    out = np.zeros((len(pairs), rows * columns))
    for row, (one, other) in enumerate(pairs):
        out[row, [one, other]] = -1.0, 1.0
    return out


def columns_of(function, shape):
    """The matrix of a linear map of arrays, by unit vectors."""
    return np.stack([np.ravel(function(unit.reshape(shape))) for unit in np.eye(int(np.prod(shape)))], axis=1)


def picture(n, level=2.0):
    image = np.full((n, n), level)
    image[n // 3 :, n // 2 :] = 3 * level
    return image


def book_ep(reference, design, log_ts, kinks, *, power=1.0, damping=0.7, tol=1e-11, sweeps=600, start=1.0):
    """EP under a flat prior of x with sites on D x (Seeger and Nickisch 2011, sec. 2), in parallel, by dense inverses.

    Returns mean, covariance and the log of the integral of the product of all factors over x.
    """
    n = len(design)
    h, p = np.zeros(n), np.full(n, start)
    for _ in range(sweeps):
        covariance = np.linalg.inv(design.T @ (p[:, None] * design))
        mean = covariance @ (design.T @ h)
        m, v = design @ mean, np.einsum("ij,jk,ik->i", design, covariance, design)
        cavity_p, cavity_h = 1 / v - power * p, m / v - power * h
        tilts = [
            reference.tilted(log_t, ch / cp, 1 / cp, power, kink)
            for log_t, ch, cp, kink in zip(log_ts, cavity_h, cavity_p, kinks)
        ]
        log_z_hat, tm, tv = np.array(tilts).T
        step = damping * ((tm / tv - cavity_h) / power - h), damping * ((1 / tv - cavity_p) / power - p)
        if max(np.abs(step[0]).max(), np.abs(step[1]).max()) < tol:
            break
        h, p = h + step[0], p + step[1]
    else:
        raise AssertionError(f"the reference did not converge: {step}")

    def log_partition(h, p):
        return 0.5 * h**2 / p - 0.5 * np.log(p / (2 * np.pi))

    local = (log_z_hat + log_partition(cavity_h, cavity_p) - log_partition(m / v, 1 / v)).sum() / power
    joint = 0.5 * mean @ design.T @ h + 0.5 * np.linalg.slogdet(2 * np.pi * covariance)[1]
    return mean, covariance, local + joint


# Closed forms


@pytest.fixture(scope="module")
def gaussian():
    """All Gaussian: gradients under a Normal potential, a blur, Normal noise; and the posterior in closed form."""
    shape, scale, sigma = (5, 6), 0.7, 0.4
    rng = np.random.default_rng(4)
    blur = Convolution2D(shape, BLUR, boundary="periodic")
    data = rng.normal(size=shape)
    with pm.Model() as model:
        b = pm.Exponential("b", 1.0)
        u = pmep.SparseField("u", operator=Gradient2D(shape), potential=pm.Normal.dist(0, b), shape=shape)
        f = pm.Deterministic("f", pmep.apply_operator(blur, u))
        pm.Normal("y", f, sigma, observed=data)
        idata = pmep.fit(
            method="ep", hyper="fixed", start={"b": scale}, draws=400, chains=1, log_likelihood=True, tol=1e-10, **QUIET
        )
    x, b = columns_of(blur.forward, shape), differences(shape)

    def closed(scale):
        precision = x.T @ x / sigma**2 + b.T @ b / scale**2
        mean = np.linalg.solve(precision, x.T @ data.ravel() / sigma**2)
        # p(y, u) at the mean over N(mean; mean, covariance), with the density of u in the space that B reaches.
        n, rank = b.shape[1], b.shape[1] - 1
        log_p = scipy.stats.norm.logpdf(data.ravel(), x @ mean, sigma).sum()
        log_p += scipy.stats.norm.logpdf(b @ mean, scale=scale).sum() + (len(b) - rank) * np.log(scale)
        return log_p + 0.5 * n * np.log(2 * np.pi) - 0.5 * np.linalg.slogdet(precision)[1], mean, precision

    return model, idata, closed, x, scale


def test_all_gaussian_moments_and_evidence(gaussian):
    _, idata, closed, x, scale = gaussian
    fit = fit_group(idata)
    log_z, mean, precision = closed(scale)
    covariance = np.linalg.inv(precision)
    np.testing.assert_allclose(float(fit["log_evidence"]), log_z, rtol=1e-10)
    np.testing.assert_allclose(np.ravel(idata["posterior_mean"]["u"]), mean, atol=1e-9)
    np.testing.assert_allclose(np.ravel(idata["posterior_sd"]["u"]), np.sqrt(np.diag(covariance)), rtol=1e-9)
    np.testing.assert_allclose(np.ravel(idata["posterior_mean"]["f"]), x @ mean, atol=1e-9)
    np.testing.assert_allclose(np.ravel(idata["posterior_sd"]["f"]), np.sqrt(np.diag(x @ covariance @ x.T)), rtol=1e-9)


def test_all_gaussian_weights_are_the_evidence(gaussian):
    """The approximation is exact, so that p / q is the evidence at every draw."""
    _, idata, closed, _, scale = gaussian
    fit = fit_group(idata)
    np.testing.assert_allclose(fit["log_p"] - fit["log_q"], closed(scale)[0], rtol=1e-9)


def test_scale_by_evidence_is_at_the_closed_form_maximum(gaussian):
    model, _, closed, _, _ = gaussian
    fit = fit_group(pmep.fit(model=model, hyper="optimize", method="ep", draws=0, **QUIET))
    found = scipy.optimize.minimize_scalar(
        lambda t: -closed(np.exp(t))[0] + np.exp(t), bounds=(-3, 2), method="bounded", options={"xatol": 1e-9}
    )
    np.testing.assert_allclose(float(fit["hyper_mode_b"]), np.exp(found.x), rtol=1e-4)


def test_draws_have_the_posteriors_covariance(gaussian):
    """400 draws of the 30 unknowns, whitened by the exact posterior, are independent standard normals."""
    _, idata, closed, x, scale = gaussian
    _, mean, precision = closed(scale)
    u = np.asarray(group(idata, "posterior")["u"])[0].reshape(400, -1)
    white = (u - mean) @ np.linalg.cholesky(precision)
    scatter = white.T @ white
    # Squares summed over all unknowns, and the largest and least eigenvalues (Marchenko and Pastur).
    assert abs(np.trace(scatter) / white.size - 1) < 5 * np.sqrt(2 / white.size)
    eigenvalues = np.linalg.eigvalsh(scatter / 400)
    edge = np.sqrt(30 / 400)
    assert (1 - edge) ** 2 - 0.1 < eigenvalues[0]
    assert eigenvalues[-1] < (1 + edge) ** 2 + 0.2
    f = np.asarray(group(idata, "posterior")["f"])[0].reshape(400, -1)
    np.testing.assert_allclose(f, u @ x.T, atol=1e-11)


# Quadrature, and EP by the book


COUNTS2 = np.array([3, 5])
MATRIX2 = np.array([[1.0, -1.0], [0.6, 0.8], [0.3, -0.2]])


def two_unknowns(likelihood):
    with pm.Model() as model:
        u = pmep.SparseField("u", operator=MATRIX2, potential=pm.Laplace.dist(0, 0.8), shape=2)
        likelihood(u)
    return model


LIKELIHOODS = {
    "normal": (
        lambda u: pm.Normal("y", u, 0.7, observed=[0.5, 2.0]),
        [lambda f, y=y: scipy.stats.norm.logpdf(y, f, 0.7) for y in (0.5, 2.0)],
        [None, None],
        # Error of EP itself: log evidence, means and sds in posterior sds.
        (0.01, 0.03, 0.005),
    ),
    "rectified": (
        lambda u: pmep.RectifiedPoisson("y", u, observed=COUNTS2),
        [lambda f, y=y: scipy.stats.poisson.logpmf(y, np.maximum(f, 0.0)) for y in COUNTS2],
        [0.0, 0.0],
        (0.01, 0.05, 0.02),
    ),
}


def laplace_sites(matrix, scale):
    log_t = [lambda f: scipy.stats.laplace.logpdf(f, scale=scale)] * len(matrix)
    return log_t, [0.0] * len(matrix)


@pytest.fixture(params=LIKELIHOODS)
def two(request):
    likelihood, log_ts, kinks, errors = LIKELIHOODS[request.param]
    return two_unknowns(likelihood), log_ts, kinks, errors


@pytest.fixture
def by_the_book(monkeypatch):
    """Function that fits by EP's equations alone, without the correction of the width."""
    monkeypatch.setattr("pymc_ep.evidence.ep.shape._LEAST_WIDENED", np.inf)
    return lambda model, **options: pmep.fit(model=model, method="ep", draws=0, tol=1e-11, **options, **QUIET)


def test_two_unknowns_against_quadrature(two):
    model, log_ts, _, (in_log_z, in_mean, in_sd) = two
    idata = pmep.fit(model=model, method="ep", draws=0, tol=1e-11, **QUIET)
    axis = np.linspace(-8, 20, 1401)
    grid = np.stack(np.meshgrid(axis, axis, indexing="ij"), axis=-1)
    potentials = scipy.stats.laplace.logpdf(grid @ MATRIX2.T, scale=0.8).sum(axis=-1) + np.log(0.8)  # rank 2 of 3
    with np.errstate(divide="ignore"):
        log_density = potentials + log_ts[0](axis)[:, None] + log_ts[1](axis)
    density = np.exp(log_density - log_density.max())
    mass = density.sum()
    log_z = np.log(mass) + log_density.max() + 2 * np.log(axis[1] - axis[0])
    mean = np.einsum("ij,ijk->k", density, grid) / mass
    sd = np.sqrt(np.einsum("ij,ijk->k", density, (grid - mean) ** 2) / mass)
    assert abs(float(idata["fit"]["log_evidence"]) - log_z) < in_log_z
    np.testing.assert_array_less(np.abs(np.asarray(idata["posterior_mean"]["u"]) - mean), in_mean * sd)
    np.testing.assert_array_less(np.abs(np.asarray(idata["posterior_sd"]["u"]) - sd), in_sd * sd)


def test_two_unknowns_against_the_book(two, by_the_book, reference):
    model, log_ts, kinks, _ = two
    idata = by_the_book(model)
    log_prior, at_zero = laplace_sites(MATRIX2, 0.8)
    design = np.vstack([np.eye(2), MATRIX2])
    mean, covariance, log_z = book_ep(reference, design, log_ts + log_prior, kinks + at_zero)
    np.testing.assert_allclose(idata["posterior_mean"]["u"], mean, atol=1e-7)
    np.testing.assert_allclose(idata["posterior_sd"]["u"], np.sqrt(np.diag(covariance)), rtol=1e-7)
    np.testing.assert_allclose(float(idata["fit"]["log_evidence"]), log_z + np.log(0.8), atol=1e-7)


@pytest.mark.parametrize("power", [1.0, 0.5])
def test_blurred_image_against_the_book(power, by_the_book, reference):
    shape = (3, 3)
    counts = np.array([[2, 0, 3], [1, 4, 9], [3, 8, 11]])
    kernel = Convolution2D(shape, BLUR)
    with pm.Model() as model:
        u = pmep.SparseField("u", operator=Gradient2D(shape), potential=pm.Laplace.dist(0, np.array(1.5)))
        pmep.RectifiedPoisson("y", pmep.apply_operator(kernel, u), observed=counts)
    idata = by_the_book(model, power=power)
    prior, zeros = laplace_sites(differences(shape), 1.5)
    design = np.vstack([columns_of(kernel.forward, shape), differences(shape)])
    log_ts = [lambda f, y=y: scipy.stats.poisson.logpmf(y, np.maximum(f, 0.0)) for y in counts.ravel()]
    mean, covariance, log_z = book_ep(
        reference, design, log_ts + prior, [0.0] * 9 + zeros, power=power, tol=1e-9, start=0.3
    )
    assert bool(idata["fit"]["converged"])
    np.testing.assert_allclose(np.ravel(idata["posterior_mean"]["u"]), mean, atol=1e-6)
    np.testing.assert_allclose(np.ravel(idata["posterior_sd"]["u"]), np.sqrt(np.diag(covariance)), rtol=1e-6)
    np.testing.assert_allclose(float(idata["fit"]["log_evidence"]), log_z + (12 - 8) * np.log(1.5), atol=1e-6)


# The same model written otherwise


SHAPE = (6, 6)
KERNEL = Convolution2D(SHAPE, BLUR, boundary="periodic")


def counts_of(shape=SHAPE, seed=7):
    return np.random.default_rng(seed).poisson(picture(shape[0])[:, : shape[1]])


def deblurring(counts=None, tau=None, shape=SHAPE, **data):
    kernel = KERNEL if shape == SHAPE else Convolution2D(shape, BLUR, boundary="periodic")
    with pm.Model() as model:
        if tau is None:
            tau = pm.HalfNormal("tau", 5.0)
        u = pmep.SparseField("u", operator=Gradient2D(shape), potential=pm.Laplace.dist(0, 1 / tau), shape=shape)
        f = pm.Deterministic("f", pmep.apply_operator(kernel, u))
        pmep.RectifiedPoisson("y", f, observed=counts_of(shape) if counts is None else counts)
    return model


shared_deblurring = cache(deblurring)
"""For fits alone, which compile it once; what adds variables writes its own."""


@pytest.fixture(scope="module")
def deblurred():
    """A fit of the blurred image of 6 x 6 counts."""
    model = shared_deblurring()
    return model, pmep.fit(
        model=model, hyper="optimize", method="ep", draws=300, chains=1, log_likelihood=True, tol=1e-9, **QUIET
    )


@pytest.mark.parametrize("likelihood", ["rectified", "student"])
def test_flat_unknowns_with_potentials_as_observations_of_zero(likelihood):
    """Beside the evidence's (J - rank) log b these are the same; flat coefficients have dense algebra of their own."""
    scale = np.array(0.9)
    x, b = columns_of(KERNEL.forward, SHAPE), differences(SHAPE)

    def observe(f):
        if likelihood == "rectified":
            pmep.RectifiedPoisson("y", f, observed=counts_of().ravel())
        else:
            pm.StudentT("y", nu=4.0, mu=f, sigma=np.array(0.6), observed=counts_of().ravel())

    with pm.Model() as sparse:
        u = pmep.SparseField("u", operator=Gradient2D(SHAPE), potential=pm.Laplace.dist(0, scale))
        observe(pmep.apply_operator(KERNEL, u).ravel())
    with pm.Model() as dense:
        flat = pm.Flat("u", shape=36)
        observe(x @ flat)
        pm.Laplace("zero", b @ flat, scale, observed=np.zeros(60))
    options = QUIET | {"draws": 0, "tol": 1e-10, "max_iter": 400}
    one = pmep.fit(model=sparse, method="ep", **options)
    other = pmep.fit(model=dense, solver="coefficients", **options)
    np.testing.assert_allclose(np.ravel(one["posterior_mean"]["u"]), other["posterior_mean"]["u"], atol=1e-7)
    np.testing.assert_allclose(np.ravel(one["posterior_sd"]["u"]), other["posterior_sd"]["u"], rtol=1e-7)
    np.testing.assert_allclose(
        float(one["fit"]["log_evidence"]), float(other["fit"]["log_evidence"]) + (60 - 35) * np.log(0.9), atol=1e-7
    )
    np.testing.assert_allclose(np.ravel(one["fit"]["y_loo"]), other["fit"]["y_loo"], atol=1e-6)


# Hyperparameters


def log_evidence(model, **values):
    options = QUIET | {"draws": 0, "tol": 1e-10, "hyper": "fixed", "start": values, "max_iter": 400}
    return float(fit_group(pmep.fit(model=model, method="ep", **options))["log_evidence"])


def test_evidence_gradient_by_finite_differences():
    model = shared_deblurring()
    form = compiled_form(model)
    evidence = Evidence(form, EP(form.sites, tol=1e-10), max_iter=400, density="none")
    tau, h = 1.3, 1e-3
    gradient = evidence.gradient(evidence.at(np.log([tau])))
    low, high = (log_evidence(model, tau=tau * np.exp(s * h)) for s in (-1, 1))
    np.testing.assert_allclose(gradient, (high - low) / (2 * h), rtol=1e-5)


def test_evidence_has_its_maximum_inside(deblurred):
    """With unnormalised potentials it would only fall in tau, with tau / 2 for each coefficient rise longer."""
    model, idata = deblurred
    mode = float(fit_group(idata)["hyper_mode_tau"])
    prior = scipy.stats.halfnorm(scale=5.0).logpdf
    values = [log_evidence(model, tau=tau) + prior(tau) for tau in (0.8 * mode, mode, 1.25 * mode)]
    assert values[1] > max(values[0], values[2])
    assert 0.1 < mode < 10.0


def test_integrated_hyperparameters(deblurred):
    model, _ = deblurred
    idata = pmep.fit(model=model, method="ep", hyper="integrate", draws=50, chains=1, **QUIET)
    assert bool(idata["fit"]["converged"])
    grid = np.exp(np.linspace(-2.2, 1.4, 19))

    def corrected(tau):
        fixed = pmep.fit(model=model, method="ep", hyper="fixed", start={"tau": tau}, draws=0, **QUIET)
        return float(pmep.diagnose(fixed, model)["log_evidence_cumulant"])

    log_joint = [corrected(t) + scipy.stats.halfnorm(scale=5.0).logpdf(t) + np.log(t) for t in grid]
    weight = np.exp(log_joint - np.max(log_joint))
    log_z = np.log(weight.sum() * np.log(grid[1] / grid[0])) + np.max(log_joint)
    np.testing.assert_allclose(float(idata["fit"]["log_evidence"]), log_z, atol=0.02)
    np.testing.assert_allclose(float(idata["posterior_mean"]["tau"]), weight @ grid / weight.sum(), rtol=0.02)


def test_marginalised_and_recovered():
    model = deblurring(shape=(8, 8))
    with pmep.marginalize(model, method="ep"):
        sampled = pm.sample(
            draws=4, tune=4, chains=1, cores=1, progressbar=False, random_seed=1, compute_convergence_checks=False
        )
    full = pmep.recover(sampled, model, method="ep", random_seed=1, progressbar=False)
    u = np.asarray(group(full, "posterior")["u"])
    assert u.shape == (1, 4, 8, 8)
    assert np.all(np.isfinite(u))


# Options


def moments_of(model, **options):
    idata = pmep.fit(model=model, method="ep", **(QUIET | {"draws": 0} | options))
    assert bool(idata["fit"]["converged"]), idata["fit"].attrs["status"]
    return idata


def same_moments(one, other, tol):
    for part, name in (("posterior_mean", "u"), ("posterior_sd", "u"), ("fit", "log_evidence")):
        np.testing.assert_allclose(one[part][name], other[part][name], rtol=tol, atol=tol, err_msg=part)


FIXED = {"hyper": "fixed", "start": {"tau": 1.0}, "tol": 1e-10}


def test_fixed_damping_and_sequential_updates_find_the_same():
    model = shared_deblurring()
    plain = moments_of(model, **FIXED)
    same_moments(moments_of(model, damping=0.5, max_iter=500, **FIXED), plain, 1e-7)
    same_moments(moments_of(model, schedule="sequential", **FIXED), plain, 1e-7)


@pytest.mark.parametrize("power", [0.5, 0.9])
def test_fractional_power_with_fixed_damping(power):
    """It converges to what automatic damping finds, and not to the fixed point of plain EP."""
    model = shared_deblurring()
    found = moments_of(model, power=power, damping=0.6, max_iter=500, **FIXED)
    same_moments(found, moments_of(model, power=power, **FIXED), 1e-7)
    assert abs(float(found["fit"]["log_evidence"]) - float(moments_of(model, **FIXED)["fit"]["log_evidence"])) > 1e-3


def test_student_potentials_of_wavelets():
    """Scales for each level, learned; heavy tails are not log-concave."""
    shape, levels = (8, 8), 2
    rng = np.random.default_rng(3)
    observed = rng.random(shape) < 0.7
    pixels = (picture(8) / 6 + 0.05 * rng.normal(size=shape))[observed]
    with pm.Model() as model:
        b = pm.HalfNormal("b", 1.0, shape=levels)
        u = pmep.SparseField(
            "u",
            operator=Wavelet2D(shape, "haar", levels),
            potential=pm.StudentT.dist(nu=2.1, sigma=b),
        )
        pm.Normal("y", u[observed], 0.05, observed=pixels)
    idata = moments_of(model, hyper="optimize")
    assert idata["fit"]["hyper_mode_b"].shape == (levels,)
    assert np.all(np.asarray(idata["fit"]["hyper_mode_b"]) > 1e-3)
    np.testing.assert_allclose(np.asarray(idata["posterior_mean"]["u"])[observed], pixels, atol=0.15)
    # At the modes the evidence's slope in log b cancels that of the prior, -b^2.
    modes, h = np.asarray(idata["fit"]["hyper_mode_b"]), 1e-3
    for k in range(levels):
        values = [log_evidence(model, b=modes * np.exp(s * h * np.eye(levels)[k])) for s in (-1, 1)]
        np.testing.assert_allclose((values[1] - values[0]) / (2 * h), modes[k] ** 2, atol=0.02)


def with_normal_sites():
    with pm.Model() as model:
        u = pmep.SparseField("u", operator=Gradient2D((4, 4)), potential=pm.Normal.dist(0, np.array(0.8)))
        f = pm.Deterministic("f", pmep.apply_operator(Convolution2D((4, 4), BLUR), u))
        pm.Normal("y", f, 0.5, observed=picture(4) / 2)
    return model


@pytest.mark.parametrize(
    "make",
    [
        with_normal_sites,
        lambda: deblurring(tau=np.array(1.0), shape=(8, 8)),
    ],
    ids=["normal", "rectified and laplace"],
)
def test_jax_finds_the_same(make):
    pytest.importorskip("jax")
    model = make()
    one, other = moments_of(model, tol=1e-10), moments_of(model, tol=1e-10, compile_kwargs={"mode": "JAX"})
    same_moments(one, other, 1e-7)
    np.testing.assert_allclose(one["posterior_sd"]["f"], other["posterior_sd"]["f"], rtol=1e-7)


def test_hyperparameters_under_jax(deblurred):
    pytest.importorskip("jax")
    model, idata = deblurred
    fit = moments_of(model, hyper="optimize", compile_kwargs={"mode": "JAX"})
    np.testing.assert_allclose(fit["fit"]["hyper_mode_tau"], fit_group(idata)["hyper_mode_tau"], rtol=1e-4)


# What a user does with a fit


def test_draws_belong_together(deblurred):
    _, idata = deblurred
    posterior = group(idata, "posterior")
    u, f = (np.asarray(posterior[name])[0] for name in ("u", "f"))
    np.testing.assert_allclose(f, [KERNEL.forward(image) for image in u], atol=1e-10)
    for name, draws in (("u", u), ("f", f)):
        mean, sd = np.asarray(idata["posterior_mean"][name]), np.asarray(idata["posterior_sd"][name])
        assert np.abs((draws.mean(axis=0) - mean) / sd).max() < 5 / np.sqrt(300)
        np.testing.assert_allclose(draws.std(axis=0), sd, rtol=0.25)
    assert np.asarray(posterior["tau"]).std() > 0


def test_log_densities_are_the_models(deblurred):
    model, idata = deblurred
    fit, posterior = fit_group(idata), group(idata, "posterior")
    logp = model.compile_logp(mode=numpy_mode())
    finite = 0
    for k in range(20):
        tau, u = float(posterior["tau"][0, k]), np.asarray(posterior["u"][0, k])
        expected = float(logp({"tau_log__": np.log(tau), "u": u}))
        found = float(fit["log_p"][0, k])
        if np.isfinite(expected):
            np.testing.assert_allclose(found, expected, rtol=1e-9)
            finite += 1
        else:
            assert found == -np.inf
    assert finite
    assert np.all(np.isfinite(fit["log_q"]))


def test_importance_weights_are_sensible():
    """Under Student noise, where no draw has density zero: mean of p / q is near the evidence."""
    with pm.Model() as model:
        u = pmep.SparseField("u", operator=Gradient2D((4, 4)), potential=pm.Laplace.dist(0, np.array(0.8)))
        pm.Normal("y", pmep.apply_operator(Convolution2D((4, 4), BLUR), u), 0.5, observed=picture(4) / 2)
    fit = fit_group(
        pmep.fit(model=model, hyper="optimize", method="ep", draws=2000, chains=1, log_likelihood=True, **QUIET)
    )
    log_weights = np.asarray(fit["log_p"] - fit["log_q"]).ravel()
    estimate = np.log(np.mean(np.exp(log_weights - log_weights.max()))) + log_weights.max()
    assert abs(estimate - float(fit["log_evidence"])) < 0.3
    assert log_weights.std() < 2.0


def test_saved_and_read_back(deblurred, tmp_path):
    _, idata = deblurred
    path = tmp_path / "fit.nc"
    idata.to_netcdf(path)
    if PYMC_6:
        loaded = xr.open_datatree(path, engine="h5netcdf")
    else:
        import arviz

        loaded = arviz.from_netcdf(path)
    with deblurring() as again:
        pmep.RectifiedPoisson("y_new", 2.0 * again["f"])
        pm.Deterministic("sum", again["u"].sum())
        found = pmep.predict(loaded, var_names=["u", "f", "sum"])
        density = pmep.log_predictive(loaded, None, {"y_new": 2 * counts_of()})
    for name in ("u", "f"):
        np.testing.assert_allclose(found[f"{name}_mean"], idata["posterior_mean"][name], rtol=1e-9)
        np.testing.assert_allclose(found[f"{name}_sd"], idata["posterior_sd"][name], rtol=1e-7)
    np.testing.assert_allclose(float(found["sum_mean"]), float(idata["posterior_mean"]["u"].sum()), rtol=1e-9)
    # log integral of the likelihood over a skewed density of the predictor, by quadrature.
    mean, sd = 2 * float(idata["posterior_mean"]["f"][4, 4]), 2 * float(idata["posterior_sd"]["f"][4, 4])
    with again:
        posterior = posterior_of(loaded, again, ["f"])
    (f,) = (variable for variable in posterior.form.form.affine if variable.name == "f")
    skewness = posterior.skewness([f], {"f": idata["posterior_sd"]["f"].to_numpy()})["f"][4, 4]
    assert abs(skewness) > 0.02
    eta, y = mean + sd * np.linspace(-9, 9, 20001), 2 * counts_of()[4, 4]
    weights, centres, widths = gaussian_parts(skewness)
    density_of_eta = scipy.stats.norm.pdf(eta[:, None], mean + sd * centres, sd * widths) @ weights
    mass = scipy.stats.poisson.pmf(y, np.maximum(eta, 0.0)) * density_of_eta
    np.testing.assert_allclose(density["y_new"][4, 4], np.log(mass.sum() * (eta[1] - eta[0])), rtol=1e-6)
    moved = mean + sd * skewed(np.linspace(-9, 9, 20001), skewness)
    mass = scipy.stats.poisson.pmf(y, np.maximum(moved, 0.0)) * scipy.stats.norm.pdf(np.linspace(-9, 9, 20001))
    np.testing.assert_allclose(density["y_new"][4, 4], np.log(mass.sum() * 18 / 20000), atol=2e-3)


def test_new_variables_of_the_prior_have_no_closed_form():
    """They would need sites that the fit has not; drawing them does not."""
    with deblurring(shape=(4, 4)) as model:
        idata = pmep.fit(method="ep", draws=200, chains=1, **QUIET)
        pm.Normal("weighed", model["u"].sum(), 2.0)
        pmep.SparseField("other", operator=np.eye(4), potential=pm.Laplace.dist(0, 1.0))
        with pytest.raises(UnsupportedModelError, match=r"'weighed'.*no observation depends.*posterior_predictive"):
            pmep.predict(idata, var_names=["weighed"])
        with pytest.raises(UnsupportedModelError, match=r"'other'.*no observation depends.*nothing to predict"):
            pmep.predict(idata, var_names=["other"])
        drawn = pm.sample_posterior_predictive(idata, var_names=["weighed"], progressbar=False, random_seed=1)
    drawn = np.asarray(group(drawn, "posterior_predictive")["weighed"])
    total = np.asarray(group(idata, "posterior")["u"]).sum(axis=(2, 3))
    np.testing.assert_allclose((drawn - total).std(), 2.0, rtol=0.2)


def test_sum_of_all_pixels_against_draws(deblurred):
    """The joint posterior, not its margins: the sum's sd is not that of independent pixels."""
    _, idata = deblurred
    with deblurring() as model:
        pm.Deterministic("total", model["u"].sum())
        found = pmep.predict(idata, var_names=["total"])
    totals = np.asarray(group(idata, "posterior")["u"])[0].sum(axis=(1, 2))
    np.testing.assert_allclose(float(found["total_sd"]), totals.std(), rtol=0.2)


def test_other_counts_of_the_same_shape():
    with pm.Model() as model:
        data = pm.Data("counts", counts_of())
        u = pmep.SparseField("u", operator=Gradient2D(SHAPE), potential=pm.Laplace.dist(0, np.array(0.8)))
        pmep.RectifiedPoisson("y", pmep.apply_operator(KERNEL, u), observed=data)
    first = pmep.fit(model=model, method="ep", draws=0, **QUIET)
    with model:
        pm.set_data({"counts": counts_of(seed=8)})
        # The posterior is that of the data of the fit, which the result holds.
        predicted = pmep.predict(first, var_names=["u"])
    for what in ("mean", "sd"):
        np.testing.assert_allclose(predicted[f"u_{what}"], first[f"posterior_{what}"]["u"], rtol=1e-6, atol=1e-8)
    fresh = deblurring(counts_of(seed=8), tau=1 / 0.8)
    again = moments_of(model, start=first, tol=1e-10)
    same_moments(again, moments_of(fresh, tol=1e-10), 1e-6)
    assert np.abs(again["posterior_mean"]["u"] - first["posterior_mean"]["u"]).max() > 0.1


# Other models of the form


def test_gaussian_coefficients_beside_a_field():
    """An intercept and slopes with proper priors, on top of a field that the data and its own prior hold."""
    n = 16
    rng = np.random.default_rng(1)
    data = rng.normal(3.0, 1.0, (2, n))
    x = np.array([0.3, -0.8])
    with pm.Model() as model:
        level = pm.Normal("level", 1.0, 0.5)
        slope = pm.Normal("slope", [0.5, 0.0], [1.0, 2.0], shape=2)
        u = pmep.SparseField("u", operator=np.eye(n), potential=pm.Normal.dist(0, np.array(0.7)))
        pm.Normal("y", u + level + x[:, None] * slope[0] + x[:, None] ** 2 * slope[1], 1.0, observed=data)
    idata = moments_of(model, tol=1e-10)
    design = np.vstack([np.column_stack([np.eye(n), *(np.full(n, z**k) for k in range(3))]) for z in x])
    prior_mean = np.r_[np.zeros(n), 1.0, 0.5, 0.0]
    prior_sd = np.r_[np.full(n, 0.7), 0.5, 1.0, 2.0]
    precision = design.T @ design + np.diag(1 / prior_sd**2)
    mean = np.linalg.solve(precision, design.T @ data.ravel() + prior_mean / prior_sd**2)
    sd = np.sqrt(np.diag(np.linalg.inv(precision)))
    for k, statistic in enumerate((mean, sd)):
        part = ("mean", "sd")[k]
        moments = idata[f"posterior_{part}"]
        found = np.r_[moments["u"], float(moments["level"]), moments["slope"]]
        np.testing.assert_allclose(found, statistic, rtol=1e-8, atol=1e-9)
    total = np.eye(2 * n) + design @ np.diag(prior_sd**2) @ design.T
    log_z = scipy.stats.multivariate_normal.logpdf(data.ravel(), design @ prior_mean, total)
    np.testing.assert_allclose(float(idata["fit"]["log_evidence"]), log_z, rtol=1e-10)


def test_level_that_its_prior_alone_determines(deblurred):
    """Total variation is blind to a level: only its prior tells a level of its own from that of the field."""
    _, idata = deblurred
    tau = float(fit_group(idata)["hyper_mode_tau"])
    options = {"hyper": "fixed", "start": {"tau": tau}, "tol": 1e-9}
    plain = moments_of(shared_deblurring(), **options)
    with pm.Model() as model:
        tau = pm.HalfNormal("tau", 5.0)
        u = pmep.SparseField("u", operator=Gradient2D(SHAPE), potential=pm.Laplace.dist(0, 1 / tau))
        level = pm.Normal("level", 0.3, 0.5)
        pmep.RectifiedPoisson("y", pmep.apply_operator(KERNEL, u) + level, observed=counts_of())
    both = moments_of(model, **options)
    np.testing.assert_allclose(float(both["fit"]["log_evidence"]), float(plain["fit"]["log_evidence"]), atol=1e-6)
    np.testing.assert_allclose([both["posterior_mean"]["level"], both["posterior_sd"]["level"]], [0.3, 0.5], rtol=1e-6)
    np.testing.assert_allclose(both["posterior_mean"]["u"], plain["posterior_mean"]["u"] - 0.3, atol=1e-5)
    np.testing.assert_allclose(both["posterior_sd"]["u"], np.sqrt(plain["posterior_sd"]["u"] ** 2 + 0.25), rtol=1e-6)


@pytest.mark.parametrize(("b", "s"), [(0.7, 0.4), (0.2, 1.5)])
def test_effects_with_learned_deviations(b, s):
    """Beside a field; all Gaussian, so that the evidence is that of a normal vector."""
    n = 12
    groups = np.arange(n) % 3
    data = np.random.default_rng(9).normal(size=n)
    with pm.Model() as model:
        scale, deviation = pm.HalfNormal("b"), pm.HalfNormal("s")
        u = pmep.SparseField("u", operator=np.eye(n), potential=pm.Normal.dist(0, scale))
        effect = pm.Normal("effect", 0.5, deviation, shape=3)
        pm.Normal("y", u + effect[groups], np.array(0.3), observed=data)
    total = (b**2 + 0.09) * np.eye(n) + s**2 * np.equal.outer(groups, groups)
    expected = scipy.stats.multivariate_normal.logpdf(data, np.full(n, 0.5), total)
    np.testing.assert_allclose(log_evidence(model, b=b, s=s), expected, rtol=1e-9)
    form = compiled_form(model)
    evidence = Evidence(form, EP(form.sites, tol=1e-12), max_iter=400, density="none")
    at = {"b": b, "s": s}
    found = evidence.gradient(evidence.at(np.log([at[name] for name in form.form.hyper_names])))
    whitened = np.linalg.solve(total, data - 0.5)

    def slope(derivative):
        return 0.5 * whitened @ derivative @ whitened - 0.5 * np.trace(np.linalg.solve(total, derivative))

    slopes = {"b": slope(2 * b**2 * np.eye(n)), "s": slope(2 * s**2 * np.equal.outer(groups, groups))}
    np.testing.assert_allclose(found, [slopes[name] for name in form.form.hyper_names], rtol=1e-7)


def test_two_fields(reference):
    """A smooth field and a sparse one, of different shapes, in one predictor."""
    data = np.array([0.2, 0.1, 2.5, 0.4])
    with pm.Model() as model:
        smooth = pmep.SparseField("smooth", operator=np.eye(4)[1:] - np.eye(4)[:-1], potential=pm.Normal.dist(0, 0.5))
        spikes = pmep.SparseField("spikes", operator=np.eye(3), potential=pm.Laplace.dist(0, np.array(0.6)))
        pm.Normal("y", smooth + pm.math.concatenate([spikes, [0.0]]), 0.3, observed=data)
    idata = moments_of(model, tol=1e-11)
    steps = np.eye(4)[1:] - np.eye(4)[:-1]
    design = np.vstack(
        [
            np.hstack([np.eye(4), np.eye(4)[:, :3]]),
            np.hstack([steps, np.zeros((3, 3))]),
            np.hstack([np.zeros((3, 4)), np.eye(3)]),
        ]
    )
    log_ts = [lambda f, y=y: scipy.stats.norm.logpdf(y, f, 0.3) for y in data]
    log_ts += [lambda f: scipy.stats.norm.logpdf(f, scale=0.5)] * 3
    spikes, zeros = laplace_sites(np.eye(3), 0.6)
    mean, covariance, log_z = book_ep(reference, design, log_ts + spikes, [None] * 7 + zeros)
    np.testing.assert_allclose(
        np.r_[idata["posterior_mean"]["smooth"], idata["posterior_mean"]["spikes"]], mean, atol=1e-7
    )
    np.testing.assert_allclose(
        np.r_[idata["posterior_sd"]["smooth"], idata["posterior_sd"]["spikes"]], np.sqrt(np.diag(covariance)), rtol=1e-7
    )
    np.testing.assert_allclose(float(idata["fit"]["log_evidence"]), log_z, atol=1e-7)


def test_exposure_background_and_masks_by_index_or_operator():
    """`u[mask]`, `.ravel()`, an operator of a mask, and an operator with exposure in its entries are one model."""
    rng = np.random.default_rng(5)
    observed = rng.random(SHAPE) < 0.6
    exposure, background = rng.uniform(0.5, 3.0, observed.sum()), rng.uniform(0.0, 0.5, observed.sum())
    counts = rng.poisson(exposure * picture(6)[observed] + background)
    exposed = exposure[:, None] * columns_of(KERNEL.forward, SHAPE)[observed.ravel()]

    def model_of(predictor):
        with pm.Model() as model:
            tau = pm.HalfNormal("tau", 5.0)
            u = pmep.SparseField("u", operator=Gradient2D(SHAPE), potential=pm.Laplace.dist(0, 1 / tau))
            pmep.RectifiedPoisson("y", predictor(u), observed=counts)
        return model

    ways = [
        lambda u: exposure * pmep.apply_operator(KERNEL, u)[observed] + background,
        lambda u: background + pmep.apply_operator(KERNEL, u).ravel()[np.flatnonzero(observed)] * exposure,
        lambda u: exposure * pmep.apply_operator(Mask(SHAPE, observed) @ KERNEL, u) + background,
        lambda u: pmep.apply_operator(exposed, u.ravel()) + background,
        lambda u: exposed @ u.ravel() + background,
    ]
    fits = [moments_of(model_of(way), **FIXED) for way in ways]
    for fit in fits[1:]:
        same_moments(fits[0], fit, 1e-7)
    # A flat prior beside the field, or none of these: an offset moves the predictor, not the field.
    shifted = moments_of(model_of(lambda u: exposure * pmep.apply_operator(KERNEL, u)[observed]), **FIXED)
    assert np.abs(shifted["posterior_mean"]["u"] - fits[0]["posterior_mean"]["u"]).max() > 0.05


def test_one_dimension_and_three():
    """Differences of a signal, and of a stack of images, as matrices."""
    n = 40
    rng = np.random.default_rng(2)
    signal = np.where(np.arange(n) < 18, 1.0, 4.0)
    with pm.Model() as line:
        u = pmep.SparseField("u", operator=np.diff(np.eye(n), axis=0), potential=pm.Laplace.dist(0, np.array(0.2)))
        pm.Normal("y", u, 0.3, observed=signal + 0.3 * rng.normal(size=n))
    idata = moments_of(line)
    assert np.abs(idata["posterior_mean"]["u"] - signal).mean() < 0.12
    shape = (3, 4, 5)
    index = np.arange(60).reshape(shape)
    steps = [np.take(index, range(1, k), axis) for axis, k in enumerate(shape)]
    starts = [np.take(index, range(k - 1), axis) for axis, k in enumerate(shape)]
    matrix = np.vstack([np.eye(60)[s.ravel()] - np.eye(60)[t.ravel()] for s, t in zip(steps, starts)])
    data = rng.normal(size=shape)
    with pm.Model() as stack:
        u = pmep.SparseField("u", operator=matrix, potential=pm.Normal.dist(0, np.array(0.6)), shape=shape)
        pm.Normal("y", u, 1.0, observed=data)
    idata = moments_of(stack, tol=1e-10)
    precision = np.eye(60) + matrix.T @ matrix / 0.36
    np.testing.assert_allclose(
        np.ravel(idata["posterior_mean"]["u"]), np.linalg.solve(precision, data.ravel()), atol=1e-9
    )
    np.testing.assert_allclose(
        np.ravel(idata["posterior_sd"]["u"]), np.sqrt(np.diag(np.linalg.inv(precision))), rtol=1e-9
    )
