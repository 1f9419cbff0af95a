"""A look at an integrand of unknown shape, from which it is seen whether it has one peak, where, and how wide.

The log integrand and its slope are taken on a grid that is fine near the cavity and doubles outwards. Between two
points where the slope turns from up to down lies a peak, however narrow. What escapes the grid is a peak that no slope
on it points to (a second, narrow one on the flank of a first), and a support that fits between two points (a quarter of
a cavity standard deviation apart at the centre, half as far as the cavity mean further out).
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from pymc_ep.numerics.quadrature.gauss_legendre import LogDensity

__all__ = [
    "NEAR",
    "Integrand",
    "Peak",
    "Survey",
    "around",
    "first_false",
    "has_one_peak",
    "integrand_of",
    "is_near",
    "left_out",
    "sectioned",
    "single_peak",
    "slopes_beside",
    "surveyed",
]

_CLOSE_BY = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.5, 8.0, 9.5)
_FAR = tuple(9.5 * 2.0**k for k in range(1, 21))
_GRID = np.array([*(-np.array(_CLOSE_BY + _FAR))[::-1], 0.0, *_CLOSE_BY, *_FAR])[:, None]
"""Cavity standard deviations at which the integrand is looked at, up to 1e7."""

_UNIT = np.flatnonzero(np.abs(_GRID) == 1)

NEAR = 9.5
"""Cavity standard deviations beyond which the cavity alone leaves nothing: exp(-9.5**2 / 2) is 3e-20."""
_BESIDE, _LOW = 6.5, 18.0
"""Cavity standard deviations from where on an integrand that is a peak near the centre is so many nats below it."""
_COUNTS = 40.0
"""Nats below the highest point within which changes between points are looked at."""
_MARGIN = 0.1
"""In nats, and relative: what a slope that is not monotone may change beyond its ends."""

_SECTIONS = 15
"""Points at which one round of a search cuts an interval: four bits, for about the price of one point."""
_ROUNDS = 12
_ENCLOSED = 0.25
"""Nats by which the tangents at the ends of a bracket rise over it when the peak between them counts as found."""


class Survey(NamedTuple):
    """The integrand of n sites on the grid, all of shape (points, n).

    Attributes
    ----------
    offset : ndarray
        Distances from the cavity mean.
    level, rise : ndarray
        Log integrand, minus infinity where t is not defined, and its slope.
    """

    offset: np.ndarray
    level: np.ndarray
    rise: np.ndarray

    def of(self, sites: np.ndarray) -> "Survey":
        """Return what was seen of some of the sites."""
        return Survey(*(values[:, sites] for values in self))


class Peak(NamedTuple):
    """The one peak of the integrand, (n,) each: its place as an offset from the cavity mean, and its width.

    The width is ``(-curvature)**-0.5``; both are good enough to place nodes, and not exact.
    """

    offset: np.ndarray
    width: np.ndarray


Integrand = Callable[..., tuple[np.ndarray, np.ndarray]]


def integrand_of(
    log_density: LogDensity, y: Any, mean: Any, variance: Any, power: Any, parameters: Sequence[Any]
) -> Integrand:
    """Return ``integrand(offset, sites)``: its log and slope at offsets (k, m) from the cavity means of m sites."""

    def integrand(offset: np.ndarray, sites: Any = slice(None)) -> tuple[np.ndarray, np.ndarray]:
        spread = variance[sites]
        log_t, slope = log_density(mean[sites] + offset, y[sites], *(values[sites] for values in parameters))
        return power[sites] * log_t - offset**2 / (2 * spread), power[sites] * slope - offset / spread

    return integrand


def surveyed(
    log_density: LogDensity,
    y: np.ndarray,
    mean: np.ndarray,
    variance: np.ndarray,
    power: np.ndarray,
    *parameters: np.ndarray,
    also: np.ndarray,
) -> tuple[Survey, np.ndarray, np.ndarray]:
    """Evaluate the integrand on the grid, and log t and its slope at other points in the same call.

    Parameters
    ----------
    log_density : callable
        One that `scan.defined` returned.
    y, mean, variance, power, *parameters : ndarray, shape (n,)
    also : ndarray, shape (k,)
        The other points, in cavity standard deviations.

    Returns
    -------
    Survey
    log_t, slope : ndarray, shape (k, n)
    """
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        offset = np.concatenate([_GRID, also[:, None]]) * np.sqrt(variance)
        log_t, slope = log_density(mean + offset, y, *parameters)
        grid = offset[: len(_GRID)]
        level = power * log_t[: len(_GRID)] - grid**2 / (2 * variance)
        seen = Survey(grid, level, power * slope[: len(_GRID)] - grid / variance)
    return seen, log_t[len(_GRID) :], slope[len(_GRID) :]


def has_one_peak(seen: Survey) -> np.ndarray:
    """Whether the grid sees one peak of the integrand, (n,), and nothing between its points.

    Over an interval on which the slope is monotone the integrand changes by less than its steeper end says. Where it
    changes by more the interval hides a peak or an edge, though slopes at its ends may be those of the cavity.
    """
    with np.errstate(invalid="ignore"):
        change = np.abs(np.diff(seen.level, axis=0))
    steeper = np.maximum(np.abs(seen.rise[:-1]), np.abs(seen.rise[1:])) * np.diff(seen.offset, axis=0)
    counts = np.maximum(seen.level[:-1], seen.level[1:]) > seen.level.max(axis=0) - _COUNTS
    hidden = counts & (change > (1 + _MARGIN) * steeper + _MARGIN)
    return (_turns(seen.rise).sum(axis=0) == 1) & ~hidden.any(axis=0)


def _turns(rise: np.ndarray) -> np.ndarray:
    """Whether a slope turns from up to down between each point and the next."""
    return (rise[:-1] > 0) & (rise[1:] <= 0)


def is_near(seen: Survey) -> np.ndarray:
    """Whether all that the grid sees of the integrand is under the cavity's own peak, (n,)."""
    near = np.abs(_GRID[:, 0]) <= NEAR
    beside = np.abs(_GRID[:, 0]) > _BESIDE
    whole = np.isfinite(seen.level[near]).all(axis=0)
    return whole & (seen.level[beside].max(axis=0) < seen.level.max(axis=0) - _LOW)


def slopes_beside(seen: Survey, variance: np.ndarray) -> np.ndarray:
    """Return the slopes of log t**power a cavity standard deviation left and right of the mean, (2, n)."""
    return seen.rise[_UNIT] + seen.offset[_UNIT] / variance


def single_peak(integrand: Integrand, seen: Survey, sites: np.ndarray) -> tuple[np.ndarray, Peak]:
    """Return those of some sites with one peak, by `has_one_peak`, where it was enclosed, and where that is."""
    place = np.argmax(_turns(seen.rise[:, sites]), axis=0)
    low, high = seen.offset[place, sites], seen.offset[place + 1, sites]
    up, down = seen.rise[place, sites], seen.rise[place + 1, sites]
    for _ in range(_ROUNDS):
        wide = np.flatnonzero(np.maximum(up, -down) * (high - low) > _ENCLOSED)
        if not wide.size:
            break
        point = sectioned(low[wide], high[wide])
        rise = integrand(point, sites[wide])[1]
        at = first_false(rise > 0)
        low[wide], high[wide] = around(at, low[wide], point, high[wide])
        up[wide], down[wide] = around(at, up[wide], rise, down[wide])
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        curvature = (up - down) / (high - low)
        peak = Peak(low + up / curvature, curvature**-0.5)
        good = (np.maximum(up, -down) * (high - low) <= _ENCLOSED) & (curvature > 0)
    return sites[good], Peak(*(values[good] for values in peak))


def left_out(seen: Survey, peak: Peak, ends: np.ndarray, density: np.ndarray, log_mass: np.ndarray) -> np.ndarray:
    """Bound what intervals that hold the only peak leave out of mass and variance, relative to these, (n,).

    Beyond them the integrand falls, as far as the grid sees: between two points it is below its value at the inner one.

    Parameters
    ----------
    seen : Survey
    peak : Peak
        The integrand is weighed with ``1 + z**2``, z the distance from this offset in this width.
    ends : ndarray, shape (2, n)
        Of the intervals, as offsets from the cavity mean.
    density : ndarray, shape (2, n)
        Integrand over mass there.
    log_mass : ndarray, shape (n,)
        Log of the integral of the integrand.
    """
    low, high = ends
    left, right = seen.offset[:-1], seen.offset[1:]
    value = np.exp(seen.level - log_mass)
    below = np.maximum(np.minimum(right, low) - left, 0) * np.where(right <= low, value[1:], density[0])
    above = np.maximum(right - np.maximum(left, high), 0) * np.where(left >= high, value[:-1], density[1])
    weight = 1 + (np.where(right <= peak.offset, left, right) - peak.offset) ** 2 / peak.width**2
    return ((below + above) * weight).sum(axis=0)


def sectioned(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Return the points that cut intervals into equal parts, (points, n)."""
    return low + (high - low) * (np.arange(1, _SECTIONS + 1) / (_SECTIONS + 1))[:, None]


def first_false(condition: np.ndarray) -> np.ndarray:
    """Return the first row in which each column is false, or the number of rows."""
    return np.where(condition.all(axis=0), len(condition), np.argmin(condition, axis=0))


def around(row: np.ndarray, first: np.ndarray, inner: np.ndarray, last: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return each column's values before and at a row of `inner`, between `first` and `last`."""
    whole = np.concatenate([first[None], inner, last[None]])
    columns = np.arange(len(row))
    return whole[row, columns], whole[row + 1, columns]
