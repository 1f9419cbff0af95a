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

from pymc_ep.numerics.backend.namespace import Array, namespace, while_loop

__all__ = [
    "GAUSSIAN_CUTS",
    "REACH",
    "LogDensity",
    "Panels",
    "TiltedNodes",
    "legendre",
    "moments_from_nodes",
    "panel_values",
    "panels_between",
    "reweighted",
    "tilted_nodes",
    "weighed",
]

DROP = 40.0
"""Nats below the maximum at which the integrand is cut off; exp(-40) is 4e-18."""

REACH = 1.0
"""Cavity standard deviations by which the cavity mean of a rule may move: the mass that it then misses is below
exp(-30), since its ends, DROP nats down, are at most 9 of them away."""

_WIDE_DROP = 60.0
"""Largest drop at an edge, in nats, at which its search ends: a panel is then at most 1.5 times too long (log t
linear)."""

_AIM_DROP = 48.0
"""Drop at which the Newton steps to an edge aim, in nats: between `DROP` and `_WIDE_DROP`, so that rounding and
curvature miss neither."""

_MODE_LOSS = 0.5
"""Largest distance of the mode found below the maximum, in nats. The mode is only where panels are cut."""

_MODE_SECTIONS = 6
"""Points at which one round of the search for the mode cuts its bracket: evaluated at once, they save rounds."""
_MAX_SEARCH = 60
"""Most rounds of a search. It ends one on values that are not finite; finite ones needed nine rounds at most."""

GAUSSIAN_CUTS = (-9.5, -5.0, -2.5, 0.0, 2.5, 5.0, 9.5)
"""Cavity standard deviations at which panels break if the density may have several modes; exp(-9.5**2 / 2) is 3e-20."""


class Panels(NamedTuple):
    """The panels of all sites in one row, those of a site side by side.

    Attributes
    ----------
    left, width : array, shape (panels,)
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
        """Reduce values of shape (panels,) to one a site by ``"add"`` or ``"maximum"``, with shape (n,)."""
        if namespace(values) is np:
            return getattr(np, function).reduceat(values, self.first)
        # Under JAX every site has the same number of panels.
        return getattr(namespace(values), function).reduce(values.reshape((len(self.first), -1)), axis=1)

    def total(self, values: Array) -> Array:
        """Sum values of shape (nodes, panels) for each site, to shape (n,)."""
        return self.reduce(values.sum(axis=0), "add")


class TiltedNodes(NamedTuple):
    """A quadrature rule for the tilted density of n sites.

    Attributes
    ----------
    panels : Panels
    centre : array, shape (n,)
    offset : array, shape (nodes, panels)
        Nodes minus the `centre` of their site.
    weight : array, shape (nodes, panels)
        Probabilities; those of a site sum to one.
    slope : array, shape (nodes, panels)
        ``power * d log t / d f`` at the nodes.
    log_z : array, shape (n,)
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
    knots_beyond: float = 0.0,
    log_concave: bool = True,
    nodes: int = 24,
) -> TiltedNodes:
    """Place and weigh the nodes of a composite Gauss-Legendre rule.

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
    knots_beyond : float
        Knots count only where the interval of integration is longer than this; saves panels in narrow cavities.
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
        centre, log_centre, low, high = _peak_interval(density, mean, variance, power, xp)
        cuts = [xp.zeros_like(mean)]
    else:
        centre, log_centre = mean, density(mean[None])[0][0]
        low, high, cuts = _hull_interval(mean, variance, knots, xp)
    wide = high - low > knots_beyond
    inner = xp.stack([*cuts, *(xp.where(wide, knot - centre, high) for knot in knots)])
    panels = panels_between(low, high, inner)
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
    """Return the nodes of all panels as offsets from the centre, log t there over that at the centre, and its slope."""
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
    """Return the rule with the probabilities of its nodes."""
    xp = namespace(mean, variance, offset)
    site = panels.site
    unit_weight = legendre(offset.shape[0])[1][:, None]
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        log_weight = power[site] * log_t - offset * (offset + 2 * (centre - mean)[site]) / (2 * variance)[site]
        top = panels.reduce(xp.max(log_weight, axis=0), "maximum")
        weight = xp.exp(log_weight - top[site]) * (panels.width * unit_weight)
        total = panels.total(weight)
        peak = power * log_centre - (centre - mean) ** 2 / (2 * variance) - 0.5 * xp.log(2 * np.pi * variance)
        log_z = top + peak + xp.log(total)
        return TiltedNodes(panels, centre, offset, weight / total[site], power[site] * slope, log_z, mean, variance)


def reweighted(rule: TiltedNodes, step: Array) -> TiltedNodes:
    """Reweight the nodes for other cavity means: the ratio of two Gaussians is an exponential of the offset.

    Parameters
    ----------
    rule : TiltedNodes
    step : array, shape (n,)
        Changes of the cavity means, within `REACH` standard deviations.
    """
    xp = namespace(rule.centre)
    panels, mean, variance = rule.panels, rule.mean, rule.variance
    exponent = rule.offset * (step / variance)[panels.site]
    top = panels.reduce(xp.max(exponent, axis=0), "maximum")
    weight = rule.weight * xp.exp(exponent - top[panels.site])
    total = panels.total(weight)
    log_z = rule.log_z + top + xp.log(total) + step * (rule.centre - mean - step / 2) / variance
    return rule._replace(weight=weight / total[panels.site], log_z=log_z, mean=mean + step)


def moments_from_nodes(rule: TiltedNodes, *, log_concave: bool = True) -> tuple[Any, Any, Any, Any, Any]:
    """Return log Z, mean, variance, d log Z / d mean and site precision, each of shape (n,).

    The covariance of f with the slope is summed as ``(f - E f)(g - E g)``. For a log-concave t, whose g falls, the
    terms have one sign but between the mean and the place where g is E g, and their moduli add up to at most three
    times the sum: by Chebyshev's inequality on either side of the mean, ``E|f - E f| E|g - g(E f)| <= 2 |Cov[f, g]|``,
    and ``|g(E f) - E g| <= E|g - g(E f)|``. So the site precision keeps its relative accuracy where t is almost flat.
    Only where g is constant to its last digit can rounding give the other sign; with `log_concave` that is set to zero.
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
        precision = -panels.total(weighted * (rule.slope - gradient[site])) / variance
    if log_concave:
        precision = xp.maximum(precision, 0.0)
    if rule.jump is not None:
        gradient = np.where(rule.jump, (mean - rule.mean) / rule.variance, gradient)
        precision = np.where(rule.jump, 1 / variance - 1 / rule.variance, precision)
    return rule.log_z, mean, variance, gradient, precision


@lru_cache
def legendre(nodes: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights of the Gauss-Legendre rule on (0, 1)."""
    node, weight = np.polynomial.legendre.leggauss(nodes)
    return (node + 1) / 2, weight / 2


def panels_between(low: Array, high: Array, inner: Array) -> Panels:
    """Cut the intervals at the inner points, of shape (points, n), that lie inside them."""
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
    """Return an interval and its cuts, as offsets from the cavity mean, that contain every mode of the density."""
    deviation = xp.sqrt(variance)
    peak = knots[0] - mean
    reach = GAUSSIAN_CUTS[-1] * deviation
    low, high = xp.minimum(peak, 0.0) - reach, xp.maximum(peak, 0.0) + reach
    return low, high, [cut * deviation for cut in GAUSSIAN_CUTS]


def _peak_interval(
    density: Callable, mean: Array, variance: Array, power: Array, xp: ModuleType
) -> tuple[Any, Any, Any, Any]:
    """Return a point near the mode, log t there, and the offsets at which the integrand has dropped by `DROP`."""
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        centre = _mode(density, mean, variance, power, xp)
        log_centre = density(centre[None])[0][0]
        left, right = _edges(density, centre, log_centre, mean, variance, power, xp)
    return centre, log_centre, -left, right


def _mode(density: Callable, mean: Array, variance: Array, power: Array, xp: ModuleType) -> Array:
    """Find a point less than `_MODE_LOSS` nats below the maximum of the tilted density.

    Along the direction in which the density rises from the cavity mean, ``rise(d) = |d log density / d f|`` at
    distance d falls from ``g0 = rise(0) >= 0`` and is negative beyond ``v * g0``, because the slope of log t can
    only fall. The bracket is cut into several sections in each round, in distance, or in log distance while it
    spans orders of magnitude. By concavity its ends are at most ``|rise| * width`` below the maximum.
    """
    slope = power * density(mean[None])[1][0]
    deviation = xp.sqrt(variance)
    way = xp.where(slope < 0, -1.0, 1.0)
    rise = xp.abs(slope)
    # The cap keeps the first points finite where the slope at the cavity mean overflows.
    high = xp.minimum(variance * rise, 1e100 * deviation)
    low = xp.zeros_like(mean)
    part = (np.arange(1, _MODE_SECTIONS + 1) / (_MODE_SECTIONS + 1))[:, None]

    def loss(low: Array, high: Array, rise_low: Array, rise_high: Array) -> Array:
        return xp.minimum(rise_low, rise_high) * (high - low)

    def cond(state: tuple[Any, ...]) -> Array:
        *bracket, count = state
        return xp.any(loss(*bracket) > _MODE_LOSS) & (count < _MAX_SEARCH)

    def body(state: tuple[Any, ...]) -> tuple[Any, ...]:
        low, high, rise_low, rise_high, count = state
        start = xp.maximum(low, deviation / 8)
        ratio = high / start
        geometric = start * xp.exp(xp.log(xp.maximum(ratio, 1.0)) * (part - part[0]))
        point = xp.where(ratio > 16, geometric, low + (high - low) * part)
        rise = way * power * density(mean + way * point)[1] - point / variance
        beyond = ~(rise > 0)
        low, high = xp.max(xp.where(beyond, low, point), axis=0), xp.min(xp.where(beyond, point, high), axis=0)
        rise_low = xp.min(xp.where(beyond, rise_low, rise), axis=0)
        rise_high = xp.min(xp.where(beyond, -rise, rise_high), axis=0)
        return low, high, rise_low, rise_high, count + 1

    state = low, high, rise, xp.full_like(mean, np.inf), 0
    low, high, rise_low, rise_high, _ = while_loop(cond, body, state)
    return mean + way * xp.where(rise_low <= rise_high, low, high)


def _edges(
    density: Callable, centre: Array, log_centre: Array, mean: Array, variance: Array, power: Array, xp: ModuleType
) -> tuple[Any, Any]:
    """Find the distances left and right of `centre` at which the log integrand has dropped by about `DROP`.

    The Gaussian alone drops that far within ``sqrt(2 * DROP * v)``. The drop D(d) is convex in the distance, so if it
    is more than DROP there, it is less than DROP within the fraction DROP / D of that distance. From the outer end
    Newton steps on log D against log d, exact for powers of d; where one leaves the bracket, its geometric mean.
    """
    way = np.array([-1.0, 1.0])[:, None]

    def drop(distance: Array) -> tuple[Any, Any]:
        """Drop at distances of shape (2, n), and its derivative."""
        offset = way * distance
        log_t, slope = density(centre + offset)
        fall = offset * (offset + 2 * (centre - mean)) / (2 * variance) - power * (log_t - log_centre)
        growth = way * ((offset + centre - mean) / variance - power * slope)
        return xp.where(xp.isnan(fall), np.inf, fall), growth

    def cond(state: tuple[Any, ...]) -> Array:
        _, _, drop_high, _, count = state
        return xp.any(drop_high > _WIDE_DROP) & (count < _MAX_SEARCH)

    def body(state: tuple[Any, ...]) -> tuple[Any, ...]:
        low, high, drop_high, growth_high, count = state
        step = xp.log(drop_high / _AIM_DROP) * drop_high / (high * growth_high)
        point = high * xp.exp(-step)
        point = xp.where((point > low) & (point < high), point, xp.sqrt(low * high))
        point = xp.where(drop_high > _WIDE_DROP, point, high)
        fall, growth = drop(point)
        beyond = fall >= DROP
        low, high = xp.where(beyond, low, point), xp.where(beyond, point, high)
        return low, high, xp.where(beyond, fall, drop_high), xp.where(beyond, growth, growth_high), count + 1

    high = xp.sqrt(2 * DROP * variance) * np.ones((2, 1))
    drop_high, growth_high = drop(high)
    low = high * xp.clip(DROP / drop_high, 1e-12, 1.0)
    _, high, *_ = while_loop(cond, body, (low, high, drop_high, growth_high, 0))
    return high[0], high[1]
