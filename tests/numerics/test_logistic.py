"""The mean of a sigmoid of a Gaussian, beside quadrature."""

import numpy as np
from scipy.special import expit, log_expit

from pymc_ep.numerics.quadrature.logistic import log_mean_sigmoid


def test_mean_is_near_that_by_quadrature():
    mean, sd = np.meshgrid(np.linspace(-12.0, 12.0, 25), np.geomspace(0.01, 20.0, 20))
    z = np.linspace(-8.0, 8.0, 2001)
    weights = np.exp(-0.5 * z**2)
    expected = expit(mean[..., None] + sd[..., None] * z) @ (weights / weights.sum())
    np.testing.assert_allclose(np.exp(log_mean_sigmoid(mean, sd)), expected, atol=0.02)


def test_mean_of_a_number_is_exact_and_does_not_underflow():
    mean = np.array([-800.0, -1.0, 0.0, 3.0])
    np.testing.assert_allclose(log_mean_sigmoid(mean, np.zeros(4)), log_expit(mean))
