"""Moments of inner products of Gaussian rows, against quadrature, draws and finite differences."""

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

from pymc_ep.models.bilinear import kernel as inner_products
from pymc_ep.models.bilinear.kernel import Rows, body, dispatch
from pymc_ep.models.bilinear.kernel.op import ProductDerivatives, ProductMoments
from pymc_ep.numerics.pairs import Pairs

RNG = np.random.default_rng(0)
ROWS, J, K = 4, 3, 2
OWN_ROWS, OTHER_ROWS = np.array([2, 0, 0, 3, 2, 2, 0]), np.array([1, 0, 2, 2, 0, 1, 0])
"""Own row 1 has no pair, and one pair is there twice."""
OWN = Rows(RNG.normal(size=(ROWS, K)), RNG.uniform(0.1, 0.9, (ROWS, K)))
OTHER = Rows(RNG.normal(size=(J, K)), RNG.uniform(0.1, 0.9, (J, K)))
PAIRS = Pairs.of(OWN_ROWS, OTHER_ROWS, ROWS)


@pytest.fixture(autouse=True)
def in_small_chunks(monkeypatch):
    monkeypatch.setattr(body, "_CHUNK", 3)


@pytest.fixture(params=["numpy", "numba"])
def bodies(request, monkeypatch):
    monkeypatch.setattr(dispatch, "_chosen", lambda *given: request.param)


def expected(function):
    """E of a function of v_d and u_d for each pair and column, by Gauss-Hermite quadrature in both, (n, K)."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(120)
    weights = weights / weights.sum()
    out = np.empty((len(OWN_ROWS), K))
    for c, (i, j) in enumerate(zip(PAIRS.own, PAIRS.others)):
        for d in range(K):
            v = OWN.mean[i, d] + np.sqrt(OWN.variance[i, d]) * nodes
            u = OTHER.mean[j, d] + np.sqrt(OTHER.variance[j, d]) * nodes
            out[c, d] = weights @ function(v[:, None], u[None]) @ weights
    return out


def test_pairs_are_sorted_by_own_rows_and_know_where_they_stood():
    np.testing.assert_array_equal(OWN_ROWS[PAIRS.order], PAIRS.own)
    np.testing.assert_array_equal(OTHER_ROWS[PAIRS.order], PAIRS.others)
    np.testing.assert_array_equal(PAIRS.ends, [0, 3, 3, 6, 7])
    few, places = PAIRS.of_rows(np.array([1, 2, 3]))
    np.testing.assert_array_equal(few.own, [1, 1, 1, 2])
    np.testing.assert_array_equal(PAIRS.others[places], few.others)
    values = RNG.normal(size=(7, 2))
    sums = [values[PAIRS.own == i].sum(axis=0) for i in range(ROWS)]
    np.testing.assert_allclose(PAIRS.total(values), sums, atol=1e-14)


@pytest.mark.usefixtures("bodies")
def test_moments_are_those_of_quadrature():
    products = expected(lambda v, u: v * u)
    spread = (expected(lambda v, u: (v * u) ** 2) - products**2).sum(axis=1)
    log_mean = np.log(expected(lambda v, u: np.exp(v * u))).sum(axis=1)
    for found in (inner_products.variance, inner_products.log_mean_exp):
        np.testing.assert_allclose(found(PAIRS, OWN, OTHER)[0], products.sum(axis=1), rtol=1e-12)
    np.testing.assert_allclose(inner_products.variance(PAIRS, OWN, OTHER)[1], spread, rtol=1e-11)
    np.testing.assert_allclose(inner_products.log_mean_exp(PAIRS, OWN, OTHER)[1], log_mean, rtol=1e-7)


@pytest.mark.usefixtures("bodies")
def test_beyond_the_feasible_set_the_mean_of_the_exponential_is_infinite():
    """In two columns at once the product of r is positive again, and the formula finite."""
    wide = Rows(OWN.mean, np.where(np.arange(ROWS)[:, None] == 2, 2.0, OWN.variance))
    other = Rows(OTHER.mean, np.full((J, K), 0.8))
    found = inner_products.log_mean_exp(PAIRS, wide, other)[1]
    assert np.isinf(found[PAIRS.own == 2]).all()
    assert np.isfinite(found[PAIRS.own != 2]).all()
    # At a b = 1 the integral diverges as well.
    edge = Rows(np.zeros((1, 1)), np.ones((1, 1)))
    assert np.isinf(inner_products.log_mean_exp(Pairs.of(np.array([0]), np.array([0]), 1), edge, edge)[1])


@pytest.mark.usefixtures("bodies")
@pytest.mark.parametrize("what", ["log_mean_exp", "variance"])
def test_pullbacks_are_derivatives(what):
    weights = RNG.normal(size=(2, len(OWN_ROWS)))
    forward, pullback = getattr(inner_products, what), getattr(inner_products, f"{what}_pullback")

    def total(own):
        return sum(float(w @ part) for w, part in zip(weights, forward(PAIRS, own, OTHER)))

    found = pullback(PAIRS, OWN, OTHER, *weights)
    for field, derivative in zip(Rows._fields, found):
        for index in np.ndindex(ROWS, K):
            step = np.zeros((ROWS, K))
            step[index] = 1e-6
            ends = [total(OWN._replace(**{field: getattr(OWN, field) + s * step})) for s in (1, -1)]
            np.testing.assert_allclose(derivative[index], np.subtract(*ends) / 2e-6, rtol=1e-6, atol=1e-8)
    assert not found.mean[1].any() and not found.variance[1].any()


@pytest.mark.parametrize("bodies", ["numba", "c", "jax"])
@pytest.mark.parametrize("width", [1, 15, 16, 17, 40])
@pytest.mark.parametrize("what", ["log_mean_exp", "variance"])
def test_bodies_agree_at_any_width(what, width, bodies):
    """Numba takes logarithms of sixteen columns at a time; some pairs are not feasible."""
    rng = np.random.default_rng(width)
    own, other = (Rows(rng.normal(size=(n, width)), rng.uniform(0.0, 1.1, (n, width))) for n in (30, 20))
    pairs = Pairs.of(rng.integers(0, 30, 200), rng.integers(0, 20, 200), 30)
    weights = rng.normal(size=(2, 200))
    moments, derivatives = (getattr(inner_products, name) for name in (what, f"{what}_pullback"))
    safe = Rows(own.mean, 0.8 * own.variance)

    def found(bodies):
        given = derivatives(pairs, safe, other, *weights, backend=bodies)
        return *moments(pairs, own, other, backend=bodies), *given

    expected = found("numpy")
    for one, reference in zip(found(bodies), expected, strict=True):
        largest = np.abs(reference[np.isfinite(reference)]).max()
        np.testing.assert_allclose(one, reference, rtol=1e-11, atol=1e-11 * largest)
    assert what == "variance" or width == 1 or np.isinf(expected[1]).any()


@pytest.mark.parametrize("bodies", ["numpy", "numba", "c", "jax"])
@pytest.mark.parametrize("dtype", ["int8", "int64", "float32"])
def test_numbers_of_any_type_are_taken_as_doubles(dtype, bodies):
    if bodies == "jax":
        pytest.importorskip("jax")
    own, other = (Rows(RNG.integers(-3, 4, (n, 2)), np.zeros((n, 2), dtype=int)) for n in (3, 2))
    pairs, weights = Pairs.of(np.array([0, 0, 2]), np.array([0, 1, 1]), 3), RNG.integers(-3, 4, (2, 3))

    def found(cast):
        rows = [Rows(*(part.astype(cast) for part in one)) for one in (own, other)]
        given = inner_products.log_mean_exp_pullback(pairs, *rows, *weights.astype(cast), backend=bodies)
        return *inner_products.log_mean_exp(pairs, *rows, backend=bodies), *given

    for one, expected in zip(found(dtype), found(float), strict=True):
        np.testing.assert_array_equal(one, expected)
        assert one.dtype == float


@pytest.mark.parametrize("bodies", ["numba", "c", "jax"])
@pytest.mark.parametrize("sizes", [(0, 3, 2), (1, 1, 1), (5, 100, 50)])
def test_no_pairs_one_pair_and_rows_without_pairs(sizes, bodies):
    if bodies == "jax":
        pytest.importorskip("jax")
    n, *rows = sizes
    own, other = (Rows(RNG.normal(size=(k, 2)), RNG.uniform(0.0, 0.8, (k, 2))) for k in rows)
    pairs = Pairs.of(*(RNG.integers(0, k, n) for k in rows), rows[0])
    weights = RNG.normal(size=(2, n))

    def found(backend):
        given = inner_products.variance_pullback(pairs, own, other, *weights, backend=backend)
        return *inner_products.variance(pairs, own, other, backend=backend), *given

    for one, expected in zip(found(bodies), found("numpy"), strict=True):
        np.testing.assert_allclose(one, expected, rtol=1e-12, atol=1e-12)


def example(mode):
    """Outputs of both Ops in one graph."""
    rng = np.random.default_rng(0)
    own, other = (Rows(rng.normal(size=(n, 5)), rng.uniform(0.0, 0.8, (n, 5))) for n in (30, 20))
    pairs, weights = Pairs.of(rng.integers(0, 30, 200), rng.integers(0, 20, 200), 30), rng.normal(size=(2, 200))
    values = pairs.ends, pairs.others, *own, *other, *weights
    inputs = [pt.as_tensor(value).type() for value in values]
    moments = ProductMoments("log_mean_exp", False)(*inputs[:6])
    derivatives = ProductDerivatives("log_mean_exp", False)(*inputs)
    return pytensor.function(inputs, [*moments, *derivatives], mode=mode)(*values)


@pytest.mark.usefixtures("bodies")
def test_a_product_of_many_small_numbers_does_not_underflow():
    """The r_d of 40 columns are 1e-9 each, and their product is 1e-360."""
    own = Rows(np.zeros((1, 40)), np.ones((1, 40)))
    other = Rows(np.zeros((1, 40)), np.full((1, 40), 1.0 - 1e-9))
    _, found = inner_products.log_mean_exp(Pairs.of(np.zeros(1, int), np.zeros(1, int), 1), own, other)
    np.testing.assert_allclose(found, -20.0 * np.log(1e-9), rtol=1e-8)
