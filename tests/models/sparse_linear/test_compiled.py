"""The compiled sparse linear form against its model written as matrices."""

import pickle

import cloudpickle
import numpy as np
import pymc as pm
import pytest
import scipy.sparse
import scipy.stats
from scipy import ndimage

import pymc_ep as pmep
from pymc_ep.exceptions import UnsupportedModelError
from pymc_ep.forms import compiled_form
from pymc_ep.models.sparse_linear import linear_map as linear_predictors
from pymc_ep.models.sparse_linear import probing
from pymc_ep.models.sparse_linear.form import SparseLinear
from pymc_ep.modes import numpy_mode
from pymc_ep.operators import Convolution2D, Gradient2D, Mask, Wavelet2D, stack

RNG = np.random.default_rng(12)
SHAPE = (5, 4)
FLAT = 0.5 * np.log(2 * np.pi)
KERNEL = np.outer([0.1, 0.8, 0.1], [0.3, 0.5, 0.2])


def model_of():
    """Two fields, an intercept, two likelihoods, exposure and background."""
    mask = RNG.random(SHAPE) < 0.5
    exposure, background = RNG.uniform(1.0, 2.0, SHAPE), RNG.uniform(0.0, 1.0, SHAPE)
    blur = Convolution2D(SHAPE, KERNEL)
    with pm.Model() as model:
        tau, shift = pm.Exponential("tau", 1.0), pm.Exponential("shift", np.array(2.0))
        u = pmep.SparseField("u", operator=Gradient2D(SHAPE), potential=pm.Laplace.dist(0, 1 / tau))
        v = pmep.SparseField("v", operator=np.eye(4), potential=pm.StudentT.dist(nu=3.0, sigma=0.3), shape=4)
        level = pm.Normal("level", 2.0, tau)
        f = pm.Deterministic("f", exposure * pmep.apply_operator(blur, u) + background * shift + level)
        pmep.RectifiedPoisson("counts", f, observed=RNG.poisson(2.0, SHAPE))
        pm.Normal("pixels", u[mask] - 2.0 * v.sum(), 0.4, observed=RNG.normal(size=mask.sum()))
        pm.Deterministic("mean", u.mean() + v[1])
    matrices = {
        "blur": exposure.ravel()[:, None] * blur.matrix().toarray(),
        "pixels": np.eye(20)[mask.ravel()],
        "gradient": Gradient2D(SHAPE).matrix().toarray(),
        "background": background.ravel(),
    }
    return model, matrices


@pytest.fixture(scope="module")
def made():
    model, matrices = model_of()
    return model, compiled_form(model), matrices


def theta_of(form, tau, shift):
    names = form.form.hyper_names
    return np.log([{"tau": tau, "shift": shift}[name] for name in names])


def design_of(matrices):
    """Columns: u (20), v (4), level (1); rows: counts, pixels, then the potentials of u, v and level."""
    blur, pixels, gradient = (matrices[k] for k in ("blur", "pixels", "gradient"))
    n, m, j = len(blur), len(pixels), len(gradient)
    return np.vstack(
        [
            np.hstack([blur, np.zeros((n, 4)), np.ones((n, 1))]),
            np.hstack([pixels, np.full((m, 4), -2.0), np.zeros((m, 1))]),
            np.hstack([gradient, np.zeros((j, 5))]),
            np.hstack([np.zeros((4, 20)), np.eye(4), np.zeros((4, 1))]),
            np.hstack([np.zeros((1, 24)), np.ones((1, 1))]),
        ]
    )


def test_form_and_order_of_factors(made):
    _, form, _ = made
    assert isinstance(form.form, SparseLinear)
    assert form.form.latent_names == ("u", "v", "level")
    assert [f.name for f in form.form.factors] == ["counts", "pixels", "u", "v", "level"]
    assert [f.site.name for f in form.form.potentials] == ["laplace", "student_t", "normal"]
    assert all(np.all(y == 0) for y in form.observed()[2:])


def test_matrix_products_and_adjoint(made):
    _, form, matrices = made
    design = design_of(matrices)
    np.testing.assert_allclose(form.linear.matrix.toarray(), design, atol=1e-13)
    assert form.linear.size == 25
    x, y = RNG.normal(size=25), RNG.normal(size=len(design))
    np.testing.assert_allclose(form.linear.forward(x), design @ x, atol=1e-12)
    np.testing.assert_allclose(form.linear.adjoint(y), design.T @ y, atol=1e-12)


def test_prior_at_two_values_of_the_hyperparameters(made):
    _, form, matrices = made
    for tau, shift in ((0.7, 1.1), (2.5, 0.3)):
        prior = form.prior(theta_of(form, tau, shift))
        n, m = len(matrices["blur"]), len(matrices["pixels"])
        expected = np.concatenate(
            [
                matrices["background"] * shift + 2.0,
                -form.observed()[1],
                np.zeros(len(matrices["gradient"])),
                np.zeros(5),
            ]
        )
        np.testing.assert_allclose(prior.mean, expected, atol=1e-13)
        assert prior.mean.shape == (n + m + 31 + 5,)
        (scale,), (nu, sigma), (deviation,) = prior.parameters[2:]
        np.testing.assert_allclose(scale, np.full(31, 1 / tau))
        np.testing.assert_allclose([nu[0], sigma[0]], [3.0, 0.3])
        np.testing.assert_allclose(deviation, [tau])
        # 31 differences of rank 19: the density's power of the scale. Flat densities count as (2 pi)^(-1/2) each.
        expected = (31 - 19) * np.log(1 / tau) + 25 * FLAT
        np.testing.assert_allclose(prior.log_excess, expected, rtol=1e-12)
        expected = scipy.stats.expon.logpdf(tau) + scipy.stats.expon.logpdf(shift, scale=0.5)
        np.testing.assert_allclose(prior.log_prior, expected, rtol=1e-12)


def test_factors_multiply_to_the_models_density(made):
    """Sites at m0 + D x, log_excess and log_prior are PyMC's own log density of the point."""
    model, form, _ = made
    theta = theta_of(form, 0.7, 1.1)
    prior, x = form.prior(theta), np.abs(RNG.normal(size=25)) + 1.0
    eta = prior.mean + form.linear.forward(x)
    total, start = prior.log_prior + prior.log_excess - 25 * FLAT, 0
    # Predictors of Gaussian pixels are counted from these.
    for site, y, parameters in zip(form.sites, form.residuals(), prior.parameters):
        here = eta[start : start + y.size]
        total += np.sum(site.log_density(y, here, *parameters))
        start += y.size
    point = {"u": x[:20].reshape(SHAPE), "v": x[20:24], "level": x[24] + 2.0}
    logp = model.compile_logp(mode=numpy_mode(), jacobian=False)
    expected = logp(point | {"tau_log__": np.log(0.7), "shift_log__": np.log(1.1)})
    np.testing.assert_allclose(total, expected, rtol=1e-11)


def test_pullback_by_finite_differences(made):
    _, form, _ = made
    theta = theta_of(form, 0.7, 1.1)
    prior = form.prior(theta)
    to_mean = RNG.normal(size=prior.mean.size)
    to_parameters = [tuple(RNG.normal(size=np.shape(p)) for p in values) for values in prior.parameters]

    def value(at):
        here = form.prior(at)
        out = here.log_prior + here.log_excess + to_mean @ here.mean
        for weights, values in zip(to_parameters, here.parameters):
            out += sum(float(np.sum(w * p)) for w, p in zip(weights, values))
        return out

    found = form.pullback(theta, to_mean, None, to_parameters, density="natural")
    for k in range(2):
        h = 1e-5 * np.eye(2)[k]
        np.testing.assert_allclose(found[k], (value(theta + h) - value(theta - h)) / 2e-5, rtol=1e-7)


def test_maps_of_affine_variables(made):
    _, form, matrices = made
    moments = form.affine_moments(theta_of(form, 0.7, 1.1))
    assert set(moments) == {"u", "v", "level", "f", "mean"}
    f, mean = moments["f"], moments["mean"]
    np.testing.assert_allclose(f.mean.ravel(), matrices["background"] * 1.1 + 2.0, atol=1e-13)
    np.testing.assert_allclose(f.cross.toarray(), design_of(matrices)[:20], atol=1e-12)
    expected = np.r_[np.full(20, 1 / 20), np.eye(4)[1], 0.0]
    np.testing.assert_allclose(mean.cross.toarray().ravel(), expected, atol=1e-13)
    assert mean.mean.shape == ()
    np.testing.assert_allclose(moments["u"].cross.toarray(), np.eye(20, 25), atol=0)


def test_posterior_of_given_sites(made):
    """N(A^-1 D' (b - pi m0), A^-1), whatever algebra was chosen."""
    _, form, matrices = made
    prior, design = form.prior(theta_of(form, 0.7, 1.1)), design_of(matrices)
    pi, b = RNG.uniform(0.5, 2.0, len(design)), RNG.normal(size=len(design))
    posterior = prior.gaussian.posterior(prior.mean, b, pi)
    precision = design.T @ (pi[:, None] * design)
    mean = np.linalg.solve(precision, design.T @ (b - pi * prior.mean))
    covariance = np.linalg.inv(precision)
    assert posterior.proper
    np.testing.assert_allclose(posterior.coordinates, mean, atol=1e-11)
    np.testing.assert_allclose(posterior.mean, prior.mean + design @ mean, atol=1e-11)
    np.testing.assert_allclose(posterior.variance, np.einsum("ij,jk,ik->i", design, covariance, design), rtol=1e-10)
    np.testing.assert_allclose(posterior.log_det, np.linalg.slogdet(precision)[1], rtol=1e-11)
    part = scipy.sparse.csr_array(RNG.normal(size=(3, 25)))
    expected = np.diag(part.toarray() @ covariance @ part.toarray().T)
    np.testing.assert_allclose(posterior.remaining_variance(part, np.ones(3)), expected, rtol=1e-10)


def test_it_pickles(made):
    _, form, _ = made
    copy = pickle.loads(cloudpickle.dumps(form))
    theta = theta_of(form, 0.7, 1.1)
    np.testing.assert_allclose(copy.prior(theta).mean, form.prior(theta).mean, rtol=1e-14)
    np.testing.assert_allclose(copy.linear.matrix.toarray(), form.linear.matrix.toarray(), atol=1e-14)


def test_data_that_change():
    """An exposure in shared data: the map follows, once it is set."""
    with pm.Model() as model:
        exposure = pm.Data("exposure", np.ones(SHAPE))
        u = pmep.SparseField("u", operator=Gradient2D(SHAPE), potential=pm.Laplace.dist(0, 1.0))
        pm.Normal("y", exposure * u, 1.0, observed=np.zeros(SHAPE))
        form = compiled_form(model)
        np.testing.assert_allclose(form.linear.matrix.toarray()[:20], np.eye(20))
        before = form.linear.algebra
        assert form.linear.algebra is before
        x = RNG.normal(size=20)
        pm.set_data({"exposure": np.full(SHAPE, 3.0)})
        np.testing.assert_allclose(form.linear.matrix.toarray()[:20], 3.0 * np.eye(20))
        np.testing.assert_allclose(form.linear.forward(x)[:20], 3.0 * x)
        np.testing.assert_allclose(form.linear.algebra.design.toarray()[:20], 3.0 * np.eye(20))
        np.testing.assert_allclose(form.linear.adjoint(np.eye(51)[3]), 3.0 * np.eye(20)[3])


@pytest.mark.parametrize("kind", ["wavelet", "stack", "masked gradient", "sparse", "dense"])
def test_operators_of_any_kind(kind):
    """The rows of the potential are the operator's own matrix."""
    shape = (8, 8)
    matrix = scipy.sparse.random_array((30, 64), density=0.1, rng=np.random.default_rng(0))
    operator = {
        "wavelet": Wavelet2D(shape, "db2", 2),
        "stack": stack(Gradient2D(shape), Wavelet2D(shape, "haar", 1)),
        "masked gradient": Mask((112,), np.arange(112) % 3 > 0) @ Gradient2D(shape),
        "sparse": matrix.tocsr(),
        "dense": matrix.toarray(),
    }[kind]
    with pm.Model() as model:
        u = pmep.SparseField("u", operator=operator, potential=pm.Laplace.dist(0, 1.0), shape=shape)
        pm.Normal("y", u, 1.0, observed=np.zeros(shape))
    form = compiled_form(model)
    expected = operator if kind in ("sparse", "dense") else operator.matrix()
    expected = expected.toarray() if scipy.sparse.issparse(expected) else expected
    np.testing.assert_allclose(form.linear.matrix.toarray(), np.vstack([np.eye(64), expected]), atol=1e-12)
    x = RNG.normal(size=64)
    np.testing.assert_allclose(form.linear.forward(x), np.concatenate([x, expected @ x]), atol=1e-12)


@pytest.mark.parametrize("shape", [(), (3,), (2, 3)])
def test_gaussian_variables_with_learned_deviations(shape):
    """Sites of these are as many as values, whatever hyperparameters their deviations depend on."""
    groups = np.arange(6).reshape(2, 3) % 2
    with pm.Model() as model:
        s = pm.HalfNormal("s", shape=2)
        u = pmep.SparseField("u", operator=np.eye(20), potential=pm.Laplace.dist(0, 1.0))
        sd = s[groups[(0,) * (2 - len(shape))]]
        g = pm.Normal("g", 0.0, sd if len(shape) else s[0], shape=shape or None)
        pm.Normal("y", u + g.sum(), 1.0, observed=np.zeros(20))
    form = compiled_form(model)
    size = int(np.prod(shape))
    assert form.observed()[-1].shape == (size,)
    (deviations,) = form.prior(np.log([0.5, 2.0])).parameters[-1]
    np.testing.assert_allclose(deviations, np.array([0.5, 2.0])[groups.ravel()[:size]])


def test_a_map_with_a_hyperparameter():
    with pm.Model() as model:
        tau = pm.Exponential("tau", 1.0)
        u = pmep.SparseField("u", operator=Gradient2D(SHAPE), potential=pm.Laplace.dist(0, 1.0))
        pm.Normal("y", tau * u, 1.0, observed=np.zeros(SHAPE))
    with pytest.raises(UnsupportedModelError, match="'tau' takes part in a linear map of 'u'"):
        compiled_form(model).linear.forward(np.zeros(20))
    with pytest.raises(UnsupportedModelError, match="'tau' takes part in a linear map of 'u'"):
        _ = compiled_form(model).linear.matrix


def test_a_deterministic_follows_its_data():
    with pm.Model() as model:
        weights = pm.Data("weights", np.array([1.0, 0.0, 0.0]))
        u = pmep.SparseField("u", operator=np.diff(np.eye(3), axis=0), potential=pm.Laplace.dist(0, 1.0))
        pm.Deterministic("seen", weights @ u)
        pm.Normal("y", u, 0.1, observed=[1.0, 2.0, 5.0])
    result = pmep.fit("ep", model=model, draws=0, progressbar=False)
    for place in range(3):
        with model:
            pm.set_data({"weights": np.eye(3)[place]})
        found = pmep.predict(result, model, var_names=["seen"])
        np.testing.assert_allclose(found["seen_mean"], result["posterior_mean"]["u"][place], rtol=1e-9)
        np.testing.assert_allclose(found["seen_sd"], result["posterior_sd"]["u"][place], rtol=1e-9)


def without_probing(monkeypatch):
    def probe(*_):
        raise AssertionError("probed")

    monkeypatch.setattr(linear_predictors, "probe", probe)


def test_operators_write_their_own_entries(monkeypatch):
    """One after another on one of two fields, ravelled on the way: nothing is probed, at whatever size."""
    monkeypatch.setattr(linear_predictors, "MOST_UNKNOWNS", 10)
    without_probing(monkeypatch)
    mask = np.arange(20) % 3 > 0
    blur = Convolution2D(SHAPE, KERNEL)
    with pm.Model() as model:
        v = pmep.SparseField("v", operator=Mask((7,), np.arange(7)), potential=pm.Laplace.dist(0, 1.0))
        u = pmep.SparseField("u", operator=Gradient2D(SHAPE), potential=pm.Laplace.dist(0, 1.0))
        seen = pmep.apply_operator(Mask((20,), mask), pmep.apply_operator(blur, u).ravel())
        pm.Normal("y", seen, 1.0, observed=np.ones(mask.sum()))
        pm.Normal("z", pmep.apply_operator(scipy.sparse.csr_array(2.0 * np.eye(7)), v), 1.0, observed=np.ones(7))
    linear = compiled_form(model).linear
    unknowns = RNG.normal(size=27)
    parts = dict(zip(("v", "u"), (unknowns[:7], unknowns[7:].reshape(SHAPE))))
    expected = [
        blur.forward(parts["u"]).ravel()[mask],
        2.0 * parts["v"],
        parts["v"],
        Gradient2D(SHAPE).forward(parts["u"]),
    ]
    np.testing.assert_allclose(linear.matrix @ unknowns, np.concatenate(expected), atol=1e-14)


def test_a_sparse_matrix_that_is_not_local(monkeypatch):
    """Differences along a path through pixels in random order: its entries are known beyond the size of probing."""
    monkeypatch.setattr(linear_predictors, "MOST_UNKNOWNS", 100)
    monkeypatch.setattr(probing, "MOST_UNKNOWNS", 100)
    order = RNG.permutation(400)
    steps = scipy.sparse.diags_array([-np.ones(399), np.ones(399)], offsets=[0, 1], shape=(399, 400), format="csr")
    steps = scipy.sparse.csr_array(steps[:, order])
    with pm.Model() as model:
        u = pmep.SparseField("u", operator=steps, potential=pm.Laplace.dist(0, 1.0), shape=400)
        pm.Normal("y", u, 1.0, observed=np.ones(400))
    found = compiled_form(model).linear.matrix
    assert abs(found[400:] - steps).max() == 0


def test_a_wide_blur_of_a_large_image():
    """Products are those of the operator itself; entries are there for exact algebra."""
    shape = 131, 128
    kernel = RNG.uniform(size=(9, 9))
    exposure = RNG.uniform(1.0, 2.0, (100, 90))
    with pm.Model() as model:
        u = pmep.SparseField("u", operator=Gradient2D(shape), potential=pm.Laplace.dist(0, 1))
        seen = pmep.apply_operator(Convolution2D(shape, kernel), u)[4:104, 5:95]
        pm.Normal("y", exposure * seen, 1.0, observed=np.zeros((100, 90)))
    linear = compiled_form(model).linear
    image, weights = RNG.normal(size=shape), RNG.normal(size=exposure.size)
    expected = (exposure * ndimage.convolve(image, kernel, mode="wrap")[4:104, 5:95]).ravel()
    below = np.zeros(linear.forward(image.ravel()).size - weights.size)
    np.testing.assert_allclose(linear.forward(image.ravel())[: weights.size], expected, rtol=1e-12, atol=1e-11)
    np.testing.assert_allclose((linear.matrix @ image.ravel())[: weights.size], expected, rtol=1e-12, atol=1e-11)
    np.testing.assert_allclose(linear.adjoint(np.r_[weights, below]) @ image.ravel(), weights @ expected, rtol=1e-11)


def test_each_device_of_jax_has_arrays_of_its_own(monkeypatch):
    pytest.importorskip("jax")
    with pm.Model() as model:
        u = pmep.SparseField("u", operator=Gradient2D(SHAPE), potential=pm.Laplace.dist(0, 1.0))
        pm.Normal("y", u, 1.0, observed=np.ones(SHAPE))
    linear = compiled_form(model, None, {"mode": "JAX"}).linear
    algebra, rows = linear.algebra, linear.rows_on_jax
    assert linear.algebra is algebra and linear.rows_on_jax is rows
    monkeypatch.setattr(linear_predictors, "jax_device", lambda: "another")
    assert linear.algebra is not algebra and linear.rows_on_jax is not rows
