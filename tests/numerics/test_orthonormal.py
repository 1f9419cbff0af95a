"""Precisions that are diagonal in an orthonormal basis, against dense algebra with the entries of D."""

from time import perf_counter

import numpy as np
import pytest
import scipy.sparse

from pymc_ep.exceptions import InvalidDataError
from pymc_ep.numerics.gaussian.flat_prior import FlatPrior, null_unknowns
from pymc_ep.numerics.precision.orthonormal import Basis, Orthonormal, OrthonormalFactor, joined
from pymc_ep.numerics.precision.plan import Dense
from pymc_ep.operators import Wavelet2D

BASES = {
    "haar": Wavelet2D((16, 16), "haar", 3),
    "haar, scaling": Wavelet2D((16, 16), "haar", 3, scaling=True),
    "db2": Wavelet2D((32, 16), "db2", 2),
    "db2, scaling": Wavelet2D((32, 16), "db2", 2, scaling=True),
}


def basis_of(operator):
    return Basis(
        operator.output_shape[0],
        lambda x: operator.forward(x.reshape(operator.input_shape)),
        lambda v: operator.adjoint(v).ravel(),
        lambda v: operator.squared_adjoint(v).ravel(),
    )


def unit_rows(n):
    return scipy.sparse.eye_array(n, format="csr")


def refuse():
    raise InvalidDataError("no entries")


class Problem:
    """Twice observed unknowns, some with another sign, and wavelets; `weights` are even although no two are equal."""

    def __init__(self, operator):
        rng = np.random.default_rng(0)
        n, j = int(np.prod(operator.input_shape)), operator.output_shape[0]
        scale = rng.uniform(0.5, 2.0, n)
        self.observed = scipy.sparse.csr_array(
            scipy.sparse.vstack([unit_rows(n), scipy.sparse.diags_array(scale * rng.choice([-1.0, 1.0], n))])
        )
        first = rng.uniform(0.1, 2.0, n)
        of_coefficients = rng.gamma(0.5, size=j) * 10.0 ** rng.uniform(-4, 4, j)
        of_coefficients[::7] *= -0.5 * 3.0 / of_coefficients.max()
        self.weights = np.concatenate([first, (3.0 - first) / scale**2, of_coefficients])
        self.dense = Dense(scipy.sparse.vstack([self.observed, operator.matrix()], format="csr"))
        self.algebra = Orthonormal(self.observed, basis_of(operator), lambda: self.dense)
        self.size = n


@pytest.fixture(params=list(BASES))
def problem(request):
    return Problem(BASES[request.param])


class Identity:
    """In place of a generator: the unit vectors, so that draws are the map itself."""

    def standard_normal(self, size):
        return np.eye(*size)


def test_all_of_the_algebra_is_that_of_the_dense_matrix(problem):
    rng = np.random.default_rng(1)
    found, expected = (a.factor(problem.weights) for a in (problem.algebra, problem.dense))
    assert isinstance(found, OrthonormalFactor)
    assert found.proper
    np.testing.assert_allclose(found.log_det, expected.log_det, rtol=1e-11)
    for b in (rng.normal(size=problem.size), rng.normal(size=(problem.size, 3))):
        np.testing.assert_allclose(found.solve(b), expected.solve(b), rtol=1e-8, atol=1e-9)
    np.testing.assert_allclose(found.predictor_variances(), expected.predictor_variances(), rtol=1e-8)
    covariance = expected.solve(np.eye(problem.size))
    root = found.draw(problem.size, Identity())
    np.testing.assert_allclose(root.T @ root, covariance, rtol=1e-8, atol=1e-10)
    other = scipy.sparse.random_array((20, problem.size), density=0.01, rng=rng, format="csr")
    other = scipy.sparse.vstack([other, unit_rows(problem.size)[3:5], np.ones((1, problem.size))], format="csr")
    np.testing.assert_allclose(found.variances(other), expected.variances(other), rtol=1e-8, atol=1e-14)


def test_draws_have_the_covariance(problem):
    weights = np.abs(problem.weights)
    weights[2 * problem.size :] = np.minimum(weights[2 * problem.size :], 50.0)
    factor = problem.algebra.factor(weights)
    draws = factor.draw(4000, np.random.default_rng(2))
    assert draws.shape == (4000, problem.size)
    # Of 4000 squares the mean has the relative standard error 0.022; all 512 and more lie within 4.5 of these.
    spread = factor.variances(unit_rows(problem.size))
    np.testing.assert_allclose((draws**2).mean(axis=0), spread, rtol=0.1)


def test_products_with_the_design(problem):
    rng = np.random.default_rng(3)
    design, entries = problem.algebra.design, problem.dense.design
    assert design.shape == entries.shape
    x, v = rng.normal(size=(problem.size, 2)), rng.normal(size=(entries.shape[0], 2))
    np.testing.assert_allclose(design @ x, entries @ x, atol=1e-11)
    np.testing.assert_allclose(design.T @ v, entries.T @ v, atol=1e-11)
    np.testing.assert_allclose(design @ x[:, 0], entries @ x[:, 0], atol=1e-11)
    np.testing.assert_allclose(problem.algebra.row_squares, problem.dense.row_squares, rtol=1e-12)


def test_weights_that_are_not_even_have_the_algebra_by_entries(problem):
    weights = problem.weights.copy()
    weights[5] *= 1.0 + 1e-9
    found, expected = (a.factor(weights) for a in (problem.algebra, problem.dense))
    assert not isinstance(found, OrthonormalFactor)
    np.testing.assert_array_equal(found.predictor_variances(), expected.predictor_variances())
    ridge = np.random.default_rng(0).uniform(0.5, 1.0, problem.size)
    found, expected = (a.factor(problem.weights, ridge) for a in (problem.algebra, problem.dense))
    np.testing.assert_allclose(found.log_det, expected.log_det, rtol=1e-12)
    without = Orthonormal(problem.observed, problem.algebra.basis, refuse)
    assert without.factor(problem.weights).proper
    with pytest.raises(InvalidDataError, match="no entries"):
        without.factor(weights)


def test_a_common_ridge_is_added(problem):
    ridge = np.full(problem.size, 0.7)
    found, expected = (a.factor(problem.weights, ridge) for a in (problem.algebra, problem.dense))
    assert isinstance(found, OrthonormalFactor)
    np.testing.assert_allclose(found.log_det, expected.log_det, rtol=1e-11)
    np.testing.assert_allclose(found.predictor_variances(), expected.predictor_variances(), rtol=1e-8)


def test_what_is_improper(problem):
    for change in (-4.0, -3.0, np.nan):
        weights = problem.weights.copy()
        weights[-1] = change
        assert not problem.algebra.factor(weights).proper
    nothing = problem.weights.copy()
    nothing[: 2 * problem.size] = 0.0
    nothing[2 * problem.size :] = 1.0
    # A whole basis knows all, others leave out what no observation tells.
    assert problem.algebra.factor(nothing).proper == (problem.algebra.basis.size == problem.size)
    assert not null_unknowns(problem.algebra).size


@pytest.mark.parametrize("value", [0.0, np.inf, np.nan])
def test_noise_without_a_precision(problem, value):
    weights = np.full(2 * problem.size, value)
    found = problem.algebra.common_precision(weights)
    assert found == 0.0 if value == 0.0 else found is None


def test_variances_keep_their_digits_beside_large_precisions():
    """With potentials up to 1e12 times as precise as the data: sums of positive numbers, of which none cancels."""
    operator = BASES["haar, scaling"]
    precision = 10.0 ** np.random.default_rng(4).uniform(6, 12, operator.output_shape[0])
    factor = Orthonormal(unit_rows(256), basis_of(operator), refuse).factor(np.concatenate([np.ones(256), precision]))
    expected = operator.matrix().power(2).T @ (1.0 / (1.0 + precision))
    np.testing.assert_allclose(factor.predictor_variances()[:256], expected, rtol=1e-13)


def test_parts_of_a_basis_are_joined():
    whole, details = BASES["db2, scaling"], BASES["db2"]
    kept = np.arange(details.output_shape[0], whole.output_shape[0])
    matrix = whole.matrix()[kept]
    rest = Basis(len(kept), lambda x: matrix @ x, lambda v: matrix.T @ v, lambda v: matrix.power(2).T @ v)
    both = joined([basis_of(details), rest])
    rng = np.random.default_rng(5)
    x, v = rng.normal(size=512), rng.normal(size=512)
    assert both.size == 512
    np.testing.assert_allclose(both.forward(x), whole.forward(x.reshape(32, 16)), atol=1e-13)
    np.testing.assert_allclose(both.adjoint(v), whole.adjoint(v).ravel(), atol=1e-13)
    np.testing.assert_allclose(both.squared_adjoint(v), whole.squared_adjoint(v).ravel(), atol=1e-13)
    assert joined([basis_of(details), rest._replace(squared_adjoint=None)]).squared_adjoint is None
    assert joined([basis_of(details), basis_of(BASES["db2"])]) is None
    assert joined([rest, basis_of(Wavelet2D((32, 16), "haar", 1))]) is None


def test_flat_priors_and_posteriors(problem):
    """Every field, of sites with even precisions of the observations and without."""
    rng = np.random.default_rng(6)
    n = len(problem.weights)
    start = np.abs(problem.weights)
    prior, dense = (FlatPrior.of(a, start) for a in (problem.algebra, problem.dense))
    np.testing.assert_allclose(prior.variances(), dense.variances(), rtol=1e-12)
    np.testing.assert_allclose(prior.covariance_matrix(), dense.covariance_matrix(), atol=1e-11)
    assert prior.not_finite() is None
    assert not prior.undetermined().size
    uneven = problem.weights.copy()
    uneven[:10] *= 1.3
    mean, shift = rng.normal(size=n), rng.normal(size=n)
    for weights in (problem.weights, uneven):
        found, expected = (p.posterior(mean, shift, weights) for p in (prior, dense))
        assert found.proper
        for field in ("mean", "variance", "log_det", "coordinates"):
            np.testing.assert_allclose(getattr(found, field), getattr(expected, field), rtol=1e-7, atol=1e-8)
        rows = slice(3, 6)
        np.testing.assert_allclose(
            prior.posterior_rows(found)(rows), dense.posterior_rows(expected)(rows), rtol=1e-7, atol=1e-9
        )
        draws = rng.normal(size=(4, problem.size))
        np.testing.assert_allclose(
            found.log_ratio(draws, prior.precision), expected.log_ratio(draws, dense.precision), rtol=1e-8
        )


def test_time_grows_with_the_number_of_unknowns():
    """Sixteen times as many take no more than fifty times as long, which caches and logarithms leave room for."""

    def seconds(side):
        operator, n = Wavelet2D((side, side), "db2", 4), side**2
        algebra = Orthonormal(unit_rows(n), basis_of(operator), refuse)
        weights = np.concatenate([np.ones(n), np.random.default_rng(0).gamma(1.0, size=operator.output_shape[0])])

        def once():
            began = perf_counter()
            factor = algebra.factor(weights)
            factor.predictor_variances()
            factor.solve(weights[:n])
            return perf_counter() - began

        return min(once() for _ in range(5))

    assert seconds(1024) < 50 * seconds(256)
