"""Entries of linear maps from products alone, against the same maps written entry by entry."""

import numpy as np
import pytest
import scipy.ndimage
import scipy.sparse

from pymc_ep.models.sparse_linear import probing
from pymc_ep.models.sparse_linear.probing import probe
from pymc_ep.operators import Convolution2D, Gradient2D, Mask, Wavelet2D

RNG = np.random.default_rng(8)


class Counting:
    """A map that counts its products."""

    def __init__(self, forward):
        self.forward, self.products = forward, 0

    def __call__(self, x):
        self.products += 1
        return self.forward(x)


def product_with(matrix):
    return Counting(lambda x: matrix @ x.ravel())


def agrees(found, expected):
    assert isinstance(found, scipy.sparse.csr_array)
    assert found.shape == expected.shape
    dense = expected.toarray() if scipy.sparse.issparse(expected) else expected
    np.testing.assert_allclose(found.toarray(), dense, rtol=0, atol=1e-12 * max(1.0, np.abs(dense).max(initial=0.0)))


def random_local(shape, reach, rows, rng):
    """A row looks at a few unknowns within `reach` of a centre, all around the border."""
    columns, values, index = [], [], []
    for row in range(rows):
        centre = [rng.integers(n) for n in shape]
        for _ in range(rng.integers(1, 5)):
            place = [(c + rng.integers(-reach, reach + 1)) % n for c, n in zip(centre, shape)]
            columns.append(np.ravel_multi_index(place, shape))
            values.append(rng.normal())
            index.append(row)
    return scipy.sparse.coo_array((values, (index, columns)), shape=(rows, int(np.prod(shape)))).tocsr()


@pytest.mark.parametrize(
    ("shape", "reach"),
    [
        ((24, 24), 1),
        ((17, 23), 1),
        ((31, 9), 1),
        ((29, 29), 3),
        ((150,), 1),
        ((97,), 6),
        ((11, 9, 10), 1),
        ((1, 70), 1),
    ],
    ids=str,
)
def test_random_local_maps(shape, reach):
    matrix = random_local(shape, reach, 2 * int(np.prod(shape)), np.random.default_rng(sum(shape)))
    forward = product_with(matrix)
    agrees(probe(forward, shape), matrix)
    assert forward.products < np.prod(shape)


@pytest.mark.parametrize("boundary", ["reflect", "periodic"])
@pytest.mark.parametrize("shape", [(16, 16), (15, 19), (33, 5), (13, 13)])
def test_gradients(shape, boundary):
    operator = Gradient2D(shape, boundary=boundary)
    agrees(probe(lambda x: operator.forward(x).ravel(), shape), operator.matrix())


@pytest.mark.parametrize(("boundary", "mode"), [("periodic", "wrap"), ("reflect", "reflect")])
@pytest.mark.parametrize("shape", [(20, 20), (18, 27)])
@pytest.mark.parametrize("side", [3, 5])
def test_blurs(shape, boundary, mode, side):
    """Also wide ones by Fourier transforms, whose zeros are rounded."""
    kernel = RNG.uniform(0.1, 1.0, (side, side))
    operator = Convolution2D(shape, kernel, boundary=boundary)
    expected = np.zeros((np.prod(shape), np.prod(shape)))
    for k in range(expected.shape[1]):
        unit = np.zeros(shape)
        unit.flat[k] = 1.0
        expected[:, k] = scipy.ndimage.convolve(unit, kernel, mode=mode).ravel()
    agrees(probe(lambda x: operator.forward(x).ravel(), shape), expected)


def test_mask_exposure_and_blur_together():
    shape = (20, 24)
    observed = RNG.random(shape) < 0.4
    exposure = RNG.uniform(0.01, 100.0, observed.sum())
    operator = Mask(shape, observed) @ Convolution2D(shape, np.outer([1, 2, 1], [1, 2, 1]) / 16, boundary="periodic")
    expected = scipy.sparse.diags_array(exposure) @ operator.matrix()
    agrees(probe(lambda x: exposure * operator.forward(x), shape), expected)


def test_outputs_that_see_nothing():
    """Rows and columns of zeros, and exposures of zero, are no entries."""
    shape = (20, 20)
    exposure = np.where(RNG.random(shape) < 0.5, 0.0, 2.0)
    found = probe(lambda x: (exposure * x).ravel(), shape)
    agrees(found, np.diag(exposure.ravel()))
    assert found.nnz == np.count_nonzero(exposure)
    agrees(probe(lambda x: 0.0 * x.ravel(), shape), np.zeros((400, 400)))


def test_scales_that_differ_by_many_orders():
    """Entries that are small beside others of the map are not rounding."""
    shape = (24, 24)
    scale = 10.0 ** RNG.uniform(-9, 3, shape).ravel()
    matrix = scipy.sparse.diags_array(scale) @ Gradient2D(shape, boundary="periodic").matrix()[: 24 * 24]
    found = probe(lambda x: matrix @ x.ravel(), shape)
    np.testing.assert_allclose(found.toarray(), matrix.toarray(), rtol=1e-9)


def test_dense_rows_among_local_ones():
    """A pixel's mean or sum of everything: not local, so column by column."""
    shape = (12, 12)
    matrix = scipy.sparse.vstack([Gradient2D(shape).matrix(), np.full((1, 144), 1 / 144)], format="csr")
    agrees(probe(lambda x: matrix @ x.ravel(), shape), matrix)


@pytest.mark.parametrize("wavelet", ["haar", "db2"])
def test_wavelets(wavelet):
    operator = Wavelet2D((16, 16), wavelet, 3)
    agrees(probe(operator.forward, (16, 16)), operator.matrix())


def test_dense():
    matrix = RNG.normal(size=(7, 30))
    agrees(probe(product_with(matrix), (30,)), matrix)
    agrees(probe(product_with(matrix), (5, 6)), matrix)


def test_one_unknown():
    agrees(probe(product_with(np.array([[2.0], [0.0], [-3.0]])), (1,)), np.array([[2.0], [0.0], [-3.0]]))


def test_too_many_unknowns_for_a_map_that_is_not_local(monkeypatch):
    monkeypatch.setattr(probing, "MOST_UNKNOWNS", 100)
    matrix = RNG.normal(size=(3, 400))
    forward = product_with(matrix)
    assert probe(forward, (20, 20)) is None
    assert forward.products < 400
    local = Gradient2D((20, 20))
    agrees(probe(lambda x: local.forward(x).ravel(), (20, 20)), local.matrix())


def test_products_do_not_grow_with_a_local_map():
    counts = []
    for n in (32, 64):
        operator = Gradient2D((n, n))
        forward = Counting(lambda x, operator=operator: operator.forward(x).ravel())
        assert abs(probe(forward, (n, n)) - operator.matrix()).max() < 1e-12
        counts.append(forward.products)
    assert counts[0] == counts[1] < 50


def test_values_that_agree_by_chance_alone():
    """Sums of teeth whose ratio happens to be whole: two unknowns far apart, seen with weights that mimic a third."""
    n = 400
    matrix = scipy.sparse.eye_array(n, format="lil")
    matrix[0, [0, 8]] = 0.5, 0.5  # with cells of 4, teeth 1 and 3: their mean number is that of tooth 2
    agrees(probe(product_with(matrix.tocsr()), (n,)), matrix.tocsr())
