"""Every Gaussian distribution: moments, root and excess against the Hessian and the value of PyMC's own density."""

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
import scipy.sparse

from pymc_ep.distributions.gaussian_markov import GaussianMarkov
from pymc_ep.exceptions import InvalidDataError, UnsupportedModelError
from pymc_ep.graphs.gaussian_variables import gaussian_of

RING = np.array([[0, 1, 0, 0, 1], [1, 0, 1, 0, 0], [0, 1, 0, 1, 0], [0, 0, 1, 0, 1], [1, 0, 0, 1, 0]], dtype=float)
RNG = np.random.default_rng(0)
FACTOR = np.tril(RNG.normal(size=(3, 3))) + 3 * np.eye(3)
COVARIANCE = FACTOR @ FACTOR.T
COVARIANCES = np.stack([COVARIANCE, 2 * COVARIANCE + np.eye(3)])

DISTRIBUTIONS = {
    "normal": lambda: pm.Normal.dist([1.0, 2.0, 3.0], [0.5, 1.0, 2.0]),
    "normal matrix": lambda: pm.Normal.dist(np.arange(3.0), np.array([[0.5], [2.0]]), shape=(2, 3)),
    "normal scalar": lambda: pm.Normal.dist(0.3, 2.0),
    "mv normal": lambda: pm.MvNormal.dist(np.arange(3.0), COVARIANCE),
    "mv normal rows": lambda: pm.MvNormal.dist(np.arange(6.0).reshape(2, 3), COVARIANCE, shape=(2, 3)),
    "mv normal batch": lambda: pm.MvNormal.dist(np.zeros(3), COVARIANCES, shape=(2, 3)),
    "mv normal precision": lambda: pm.MvNormal.dist(np.arange(3.0), tau=COVARIANCE),
    "matrix normal": lambda: pm.MatrixNormal.dist(np.ones((2, 3)), rowcov=COVARIANCES[1][:2, :2], colcov=COVARIANCE),
    "random walk": lambda: pm.GaussianRandomWalk.dist(0.4, 0.7, init_dist=pm.Normal.dist(1.0, 2.0), steps=4),
    "random walks": lambda: pm.GaussianRandomWalk.dist(
        0.4, np.array([0.7, 2.0]), init_dist=pm.Normal.dist([1.0, -1.0], 2.0), shape=(2, 4)
    ),
    "random walk of vectors": lambda: pm.MvGaussianRandomWalk.dist(
        np.array([0.4, -0.1, 0.0]),
        cov=COVARIANCE,
        init_dist=pm.MvNormal.dist(np.array([1.0, 2.0, 0.0]), COVARIANCES[1]),
        steps=3,
    ),
    "random walks of vectors": lambda: pm.MvGaussianRandomWalk.dist(
        np.array([0.4, -0.1, 0.0]), cov=COVARIANCE, init_dist=pm.MvNormal.dist(np.ones(3), np.eye(3)), shape=(2, 3, 3)
    ),
    "autoregression": lambda: pm.AR.dist([0.5, -0.2], 0.7, init_dist=pm.Normal.dist(1.0, 2.0), shape=(6,)),
    "autoregression with constant": lambda: pm.AR.dist(
        [0.3, 0.5], 0.7, constant=True, init_dist=pm.Normal.dist(1.0, 2.0), shape=(5,)
    ),
    "autoregressions": lambda: pm.AR.dist(
        [0.5], np.array([0.7, 1.5]), init_dist=pm.Normal.dist(1.0, 2.0), shape=(2, 4)
    ),
    "car": lambda: pm.CAR.dist(np.arange(5.0), RING, alpha=0.6, tau=1.7),
    "car sparse": lambda: pm.CAR.dist(np.arange(5.0), scipy.sparse.csr_matrix(RING), alpha=0.6, tau=1.7),
    "icar": lambda: pm.ICAR.dist(RING, sigma=0.8, zero_sum_stdev=0.1),
    "markov": lambda: GaussianMarkov.dist([(1.7, np.diag(RING.sum(axis=0))), (-0.9, RING)]),
}


def evaluate(*graphs):
    return [np.asarray(v, dtype=float) for v in pytensor.function([], list(graphs), mode="FAST_COMPILE")()]


@pytest.mark.filterwarnings(
    "ignore:.*object mode.*:UserWarning", "ignore:.*sparse.*", "ignore:.*linalg.trace.*:FutureWarning"
)
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_moments_are_those_of_the_density(name):
    rv = DISTRIBUTIONS[name]()
    shape = tuple(int(n) for n in evaluate(rv.shape)[0]) if rv.ndim else ()
    gaussian = gaussian_of(rv)
    graphs = [gaussian.covariance(shape), gaussian.root(shape)]
    graphs.append(pt.zeros(shape) if gaussian.mean is None else pt.broadcast_to(gaussian.mean(shape), shape))
    graphs.append(pt.zeros(()) if gaussian.log_excess is None else gaussian.log_excess(shape))
    covariance, root, mean, excess = evaluate(*graphs)

    flat = pt.dvector("flat")
    logp = pm.logp(rv, flat.reshape(shape) if shape else flat[0]).sum()
    gradient = pytensor.grad(logp, flat)
    density = pytensor.function([flat], [logp, gradient], mode="FAST_COMPILE")
    d = covariance.shape[0]
    at_mean, slope = density(mean.ravel())
    np.testing.assert_allclose(slope, 0, atol=1e-8)
    # The density is quadratic, so differences of its gradient are exact up to rounding.
    precision = np.array([density(mean.ravel() - e)[1] for e in np.eye(d)])
    np.testing.assert_allclose(covariance @ precision, np.eye(d), atol=1e-7)
    np.testing.assert_allclose(root.T @ root, covariance, rtol=1e-9, atol=1e-9 * np.abs(covariance).max())
    normalised = -0.5 * np.linalg.slogdet(2 * np.pi * covariance)[1]
    np.testing.assert_allclose(excess, at_mean - normalised, atol=1e-8)


def test_zero_sum_normal_is_its_draws():
    """It has no density in all its coordinates: the covariance is that of independent normals less their means."""
    rv = pm.ZeroSumNormal.dist(sigma=np.array([[[0.5]], [[2.0]]]), n_zerosum_axes=2, shape=(2, 3, 4))
    covariance, root = evaluate(gaussian_of(rv).covariance((2, 3, 4)), gaussian_of(rv).root((2, 3, 4)))
    centre = [np.eye(n) - 1 / n for n in (3, 4)]
    block = np.kron(*centre)
    expected = np.kron(np.diag([0.25, 4.0]), block)
    np.testing.assert_allclose(covariance, expected, atol=1e-12)
    np.testing.assert_allclose(root.T @ root, expected, atol=1e-12)


@pytest.mark.parametrize("nulls", [1, 2])
def test_intrinsic_fields_have_the_pseudo_inverse(nulls):
    """The density on the vectors orthogonal to the null space is PyMC's, which has no excess."""
    differences = np.diff(np.eye(6), nulls, axis=0)
    matrices = [differences.T @ np.diag(w) @ differences for w in (np.ones(6 - nulls), np.arange(1.0, 7 - nulls))]
    null_space = np.vander(np.arange(6.0), nulls)
    rv = GaussianMarkov.dist([(0.7, matrices[0]), (1.3, matrices[1])], null_space=null_space)
    gaussian, precision = gaussian_of(rv), 0.7 * matrices[0] + 1.3 * matrices[1]
    covariance, root = evaluate(gaussian.covariance((6,)), gaussian.root((6,)))
    np.testing.assert_allclose(covariance, np.linalg.pinv(precision), atol=1e-10)
    np.testing.assert_allclose(root.T @ root, covariance, atol=1e-10)
    x = covariance @ np.arange(6.0) ** 3
    (density,) = evaluate(pm.logp(rv, x))
    values = np.linalg.eigvalsh(precision)[nulls:]
    expected = -0.5 * (len(values) * np.log(2 * np.pi) - np.log(values).sum() + x @ precision @ x)
    np.testing.assert_allclose(density, expected, rtol=1e-10)
    assert gaussian.log_excess is None and gaussian.degenerate


@pytest.mark.parametrize(
    "make",
    [
        lambda: pm.StudentT.dist(nu=3, mu=0, sigma=1),
        lambda: pm.GaussianRandomWalk.dist(0, 1, init_dist=pm.StudentT.dist(nu=3), steps=3),
        lambda: pm.AR.dist([0.5], 1.0, init_dist=pm.StudentT.dist(nu=3), shape=(4,)),
    ],
)
def test_others_are_not_gaussian(make):
    assert gaussian_of(make()) is None


def test_areas_without_neighbours_or_connection_are_refused():
    alone = RING.copy()
    alone[3] = alone[:, 3] = 0
    with pytest.raises(UnsupportedModelError, match=r"'phi' has a CAR prior in which area 3 has no neighbour"):
        gaussian_of(pm.CAR.dist(np.zeros(5), alone, alpha=0.5, tau=1.0)).check("phi")
    with pytest.raises(
        UnsupportedModelError, match=r"'phi' has an ICAR prior on 2 unconnected groups of areas \(area 3"
    ):
        gaussian_of(pm.ICAR.dist(alone)).check("phi")


WRONG = COVARIANCE + np.array([[0.0, 0.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.25, 0.0]])
BATCH = np.stack([COVARIANCE, WRONG])


@pytest.mark.parametrize(
    ("make", "index"),
    [
        (lambda: pm.MvNormal.dist(np.zeros(3), WRONG), "covariance.*(1, 2)"),
        (lambda: pm.MvNormal.dist(np.zeros(3), tau=WRONG), "precision.*(1, 2)"),
        (lambda: pm.MvNormal.dist(np.zeros(3), tau=WRONG, shape=(2, 3)), "precision.*(1, 2)"),
        (lambda: pm.MvNormal.dist(np.zeros(3), BATCH, shape=(2, 3)), "covariance.*(1, 1, 2)"),
        (lambda: pm.MatrixNormal.dist(np.ones((2, 3)), rowchol=np.eye(2), colcov=WRONG), "covariance.*(1, 2)"),
        (
            lambda: pm.MvGaussianRandomWalk.dist(
                np.zeros(3), cov=WRONG, init_dist=pm.MvNormal.dist(np.zeros(3), COVARIANCE), steps=2
            ),
            "covariance.*(1, 2)",
        ),
    ],
    ids=["covariance", "precision", "precision of rows", "batch", "matrix normal", "random walk"],
)
def test_matrices_that_are_not_symmetric_are_refused(make, index):
    what, place = index.split(".*")
    with pytest.raises(InvalidDataError, match=rf"The {what} matrix of 'u' is not symmetric") as caught:
        gaussian_of(make()).check("u")
    assert f"it is {WRONG[1, 2]:.6g} at index {place} and {WRONG[2, 1]:.6g} at" in str(caught.value)
    assert "(A + A.T) / 2" in str(caught.value)


def test_a_factor_in_place_of_a_covariance_is_named():
    with pytest.raises(InvalidDataError, match=r"lower triangular: give a Cholesky factor.*as chol="):
        gaussian_of(pm.MvNormal.dist(np.zeros(3), FACTOR)).check("u")
    gaussian_of(pm.MvNormal.dist(np.zeros(3), chol=WRONG)).check("u")


def test_rounding_makes_no_matrix_asymmetric():
    """An inverse of condition number 1e9 and scales of 1e-4 to 1e4 loses digits that do not matter."""
    basis = np.linalg.qr(RNG.normal(size=(5, 5)))[0]
    scales = np.diag(10.0 ** np.array([-4, -2, 0, 2, 4]))
    matrix = scales @ np.linalg.inv(basis @ np.diag(np.logspace(-9, 0, 5)) @ basis.T) @ scales
    assert not np.array_equal(matrix, matrix.T)
    gaussian_of(pm.MvNormal.dist(np.zeros(5), matrix)).check("u")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"W": RING / RING.sum(axis=1) + np.eye(5, k=2)}, r"W is 1 at index \(0, 2\) and 0 at \(2, 0\).*adjacency"),
        ({"W": np.diag([1.0, 1, 1, 1], 1)[:5, :5] + np.eye(5, k=-4)}, r"\(0, 1\).*rows sum to one.*transform = 'b'"),
        ({"W": -RING}, r"weight -1 in W between areas 0 and 1\..*zero or positive"),
        ({"alpha": 1.0}, r"alpha = 1, where it must be above -1 and below 1\..*pm\.ICAR"),
        ({"alpha": -1.5}, r"alpha = -1\.5, where it must be above -1"),
        ({"tau": 0.0}, r"tau = 0, where it must be above 0\."),
    ],
    ids=["asymmetric", "row-standardised", "negative", "alpha 1", "alpha -1.5", "tau"],
)
def test_parameters_that_make_no_autoregression_are_refused(changes, message):
    rv = pm.CAR.dist(np.zeros(5), **({"W": RING, "alpha": 0.5, "tau": 1.0} | changes))
    with pytest.raises(InvalidDataError, match=rf"The CAR prior of 'phi'.*{message}"):
        gaussian_of(rv).check("phi")
