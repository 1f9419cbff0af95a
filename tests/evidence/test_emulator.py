"""The emulator against the functions it is taught, and against the algebra of Gaussian processes written out."""

import numpy as np
import pytest

from pymc_ep.evidence.integration import emulator as emulator_module
from pymc_ep.evidence.integration.emulator import Emulator, Kernel


def wavy(z):
    return 2 * np.sin(z).sum(axis=1) - 0.3 * (z**2).sum(axis=1) + 0.2 * z[:, 0] * z[:, -1]


def slopes(z):
    out = 2 * np.cos(z) - 0.6 * z
    out[:, 0] += 0.2 * z[:, -1]
    out[:, -1] += 0.2 * z[:, 0]
    return out


@pytest.mark.parametrize("p", [1, 2, 5])
def test_a_smooth_function_is_found_between_the_points(p):
    rng = np.random.default_rng(p)
    points, new = 1.5 * rng.normal(size=(25 * p, p)), rng.normal(size=(300, p))
    emulator = Emulator(points, wavy(points), slopes(points))
    value, gradient = emulator.mean(new)
    assert np.abs(value - wavy(new)).max() < 0.05
    assert np.abs(gradient - slopes(new)).max() < 0.2
    # The sd is honest: errors are not many of them, and it grows where nothing is known.
    assert np.mean(np.abs(value - wavy(new)) < 3 * emulator.sd(new) + 1e-4) > 0.97
    assert emulator.sd(np.full((1, p), 40.0))[0] > 100 * np.median(emulator.sd(new))


@pytest.mark.parametrize("p", [1, 3])
def test_values_and_gradients_are_met_and_the_gradient_is_that_of_the_mean(p):
    rng = np.random.default_rng(7)
    points = rng.normal(size=(8, p))
    emulator = Emulator(points, wavy(points), slopes(points))
    value, gradient = emulator.mean(points)
    np.testing.assert_allclose(value, wavy(points), atol=1e-4)
    np.testing.assert_allclose(gradient, slopes(points), atol=1e-3)
    assert np.all(emulator.sd(points) < 1e-3 * emulator.scale)
    at, step = rng.normal(size=p), 1e-5
    ends = [emulator.mean(at + sign * step * np.eye(p))[0] for sign in (1, -1)]
    np.testing.assert_allclose(emulator.mean(at[None])[1][0], (ends[0] - ends[1]) / (2 * step), rtol=1e-5, atol=1e-6)


def test_one_point_in_closed_form():
    """Given value 0 and gradient g at the origin, with one kernel of length l: mean g x exp(-x^2 / 2 l^2)."""
    kernel = Kernel(joint=3, single=3, weight=0)
    emulator = Emulator(np.zeros((1, 1)), np.zeros(1), np.array([[1.5]]), kernel)
    length = emulator.kernel.values[0]
    assert emulator.kernel.values[2] == 0.0
    x = np.linspace(-3, 3, 7)[:, None]
    expected = 1.5 * x[:, 0] * np.exp(-0.5 * (x[:, 0] / length) ** 2)
    np.testing.assert_allclose(emulator.mean(x)[0], expected, atol=1e-7)
    k = np.exp(-0.5 * (x[:, 0] / length) ** 2)
    np.testing.assert_allclose(
        emulator.sd(x), emulator.scale * np.sqrt(1 - k**2 - (k * x[:, 0] / length) ** 2), atol=2e-4 * emulator.scale
    )


@pytest.mark.parametrize("p", [1, 4])
def test_standard_deviations_by_blocks_are_those_at_once(p):
    rng = np.random.default_rng(3)
    points, new = 1.5 * rng.normal(size=(70, p)), 2.0 * rng.normal(size=(400, p))
    emulator = Emulator(points, wavy(points), slopes(points))
    observed = emulator_module._factor(emulator.points, emulator.kernel)
    cross = emulator_module._covariance(new, emulator.points, emulator.kernel)
    explained = np.einsum("ij,ji->i", cross, np.linalg.solve(observed @ observed.T, cross.T))
    expected = np.sqrt(np.maximum(emulator.prior_sd**2 - emulator.scale**2 * explained, 0.0))
    sd = emulator.sd(new)
    np.testing.assert_allclose(sd, expected, atol=1e-3 * emulator.prior_sd)
    enough = np.quantile(sd, 0.7)
    bounds = emulator.sd(new, enough)
    assert np.array_equal(bounds < enough, sd < enough)
    assert np.all(bounds >= sd * (1 - 1e-12))
    np.testing.assert_allclose(bounds[sd >= enough], sd[sd >= enough], rtol=1e-10)


def test_points_far_apart_need_no_table_of_what_lies_between(monkeypatch):
    """Of two points a billion apart with value 0 and gradient g, each has the mean g x exp(-x^2 / 2 l^2) about it."""
    far, kernel = 1e9, Kernel(joint=3, single=3, weight=1)
    monkeypatch.setattr(emulator_module, "_best_kernel", lambda *_: kernel)
    emulator = Emulator(np.array([[0.0], [far]]), np.zeros(2), np.array([[1.5], [1.5]]))
    x = np.linspace(-3, 3, 7)
    square = (x / kernel.values[0]) ** 2
    for at in (x, far + x):
        value, gradient = emulator.mean(at[:, None])
        np.testing.assert_allclose(value, 1.5 * x * np.exp(-0.5 * square), atol=1e-6)
        np.testing.assert_allclose(gradient[:, 0], 1.5 * (1 - square) * np.exp(-0.5 * square), atol=1e-6)
    assert emulator.mean(np.array([[0.5 * far]]))[0] == 0.0


def test_more_points_extend_the_factor(monkeypatch):
    points, new = 1.5 * np.random.default_rng(1).normal(size=(2, 100, 3))
    observed = wavy(points), slopes(points)
    monkeypatch.setattr(emulator_module, "_best_kernel", lambda points, observed, start: start)
    first, whole = (Emulator(points[:n], *(values[:n] for values in observed)) for n in (80, 100))
    monkeypatch.setattr(emulator_module, "_factor", None)
    extended = Emulator(points, *observed, earlier=first)
    np.testing.assert_allclose(extended.mean(new)[0], whole.mean(new)[0], rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(extended.sd(new), whole.sd(new), rtol=1e-5, atol=1e-6)
    again = Emulator(points, *observed, earlier=whole)
    np.testing.assert_array_equal(again.mean(new)[0], whole.mean(new)[0])


def test_fewer_points_or_others_have_a_factor_of_their_own():
    points = np.random.default_rng(2).normal(size=(12, 2))
    whole = Emulator(points, wavy(points), slopes(points))
    for rows in (points[:8], points[::-1]):
        observed = wavy(rows), slopes(rows)
        after, anew = Emulator(rows, *observed, whole.kernel, whole), Emulator(rows, *observed, whole.kernel)
        np.testing.assert_array_equal(after.mean(points)[0], anew.mean(points)[0])


def test_the_same_point_twice_does_no_harm():
    points = np.array([[0.0, 0.1], [0.5, -0.2], [0.5, -0.2], [1.0, 1.0]])
    emulator = Emulator(points, wavy(points), slopes(points))
    np.testing.assert_allclose(emulator.mean(points)[0], wavy(points), atol=1e-4)


def test_one_stationary_point_gives_a_constant(recwarn):
    emulator = Emulator(np.zeros((1, 2)), np.array([-3.0]), np.zeros((1, 2)))
    value, gradient = emulator.mean(np.ones((1, 2)))
    assert value == -3.0 and not gradient.any() and not recwarn.list
