"""Marginal variances diag(D A^{-1} D^T), A = D^T diag(w) D, where A is known by products with vectors only.

`perturb_and_map` is unbiased, up to the tolerance of its solutions, with a relative standard error of
sqrt(2 / samples); `lanczos` is a lower bound that grows with its steps, and soon finds the largest variances only.
"""

from collections.abc import Callable, Iterable
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np

from pymc_ep.numerics.iterative.conjugate_gradients import Solution

__all__ = ["LanczosBound", "VarianceEstimate", "lanczos", "perturb_and_map"]

Map = Callable[[Any], Any]
"""Product of a matrix with a vector."""


class VarianceEstimate(NamedTuple):
    """Variances estimated from samples.

    Attributes
    ----------
    variance : ndarray, (n,)
    standard_error : ndarray, (n,)
        Standard error of each variance, by sampling alone: `variance` times sqrt(2 / samples).
    worst_residual : float
        Largest relative residual of a solution.
    iterations : int
        Number of products with A, over all samples.
    converged : bool
        Whether all solutions met their tolerance.
    samples : list of ndarray, (N,)
        Draws of N(0, A^{-1}): first iterates for another estimate at similar weights, with the same noise.
    """

    variance: np.ndarray
    standard_error: np.ndarray
    worst_residual: float
    iterations: int
    converged: bool
    samples: list[np.ndarray]


class LanczosBound(NamedTuple):
    """Lower bounds of variances from a Krylov space.

    Attributes
    ----------
    variance : ndarray, (n,)
    last_increment : ndarray, (n,)
        Increase in the last step: not a standard error, but small where the bound may be tight.
    steps : int
        Dimension of the space. It is less than requested where the space is exhausted; the bound is then exact.
    """

    variance: np.ndarray
    last_increment: np.ndarray
    steps: int


def perturb_and_map(
    forward: Map,
    adjoint: Map,
    weights: np.ndarray,
    noise: Iterable[np.ndarray],
    solve: Callable[[np.ndarray, np.ndarray | None], Solution],
    *,
    start: Iterable[np.ndarray] | None = None,
) -> VarianceEstimate:
    """Estimate variances from draws of N(0, A^{-1}), each by solving one system (Papandreou and Yuille 2010).

    With e standard normal, c = A^{-1} D^T (w^{1/2} e) has covariance A^{-1}, so that the mean of (D c)^2 over draws is
    unbiased. This mean stays unbiased if each c is scaled to c^T A c = N, since direction and length of A^{1/2} c are
    independent, and the squared length has the mean N. Then sum_i w_i z_i = N holds for the estimates z as it does for
    the variances. Without the scaling, scales learned from z would drift by the error of this sum in each round where
    the data say little about them.

    Solutions are tasks of joblib: one after the other by default, or four at once under
    ``joblib.parallel_config("threading", n_jobs=4)``, with the same result to the last digit.

    Parameters
    ----------
    forward, adjoint : callable
        Products with D, (N,) -> (n,), and with D^T, (n,) -> (N,).
    weights : ndarray, (n,)
        w >= 0.
    noise : iterable of ndarray, (n,)
        Standard normal draws e, one array for each sample.
    solve : callable
        ``solve(b, start)`` returns the Solution of A x = b; `start` is None or a first iterate.
    start : iterable of ndarray, (N,), optional
        First iterate of each solution: the samples of an estimate with the same noise at other weights.
    """
    negative = np.flatnonzero(~(weights >= 0))
    if negative.size:
        raise ValueError(f"weights must not be negative, but weight {negative[0]} is {weights[negative[0]]}")
    from joblib import Parallel, delayed

    root = np.sqrt(weights)
    variance, solutions = np.zeros(len(root)), []

    def draw(target: np.ndarray, first: np.ndarray | None) -> tuple[Solution, np.ndarray]:
        solution = solve(target, first)
        squares = forward(solution.x)
        squares *= squares
        return solution, squares

    # Targets and sums are computed in a fixed order, whatever the number of threads.
    targets = (adjoint(root * normal) for normal in noise)
    tasks = (delayed(draw)(target, first) for target, first in zip(targets, repeat(None) if start is None else start))
    for solution, squares in Parallel(prefer="threads", return_as="generator")(tasks):
        # c^T A c = sum_i w_i (D c)_i^2, scaled to its mean N.
        length = float(weights @ squares)
        squares *= len(solution.x) / length if length > 0 else 1.0
        variance += squares
        solutions.append(solution)
    n_samples = len(solutions)
    variance /= n_samples
    return VarianceEstimate(
        variance,
        variance * np.sqrt(2.0 / n_samples),
        max(solution.residual for solution in solutions),
        sum(solution.iterations for solution in solutions),
        all(solution.converged for solution in solutions),
        [solution.x for solution in solutions],
    )


def lanczos(forward: Map, normal: Map, steps: int, rng: np.random.Generator, *, n_unknowns: int) -> LanczosBound:
    """Bound variances from below by A's projection on a Krylov space (Seeger and Nickisch 2011, section 4).

    Let Q, (N, k), be orthonormal vectors for which T = Q^T A Q is tridiagonal. Then Q T^{-1} Q^T <= A^{-1}, and this
    bound grows with k. Each vector is made orthogonal to all before, as the recursion alone loses orthogonality (Paige
    1972). This takes k^2 N operations, and memory for k N elements. Bounds of large variances converge first; bounds of
    small variances are far too low even after a few hundred steps.

    Parameters
    ----------
    forward, normal : callable
        Products with D, (N,) -> (n,), and with A, (N,) -> (N,).
    steps : int
        k, cut to N.
    rng : numpy.random.Generator
        For the first vector.
    n_unknowns : int
        N.
    """
    vector = rng.standard_normal(n_unknowns)
    vector /= np.linalg.norm(vector)
    basis = np.zeros((min(steps, n_unknowns), n_unknowns))
    whitened = 0.0 * forward(vector)
    variance, increment, pivot, off = whitened, whitened, np.inf, 0.0
    for k in range(len(basis)):
        basis[k] = vector
        image = normal(vector)
        diagonal = float(vector @ image)
        # T = L L^T grows by a row a step, and D Q L^{-T} by a column.
        below = off / pivot
        square = diagonal - below**2
        if not square > 0.0:
            return LanczosBound(variance, increment, k)
        pivot = float(np.sqrt(square))
        # Column u_k of D Q L^-T by forward substitution; diag(D Q T^-1 Q^T D^T) = sum_k u_k^2.
        whitened = (forward(vector) - below * whitened) / pivot
        increment = whitened**2
        variance = variance + increment
        size = np.linalg.norm(image)
        # Gram and Schmidt, all of Q: what one pass leaves by rounding the second removes.
        for _ in range(2):
            image = image - basis[: k + 1].T @ (basis[: k + 1] @ image)
        off = float(np.linalg.norm(image))
        if off <= len(basis) * np.finfo(float).eps * size:
            return LanczosBound(variance, increment, k + 1)
        vector = image / off
    return LanczosBound(variance, increment, len(basis))
