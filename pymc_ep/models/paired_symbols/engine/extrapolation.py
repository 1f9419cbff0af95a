"""Squared extrapolation of sweeps (SQUAREM; Varadhan and Roland 2008, scheme S3).

Along its slowest directions, the steps of coordinate ascent shrink by nearly the same factor in each sweep. Let x1 and
x2 be the parameters one and two sweeps after x0, r = x1 - x0 and v = (x2 - x1) - r. The extrapolated parameters are
x0 - 2 a r + a^2 v, with a = -|r| / |v|. Parameters are means, and logarithms of variances and of the posteriors of
censored symbols.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from pymc_ep.models.paired_symbols.engine.values import Rows
from pymc_ep.models.paired_symbols.kernel import Symbols

__all__ = ["continued", "squared_lengths", "step_length", "with_censored"]

_LONGEST = 64.0
"""Largest extrapolation |a|: far above steps that raise the bound, and short of overflows."""


def squared_lengths(points: Sequence[Rows]) -> np.ndarray:
    """Return |r|^2 and |v|^2, (2,), of the rows of a side at three successive points x0, x1 and x2."""
    return np.array(
        [
            sum(float(np.sum(difference.astype(float) ** 2)) for difference in differences)
            for differences in _differences(points)
        ]
    )


def step_length(lengths: np.ndarray) -> float:
    """Return |a|, at least 1, from |r|^2 and |v|^2, (2,), summed over both sides."""
    a = min(np.sqrt(lengths[0] / lengths[1]), _LONGEST) if lengths[1] > 0 else 1.0
    # A step of 1 gives the last point itself.
    return float(max(a, 1.0))


def continued(points: Sequence[Rows], a: float) -> tuple[Rows, np.ndarray]:
    """Return extrapolated rows, and unnormalised log posterior probabilities of a censored symbol; `a` is |a|."""
    r, v = _differences(points)
    # x0 + 2 |a| r + |a|^2 v.
    moved = iter(x0 + 2.0 * a * first + a**2 * second for x0, first, second in zip(_coordinates(points[0]), r, v))
    last = points[-1]
    return last._replace(symbols=_symbols(last.symbols, moved)), next(moved)


def with_censored(rows: Rows, logits: np.ndarray, normaliser: float) -> Rows:
    """Return rows with the posterior exp(logits - normaliser) of a censored symbol."""
    return rows._replace(popularity=rows.popularity._replace(censored=np.exp(logits - normaliser)))


def _differences(points: Sequence[Rows]) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Return r and v, lists of arrays in the order of `_coordinates`."""
    before, between, after = map(_coordinates, points)
    r = [x1 - x0 for x0, x1 in zip(before, between)]
    return r, [(x2 - x1) - step for x1, x2, step in zip(between, after, r)]


def _coordinates(point: Rows) -> list[np.ndarray]:
    symbols = point.symbols
    return [
        symbols.mean,
        symbols.bias,
        _log(symbols.variance),
        _log(symbols.bias_variance),
        _log(point.popularity.censored),
    ]


def _log(values: np.ndarray) -> np.ndarray:
    """Return logarithms of positive numbers, and a finite number for zeros."""
    return np.log(np.maximum(values, np.finfo(values.dtype).tiny))


def _symbols(before: Symbols, moved: Iterator[np.ndarray]) -> Symbols:
    """Return symbols from the next four arrays of `moved`, means and log variances; variances of zero stay zero."""
    mean, bias = next(moved), next(moved)
    variance, bias_variance = (
        np.where(values > 0, np.exp(next(moved)), 0.0) for values in (before.variance, before.bias_variance)
    )
    return Symbols(*(array.astype(before.mean.dtype) for array in (mean, variance, bias, bias_variance)))
