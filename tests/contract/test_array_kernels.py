"""Every registered function of whole arrays: its bodies in C, Numba and JAX agree with that in NumPy."""

from functools import cache
from importlib import import_module

import numpy as np
import pytest

from pymc_ep.compat import c_mode
from pymc_ep.forms import forms
from pymc_ep.kernels import array_kernels

MODES = {"c": c_mode(), "jax": "JAX", "numba": "NUMBA", "numpy": "FAST_COMPILE"}
forms()  # which imports the systems, and these register their kernels
CASES = [(name, body) for name, kernel in array_kernels().items() for body in kernel.bodies]


@cache
def outputs(name: str, body: str) -> list[np.ndarray]:
    """Outputs of the example of a kernel, which its own tests hold."""
    return import_module(f"tests.kernels.test_{name}").example(MODES[body])


@pytest.mark.parametrize(("name", "body"), CASES)
def test_bodies_agree(name, body):
    if body == "jax":
        pytest.importorskip("jax")
    for one, other in zip(outputs(name, body), outputs(name, "numpy"), strict=True):
        scale = np.abs(other[np.isfinite(other)]).max()
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-11 * scale)
