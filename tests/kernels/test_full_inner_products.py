"""Moments of inner products of Gaussian rows with covariances, against quadrature and finite differences."""

import numpy as np
import pytest

from pymc_ep.models.bilinear import kernel as inner_products
from pymc_ep.models.bilinear.kernel import FactoredRows, FullRows, Rows, dispatch, full_body
from pymc_ep.numerics.pairs import Pairs

RNG = np.random.default_rng(0)
ROWS, J, K = 4, 3, 2
OWN_ROWS, OTHER_ROWS = np.array([2, 0, 0, 3, 2, 2, 0]), np.array([1, 0, 2, 2, 0, 1, 0])
"""Own row 1 has no pair, and one pair is there twice."""
PAIRS = Pairs.of(OWN_ROWS, OTHER_ROWS, ROWS)


def factored(size, width, scale, rng=RNG):
    factor = 0.6 * np.tril(rng.normal(size=(size, width, width)), -1)
    factor += rng.uniform(0.8, 1.4, (size, width, 1)) * np.eye(width)
    return FactoredRows(rng.normal(size=(size, width)), scale * factor)


OWN, OTHER = factored(ROWS, K, 0.5), factored(J, K, 0.5).full


@pytest.fixture(autouse=True)
def in_small_chunks(monkeypatch):
    monkeypatch.setattr(full_body, "_CHUNK", 3 * K**2)


@pytest.fixture(params=["numpy", "numba"])
def bodies(request, monkeypatch):
    monkeypatch.setattr(dispatch, "_chosen", lambda *given: request.param)


def expected(function):
    """E of a function of f for each pair, by Gauss-Hermite quadrature in both rows, (n,)."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    grid = np.stack(np.meshgrid(nodes, nodes), axis=-1).reshape(-1, 2)
    by = np.outer(weights, weights).ravel() / weights.sum() ** 2
    out = []
    for i, j in zip(PAIRS.own, PAIRS.others):
        v = OWN.mean[i] + grid @ OWN.factor[i].T
        values, axes = np.linalg.eigh(OTHER.covariance[j])
        u = OTHER.mean[j] + grid @ (axes * np.sqrt(values)).T
        out.append(by @ function(v @ u.T) @ by)
    return np.array(out)


@pytest.mark.usefixtures("bodies")
def test_moments_are_those_of_quadrature():
    products = expected(lambda f: f)
    for found in (inner_products.variance, inner_products.log_mean_exp):
        np.testing.assert_allclose(found(PAIRS, OWN, OTHER)[0], products, rtol=1e-12)
    spread = expected(np.square) - products**2
    np.testing.assert_allclose(inner_products.variance(PAIRS, OWN, OTHER)[1], spread, rtol=1e-11)
    log_mean = np.log(expected(np.exp))
    np.testing.assert_allclose(inner_products.log_mean_exp(PAIRS, OWN, OTHER)[1], log_mean, rtol=1e-7)


@pytest.mark.usefixtures("bodies")
def test_diagonal_covariances_give_what_independent_entries_do():
    """Also where some entries have no spread, and where pairs are not feasible."""
    rng = np.random.default_rng(3)
    variances = rng.uniform(0.0, 1.2, (ROWS, K)) * [1.0, 0.0], rng.uniform(0.0, 1.2, (J, K))
    rows = [Rows(rng.normal(size=v.shape), v) for v in variances]
    own = FactoredRows(rows[0].mean, np.sqrt(variances[0])[:, :, None] * np.eye(K))
    other = FullRows(rows[1].mean, variances[1][:, :, None] * np.eye(K))
    for moments in (inner_products.log_mean_exp, inner_products.variance):
        for one, reference in zip(moments(PAIRS, own, other), moments(PAIRS, *rows)):
            np.testing.assert_allclose(one, reference, rtol=1e-12)


@pytest.mark.usefixtures("bodies")
def test_beyond_the_feasible_set_the_mean_of_the_exponential_is_infinite():
    """With both eigenvalues of M negative its determinant is positive again, and the formula finite."""
    wide = FactoredRows(OWN.mean, np.where(np.arange(ROWS)[:, None, None] == 2, 10.0, 1.0) * OWN.factor)
    eigenvalues = np.linalg.eigvals(wide.full.covariance[PAIRS.own] @ OTHER.covariance[PAIRS.others])
    assert (eigenvalues > 1.0).all(axis=1).any()
    found = inner_products.log_mean_exp(PAIRS, wide, OTHER)[1]
    np.testing.assert_array_equal(np.isinf(found), (eigenvalues >= 1.0).any(axis=1))
    assert np.isfinite(found).any()
    # At A B = 1 the integral diverges as well.
    edge = FactoredRows(np.zeros((1, 1)), np.ones((1, 1, 1)))
    assert np.isinf(inner_products.log_mean_exp(Pairs.of(np.array([0]), np.array([0]), 1), edge, edge.full)[1])


@pytest.mark.usefixtures("bodies")
@pytest.mark.parametrize("what", ["log_mean_exp", "variance"])
def test_pullbacks_are_derivatives(what):
    weights = RNG.normal(size=(2, len(OWN_ROWS)))
    forward, pullback = getattr(inner_products, what), getattr(inner_products, f"{what}_pullback")
    covariance = OWN.full.covariance

    def total(mean, covariance):
        own = FactoredRows(mean, np.linalg.cholesky(covariance))
        return sum(float(w @ part) for w, part in zip(weights, forward(PAIRS, own, OTHER)))

    found = pullback(PAIRS, OWN, OTHER, *weights)
    np.testing.assert_allclose(found.covariance, found.covariance.swapaxes(1, 2), atol=1e-14)
    for index in np.ndindex(ROWS, K):
        step = np.zeros((ROWS, K))
        step[index] = 1e-6
        ends = [total(OWN.mean + s * step, covariance) for s in (1, -1)]
        np.testing.assert_allclose(found.mean[index], np.subtract(*ends) / 2e-6, rtol=1e-6, atol=1e-7)
    for i, d, e in np.ndindex(ROWS, K, K):
        step = np.zeros((ROWS, K, K))
        step[i, d, e] = step[i, e, d] = 1e-6
        ends = [total(OWN.mean, covariance + s * step) for s in (1, -1)]
        both = found.covariance[i, d, e] * (1 if d == e else 2)
        np.testing.assert_allclose(both, np.subtract(*ends) / 2e-6, rtol=1e-6, atol=1e-7)
    assert not found.mean[1].any() and not found.covariance[1].any()


@pytest.mark.parametrize("bodies", ["numba", "c", "jax"])
@pytest.mark.parametrize("width", [1, 3, 9, 20])
@pytest.mark.parametrize("what", ["log_mean_exp", "variance"])
def test_bodies_agree_at_any_width(what, width, bodies):
    """Eigenvalues in NumPy, Cholesky factors in Numba; some pairs are not feasible."""
    rng = np.random.default_rng(width)
    own, other = (factored(n, width, 0.5 / np.sqrt(width), rng) for n in (30, 20))
    own.factor[::2] *= 12.0
    pairs = Pairs.of(rng.integers(0, 30, 200), rng.integers(0, 20, 200), 30)
    weights = rng.normal(size=(2, 200))
    moments, derivatives = (getattr(inner_products, name) for name in (what, f"{what}_pullback"))
    safe = FactoredRows(own.mean, 0.1 * own.factor)

    def found(bodies):
        given = derivatives(pairs, safe, other.full, *weights, backend=bodies)
        return *moments(pairs, own, other.full, backend=bodies), *given

    expected = found("numpy")
    for one, reference in zip(found(bodies), expected, strict=True):
        largest = np.abs(reference[np.isfinite(reference)]).max()
        np.testing.assert_allclose(one, reference, rtol=1e-9, atol=1e-12 * largest)
    assert what == "variance" or np.isinf(expected[1]).any()
