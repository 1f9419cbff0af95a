"""Conjugate gradients for precisions given by products with vectors only (Hestenes and Stiefel 1952)."""

from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np

from pymc_ep.numerics.backend.namespace import Array

__all__ = ["Solution", "conjugate_gradients", "jacobi", "newton_step", "splitting"]

_RESTARTS = 3
"""Largest number of runs of the recursion. Each starts from the true residual, from which the recursion's residual
drifts by rounding."""
_TRUNCATION = 0.1
"""Decrease of the objective by one product, relative to the mean decrease so far, at which a Newton step is truncated.
With the 0.5 of Nash and Sofer, Newton steps of inpainting ended too early."""
_FEW = 2**15
"""Largest number of unknowns for the NumPy body of the updates. The Numba body takes a second to compile at first, more
than it saves in solutions with fewer unknowns."""
_RATIO = 4.0
"""Ratio a / b of the two shifts in `splitting`; measured optima were 1 to 10."""


class Solution(NamedTuple):
    """An approximate solution of A x = b.

    Attributes
    ----------
    x : array, (N,)
    residual : float
        |b - A x| / |b|, computed from x rather than by the recursion.
    iterations : int
        Products with A, without those that check the residual.
    converged : bool
        Whether the residual is at most the tolerance.
    """

    x: Array
    residual: float
    iterations: int
    converged: bool


def jacobi(diagonal: Array) -> Callable[[Any], Any]:
    """Return the preconditioner that divides a vector by `diagonal`, (N,), >= 0, and by 1 where the diagonal is 0."""
    scale = 1.0 / (diagonal + (diagonal <= 0))
    return lambda vector: scale * vector


def splitting(
    root: Callable[[float], Callable[[Any], Any]],
    forward: Callable[[Any], Any],
    adjoint: Callable[[Any], Any],
    weights: Array,
) -> Callable[[Any], Any]:
    """Return a preconditioner for A = H + W^T Pi W, where H and W^T Pi W are diagonal in different orthonormal bases.

    Parameters
    ----------
    root : callable
        ``root(a)``, for a number a > 0, returns the function v -> (I + H / a)^{-1/2} v. H >= 0 is the precision that
        the observations give.
    forward, adjoint : callable
        Products with W, (N,) -> (J,), and with W^T, (J,) -> (N,). W W^T = I, as for a wavelet transform.
    weights : array, (J,)
        The diagonal of Pi, positive.

    Notes
    -----
    A symmetric form of alternating directions (Peaceman and Rachford 1955; Benzi 2002, section 6): with shifts a and b,

        P = (I + H / a)^{1/2} (W^T Pi W + b) (I + H / a)^{1/2},

    which is W^T Pi W + b where nothing is observed, and H^{1/2} (W^T Pi W / a + 1 / 4) H^{1/2} where H is large against
    a. The shift b is the geometric mean of Pi, and a = 4 b. Iterations to a residual of 1e-4 on images of 256 x 256
    pixels, a quarter of them observed with variance 1e-5, and precisions of 1 to 1e5 in a db2 basis: 102, against
    350 without a preconditioner, 283 with the diagonal of A, and 241 with W^T (Pi + p / sigma^2)^{-1} W for the
    fraction p of pixels observed with variance sigma^2.
    """
    middle = float(np.exp(np.log(np.asarray(weights)).mean()))
    scale = root(_RATIO * middle)
    # W^T Pi W + b = b (I + W^T (Pi / b) W), whose inverse is (I - W^T Pi (Pi + b)^-1 W) / b, as W W^T = I.
    shrinkage = weights / (weights + middle)

    def precondition(vector: Array) -> Array:
        scaled = scale(vector)
        # (W^T Pi W + b)^{-1}, also where W has fewer rows than columns, up to the factor b.
        return scale(scaled - adjoint(shrinkage * forward(scaled)))

    return precondition


def conjugate_gradients(
    apply: Callable[[Any], Any],
    b: Array,
    *,
    start: Array = None,
    precondition: Callable[[Any], Any] | None = None,
    tol: float = 1e-6,
    progress: float = np.inf,
    least_tol: float = 0.0,
    max_iter: int = 1000,
) -> Solution:
    """Solve A x = b for a symmetric positive definite A.

    Parameters
    ----------
    apply : callable
        The product x -> A x, (N,) -> (N,).
    b : array, (N,)
        Array of NumPy, or of any library with the same operators.
    start : array, (N,), optional
        First iterate; 0 by default.
    precondition : callable, optional
        (N,) -> (N,), symmetric positive definite: an approximate inverse of A.
    tol : float
        Largest residual |b - A x| / |b|.
    progress, least_tol : float
        With a `start` the residual must also be at most `progress` times the start's residual. It need not be below
        `least_tol`, relative to |b|.
    max_iter : int
        Largest number of products with A.

    Returns
    -------
    Solution
        With the best iterate if the iteration ends before it converges: at `max_iter`, where rounding keeps the
        residual above the tolerance, or where A is not positive definite.

    Notes
    -----
    Samples of variances need no more than a tolerance of 3e-3: on an inpainting problem of 256 x 256 pixels, squares of
    coefficients were then wrong by 0.05 of the standard error that 30 samples leave, and by 0.12 of it at 1e-2, always
    towards too small variances.
    """
    size = _norm(b)
    x = b * 0.0 if start is None else start
    if size == 0.0:
        return Solution(b * 0.0, 0.0, 0, True)
    precondition = precondition or _identity
    residual, spent = b if start is None else b - apply(x), 0
    true = _norm(residual)
    goal = tol * size if start is None else max(min(tol * size, progress * true), least_tol * size)
    for _ in range(_RESTARTS):
        if not true > goal or spent >= max_iter:
            break
        candidate, used, _ = _iterate(apply, precondition, x, residual, goal, max_iter - spent)
        spent += used
        remaining = b - apply(candidate)
        reached = _norm(remaining)
        if not reached < true:
            break
        x, residual, true = candidate, remaining, reached
    return Solution(x, true / size, spent, true <= goal)


def newton_step(
    apply: Callable[[Any], Any],
    b: Array,
    *,
    precondition: Callable[[Any], Any] | None = None,
    tol: float = 1e-6,
    max_iter: int = 1000,
) -> tuple[Any, bool]:
    """Return an approximate solution x of A x = b: one truncated step of a Newton method.

    After k products, x^T A x / 2 - b^T x has decreased by g_1 + ... + g_k. The iteration ends once k g_k is at most a
    tenth of this sum (Nash and Sofer 1990), or where `conjugate_gradients` would end. The rule does not depend on the
    basis, unlike the norm of the residual, in which a few precise observations would hide all others.

    Parameters
    ----------
    apply, b, precondition, tol, max_iter
        As for `conjugate_gradients`.

    Returns
    -------
    array, (N,)
        x.
    bool
        Whether the iteration ended by its rules; False at `max_iter`, or if A is not positive definite.
    """
    if not b.any():
        return b * 0.0, True
    x, _, ended = _iterate(apply, precondition or _identity, b * 0.0, b, tol * _norm(b), max_iter, _TRUNCATION)
    return x, ended


def _iterate(
    apply: Callable[[Any], Any],
    precondition: Callable[[Any], Any],
    x: Array,
    residual: Array,
    goal: float,
    most: int,
    truncation: float = 0.0,
) -> tuple[Any, int, bool]:
    """Run the recursion; return the last iterate, the number of products with A, and whether a rule ended the run.

    The last is False if the run ended after `most` products, or because A is not positive definite.
    """
    # The updates are in place.
    x, residual, ahead = x.copy(), residual.copy(), precondition(residual)
    direction, power, gained = ahead.copy(), _dot(residual, ahead), 0.0
    for used in range(1, most + 1):
        image = apply(direction)
        curvature = _dot(direction, image)
        if not curvature > 0.0:
            return x, used, False
        # alpha = r^T z / p^T A p, for z = M^-1 r; x^T A x / 2 - b^T x falls by alpha r^T z / 2.
        step = power / curvature
        x, residual, square = _advanced(x, residual, direction, image, step)
        gain = 0.5 * step * power
        gained += gain
        if used * gain <= truncation * gained or square**0.5 <= goal:
            return x, used, True
        ahead = precondition(residual)
        # p <- z + (r^T z / last r^T z) p, which is conjugate to all directions before.
        power, before = _dot(residual, ahead), power
        direction = _turned(direction, ahead, power / before)
    return x, most, False


def _advanced(x: Array, residual: Array, direction: Array, image: Array, step: float) -> tuple[Array, Array, float]:
    """Return x, (N,), moved by `step` along `direction`, the new residual, and the squared norm of the residual.

    `image` is A times the direction. NumPy arrays are updated in place.
    """
    if isinstance(x, np.ndarray) and x.size > _FEW:
        body = import_module("pymc_ep.numerics.iterative.conjugate_gradients_numba")
        return x, residual, body.advance(x, residual, direction, image, step)
    x += step * direction
    residual -= step * image
    return x, residual, _dot(residual, residual)


def _turned(direction: Array, ahead: Array, share: float) -> Array:
    """Return ``ahead + share * direction``, (N,); a NumPy `direction` is overwritten."""
    if isinstance(direction, np.ndarray) and direction.size > _FEW:
        import_module("pymc_ep.numerics.iterative.conjugate_gradients_numba").turn(direction, ahead, share)
        return direction
    direction *= share
    direction += ahead
    return direction


def _identity(vector: Array) -> Array:
    return vector


def _dot(x: Array, y: Array) -> float:
    return float(x @ y)


def _norm(vector: Array) -> float:
    return _dot(vector, vector) ** 0.5
