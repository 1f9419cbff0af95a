"""Fields of sparse precision: density, draws and gradient against dense algebra, and what is refused."""

import pickle
from types import SimpleNamespace

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
import scipy.sparse

import pymc_ep as pmep
from pymc_ep.distributions.log_determinant import LogDeterminant
from pymc_ep.exceptions import InvalidDataError
from pymc_ep.numerics.sparse import factor as sparse_factor
from pymc_ep.numerics.sparse.matrix_sum import MatrixSum

SIDE = 30
N = SIDE**2
RNG = np.random.default_rng(0)


def lattice(side):
    line = scipy.sparse.diags_array([np.ones(side - 1)] * 2, offsets=[-1, 1])
    eye = scipy.sparse.eye_array(side)
    return scipy.sparse.csr_array(scipy.sparse.kron(line, eye) + scipy.sparse.kron(eye, line))


W = lattice(SIDE)
DEGREE = scipy.sparse.diags_array(W.sum(axis=0))
ORDERS = {"as given": np.arange(N), "permuted": RNG.permutation(N)}


def terms(order):
    """Permuted matrices of a proper field, and of one that is zero along ones."""
    proper = [DEGREE, W]
    intrinsic = [DEGREE - W, (DEGREE - W) @ (DEGREE - W)]
    return [[scipy.sparse.csr_array(m)[order][:, order] for m in own] for own in (proper, intrinsic)]


COEFFICIENTS = {"proper": (1.3, -1.1), "intrinsic": (0.8, 0.2)}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("kind", COEFFICIENTS)
def test_the_log_determinant_and_its_gradient_are_those_of_dense_algebra(kind, order):
    own, c = terms(ORDERS[order])[kind == "intrinsic"], np.array(COEFFICIENTS[kind])
    given = MatrixSum(own, np.ones((N, 1)) if kind == "intrinsic" else None)
    found, gradient = given.log_determinant(c)
    dense = [m.toarray() for m in own]
    values, vectors = np.linalg.eigh(c[0] * dense[0] + c[1] * dense[1])
    first = int(kind == "intrinsic")
    np.testing.assert_allclose(found, np.log(values[first:]).sum(), rtol=1e-8)
    pseudo = (vectors[:, first:] / values[first:]) @ vectors[:, first:].T
    np.testing.assert_allclose(gradient, [(pseudo * m).sum() for m in dense], rtol=1e-8)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("kind", COEFFICIENTS)
def test_the_log_density_is_that_of_dense_algebra(kind, order):
    places, c = ORDERS[order], np.array(COEFFICIENTS[kind])
    own = terms(places)[kind == "intrinsic"]
    rv = pmep.GaussianMarkov.dist(list(zip(c, own)), null_space=np.ones(N) if kind == "intrinsic" else None)
    x = np.random.default_rng(1).standard_normal(N)
    x = (x - x.mean() if kind == "intrinsic" else x)[places]
    q = (c[0] * own[0] + c[1] * own[1]).toarray()
    values = np.linalg.eigvalsh(q)[kind == "intrinsic" :]
    expected = -0.5 * (len(values) * np.log(2 * np.pi) - np.log(values).sum() + x @ q @ x)
    np.testing.assert_allclose(pm.logp(rv, x).eval(), expected, rtol=1e-8)


def small_model():
    w = lattice(3)
    d = scipy.sparse.diags_array(w.sum(axis=0))
    with pm.Model(coords={"node": range(9)}) as model:
        tau, alpha = pm.Gamma("tau", 3, 1), pm.Beta("alpha", 4, 2)
        pmep.GaussianMarkov("x", precision=[(tau, d), (-tau * alpha, w)], dims="node")
        pmep.GaussianMarkov("z", precision=[(tau, d - w), (alpha, (d - w) @ (d - w))], null_space=np.ones(9))
    return model


def test_the_gradient_is_that_of_differences():
    model, rng, step = small_model(), np.random.default_rng(2), 1e-5
    value, gradient = model.compile_logp(), model.compile_dlogp()
    point = {name: 0.5 * rng.standard_normal(start.shape) for name, start in model.initial_point().items()}
    assert point["z_null_space__"].shape == (8,)
    found, slopes = gradient(point), []
    for name, start in point.items():
        for k in range(start.size):
            moved = step * np.eye(start.size)[k].reshape(start.shape)
            ends = [value(point | {name: start + sign * moved}) for sign in (1, -1)]
            slopes.append((ends[0] - ends[1]) / (2 * step))
    np.testing.assert_allclose(found, slopes, rtol=1e-6, atol=1e-7)


def test_draws_have_the_covariance():
    w, size = lattice(3), 20_000
    d = scipy.sparse.diags_array(w.sum(axis=0))
    for precision, null_space in (([(2.0, d), (-1.0, w)], None), ([(2.0, d - w)], np.ones(9))):
        rv = pmep.GaussianMarkov.dist(precision, null_space=null_space)
        draws = pm.draw(rv, draws=size, random_seed=3)
        q = sum(c * m.toarray() for c, m in precision)
        np.testing.assert_allclose(draws.T @ draws / size, np.linalg.pinv(q), atol=4 * np.linalg.pinv(q).max() / 100)


def test_prior_predictions_have_other_hyperparameters_each():
    with small_model():
        drawn = pm.sample_prior_predictive(20, random_seed=4)
    x, z = (drawn["prior"][name].to_numpy()[0] for name in ("x", "z"))
    assert x.shape == (20, 9) and len(np.unique(x[:, 0])) == 20
    np.testing.assert_allclose(z.sum(axis=-1), 0.0, atol=1e-10)


def test_bodies_of_the_log_determinant_agree():
    own = terms(ORDERS["as given"])[0]
    op = pickle.loads(pickle.dumps(LogDeterminant(MatrixSum(own))))
    c = pt.dvector("c")
    outputs = [op(c)[0], pytensor.grad(op(c)[0] ** 2, c)]
    at = np.array(COEFFICIENTS["proper"])
    expected = pytensor.function([c], outputs, mode="FAST_COMPILE")(at)
    modes = ["NUMBA"]
    try:
        import jax  # noqa: F401
    except ImportError:
        pass
    else:
        modes.append("JAX")
    for mode in modes:
        for found, wanted in zip(pytensor.function([c], outputs, mode=mode)(at), expected):
            np.testing.assert_allclose(found, wanted, rtol=1e-12)
    assert expected[0] == MatrixSum(own).log_determinant(at)[0]


def test_coefficients_without_a_density_have_none(monkeypatch):
    """A sampler turns back from there, whatever is in the memory for a factor that there is not."""
    filled = {"empty": lambda shape, dtype=float: np.full(shape, 1e300 if dtype is float else 0, dtype)}
    monkeypatch.setattr(sparse_factor, "np", SimpleNamespace(**{**vars(np), **filled}))
    own = terms(ORDERS["as given"])[0]
    for c in ([1.0, -1.5], [np.nan, 1.0]):
        found, gradient = MatrixSum(own).log_determinant(np.array(c))
        assert found == -np.inf and not gradient.any()
    rv = pmep.GaussianMarkov.dist([(1.0, own[0]), (-1.5, own[1])])
    assert pm.logp(rv, np.ones(N)).eval() == -np.inf
    with pytest.raises(np.linalg.LinAlgError, match="the precision matrix is not positive definite, at node"):
        MatrixSum(own).draw(np.array([1.0, -1.5]), 1, RNG)


def test_what_is_not_orthogonal_to_the_null_space_has_no_density():
    rv = pmep.GaussianMarkov.dist(DEGREE - W, null_space=np.ones(N))
    with pytest.raises(Exception, match="x is orthogonal to null_space"):
        pm.logp(rv, np.ones(N)).eval()


def two_groups():
    return scipy.sparse.block_diag([lattice(3), lattice(2)], format="csr")


@pytest.mark.parametrize(
    ("precision", "null_space", "message"),
    [
        (W[:5], None, r"'x': matrix 0 of precision= has the shape \(5, 900\), and a precision is square"),
        (scipy.sparse.tril(W + DEGREE), None, r"matrix 0 of precision= is 0 at index \(0, 1\), which is not that of"),
        (np.diag([1.0, np.nan]), None, r"matrix 0 of precision= is nan at index \(1, 1\), which is not finite"),
        ([(1.0, np.eye(3)), (1.0, np.eye(4))], None, r"have \[3, 4\] rows; give all the same number"),
        ([(np.ones(3), np.eye(3))], None, "coefficient 0 of precision= has 1 axes and is one number"),
        (DEGREE - W, None, "the rows of precision= at node 0, and at those connected with it, sum to zero"),
        (DEGREE, np.ones(N), r"null_space= is none of precision=: their product is .* at node"),
        (np.diag([1.0, -1.0]), None, "precision= is not positive definite: its factor fails at node 1"),
        (DEGREE - W, np.ones((N, 2)), r"null_space= has the shape \(900, 2\), and needs independent columns of 900"),
    ],
)
def test_bad_input_is_named(precision, null_space, message):
    with pm.Model(), pytest.raises(InvalidDataError, match=message):
        pmep.GaussianMarkov("x", precision=precision, null_space=null_space)


def test_a_group_whose_level_is_free_is_named():
    w = two_groups()
    laplacian = scipy.sparse.diags_array(w.sum(axis=0)) - w
    with pm.Model(), pytest.raises(InvalidDataError, match="at node 9, and at those connected with it"):
        pmep.GaussianMarkov("x", precision=laplacian, null_space=(np.arange(13) < 9).astype(float))


def test_lengths_and_stacks_are_refused():
    with pm.Model(coords={"node": range(5)}):
        with pytest.raises(InvalidDataError, match="'x' has 3 values, but the dim 'node' has the length 5"):
            pmep.GaussianMarkov("x", precision=np.eye(3), dims="node")
        with pytest.raises(InvalidDataError, match="'x' has 3 values, but shape= has the length 4"):
            pmep.GaussianMarkov("x", precision=np.eye(3), shape=4)
        with pytest.raises(InvalidDataError, match="write each field as its own variable"):
            pmep.GaussianMarkov("x", precision=np.eye(3), shape=(2, 3))


def test_a_fit_names_the_node_of_a_precision_that_is_none():
    with pm.Model(coords={"node": ["a", "b", "c"]}) as model:
        alpha = pm.HalfNormal("alpha", 1, initval=2.0)
        line = np.diag(np.ones(2), 1) + np.diag(np.ones(2), -1)
        x = pmep.GaussianMarkov("x", precision=[(1.0, np.eye(3)), (-alpha, line)], dims="node")
        pm.Poisson("y", pm.math.exp(x), observed=[1, 2, 3])
    with pytest.raises(InvalidDataError, match=r"matrix of 'x' is not positive definite at the coef.* fails at"):
        pmep.fit(model=model, progressbar=False)


def test_nuts_has_the_posterior_of_a_fit():
    """Of a field of two terms, whose log determinant is an Op, and of an intrinsic one."""
    w = lattice(4)
    d = scipy.sparse.diags_array(w.sum(axis=0))
    with pm.Model() as model:
        tau = pm.Gamma("tau", 3, 1)
        x = pmep.GaussianMarkov("x", precision=[(tau, d), (-0.9 * tau, w)])
        z = pmep.GaussianMarkov("z", precision=[(4.0, d - w)], null_space=np.ones(16))
        pm.Normal("y", x + z, 0.5, observed=np.random.default_rng(5).normal(size=16))
        chains = pm.sample(1_000, tune=500, chains=2, cores=1, random_seed=6, progressbar=False)
    found = pmep.fit(model=model, random_seed=7, progressbar=False)
    table = pmep.compare_to_mcmc(found, chains, var_names=["tau", "x", "z"])
    assert table["mean_difference"].abs().max() < 0.15
    np.testing.assert_allclose(table["sd_ratio"], 1.0, atol=0.12)
