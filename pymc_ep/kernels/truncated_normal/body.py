"""Scalar body of `truncated_normal` in Python; Numba compiles the same functions.

Derivation. Let h(k) = phi(k) / Phi(-k) be the hazard of the standard normal distribution. X ~ N(-k, 1) given X > 0
has the mean r = h - k and the variance V = 1 - h r.

For k >= 0 both differences cancel (r ~ 1 / k, V ~ 1 / k^2). Instead (1 + k) r and (1 + k)^2 V, which are smooth and
between 0.36 and 1.18 on [0, inf], are expanded in Chebyshev polynomials of t = (k - c) / (k + c), c = 4, the change of
variable of Shepherd and Laframboise (1981, Math. Comp. 36, 249) for exp(x^2) erfc(x). Then h = k + r is a sum of
positive terms.

For k < 0 the tail below zero is Phi(k) = phi(k) / h(-k), and neither h = phi(k) / (1 - Phi(k)) nor r and V cancel.
"""

import math

import numpy as np

from pymc_ep.kernels.truncated_normal import coefficients

__all__ = ["FUNCTIONS", "HALF_LOG_TWO_PI", "gaussian", "truncated_normal"]

SCALE = float(coefficients.SCALE)
SCALED_MEAN = np.array(coefficients.SCALED_MEAN)
SCALED_VARIANCE = np.array(coefficients.SCALED_VARIANCE)
HALF_LOG_TWO_PI = 0.5 * math.log(2.0 * math.pi)
INV_SQRT_TWO_PI = 1.0 / math.sqrt(2.0 * math.pi)


def gaussian(k: float) -> float:
    """Return exp(-k^2 / 2), zero for |k| > 40.

    k^2 is split into an exact part and a small one: rounding k^2 would cost up to k^2 / 2 units in the last place.
    """
    if abs(k) > 40.0:
        return 0.0
    # k^2 = high^2 + (k - high) (k + high), where high^2 is exact: high = j / 16 with |j| <= 640.
    high = math.floor(16.0 * k) / 16.0
    return math.exp(-0.5 * high * high) * math.exp(-0.5 * (k - high) * (k + high))


def truncated_normal(k: float) -> tuple[float, float, float, float]:
    """Return log Phi(-k), h, r and V; all nan if k is not finite."""
    if not math.isfinite(k):
        return math.nan, math.nan, math.nan, math.nan
    size = abs(k)
    t = (size - SCALE) / (size + SCALE)
    # (1 + |k|) r(|k|) and (1 + |k|)^2 V(|k|) by Horner's scheme.
    mean = 0.0
    variance = 0.0
    for i in range(SCALED_MEAN.shape[0]):
        mean = mean * t + SCALED_MEAN[i]
        variance = variance * t + SCALED_VARIANCE[i]
    mean /= 1.0 + size
    if k >= 0.0:
        # log Phi(-k) = log phi(k) - log h.
        hazard = k + mean
        log_mass = -0.5 * k * k - HALF_LOG_TWO_PI - math.log(hazard)
        return log_mass, hazard, mean, variance / ((1.0 + size) * (1.0 + size))
    # h(-k) = |k| + r(|k|), so that tail = Phi(k) = phi(k) / h(-k), and Phi(-k) = 1 - tail.
    density = INV_SQRT_TWO_PI * gaussian(k)
    tail = density / (size + mean)
    hazard = density / (1.0 - tail)
    mean = hazard + size
    return math.log1p(-tail), hazard, mean, 1.0 - hazard * mean


FUNCTIONS = (gaussian, truncated_normal)
