"""`SparseField` against brute force: its density, the power of its scale, its normaliser, and its manners in PyMC."""

import pickle

import cloudpickle
import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
import scipy.sparse
import scipy.stats

import pymc_ep as pmep
from pymc_ep.compat import group, group_names
from pymc_ep.exceptions import InvalidDataError, UnsupportedModelError
from pymc_ep.modes import numpy_mode
from pymc_ep.operators import Gradient2D, Wavelet2D

RNG = np.random.default_rng(3)
SHAPE = (3, 4)
X = RNG.normal(size=SHAPE)


def differences(shape):
    """Horizontal, then vertical, first differences of an image in C order, entry by entry."""
    rows, columns = shape
    index = np.arange(rows * columns).reshape(shape)
    pairs = [*zip(index[:, :-1].ravel(), index[:, 1:].ravel()), *zip(index[:-1].ravel(), index[1:].ravel())]
    out = np.zeros((len(pairs), rows * columns))
    for row, (one, other) in enumerate(pairs):
        out[row, [one, other]] = -1.0, 1.0
    return out


POTENTIALS = {
    "laplace": (lambda b: pm.Laplace.dist(0, b), lambda s, b: scipy.stats.laplace.logpdf(s, scale=b)),
    "student_t": (
        lambda b: pm.StudentT.dist(nu=2.1, sigma=b),
        lambda s, b: scipy.stats.t.logpdf(s, 2.1, scale=b),
    ),
    "normal": (lambda b: pm.Normal.dist(0, b), lambda s, b: scipy.stats.norm.logpdf(s, scale=b)),
}


def compiled(inputs, output):
    return pytensor.function(inputs, output, mode=numpy_mode(), on_unused_input="ignore")


@pytest.mark.parametrize("name", POTENTIALS)
def test_density_of_total_variation(name):
    """The product of the normalised potentials, with b^-(N - 1) for its power of the scale."""
    make, log_density = POTENTIALS[name]
    b, x = pt.dscalar("b"), pt.dmatrix("x")
    rv = pmep.SparseField.dist(operator=Gradient2D(SHAPE), potential=make(b))
    logp = pm.logp(rv, x)
    assert logp.type.ndim == 0
    function = compiled([b, x], [logp, pt.grad(logp, b), pt.grad(logp, x)])
    matrix = differences(SHAPE)
    n_rows, n = matrix.shape

    def brute(b, x):
        return log_density(matrix @ x.ravel(), b).sum() + (n_rows - (n - 1)) * np.log(b)

    for scale in (0.1, 2.5):
        value, in_scale, in_x = function(scale, X)
        np.testing.assert_allclose(value, brute(scale, X), rtol=1e-12)
        h = 1e-5 * scale
        numeric = (brute(scale + h, X) - brute(scale - h, X)) / (2 * h)
        np.testing.assert_allclose(in_scale, numeric, rtol=1e-7)
        for place in [(0, 0), (1, 2), (2, 3)]:
            step = np.zeros(SHAPE)
            step[place] = 1e-6
            numeric = (brute(scale, X + step) - brute(scale, X - step)) / 2e-6
            np.testing.assert_allclose(in_x[place], numeric, rtol=1e-6)


@pytest.mark.parametrize("name", POTENTIALS)
def test_scaling_array_and_scale_together_leaves_the_reached_density(name):
    """p(c x | c b) = c^-rank p(x | b): the density of B x in the space that B reaches."""
    make, _ = POTENTIALS[name]
    b, x = pt.dscalar("b"), pt.dmatrix("x")
    logp = compiled([b, x], pm.logp(pmep.SparseField.dist(operator=Gradient2D(SHAPE), potential=make(b)), x))
    np.testing.assert_allclose(logp(0.7 * 3.0, 3.0 * X), logp(0.7, X) - (X.size - 1) * np.log(3.0), rtol=1e-12)
    np.testing.assert_allclose(logp(0.7, X + 5.0), logp(0.7, X), rtol=1e-12)


def test_groups_of_wavelets_have_their_own_powers():
    levels, shape = 2, (8, 8)
    operator = Wavelet2D(shape, "db2", levels)
    b, x = pt.dvector("b"), pt.dmatrix("x")
    rv = pmep.SparseField.dist(operator=operator, potential=pm.StudentT.dist(nu=2.1, sigma=pt.specify_shape(b, levels)))
    function = compiled([b, x], [pm.logp(rv, x), pt.grad(pm.logp(rv, x), b)])
    image, scales = RNG.normal(size=shape), np.array([0.3, 1.7])
    coefficients = operator.forward(image)

    def brute(scales):
        sizes = 3 * np.array([4 * 4, 2 * 2])  # of levels of an 8 x 8 image, the finest first
        return scipy.stats.t.logpdf(coefficients, 2.1, scale=np.repeat(scales, sizes)).sum()

    value, in_scale = function(scales, image)
    np.testing.assert_allclose(value, brute(scales), rtol=1e-12)
    for k in range(levels):
        h = 1e-5 * np.eye(levels)[k]
        np.testing.assert_allclose(in_scale[k], (brute(scales + h) - brute(scales - h)) / 2e-5, rtol=1e-7)


@pytest.mark.parametrize("name", POTENTIALS)
def test_orthonormal_rows_integrate_to_one(name):
    """In two dimensions, over the rotated square that the coefficients fill; heavy tails by their own quantiles."""
    make, _ = POTENTIALS[name]
    angle = 0.4
    rotation = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
    x = pt.dvector("x")
    logp = compiled([x], pm.logp(pmep.SparseField.dist(operator=rotation, potential=make(0.7)), x))
    nodes, weights = np.polynomial.legendre.leggauss(16)
    # s = sinh(t) / 2 takes in the tails, and panels meet at 0, where Laplace potentials have a kink.
    edges = np.linspace(-12.0, 12.0, 9)
    t = (edges[:-1, None] + np.diff(edges)[:, None] * (nodes + 1) / 2).ravel()
    w = (np.diff(edges)[:, None] / 2 * weights).ravel() * np.cosh(t) / 2
    s = np.sinh(t) / 2
    total = sum(wi * wj * np.exp(logp(rotation.T @ np.array([si, sj]))) for si, wi in zip(s, w) for sj, wj in zip(s, w))
    np.testing.assert_allclose(total, 1.0, rtol=1e-6)


def test_scales_in_single_precision_lose_no_digits():
    """PyTensor holds the number 0.5 in single precision."""
    x = pt.dmatrix("x")
    logp = compiled(
        [x], pm.logp(pmep.SparseField.dist(operator=Gradient2D(SHAPE), potential=pm.Laplace.dist(0, 0.5)), x)
    )
    expected = scipy.stats.laplace.logpdf(differences(SHAPE) @ X.ravel(), scale=0.5).sum() + (17 - 11) * np.log(0.5)
    np.testing.assert_allclose(logp(X), expected, rtol=1e-13)


def test_rank_of_a_matrix_is_computed():
    matrix = RNG.normal(size=(7, 3)) @ RNG.normal(size=(3, 6))
    b, x = pt.dscalar("b"), pt.dvector("x")
    at = RNG.normal(size=6)
    for operator in (matrix, scipy.sparse.csr_array(matrix), scipy.sparse.linalg.aslinearoperator(matrix)):
        logp = compiled([b, x], pm.logp(pmep.SparseField.dist(operator=operator, potential=pm.Laplace.dist(0, b)), x))
        np.testing.assert_allclose(logp(2.0, 2.0 * at), logp(1.0, at) - 3 * np.log(2.0), rtol=1e-12)
    given = pmep.SparseField.dist(operator=matrix, potential=pm.Laplace.dist(0, b), rank=5)
    logp = compiled([b, x], pm.logp(given, x))
    np.testing.assert_allclose(logp(2.0, 2.0 * at), logp(1.0, at) - 5 * np.log(2.0), rtol=1e-12)


# In a model


def model_of(n=6):
    rng = np.random.default_rng(2)
    truth = np.zeros((n, n))
    truth[n // 2 :, n // 3 :] = 4.0
    with pm.Model(coords={"row": range(n), "column": range(n)}) as model:
        b = pm.Exponential("b", 1.0)
        u = pmep.SparseField("u", operator=Gradient2D((n, n)), potential=pm.Laplace.dist(0, b), dims=("row", "column"))
        pm.Normal("y", u, np.array(0.5), observed=truth + 0.5 * rng.normal(size=(n, n)), dims=("row", "column"))
    return model


@pytest.fixture(scope="module")
def model():
    return model_of()


def test_shape_and_initial_value_from_dims(model):
    assert model.named_vars_to_dims["u"] == ("row", "column")
    assert model["u"].type.shape == (6, 6)
    np.testing.assert_array_equal(model.initial_point()["u"], np.zeros((6, 6)))
    with pm.Model() as other:
        pmep.SparseField("u", operator=Gradient2D((2, 2)), potential=pm.Laplace.dist(0, 1), initval=np.eye(2))
    np.testing.assert_array_equal(other.initial_point()["u"], np.eye(2))


def test_log_density_of_the_model(model):
    u = RNG.normal(size=(6, 6))
    found = model.compile_logp(mode=numpy_mode())({"b_log__": np.log(0.4), "u": u})
    y = model.rvs_to_values[model["y"]].eval()
    expected = (
        scipy.stats.expon.logpdf(0.4)
        + np.log(0.4)  # of the transform
        + scipy.stats.laplace.logpdf(differences((6, 6)) @ u.ravel(), scale=0.4).sum()
        + (60 - 35) * np.log(0.4)
        + scipy.stats.norm.logpdf(y, u, 0.5).sum()
    )
    np.testing.assert_allclose(found, expected, rtol=1e-11)


def test_default_mode_compiles_without_warnings(model):
    """Warnings are errors here: Numba would warn before it falls back to interpreted code."""
    value = model.compile_logp()(model.initial_point())
    np.testing.assert_allclose(value, model.compile_logp(mode=numpy_mode())(model.initial_point()), rtol=1e-12)
    gradient = model.compile_dlogp()(model.initial_point())
    assert np.all(np.isfinite(gradient))


@pytest.mark.filterwarnings("ignore:Numba will use object mode to run SparseFieldRV")
def test_prior_draws_are_refused(model):
    with pytest.raises(NotImplementedError, match=r"SparseField is an improper prior.*cannot be drawn.*posterior"):
        pm.draw(pmep.SparseField.dist(operator=Gradient2D((2, 2)), potential=pm.Laplace.dist(0, 1)))
    with model, pytest.raises(NotImplementedError, match=r"SparseField is an improper prior.*cannot be drawn"):
        pm.sample_prior_predictive(2)


def test_nuts_starts_and_moves(model):
    with model:
        idata = pm.sample(
            draws=5, tune=5, chains=1, cores=1, progressbar=False, random_seed=1, compute_convergence_checks=False
        )
    draws = np.asarray(group(idata, "posterior")["u"])
    assert draws.shape == (1, 5, 6, 6)
    assert np.ptp(draws, axis=1).min() > 0


def test_posterior_predictive_of_a_fit():
    with model_of(4):  # its own: PyMC 5 leaves models without a density behind
        idata = pmep.fit(method="ep", draws=100, chains=2, progressbar=False, random_seed=1)
        found = pm.sample_posterior_predictive(idata, progressbar=False, random_seed=2)
    assert "posterior_predictive" in group_names(found)
    y = np.asarray(group(found, "posterior_predictive")["y"])
    assert y.shape == (2, 100, 4, 4)
    # Noise of sd 0.5 on top of the posterior of u.
    u = np.asarray(group(idata, "posterior")["u"])
    np.testing.assert_allclose(y.mean((0, 1)), u.mean((0, 1)), atol=5 * np.sqrt((0.25 + u.var((0, 1)).max()) / 200))
    np.testing.assert_allclose((y - u).std(), 0.5, rtol=0.05)


def test_pickles(model):
    u = RNG.normal(size=(6, 6))
    point = {"b_log__": np.log(0.4), "u": u}
    expected = model.compile_logp(mode=numpy_mode())(point)
    copy = pickle.loads(cloudpickle.dumps(model))  # PyMC's models do not go through pickle alone
    np.testing.assert_allclose(copy.compile_logp(mode=numpy_mode())(point), expected, rtol=1e-13)


# Refusals


def laplace_of(**options):
    with pm.Model():
        pmep.SparseField("u", **({"operator": Gradient2D(SHAPE), "potential": pm.Laplace.dist(0, 1.0)} | options))


def test_shape_that_is_not_the_operators():
    with pytest.raises(UnsupportedModelError, match=r"shape=\(4, 4\).*operator takes arrays of shape \(3, 4\)"):
        laplace_of(shape=(4, 4))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"potential": pm.Gumbel.dist(0, 1)}, r"none of pm\.Laplace\.dist"),
        ({"potential": 1.0}, r"none of pm\.Laplace\.dist"),
        ({"potential": pm.Laplace.dist(0.5, 1)}, "location that is not the constant 0.*Subtract"),
        ({"potential": pm.Laplace.dist(np.ones(17), np.ones(17))}, "location that is not the constant 0"),
        ({"potential": pm.Laplace.dist(0, np.ones((2, 17)))}, "more than one axis"),
        ({"potential": pm.Laplace.dist(0, np.ones(5))}, "5 values, but its operator has 17 coefficients"),
        (
            {"operator": Wavelet2D((8, 8), "haar", 2), "potential": pm.Laplace.dist(0, np.ones(3))},
            "3 values, but its operator has 2 groups of coefficients; give as many",
        ),
    ],
)
def test_potentials_that_do_not_fit(options, message):
    with pytest.raises(UnsupportedModelError, match=message):
        laplace_of(**options)


@pytest.mark.parametrize("levels", [1, 3])
def test_scales_whose_length_is_that_of_dims(levels):
    """Of more values than groups some would be learned from nothing."""
    operator = Wavelet2D((8, 8), "haar", 2)
    with pm.Model(coords={"level": range(levels), "two": range(2)}):
        wrong, right = pm.HalfNormal("wrong", dims="level"), pm.HalfNormal("right", dims="two")
        pmep.SparseField("u", operator=operator, potential=pm.Laplace.dist(0, right))
        with pytest.raises(UnsupportedModelError, match=rf"{levels} values, but its operator has 2 groups"):
            pmep.SparseField("v", operator=operator, potential=pm.Laplace.dist(0, wrong))


@pytest.mark.parametrize("scale", [0.0, -1.0, np.nan])
def test_scale_that_is_not_positive(scale):
    with pytest.raises(InvalidDataError, match=rf"scale {scale}.*must be positive"):
        laplace_of(potential=pm.Laplace.dist(0, np.array(scale)))
    with pytest.raises(InvalidDataError, match=rf"scale {scale}.*must be positive"):
        laplace_of(potential=pm.Laplace.dist(0, np.r_[np.ones(16), scale]))


def test_degrees_of_freedom_that_are_not_positive():
    with pytest.raises(InvalidDataError, match=r"degrees of freedom.*-2.*must be positive"):
        laplace_of(potential=pm.StudentT.dist(nu=-2.0, sigma=1.0))


def test_what_cannot_be_learned_under_dependent_rows():
    with pytest.raises(UnsupportedModelError, match=r"cannot learn one scale for each group.*17.*rank 11"):
        laplace_of(potential=pm.Laplace.dist(0, pm.HalfNormal.dist(shape=17)))
    with pytest.raises(UnsupportedModelError, match=r"cannot learn the degrees of freedom.*17.*rank 11"):
        laplace_of(potential=pm.StudentT.dist(nu=pm.Gamma.dist(2, 1), sigma=1.0))


@pytest.mark.parametrize("rank", [0, 13, 2.5])
def test_rank_that_cannot_be(rank):
    """Of 17 coefficients of 12 unknowns."""
    with pytest.raises(InvalidDataError, match=rf"rank={rank}.*1 and 12"):
        laplace_of(rank=rank)


def test_rank_that_is_not_known():
    n = 5000
    operator = scipy.sparse.linalg.aslinearoperator(scipy.sparse.eye_array(n, format="csr"))
    with pytest.raises(UnsupportedModelError, match=rf"rank of the operator.*{n} unknowns is not known.*rank="):
        laplace_of(operator=operator)
    laplace_of(operator=operator, rank=n)


def test_operators_that_are_none():
    with pytest.raises(UnsupportedModelError, match="no linear map"):
        laplace_of(operator="gradient")
    with pytest.raises(UnsupportedModelError, match="no adjoint"):
        laplace_of(operator=scipy.sparse.linalg.LinearOperator((3, 3), matvec=lambda x: x), rank=3)
    with pytest.raises(InvalidDataError, match=r"acts on 4 elements.*shape \(3,\)"):
        laplace_of(operator=np.eye(4), shape=3)
    with pytest.raises(UnsupportedModelError, match="constant operator"):
        laplace_of(operator=pt.dmatrix("A"))


def test_dims_of_another_length():
    options = {"operator": Gradient2D(SHAPE), "potential": pm.Laplace.dist(0, 1), "dims": ("row", "column")}
    model = pm.Model(coords={"row": range(5), "column": range(4)})
    with model, pytest.raises(UnsupportedModelError, match=r"shape=\(5, 4\).*\(3, 4\)"):
        pmep.SparseField("u", **options)


def test_matrix_takes_its_shape_from_dims():
    with pm.Model(coords={"row": range(3), "column": range(4)}):
        u = pmep.SparseField("u", operator=differences(SHAPE), potential=pm.Laplace.dist(0, 1), dims=("row", "column"))
    assert u.type.shape == SHAPE
