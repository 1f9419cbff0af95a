"""Squared extrapolation of sweeps (SQUAREM; Varadhan and Roland 2008, scheme S3).

Coordinate ascent moves along its slowest directions by nearly the same factor a sweep. With x1 and x2 one and two
sweeps after x0, r = x1 - x0 and v = (x2 - x1) - r, it is continued to x0 - 2 a r + a^2 v, a = -|r| / |v|. Means are
extrapolated as they are, variances and the posteriors of censored symbols by their logarithms.
"""

from collections.abc import Iterator

import numpy as np
from scipy.special import softmax

from pymc_ep.engines.paired_symbols.values import Popularity
from pymc_ep.kernels.paired_symbols import Symbols

__all__ = ["Factors", "extrapolated"]

Factors = tuple[Symbols, Symbols, Popularity, Popularity]
"""Posterior factors of users and items."""
_LONGEST = 64.0
"""Largest extrapolation |a|: far above those that raise the bound, and short of overflows."""


def extrapolated(points: tuple[Factors, Factors, Factors]) -> Factors:
    """Return factors continued from three successive sweeps."""
    before, between, after = (_coordinates(point) for point in points)
    r = [one - zero for zero, one in zip(before, between)]
    v = [(two - one) - first for one, two, first in zip(between, after, r)]
    lengths = [sum(float(np.sum(part.astype(float) ** 2)) for part in parts) for parts in (r, v)]
    a = min(np.sqrt(lengths[0] / lengths[1]), _LONGEST) if lengths[1] > 0 else 1.0
    # The last point itself is that of a = 1.
    a = max(a, 1.0)
    moved = iter(zero + 2.0 * a * first + a**2 * second for zero, first, second in zip(before, r, v))
    users, items, s, t = points[-1]
    symbols = [_symbols(one, moved) for one in (users, items)]
    s, t = (popularity._replace(censored=softmax(next(moved))) for popularity in (s, t))
    return symbols[0], symbols[1], s, t


def _coordinates(point: Factors) -> list[np.ndarray]:
    out = []
    for own in point[:2]:
        out += [own.mean, own.bias, _log(own.variance), _log(own.bias_variance)]
    return [*out, *(_log(popularity.censored) for popularity in point[2:])]


def _log(values: np.ndarray) -> np.ndarray:
    """Return logarithms of positive numbers, and a finite number for zeros."""
    return np.log(np.maximum(values, np.finfo(values.dtype).tiny))


def _symbols(before: Symbols, moved: Iterator[np.ndarray]) -> Symbols:
    """Return symbols from the next coordinates; points and constants still have no variance."""
    mean, bias = next(moved), next(moved)
    variance, bias_variance = (
        np.where(own > 0, np.exp(next(moved)), 0.0) for own in (before.variance, before.bias_variance)
    )
    return Symbols(*(part.astype(before.mean.dtype) for part in (mean, variance, bias, bias_variance)))
