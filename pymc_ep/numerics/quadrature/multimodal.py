"""Quadrature for a log density of unknown shape and scale, perhaps with several peaks.

`gauss_legendre.tilted_nodes` relies on properties that a site declares: log-concavity, or the knots of its scales. Here
peaks and ends of the support are searched for instead, on the grid of `peak_search`. A peak is bracketed where the
slope changes from positive to negative, and an end of the support between two grid points. Panels break at these
points, and at distances from each peak that grow geometrically from its width. Panels are halved until their Legendre
coefficients have decayed.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from pymc_ep.numerics.backend.namespace import Array
from pymc_ep.numerics.quadrature.gauss_legendre import (
    GAUSSIAN_CUTS,
    LogDensity,
    Panels,
    TiltedNodes,
    jumps,
    legendre,
    panel_values,
    panels_between,
    weighed,
)
from pymc_ep.numerics.quadrature.peak_search import (
    Integrand,
    Survey,
    bracket_at,
    first_false,
    integrand_of,
    section_points,
)

__all__ = ["defined", "scanned_nodes"]

_PEAKS = 3
"""Largest number of peaks that are bracketed, the highest on the grid first. Panels near other peaks are halved until
the peaks are resolved."""

_ROUNDS = 13
"""Largest number of rounds of a search, four bits each: 52 bits, the digits of a double."""
_SETTLED = 1e-11
"""Change of slope over a bracket times its width, in nats, at which a peak counts as located. Where the slope is
continuous any break near the peak is good enough; a kink is then located to this share of its scale."""
_WIDTH_ROUNDS = 2
"""Number of rounds of the search for a width, four bits each, over 44 octaves: right to a fifth of an octave."""
_WIDEST, _NARROWEST = 2.0**4, 2.0**-40
"""Bounds of the width of a peak, in cavity standard deviations: 16 and 1e-12, the latter near rounding."""

_BREAK_RATIO = 8.0
"""Ratio of the distances from a peak at which panels break: more breaks cost panels, fewer cost halvings."""
_DROP = 60.0
"""Drop below the highest point of the grid, in nats, at which the interval of integration may end: exp(-60) is
9e-27."""
_TAIL_COEFFICIENTS = 4
"""Number of last Legendre coefficients of a panel that are tested: one or two alone may vanish by symmetry."""
_TOLERANCE = 1e-9
"""Largest sum of the moduli of the tested coefficients, as a share of the mass of the site. Where the integrand is
analytic the error of the rule is about the square of this sum, since n nodes are exact to degree 2 n - 1."""
_HALVINGS = 30
"""Largest number of rounds of halving, to 1e-9 of a panel: a jump of t is then enclosed in a panel of no mass."""
_MOST_PANELS = 1024
"""Number of panels of a site from which none of its panels is halved. A peak or a jump takes two panels a round, but
where a density has lost its digits every half is as rough as the whole."""


def defined(log_density: LogDensity, highest: float = np.inf) -> LogDensity:
    """Return a log density: minus infinity, of slope zero, where `log_density` is not finite or above `highest`.

    A slope that is not finite is replaced by zero too.
    """

    def density(f: Array, y: Array, *parameters: Array) -> tuple[Any, Any]:
        log_t, slope = log_density(f, y, *parameters)
        good = np.isfinite(log_t) & (log_t <= highest)
        return np.where(good, log_t, -np.inf), np.where(good & np.isfinite(slope), slope, 0.0)

    return density


class _Intervals(NamedTuple):
    """Highest peak `centre` of each site, (n,), and, as offsets from it, the interval's ends and breaks of panels."""

    centre: np.ndarray
    low: np.ndarray
    high: np.ndarray
    breaks: np.ndarray


def scanned_nodes(
    log_density: LogDensity,
    y: np.ndarray,
    mean: np.ndarray,
    variance: np.ndarray,
    power: np.ndarray,
    parameters: Sequence[np.ndarray] = (),
    *,
    seen: Survey,
    nodes: int = 24,
) -> TiltedNodes:
    """Return the nodes and weights of an adaptive Gauss-Legendre rule for the tilted density of each site.

    For arguments and result see `gauss_legendre.tilted_nodes`, all NumPy arrays. `log_density` is a result of
    `defined`, and `seen` one of `peak_search.surveyed`.
    """
    with np.errstate(invalid="ignore", over="ignore", divide="ignore", under="ignore"):
        intervals = _search(integrand_of(log_density, y, mean, variance, power, parameters), seen, mean, variance)
        log_centre = log_density(intervals.centre[None], y, *parameters)[0][0]
        panels = panels_between(intervals.low, intervals.high, intervals.breaks)

        def evaluate(panels: Panels) -> tuple[Any, Any, Any]:
            return panel_values(log_density, panels, intervals.centre, log_centre, y, parameters, nodes)

        values = evaluate(panels)
        for _ in range(_HALVINGS):
            rule = weighed(panels, *values, intervals.centre, log_centre, mean, variance, power)
            rough = _unresolved(rule) & (np.bincount(panels.site)[panels.site] < _MOST_PANELS)
            if not rough.any():
                break
            panels, values = _halved(panels, values, rough, evaluate)
        jump = jumps(rule)
    return rule._replace(jump=jump if jump.any() else None)


def _search(integrand: Integrand, seen: Survey, mean: np.ndarray, variance: np.ndarray) -> _Intervals:
    deviation = np.sqrt(variance)
    grid, level, _ = seen
    peaks, heights = _peaks(integrand, seen)
    top = np.maximum(level.max(axis=0), heights[0])
    high_up = level > top - _DROP
    low_end, high_end = _ends(integrand, seen, high_up)
    width = _widths(integrand, peaks, heights, deviation)
    breaks_near_peaks = _geometric_breaks(peaks, width, deviation)
    some = high_up.any(axis=0)
    count = len(grid)
    first = np.where(some, np.argmax(high_up, axis=0), count // 2)
    last = np.where(some, count - 1 - np.argmax(high_up[::-1], axis=0), count // 2)
    columns = np.arange(grid.shape[1])
    low = np.minimum(grid[np.maximum(first - 1, 0), columns], peaks.min(axis=0) - width.max(axis=(0, 1)) * _BREAK_RATIO)
    high = np.maximum(
        grid[np.minimum(last + 1, count - 1), columns], peaks.max(axis=0) + width.max(axis=(0, 1)) * _BREAK_RATIO
    )
    low, high = np.maximum(low, low_end), np.minimum(high, high_end)
    centre = peaks[0]
    breaks = np.concatenate([np.array(GAUSSIAN_CUTS)[:, None] * deviation, peaks, breaks_near_peaks]) - centre
    return _Intervals(mean + centre, low - centre, high - centre, breaks)


def _peaks(integrand: Integrand, seen: Survey) -> tuple[np.ndarray, np.ndarray]:
    """Return offsets and heights of up to `_PEAKS` local maxima, (peaks, n), the highest first.

    With fewer maxima, the highest grid point takes their places.
    """
    grid, level, rise = seen
    finite = np.isfinite(level)
    up, down = (finite & (rise > 0)) | ~finite, (finite & (rise <= 0)) | ~finite
    turns = up[:-1] & down[1:] & (finite[:-1] | finite[1:])
    begin = np.where(turns, np.maximum(level[:-1], level[1:]), -np.inf)
    order = np.argsort(-begin, axis=0)[:_PEAKS]
    columns = np.arange(grid.shape[1])
    best = np.argmax(level, axis=0)
    peaks, heights = (np.tile(values[best, columns], (_PEAKS, 1)) for values in (grid, level))
    row, sites = np.nonzero(turns[order, columns])
    place = order[row, sites]
    peaks[row, sites], heights[row, sites] = _enclosed(integrand, seen, place, sites)
    first = np.argsort(-heights, axis=0, kind="stable")
    return peaks[first, columns], heights[first, columns]


def _enclosed(integrand: Integrand, seen: Survey, place: np.ndarray, sites: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return offsets and heights, (m,), of the peaks between the grid points `place` and `place` + 1 of `sites`."""
    (low, high), (level_low, level_high), (up, down) = (
        (field[place, sites], field[place + 1, sites]) for field in seen
    )
    for _ in range(_ROUNDS):
        smooth = np.isfinite(level_low) & np.isfinite(level_high) & (up >= 0) & (down <= 0)
        open_ = np.flatnonzero(~(smooth & ((up - down) * (high - low) <= _SETTLED)))
        if not open_.size:
            break
        point = section_points(low[open_], high[open_])
        level, rise = integrand(point, sites[open_])
        # Where the density is not defined, the peak lies towards the end of the bracket where it is.
        upwards = np.where(np.isfinite(level), rise > 0, level_high[open_] >= level_low[open_])
        at = first_false(upwards)
        low[open_], high[open_] = bracket_at(at, low[open_], point, high[open_])
        level_low[open_], level_high[open_] = bracket_at(at, level_low[open_], level, level_high[open_])
        up[open_], down[open_] = bracket_at(at, up[open_], rise, down[open_])
    return np.where(level_low >= level_high, low, high), np.maximum(level_low, level_high)


def _ends(integrand: Integrand, seen: Survey, high_up: np.ndarray) -> np.ndarray:
    """Return the ends of the support, (2, n), where they matter; else minus or plus infinity.

    They matter where the outermost grid point in the support is `high_up`, (points, n): within `_DROP` of the maximum.
    """
    finite = np.isfinite(seen.level)
    columns, count = np.arange(finite.shape[1]), len(finite)
    first, last = np.argmax(finite, axis=0), count - 1 - np.argmax(finite[::-1], axis=0)
    inside = np.stack([seen.offset[first, columns], seen.offset[last, columns]])
    beyond = [np.maximum(first - 1, 0), np.minimum(last + 1, count - 1)]
    outside = np.stack([seen.offset[row, columns] for row in beyond])
    bounded = np.stack([first > 0, last < count - 1]) & finite.any(axis=0)
    bounded &= np.stack([high_up[first, columns], high_up[last, columns]])
    end, sites = np.nonzero(bounded)
    near, far = inside[end, sites], outside[end, sites]
    for _ in range(_ROUNDS if sites.size else 0):
        point = section_points(near, far)
        near, far = bracket_at(first_false(np.isfinite(integrand(point, sites)[0])), near, point, far)
    ends = np.tile(np.array([-np.inf, np.inf])[:, None], len(columns))
    ends[end, sites] = near
    return ends


def _widths(integrand: Integrand, peaks: np.ndarray, heights: np.ndarray, deviation: np.ndarray) -> np.ndarray:
    """Return distances, (2, peaks, n), left and right of each peak, at which the log integrand has dropped by one."""
    # Sides, then peaks, then sites in one row.
    way = np.repeat([-1.0, 1.0], peaks.size)
    peak, height = np.tile(peaks.ravel(), 2), np.tile(heights.ravel(), 2)
    sites = np.tile(np.arange(peaks.shape[1]), 2 * len(peaks))
    low, high = np.full(len(way), np.log(_NARROWEST)), np.full(len(way), np.log(_WIDEST))
    for _ in range(_WIDTH_ROUNDS):
        middle = section_points(low, high)
        level = integrand(peak + way * np.exp(middle) * deviation[sites], sites)[0]
        low, high = bracket_at(first_false(level > height - 1), low, middle, high)
    width = np.exp(high).reshape(2, *peaks.shape) * deviation
    # Next to an end of the support the width of one side is zero; halving resolves it.
    return np.maximum(width, 1e-6 * width.max(axis=0))


def _geometric_breaks(peaks: np.ndarray, width: np.ndarray, deviation: np.ndarray) -> np.ndarray:
    """Return breaks, (breaks, n), at distances from each peak that grow from its width to 16 cavity deviations."""
    steps = int(np.ceil(np.log(np.max(_WIDEST * deviation / width)) / np.log(_BREAK_RATIO)))
    factors = _BREAK_RATIO ** np.arange(max(steps, 0) + 1)[:, None, None]
    return np.concatenate([peaks - factors * width[0], peaks + factors * width[1]]).reshape(-1, peaks.shape[1])


def _unresolved(rule: TiltedNodes) -> np.ndarray:
    """Whether the last Legendre coefficients of each panel are too large, (panels,).

    The integrand is weighted by ``1 + z**2``, z the distance from the tilted mean in tilted standard deviations, so
    that the variance is resolved as well.
    """
    site = rule.panels.site
    shift = rule.panels.total(rule.weight * rule.offset)
    away = rule.offset - shift[site]
    spread = rule.panels.total(rule.weight * away**2)
    unit_weight = legendre(rule.offset.shape[0])[1][:, None]
    # Weight over unit weight is the density times the panel's width, as a share of the site's mass.
    values = rule.weight / unit_weight * (1 + away**2 / spread[site])
    tail = np.abs(_last_coefficients(rule.offset.shape[0]) @ values).sum(axis=0)
    # A panel as narrow as the rounding of its ends cannot be halved.
    room = rule.panels.width > 1e-13 * np.maximum(np.abs(rule.panels.left), np.abs(rule.centre)[site])
    return (tail > _TOLERANCE) & room


def _last_coefficients(nodes: int) -> np.ndarray:
    """Return the matrix, (coefficients, nodes), that takes values at the nodes to the last Legendre coefficients."""
    node, weight = legendre(nodes)
    basis = np.polynomial.legendre.legvander(2 * node - 1, nodes - 1)[:, -_TAIL_COEFFICIENTS:]
    # c_k = (2 k + 1) sum_i w_i P_k(2 x_i - 1) f(x_i), for nodes x_i and weights w_i on (0, 1).
    return (basis * weight[:, None]).T * (2 * np.arange(nodes - _TAIL_COEFFICIENTS, nodes) + 1)[:, None]


def _halved(
    panels: Panels, values: Sequence[np.ndarray], rough: np.ndarray, evaluate: Callable
) -> tuple[Panels, tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Return the panels, with the `rough` ones halved, and their values; only the new panels are evaluated."""
    half = panels.width[rough] / 2
    left = np.concatenate([panels.left[rough], panels.left[rough] + half])
    site = np.tile(panels.site[rough], 2)
    new = evaluate(Panels(left, np.tile(half, 2), site, panels.first))
    left = np.concatenate([panels.left[~rough], left])
    width = np.concatenate([panels.width[~rough], half, half])
    site = np.concatenate([panels.site[~rough], site])
    order = np.lexsort((left, site))
    offset, log_t, slope = (
        np.concatenate([old[:, ~rough], fresh], axis=1)[:, order] for old, fresh in zip(values, new, strict=True)
    )
    site = site[order]
    joined = Panels(left[order], width[order], site, np.searchsorted(site, np.arange(len(panels.first))))
    return joined, (offset, log_t, slope)
