"""Functions of counts and their rates: softplus, parabolas below its logarithm, zero truncation."""

from functools import cache
from typing import NamedTuple

import numpy as np
from scipy.interpolate import CubicSpline
from scipy.optimize import brentq
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
    """Return l = log(1 + e^f), log l, dl/df and d log l / df, accurate even where l underflows."""
    small = np.exp(-np.abs(f))
    rate = np.maximum(f, 0.0) + np.log1p(small)
    far, seen = f < _FAR, np.maximum(rate, _TINY)
    of_rate = np.where(f < 0, small, 1.0) / (1.0 + small)
    return rate, np.where(far, f, np.log(seen)), of_rate, np.where(far, 1.0, of_rate / seen)


def log_softplus_bends(f: np.ndarray | float) -> tuple[np.ndarray, np.ndarray]:
    """Return the second and third derivatives of log log(1 + e^f)."""
    _, _, p, slope = softplus(f)
    second = -slope * (slope + p - 1)
    return second, -second * (slope + p - 1) - slope * (second + p * (1 - p))


def _curvatures() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return a and b of -d^2 log p / df^2 = a + b y on a grid of f, and the y above which it is larger at the next f.

    The maximum over f moves to larger f as y grows, up to the maximum of b.
    """
    f = np.linspace(0.0, 0.495, 2001)
    _, _, p, _ = softplus(f)
    first, per_count = p * (1 - p), -log_softplus_bends(f)[0]
    kept = slice(0, int(np.argmax(per_count)) + 1)
    return first[kept], per_count[kept], -np.diff(first[kept]) / np.diff(per_count[kept])


_NO_COUNTS, _A_COUNT, _OVERTAKEN = _curvatures()


def softplus_curvature(y: np.ndarray) -> np.ndarray:
    """Return the largest -d^2 log p(y | f) / df^2 over all f for Poisson counts of rate log(1 + e^f), shaped like y.

    The maximum is at an f in [0, 0.495]: at 0 for y = 0, and at 0.495 in the limit of large y.
    """
    most = np.max(y, initial=0.0)
    few = np.size(y) > most
    counts = np.arange(most + 1) if few else y
    k = np.searchsorted(_OVERTAKEN, counts)
    # Between two points of the grid the maximum is larger by less than 1e-6 of it.
    found = (_NO_COUNTS[k] + counts * _A_COUNT[k]) * (1 + 1e-6)
    return found[np.asarray(y, dtype=np.intp)] if few else found


class _Touching(NamedTuple):
    """Parabolas that touch log log(1 + e^f) at p - w and p + w, as cubic splines in x = log(1 + w^2).

    Attributes
    ----------
    centre, curvature : ndarray, (4, n)
        Coefficients of p, and of the curvature times sqrt(1 + w^2), highest power first. Beyond the last node p is
        log w - 1 and the curvature 1 / (2 w), to rounding.
    """

    centre: np.ndarray
    curvature: np.ndarray

    def centre_at(self, square: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return p and its derivative in w^2."""
        c, d = self._piece(self.centre, square)
        value = ((c[0] * d + c[1]) * d + c[2]) * d + c[3]
        return value, ((3 * c[0] * d + 2 * c[1]) * d + c[2]) / (1 + square)

    def curvature_at(self, square: np.ndarray) -> np.ndarray:
        """Return the curvature, raised by 1e-8 of it: more than the error of the spline."""
        c, d = self._piece(self.curvature, square)
        return (((c[0] * d + c[1]) * d + c[2]) * d + c[3]) * (1 + 1e-8) / np.sqrt(1 + square)

    def _piece(self, table: np.ndarray, square: np.ndarray) -> tuple[list[np.ndarray], np.ndarray]:
        x = np.log1p(square) * _A_UNIT
        # Moments of trial steps may be NaN; the index must be valid, and the result is NaN.
        k = np.fmin(x, table.shape[1] - 1).astype(np.intp)
        return [row[k] for row in table], (x - k) / _A_UNIT


_A_UNIT, _UNITS = 128, 40
"""Spline nodes per unit of x, and the largest x."""
_NEWTON_STEPS = 3
_SMALLEST = np.finfo(float).tiny


@cache
def _touching() -> _Touching:
    """Return both splines; their values at the nodes are found by bisection."""
    x = np.arange(_A_UNIT * _UNITS + 1) / _A_UNIT
    w = np.sqrt(np.expm1(x[1:]))
    low, high = np.full(w.shape, 0.4), 0.6 + np.log1p(w)

    def ends(p: np.ndarray) -> tuple[np.ndarray, ...]:
        _, log_left, _, left = softplus(p - w)
        _, log_right, _, right = softplus(p + w)
        return left, right, log_left - (p - w), log_right

    for _ in range(60):
        middle = (low + high) / 2
        left, right, excess, log_right = ends(middle)
        # w (h'(p - w) + h'(p + w)) - (h(p + w) - h(p - w)), increasing in p. On the left h(f) is close to f, so f is
        # subtracted there: no difference of large numbers remains.
        above = middle - log_right + excess + w * right - w * (1 - left) > 0
        low, high = np.where(above, low, middle), np.where(above, middle, high)
    left, right, *_ = ends(low)
    first = _steepest()
    centre = np.append(first, low)
    curvature = np.append(-log_softplus_bends(first)[0], (left - right) / (2 * w)) * np.exp(x / 2)
    beyond = [0.0, 0.0, 0.5, centre[-1]], [0.0, 0.0, 0.0, curvature[-1]]
    return _Touching(*(np.column_stack([CubicSpline(x, of).c, end]) for of, end in zip((centre, curvature), beyond)))


def _steepest() -> float:
    """Return the f at which the second derivative of log log(1 + e^f) is least."""
    return brentq(lambda f: float(log_softplus_bends(np.float64(f))[1]), 0.0, 1.0, xtol=1e-15)


class Parabola(NamedTuple):
    """A function h(t) + h'(t) (f - t) - c (f - t)^2 / 2 below h(f).

    Attributes
    ----------
    touches : ndarray
        t, one of the two points at which the parabola equals h.
    curvature : ndarray
        c.
    """

    touches: np.ndarray
    curvature: np.ndarray


def below_log_softplus(mean: np.ndarray, variance: np.ndarray) -> Parabola:
    """Return the parabola below h(f) = log log(1 + e^f) that has the largest expectation.

    A parabola that touches h at p - w and p + w rises between them by 2 w times the mean of both slopes,

        w (h'(p - w) + h'(p + w)) = h(p + w) - h(p - w),

    which gives the centre p for each w. Its derivative in w is a multiple of (f - p + w) (f - p - w), zero at both
    points. The expectation is stationary where that of this product is zero, at w^2 = (mean - p)^2 + variance.

    No other parabola is better. The expectation of a parabola depends on the two moments alone, and for a parabola
    below h it is at most that of h under any distribution with these moments. For the distribution on the two points
    p - w and p + w the expectations of h and of the parabola found here are equal. With variance zero the parabola
    touches h at the mean.

    Parameters
    ----------
    mean, variance : ndarray, (n,)
        Moments of f.
    """
    table = _touching()
    square = (mean - table.centre[-1, 0]) ** 2 + variance
    for _ in range(_NEWTON_STEPS):
        centre, slope = table.centre_at(square)
        gap = mean - centre
        square = np.maximum(square - (square - gap**2 - variance) / (1 + 2 * gap * slope), variance)
    centre, _ = table.centre_at(square)
    gap = mean - centre
    # The point nearer to the mean, from gap^2 - w^2 = -variance: no cancellation at any variance.
    away = variance / (np.sqrt(gap**2 + variance) + np.abs(gap) + _SMALLEST)
    return Parabola(mean + np.where(gap < 0, -away, away), table.curvature_at(square))


def log_or_none(y: np.ndarray) -> np.ndarray:
    """Return log y of counts, minus infinity where y is zero."""
    with np.errstate(divide="ignore"):
        return np.log(y)


def log_binomial(y: np.ndarray, alpha: np.ndarray) -> np.ndarray:
    """Return log Gamma(alpha + y) - log Gamma(alpha) - log y!, accurate also for alpha far above y."""
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
    safe, near = np.where(small | tiny, 1.0, t), np.where(small, t, 1.0)
    with np.errstate(over="ignore"):
        odds = np.where(small, 1.0 / near - 0.5, 1.0 / np.expm1(safe))
    value = np.where(tiny, first - f, np.where(small, -np.log(near) + t / 2, -np.log(-np.expm1(-safe))))
    share = expit(f - np.log(alpha))
    of_alpha = np.where(tiny, -rate / (2 * alpha**2), -odds * (grown - share))
    return value, np.where(tiny, first - 1, -odds * alpha * share), of_alpha


def at_most_one(above: np.ndarray, log_scale: np.ndarray) -> np.ndarray:
    """Return a probability times e^log_scale, whose second factor may overflow where the probability is zero."""
    with np.errstate(divide="ignore"):
        return np.exp(np.minimum(np.log(above) + log_scale, 0.0))
