"""Sparse precisions of Gaussian distributions, against the inverses of their covariances and PyMC's densities."""

import time
import tracemalloc

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
import scipy.sparse

from pymc_ep.graphs.gaussian_precisions import sparse_precision_of
from pymc_ep.graphs.gaussian_variables import gaussian_of
from tests.graphs.test_gaussian_variables import DISTRIBUTIONS, evaluate

DENSE = ("mv normal precision", "matrix normal", "random walk of vectors", "random walks of vectors")
"""Those without a sparse precision, or with one that is not written yet."""
SPARSE = {name: make for name, make in DISTRIBUTIONS.items() if name not in DENSE}
LONG = {
    "autoregression of order three": lambda: pm.AR.dist(
        [0.4, -0.2, 0.1], 0.7, init_dist=pm.Normal.dist(1.0, 2.0), shape=(7,)
    ),
    "a series no longer than its order": lambda: pm.AR.dist(
        [0.4, -0.2, 0.1], 0.7, init_dist=pm.Normal.dist(1.0, 2.0), shape=(4,)
    ),
}


def matrix_of(found, d):
    """Q, and all else that has values."""
    values, excess = evaluate(found.values, found.log_excess)
    lower = np.zeros((d, d))
    np.add.at(lower, (found.rows, found.columns), values)
    matrix = lower + np.tril(lower, -1).T
    if found.sum_sd is not None:
        matrix += 1.0 / evaluate(found.sum_sd)[0] ** 2
    return matrix, excess


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [*SPARSE, *LONG])
def test_precisions_are_inverses_of_covariances(name):
    rv = (SPARSE | LONG)[name]()
    shape = (5,) if name == "icar" else rv.eval().shape
    found, gaussian, d = sparse_precision_of(rv, shape), gaussian_of(rv), int(np.prod(shape))
    symbolic = [pt.constant(n) for n in shape]
    matrix, excess = matrix_of(found, d)
    (covariance,) = evaluate(gaussian.covariance(symbolic))
    np.testing.assert_allclose(matrix, np.linalg.inv(covariance), rtol=1e-9, atol=1e-10 * np.abs(matrix).max())
    assert np.all(found.rows >= found.columns)
    assert len(set(zip(found.rows.tolist(), found.columns.tolist()))) == len(found.rows)
    assert set(range(d)) <= set(found.rows[found.rows == found.columns].tolist())
    log_det = np.linalg.slogdet(matrix)[1]
    expected = 0.0 if gaussian.log_excess is None else evaluate(gaussian.log_excess(symbolic))[0]
    np.testing.assert_allclose(excess, expected, rtol=1e-10, atol=1e-10)
    if found.log_det is not None:
        np.testing.assert_allclose(evaluate(found.log_det)[0], log_det, rtol=1e-10, atol=1e-10)


def test_a_flat_prior_has_no_precision():
    with pm.Model():
        found = sparse_precision_of(pm.Flat("x", shape=(2, 3)), (2, 3))
    matrix, excess = matrix_of(found, 6)
    assert not matrix.any()
    np.testing.assert_allclose(excess, 3.0 * np.log(2.0 * np.pi))


def test_what_has_no_sparse_precision():
    assert sparse_precision_of(pm.MvNormal.dist(np.zeros(200), np.eye(200)), (200,)) is None
    assert sparse_precision_of(pm.Gamma.dist(1.0, 1.0), ()) is None
    assert sparse_precision_of(DISTRIBUTIONS["random walk of vectors"](), (4, 3)) is None


def lattice(side):
    line = scipy.sparse.diags_array([np.ones(side - 1), np.ones(side - 1)], offsets=[-1, 1])
    eye = scipy.sparse.eye_array(side)
    return scipy.sparse.csr_array(scipy.sparse.kron(line, eye) + scipy.sparse.kron(eye, line))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("write", "d", "entries"),
    [
        (lambda: pm.GaussianRandomWalk("x", sigma=1.0, init_dist=pm.Normal.dist(0, 1), steps=99_999), 10**5, 2),
        (lambda: pm.AR("x", [0.5, 0.2], sigma=1.0, init_dist=pm.Normal.dist(0, 1), shape=10**5), 10**5, 3),
        (lambda: pm.CAR("x", np.zeros(90_000), scipy.sparse.csr_matrix(lattice(300)), 0.9, 1.0), 90_000, 3),
        (lambda: pm.Normal("x", 0, 1, shape=10**5), 10**5, 1),
    ],
    ids=["walk", "autoregression", "car", "independent"],
)
def test_time_and_memory_are_linear_in_the_variable(write, d, entries):
    with pm.Model():
        rv = write()
    tracemalloc.start()
    began = time.process_time()
    found = sparse_precision_of(rv, (d,))
    values = pytensor.function([], found.values, mode="FAST_COMPILE")()
    assert len(values) <= entries * d
    assert time.process_time() - began < 10.0
    assert tracemalloc.get_traced_memory()[1] < 500 * d * entries
    tracemalloc.stop()


def test_areas_that_are_their_own_neighbours():
    """PyMC's density has them in D - alpha W."""
    w = np.diag(np.ones(4), 1) + np.diag(np.ones(4), -1) + np.diag([0.0, 2.0, 0.0, 0.0, 0.0])
    found = sparse_precision_of(pm.CAR.dist(np.zeros(5), w, alpha=0.4, tau=1.5), (5,))
    dense = np.zeros((5, 5))
    dense[found.rows, found.columns] = dense[found.columns, found.rows] = found.values.eval()
    np.testing.assert_allclose(dense, 1.5 * (np.diag(w.sum(axis=0)) - 0.4 * w))
