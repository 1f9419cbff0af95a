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
        out += [own.mean, own.bias, np.log(own.variance)]
        out += [np.log(own.bias_variance)] if own.bias_variance.all() else []
    tiny = np.finfo(float).tiny
    return [*out, *(np.log(np.maximum(popularity.censored, tiny)) for popularity in point[2:])]


def _symbols(before: Symbols, moved: Iterator[np.ndarray]) -> Symbols:
    """Return symbols from the next coordinates; biases that are held have no variance."""
    mean, bias, variance = next(moved), next(moved), np.exp(next(moved))
    bias_variance = np.exp(next(moved)) if before.bias_variance.all() else before.bias_variance
    return Symbols(*(part.astype(before.mean.dtype) for part in (mean, variance, bias, bias_variance)))
