"""Expected log densities under Gaussians: closed forms, integrals by SciPy, kinks beside the ends of panels."""

import numpy as np
import pytest
import scipy.integrate
import scipy.stats

from pymc_ep.sites.compiled import compile_site


def test_a_rate_far_out():
    """The mean of exp(f) lies s of the standard deviations out, beyond what is told of probabilities."""
    mean, variance = np.array([-3.0, 0.2, 1.0, 0.0]), np.array([1e-8, 1.0, 25.0, 200.0])
    found = compile_site("poisson").expected(np.full(4, 2.0), mean, variance)
    rate = np.exp(mean + variance / 2)
    np.testing.assert_allclose(found.value, 2 * mean - rate - np.log(2), rtol=1e-11)
    np.testing.assert_allclose(found.gradient, 2 - rate, rtol=1e-11)
    np.testing.assert_allclose(found.precision, rate, rtol=1e-9)


def test_a_predictor_that_is_known():
    y, mean, variance = np.full(3, 3.0), np.full(3, 0.5), np.array([0.0, 1e-8, 0.0])
    found = compile_site("poisson").expected(y, mean, variance)
    np.testing.assert_allclose(found.value, scipy.stats.poisson.logpmf(3, np.exp(0.5)), rtol=1e-7)
    np.testing.assert_allclose(found.precision, np.exp(0.5), rtol=1e-7)


@pytest.mark.parametrize("away", [0.0, 1e-4, -1e-6, 0.3, -2.0])
def test_a_kink(away):
    """At an end of a panel, next to it, and far from any."""
    sd, b = np.array([0.02, 1.0, 30.0]), 0.8
    found = compile_site("laplace").expected(np.zeros(3), away * sd, sd**2, np.full(3, b))
    gap = scipy.stats.norm(away * sd, sd)
    np.testing.assert_allclose(sd * found.gradient, sd * (2 * gap.cdf(0) - 1) / b, atol=2e-10)
    np.testing.assert_allclose(sd**2 * found.precision, sd**2 * 2 / b * gap.pdf(0), atol=2e-10)


def test_a_narrow_density_under_a_wide_gaussian():
    mean, variance = np.array([0.4, -3.0, 20.0]), np.array([400.0, 4.0, 1e-4])
    site, parameters = compile_site("student_t"), [np.full(3, 4.0), np.full(3, 0.05)]
    found = site.expected(np.full(3, 0.3), mean, variance, *parameters)
    for k, (m, sd) in enumerate(zip(mean, np.sqrt(variance))):
        expected = scipy.integrate.quad(
            lambda x, m=m, sd=sd: scipy.stats.norm.pdf(x) * scipy.stats.t(4, m + sd * x, 0.05).logpdf(0.3),
            -9,
            9,
            points=[np.clip((0.3 - m) / sd, -8.0, 8.0)],
            limit=500,
            epsabs=1e-11,
        )[0]
        np.testing.assert_allclose(found.value[k], expected, rtol=1e-8)
    step = 1e-5
    moved = [
        site.expected(np.full(3, 0.3), mean, variance, np.full(3, 4.0), np.full(3, 0.05 + s)) for s in (step, -step)
    ]
    slopes = site.expected_parameter_gradient(np.full(3, 0.3), mean, variance, *parameters)
    np.testing.assert_allclose(slopes[1], (moved[0].value - moved[1].value) / (2 * step), rtol=1e-6)
