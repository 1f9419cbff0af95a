"""The interval that holds the mass of a tilted density with a log-concave site: its mode, and edges on either side."""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np

from pymc_ep.numerics.backend.namespace import Array, while_loop

__all__ = ["DROP", "peak_interval"]

DROP = 40.0
"""Nats below the maximum at which the integrand is cut off; exp(-40) is 4e-18."""

_WIDE_DROP = 60.0
"""Largest drop at an edge, in nats, at which the search for the edge ends: a panel is then at most 1.5 times too long
if log t is linear."""

_AIM_DROP = 48.0
"""Drop at which the Newton steps to an edge aim, in nats: between `DROP` and `_WIDE_DROP`, so that the drop at the
edge is between them despite rounding and curvature."""

_MODE_LOSS = 0.5
"""Largest difference of the log density, in nats, between its maximum and the point that is taken as the mode. This
point is only used as a cut between panels."""

_MODE_SECTIONS = 6
"""Number of points at which one round of the search for the mode cuts its bracket: evaluated at once, they save
rounds."""
_MAX_SEARCH = 60
"""Largest number of rounds of a search, which ends a search among values that are not finite. Searches among finite
values needed nine rounds at most."""


def peak_interval(
    density: Callable, mean: Array, variance: Array, power: Array, xp: ModuleType
) -> tuple[Any, Any, Any, Any]:
    """Return a point near the mode of the integrand N(f; mean, variance) t(f)**power, log t there, and two offsets.

    At the offsets, left and right of the point, the log integrand is about `DROP` to `_WIDE_DROP`, 40 to 60 nats, below
    its value at the point. All results are (n,). ``density(f)`` returns log t and its derivative, (k, n), at f, (k, n).
    """
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        centre = _mode(density, mean, variance, power, xp)
        log_centre = density(centre[None])[0][0]
        left, right = _edges(density, centre, log_centre, mean, variance, power, xp)
    return centre, log_centre, -left, right


def _mode(density: Callable, mean: Array, variance: Array, power: Array, xp: ModuleType) -> Array:
    """Return points, (n,), at which the log tilted density is less than `_MODE_LOSS` nats below its maximum.

    Let ``rise(d)`` be the derivative of the log density in the distance d from the cavity mean, in the direction in
    which the density rises there. It falls from ``g0 = rise(0) >= 0`` and is negative beyond ``v * g0``, because the
    slope of log t can only fall. Each round cuts the bracket of the mode into several sections of distance, or of log
    distance while the bracket spans orders of magnitude. By concavity the log density at an end of the bracket is at
    most ``|rise| * width`` below its maximum.
    """
    slope = power * density(mean[None])[1][0]
    deviation = xp.sqrt(variance)
    way = xp.where(slope < 0, -1.0, 1.0)
    rise = xp.abs(slope)
    # The cap keeps the first points finite where the slope at the cavity mean overflows.
    high = xp.minimum(variance * rise, 1e100 * deviation)
    low = xp.zeros_like(mean)
    fractions = (np.arange(1, _MODE_SECTIONS + 1) / (_MODE_SECTIONS + 1))[:, None]

    def loss(low: Array, high: Array, rise_low: Array, rise_high: Array) -> Array:
        return xp.minimum(rise_low, rise_high) * (high - low)

    def cond(state: tuple[Any, ...]) -> Array:
        *bracket, count = state
        return xp.any(loss(*bracket) > _MODE_LOSS) & (count < _MAX_SEARCH)

    def body(state: tuple[Any, ...]) -> tuple[Any, ...]:
        low, high, rise_low, rise_high, count = state
        start = xp.maximum(low, deviation / 8)
        ratio = high / start
        geometric = start * xp.exp(xp.log(xp.maximum(ratio, 1.0)) * (fractions - fractions[0]))
        point = xp.where(ratio > 16, geometric, low + (high - low) * fractions)
        # Slope of the log density in the distance d: way p g - d / v, for g the slope of log t at m + way d.
        rise = way * power * density(mean + way * point)[1] - point / variance
        beyond = ~(rise > 0)
        low, high = xp.max(xp.where(beyond, low, point), axis=0), xp.min(xp.where(beyond, point, high), axis=0)
        rise_low = xp.min(xp.where(beyond, rise_low, rise), axis=0)
        # Far beyond the mode a density may be too small to have a slope, which says nothing about how far.
        rise_high = xp.min(xp.where(beyond, xp.where(xp.isnan(rise), np.inf, -rise), rise_high), axis=0)
        return low, high, rise_low, rise_high, count + 1

    state = low, high, rise, xp.full_like(mean, np.inf), 0
    low, high, rise_low, rise_high, _ = while_loop(cond, body, state)
    return mean + way * xp.where(rise_low <= rise_high, low, high)


def _edges(
    density: Callable, centre: Array, log_centre: Array, mean: Array, variance: Array, power: Array, xp: ModuleType
) -> tuple[Any, Any]:
    """Return distances, (n,), left and right of `centre`, at which the log integrand is lower by about 40 to 60 nats.

    The Gaussian alone drops by `DROP` within ``sqrt(2 * DROP * v)``, the first outer end of a bracket. As the drop D(d)
    is convex in the distance d, it is less than DROP within the fraction DROP / D of this distance, the first inner
    end. Newton steps on log D as a function of log d begin at the outer end; they are exact where D is a power of d. A
    step out of the bracket is replaced by the geometric mean of the bracket's ends.
    """
    way = np.array([-1.0, 1.0])[:, None]

    def drop(distance: Array) -> tuple[Any, Any]:
        """Return the drop of the log integrand at distances, (2, n), and its derivative in the distance, (2, n)."""
        offset = way * distance
        log_t, slope = density(centre + offset)
        # D = ((f - m)^2 - (c - m)^2) / (2 v) - p (log t(f) - log t(c)) at f = c + offset, and dD / d distance.
        fall = offset * (offset + 2 * (centre - mean)) / (2 * variance) - power * (log_t - log_centre)
        growth = way * ((offset + centre - mean) / variance - power * slope)
        return xp.where(xp.isnan(fall), np.inf, fall), growth

    def cond(state: tuple[Any, ...]) -> Array:
        _, _, drop_high, _, count = state
        return xp.any(drop_high > _WIDE_DROP) & (count < _MAX_SEARCH)

    def body(state: tuple[Any, ...]) -> tuple[Any, ...]:
        low, high, drop_high, growth_high, count = state
        # Newton step in log d to D = aim: d log D / d log d = d D' / D.
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
