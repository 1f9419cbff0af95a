"""Numba bodies of operators against those of NumPy, on images too small for the former to be chosen."""

import numpy as np
import pytest

from pymc_ep.operators import Gradient2D, Wavelet2D, gradient, wavelet

RNG = np.random.default_rng(4)


@pytest.mark.parametrize("shape", [(4, 6), (1, 5), (5, 1), (2, 2), (1, 2)])
@pytest.mark.parametrize("boundary", ["reflect", "periodic"])
def test_the_normal_product_of_differences(monkeypatch, shape, boundary):
    operator = Gradient2D(shape, boundary=boundary)
    weights, x = RNG.gamma(1.0, size=operator.output_shape), RNG.normal(size=shape)
    expected = operator.adjoint(weights * operator.forward(x))
    for few in (np.inf, -1):
        monkeypatch.setattr(gradient, "_FEW", few)
        out = np.ones(shape)
        operator.normal(weights)(x, out)
        np.testing.assert_allclose(out, 1.0 + expected, rtol=0.0, atol=1e-13)


@pytest.mark.parametrize("shape", [(8, 16), (4, 4), (8, 24)])
@pytest.mark.parametrize("name", ["haar", "db2", "sym4", "db8"])
@pytest.mark.parametrize("shift", [(0, 0), (3, -2)])
@pytest.mark.parametrize("scaling", [True, False])
def test_wavelets(monkeypatch, shape, name, shift, scaling):
    """Filters may be longer than a side."""
    operator = Wavelet2D(shape, name, 2, scaling=scaling, shift=shift)
    x, y = RNG.normal(size=shape), RNG.normal(size=operator.output_shape)
    expected = operator.forward(x), operator.adjoint(y)
    monkeypatch.setattr(wavelet, "_FEW", -1)
    np.testing.assert_allclose(operator.forward(x), expected[0], rtol=0.0, atol=1e-13)
    np.testing.assert_allclose(operator.adjoint(y), expected[1], rtol=0.0, atol=1e-13)
