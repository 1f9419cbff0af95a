"""Inner loop: maximises the sum of the sites' bound values over the unknowns, at fixed variances z.

With predictors eta = m0 + D x of unknowns x, the loop minimises Psi(x) = -2 sum_i value_i(eta_i, z_i), which is convex
where every site is log-concave.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import scipy

from pymc_ep.models.sparse_linear.engine.precision_solvers import PrecisionSolver
from pymc_ep.sites.bounds import Bounded

__all__ = ["INNER", "Inner", "InnerProblem", "minimise"]

_HALVINGS = 20
"""Largest number of times that a step is halved until Psi falls. After twenty, a factor of 1e-6, rounding or an inexact
solution is why it does not fall, and shorter steps are no better."""
_ROUNDING = 1e-13
"""Rounding error of a sum of n values, relative to the sum of their absolute values: a few hundred times the
machine epsilon."""
_LBFGS_TOL = 1e-4
"""Tolerance of L-BFGS, as a share of the one for reweighted least squares. An iteration of L-BFGS gains so much less
that the same tolerance would stop it early."""


class InnerProblem(NamedTuple):
    """Linear map and bounds of a form at fixed hyperparameters and variances.

    Attributes
    ----------
    forward, adjoint : callable
        x -> D x and v -> D^T v.
    offset : ndarray, (n,)
        Constants m0 of the predictors.
    bounded : callable
        ``bounded(eta)`` returns the `Bounded` of the sites at predictors eta, (n,).
    """

    forward: Callable[[np.ndarray], np.ndarray]
    adjoint: Callable[[np.ndarray], np.ndarray]
    offset: np.ndarray
    bounded: Callable[[np.ndarray], Bounded]


class Inner(NamedTuple):
    """Result of the inner loop.

    Attributes
    ----------
    unknowns : ndarray, (N,)
        x.
    fitted : ndarray, (n,)
        D x.
    bounded : Bounded
        Bounds of the sites at these unknowns.
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
    """Minimise Psi from `unknowns`, (N,); the result is never higher than the start.

    Parameters
    ----------
    problem : InnerProblem
    unknowns : ndarray, (N,)
        Start.
    solver : PrecisionSolver
        Solves the systems of reweighted least squares.
    how : {"irls", "lbfgs", "newton-cg"}
        Method.
    max_iter : int
        Largest number of iterations, at least 1.
    tol : float
        Rise of the sum of values in one iteration, nats per site, at which to stop. A rise relative to the sum would
        depend on the predictors' unit.
    """
    return INNER[how](problem, unknowns, solver, max_iter, tol)


def _irls(problem: InnerProblem, unknowns: np.ndarray, solver: PrecisionSolver, max_iter: int, tol: float) -> Inner:
    """Minimise by iteratively reweighted least squares; each step is halved until Psi falls.

    The step d solves D^T diag(w) D d = D^T g, with gradients g and curvatures w of the values. The classical weights pi
    need no halving, but are up to a hundred times as large where potentials are sharp, and slow the iteration by as
    much. Since the system is for the step, a solution to a relative tolerance becomes more exact with each iteration.
    """
    fitted = problem.forward(unknowns)
    bounds = problem.bounded(problem.offset + fitted)
    solved = True
    for _ in range(max_iter):
        # Psi / 2 has the gradient -D^T g, g = d value / d eta, and a Hessian of at most A(w) = D^T diag(w) D.
        right = problem.adjoint(bounds.gradient)
        step, exact = solver.solve(bounds.weight, right)
        solved &= exact
        moved = problem.forward(step)
        gain = 0.0
        for halving in range(_HALVINGS):
            scale = 0.5**halving
            trial = problem.bounded(problem.offset + fitted + scale * moved)
            # The fall of Psi / 2.
            gain = float((trial.value - bounds.value).sum())
            if gain >= -_ROUNDING * float(np.abs(bounds.value).sum()):
                unknowns, fitted, bounds = unknowns + scale * step, fitted + scale * moved, trial
                break
        else:
            break
        if gain <= tol * len(fitted):
            break
    return Inner(unknowns, fitted, bounds, solved)


def _by_scipy(
    method: str, share: float, options: dict[str, float]
) -> Callable[[InnerProblem, np.ndarray, PrecisionSolver, int, float], Inner]:
    """Return a minimiser by `scipy.optimize.minimize` that stops at a rise of `share` times the tolerance.

    SciPy's own stopping rules, first steps and finite differences assume unknowns and objectives of order one. The
    unknowns are therefore scaled to a unit from the problem, and the minimiser stops by the rule of `minimise`.
    """

    def run(problem: InnerProblem, unknowns: np.ndarray, solver: PrecisionSolver, max_iter: int, tol: float) -> Inner:
        fitted = problem.forward(unknowns)
        start = problem.bounded(problem.offset + fitted)
        slope = problem.adjoint(start.gradient)
        if not slope.any():
            return Inner(unknowns, fitted, start, True)
        # The best step along the gradient g is g^T g / g^T A g times g, whose factor has the unit of x^2.
        unit = float(np.sqrt(slope @ slope / (start.weight @ problem.forward(slope) ** 2)))
        before = last = -float(start.value.sum())

        def evaluate(scaled: np.ndarray) -> tuple[float, np.ndarray]:
            # Psi / 2 at u = unit x, and its gradient in x, -unit D^T g.
            outcome = problem.bounded(problem.offset + problem.forward(unit * scaled))
            return -float(outcome.value.sum()), -unit * problem.adjoint(outcome.gradient)

        def stop(intermediate_result: "scipy.optimize.OptimizeResult") -> None:
            nonlocal last
            rise, last = last - float(intermediate_result.fun), float(intermediate_result.fun)
            if rise <= share * tol * len(fitted):
                raise StopIteration

        kept = {"maxiter": max_iter, **options}
        outcome = scipy.optimize.minimize(
            evaluate, unknowns / unit, jac=True, method=method, options=kept, callback=stop
        )
        best = unit * outcome.x if outcome.fun <= before else unknowns
        fitted = problem.forward(best)
        return Inner(best, fitted, problem.bounded(problem.offset + fitted), True)

    return run


INNER = {
    "irls": _irls,
    "lbfgs": _by_scipy("L-BFGS-B", _LBFGS_TOL, {"ftol": 0.0, "gtol": 0.0}),
    "newton-cg": _by_scipy("Newton-CG", 1.0, {"xtol": 0.0}),
}
"""Minimisers by the name of the option ``inner``."""
