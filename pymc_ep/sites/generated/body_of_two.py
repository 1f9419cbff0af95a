"""Tilted moments of sites of two predictors, by a lattice about the mode: the Python body, which Numba compiles.

For a site t of power p and a cavity N(m, V), V = L L^T, let ``F(z) = p log t(m + L z) - |z|^2 / 2``, z* an approximate
mode of F, and ``S S^T = (-F''(z*))^-1``. The nodes are z* + S u for u on a square lattice of step h, and, with T = L S,

    w = exp(F(z* + S u) - F(z*)),   M = sum w u / sum w,   C = sum w u u^T / sum w - M M^T,   g = grad log t,
    log Z = F(z*) + log(h^2 |S| sum w / (2 pi)),   mean = m + L z* + T M,   covariance = T C T^T,
    grad_m log Z = p sum w g / sum w,
    Pi = covariance^-1 - V^-1 = -p T^-T C^-1 (sum w u g^T / sum w - M sum w g^T / sum w).

A row of the lattice runs on both sides to where F has dropped by `DROP`. On both sides rows are added until F has
dropped so far at all nodes of one. The centres of the lattice's squares make a second lattice. For an analytic t the
error of both together is about the square of their difference: a site is accepted where this difference is less than a
tolerance, else the step is halved.

`density` and `fixed` are the functions of one site, as in `body`.
"""

from typing import Any

import numpy as np

__all__ = ["moments"]

STEP = 1.0
"""First step h of the lattice. For a Gaussian, sums over the lattice and over the midway points differ by 2e-8, and by
4e-7 in second moments."""
LANES = 16
"""Nodes of a part of a row: with the first step they reach 25 nats below a Gaussian's mode on both sides."""
PLACE = np.arange(float(LANES))
"""Numbers of the nodes of a part, stored as doubles for processors without instructions that convert vectors of
integers."""
MOST_PARTS, MOST_ROWS = 12, 64
"""Largest number of parts of a row, and of rows, on either side; a site that needs more is not accepted."""
LEVELS = 3
"""Largest number of steps that are tried: h, h / 2 and h / 4."""
DROP = 25.0
"""Drop of F in nats at the ends: the mass beyond is exp(-25) = 1e-11 of a Gaussian's."""
HIGHER = 1.0
"""Largest excess of F, nats, over its value at the approximate mode; a site with a node above it is not accepted."""
TOLERANCE = 1e-6
"""Largest relative difference of the sums over two lattices at which a site is accepted."""
STEPS, HALVINGS, FAR = 60, 12, 4.0
"""Most steps in search of the mode, most reductions of each to a quarter, and its largest length, in cavity standard
deviations."""
LEAST = 0.2
"""Lower limit of the eigenvalues of -F'' in steps in search of the mode; the cavity alone has eigenvalues of 1."""
FOUND = 0.02
"""Largest (grad F)^T (-F'')^-1 grad F at an approximate mode, which then is 0.01 nats below the mode."""
DIFFERENCE = 1e-4
"""Step of the finite differences that give F''."""
GRID = np.array([-5.0, -2.2, 2.2, 5.0])
"""Values of either coordinate of z at which searches for other peaks start, along the other coordinate."""
ALONG = 8
"""Largest number of steps of a search for another peak."""
SEEN = 18.0
"""Depth below the mode, in nats, down to which maxima from searches for other peaks must be on the lattice."""
NARROW = 4.0
"""Largest curvature at a maximum from a search for other peaks, along the search and in units of the lattice's step,
that a lattice resolves."""
SUMS = 17
"""Number of sums over nodes: of w, and of w times u, u u^T, third powers of u, g and u g^T, and the number of bad
nodes."""
LOG_2_PI = 1.8378770664093453

Frame = tuple[float, float, float, float, float, float, float, float, float, float]
"""z*, m, and the elements of L and of S."""
Part = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]
"""u_1, log weights, both slopes, and derivatives in parameters, of the nodes of a part of a row."""
Fixed = tuple[Any, ...]
Found = tuple[float, ...]

# Set where a body is compiled.
HIGHEST, PARAMETERS = np.inf, 0


def fixed(y: float, parameters: np.ndarray) -> Fixed:
    """Return the values that `density` needs and that are free of the predictors."""
    raise NotImplementedError


def density(x_1: float, x_2: float, a: Fixed) -> Found:
    """Return log t at the predictors, its two slopes, and its derivatives in parameters."""
    raise NotImplementedError


exp = np.exp


def slopes_at(
    z_1: float, z_2: float, m_1: float, m_2: float, l_1: float, l_21: float, l_2: float, p: float, a: Fixed
) -> tuple[float, float, float]:
    """Return F and its gradient at z."""
    point = density(m_1 + l_1 * z_1, m_2 + l_21 * z_1 + l_2 * z_2, a)
    t, s_1, s_2 = point[0], point[1], point[2]
    if not t <= HIGHEST:
        t = np.nan
    # grad F = p L^T grad log t - z.
    return p * t - 0.5 * (z_1 * z_1 + z_2 * z_2), p * (l_1 * s_1 + l_21 * s_2) - z_1, p * l_2 * s_2 - z_2


def mode_from(
    z_1: float, z_2: float, m_1: float, m_2: float, l_1: float, l_21: float, l_2: float, p: float, a: Fixed
) -> tuple[float, float, float, float, float, float]:
    """Return F, z and -F'' (11, 12, 22) at a mode, searched for from (z_1, z_2); entry 11 is zero if none is found."""
    f, g_1, g_2 = slopes_at(z_1, z_2, m_1, m_2, l_1, l_21, l_2, p, a)
    for _ in range(STEPS):
        _, b_1, b_2 = slopes_at(z_1 + DIFFERENCE, z_2, m_1, m_2, l_1, l_21, l_2, p, a)
        _, c_1, c_2 = slopes_at(z_1, z_2 + DIFFERENCE, m_1, m_2, l_1, l_21, l_2, p, a)
        # -F'' by differences of the gradient, and its least eigenvalue.
        h_11, h_22 = (g_1 - b_1) / DIFFERENCE, (g_2 - c_2) / DIFFERENCE
        h_12 = 0.5 * (g_2 - b_2 + g_1 - c_1) / DIFFERENCE
        least = 0.5 * (h_11 + h_22) - np.sqrt(0.25 * (h_11 - h_22) ** 2 + h_12 * h_12)
        if not np.isfinite(least):
            break
        more = max(LEAST - least, 0.0)
        # Step (-F'' + more I)^-1 grad F, of a matrix whose least eigenvalue is at least LEAST.
        det = (h_11 + more) * (h_22 + more) - h_12 * h_12
        step_1 = ((h_22 + more) * g_1 - h_12 * g_2) / det
        step_2 = ((h_11 + more) * g_2 - h_12 * g_1) / det
        decrement = step_1 * g_1 + step_2 * g_2
        if decrement < FOUND:
            return f, z_1, z_2, h_11 if more == 0.0 else 0.0, h_12, h_22
        length = np.sqrt(step_1 * step_1 + step_2 * step_2)
        scale = min(1.0, FAR / length)
        moved = False
        for _ in range(HALVINGS):
            x_1, x_2 = z_1 + scale * step_1, z_2 + scale * step_2
            f_x, s_1, s_2 = slopes_at(x_1, x_2, m_1, m_2, l_1, l_21, l_2, p, a)
            if f_x > f and np.isfinite(s_1) and np.isfinite(s_2):
                f, z_1, z_2, g_1, g_2, moved = f_x, x_1, x_2, s_1, s_2, True
                break
            scale *= 0.25
        if not moved:
            break
    return f, z_1, z_2, 0.0, 0.0, 0.0


def weigh(first: float, row: float, step: float, frame: Frame, p: float, a: Fixed, origin: Found, part: Part) -> None:
    """Write the nodes of a part of a row to `part`; from slopes and derivatives, values at the mode are subtracted."""
    z_1, z_2, m_1, m_2, l_1, l_21, l_2, s_1, s_21, s_2 = frame
    column, log_weight, slope_1, slope_2, derivatives = part
    u_2 = row * step
    for j in range(LANES):
        u_1 = (first + PLACE[j]) * step
        d_1, d_2 = s_1 * u_1, s_21 * u_1 + s_2 * u_2
        x_1, x_2 = z_1 + d_1, z_2 + d_2
        point = density(m_1 + l_1 * x_1, m_2 + l_21 * x_1 + l_2 * x_2, a)
        t = point[0]
        # F(z* + d) - F(z*) with d = S u, as (|z* + d|^2 - |z*|^2) / 2 = d^T (z* + d / 2).
        lower = p * (t - origin[0]) - d_1 * (z_1 + 0.5 * d_1) - d_2 * (z_2 + 0.5 * d_2)
        column[j] = u_1
        log_weight[j] = np.nan if t > HIGHEST else lower
        slope_1[j] = point[1] - origin[1]
        slope_2[j] = point[2] - origin[2]
        for k in range(PARAMETERS):
            derivatives[k, j] = point[3 + k] - origin[3 + k]


def add(u_2: float, part: Part, total: np.ndarray) -> None:
    """Add the sums of a part of a row, with second coordinate `u_2`, to `total`, see `SUMS`."""
    column, log_weight, slope_1, slope_2, derivatives = part
    t_0, t_1, t_11, t_111, g_1, g_2, u_g_1, u_g_2, bad = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
    for j in range(LANES):
        u, lower = column[j], log_weight[j]
        none = lower < -4.0 * DROP
        w = 0.0 if none else exp(lower)
        first, second = 0.0 if none else slope_1[j], 0.0 if none else slope_2[j]
        bad += 0.0 if lower < HIGHER else 1.0
        w_1 = w * u
        w_11 = w_1 * u
        t_0 += w
        t_1 += w_1
        t_11 += w_11
        t_111 += w_11 * u
        g_1 += w * first
        g_2 += w * second
        u_g_1 += w_1 * first
        u_g_2 += w_1 * second
        log_weight[j] = w
    # u_2 is constant in a row: its powers are factors of the row's sums.
    total[0] += t_0
    total[1] += t_1
    total[2] += t_0 * u_2
    total[3] += t_11
    total[4] += t_1 * u_2
    total[5] += t_0 * u_2 * u_2
    total[6] += t_111
    total[7] += t_11 * u_2
    total[8] += t_1 * u_2 * u_2
    total[9] += t_0 * u_2 * u_2 * u_2
    total[10] += g_1
    total[11] += g_2
    total[12] += u_g_1
    total[13] += u_g_2
    total[14] += g_1 * u_2
    total[15] += g_2 * u_2
    total[16] += bad
    for k in range(PARAMETERS):
        t_0 = 0.0
        for j in range(LANES):
            t_0 += log_weight[j] * derivatives[k, j] if log_weight[j] > 0.0 else 0.0
        total[SUMS + k] += t_0


def part_of(
    first: float,
    row: float,
    step: float,
    frame: Frame,
    p: float,
    a: Fixed,
    origin: Found,
    part: Part,
    total: np.ndarray,
    top: float,
    at: float,
) -> tuple[float, float, float, float]:
    """Add a part of a row; return log weight and column of the row's highest node, and log weights at the part's ends.

    `top` and `at` are log weight and column of the highest node so far.
    """
    weigh(first, row, step, frame, p, a, origin, part)
    log_weight = part[1]
    for j in range(LANES):
        if log_weight[j] > top:
            top, at = log_weight[j], first + j
    low, high = log_weight[0], log_weight[LANES - 1]
    add(row * step, part, total)
    return top, at, low, high


def row_of(
    centre: float,
    row: float,
    step: float,
    frame: Frame,
    p: float,
    a: Fixed,
    origin: Found,
    part: Part,
    total: np.ndarray,
) -> tuple[float, float, float, float]:
    """Add a row from column `centre` outwards; return its highest log weight, that node's column, and both end columns.

    If F has not dropped by `DROP` after `MOST_PARTS` more parts on a side, a bad node is counted: the site is not
    accepted.
    """
    first = centre - LANES // 2
    last = first + LANES
    top, at, low, high = part_of(first, row, step, frame, p, a, origin, part, total, -np.inf, centre)
    count = 0
    while low > -DROP and count < MOST_PARTS:
        first -= LANES
        top, at, low, _ = part_of(first, row, step, frame, p, a, origin, part, total, top, at)
        count += 1
    count = 0
    while high > -DROP and count < MOST_PARTS:
        top, at, _, high = part_of(last, row, step, frame, p, a, origin, part, total, top, at)
        last += LANES
        count += 1
    if low > -DROP or high > -DROP:
        total[16] += 1.0
    return top, at, first, last - 1.0


def lattice(
    start_1: float,
    start_2: float,
    step: float,
    frame: Frame,
    p: float,
    a: Fixed,
    origin: Found,
    part: Part,
    total: np.ndarray,
    ends: np.ndarray,
) -> None:
    """Put the sums over a lattice in `total`, and the ends of its rows, in steps, in `ends`, (2, 2 MOST_ROWS)."""
    total[:] = 0.0
    ends[0, :] = np.inf
    ends[1, :] = -np.inf
    for side in range(2):
        centre = start_1
        k = 0 if side == 0 else -1
        while True:
            if k >= MOST_ROWS or k < -MOST_ROWS:
                total[16] += 1.0
                break
            top, at, first, last = row_of(centre, start_2 + k, step, frame, p, a, origin, part, total)
            if not top > -DROP:
                break
            ends[0, MOST_ROWS + k] = first
            ends[1, MOST_ROWS + k] = last
            centre = at
            k += 1 if side == 0 else -1


def agree(one: np.ndarray, other: np.ndarray, origin: Found) -> bool:
    """Return whether the sums over two lattices agree up to `TOLERANCE`, or ten times that, and have no bad nodes."""
    total = one[0] + other[0]
    limit = TOLERANCE * total
    same = one[16] + other[16] == 0.0 and abs(one[0] - other[0]) < limit
    for k in range(1, 3):
        same = same and abs(one[k] - other[k]) < limit
    for k in range(3, 6):
        same = same and abs(one[k] - other[k]) < 10.0 * limit
    for k in range(PARAMETERS):
        size = total * abs(origin[3 + k]) + abs(one[SUMS + k] + other[SUMS + k])
        same = same and abs(one[SUMS + k] - other[SUMS + k]) <= 10.0 * TOLERANCE * size
    return same


def summed(
    step: float,
    frame: Frame,
    p: float,
    a: Fixed,
    origin: Found,
    part: Part,
    total: np.ndarray,
    other: np.ndarray,
    ends: np.ndarray,
    others: np.ndarray,
) -> float:
    """Put the sums over all nodes in `total`; return the area of a node, zero if the site is not accepted."""
    lattice(0.0, 0.0, step, frame, p, a, origin, part, total, ends)
    for _ in range(LEVELS):
        lattice(0.5, 0.5, step, frame, p, a, origin, part, other, others)
        same = agree(total, other, origin)
        total += other
        if same:
            # Both lattices together have two nodes in a square of side h.
            return 0.5 * step * step
        if total[16] > 0.0:
            break
        for side in range(2):
            # Points midway on the edges of the squares complete the lattice of step h / 2.
            lattice(0.5 * side, 0.5 - 0.5 * side, step, frame, p, a, origin, part, other, others)
            total += other
        step *= 0.5
    return 0.0


def hidden(f: float, step: float, frame: Frame, p: float, a: Fixed, ends: np.ndarray) -> bool:
    """Return whether the lattice misses a high ridge of F, so that there may be another peak.

    A scale that is small compared with a location's standard deviation makes a narrow ridge.
    """
    z_1, z_2, m_1, m_2, l_1, l_21, l_2, s_1, s_21, s_2 = frame
    for axis in range(2):
        for place in GRID:
            x_1, x_2 = (place, 0.0) if axis == 0 else (0.0, place)
            spacing, bend = (s_2 if axis == 0 else s_1) * step, 0.0
            for _ in range(ALONG):
                g, g_1, g_2 = slopes_at(x_1, x_2, m_1, m_2, l_1, l_21, l_2, p, a)
                if axis == 0:
                    _, _, after = slopes_at(x_1, x_2 + DIFFERENCE, m_1, m_2, l_1, l_21, l_2, p, a)
                    slope = g_2
                else:
                    _, after, _ = slopes_at(x_1 + DIFFERENCE, x_2, m_1, m_2, l_1, l_21, l_2, p, a)
                    slope = g_1
                bend = (slope - after) / DIFFERENCE
                move = slope / max(bend, LEAST)
                if not np.isfinite(move):
                    break
                move = min(max(move, -FAR), FAR)
                if axis == 0:
                    x_2 += move
                else:
                    x_1 += move
                if move * slope < FOUND:
                    break
            g, g_1, g_2 = slopes_at(x_1, x_2, m_1, m_2, l_1, l_21, l_2, p, a)
            if g > f - SEEN:
                if bend * spacing * spacing > NARROW:
                    return True
                # u = S^-1 (z - z*).
                u_1 = (x_1 - z_1) / s_1
                u_2 = (x_2 - z_2 - s_21 * u_1) / s_2
                row = np.floor(u_2 / step + 0.5) + MOST_ROWS
                if not (row >= 0.0 and row < 2.0 * MOST_ROWS):
                    return True
                if not (ends[0, int(row)] - 1.0 <= u_1 / step <= ends[1, int(row)] + 1.0):
                    return True
    return False


def moments(arguments: np.ndarray) -> np.ndarray:
    """Return the fields of `op.FIELDS_OF_TWO`, derivatives in parameters, and ones for accepted sites.

    Arguments are (7 + parameters, n): observations, cavity means, variances and covariances, powers, and parameters.
    """
    n = arguments.shape[1]
    out = np.zeros((16 + PARAMETERS, n))
    part = np.empty(LANES), np.empty(LANES), np.empty(LANES), np.empty(LANES), np.empty((PARAMETERS, LANES))
    total, other = np.empty(SUMS + PARAMETERS), np.empty(SUMS + PARAMETERS)
    ends, others = np.empty((2, 2 * MOST_ROWS)), np.empty((2, 2 * MOST_ROWS))
    for i in range(n):
        m_1, m_2, p = arguments[1, i], arguments[2, i], arguments[6, i]
        # L of V = L L^T.
        l_1 = np.sqrt(arguments[3, i])
        l_21 = arguments[5, i] / l_1
        l_2 = np.sqrt(arguments[4, i] - l_21 * l_21)
        a = fixed(arguments[0, i], arguments[7:, i])
        f, z_1, z_2, h_11, h_12, h_22 = mode_from(0.0, 0.0, m_1, m_2, l_1, l_21, l_2, p, a)
        if not h_11 > 0.0:
            continue
        # S, of the inverse of -F''.
        det = h_11 * h_22 - h_12 * h_12
        s_1 = np.sqrt(h_22 / det)
        s_21 = -h_12 / det / s_1
        s_2 = np.sqrt(h_11 / det - s_21 * s_21)
        frame = z_1, z_2, m_1, m_2, l_1, l_21, l_2, s_1, s_21, s_2
        x_1, x_2 = m_1 + l_1 * z_1, m_2 + l_21 * z_1 + l_2 * z_2
        origin = density(x_1, x_2, a)
        area = summed(STEP, frame, p, a, origin, part, total, other, ends, others)
        if not area > 0.0 or hidden(f, STEP, frame, p, a, ends):
            continue
        w = total[0]
        # M, C, and E g less its value at the mode; then T = L S.
        u_1, u_2 = total[1] / w, total[2] / w
        c_11, c_12, c_22 = total[3] / w - u_1 * u_1, total[4] / w - u_1 * u_2, total[5] / w - u_2 * u_2
        g_1, g_2 = total[10] / w, total[11] / w
        t_1, t_21, t_2 = l_1 * s_1, l_21 * s_1 + l_2 * s_21, l_2 * s_2
        # Covariance of u and g, and C^-1 times it; then T^-T.
        b_11, b_12 = total[12] / w - u_1 * g_1, total[13] / w - u_1 * g_2
        b_21, b_22 = total[14] / w - u_2 * g_1, total[15] / w - u_2 * g_2
        det = c_11 * c_22 - c_12 * c_12
        e_11, e_12 = (c_22 * b_11 - c_12 * b_21) / det, (c_22 * b_12 - c_12 * b_22) / det
        e_21, e_22 = (c_11 * b_21 - c_12 * b_11) / det, (c_11 * b_22 - c_12 * b_12) / det
        q_21, q_22 = e_21 / t_2, e_22 / t_2
        q_11, q_12 = (e_11 - t_21 * q_21) / t_1, (e_12 - t_21 * q_22) / t_1
        out[0, i] = f + np.log(area * s_1 * s_2 * w) - LOG_2_PI
        out[1, i] = x_1 + t_1 * u_1
        out[2, i] = x_2 + t_21 * u_1 + t_2 * u_2
        out[3, i] = t_1 * t_1 * c_11
        out[4, i] = t_21 * t_21 * c_11 + 2.0 * t_21 * t_2 * c_12 + t_2 * t_2 * c_22
        out[5, i] = t_1 * (t_21 * c_11 + t_2 * c_12)
        out[6, i] = p * (origin[1] + g_1)
        out[7, i] = p * (origin[2] + g_2)
        out[8, i] = -p * q_11
        out[9, i] = -p * q_22
        out[10, i] = -0.5 * p * (q_12 + q_21)
        # Third central moments of u, then of the predictors.
        # E u_i u_j u_k - M_i C_jk - M_j C_ik - M_k C_ij - M_i M_j M_k; T then acts on each index.
        d_111 = total[6] / w - 3.0 * u_1 * c_11 - u_1**3
        d_112 = total[7] / w - 2.0 * u_1 * c_12 - u_2 * c_11 - u_1 * u_1 * u_2
        d_122 = total[8] / w - 2.0 * u_2 * c_12 - u_1 * c_22 - u_1 * u_2 * u_2
        d_222 = total[9] / w - 3.0 * u_2 * c_22 - u_2**3
        out[11, i] = t_1**3 * d_111
        out[12, i] = t_1 * t_1 * (t_21 * d_111 + t_2 * d_112)
        out[13, i] = t_1 * (t_21 * t_21 * d_111 + 2.0 * t_21 * t_2 * d_112 + t_2 * t_2 * d_122)
        out[14, i] = t_21**3 * d_111 + 3.0 * t_21 * t_21 * t_2 * d_112 + 3.0 * t_21 * t_2 * t_2 * d_122 + t_2**3 * d_222
        for k in range(PARAMETERS):
            out[15 + k, i] = p * (origin[3 + k] + total[SUMS + k] / w)
        out[-1, i] = 1.0
    return out
