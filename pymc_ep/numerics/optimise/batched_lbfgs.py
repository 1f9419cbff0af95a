"""Maxima of many small concave functions at once, by L-BFGS with a line search of its own for each (Nocedal 1980)."""

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import NamedTuple

import numpy as np

__all__ = ["Found", "Pair", "Scale", "maximise_many", "scaled"]

_MEMORY = 10
"""Number of correction pairs kept for each function. More pairs save steps, but a step takes more memory and time."""
_ARMIJO = 1e-4
"""Least increase of a step, relative to step times slope: the usual constant of Armijo's condition (Nocedal and Wright
2006, section 3.1)."""
_HALVINGS = 30
"""Most halvings of one step, to 1e-9 of its length, below which rounding hides an increase."""
_LEAST_SHARE = 1e-10
"""Least scalar product of a step and minus its change of gradient, relative to the sum of the moduli of its terms. A
smaller product is rounding, and the pair is dropped. The ratio does not depend on the units of the unknowns."""
_FEW = 2**17
"""Largest number of entries of all directions for the NumPy body of the recursion. The Numba body takes half of the
time, but two seconds to compile at first, more than it saves in an ascent of fewer entries."""

Evaluate = Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]
"""Maps indices of functions, (k,), and points, (k, p), to values, (k,), and gradients, (k, p)."""
Scale = np.ndarray | Callable[[np.ndarray, np.ndarray], np.ndarray]
"""Approximate inverse of minus the Hessian: diagonals, (m, p), or a function from indices of functions, (k,), and
gradients, (k, p), to products, (k, p)."""


class Pair(NamedTuple):
    """One correction pair of L-BFGS, for each of m functions.

    Attributes
    ----------
    move, change : ndarray, (m, p)
        Step and change of gradient; zero for functions that did not move.
    inverse : ndarray, (m,)
        1 / (-move . change); zero for a pair that is dropped.
    """

    move: np.ndarray
    change: np.ndarray
    inverse: np.ndarray


class Found(NamedTuple):
    """Last iterates of a maximisation of m functions.

    Attributes
    ----------
    points, gradients : ndarray, (m, p)
    values : ndarray, (m,)
    memory : tuple of Pair
        Correction pairs of the last steps, oldest first.
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
    """Maximise m functions of p unknowns each; no value ever decreases.

    Parameters
    ----------
    evaluate : callable
        Returns values and gradients, see `Evaluate`. Values may be -inf outside the domain, but not at `start`.
    start : ndarray, (m, p), or Found
        A `Found` continues an ascent of the same functions.
    scale : ndarray, (m, p), or callable
        Initial matrix of the recursion, positive definite: an approximate inverse of minus the Hessian, see `Scale`.
    max_iter : int
        Largest number of steps of each function.
    tol : float
        A function has converged once g^T S g / 2, the increase that its gradient g promises under S = `scale`, is at
        most this.
    longest : ndarray, (p,), optional
        Largest change of each unknown in one step; only with a diagonal scale.
    """
    if isinstance(start, Found):
        points, values, gradients = start[:3]
        pairs = list(start.memory)
    else:
        points, pairs = start, []
        values, gradients = evaluate(np.arange(len(points)), points)
    all_indices, stalled = np.arange(len(points)), np.zeros(len(points), dtype=bool)
    for _ in range(max_iter):
        steepest = scaled(scale, all_indices, gradients)
        active = np.flatnonzero((0.5 * np.einsum("mp,mp->m", gradients, steepest) > tol) & ~stalled)
        if not active.size:
            break
        ascent = _direction(gradients[active], partial(scaled, scale, active), pairs, active)
        if longest is not None:
            for direction in (ascent, steepest):
                np.clip(direction, -longest, longest, out=direction)
        slope = np.einsum("mp,mp->m", gradients[active], ascent)
        uphill = slope > 0.0
        ascent[~uphill] = steepest[active[~uphill]]
        slope[~uphill] = np.einsum("mp,mp->m", gradients[active[~uphill]], ascent[~uphill])
        (moved, values, steepness), stuck = _line_search(evaluate, active, ascent, slope, points, values, gradients)
        stalled[stuck] = True
        move, change = moved - points, steepness - gradients
        points, gradients = moved, steepness
        pairs = [*pairs, Pair(move, change, _inverse(move, change))][-_MEMORY:]
    return Found(points, values, gradients, tuple(pairs))


def scaled(scale: Scale, indices: np.ndarray, gradients: np.ndarray) -> np.ndarray:
    """Return the products, (k, p), of a scale with `gradients`, (k, p), of the functions `indices`, (k,)."""
    return scale(indices, gradients) if callable(scale) else scale[_selector(indices, len(scale))] * gradients


def _selector(numbers: np.ndarray, n: int) -> slice | np.ndarray:
    """Return the selector of the active functions: a slice if all n are active, else their indices."""
    return slice(None) if numbers.size == n else numbers


def _line_search(
    evaluate: Evaluate,
    active: np.ndarray,
    ascent: np.ndarray,
    slope: np.ndarray,
    points: np.ndarray,
    values: np.ndarray,
    gradients: np.ndarray,
) -> tuple[tuple[np.ndarray, np.ndarray, np.ndarray], np.ndarray]:
    """Search along `ascent` for each active function: halve the step until Armijo's condition holds.

    Returns points, values and gradients of all functions, and the indices of functions for which no step was short
    enough, as rounding hides the increase.
    """
    length, left, out = np.ones(len(active)), np.arange(len(active)), None
    for _ in range(_HALVINGS):
        rows = active[left]
        trial = length[left, None] * ascent[_selector(left, len(ascent))]
        trial += points[_selector(rows, len(points))]
        value, gradient = evaluate(rows, trial)
        # A comparison with NaN is false too: outside the domain gradients are arbitrary.
        risen = value >= values[rows] + _ARMIJO * length[left] * slope[left]
        if len(rows) == len(points) and risen.all():
            return (trial, value, gradient), rows[:0]
        if out is None:
            out = points.copy(), values.copy(), gradients.copy()
        for whole, new in zip(out, (trial, value, gradient)):
            whole[rows[risen]] = new[risen]
        left = left[~risen]
        if not left.size:
            break
        length[left] *= 0.5
    assert out is not None, "the first trial ends the search or makes copies"
    return out, active[left]


def _inverse(move: np.ndarray, change: np.ndarray) -> np.ndarray:
    """Return 1 / (-move . change), (m,); zero for pairs that are dropped."""
    product = -np.einsum("mp,mp->m", move, change)
    size = np.einsum("mp,mp->m", np.abs(move), np.abs(change))
    kept = product > _LEAST_SHARE * size
    return np.where(kept, 1.0 / np.where(kept, product, 1.0), 0.0)


def _direction(
    gradient: np.ndarray,
    first: Callable[[np.ndarray], np.ndarray],
    pairs: list[Pair],
    active: np.ndarray,
) -> np.ndarray:
    """Return the direction of ascent of each active function, (k, p), by the two-loop recursion.

    `first` applies the initial inverse Hessian; `gradient` is overwritten.
    """
    if not pairs:
        return first(gradient)
    q, weights, rows = gradient, [], _selector(active, len(pairs[-1].move))
    inverses = [pair.inverse[rows] for pair in pairs]
    along = np.einsum("mp,mp->m", pairs[-1].move[rows], q)
    # alpha_k = rho_k s_k^T q, q <- q + alpha_k y_k, for rho = 1 / (-s^T y): -y is the change of a minimisation.
    for k in reversed(range(len(pairs))):
        weights.append(inverses[k] * along)
        # The last product is for the oldest pair again, and of no use.
        along = _added(q, weights[-1], pairs[k].change, pairs[max(k - 1, 0)].move, active)
    q = first(q)
    # The first matrix S is scaled to (-s^T y) / (y^T S y) S by the newest pair.
    newest = pairs[-1].change[rows]
    curvature = np.einsum("mp,mp->m", newest, first(newest))
    usable = inverses[-1] > 0.0
    q *= np.where(usable, 1.0 / np.where(usable, inverses[-1] * curvature, 1.0), 1.0)[:, None]
    # q <- q + (alpha_k + rho_k y_k^T q) s_k, oldest pair first.
    along = np.einsum("mp,mp->m", pairs[0].change[rows], q)
    for k, (inverse, weight) in enumerate(zip(inverses, reversed(weights))):
        along = _added(q, weight + inverse * along, pairs[k].move, pairs[min(k + 1, len(pairs) - 1)].change, active)
    return q


def _added(q: np.ndarray, weights: np.ndarray, added: np.ndarray, other: np.ndarray, active: np.ndarray) -> np.ndarray:
    """Add `weights` times the rows `active` of `added` to q, in place; return scalar products of q and rows of `other`.

    Parameters
    ----------
    q : ndarray, (k, p)
    weights : ndarray, (k,)
    added, other : ndarray, (m, p)
    active : ndarray of int, (k,)

    Returns
    -------
    ndarray, (k,)
        Scalar product of each row of the new q with its row of ``other[active]``.
    """
    if q.size <= _FEW:
        rows = _selector(active, len(added))
        q += weights[:, None] * added[rows]
        return np.einsum("mp,mp->m", q, other[rows])
    body = import_module("pymc_ep.numerics.optimise.batched_lbfgs_numba")
    return body.add_and_dot(q, weights, added, other, active)
