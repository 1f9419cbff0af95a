"""Maxima of many small concave functions at once, by L-BFGS with a line search of its own for each (Nocedal 1980)."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np

__all__ = ["Found", "Pair", "Scale", "maximise_many", "scaled"]

_MEMORY = 10
_INCREASE = 1e-4
"""Least increase over that which the slope promises (Armijo)."""
_HALVINGS = 30
_CURVED = 1e-10
"""Least cosine between step and change of gradient at which a pair is kept."""

Evaluate = Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]
"""Of the numbers of some functions, (k,), and points, (k, p): their values, (k,), and gradients, (k, p)."""
Scale = np.ndarray | Callable[[np.ndarray, np.ndarray], np.ndarray]
"""About the inverse of minus the Hessian: its diagonals, (m, p), or what it makes of gradients, (k, p), of some
functions, (k,)."""


class Pair(NamedTuple):
    """What is remembered of a step.

    Attributes
    ----------
    move, change : ndarray, (m, p)
        The step and the change of the gradients in it; zeros for functions that were left alone.
    inverse : ndarray, (m,)
        Inverses of minus their products; zero where the pair tells nothing.
    """

    move: np.ndarray
    change: np.ndarray
    inverse: np.ndarray

    def of(self, rows: slice | np.ndarray) -> "Pair":
        """Return the part of some functions."""
        return Pair(self.move[rows], self.change[rows], self.inverse[rows])


class Found(NamedTuple):
    """Where maximisation ended.

    Attributes
    ----------
    points, gradients : ndarray, (m, p)
    values : ndarray, (m,)
    memory : tuple of Pair
        Of the last steps, the first one first.
    """

    points: np.ndarray
    values: np.ndarray
    gradients: np.ndarray
    memory: tuple[Pair, ...]


def maximise_many(
    evaluate: Evaluate,
    start: np.ndarray | Found,
    scale: Scale,
    *,
    max_iter: int,
    tol: float,
    longest: np.ndarray | None = None,
) -> Found:
    """Maximise functions of p unknowns each, none of which falls.

    Parameters
    ----------
    evaluate : callable
        Its values may be -inf beyond the domain, but not at `start`.
    start : ndarray, (m, p), or Found
        The latter where an ascent of the same functions goes on.
    scale : ndarray, (m, p), or callable
        Positive (definite): about the inverse of minus each second derivative, or of minus the Hessian, which the first
        steps take for it.
    max_iter : int
        Steps of each function at most.
    tol : float
        A function is left alone once its slope promises no greater increase, half of g^T S g for gradient g and S from
        `scale`.
    longest : ndarray, (p,), optional
        By how much a step changes each unknown at most; only with a diagonal scale.
    """
    if isinstance(start, Found):
        points, values, gradients = (part.copy() for part in start[:3])
        pairs = list(start.memory)
    else:
        points, pairs = start.copy(), []
        values, gradients = evaluate(np.arange(len(points)), points)
    everyone, stuck = np.arange(len(points)), np.zeros(len(points), dtype=bool)
    for _ in range(max_iter):
        steepest = scaled(scale, everyone, gradients)
        active = np.flatnonzero((0.5 * np.einsum("mp,mp->m", gradients, steepest) > tol) & ~stuck)
        if not active.size:
            break
        # Views of all functions, where all are active: copies of the memory would take longer than all else here.
        rows = _which(active, len(points))
        ahead = _direction(gradients[active], partial(scaled, scale, active), [pair.of(rows) for pair in pairs])
        if longest is not None:
            for direction in (ahead, steepest):
                np.clip(direction, -longest, longest, out=direction)
        slope = np.einsum("mp,mp->m", gradients[active], ahead)
        uphill = slope > 0.0
        ahead[~uphill] = steepest[active[~uphill]]
        slope[~uphill] = np.einsum("mp,mp->m", gradients[active[~uphill]], ahead[~uphill])
        before, steepness = points[active], gradients[active]
        stuck[_step(evaluate, active, ahead, slope, points, values, gradients)] = True
        move, change = (
            _among_all(part, active, points.shape) for part in (points[rows] - before, gradients[rows] - steepness)
        )
        pairs = [*pairs, Pair(move, change, _inverse(move, change))][-_MEMORY:]
    return Found(points, values, gradients, tuple(pairs))


def scaled(scale: Scale, which: np.ndarray, gradients: np.ndarray) -> np.ndarray:
    """Return what a scale makes of gradients of some functions, (k, p)."""
    return scale(which, gradients) if callable(scale) else scale[which] * gradients


def _which(numbers: np.ndarray, n: int) -> slice | np.ndarray:
    """Return what takes some of n functions, in order: a view where they are all."""
    return slice(None) if numbers.size == n else numbers


def _among_all(values: np.ndarray, active: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    if len(values) == shape[0]:
        return values
    out = np.zeros(shape)
    out[active] = values
    return out


def _step(
    evaluate: Evaluate,
    active: np.ndarray,
    ahead: np.ndarray,
    slope: np.ndarray,
    points: np.ndarray,
    values: np.ndarray,
    gradients: np.ndarray,
) -> np.ndarray:
    """Move the active functions, each by the first of halved steps that raises it enough; in place.

    Returned are the numbers of those that rounding keeps where they are.
    """
    length, left = np.ones(len(active)), np.arange(len(active))
    for _ in range(_HALVINGS):
        rows = active[left]
        trial = length[left, None] * ahead[_which(left, len(ahead))]
        trial += points[_which(rows, len(points))]
        value, gradient = evaluate(rows, trial)
        # A comparison with NaN is false as well: beyond the domain gradients may be anything.
        risen = value >= values[rows] + _INCREASE * length[left] * slope[left]
        to, by = _which(rows[risen], len(points)), _which(np.flatnonzero(risen), len(rows))
        points[to], values[to], gradients[to] = trial[by], value[by], gradient[by]
        left = left[~risen]
        if not left.size:
            break
        length[left] *= 0.5
    return active[left]


def _inverse(move: np.ndarray, change: np.ndarray) -> np.ndarray:
    """Return the inverses of minus the products of moves and changes, (m,); zero for pairs that are not kept."""
    product = -np.einsum("mp,mp->m", move, change)
    size = np.sqrt(np.einsum("mp,mp->m", move, move) * np.einsum("mp,mp->m", change, change))
    kept = product > _CURVED * size
    return np.where(kept, 1.0 / np.where(kept, product, 1.0), 0.0)


def _direction(
    gradient: np.ndarray,
    first: Callable[[np.ndarray], np.ndarray],
    pairs: list[Pair],
) -> np.ndarray:
    """Return the two-loop recursion's direction of ascent for each function.

    `first` takes the place of the inverse Hessian, and `gradient` is written over.
    """
    q, weights, product = gradient, [], np.empty_like(gradient)
    for s, y, inverse in reversed(pairs):
        weights.append(inverse * np.einsum("mp,mp->m", s, q))
        q += np.multiply(weights[-1][:, None], y, out=product)
    q = first(q)
    if pairs:
        s, y, inverse = pairs[-1]
        known = inverse > 0.0
        curvature = np.einsum("mp,mp->m", y, first(y))
        q *= np.where(known, 1.0 / np.where(known, inverse * curvature, 1.0), 1.0)[:, None]
    for (s, y, inverse), weight in zip(pairs, reversed(weights)):
        q += np.multiply((weight + inverse * np.einsum("mp,mp->m", y, q))[:, None], s, out=product)
    return q
