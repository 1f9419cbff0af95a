"""Tilted moments by a nested trapezium rule about the mode: the Python body, which Numba compiles.

For a site t of power p and a cavity N(m, v), let ``L(f) = p log t(f) - (f - m)^2 / (2 v)``, x an approximate mode of L,
and ``s = (-L''(x))^(-1/2)``. With nodes x + d at offsets d = k h,

    w = exp(L(x + d) - L(x)),    T = h sum w,    M = sum w d / sum w,    g = d log t / d f,
    log Z = L(x) + log T - log(2 pi v) / 2,    mean = x + M,    variance = sum w d^2 / sum w - M^2,
    d log Z / d m = p sum w g / sum w,
    1 / variance - 1 / v = -p (sum w d (g - g(x)) / sum w - M sum w (g - g(x)) / sum w) / variance.

Nodes run to where L has dropped by `DROP` on both sides. For t analytic in a strip the error of the rule of step h is
about the square of the error of 2 h, whose nodes are every other one (Trefethen and Weideman 2014): a site is accepted
where the two differ by less than a tolerance, else the step is halved. The moments of sites that are not accepted are
computed by the rules of `pymc_ep.sites.quadrature`.

`density` and `fixed` are the functions of `scalar_graph.ScalarDensity` of one site, `a` the results of `fixed`. These
two functions, and the constants of `op.Rule`, are set in the namespace in which the body is compiled.
"""

from typing import Any

import numpy as np

from pymc_ep.numerics.quadrature.peak_search import GRID

__all__ = ["moments"]

STEP = 0.38
"""First fine step h, in units of s. At 0.6 it is always halved."""
SIDE = 12
"""Nodes of a block on either side: with the first coarse step 2 h they reach 42 nats below a Gaussian's mode."""
LANES = 2 * SIDE
MOST_BLOCKS = 8
"""Largest number of blocks until the integrand has dropped; a site that needs more is not accepted."""
LEVELS = 4
"""Largest number of rules that are compared: of steps h, h / 2, h / 4 and h / 8."""
DROP = 33.0
"""Drop of the integrand in nats at its ends: exp(-33) is 5e-15."""
NO_WEIGHT = -100.0
"""Log weight below which a node counts as zero, and log t and its slope may overflow."""
HIGHER = 700.0
"""Largest log weight, relative to the approximate mode; a site with a node above it is not accepted."""
SEARCHES = 40
"""Largest number of evaluations of the slope in search of the mode."""
FOUND = 0.02
"""Largest slope^2 / curvature of L at an approximate mode, which then is 0.01 nats below the mode."""
NOISE = 1e-12
"""Difference of the site's precision between two rules, times v, that counts as rounding; the cavity's is 1."""
JUMP = 1e-6
"""Difference between two forms of d log Z / d m, times the cavity standard deviation, above which t has a jump."""
LOST = 1e-11
"""Largest share of mass and variance beyond the nodes at which a site is accepted."""
HIDDEN = 0.1
"""Excess, in nats and relative, by which a change of L between two points of the grid may exceed slope times distance:
see `peak_search.has_one_peak`."""
TESTED = 40.0
"""Drop below the highest point of the grid, in nats, within which changes between points are tested."""
POLES = 0.54
"""First coarse step where t has poles beside the real axis, in units of their distance from it: its error is about
exp(-2 pi / 0.54) = 1e-5."""
BESIDE = 60.0
"""Height of a peak above another one, in nats, beyond which the other one is negligible, however wide it is."""
HALF_LOG_2_PI = 0.9189385332046727

SIGN = np.repeat(np.array([-1.0, 1.0]), SIDE)
PLACE = np.concatenate([-np.arange(1.0, SIDE + 1.0), np.arange(1.0, SIDE + 1.0)])
"""Side, -1 or 1, and signed number of each node of a block."""

Fixed = tuple[Any, ...]
Found = tuple[float, ...]
"""Results of `fixed` and of `density`."""

# Set where a body is compiled: numbers of `op.Rule`, and functions of the site.
SCANNED, PEAKED, TOLERANCE, HIGHEST, LOG_CONCAVE, PARAMETERS = False, False, 0.0, 0.0, True, 0


def fixed(y: float, parameters: np.ndarray) -> Fixed:
    """Return the values that `density` needs and that are free of the predictor."""
    raise NotImplementedError


def density(x: float, a: Fixed) -> Found:
    """Return log t at the predictor x, its slope, and its derivatives in parameters."""
    raise NotImplementedError


exp = np.exp


def slope_at(x: float, m: float, v: float, p: float, a: Fixed) -> float:
    """Return the slope of L at x."""
    return p * density(x, a)[1] - (x - m) / v


def searched(
    x: float, rise: float, z: float, low: float, high: float, m: float, v: float, p: float, a: Fixed
) -> tuple[float, float]:
    """Return a zero of L' in (low, high), and the curvature -L'' there, 0 if none is found.

    It is found by secants. The first is through x, where L' is `rise`, and z.
    """
    far = 4.0 * np.sqrt(v)
    for _ in range(SEARCHES):
        before, rise_before = x, rise
        x = z
        rise = slope_at(x, m, v, p, a)
        # Secant of the slope, an estimate of -L''.
        curvature = (rise_before - rise) / (x - before)
        if np.isnan(rise):
            break
        if rise * rise < FOUND * curvature and (x - before) * (x - before) * curvature < 4.0:
            return x, curvature
        if rise > 0:
            low = x
        else:
            high = x
        z = x + (rise / curvature if curvature > 0 else far * np.sign(rise))
        if not (low < z < high):
            z = 0.5 * (low + high)
        if not np.isfinite(z):
            z = x + far * np.sign(rise)
    return x, 0.0


def concave_mode(m: float, v: float, p: float, a: Fixed) -> tuple[float, float]:
    """Return the mode and the curvature there for a log-concave t: the mode lies between m and m + v L'(m)."""
    rise = slope_at(m, m, v, p, a)
    sd = np.sqrt(v)
    step = min(max(abs(rise * v), 0.3 * sd), 3.0 * sd)
    if not step > 0:
        return m, 0.0
    low, high = (m, np.inf) if rise > 0 else (-np.inf, m)
    return searched(m, rise, m + (step if rise > 0 else -step), low, high, m, v, p, a)


def surveyed_mode(m: float, v: float, p: float, a: Fixed, level: np.ndarray, slope: np.ndarray) -> tuple[float, float]:
    """Return the mode and its curvature, 0 unless L has one peak on `GRID`; set `level`, `slope` to L and L' there."""
    sd = np.sqrt(v)
    top = -np.inf
    for j in range(len(GRID)):
        offset = GRID[j] * sd
        t, s = density(m + offset, a)[:2]
        good = (t <= HIGHEST) & (t > -np.inf)
        # L(m + offset) = p log t - offset^2 / (2 v), and L' = p (log t)' - offset / v.
        level[j] = (p * t if good else -np.inf) - 0.5 * GRID[j] * GRID[j]
        slope[j] = (p * s if good & (s < np.inf) & (s > -np.inf) else 0.0) - offset / v
    for j in range(len(GRID)):
        top = max(top, level[j])
    peaks, place = 0, 0
    for j in range(len(GRID) - 1):
        if slope[j] > 0 and slope[j + 1] <= 0:
            peaks += 1
            place = j
        upper, lower = max(level[j], level[j + 1]), min(level[j], level[j + 1])
        if upper > top - TESTED:
            steeper = max(abs(slope[j]), abs(slope[j + 1])) * (GRID[j + 1] - GRID[j]) * sd
            if not (upper - lower <= (1.0 + HIDDEN) * steeper + HIDDEN):
                return m, 0.0
    if peaks != 1 or not np.isfinite(top):
        return m, 0.0
    low, high = m + GRID[place] * sd, m + GRID[place + 1] * sd
    rise, fall = slope[place], slope[place + 1]
    # The chord of the slope from `rise` to `fall` is zero there.
    return searched(low, rise, low + (high - low) * (rise / (rise - fall)), low, high, m, v, p, a)


def higher_peak(peaks: np.ndarray, m: float, v: float, p: float, a: Fixed) -> tuple[float, float, float]:
    """Return the higher one of two peaks of L, the first coarse step, and the distance of the other one if it counts.

    `peaks` are places and widths (-L'')^(-1/2) of the two, and the distance of poles of t from the real axis.
    """
    first, second = peaks[0], peaks[1]
    l_1 = p * density(first, a)[0] - 0.5 * (first - m) * (first - m) / v
    l_2 = p * density(second, a)[0] - 0.5 * (second - m) * (second - m) / v
    x, width = (first, peaks[2]) if l_1 >= l_2 else (second, peaks[3])
    beside = 0.0
    if abs(l_1 - l_2) < BESIDE:
        beside, width = abs(first - second), min(peaks[2], peaks[3])
    return x, min(2.0 * STEP * width, POLES * peaks[4]), beside


def outside(
    reach: float,
    at_ends: tuple[float, float],
    x: float,
    m: float,
    v: float,
    height: float,
    curvature: float,
    level: np.ndarray,
) -> float:
    """Return a bound on the integral of exp(L - L(x)) (1 + curvature (f - x)^2) farther from x than `reach`.

    There L falls outwards on the grid. Between two grid points, or an end node and a grid point, its value at the inner
    one, from `level` or `at_ends`, is an upper bound.
    """
    sd = np.sqrt(v)
    total = 0.0
    for j in range(len(GRID) - 1):
        low, high = m + GRID[j] * sd - x, m + GRID[j + 1] * sd - x
        if high > reach:
            top = level[j] - height if low >= reach else at_ends[1]
            total += (high - max(low, reach)) * np.exp(top) * (1.0 + curvature * high * high)
        if low < -reach:
            top = level[j + 1] - height if high <= -reach else at_ends[0]
            total += (min(high, -reach) - low) * np.exp(top) * (1.0 + curvature * low * low)
    return total


def weigh(
    start: float,
    spacing: float,
    x: float,
    m: float,
    v: float,
    p: float,
    a: Fixed,
    origin: Found,
    offsets: np.ndarray,
    weights: np.ndarray,
    values: np.ndarray,
) -> None:
    """Write offsets and log weights of a block of nodes, and to `values` derivatives of log t minus their values at x.

    The first row of `values` is the slope; the derivatives in parameters follow.
    """
    # L(x + d) - L(x) = p (log t(x + d) - log t(x)) - d (d + 2 (x - m)) / (2 v).
    q, tilt = 0.5 / v, 2.0 * (x - m)
    for j in range(LANES):
        offset = (PLACE[j] + SIGN[j] * start) * spacing
        f = x + offset
        point = density(f, a)
        t, s = point[0], point[1]
        # The sum rounds the node: to first order, log t is moved to the exact one.
        log_weight = p * (t - origin[0] + s * (offset - (f - x))) - offset * (offset + tilt) * q
        weights[j] = np.nan if t > HIGHEST else log_weight
        offsets[j] = offset
        values[0, j] = s - origin[1]
        for k in range(PARAMETERS):
            values[1 + k, j] = point[2 + k] - origin[2 + k]


def add(offsets: np.ndarray, weights: np.ndarray, values: np.ndarray, total: np.ndarray) -> None:
    """Add the sums of a block of nodes to `total`, and replace their log weights by weights.

    The last entry of `total` is the number of nodes whose log weight is undefined or too large.
    """
    # Sums of w, w d, w d^2, w (g - g(x)), w d (g - g(x)), w d^3 and w d^4.
    t0, t1, t2, t3, t4, t5, t6, bad = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
    for j in range(LANES):
        log_weight, d = weights[j], offsets[j]
        none = log_weight < NO_WEIGHT
        w = 0.0 if none else exp(log_weight)
        g = 0.0 if none else values[0, j]
        bad += 0.0 if log_weight < HIGHER else 1.0
        w1 = w * d
        w2 = w1 * d
        w3 = w2 * d
        t0 += w
        t1 += w1
        t2 += w2
        t3 += w * g
        t4 += w1 * g
        t5 += w3
        t6 += w3 * d
        weights[j] = w
    total[0] += t0
    total[1] += t1
    total[2] += t2
    total[3] += t3
    total[4] += t4
    total[5] += t5
    total[6] += t6
    total[-1] += bad
    for k in range(PARAMETERS):
        t0 = 0.0
        for j in range(LANES):
            t0 += weights[j] * values[1 + k, j] if weights[j] > 0.0 else 0.0
        total[7 + k] += t0


def agree(even: np.ndarray, odd: np.ndarray, v: float, origin: Found) -> bool:
    """Return whether the sums over even and odd nodes give the same moments and derivatives."""
    total = even[0] + odd[0]
    shift = (even[1] + odd[1]) / total
    variance = (even[2] + odd[2]) / total - shift * shift
    limit = TOLERANCE * total
    same = (
        abs(even[0] - odd[0]) < limit
        and abs(even[1] - odd[1]) < limit * np.sqrt(variance)
        and abs(even[2] - odd[2]) < limit * variance
        and abs(even[3] - odd[3]) * np.sqrt(v) < limit
        and abs(even[4] - odd[4]) < TOLERANCE * abs(even[4] + odd[4]) + NOISE * total * variance / v
    )
    for k in range(PARAMETERS):
        size = total * abs(origin[2 + k]) + abs(even[7 + k] + odd[7 + k])
        same = same and abs(even[7 + k] - odd[7 + k]) <= TOLERANCE * size
    return same


def summed(
    x: float,
    m: float,
    v: float,
    p: float,
    a: Fixed,
    origin: Found,
    spacing: float,
    beside: float,
    offsets: np.ndarray,
    weights: np.ndarray,
    values: np.ndarray,
    even: np.ndarray,
    odd: np.ndarray,
) -> tuple[float, float, tuple[float, float]]:
    """Write sums over all nodes to `even`; return their spacing, their reach and the log weights of both end nodes.

    They reach to a distance of `beside` at least. The spacing is zero if the site is not accepted.
    """
    even[:] = 0.0
    # The node x itself has w = 1, d = 0 and g - g(x) = 0, and belongs to no block.
    even[0] = 1.0
    blocks, dropped, at_ends = 0, False, (0.0, 0.0)
    while not dropped and blocks < MOST_BLOCKS:
        weigh(1.0 * blocks * SIDE, spacing, x, m, v, p, a, origin, offsets, weights, values)
        at_ends = (weights[SIDE - 1], weights[LANES - 1])
        add(offsets, weights, values, even)
        blocks += 1
        dropped = at_ends[0] < -DROP and at_ends[1] < -DROP and blocks * SIDE * spacing >= beside
    reach = blocks * SIDE * spacing
    if not dropped or even[-1] > 0:
        return 0.0, reach, at_ends
    for _ in range(LEVELS):
        odd[:] = 0.0
        for block in range(blocks):
            # Midpoints of the nodes so far: k + 1/2 steps on either side.
            weigh(block * SIDE - 0.5, spacing, x, m, v, p, a, origin, offsets, weights, values)
            add(offsets, weights, values, odd)
        if odd[-1] > 0:
            break
        same = agree(even, odd, v, origin)
        even += odd
        spacing *= 0.5
        blocks *= 2
        if same:
            return spacing, reach, at_ends
    return 0.0, reach, at_ends


def moments(arguments: np.ndarray) -> np.ndarray:
    """Return the fields of `op.FIELDS`, derivatives in parameters, and ones for accepted sites: (8 + parameters, n).

    `arguments`, (4 + parameters, n), are observations, cavity means and variances, powers, and parameters. Sites with
    known peaks have five more, see `higher_peak`.
    """
    n = arguments.shape[1]
    out = np.zeros((8 + PARAMETERS, n))
    level, slope = np.empty(len(GRID)), np.empty(len(GRID))
    offsets, weights, values = np.empty(LANES), np.empty(LANES), np.empty((1 + PARAMETERS, LANES))
    even, odd = np.empty(8 + PARAMETERS), np.empty(8 + PARAMETERS)
    for i in range(n):
        m, v, p = arguments[1, i], arguments[2, i], arguments[3, i]
        a = fixed(arguments[0, i], arguments[4:, i])
        beside = 0.0
        if PEAKED:
            x, spacing, beside = higher_peak(arguments[4 + PARAMETERS :, i], m, v, p, a)
        else:
            x, curvature = surveyed_mode(m, v, p, a, level, slope) if SCANNED else concave_mode(m, v, p, a)
            if not curvature > 0:
                continue
            # The first rule has the step 2 h, with h in units of s = curvature^(-1/2).
            spacing = 2.0 * STEP / np.sqrt(curvature)
        origin = density(x, a)
        spacing, reach, at_ends = summed(x, m, v, p, a, origin, spacing, beside, offsets, weights, values, even, odd)
        if not spacing > 0:
            continue
        t, g = origin[0], origin[1]
        # L(x), then M, the tilted variance and E g - g(x).
        height = p * t - 0.5 * (x - m) * (x - m) / v
        total = even[0]
        shift = even[1] / total
        square = even[2] / total - shift * shift
        gradient = even[3] / total
        precision = -p * (even[4] / total - shift * gradient) / square
        if SCANNED:
            # p E g = (mean - m) / v by integration by parts, unless t jumps.
            jump = (p * (g + gradient) - (x - m + shift) / v) * np.sqrt(v)
            lost = outside(reach, at_ends, x, m, v, height, 1.0 / square, level)
            if not lost < LOST * spacing * total or not abs(jump) <= JUMP * max(
                1.0, abs(p * (g + gradient)) * np.sqrt(v)
            ):
                continue
        # Central moments: E d^3 - 3 M E d^2 + 2 M^3 and E d^4 - 4 M E d^3 + 6 M^2 E d^2 - 3 M^4.
        third = even[5] / total - 3.0 * shift * even[2] / total + 2.0 * shift**3
        fourth = even[6] / total - 4.0 * shift * even[5] / total + 6.0 * shift**2 * even[2] / total - 3.0 * shift**4
        out[0, i] = height + np.log(spacing * total) - HALF_LOG_2_PI - 0.5 * np.log(v)
        out[1, i] = x + shift
        out[2, i] = square
        out[3, i] = p * (g + gradient)
        out[4, i] = max(precision, 0.0) if LOG_CONCAVE else precision
        out[5, i] = third / square**1.5
        out[6, i] = fourth / square**2 - 3.0
        for k in range(PARAMETERS):
            out[7 + k, i] = p * (origin[2 + k] + even[7 + k] / total)
        out[-1, i] = 1.0
    return out
