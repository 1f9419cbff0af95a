"""Contract of every registered site below which Gaussians are known; a new one is walked without an edit here."""

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

from pymc_ep.modes import numpy_mode
from pymc_ep.sites import compile_site, get_site, sites

SUPER_GAUSSIAN = sorted(name for name, site in sites().items() if site.super_gaussian is not None)
CURVED = sorted(name for name, site in sites().items() if site.curvature_bound is not None)
BOUNDED = sorted({*SUPER_GAUSSIAN, *CURVED})

ETA = np.concatenate([-np.geomspace(300.0, 1e-3, 25), [0.0], np.geomspace(1e-3, 300.0, 25)])
"""Predictors into both tails of every site."""
PLACES = np.array([-40.0, -5.0, -0.7, 0.3, 2.0, 40.0])
VARIANCES = np.array([1e-10, 1e-3, 0.2, 3.0, 100.0])


def arguments(name):
    """A few observations of a site, with parameters small and large: y and each parameter of shape (k,)."""
    site = get_site(name)
    y = {
        "binary": [0, 1],
        "count": [0, 1, 3, 30, 400],
        "integer": [-3, 0, 5],
        "real": [-7.0, 0.0, 0.4, 50.0],
        "positive": [0.01, 1.0, 30.0],
        "non-negative": [0.0, 1.0, 30.0],
        "unit interval": [1e-4, 0.3, 0.99],
        "ordinal": [0, 1, 2],
    }[site.domain]
    values = np.array([0.05, 1.3, 40.0])
    columns = np.meshgrid(np.array(y, dtype=float), *(values for _ in site.parameters), indexing="ij")
    y, *parameters = (column.ravel() for column in columns)
    if site.relation is not None and "count" in site.parameter_domains:
        # Numbers of trials.
        parameters = [y + np.floor(p) for p in parameters]
        keep = parameters[0] > 0
        y, parameters = y[keep], [p[keep] for p in parameters]
    site.validate_parameters(parameters, name, y)
    return y, parameters


def graphs(name, build):
    """Evaluate a graph of (y, x, *parameters) at vectors."""
    inputs = [pt.vector(k) for k in ("y", "x", *get_site(name).parameters)]
    return pytensor.function(inputs, build(*inputs), mode=numpy_mode(), on_unused_input="ignore")


def crossed(name, values):
    """Each observation and its parameters with each of `values`: vectors y, values and parameters."""
    y, parameters = arguments(name)
    size = len(values)
    return np.repeat(y, size), np.tile(values, len(y)), [np.repeat(p, size) for p in parameters]


@pytest.mark.parametrize("name", SUPER_GAUSSIAN)
def test_identity_holds_with_all_constants(name):
    bound = get_site(name).super_gaussian
    y, eta, parameters = crossed(name, ETA)

    def parts(y, eta, *parameters):
        x = (eta - bound.centre(y, *parameters)) ** 2
        return [bound.slope(y, *parameters) * eta + 0 * x, bound.log_at(y, x, *parameters)]

    linear, rest = graphs(name, parts)(y, eta, *parameters)
    expected = compile_site(name).log_density(y, eta, *parameters)
    # Terms cancel in the tail that is flat.
    np.testing.assert_array_less(np.abs(linear + rest - expected), 1e-12 * (1 + np.abs(linear) + np.abs(rest)))


@pytest.mark.parametrize("name", SUPER_GAUSSIAN)
def test_precision_is_twice_the_fall_of_the_log(name):
    bound = get_site(name).super_gaussian
    log_at, precision = graphs(name, bound.log_at), graphs(name, bound.precision)
    y, x, parameters = crossed(name, np.geomspace(1e-2, 1e4, 30))
    # Fourth-order central difference.
    step = 1e-3 * x
    up, down, up2, down2 = (log_at(y, x + k * step, *parameters) for k in (1, -1, 2, -2))
    slope = (8 * (up - down) - (up2 - down2)) / (12 * step)
    found = precision(y, x, *parameters)
    assert (found >= 0).all()
    floor = 1e-12 * np.abs(log_at(y, x, *parameters)) / step
    np.testing.assert_array_less(np.abs(found + 2 * slope), 1e-8 * found + 10 * floor)


@pytest.mark.parametrize("name", BOUNDED)
def test_gaussians_lie_below_and_touch(name):
    compiled = compile_site(name)
    touching = 0
    for place in PLACES:
        for variance in VARIANCES:
            y, eta, parameters = crossed(name, ETA)
            found = compiled.bounded(y, place, variance, *parameters)
            # The value is the log Gaussian at `place`, less pi z / 2 for its spread.
            away = eta - place
            peak = found.value + 0.5 * found.precision * variance
            gaussian = peak + found.gradient * away - 0.5 * found.precision * away**2
            log_t = compiled.log_density(y, eta, *parameters)
            slack = 1e-11 * (1 + np.abs(peak) + np.abs(found.gradient * away) + 0.5 * found.precision * away**2)
            assert (gaussian <= log_t + slack).all()
            touching += _touches(name, y, place, variance, parameters, found)
    assert touching > 0


def _touches(name, y, place, variance, parameters, found):
    """Check that the Gaussian meets the site where the squared distance is x; return at how many points it does."""
    if name not in SUPER_GAUSSIAN:
        at = np.full_like(y, place)
    else:
        centre = graphs(name, lambda y, x, *p: get_site(name).super_gaussian.centre(y, *p) + 0 * x)(y, y, *parameters)
        at = centre + np.sqrt(variance + (place - centre) ** 2)
    away = at - place
    peak = found.value + 0.5 * found.precision * variance
    gaussian = peak + found.gradient * away - 0.5 * found.precision * away**2
    log_t = compile_site(name).log_density(y, at, *parameters)
    slack = 1e-11 * (1 + np.abs(peak) + np.abs(found.gradient * away) + 0.5 * found.precision * away**2)
    np.testing.assert_array_less(np.abs(gaussian - log_t), slack)
    return len(at)


@pytest.mark.parametrize("name", BOUNDED)
def test_derivatives_of_the_value(name):
    compiled = compile_site(name)
    eta, z = (part.ravel() for part in np.meshgrid([-3.0, -0.2, 1.7, 6.0], [0.3, 2.0]))
    y, index, parameters = crossed(name, np.arange(len(eta)))
    eta, z = eta[index], z[index]

    def value(eta, z, parameters):
        return compiled.bounded(y, eta, z, *parameters).value

    def close(found, up, down, step):
        # Truncation of the central difference, and rounding of the values.
        floor = 1e-14 * (1 + np.abs(up)) / step
        np.testing.assert_array_less(np.abs(found - (up - down) / (2 * step)), 2e-6 * (np.abs(found) + 1) + floor)

    step = 1e-4
    found = compiled.bounded(y, eta, z, *parameters)
    slope = value(eta + step, z, parameters), value(eta - step, z, parameters)
    small = np.minimum.reduce([np.ones_like(y), *parameters])
    scale = 1 + 1 / small**2
    np.testing.assert_array_less(
        np.abs(found.gradient - (slope[0] - slope[1]) / (2 * step)), 1e-6 * scale + 1e-9 * np.abs(slope[0])
    )
    fall = value(eta, z + step, parameters), value(eta, z - step, parameters)
    np.testing.assert_array_less(
        np.abs(found.precision + (fall[0] - fall[1]) / step), 1e-6 * scale + 1e-9 * np.abs(fall[0])
    )
    up, down = (compiled.bounded(y, eta + sign * step, z, *parameters).gradient for sign in (1, -1))
    # No step of least squares is longer than a hundred times that by pi, or twice it where there may be several maxima.
    least = 0.01 if get_site(name).log_concave else 0.5
    expected = np.clip((down - up) / (2 * step), least * found.precision, found.precision)
    np.testing.assert_array_less(np.abs(found.weight - expected), 1e-6 * scale)
    gradients = compiled.bounded_parameter_gradient(y, eta, z, *parameters)
    assert len(gradients) == len(parameters)
    for k, gradient in enumerate(gradients):
        if get_site(name).parameter_domains[k : k + 1] == ("count",):
            continue
        up, down = ([p * (1 + sign * step * (i == k)) for i, p in enumerate(parameters)] for sign in (1, -1))
        close(gradient * parameters[k], value(eta, z, up), value(eta, z, down), step)


@pytest.mark.parametrize("name", CURVED)
def test_curvature_bound_holds_and_is_tight(name):
    y, eta, parameters = crossed(name, np.linspace(-12.0, 12.0, 2001))
    step = 1e-3
    density = compile_site(name).log_density
    at = [density(y, eta + k * step, *parameters) for k in (-1, 0, 1)]
    curvature = -(at[0] - 2 * at[1] + at[2]) / step**2
    bound = compile_site(name).bounded(y, eta, 1.0, *parameters).precision
    rounding = 1e-15 * np.abs(at[1]) * 4 / step**2
    assert (curvature <= bound + 1e-6 + rounding).all()
    largest = (curvature / bound).reshape(-1, 2001).max(axis=1)
    assert (largest > 0.95).all()


def test_a_site_without_a_bound_says_so():
    assert not get_site("rectified_poisson").has_bound
    with pytest.raises(TypeError, match="A rectified_poisson site has no `super_gaussian`"):
        compile_site("rectified_poisson").bounded(1.0, 0.0, 1.0)


@pytest.mark.parametrize("name", BOUNDED)
def test_jax_agrees(name):
    y, eta, parameters = crossed(name, np.array([-2.0, 0.3, 5.0]))
    for one, other in zip(
        compile_site(name, "JAX").bounded(y, eta, 0.4, *parameters),
        compile_site(name).bounded(y, eta, 0.4, *parameters),
        strict=True,
    ):
        np.testing.assert_allclose(one, other, rtol=1e-11, atol=1e-12)
