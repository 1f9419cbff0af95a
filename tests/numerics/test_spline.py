"""Interpolation of functions that it has exactly, or nearly."""

import numpy as np

from pymc_ep.numerics.interpolation.spline import Spline


def functions(x):
    return np.column_stack([x @ [1.0, -2.0] + 0.5, np.sin(x[:, 0]) * np.cos(x[:, 1])])


def test_lines_are_exact_and_smooth_functions_nearly():
    rng = np.random.default_rng(0)
    points, new = rng.uniform(-2, 2, size=(80, 2)), rng.uniform(-1.5, 1.5, size=(40, 2))
    spline = Spline(points, functions(points))
    np.testing.assert_allclose(spline(points), functions(points), atol=1e-9)
    np.testing.assert_allclose(spline(new)[:, 0], functions(new)[:, 0], atol=1e-9)
    np.testing.assert_allclose(spline(new)[:, 1], functions(new)[:, 1], atol=0.03)
    np.testing.assert_allclose(spline(100 * new)[:, 0], functions(100 * new)[:, 0], rtol=1e-6)


def test_points_that_all_but_coincide():
    """The ends of a search: the last one counts."""
    points = np.array([[0.0], [1.0], [2.0], [2.0 + 1e-9], [4.0]])
    found = Spline(points, points + np.array([[0.0], [0.0], [1e3], [0.0], [0.0]]))(np.array([[3.0]]))
    np.testing.assert_allclose(found, 3.0, atol=1e-6)


def test_too_few_points_give_their_mean():
    np.testing.assert_allclose(Spline(np.zeros((2, 3)), np.array([[1.0], [3.0]]))(np.ones((4, 3))), 2.0)
