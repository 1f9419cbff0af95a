"""Functions of counts and their rates: softplus rates, lower bounds on their logarithm, zero truncation."""

from functools import cache
from typing import NamedTuple

import numpy as np
import scipy
from scipy.special import betaln, expit

__all__ = [
    "Parabola",
    "at_most_one",
    "below_log_softplus",
    "log_binomial",
    "log_or_none",
    "log_softplus_bends",
    "no_zeros",
    "no_zeros_dispersed",
    "softplus",
    "softplus_curvature",
]

_FAR = -37.0
_TINY = np.exp(_FAR)
"""e^f at f = -37: below it log(1 + e^f) equals e^f in double precision."""


def softplus(f: np.ndarray | float) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return l = log(1 + e^f), log l, dl / df and d log l / df, shaped like f; log l is finite where l underflows."""
    small = np.exp(-np.abs(f))
    # l = max(f, 0) + log(1 + e^-|f|), and l' = 1 / (1 + e^-f) by the same exponential.
    rate = np.maximum(f, 0.0) + np.log1p(small)
    far, seen = f < _FAR, np.maximum(rate, _TINY)
    of_rate = np.where(f < 0, small, 1.0) / (1.0 + small)
    return rate, np.where(far, f, np.log(seen)), of_rate, np.where(far, 1.0, of_rate / seen)


def log_softplus_bends(f: np.ndarray | float) -> tuple[np.ndarray, np.ndarray]:
    """Return the second and third derivatives of log log(1 + e^f), of the shape of f."""
    _, _, p, slope = softplus(f)
    # h = log l has h' = p / l with p = l' and p' = p (1 - p): h'' = -h' (h' + p - 1).
    second = -slope * (slope + p - 1)
    return second, -second * (slope + p - 1) - slope * (second + p * (1 - p))


def _curvatures() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return a and b, (n,), on a grid of f, and the counts, (n - 1,), at which the largest a + b y moves to the next f.

    For Poisson counts y of rate log(1 + e^f), -d^2 log p(y | f) / df^2 = a + b y. For y above the k-th of the returned
    counts it is larger at grid point k + 1 than at k. As y grows, the maximum over f moves to larger f, up to the
    maximum of b, where the grid ends.
    """
    f = np.linspace(0.0, 0.495, 2001)
    _, _, p, _ = softplus(f)
    first, per_count = p * (1 - p), -log_softplus_bends(f)[0]
    kept = slice(0, int(np.argmax(per_count)) + 1)
    # a_k + b_k y = a_(k+1) + b_(k+1) y at y = -(a_(k+1) - a_k) / (b_(k+1) - b_k).
    return first[kept], per_count[kept], -np.diff(first[kept]) / np.diff(per_count[kept])


_CURVATURE, _CURVATURE_PER_COUNT, _MOVES_AT = _curvatures()


def softplus_curvature(y: np.ndarray) -> np.ndarray:
    """Return the largest -d^2 log p(y | f) / df^2 over all f for Poisson counts of rate log(1 + e^f), shaped like y.

    The maximum is at an f in [0, 0.495]: at 0 for y = 0, and at 0.495 in the limit of large y.
    """
    most = np.max(y, initial=0.0)
    few = np.size(y) > most
    counts = np.arange(most + 1) if few else y
    k = np.searchsorted(_MOVES_AT, counts)
    # The maximum between two points of the grid is larger by less than 1e-6 of it.
    curvature = (_CURVATURE[k] + counts * _CURVATURE_PER_COUNT[k]) * (1 + 1e-6)
    return curvature[np.asarray(y, dtype=np.intp)] if few else curvature


class _Touching(NamedTuple):
    """Splines, over w, of the parabolas of curvature c that touch h(f) = log log(1 + e^f) at p - w and p + w.

    Attributes
    ----------
    centre, curvature : ndarray, (4, n)
        Coefficients of cubic splines in x = log(1 + w^2), highest power first: of p, and of c times sqrt(1 + w^2). The
        last piece is for x beyond the last node, where p = log w - 1 and c = 1 / (2 w) to rounding.
    """

    centre: np.ndarray
    curvature: np.ndarray

    def centre_at(self, square: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return p and its derivative in w^2, at w^2 = `square`."""
        c, d = self._piece(self.centre, square)
        value = ((c[0] * d + c[1]) * d + c[2]) * d + c[3]
        # dx / d(w^2) = 1 / (1 + w^2).
        return value, ((3 * c[0] * d + 2 * c[1]) * d + c[2]) / (1 + square)

    def curvature_at(self, square: np.ndarray) -> np.ndarray:
        """Return c at w^2 = `square`, times 1 + 1e-8: the spline errs by less than this, so that the bound holds."""
        c, d = self._piece(self.curvature, square)
        return (((c[0] * d + c[1]) * d + c[2]) * d + c[3]) * (1 + 1e-8) / np.sqrt(1 + square)

    def _piece(self, table: np.ndarray, square: np.ndarray) -> tuple[list[np.ndarray], np.ndarray]:
        x = np.log1p(square) * _NODES_PER_UNIT
        # Moments of rejected steps may be NaN: fmin then gives a valid index, and the result is NaN.
        k = np.fmin(x, table.shape[1] - 1).astype(np.intp)
        return [row[k] for row in table], (x - k) / _NODES_PER_UNIT


_NODES_PER_UNIT, _LARGEST = 128, 40
"""Spline nodes per unit of x = log(1 + w^2), and the largest x."""
_NEWTON_STEPS = 3
"""Number of Newton steps for w^2 in `below_log_softplus`."""
_SMALLEST = np.finfo(float).tiny


@cache
def _touching() -> _Touching:
    """Return the splines of p and c; p at the nodes is computed by bisection."""
    x = np.arange(_NODES_PER_UNIT * _LARGEST + 1) / _NODES_PER_UNIT
    # w^2 = e^x - 1.
    w = np.sqrt(np.expm1(x[1:]))
    low, high = np.full(w.shape, 0.4), 0.6 + np.log1p(w)

    def ends(p: np.ndarray) -> tuple[np.ndarray, ...]:
        _, log_left, _, left = softplus(p - w)
        _, log_right, _, right = softplus(p + w)
        return left, right, log_left - (p - w), log_right

    for _ in range(60):
        middle = (low + high) / 2
        left, right, excess, log_right = ends(middle)
        # Sign of w (h'(p - w) + h'(p + w)) - (h(p + w) - h(p - w)), increasing in p. For large w, h(p - w) is near
        # p - w and its slope near 1: the differences from these are used, since large numbers would cancel.
        above = middle - log_right + excess + w * right - w * (1 - left) > 0
        low, high = np.where(above, low, middle), np.where(above, middle, high)
    left, right, *_ = ends(low)
    first = _largest_curvature_at()
    centre = np.append(first, low)
    # c = (h'(p - w) - h'(p + w)) / (2 w), and -h''(p) at w = 0, times sqrt(1 + w^2) = e^(x / 2).
    curvature = np.append(-log_softplus_bends(first)[0], (left - right) / (2 * w)) * np.exp(x / 2)
    # Beyond, p = log w - 1 = x / 2 - 1 has the slope 1 / 2, and c sqrt(1 + w^2) is constant.
    beyond = [0.0, 0.0, 0.5, centre[-1]], [0.0, 0.0, 0.0, curvature[-1]]
    spline = scipy.interpolate.CubicSpline
    return _Touching(*(np.column_stack([spline(x, of).c, end]) for of, end in zip((centre, curvature), beyond)))


def _largest_curvature_at() -> float:
    """Return the f at which the curvature of log log(1 + e^f), minus its second derivative, is largest: p at w = 0."""
    return scipy.optimize.brentq(lambda f: float(log_softplus_bends(np.float64(f))[1]), 0.0, 1.0, xtol=1e-15)


class Parabola(NamedTuple):
    """Parabola h(t) + h'(t) (f - t) - c (f - t)^2 / 2 that is a lower bound on h(f).

    Attributes
    ----------
    touches : ndarray, (n,)
        Point t, one of the two at which the parabola equals h.
    curvature : ndarray, (n,)
        Curvature c.
    """

    touches: np.ndarray
    curvature: np.ndarray


def below_log_softplus(mean: np.ndarray, variance: np.ndarray) -> Parabola:
    """Return the parabola below h(f) = log log(1 + e^f) with the largest expectation.

    The slope of a parabola is linear, so one that touches h at p - w and p + w satisfies

        w (h'(p - w) + h'(p + w)) = h(p + w) - h(p - w),

    which determines p for each w. Let q_w be this parabola. As q_w <= h with equality at both points, dq_w / dw is zero
    there: it is a multiple of (f - p)^2 - w^2. E q_w is thus stationary at w^2 = (mean - p)^2 + variance, which is
    solved by Newton's method.

    This is the best parabola. The expectation of a parabola depends on the mean and the variance alone, and for a
    parabola below h is at most E h under any distribution with these moments. One such distribution has its mass on
    p - w and p + w, where q_w = h: there E q_w = E h. For variance zero the parabola touches h at the mean.

    Parameters
    ----------
    mean, variance : ndarray, (n,)
        Moments of f; the variance is not negative. NaN gives NaN.

    Returns
    -------
    Parabola
        With the point of contact nearer to the mean.
    """
    table = _touching()
    square = (mean - table.centre[-1, 0]) ** 2 + variance
    for _ in range(_NEWTON_STEPS):
        centre, slope = table.centre_at(square)
        gap = mean - centre
        # Newton's method for w^2 - (mean - p)^2 - variance = 0, of slope 1 + 2 (mean - p) dp / d(w^2).
        square = np.maximum(square - (square - gap**2 - variance) / (1 + 2 * gap * slope), variance)
    centre, _ = table.centre_at(square)
    gap = mean - centre
    # Distance w - |gap| of the mean to the nearer point, as w^2 = gap^2 + variance: without cancellation.
    away = variance / (np.sqrt(gap**2 + variance) + np.abs(gap) + _SMALLEST)
    return Parabola(mean + np.where(gap < 0, -away, away), table.curvature_at(square))


def log_or_none(y: np.ndarray) -> np.ndarray:
    """Return log y of counts, minus infinity where y is zero."""
    with np.errstate(divide="ignore"):
        return np.log(y)


def log_binomial(y: np.ndarray, alpha: np.ndarray) -> np.ndarray:
    """Return log Gamma(alpha + y) - log Gamma(alpha) - log y!, accurate also for alpha far above y."""
    # Gamma(alpha + y) / (Gamma(alpha) y!) = 1 / (y B(alpha, y)) for y > 0.
    some = np.maximum(y, 1.0)
    return np.where(y > 0, -betaln(alpha, some) - np.log(some), 0.0)


def no_zeros(f: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return -log P(y > 0) for a Poisson count of rate e^f, and its derivative in f."""
    rate = np.exp(f)
    small = rate < 1e-8
    # -log(1 - e^-rate) = -f + rate / 2 - ..., and rate / (e^rate - 1) = 1 - rate / 2 + ...: exact below 1e-8.
    # Above 700, P(0) is zero in doubles; rates may be infinite.
    safe = np.where(small, 1.0, np.minimum(rate, 700.0))
    slope = -np.where(small, 1.0 - rate / 2, safe / np.expm1(safe))
    return np.where(small, -f + rate / 2, -np.log(-np.expm1(-safe))), slope


def no_zeros_dispersed(f: np.ndarray, alpha: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return -log P(y > 0) for a negative binomial count of mean e^f, and its derivatives in f and in alpha."""
    rate = np.exp(f)
    grown = np.logaddexp(0.0, f - np.log(alpha))
    # P(0) = e^{-t} with t = alpha log(1 + rate / alpha); the odds of a zero are 1 / (e^t - 1).
    t = alpha * grown
    # To first order in rate and rate / alpha, log t = f - rate / (2 alpha); a rate may be zero in doubles.
    tiny, first = rate < 1e-8 * np.minimum(alpha, 1.0), rate / 2 * (1 + 1 / alpha)
    small = (t < 1e-8) & ~tiny
    # For small t, -log(1 - e^-t) = -log t + t / 2 - ... and 1 / (e^t - 1) = 1 / t - 1 / 2 + ...
    safe, near = np.where(small | tiny, 1.0, t), np.where(small, t, 1.0)
    with np.errstate(over="ignore"):
        odds = np.where(small, 1.0 / near - 0.5, 1.0 / np.expm1(safe))
    value = np.where(tiny, first - f, np.where(small, -np.log(near) + t / 2, -np.log(-np.expm1(-safe))))
    # dt / df = alpha share and dt / d alpha = grown - share, with share = rate / (alpha + rate).
    share = expit(f - np.log(alpha))
    of_alpha = np.where(tiny, -rate / (2 * alpha**2), -odds * (grown - share))
    return value, np.where(tiny, first - 1, -odds * alpha * share), of_alpha


def at_most_one(above: np.ndarray, log_scale: np.ndarray) -> np.ndarray:
    """Return the probability min(`above` e^log_scale, 1); e^log_scale may overflow where `above` is zero."""
    with np.errstate(divide="ignore"):
        return np.exp(np.minimum(np.log(above) + log_scale, 0.0))
