"""Quadrature for a log density of which nothing is known: no shape, no scale, perhaps several peaks.

`quadrature.tilted_nodes` relies on what a site says of itself, log-concavity or the places of its scales. Here both are
searched for. The log integrand and its slope are taken on a grid that is fine near the cavity and doubles outwards;
between two points where the slope turns from up to down lies a peak, however narrow, and bisection finds it, as it
finds the ends of the support. Panels break at those places, and at distances from each peak that grow from its own
width by factors, and are halved until their Legendre coefficients have decayed.

What it can miss is a peak that no slope on the grid points to (a second, narrow one on the flank of a first), and a
support that fits between two points of the grid (a quarter of a cavity standard deviation apart at the centre, half as
far as the cavity mean further out).
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from pymc_ep.linalg.quadrature import (
    LogDensity,
    Panels,
    TiltedNodes,
    legendre,
    panel_values,
    panels_between,
    weighed,
)

__all__ = ["defined", "has_one_near_peak", "scanned_nodes"]

_NEAR = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.5, 8.0, 9.5)
_FAR = tuple(9.5 * 2.0**k for k in range(1, 21))
_GRID = np.array([*(-np.array(_NEAR + _FAR))[::-1], 0.0, *_NEAR, *_FAR])[:, None]
"""Cavity standard deviations at which the integrand is looked at, up to 1e7."""

_BESIDE, _LOW = 6.5, 18.0
"""Cavity standard deviations from where on an integrand that is a peak near the centre is so many nats below it."""

_CUTS = np.array([-9.5, -5.0, -2.5, 0.0, 2.5, 5.0, 9.5])[:, None]
_PEAKS = 3
"""Peaks looked for; of more, those that begin highest."""

_BISECTIONS = 52
_WIDTH_BISECTIONS = 7
"""Of 44 octaves, so that a width is right to a third of an octave."""
_WIDEST, _NARROWEST = 2.0**4, 2.0**-40
"""Cavity standard deviations between which the width of a peak lies."""

_LADDER = 8.0
_DROP = 60.0
"""Nats below the highest point seen at which the interval of integration may end."""
_DISAGREEMENT = 1e-6
"""Of the derivative of log Z times the cavity's standard deviation: what tells a jump of t from rounding."""

_TAIL_COEFFICIENTS = 4
_TOLERANCE = 1e-9
"""Of the site's mass: what the last Legendre coefficients of a panel may come to. Where the integrand is analytic the
rule's own error is about the square of that, since n nodes are exact to degree 2 n - 1."""
_HALVINGS = 30


def defined(log_density: LogDensity) -> LogDensity:
    """Return a log density that is minus infinity, with slope zero, wherever the given one is not finite."""

    def density(f: Any, y: Any, *parameters: Any) -> tuple[Any, Any]:
        log_t, slope = log_density(f, y, *parameters)
        good = np.isfinite(log_t)
        return np.where(good, log_t, -np.inf), np.where(good & np.isfinite(slope), slope, 0.0)

    return density


class _Scan(NamedTuple):
    """What the search found, as offsets from the highest peak."""

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
    nodes: int = 24,
) -> TiltedNodes:
    """Place and weigh the nodes of an adaptive Gauss-Legendre rule.

    Arguments are those of `quadrature.tilted_nodes`, all NumPy arrays, and so is the result; `log_density` is one that
    `defined` returned.
    """
    with np.errstate(invalid="ignore", over="ignore", divide="ignore", under="ignore"):
        found = _search(log_density, y, mean, variance, power, parameters)
        log_centre = log_density(found.centre[None], y, *parameters)[0][0]
        panels = panels_between(found.low, found.high, found.breaks)

        def evaluate(panels: Panels) -> tuple[Any, Any, Any]:
            return panel_values(log_density, panels, found.centre, log_centre, y, parameters, nodes)

        values = evaluate(panels)
        for _ in range(_HALVINGS):
            rule = weighed(panels, *values, found.centre, log_centre, mean, variance, power)
            rough = _unresolved(rule)
            if not rough.any():
                break
            panels, values = _halved(panels, values, rough, evaluate)
        jump = _jumps(rule)
    return rule._replace(jump=jump if jump.any() else None)


def has_one_near_peak(
    log_density: LogDensity,
    y: np.ndarray,
    mean: np.ndarray,
    variance: np.ndarray,
    power: np.ndarray,
    *parameters: np.ndarray,
) -> np.ndarray:
    """Whether the grid sees one peak of the integrand, under the cavity's own, and nothing else, (n,).

    It is the grid of `scanned_nodes`: what escapes it here does so there as well.
    """
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        level, rise = _integrand(log_density, y, mean, variance, power, parameters)(_GRID * np.sqrt(variance))
    near = np.abs(_GRID) <= _NEAR[-1]
    beside = np.abs(_GRID) > _BESIDE
    turns = (rise[:-1] > 0) & (rise[1:] <= 0)
    whole = np.isfinite(level[near[:, 0]]).all(axis=0)
    return whole & (turns.sum(axis=0) == 1) & (np.where(beside, level, -np.inf).max(axis=0) < level.max(axis=0) - _LOW)


def _integrand(
    log_density: LogDensity, y: Any, mean: Any, variance: Any, power: Any, parameters: Sequence[Any]
) -> Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Return the log integrand and its slope as a function of offsets (k, n) from the cavity mean."""

    def integrand(offset: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        log_t, slope = log_density(mean + offset, y, *parameters)
        return power * log_t - offset**2 / (2 * variance), power * slope - offset / variance

    return integrand


def _search(log_density: LogDensity, y: Any, mean: Any, variance: Any, power: Any, parameters: Sequence[Any]) -> _Scan:
    deviation = np.sqrt(variance)
    integrand = _integrand(log_density, y, mean, variance, power, parameters)
    grid = _GRID * deviation
    level, rise = integrand(grid)
    peaks, heights = _peaks(integrand, grid, level, rise)
    low_end, high_end = _ends(integrand, grid, level)
    width = _widths(integrand, peaks, heights, deviation)
    ladder = _ladder(peaks, width, deviation)
    top = np.maximum(level.max(axis=0), heights[0])
    high_up = level > top - _DROP
    some = high_up.any(axis=0)
    count = len(grid)
    first = np.where(some, np.argmax(high_up, axis=0), count // 2)
    last = np.where(some, count - 1 - np.argmax(high_up[::-1], axis=0), count // 2)
    columns = np.arange(grid.shape[1])
    low = np.minimum(grid[np.maximum(first - 1, 0), columns], peaks.min(axis=0) - width.max(axis=(0, 1)) * _LADDER)
    high = np.maximum(
        grid[np.minimum(last + 1, count - 1), columns], peaks.max(axis=0) + width.max(axis=(0, 1)) * _LADDER
    )
    low, high = np.maximum(low, low_end), np.minimum(high, high_end)
    centre = peaks[0]
    breaks = np.concatenate([_CUTS * deviation, peaks, ladder]) - centre
    return _Scan(mean + centre, low - centre, high - centre, breaks)


def _peaks(integrand: Callable, grid: np.ndarray, level: np.ndarray, rise: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return offsets and heights of up to `_PEAKS` local maxima, (peaks, n), the highest first.

    Where there are fewer, the highest is repeated.
    """
    seen = np.isfinite(level)
    up, down = (seen & (rise > 0)) | ~seen, (seen & (rise <= 0)) | ~seen
    turns = up[:-1] & down[1:] & (seen[:-1] | seen[1:])
    begin = np.where(turns, np.maximum(level[:-1], level[1:]), -np.inf)
    order = np.argsort(-begin, axis=0)[:_PEAKS]
    best = np.argmax(level, axis=0)
    columns = np.arange(grid.shape[1])
    turning = turns[order, columns]
    low, high = (np.where(turning, grid[order + i, columns], grid[best, columns]) for i in (0, 1))
    level_low, level_high = (np.where(turning, level[order + i, columns], level[best, columns]) for i in (0, 1))
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        at, slope = integrand(middle)
        # Where nothing is defined the peak lies towards the end that is.
        upwards = np.where(np.isfinite(at), slope > 0, level_high >= level_low)
        low, level_low = np.where(upwards, middle, low), np.where(upwards, at, level_low)
        high, level_high = np.where(upwards, high, middle), np.where(upwards, level_high, at)
    peaks = np.where(level_low >= level_high, low, high)
    heights = np.maximum(level_low, level_high)
    first = np.argsort(-heights, axis=0, kind="stable")
    return peaks[first, columns], heights[first, columns]


def _ends(integrand: Callable, grid: np.ndarray, level: np.ndarray) -> np.ndarray:
    """Return the ends of the support, (2, n), infinite where the grid sees none."""
    seen = np.isfinite(level)
    columns, count = np.arange(grid.shape[1]), len(grid)
    first, last = np.argmax(seen, axis=0), count - 1 - np.argmax(seen[::-1], axis=0)
    inside = np.stack([grid[first, columns], grid[last, columns]])
    outside = np.stack([grid[np.maximum(first - 1, 0), columns], grid[np.minimum(last + 1, count - 1), columns]])
    bounded = np.stack([first > 0, last < count - 1]) & seen.any(axis=0)
    for _ in range(_BISECTIONS if bounded.any() else 0):
        middle = (inside + outside) / 2
        good = np.isfinite(integrand(middle)[0])
        inside, outside = np.where(good, middle, inside), np.where(good, outside, middle)
    return np.where(bounded, inside, np.array([-np.inf, np.inf])[:, None])


def _widths(integrand: Callable, peaks: np.ndarray, heights: np.ndarray, deviation: np.ndarray) -> np.ndarray:
    """Return, for either side of each peak, the distance at which the integrand has dropped by one nat."""
    way = np.array([-1.0, 1.0])[:, None, None]
    low = np.full((2, *peaks.shape), np.log(_NARROWEST))
    high = np.full((2, *peaks.shape), np.log(_WIDEST))
    for _ in range(_WIDTH_BISECTIONS):
        middle = (low + high) / 2
        point = peaks + way * np.exp(middle) * deviation
        level = integrand(point.reshape(-1, peaks.shape[1]))[0].reshape(point.shape)
        beyond = ~(level > heights - 1)
        low, high = np.where(beyond, low, middle), np.where(beyond, middle, high)
    width = np.exp(high) * deviation
    # Beside an end of the support one side has no width; it is resolved by halving.
    return np.maximum(width, 1e-6 * width.max(axis=0))


def _ladder(peaks: np.ndarray, width: np.ndarray, deviation: np.ndarray) -> np.ndarray:
    """Return distances from the peaks that grow from their widths to the cavity's, (rungs, n)."""
    steps = int(np.ceil(np.log(np.max(_WIDEST * deviation / width)) / np.log(_LADDER)))
    factors = _LADDER ** np.arange(max(steps, 0) + 1)[:, None, None]
    return np.concatenate([peaks - factors * width[0], peaks + factors * width[1]]).reshape(-1, peaks.shape[1])


def _unresolved(rule: TiltedNodes) -> np.ndarray:
    """Whether each panel's last Legendre coefficients say that it must be halved.

    The integrand is weighed with ``1 + z**2``, z the distance from the tilted mean in tilted standard deviations, since
    variances are wanted as well.
    """
    site = rule.panels.site
    shift = rule.panels.total(rule.weight * rule.offset)
    away = rule.offset - shift[site]
    spread = rule.panels.total(rule.weight * away**2)
    unit_weight = legendre(rule.offset.shape[0])[1][:, None]
    values = rule.weight / unit_weight * (1 + away**2 / spread[site])
    tail = np.abs(_last_coefficients(rule.offset.shape[0]) @ values).sum(axis=0)
    # A panel at the resolution of its own ends cannot be halved.
    room = rule.panels.width > 1e-13 * np.maximum(np.abs(rule.panels.left), np.abs(rule.centre)[site])
    return (tail > _TOLERANCE) & room


def _jumps(rule: TiltedNodes) -> np.ndarray:
    """Whether t jumps somewhere: the expected slope is then not the derivative of log Z, which is known otherwise."""
    deviation = np.sqrt(rule.variance)
    mean = rule.centre + rule.panels.total(rule.weight * rule.offset)
    gradient = rule.panels.total(rule.weight * rule.slope) * deviation
    return np.abs(gradient - (mean - rule.mean) / deviation) > _DISAGREEMENT * np.maximum(1, np.abs(gradient))


def _last_coefficients(nodes: int) -> np.ndarray:
    """Return the matrix that takes values at the nodes to the last Legendre coefficients, (coefficients, nodes)."""
    node, weight = legendre(nodes)
    basis = np.polynomial.legendre.legvander(2 * node - 1, nodes - 1)[:, -_TAIL_COEFFICIENTS:]
    return (basis * weight[:, None]).T * (2 * np.arange(nodes - _TAIL_COEFFICIENTS, nodes) + 1)[:, None]


def _halved(panels: Panels, values: Sequence[np.ndarray], rough: np.ndarray, evaluate: Callable) -> tuple[Panels, list]:
    """Replace the rough panels by their halves, keeping the values of the others."""
    half = panels.width[rough] / 2
    left = np.concatenate([panels.left[rough], panels.left[rough] + half])
    site = np.tile(panels.site[rough], 2)
    new = evaluate(Panels(left, np.tile(half, 2), site, panels.first))
    left = np.concatenate([panels.left[~rough], left])
    width = np.concatenate([panels.width[~rough], half, half])
    site = np.concatenate([panels.site[~rough], site])
    order = np.lexsort((left, site))
    joined = [np.concatenate([old[:, ~rough], part], axis=1)[:, order] for old, part in zip(values, new, strict=True)]
    site = site[order]
    return Panels(left[order], width[order], site, np.searchsorted(site, np.arange(len(panels.first)))), joined
