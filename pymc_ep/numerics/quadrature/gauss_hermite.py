"""Moments of Gaussian times likelihood by one Gauss-Hermite rule, where the integrand is a smooth single peak.

With x the standardised offset from a centre c in units of s, and h_k the orthonormal Hermite polynomials, the ratio of
the integrand to N(f; c, s**2), divided by its mean, is sum_k a_k h_k(x). A rule of N nodes integrates all terms below
degree 2 N, and the coefficients of a smooth ratio fall geometrically. The nodes themselves give the coefficients below
degree N. Where a_(N-3) to a_(N-1) are below 1e-9, coefficients beyond degree 2 N - 2 are below rounding. A kink within
reach of the nodes makes a_(N-3) to a_(N-1) large.

Under narrow cavities (many observations for each coefficient) t changes little: 16 nodes about the cavity's own mean
and standard deviation are enough, and no peak has to be found. Elsewhere 32 nodes are placed about the peak of the
integrand.
"""

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from pymc_ep.numerics.quadrature.gauss_legendre import LogDensity, Panels, TiltedNodes, jumps
from pymc_ep.numerics.quadrature.peak_search import (
    Peak,
    Survey,
    has_one_peak,
    integrand_of,
    is_near,
    share_outside,
    single_peak,
    slopes_beside,
    surveyed,
)

__all__ = ["Smooth", "hermite_rule", "known_smooth_nodes", "seen_smooth_nodes", "standard_normal_rule"]

_NARROW, _PEAKED = 16, 32
"""Numbers of nodes of a rule about the cavity's mean, and of a rule about a peak."""
_LAST = 3
"""Number of last coefficients a_k that are tested: one alone may vanish by symmetry."""
_NEGLIGIBLE = 1e-9
"""Bound on the moduli of the tested coefficients. Since coefficients fall geometrically, at twice the degree they are
about its square, 1e-18."""
_TRIES = 2
"""Number of rules tried about a peak: the first has the width from the peak's curvature, the second the tilted mean and
standard deviation by the first."""
_MOST_OUTSIDE = 1e-11
"""Largest share of the mass and of the variance outside the nodes about a peak: below the tolerance of EP, 1e-8."""
_CURVED = 0.5
"""Curvature of log t, in units of 1 / cavity variance, above which the rule about the cavity mean is not tried. This
saves evaluations only: a rule that is tried is tested by its coefficients."""
_STEEP = 2.0
"""Slope of log t, in units of 1 / cavity standard deviation, above which the same rule is not tried."""


class Smooth(NamedTuple):
    """Rules for the sites, of n, that have a smooth integrand, and the indices of the remaining sites.

    Attributes
    ----------
    rules : list of (ndarray of int, TiltedNodes)
        Indices of sites, and the rule of these sites, with one panel for each.
    rest : ndarray of int
        Indices of the remaining sites.
    seen : Survey, optional
        The integrand of all n sites on the grid, where it was surveyed.
    """

    rules: list[tuple[np.ndarray, TiltedNodes]]
    rest: np.ndarray
    seen: Survey | None = None


def known_smooth_nodes(
    log_density: LogDensity,
    y: np.ndarray,
    mean: np.ndarray,
    variance: np.ndarray,
    power: np.ndarray,
    *parameters: np.ndarray,
) -> Smooth:
    """Return rules about cavity means, for sites that declare t as log-concave, or declare the places of its peaks.

    For arguments see `gauss_legendre.tilted_nodes`, all NumPy arrays.
    """
    sd = np.sqrt(variance)
    with np.errstate(invalid="ignore", over="ignore"):
        slopes = power * log_density(mean + sd * np.array([[-1.0], [1.0]]), y, *parameters)[1]
        tried = np.flatnonzero(_is_narrow(slopes, sd))
        rules: list[tuple[np.ndarray, TiltedNodes]] = []
        rest = np.ones(len(y), dtype=bool)
        if tried.size:
            subset = [array[tried] for array in (y, mean, variance, power, *parameters)]
            _accept_smooth(rules, rest, tried, *_nodes_about(log_density, _NARROW, subset[1], sd[tried], *subset))
    return Smooth(rules, np.flatnonzero(rest))


def seen_smooth_nodes(
    log_density: LogDensity,
    y: np.ndarray,
    mean: np.ndarray,
    variance: np.ndarray,
    power: np.ndarray,
    *parameters: np.ndarray,
) -> Smooth:
    """Return rules about cavity means and about peaks, where a survey sees a single peak of the integrand.

    For arguments see `multimodal.scanned_nodes`, which serves the remaining sites.
    """
    arrays = (y, mean, variance, power, *parameters)
    rules: list[tuple[np.ndarray, TiltedNodes]] = []
    rest = np.ones(len(y), dtype=bool)
    with np.errstate(invalid="ignore", over="ignore", divide="ignore", under="ignore"):
        seen, log_t, slope = surveyed(log_density, *arrays, also=hermite_rule(_NARROW)[0])
        sd = np.sqrt(variance)
        single = has_one_peak(seen)
        narrow = single & is_near(seen) & _is_narrow(slopes_beside(seen, variance), sd)
        narrow = np.flatnonzero(narrow | (variance == 0))
        if narrow.size:
            about = [array[narrow] for array in (mean, sd, mean, variance, power)]
            _accept_smooth(rules, rest, narrow, *_weighed(_NARROW, log_t[:, narrow], slope[:, narrow], *about))
        integrand = integrand_of(log_density, y, mean, variance, power, parameters)
        sites, peak = single_peak(integrand, seen, np.flatnonzero(rest & single))
        for _ in range(_TRIES):
            if not sites.size:
                break
            subset = [array[sites] for array in arrays]
            rule, smooth = _nodes_about(log_density, _PEAKED, subset[1] + peak.offset, peak.width, *subset)
            smooth &= _share_outside(rule, seen.of(sites)) < _MOST_OUTSIDE
            _accept_smooth(rules, rest, sites, rule, smooth)
            again = np.flatnonzero(~smooth)
            sites, peak = sites[again], _recentred(_subset(rule, again))
    return Smooth(rules, np.flatnonzero(rest), seen)


def _is_narrow(slopes: np.ndarray, sd: np.ndarray) -> np.ndarray:
    """Whether t looks smooth on the scale of the cavity, (n,), from the slopes of its log at mean +- sd, (2, n)."""
    steep = np.abs(slopes).max(axis=0) * sd < _STEEP
    # Curvature times v is about (g(m + sd) - g(m - sd)) sd / 2.
    return steep & (np.abs(slopes[1] - slopes[0]) * sd < 2 * _CURVED)


def _nodes_about(
    log_density: LogDensity, nodes: int, centre: np.ndarray, width: np.ndarray, *arrays: np.ndarray
) -> tuple[TiltedNodes, np.ndarray]:
    """Evaluate the density at nodes about `centre`, (n,), and return the results of `_weighed`."""
    y, mean, variance, power, *parameters = arrays
    log_t, slope = log_density(centre + hermite_rule(nodes)[0][:, None] * width, y, *parameters)
    return _weighed(nodes, log_t, slope, centre, width, mean, variance, power)


def _weighed(
    nodes: int,
    log_t: np.ndarray,
    slope: np.ndarray,
    centre: np.ndarray,
    width: np.ndarray,
    mean: np.ndarray,
    variance: np.ndarray,
    power: np.ndarray,
) -> tuple[TiltedNodes, np.ndarray]:
    """Return the rule with nodes at ``centre + width * x``, and whether it is accurate for each site, (n,).

    A rule is accurate if the ratio of the integrand to N(f; centre, width**2) is smooth, and t does not jump.
    """
    node, weight, last = hermite_rule(nodes)
    offset = node[:, None] * width
    # The sum rounds the node: to first order, log t is moved to the exact node of the Gaussian.
    log_t = log_t + slope * (offset - ((centre + offset) - centre))
    # A cavity without variance is a point, and all nodes are there.
    spread = np.where(variance > 0, variance, 1.0)
    away, ratio = centre - mean, np.where(variance > 0, width / np.sqrt(spread), 1.0)
    # f = c + w x: N(f; m, v) t^p df = N(x; 0, 1) dx exp(exponent) (w / sqrt v) exp(-(c - m)^2 / (2 v)).
    exponent = power * log_t + 0.5 * (1 - ratio**2) * node[:, None] ** 2 - offset * (away / spread)
    top = exponent.max(axis=0)
    weights = weight[:, None] * np.exp(exponent - top)
    total = weights.sum(axis=0)
    weights /= total
    # a_k = sum_i weight_i h_k(x_i), by the weights that sum to one, for the last k.
    smooth = np.abs(last @ weights).max(axis=0) < _NEGLIGIBLE
    log_z = top + np.log(total * ratio) - away**2 / (2 * spread)
    site = np.arange(len(mean))
    panels = Panels(offset[0], offset[-1] - offset[0], site, site)
    rule = TiltedNodes(panels, centre, offset, weights, power * slope, log_z, mean, variance)
    # Derivatives of a density may be undefined where it is not, as those of PyMC's truncated Normal are.
    return rule, smooth & ~jumps(rule)


def _subset(rule: TiltedNodes, sites: np.ndarray) -> TiltedNodes:
    """Return the rules of the sites at indices `sites`, (m,), one panel each."""
    panels, centre, offset, weight, slope, log_z, mean, variance, _ = rule
    site = np.arange(len(sites))
    return TiltedNodes(
        Panels(panels.left[sites], panels.width[sites], site, site),
        centre[sites],
        offset[:, sites],
        weight[:, sites],
        slope[:, sites],
        log_z[sites],
        mean[sites],
        variance[sites],
    )


def _accept_smooth(rules: list, rest: np.ndarray, sites: np.ndarray, rule: TiltedNodes, smooth: np.ndarray) -> None:
    """Append the rules of smooth sites to `rules`, and clear these sites in `rest`, (n,) bool."""
    if smooth.any():
        rules.append((sites[smooth], rule if smooth.all() else _subset(rule, np.flatnonzero(smooth))))
        rest[sites[smooth]] = False


def _share_outside(rule: TiltedNodes, seen: Survey) -> np.ndarray:
    """Return a bound on the share of mass and variance outside the nodes, (n,)."""
    node, weight, _ = hermite_rule(len(rule.offset))
    ends, width = [0, -1], rule.panels.width / (node[-1] - node[0])
    # Weight over Hermite weight is the tilted density of x over phi(x); over `width` it is one of f.
    density = (rule.weight[ends] / weight[ends, None]) * np.exp(-0.5 * node[ends, None] ** 2) / np.sqrt(2 * np.pi)
    # The survey's integrand lacks the factor (2 pi v)^-1/2.
    log_mass = rule.log_z + 0.5 * np.log(2 * np.pi * rule.variance)
    peak = Peak(rule.centre - rule.mean, width)
    return share_outside(seen, peak, peak.offset + rule.offset[ends], density / width, log_mass)


def _recentred(rule: TiltedNodes) -> Peak:
    """Return the tilted mean, as an offset from the cavity mean, and standard deviation, by an approximate rule."""
    shift = (rule.weight * rule.offset).sum(axis=0)
    spread = (rule.weight * (rule.offset - shift) ** 2).sum(axis=0)
    return Peak(rule.centre - rule.mean + shift, np.sqrt(spread))


@lru_cache
def standard_normal_rule(nodes: int) -> tuple[np.ndarray, np.ndarray]:
    """Return nodes and weights, which sum to one, of means over a standard normal, (nodes,) each."""
    node, weight = np.polynomial.hermite_e.hermegauss(nodes)
    return node, weight / weight.sum()


@lru_cache
def hermite_rule(nodes: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return nodes and weights, (nodes,), for the standard normal, and the last polynomials h_k there, (3, nodes)."""
    node, weight = standard_normal_rule(nodes)
    polynomials = [np.ones(nodes), node]
    for k in range(1, nodes - 1):
        # sqrt(k + 1) h_(k+1) = x h_k - sqrt(k) h_(k-1).
        polynomials.append((node * polynomials[k] - np.sqrt(k) * polynomials[k - 1]) / np.sqrt(k + 1))
    return node, weight, np.array(polynomials[-_LAST:])
