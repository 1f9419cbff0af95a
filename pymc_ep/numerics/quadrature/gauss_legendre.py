"""Moments of Gaussian times likelihood by composite Gauss-Legendre quadrature, for any log density.

The tilted density is proportional to ``N(f; m, v) t(f)**p``. Gauss-Hermite rules fail here as soon as the cavity is
wide against the scale of t, so the interval that holds all but ``exp(-40)`` of the mass is found first. It is cut
into panels at the mode, and at the knots, which resolve the scale of the site itself.

Nothing is differenced. With ``g = p * d log t / d f`` integration by parts gives, for every t,

    d log Z / d m          = E[g],
    1 / Var[f] - 1 / v     = -Cov[f, g] / Var[f],

expectations under the tilted density. (The first is Stein's identity for the Gaussian factor. The second follows from
``E[(f - E f)(g - (f - m) / v)] = -1``: the bracket is the derivative of the log of the tilted density.)
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from pymc_ep.numerics.backend.namespace import Array, namespace
from pymc_ep.numerics.quadrature.peak_interval import peak_interval

__all__ = [
    "GAUSSIAN_CUTS",
    "REACH",
    "LogDensity",
    "Panels",
    "TiltedNodes",
    "cumulants_from_nodes",
    "jumps",
    "legendre",
    "moments_from_nodes",
    "panel_values",
    "panels_between",
    "reweighted",
    "tilted_nodes",
    "weighed",
]

_DISAGREEMENT = 1e-6
"""Difference between two forms of d log Z / d mean, times the cavity standard deviation, that counts as a jump of t: a
smaller limit takes quadrature error for a jump, a larger one misses small jumps."""

REACH = 1.0
"""Number of cavity standard deviations by which the cavity mean of a rule may move. The mass that the rule then misses
is below exp(-30), since its ends, DROP nats below the maximum, are at most 9 standard deviations away."""

GAUSSIAN_CUTS = (-9.5, -5.0, -2.5, 0.0, 2.5, 5.0, 9.5)
"""Cavity standard deviations at which panels break if the density may have several modes; exp(-9.5**2 / 2) is 3e-20."""

_PEAK_CUTS = (-9.5, -5.0, 5.0, 9.5)
"""Distances from a peak, in its widths, at which panels break that are too long for the peak: 20 nodes integrate a
Gaussian over 10 standard deviations to 1e-11."""
_LONG, _MASS = 10.0, 7.0
"""Length of a panel, in widths of a peak, from which it is too long for the peak; and the distance from the peak within
which this matters: the share of a Gaussian beyond is 3e-12."""


class Panels(NamedTuple):
    """The panels of all n sites, joined, with the panels of each site side by side.

    Attributes
    ----------
    left, width : array, shape (panels,)
        Left end of each panel, as an offset from the centre of its site, and width.
    site : array of int, shape (panels,)
        The site of each panel.
    first : array of int, shape (n,)
        The first panel of each site.
    """

    left: Array
    width: Array
    site: np.ndarray
    first: np.ndarray

    def reduce(self, values: Array, function: str) -> Array:
        """Return the sum (``"add"``) or the ``"maximum"`` of values, (panels,), over the panels of each site, (n,)."""
        if namespace(values) is np:
            return getattr(np, function).reduceat(values, self.first)
        # Under JAX every site has the same number of panels.
        return getattr(namespace(values), function).reduce(values.reshape((len(self.first), -1)), axis=1)

    def total(self, values: Array) -> Array:
        """Return the sums, (n,), of values, (nodes, panels), over all nodes of each site."""
        return self.reduce(values.sum(axis=0), "add")


class TiltedNodes(NamedTuple):
    """A quadrature rule for the tilted density of n sites.

    Attributes
    ----------
    panels : Panels
    centre : array, shape (n,)
        The point of each site from which offsets are measured.
    offset : array, shape (nodes, panels)
        Nodes minus the `centre` of their site.
    weight : array, shape (nodes, panels)
        Probabilities, which sum to one at each site.
    slope : array, shape (nodes, panels)
        ``power * d log t / d f`` at the nodes.
    log_z : array, shape (n,)
        Log of the integral of ``N(f; mean, variance) t(f)**power``.
    mean, variance : array, shape (n,)
        The cavity's moments.
    jump : array of bool, shape (n,), optional
        Where t jumps inside the interval. Integration by parts then misses a term, and gradient and precision follow
        from differences of moments instead.
    """

    panels: Panels
    centre: Array
    offset: Array
    weight: Array
    slope: Array
    log_z: Array
    mean: Array
    variance: Array
    jump: Array = None


LogDensity = Callable[..., Sequence[Any]]
"""``log_density(f, y, *parameters)`` returns log t and its derivative in f."""


def tilted_nodes(
    log_density: LogDensity,
    y: Array,
    mean: Array,
    variance: Array,
    power: Array,
    parameters: Sequence[Any] = (),
    *,
    knots: Sequence[Any] = (),
    peaks: Sequence[tuple[Any, Any]] = (),
    knots_beyond: float = 0.0,
    log_concave: bool = True,
    nodes: int = 24,
) -> TiltedNodes:
    """Return the nodes and weights of a composite Gauss-Legendre rule for the tilted density of each site.

    Parameters
    ----------
    log_density : callable
        ``log_density(f, y, *parameters)`` with f of shape (k, n) and the others of shape (n,) returns log t and its
        derivative in f, both (k, n). NumPy or JAX arrays, as the arguments are.
    y, mean, variance, power : array, shape (n,)
        Observations, cavity moments and the power of t.
    parameters : sequence of array, shape (n,)
    knots : sequence of array, shape (n,)
        Points at which panels must break, in any order; those outside the interval are ignored. When t is not
        log-concave there is at least one, and the first is where t is largest.
    peaks : sequence of (array, array), shape (n,)
        Place and width of maxima of the tilted density. Panels about them break if they are long against the width.
    knots_beyond : float
        Knots count only where the interval of integration is longer than this, which saves panels in narrow cavities.
    log_concave : bool
        Whether log t is concave: the interval is then found from the mode. Otherwise it reaches 9.5 cavity
        standard deviations beyond the cavity mean and the first knot.
    nodes : int
        Nodes in each panel.

    Returns
    -------
    TiltedNodes
        With NumPy, panels of width zero are dropped; under JAX, whose shapes are fixed, they are kept.
    """
    xp = namespace(mean, variance, y)

    def density(f: Array) -> Sequence[Any]:
        return log_density(f, y, *parameters)

    if log_concave:
        centre, log_centre, low, high = peak_interval(density, mean, variance, power, xp)
        cuts = [xp.zeros_like(mean)]
    else:
        centre, log_centre = mean, density(mean[None])[0][0]
        low, high, cuts = _hull_interval(mean, variance, knots, xp)
    wide = high - low > knots_beyond
    inner = xp.stack([*cuts, *(xp.where(wide, knot - centre, high) for knot in knots)])
    panels = panels_between(low, high, inner)
    if about := [cut for place, width in peaks for cut in _cuts_about(place - centre, width, panels, high, xp)]:
        panels = panels_between(low, high, xp.concatenate([inner, xp.stack(about)]))
    offset, log_t, slope = panel_values(log_density, panels, centre, log_centre, y, parameters, nodes)
    return weighed(panels, offset, log_t, slope, centre, log_centre, mean, variance, power)


def panel_values(
    log_density: LogDensity,
    panels: Panels,
    centre: Array,
    log_centre: Array,
    y: Array,
    parameters: Sequence[Any],
    nodes: int,
) -> tuple[Any, Any, Any]:
    """Return nodes as offsets from the centre, log t less its value at the centre, and its slope, (nodes, panels)."""
    offset = panels.left + panels.width * legendre(nodes)[0][:, None]
    y, base, log_base, *parameters = (array[panels.site] for array in (y, centre, log_centre, *parameters))
    node = base + offset
    log_t, slope = log_density(node, y, *parameters)
    with np.errstate(invalid="ignore"):
        # The sum rounds the node: to first order, log t is moved to the exact node of the Gaussian.
        return offset, log_t - log_base + slope * (offset - (node - base)), slope


def weighed(
    panels: Panels,
    offset: Array,
    log_t: Array,
    slope: Array,
    centre: Array,
    log_centre: Array,
    mean: Array,
    variance: Array,
    power: Array,
) -> TiltedNodes:
    """Return the rule, with its weights and log Z; `offset`, `log_t` and `slope` are the results of `panel_values`."""
    xp = namespace(mean, variance, offset)
    site = panels.site
    unit_weight = legendre(offset.shape[0])[1][:, None]
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        # Log integrand less its value at the centre c: (f - m)^2 - (c - m)^2 = offset (offset + 2 (c - m)).
        log_weight = power[site] * log_t - offset * (offset + 2 * (centre - mean)[site]) / (2 * variance)[site]
        top = panels.reduce(xp.max(log_weight, axis=0), "maximum")
        weight = xp.exp(log_weight - top[site]) * (panels.width * unit_weight)
        total = panels.total(weight)
        # log N(c; m, v) + p log t(c).
        peak = power * log_centre - (centre - mean) ** 2 / (2 * variance) - 0.5 * xp.log(2 * np.pi * variance)
        log_z = top + peak + xp.log(total)
        return TiltedNodes(panels, centre, offset, weight / total[site], power[site] * slope, log_z, mean, variance)


def reweighted(rule: TiltedNodes, step: Array) -> TiltedNodes:
    """Return the rule with the same nodes, and with weights and log Z for other cavity means.

    The ratio of the two Gaussians is an exponential of the offset.

    Parameters
    ----------
    rule : TiltedNodes
    step : array, shape (n,)
        Changes of the cavity means, within `REACH` standard deviations.
    """
    xp = namespace(rule.centre)
    panels, mean, variance = rule.panels, rule.mean, rule.variance
    # N(f; m + d, v) / N(f; m, v) = exp(d (f - m - d / 2) / v), with f = centre + offset.
    exponent = rule.offset * (step / variance)[panels.site]
    top = panels.reduce(xp.max(exponent, axis=0), "maximum")
    weight = rule.weight * xp.exp(exponent - top[panels.site])
    total = panels.total(weight)
    log_z = rule.log_z + top + xp.log(total) + step * (rule.centre - mean - step / 2) / variance
    return rule._replace(weight=weight / total[panels.site], log_z=log_z, mean=mean + step)


def jumps(rule: TiltedNodes) -> np.ndarray:
    """Whether t jumps, or the given slope of log t is wrong, (n,).

    E[g] then differs from d log Z / d mean = (E f - mean) / variance.
    """
    deviation = np.sqrt(rule.variance)
    mean = rule.centre + rule.panels.total(rule.weight * rule.offset)
    gradient = rule.panels.total(rule.weight * rule.slope) * deviation
    return np.abs(gradient - (mean - rule.mean) / deviation) > _DISAGREEMENT * np.maximum(1, np.abs(gradient))


def moments_from_nodes(rule: TiltedNodes, *, log_concave: bool = True) -> tuple[Any, Any, Any, Any, Any]:
    """Return log Z, mean, variance, d log Z / d mean and site precision, each of shape (n,).

    The covariance of f with the slope g is summed as ``(f - E f)(g - E g)``. For a log-concave t, whose g falls, all
    terms have one sign, except between the mean and the place where g equals E g. Their moduli add up to at most three
    times the sum: by Chebyshev's inequality on either side of the mean, ``E|f - E f| E|g - g(E f)| <= 2 |Cov[f, g]|``,
    and ``|g(E f) - E g| <= E|g - g(E f)|``. So the site precision keeps its relative accuracy where t is almost flat.
    Only where g is constant to its last digit can rounding make it negative; with `log_concave` it is then set to zero.
    """
    xp = namespace(rule.centre)
    panels, site = rule.panels, rule.panels.site
    shift = panels.total(rule.weight * rule.offset)
    mean = rule.centre + shift
    gradient = panels.total(rule.weight * rule.slope)
    deviation = rule.offset - shift[site]
    weighted = rule.weight * deviation
    variance = panels.total(weighted * deviation)
    with np.errstate(invalid="ignore", divide="ignore"):
        # 1 / Var[f] - 1 / v = -Cov[f, g] / Var[f].
        precision = -panels.total(weighted * (rule.slope - gradient[site])) / variance
    if log_concave:
        precision = xp.maximum(precision, 0.0)
    if rule.jump is not None:
        gradient = np.where(rule.jump, (mean - rule.mean) / rule.variance, gradient)
        with np.errstate(divide="ignore"):
            precision = np.where(rule.jump, 1 / variance - 1 / rule.variance, precision)
    return rule.log_z, mean, variance, gradient, precision


def cumulants_from_nodes(rule: TiltedNodes) -> tuple[np.ndarray, np.ndarray]:
    """Return the standardised third and fourth cumulants (skewness, excess kurtosis), (n,) each; NumPy only."""
    panels, site = rule.panels, rule.panels.site
    deviation = rule.offset - panels.total(rule.weight * rule.offset)[site]
    squares = deviation * deviation
    weighted = rule.weight * squares
    variance = panels.total(weighted)
    third, fourth = panels.total(weighted * deviation), panels.total(weighted * squares)
    return third / variance**1.5, fourth / variance**2 - 3.0


@lru_cache
def legendre(nodes: int) -> tuple[np.ndarray, np.ndarray]:
    """Return nodes and weights of the Gauss-Legendre rule on (0, 1), (nodes,) each."""
    node, weight = np.polynomial.legendre.leggauss(nodes)
    return (node + 1) / 2, weight / 2


def panels_between(low: Array, high: Array, inner: Array) -> Panels:
    """Return the panels into which points `inner`, (points, n), cut the intervals from `low` to `high`, (n,).

    Points outside of their interval have no effect.
    """
    xp = namespace(low, high)
    inside = (inner > low) & (inner < high)
    breaks = xp.concatenate([low[None], xp.sort(xp.where(inside, inner, high), axis=0), high[None]])
    left, width = breaks[:-1].T, (breaks[1:] - breaks[:-1]).T
    n, count = left.shape
    if xp is np:
        # Points outside the interval were moved to its upper end, where their panels have width zero.
        used = width != 0
        used[:, 0] = True
        site = np.nonzero(used)[0]
        return Panels(left[used], width[used], site, np.searchsorted(site, np.arange(n)))
    site = np.repeat(np.arange(n), count)
    return Panels(left.reshape(-1), width.reshape(-1), site, np.arange(0, n * count, count))


def _hull_interval(mean: Array, variance: Array, knots: Sequence[Any], xp: ModuleType) -> tuple[Any, Any, list[Any]]:
    """Return the ends of an interval that contains every mode of the density, and its cuts.

    All are offsets from the cavity mean, (n,).
    """
    deviation = xp.sqrt(variance)
    peak = knots[0] - mean
    reach = GAUSSIAN_CUTS[-1] * deviation
    low, high = xp.minimum(peak, 0.0) - reach, xp.maximum(peak, 0.0) + reach
    return low, high, [cut * deviation for cut in GAUSSIAN_CUTS]


def _cuts_about(place: Array, width: Array, panels: Panels, high: Array, xp: ModuleType) -> list[Any]:
    """Return cuts about a peak, offsets of shape (n,); `high`, of no effect, where panels there are short enough."""
    left, right = panels.left, panels.left + panels.width
    low_end, high_end = ((place + reach * width)[panels.site] for reach in (-_MASS, _MASS))
    longest = panels.reduce(xp.where((left < high_end) & (right > low_end), panels.width, 0.0), "maximum")
    long = longest > _LONG * width
    if xp is np and not long.any():
        return []
    return [xp.where(long, place + cut * width, high) for cut in _PEAK_CUTS]
