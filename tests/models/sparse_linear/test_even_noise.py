"""Which models have a precision that is diagonal in wavelet coefficients, and that no other is taken for one."""

import pickle

import cloudpickle
import numpy as np
import pymc as pm
import pytest
import scipy.sparse

import pymc_ep as pmep
from pymc_ep.exceptions import UnsupportedModelError
from pymc_ep.forms import compiled_form
from pymc_ep.models.sparse_linear import linear_map as linear_predictors
from pymc_ep.models.sparse_linear import probing
from pymc_ep.numerics.precision.orthonormal import Orthonormal, OrthonormalFactor
from pymc_ep.operators import Convolution2D, Fourier2D, Gradient2D, Wavelet2D, stack

SHAPE = 16, 16
RNG = np.random.default_rng(0)
Y = RNG.normal(size=SHAPE)
SHADE = np.where(np.arange(256).reshape(SHAPE) % 3, 1.0, 1.5)


def field(operator=None, name="u"):
    operator = Wavelet2D(SHAPE, "db2", 2) if operator is None else operator
    return pmep.SparseField(name, operator=operator, potential=pm.Laplace.dist(0, 0.3))


def tree(**scaling):
    high = pm.StudentT.dist(nu=2.1, sigma=1.0)
    return pmep.WaveletTree("u", shape=SHAPE, levels=2, low=pm.Normal.dist(0, 0.1), high=high, **scaling)


def learned(**shape):
    return pm.HalfNormal("s", 1.0, **shape)


def twice():
    u = field()
    pm.Normal("z", 2.0 - 3.0 * u.T, learned(), observed=Y)
    pm.Normal("y", u, 0.5, observed=Y)


def repeated():
    pm.Normal("y", field(), 0.5, observed=np.stack([Y, Y + 1.0]))


EVEN = {
    "fixed noise": lambda: pm.Normal("y", field(), 0.5, observed=Y),
    "learned noise": lambda: pm.Normal("y", field(), learned(), observed=Y),
    "equal noise": lambda: pm.Normal("y", field(), np.full(SHAPE, 0.5), observed=Y),
    "ravelled": lambda: pm.Normal("y", field().ravel(), 0.5, observed=Y.ravel()),
    "scaling coefficients": lambda: pm.Normal("y", field(Wavelet2D(SHAPE, "haar", 3, scaling=True)), 0.5, observed=Y),
    "two variables": twice,
    "repeated": repeated,
    "tree": lambda: pm.Normal("y", tree(), 0.5, observed=Y),
    "tree, scaling": lambda: pm.Normal("y", tree(scaling=pm.Laplace.dist(0, 1.0)), learned(), observed=Y),
}
OTHERS = {
    "unequal noise": lambda: pm.Normal("y", field(), 0.5 * SHADE, observed=Y),
    "noise of two parts": lambda: pm.Normal("y", field(), learned(shape=2)[(SHADE > 1.2) * 1], observed=Y),
    "Student noise": lambda: pm.StudentT("y", nu=4.0, mu=field(), sigma=0.5, observed=Y),
    "Laplace noise": lambda: pm.Laplace("y", field(), 0.5, observed=Y),
    "exposure": lambda: pm.Normal("y", SHADE * field(), 0.5, observed=Y),
    "inpainting": lambda: pm.Normal("y", field()[SHADE > 1.2], 0.5, observed=Y[SHADE > 1.2]),
    "blur": lambda: pm.Normal(
        "y", pmep.apply_operator(Convolution2D(SHAPE, np.ones((3, 3)) / 9), field()), 0.5, observed=Y
    ),
    "differences": lambda: pm.Normal("y", field(Gradient2D(SHAPE)), 0.5, observed=Y),
    "a frame": lambda: pm.Normal(
        "y", field(stack(Wavelet2D(SHAPE, "haar", 1), Wavelet2D(SHAPE, "db2", 1))), 0.5, observed=Y
    ),
    "two fields": lambda: pm.Normal("y", field() + field(name="v"), 0.5, observed=Y),
    "a level": lambda: pm.Normal("y", field() + pm.Normal("level", 0.0, 1.0), 0.5, observed=Y),
}


def form_of(build):
    with pm.Model() as model:
        build()
    return compiled_form(model)


@pytest.mark.parametrize("kind", list(EVEN))
def test_precisions_that_are_diagonal_in_coefficients(kind):
    """Against the inverse of the precision as it is defined, with all entries of D."""
    form = form_of(EVEN[kind])
    assert isinstance(form.linear.algebra, Orthonormal)
    design = form.linear.matrix.toarray()
    for theta in (form.start, form.start + 0.3):
        weights = form.first_sites(form.factors_at(theta))[1]
        coefficients = form.linear.algebra.basis.size
        weights[-coefficients:] = RNG.gamma(1.0, size=coefficients)
        factor = form.linear.algebra.factor(weights)
        assert isinstance(factor, OrthonormalFactor)
        precision = design.T @ (weights[:, None] * design)
        expected = np.einsum("ij,jk,ik->i", design, np.linalg.inv(precision), design)
        np.testing.assert_allclose(factor.predictor_variances(), expected, rtol=1e-9)
        np.testing.assert_allclose(factor.log_det, np.linalg.slogdet(precision)[1], rtol=1e-11)
    assert "orthonormal coefficients" in form.describe()


@pytest.mark.parametrize("kind", list(OTHERS))
def test_other_precisions(kind):
    form = form_of(OTHERS[kind])
    assert not isinstance(form.linear.algebra, Orthonormal)
    assert form.linear.algebra.design is form.linear.matrix
    assert "orthonormal" not in form.describe()


def with_noise_as_data():
    with pm.Model() as model:
        pm.Normal("y", field(), pm.Data("noise", np.full(SHAPE, 0.5)), observed=Y)
    return model


def test_noise_that_becomes_unequal():
    """The plan was made for noise as it was; posteriors stay right."""
    model = with_noise_as_data()
    form = compiled_form(model)
    assert isinstance(form.linear.algebra, Orthonormal)
    with model:
        pm.set_data({"noise": 0.5 * SHADE})
    prior = form.prior(form.start)
    _, weights = form.first_sites(prior)
    shift = RNG.normal(size=len(weights))
    found = prior.gaussian.posterior(prior.mean, shift, weights)
    design = form.linear.matrix.toarray()
    covariance = np.linalg.inv(design.T @ (weights[:, None] * design))
    np.testing.assert_allclose(found.variance, np.einsum("ij,jk,ik->i", design, covariance, design), rtol=1e-9)
    # Predictors are counted from the observations: their prior mean is not zero.
    expected = covariance @ design.T @ (shift - weights * prior.mean)
    np.testing.assert_allclose(found.coordinates, expected, atol=1e-11)


def without_entries(monkeypatch):
    for module in (linear_predictors, probing):
        monkeypatch.setattr(module, "MOST_UNKNOWNS", 100)


def test_unequal_noise_without_entries_is_refused(monkeypatch):
    without_entries(monkeypatch)
    model = with_noise_as_data()
    form = compiled_form(model)
    with pytest.raises(UnsupportedModelError, match="'u' is not local"):
        _ = form.linear.matrix
    assert form.linear.algebra.factor(form.first_sites(form.factors_at(form.start))[1]).proper
    with model:
        pm.set_data({"noise": 0.5 * SHADE})
    with pytest.raises(UnsupportedModelError, match="'u' is not local"):
        form.linear.algebra.factor(form.first_sites(form.factors_at(form.start))[1])


def test_affine_variables_without_entries(monkeypatch):
    """Few rows are found by the adjoint, hyperparameters and all; many have variances from draws."""
    operator = Wavelet2D(SHAPE, "db2", 3)
    with pm.Model() as model:
        u, s = field(), learned()
        pm.Deterministic("total", s * (SHADE * u).sum() + 1.0)
        pm.Deterministic("w", pmep.apply_operator(operator, u))
        pm.Normal("y", u, s, observed=Y)
    exact = compiled_form(model)
    theta = exact.start + 0.2
    weights = exact.first_sites(exact.factors_at(theta))[1]
    design = exact.linear.matrix.toarray()
    covariance = np.linalg.inv(design.T @ (weights[:, None] * design))
    without_entries(monkeypatch)
    form = pickle.loads(cloudpickle.dumps(exact))
    prior = form.prior(theta)
    posterior = prior.gaussian.posterior(prior.mean, RNG.normal(size=len(weights)), weights)
    found = form.affine_moments(theta)
    matrices = {"u": np.eye(256), "total": np.exp(theta) * SHADE.reshape(1, -1), "w": operator.matrix().toarray()}
    for name, matrix in matrices.items():
        cross = found[name].cross
        assert scipy.sparse.issparse(cross) == (name != "w")
        np.testing.assert_allclose(cross @ posterior.coordinates, matrix @ posterior.coordinates, atol=1e-11)
        np.testing.assert_allclose(cross.T @ np.ones(len(matrix)), matrix.sum(axis=0), atol=1e-11)
        variances = posterior.remaining_variance(cross, found[name].variance)
        expected = np.einsum("ij,jk,ik->i", matrix, covariance, matrix)
        # Of 200 squares the mean has the relative standard error 0.1; all 252 lie within 4.5 of these.
        np.testing.assert_allclose(variances, expected, rtol=0.45 if name == "w" else 1e-9)
    np.testing.assert_allclose(found["total"].mean, 1.0)


def test_potentials_that_are_one_basis_precondition_as_one():
    """Where pixels are missing there is no closed form, but details and scaling coefficients are one basis still."""
    seen = SHADE > 1.2

    def parts():
        pm.Normal("y", tree(scaling=pm.Laplace.dist(0, 1.0))[seen], 0.5, observed=Y[seen])

    def whole():
        pm.Normal("y", field(Wavelet2D(SHAPE, "db2", 2, scaling=True))[seen], 0.5, observed=Y[seen])

    weights, b = RNG.gamma(1.0, size=seen.sum() + 256), RNG.normal(size=256)
    found, expected = (form_of(build).linear.preconditioner(weights)(b) for build in (parts, whole))
    np.testing.assert_allclose(found, expected, atol=1e-12)


@pytest.mark.parametrize(
    "operator",
    [Convolution2D(SHAPE, np.ones((3, 3)) / 9), Fourier2D(SHAPE, np.random.default_rng(1).random(SHAPE) < 0.4)],
    ids=["blur", "frequencies"],
)
def test_preconditioner_of_observations_through_an_operator(operator):
    """That of alternating directions, with the observations' precision as a dense matrix; up to a factor."""

    def build():
        seen = pmep.operators.apply_operator(operator, tree(scaling=pm.Laplace.dist(0, 1.0)))
        pm.Normal("y", seen, 0.5, observed=np.ones(operator.output_shape))

    n = np.prod(operator.output_shape)
    weights = np.concatenate([np.full(n, 4.0), RNG.gamma(1.0, size=256)])
    rows, waves = operator.matrix().toarray(), Wavelet2D(SHAPE, "db2", 2, scaling=True).matrix().toarray()
    middle = np.exp(np.log(weights[n:]).mean())
    values, vectors = np.linalg.eigh(4.0 * rows.T @ rows)
    root = (vectors / np.sqrt(1.0 + values / (4.0 * middle))) @ vectors.T
    potentials = waves.T @ (weights[n:, None] * waves) + middle * np.eye(256)
    b = RNG.normal(size=256)
    found = form_of(build).linear.preconditioner(weights)(b)
    expected = middle * root @ np.linalg.solve(potentials, root @ b)
    np.testing.assert_allclose(found, expected, atol=1e-9)


def test_preconditioners_of_large_images_can_be_used_again():
    """NumPy computes in place what it takes for a temporary, from 2^15 numbers on."""
    shape = 256, 256
    seen = RNG.random(shape) < 0.25

    def build():
        u = field(Wavelet2D(shape, "haar", 2, scaling=True))
        pm.Normal("y", u[seen], 0.5, observed=np.ones(seen.sum()))

    form = form_of(build)
    precondition = form.linear.preconditioner(RNG.gamma(1.0, size=seen.sum() + 2**16))
    b = RNG.normal(size=2**16)
    first = precondition(b.copy())
    np.testing.assert_array_equal(precondition(b.copy()), first)
