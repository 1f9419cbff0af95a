"""Moments of Gaussian times likelihood by one Gauss-Hermite rule, where the likelihood is smooth on that scale.

Under narrow cavities (many observations for each coefficient) t changes little, and 16 nodes about the cavity mean are
exact to rounding: no interval has to be found and cut. Whether they are is seen from the nodes themselves: with x the
standardised offset and h_k the orthonormal Hermite polynomials, t(x) / E[t] = sum_k a_k h_k(x). The rule integrates all
terms below degree 32, and the coefficients of a smooth t fall geometrically. Where the last that 16 nodes tell, a_13 to
a_15, are below 1e-9, those beyond degree 30 are below rounding. A kink within reach of the nodes shows in them as well.
"""

from functools import lru_cache

import numpy as np

from pymc_ep.linalg.quadrature import LogDensity, Panels, TiltedNodes

__all__ = ["hermite_nodes", "is_narrow"]

_NODES = 16
_LAST = 3
"""Coefficients that are looked at."""
_NEGLIGIBLE = 1e-9
_CURVED = 0.5
"""Curvature of log t times the cavity variance above which the rule is not tried."""
_STEEP = 2.0
"""Slope of log t times the cavity's standard deviation above which it is not tried."""


def is_narrow(
    log_density: LogDensity,
    y: np.ndarray,
    mean: np.ndarray,
    variance: np.ndarray,
    power: np.ndarray,
    *parameters: np.ndarray,
) -> np.ndarray:
    """Whether t looks smooth enough for `hermite_nodes` to be tried, (n,), from its slopes at mean +- sd."""
    sd = np.sqrt(variance)
    with np.errstate(invalid="ignore", over="ignore"):
        slopes = power * log_density(mean + sd * np.array([[-1.0], [1.0]]), y, *parameters)[1]
        steep = np.abs(slopes).max(axis=0) * sd < _STEEP
        return steep & (np.abs(slopes[1] - slopes[0]) * sd < 2 * _CURVED)


def hermite_nodes(
    log_density: LogDensity,
    y: np.ndarray,
    mean: np.ndarray,
    variance: np.ndarray,
    power: np.ndarray,
    *parameters: np.ndarray,
) -> tuple[TiltedNodes, np.ndarray]:
    """Return for which of n sites the rule about the cavity mean is exact, and the rule of these, one panel each."""
    node, weight, last = _rule()
    offset = node[:, None] * np.sqrt(variance)
    with np.errstate(invalid="ignore", over="ignore"):
        log_t, slope = log_density(mean + offset, y, *parameters)
        top = power * log_t.max(axis=0)
        weights = weight[:, None] * np.exp(power * log_t - top)
        total = weights.sum(axis=0)
        weights /= total
        exact = np.abs(last @ weights).max(axis=0) < _NEGLIGIBLE
        log_z = top + np.log(total)
    offset, weights, slope = (values[:, exact] for values in (offset, weights, power * slope))
    mean, variance, log_z = (values[exact] for values in (mean, variance, log_z))
    site = np.arange(len(mean))
    panels = Panels(offset[0], offset[-1] - offset[0], site, site)
    return TiltedNodes(panels, mean, offset, weights, slope, log_z, mean, variance), exact


@lru_cache
def _rule() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return nodes and weights for the standard normal, and the last orthonormal polynomials at the nodes, (3, 16)."""
    node, weight = np.polynomial.hermite_e.hermegauss(_NODES)
    polynomials = [np.ones(_NODES), node]
    for k in range(1, _NODES - 1):
        polynomials.append((node * polynomials[k] - np.sqrt(k) * polynomials[k - 1]) / np.sqrt(k + 1))
    return node, weight / weight.sum(), np.array(polynomials[-_LAST:])
