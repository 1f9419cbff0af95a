"""Anderson's extrapolation on maps whose fixed point is known."""

import numpy as np

from pymc_ep.numerics.optimise.anderson import anderson


def iterate(step, start, count, weights):
    points, residuals = [start], [step(start) - start]
    for _ in range(count):
        points.append(anderson(np.array(points), np.array(residuals), weights))
        residuals.append(step(points[-1]) - points[-1])
    return points, residuals


def affine(n, seed=0):
    rng = np.random.default_rng(seed)
    matrix = rng.normal(size=(n, n))
    matrix *= 0.9 / np.linalg.norm(matrix, 2)
    offset = rng.normal(size=n)
    return lambda x: matrix @ x + offset, np.linalg.solve(np.eye(n) - matrix, offset)


def test_one_point_gives_the_plain_step():
    step, _ = affine(4)
    x = np.ones(4)
    np.testing.assert_allclose(anderson(x[None], (step(x) - x)[None], np.ones(4)), step(x), rtol=1e-15)


def test_an_affine_map_of_n_unknowns_is_solved_in_n_plus_one_steps():
    """Equivalent to GMRES (Walker and Ni 2011, theorem 2.2), whatever the weights."""
    step, fixed = affine(5)
    for weights in (np.ones(5), np.array([1.0, 10.0, 0.1, 3.0, 5.0])):
        points, _ = iterate(step, np.zeros(5), 6, weights)
        np.testing.assert_allclose(points[-1], fixed, atol=1e-9)


def test_beats_the_plain_iteration_on_a_slow_nonlinear_map():
    step = lambda x: np.cos(x) * np.linspace(0.8, 1.0, 6)  # noqa: E731
    _, residuals = iterate(step, np.zeros(6), 8, np.ones(6))
    x = np.zeros(6)
    for _ in range(8):
        x = step(x)
    assert np.abs(residuals[-1]).max() < 1e-3 * np.abs(step(x) - x).max()


def test_repeated_points_do_no_harm():
    """Two equal iterates give no direction: the least-squares problem is singular, the step is not."""
    step, _ = affine(3)
    x = np.ones(3)
    points, residuals = np.array([x, x]), np.array([step(x) - x] * 2)
    np.testing.assert_allclose(anderson(points, residuals, np.ones(3)), step(x), rtol=1e-12)
