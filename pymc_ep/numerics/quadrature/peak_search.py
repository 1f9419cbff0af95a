"""Search for the peaks of an integrand of unknown shape on a grid: their number, places and widths.

The grid holds the log integrand and its slope. It is fine near the cavity mean and doubles outwards. A change of the
slope from positive to negative between two points brackets a peak, however narrow. The grid misses a narrow second peak
on the flank of a first, and a support that fits between two points. Neighbouring points are a quarter of a cavity
standard deviation apart at the centre, and half their distance from the cavity mean further out.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from pymc_ep.numerics.backend.namespace import Array
from pymc_ep.numerics.quadrature.gauss_legendre import LogDensity

__all__ = [
    "GRID",
    "NEAR",
    "Integrand",
    "Peak",
    "Survey",
    "beside_support",
    "bracket_at",
    "first_false",
    "has_one_peak",
    "integrand_of",
    "is_near",
    "section_points",
    "share_outside",
    "single_peak",
    "slopes_beside",
    "surveyed",
]

_CLOSE_BY = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.5, 8.0, 9.5)
_FAR = tuple(9.5 * 2.0**k for k in range(1, 21))
GRID = np.array([*(-np.array(_CLOSE_BY + _FAR))[::-1], 0.0, *_CLOSE_BY, *_FAR])
"""The grid, in cavity standard deviations from the cavity mean, up to 1e7."""

_UNIT = np.flatnonzero(np.abs(GRID) == 1)
"""Rows of the grid one cavity standard deviation left and right of the mean."""

NEAR = 9.5
"""Cavity standard deviations beyond which the cavity density is negligible: exp(-9.5**2 / 2) is 3e-20."""
_BESIDE, _LOW = 6.5, 18.0
"""Distance, in cavity standard deviations, and drop, in nats. The peak of an integrand is near the cavity mean if the
integrand beyond this distance is lower than its maximum by more than this drop: 6.5**2 / 2 is 21."""
_TESTED_DROP = 40.0
"""Drop below the highest point, in nats, within which changes between points are tested: exp(-40) is 4e-18."""
_MARGIN = 0.1
"""Excess of a change between two points over slope times distance, in nats and relative, that is still tolerated: it
allows for slopes that are not quite monotone."""

_SECTIONS = 15
"""Number of points at which one round of a search cuts an interval: it gains four bits, at about the cost of one
evaluation."""
_ROUNDS = 12
"""Largest number of rounds of a search, 48 bits in all."""
_ENCLOSED = 0.25
"""Width of a bracket times the steeper slope at its ends, in nats, at which the peak in the bracket counts as located:
good enough to place nodes."""


class Survey(NamedTuple):
    """The integrand of n sites on the grid, (points, n) each.

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
        """Return the survey of the sites at indices `sites`, (m,)."""
        return Survey(*(values[:, sites] for values in self))


class Peak(NamedTuple):
    """The one peak of the integrand, (n,) each: its place as an offset from the cavity mean, and its width.

    The width is ``(-curvature)**-0.5``. Place and width need only be good enough to place nodes by them.
    """

    offset: np.ndarray
    width: np.ndarray


Integrand = Callable[..., tuple[np.ndarray, np.ndarray]]
"""``integrand(offset, sites)`` returns the log integrand and its slope; see `integrand_of`."""


def integrand_of(
    log_density: LogDensity, y: Array, mean: Array, variance: Array, power: Array, parameters: Sequence[Any]
) -> Integrand:
    """Return the function ``integrand(offset, sites)``; `sites` are the indices of m sites, by default all.

    At offsets, (k, m), from their cavity means it returns the log integrand and its slope, (k, m) each.
    """

    def integrand(offset: np.ndarray, sites: Array = slice(None)) -> tuple[np.ndarray, np.ndarray]:
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
    """Evaluate the integrand on the grid, and log t and its slope at `also`, in one call of the density.

    Parameters
    ----------
    log_density : callable
        A result of `multimodal.defined`.
    y, mean, variance, power, *parameters : ndarray, shape (n,)
        Observations, cavity moments, powers of t, and the density's parameters.
    also : ndarray, shape (k,)
        The other points, in cavity standard deviations from the cavity mean.

    Returns
    -------
    Survey
    log_t, slope : ndarray, shape (k, n)
    """
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        offset = np.concatenate([GRID, also])[:, None] * np.sqrt(variance)
        log_t, slope = log_density(mean + offset, y, *parameters)
        grid = offset[: len(GRID)]
        level = power * log_t[: len(GRID)] - grid**2 / (2 * variance)
        seen = Survey(grid, level, power * slope[: len(GRID)] - grid / variance)
    return seen, log_t[len(GRID) :], slope[len(GRID) :]


def has_one_peak(seen: Survey) -> np.ndarray:
    """Whether each integrand, (n,), has one peak on the grid, and no peak hidden between grid points.

    Where its slope is monotone between two points, the log integrand changes by less than their distance times the
    steeper slope. A larger change shows a hidden peak or edge, even if the slopes at both points are the cavity's.
    """
    with np.errstate(invalid="ignore"):
        change = np.abs(np.diff(seen.level, axis=0))
    steeper = np.maximum(np.abs(seen.rise[:-1]), np.abs(seen.rise[1:])) * np.diff(seen.offset, axis=0)
    counts = np.maximum(seen.level[:-1], seen.level[1:]) > seen.level.max(axis=0) - _TESTED_DROP
    hidden = counts & (change > (1 + _MARGIN) * steeper + _MARGIN)
    return (_peak_brackets(seen.rise).sum(axis=0) == 1) & ~hidden.any(axis=0)


def _peak_brackets(rise: np.ndarray) -> np.ndarray:
    """Whether the slope changes from positive to negative between each point and the next, (points - 1, n)."""
    return (rise[:-1] > 0) & (rise[1:] <= 0)


def is_near(seen: Survey) -> np.ndarray:
    """Whether each integrand, (n,), is defined near the cavity mean, and is far below its maximum elsewhere."""
    near = np.abs(GRID) <= NEAR
    beside = np.abs(GRID) > _BESIDE
    whole = np.isfinite(seen.level[near]).all(axis=0)
    return whole & (seen.level[beside].max(axis=0) < seen.level.max(axis=0) - _LOW)


def beside_support(seen: Survey) -> np.ndarray:
    """Whether t is undefined at a grid point, defined at a neighbour, and both points may matter, (points, n)."""
    top = seen.level.max(axis=0) - _TESTED_DROP
    high, undefined = seen.level > top, np.isneginf(seen.level)
    beside = np.zeros_like(high)
    beside[1:] |= high[:-1]
    beside[:-1] |= high[1:]
    # Where log t is at most about zero, the cavity alone bounds the integrand.
    return undefined & beside & (top < -0.5 * GRID[:, None] ** 2)


def slopes_beside(seen: Survey, variance: np.ndarray) -> np.ndarray:
    """Return the slopes of log t**power a cavity standard deviation left and right of the mean, (2, n)."""
    # The integrand's slope without the Gaussian's, -offset / v.
    return seen.rise[_UNIT] + seen.offset[_UNIT] / variance


def single_peak(integrand: Integrand, seen: Survey, sites: np.ndarray) -> tuple[np.ndarray, Peak]:
    """Locate the one peak of each of `sites`; return the sites where the search succeeds, and their peaks."""
    place = np.argmax(_peak_brackets(seen.rise[:, sites]), axis=0)
    low, high = seen.offset[place, sites], seen.offset[place + 1, sites]
    up, down = seen.rise[place, sites], seen.rise[place + 1, sites]
    for _ in range(_ROUNDS):
        wide = np.flatnonzero(np.maximum(up, -down) * (high - low) > _ENCLOSED)
        if not wide.size:
            break
        point = section_points(low[wide], high[wide])
        rise = integrand(point, sites[wide])[1]
        at = first_false(rise > 0)
        low[wide], high[wide] = bracket_at(at, low[wide], point, high[wide])
        up[wide], down[wide] = bracket_at(at, up[wide], rise, down[wide])
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        # Secant of the slope, which falls by `curvature` a unit and is zero at low + up / curvature.
        curvature = (up - down) / (high - low)
        peak = Peak(low + up / curvature, curvature**-0.5)
        good = (np.maximum(up, -down) * (high - low) <= _ENCLOSED) & (curvature > 0)
    return sites[good], Peak(*(values[good] for values in peak))


def share_outside(seen: Survey, peak: Peak, ends: np.ndarray, density: np.ndarray, log_mass: np.ndarray) -> np.ndarray:
    """Return bounds, (n,), on the shares of mass and variance outside intervals that hold the only peak.

    Outside an interval the integrand falls, so far as the grid shows: between two grid points it is below its value at
    the inner point.

    Parameters
    ----------
    seen : Survey
    peak : Peak
        The integrand is weighted by ``1 + z**2``, where z is the distance from the peak in units of its width.
    ends : ndarray, shape (2, n)
        Ends of the intervals, as offsets from the cavity mean.
    density : ndarray, shape (2, n)
        Integrand at the ends, divided by its integral.
    log_mass : ndarray, shape (n,)
        Log of the integral of the integrand.
    """
    low, high = ends
    left, right = seen.offset[:-1], seen.offset[1:]
    value = np.exp(seen.level - log_mass)
    # Length of an interval's part outside, times the integrand at its inner end, where it is largest.
    below = np.maximum(np.minimum(right, low) - left, 0) * np.where(right <= low, value[1:], density[0])
    above = np.maximum(right - np.maximum(left, high), 0) * np.where(left >= high, value[:-1], density[1])
    weight = 1 + (np.where(right <= peak.offset, left, right) - peak.offset) ** 2 / peak.width**2
    return ((below + above) * weight).sum(axis=0)


def section_points(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Return the points, (points, n), that cut each interval from `low` to `high`, (n,), into equal parts."""
    return low + (high - low) * (np.arange(1, _SECTIONS + 1) / (_SECTIONS + 1))[:, None]


def first_false(condition: np.ndarray) -> np.ndarray:
    """Return the first row, (n,), at which each column is false; the number of rows for a column that is all true."""
    return np.where(condition.all(axis=0), len(condition), np.argmin(condition, axis=0))


def bracket_at(
    row: np.ndarray, first: np.ndarray, inner: np.ndarray, last: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the values of `inner`, (k, n), just before and at each column's `row`, (n,) each.

    `first`, (n,), is the value before row 0, and `last`, (n,), the value at row k.
    """
    whole = np.concatenate([first[None], inner, last[None]])
    columns = np.arange(len(row))
    return whole[row, columns], whole[row + 1, columns]
