"""The inner loop: the unknowns that maximise the sum of the sites' bounded values, with variances held.

``Psi(u) = -2 sum_i value_i(m0_i + d_i^T u, z_i)`` is convex where every site is log-concave.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import scipy.optimize

from pymc_ep.engines.double_loop.precision_solvers import PrecisionSolver
from pymc_ep.sites.bounds import Bounded

__all__ = ["INNER", "Inner", "InnerProblem", "minimise"]

_HALVINGS = 20
"""How often a step that lowers the objective, by rounding or an inexact solve, is halved before it is given up."""
_ROUNDING = 1e-13
"""What rounding may make of a sum of values, relative to the sum of their sizes."""

_STRICTER = 1e-4
"""Gain of one iteration of L-BFGS, relative to that of one of least squares, at which it is at its end as well."""


class InnerProblem(NamedTuple):
    """What the inner loop needs of a form at fixed hyperparameters and variances.

    Attributes
    ----------
    forward, adjoint : callable
        D x and D^T v.
    offset : ndarray, (n,)
        m0.
    bounded : callable
        ``bounded(eta) -> Bounded``.
    """

    forward: Callable[[np.ndarray], np.ndarray]
    adjoint: Callable[[np.ndarray], np.ndarray]
    offset: np.ndarray
    bounded: Callable[[np.ndarray], Bounded]


class Inner(NamedTuple):
    """Where the inner loop ended.

    Attributes
    ----------
    unknowns : ndarray, (N,)
    fitted : ndarray, (n,)
        D x.
    bounded : Bounded
        At the end.
    solved : bool
        Whether all linear systems were solved to their tolerance.
    """

    unknowns: np.ndarray
    fitted: np.ndarray
    bounded: Bounded
    solved: bool


def minimise(
    problem: InnerProblem, unknowns: np.ndarray, solver: PrecisionSolver, how: str, *, max_iter: int, tol: float
) -> Inner:
    """Minimise Psi from `unknowns`, (N,), and never return more than it was there.

    Parameters
    ----------
    problem : InnerProblem
    unknowns : ndarray, (N,)
    solver : PrecisionSolver
        Solves the systems of reweighted least squares.
    how : {"irls", "lbfgs", "newton-cg"}
    max_iter : int
        Iterations; one is made in any case.
    tol : float
        Decrease of Psi, relative to its size, at which to stop.
    """
    return INNER[how](problem, unknowns, solver, max_iter, tol)


def _irls(problem: InnerProblem, unknowns: np.ndarray, solver: PrecisionSolver, max_iter: int, tol: float) -> Inner:
    """Solve reweighted least squares, with the curvatures of the values for weights and steps that are halved.

    The classical weights pi, of which no step need be halved, are up to a hundred times as large where potentials are
    sharp, and the iteration that much slower. In terms of the step d the normal equations read A(w) d = D^T gradient,
    so that a system solved to a relative tolerance is a start for the next one.
    """
    fitted = problem.forward(unknowns)
    found = problem.bounded(problem.offset + fitted)
    solved = True
    for _ in range(max_iter):
        right = problem.adjoint(found.gradient)
        step, exact = solver.solve(found.weight, right)
        solved &= exact
        moved = problem.forward(step)
        gain = 0.0
        for halving in range(_HALVINGS):
            scale = 0.5**halving
            trial = problem.bounded(problem.offset + fitted + scale * moved)
            gain = float((trial.value - found.value).sum())
            if gain >= -_ROUNDING * float(np.abs(found.value).sum()):
                unknowns, fitted, found = unknowns + scale * step, fitted + scale * moved, trial
                break
        else:
            break
        if gain <= tol * max(1.0, abs(float(found.value.sum()))):
            break
    return Inner(unknowns, fitted, found, solved)


def _by_scipy(
    method: str, stop: Callable[[float], dict[str, float]]
) -> Callable[[InnerProblem, np.ndarray, PrecisionSolver, int, float], Inner]:
    """Return a minimiser of SciPy's; `stop` turns the tolerance into its options."""

    def run(problem: InnerProblem, unknowns: np.ndarray, solver: PrecisionSolver, max_iter: int, tol: float) -> Inner:
        def evaluate(x: np.ndarray) -> tuple[float, np.ndarray]:
            found = problem.bounded(problem.offset + problem.forward(x))
            return -float(found.value.sum()), -problem.adjoint(found.gradient)

        options = {"maxiter": max_iter, **stop(tol)}
        before, _ = evaluate(unknowns)
        found = scipy.optimize.minimize(evaluate, unknowns, jac=True, method=method, options=options)
        best = found.x if found.fun <= before else unknowns
        fitted = problem.forward(best)
        return Inner(best, fitted, problem.bounded(problem.offset + fitted), True)

    return run


INNER = {
    "irls": _irls,
    "lbfgs": _by_scipy("L-BFGS-B", lambda tol: {"ftol": _STRICTER * tol, "gtol": 0.0}),
    "newton-cg": _by_scipy("Newton-CG", lambda tol: {"xtol": tol}),
}
"""Ways to minimise, by the name users give."""
