"""Skewed distributions by a monotone cubic T of a standard normal variable u.

    T(u) = ((1 + b u)^3 - 1 - 3 b^2) / (b D) = (3 u + 3 b (u^2 - 1) + b^2 u^3) / D,    D^2 = 9 + 36 b^2 + 15 b^4,

has mean 0, variance 1 and the skewness k = 54 b (3 + 16 b^2 + 15 b^4) / D^3, for a slope b. Of all monotone cubics with
this skewness T has the least cubic term, as its derivative 3 (1 + b u)^2 / D has a double root. As the cube of a normal
variable T is the approximation of gamma distributions by Wilson and Hilferty (1931), and its inverse has a closed form.
To first order in k it is the expansion of Cornish and Fisher, u + k (u^2 - 1) / 6.
"""

import numpy as np

from pymc_ep.numerics.quadrature.gauss_hermite import standard_normal_rule

__all__ = ["MOST_SKEWED", "gaussian_parts", "limited", "skewed", "skewed_moves", "unskewed"]

MOST_SKEWED = 2.0
"""Largest skewness of T, an exponential distribution's. More skewed cubics approximate tilted densities poorly."""
_SLOPES = np.linspace(-0.5, 0.5, 4001)
"""Slopes b at which the skewness is tabulated; linear interpolation between them errs by 3e-8."""
_EVEN = 1e-6
"""Modulus of the slope b below which T counts as a parabola: the term that is left out is 1e-12."""
_STRAIGHT = 4.5
"""Standard deviations beyond which a cubic continues as its tangent: one of 150,000 draws lies there."""
_PARTS, _WIDTH = 7, 0.6
"""Number of Gaussian parts of a skewed density, and their standard deviation before T moves them. Quantiles from 1 to
99% are exact within 0.01 at a skewness of 0.7 and 0.02 at 1. There five parts err by 0.04 to 0.09, and seven of a
width of 0.5 by 0.07."""


def _skewness(slope: np.ndarray) -> np.ndarray:
    """Return the skewness of T at slopes b."""
    square = slope**2
    return 54.0 * slope * (3.0 + 16.0 * square + 15.0 * square**2) / _scale(slope) ** 3


def _scale(slope: np.ndarray) -> np.ndarray:
    """Return D at slopes b."""
    return np.sqrt(9.0 + 36.0 * slope**2 + 15.0 * slope**4)


_SKEWNESSES = _skewness(_SLOPES)
"""Skewnesses of T at the tabulated slopes."""


def _slope(skewness: np.ndarray) -> np.ndarray:
    """Return the slopes b at which T has given skewnesses, cut off at modulus `MOST_SKEWED`."""
    return np.interp(np.clip(skewness, -MOST_SKEWED, MOST_SKEWED), _SKEWNESSES, _SLOPES)


def skewed(normal: np.ndarray, skewness: np.ndarray) -> np.ndarray:
    """Return T(u) for u = `normal`, continued as its tangent beyond |u| = 4.5; the arguments broadcast.

    With linear rather than cubic tails, means of exp T(u) exist.
    """
    b = _slope(skewness)
    u = np.clip(normal, -_STRAIGHT, _STRAIGHT)
    inside = 3.0 * u + 3.0 * b * (u**2 - 1.0) + b**2 * u**3
    # Beyond the cut the tangent, of slope T' = 3 (1 + b u)^2 / D.
    return (inside + 3.0 * (1.0 + b * u) ** 2 * (normal - u)) / _scale(b)


def unskewed(values: np.ndarray, skewness: np.ndarray) -> np.ndarray:
    """Return the u at which T(u) = `values`, for T with cubic tails rather than the tangents of `skewed`."""
    b = _slope(skewness)
    even = np.abs(b) < _EVEN
    slope = np.where(even, 1.0, b)
    # (1 + b u)^3 = 1 + 3 b^2 + b D T; to first order in b, T = u + b (u^2 - 1).
    root = (np.cbrt(1.0 + 3.0 * slope**2 + slope * _scale(slope) * values) - 1.0) / slope
    return np.where(even, values - b * (values**2 - 1.0), root)


def limited(share: np.ndarray, total: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return `share` and `total`, scaled down so that `total`, a whole skewness, has at most the modulus `MOST_SKEWED`.

    `share` are parts of the skewness, such as one site's.
    """
    factor = MOST_SKEWED / np.maximum(np.abs(total), MOST_SKEWED)
    return share * factor, total * factor


def skewed_moves(share: np.ndarray, total: np.ndarray) -> np.ndarray:
    """Return coefficients, (4, n), constant first, of a(u) = (g / k) (T(u) - u) for a share g of T's skewness k.

    The moves a(u) of several sites with one predictor add up to T(u) - u if their shares add up to k.

    Parameters
    ----------
    share, total : ndarray, (n,)
        g and k, as `limited` returns them.
    """
    b = _slope(total)
    scale = _scale(b)
    # b / k and (D - 3) / b^2 have the limits 1 / 6 and 6 at zero.
    even = np.abs(b) < _EVEN
    factor = share * np.where(even, 1.0 / 6.0, b / np.where(even, 1.0, total)) / scale
    # T - u = b (-3 - (D - 3) / b u + 3 u^2 + b u^3) / D, where (D - 3) / b = b (36 + 15 b^2) / (D + 3).
    linear = b * (36.0 + 15.0 * b**2) / (3.0 + scale)
    return factor * np.array([np.full_like(b, -3.0), -linear, np.full_like(b, 3.0), b])


def gaussian_parts(skewness: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return weights, (7,), means and standard deviations, (7, *shape), of a mixture of normals near the law of T(u).

    Let u = alpha z + w e for independent standard normals z and e, with alpha^2 + w^2 = 1. About each node of a
    quadrature in z, T is approximated as linear in e. This loses the share w^4 of the skewness, and T therefore has the
    skewness k / (1 - w^4) here, for k = `skewness`. Mean and variance are exact.
    """
    nodes, weights = standard_normal_rule(_PARTS)
    at = np.sqrt(1.0 - _WIDTH**2) * nodes.reshape(-1, *(1,) * np.ndim(skewness))
    more = skewness / (1.0 - _WIDTH**4)
    b = _slope(more)
    # T(alpha z) + T'(alpha z) w e, with T' = 3 (1 + b u)^2 / D.
    mean, sd = skewed(at, more), _WIDTH * 3.0 * (1.0 + b * at) ** 2 / _scale(b)
    # Mean 0 and variance sum_k weight_k (mean_k^2 + sd_k^2) = 1.
    mean = mean - np.tensordot(weights, mean, axes=1)
    scale = np.sqrt(np.tensordot(weights, mean**2 + sd**2, axes=1))
    return weights, mean / scale, sd / scale
