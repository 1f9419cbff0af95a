"""Conjugate gradients against direct solutions."""

import numpy as np
import pytest
import pywt

from pymc_ep.numerics.iterative import conjugate_gradients as conjugate_gradients_module
from pymc_ep.numerics.iterative.conjugate_gradients import (
    conjugate_gradients,
    jacobi,
    newton_step,
    splitting,
)

SIDE, LEVELS = 32, 3
_, SLICES = pywt.coeffs_to_array(pywt.wavedec2(np.zeros((SIDE, SIDE)), "db2", mode="periodization", level=LEVELS))


def analyse(vector):
    image = vector.reshape(SIDE, SIDE)
    return pywt.coeffs_to_array(pywt.wavedec2(image, "db2", mode="periodization", level=LEVELS))[0].ravel()


def synthesise(vector):
    parts = pywt.array_to_coeffs(vector.reshape(SIDE, SIDE), SLICES, output_format="wavedec2")
    return pywt.waverec2(parts, "db2", mode="periodization").ravel()


@pytest.fixture
def system():
    rng = np.random.default_rng(0)
    matrix = rng.normal(size=(60, 40))
    weights = rng.uniform(0.5, 2.0, size=60)
    precision = matrix.T @ (weights[:, None] * matrix)
    return lambda v: matrix.T @ (weights * (matrix @ v)), precision, rng.normal(size=40)


@pytest.fixture(autouse=True, params=["numpy", "numba"])
def body(request, monkeypatch):
    monkeypatch.setattr(conjugate_gradients_module, "_FEW", np.inf if request.param == "numpy" else -1)


@pytest.mark.parametrize("preconditioned", [False, True])
@pytest.mark.parametrize("tol", [1e-2, 1e-6, 1e-12])
def test_the_residual_is_the_true_one(system, tol, preconditioned):
    apply, precision, right = system
    precondition = jacobi(np.diagonal(precision)) if preconditioned else None
    found = conjugate_gradients(apply, right, precondition=precondition, tol=tol)
    assert found.converged
    residual = np.linalg.norm(right - precision @ found.x) / np.linalg.norm(right)
    np.testing.assert_allclose(found.residual, residual, atol=1e-14)
    assert residual <= tol
    if tol == 1e-12:
        np.testing.assert_allclose(found.x, np.linalg.solve(precision, right), rtol=1e-9, atol=1e-11)


def test_a_solution_needs_no_iterations_and_a_limit_is_kept(system):
    apply, precision, right = system
    exact = np.linalg.solve(precision, right)
    at = conjugate_gradients(apply, right, start=exact, tol=1e-8)
    assert at.converged
    assert at.iterations == 0
    cut = conjugate_gradients(apply, right, tol=1e-12, max_iter=7)
    assert not cut.converged
    assert cut.iterations == 7
    residual = np.linalg.norm(right - precision @ cut.x) / np.linalg.norm(right)
    np.testing.assert_allclose(cut.residual, residual, rtol=1e-9)
    near = conjugate_gradients(apply, right, start=exact + 1e-4, tol=1e-8)
    assert near.iterations < conjugate_gradients(apply, right, tol=1e-8).iterations
    nothing = conjugate_gradients(apply, np.zeros(40), start=exact)
    assert nothing.converged
    assert not nothing.x.any()


def test_a_newton_step_gains_most_of_what_there_is_in_few_products():
    """A few precise observations: their residual falls at once, and the rest is hidden behind it."""
    rng = np.random.default_rng(2)
    rows = rng.normal(size=(5, 60))
    precision = 1e5 * rows.T @ rows + np.diag(rng.uniform(0.5, 2.0, 60))
    right = 1e5 * rows.T @ rng.normal(size=5) + rng.normal(size=60)

    products = []

    def apply(v):
        products.append(v)
        return precision @ v

    def value(x):
        return right @ x - 0.5 * x @ precision @ x

    step, ended = newton_step(apply, right)
    assert ended
    assert len(products) < 12
    assert value(step) > 0.9 * value(np.linalg.solve(precision, right))
    # In another unit of each unknown, with the preconditioner that undoes it, it is the same step.
    unit = rng.uniform(0.1, 10.0, 60)
    other, _ = newton_step(lambda v: unit * (precision @ (unit * v)), unit * right, precondition=jacobi(unit**2))
    np.testing.assert_allclose(unit * other, step, rtol=1e-6, atol=1e-8 * np.abs(step).max())
    products.clear()
    assert not newton_step(apply, right, max_iter=1)[1]
    assert len(products) == 1
    assert not newton_step(apply, 0.0 * right)[0].any()


def test_what_cannot_be_solved_is_said_not_to_be():
    spectrum = np.linspace(-1.0, 2.0, 30)
    found = conjugate_gradients(lambda v: spectrum * v, np.ones(30))
    assert not found.converged
    # A right-hand side that no x reaches, and a tolerance that rounding does not allow.
    assert not conjugate_gradients(lambda v: np.append(v[:-1], 0.0), np.ones(5)).converged
    hilbert = 1.0 / (np.arange(1, 13)[:, None] + np.arange(12))
    assert not conjugate_gradients(lambda v: hilbert @ v, np.ones(12), tol=1e-17).converged
    assert not conjugate_gradients(lambda v: v * np.nan, np.ones(3)).converged


def inpainted(rng):
    observed = np.where(rng.random(SIDE**2) < 0.25, 1e4, 0.0)
    return (lambda vector: observed * vector), lambda shift: lambda vector: vector / np.sqrt(1.0 + observed / shift)


def deblurred(rng):
    """H of a Gaussian blur, which a two-dimensional Hartley transform makes diagonal."""
    frequencies = np.fft.fftfreq(SIDE)[:, None] ** 2 + np.fft.fftfreq(SIDE) ** 2
    values = 1e4 * np.exp(-2 * 40.0 * frequencies).ravel()

    def waves(vector):
        spectrum = np.fft.fft2(vector.reshape(SIDE, SIDE), norm="ortho")
        return (spectrum.real - spectrum.imag).ravel()

    def root(shift):
        return lambda vector: waves(waves(vector) / np.sqrt(1.0 + values / shift))

    return (lambda vector: waves(values * waves(vector))), root


@pytest.mark.parametrize("observing", [inpainted, deblurred])
@pytest.mark.parametrize("with_scaling", [True, False])
def test_splitting_saves_iterations(observing, with_scaling):
    rng = np.random.default_rng(1)
    observed, root = observing(rng)
    kept = np.ones((SIDE, SIDE), dtype=bool)
    if not with_scaling:
        kept[: SIDE >> LEVELS, : SIDE >> LEVELS] = False
    kept = np.flatnonzero(kept)
    weights = 10.0 ** rng.uniform(1, 4, size=len(kept))

    def forward(vector):
        return analyse(vector)[kept]

    def adjoint(coefficients):
        padded = np.zeros(SIDE**2)
        padded[kept] = coefficients
        return synthesise(padded)

    def apply(vector):
        return observed(vector) + adjoint(weights * forward(vector))

    right = rng.normal(size=SIDE**2)
    precondition = splitting(root, forward, adjoint, weights)
    plain = conjugate_gradients(apply, right, tol=1e-8, max_iter=4000)
    fast = conjugate_gradients(apply, right, precondition=precondition, tol=1e-8, max_iter=4000)
    assert plain.converged
    assert fast.converged
    assert fast.iterations < 0.6 * plain.iterations
    np.testing.assert_allclose(fast.x, plain.x, atol=1e-5 * np.abs(plain.x).max())
    one, other = rng.normal(size=(2, SIDE**2))
    np.testing.assert_allclose(one @ precondition(other), other @ precondition(one), rtol=1e-10)


def test_arrays_of_jax_are_solved_alike(system):
    jnp = pytest.importorskip("jax.numpy")
    _, precision, right = system
    matrix = jnp.asarray(precision)
    found = conjugate_gradients(lambda v: matrix @ v, jnp.asarray(right), tol=1e-4)
    assert found.converged
    assert type(found.x).__module__.startswith("jax")
