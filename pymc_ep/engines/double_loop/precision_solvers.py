"""Systems with a precision A = D^T diag(pi) D and the variances it gives: by a factor, or by products alone."""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np

from pymc_ep.exceptions import NumericalError
from pymc_ep.numerics.iterative.conjugate_gradients import NormalEquations, Solution, conjugate_gradients, newton_step
from pymc_ep.numerics.iterative.marginal_variances import lanczos, perturb_and_map

__all__ = ["Exact", "Iterative", "PrecisionSolver", "Variances"]


_SAMPLED = 3e-3
"""Residual of a draw beyond which nothing is gained: that of 30 draws' variances by sampling is 20 times larger."""
_ROUNDING = 1e-10
"""Least relative residual that is asked for."""
_PROGRESS = 0.1
"""Part of its first residual that a draw may keep. Precise observations make up most of the right-hand side, and next
to them changes of the potentials are small: without this a draw of the loop before would pass for one of this."""


class Variances(NamedTuple):
    """Variances of the predictors under the precision A.

    Attributes
    ----------
    values : ndarray, (n,)
        diag(D A^{-1} D^T), or an estimate of it.
    log_det : float
        log |A|; NaN where it is not known.
    error : float
        Median standard error of the estimates, relative to them, or of what the last step of Lanczos' method added;
        0 where they are exact.
    solved : bool
        Whether all linear systems behind them were solved to their tolerance.
    """

    values: np.ndarray
    log_det: float
    error: float
    solved: bool


class PrecisionSolver(Protocol):
    """What the double loop asks of A."""

    exact: bool
    """Whether variances are exact and log |A| is known."""

    def solve(self, precision: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, bool]:
        """Return A^{-1} b, (N,), as far as it pays for a step of a Newton method, and whether that was reached."""

    def variances(self, precision: np.ndarray) -> Variances:
        """Return the variances of the predictors."""

    def log_det(self, precision: np.ndarray) -> float:
        """Return log |A|; NaN unless `exact`."""

    def proper(self, precision: np.ndarray) -> bool:
        """Whether A is positive definite, as far as can be told without a factor."""


class Exact:
    """A factor of A for each pi; the last one is kept.

    Parameters
    ----------
    linear : linear part of a compiled form
        With ``algebra``.
    """

    exact = True

    def __init__(self, linear: Any):
        self._linear = linear
        self._last: tuple[np.ndarray, Any] | None = None

    def solve(self, precision: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, bool]:
        """Return A^{-1} b, (N,), and True."""
        return self._proper_factor(precision).solve(b), True

    def variances(self, precision: np.ndarray) -> Variances:
        """Return the exact variances of the predictors."""
        factor = self._proper_factor(precision)
        return Variances(factor.predictor_variances(), float(factor.log_det), 0.0, True)

    def log_det(self, precision: np.ndarray) -> float:
        """Return log |A|."""
        return float(self._proper_factor(precision).log_det)

    def proper(self, precision: np.ndarray) -> bool:
        """Whether A is positive definite beyond rounding."""
        return bool(self._factor(precision).proper)

    def _proper_factor(self, precision: np.ndarray) -> Any:
        factor = self._factor(precision)
        if not factor.proper:
            raise _singular(precision)
        return factor

    def _factor(self, precision: np.ndarray) -> Any:
        # The same array comes back for variances and determinant: of the end of one step, and the start of the next.
        if self._last is None or self._last[0] is not precision:
            self._last = precision, self._linear.algebra.factor(precision)
        return self._last[1]


class Iterative:
    """Products with D and D^T alone: conjugate gradients, and variances by sampling or from a Krylov space.

    Random numbers are the same in every outer loop, so that the loop settles, and each sample starts from the last.

    Parameters
    ----------
    linear : linear part of a compiled form
        With ``forward``, ``adjoint``, ``preconditioner`` and ``size``.
    variance : {"perturb-and-map", "lanczos"}
    n_samples : int
        Draws, for perturb-and-map.
    lanczos_steps : int
        Dimension of the Krylov space.
    seed : int
    cg_tol : float
        Residual, relative to the right-hand side, at which a system counts as solved.
    cg_max_iter : int
    truncate : bool
        Whether steps of the inner loop end once more of a solution gains little. It pays on the way to a mode and
        where sites are not log-concave: systems of very different precisions change from step to step. Elsewhere full
        steps are few.
    """

    exact = False

    def __init__(
        self,
        linear: Any,
        *,
        variance: str = "perturb-and-map",
        n_samples: int = 30,
        lanczos_steps: int = 100,
        seed: int = 0,
        cg_tol: float = 1e-4,
        cg_max_iter: int = 1000,
        truncate: bool = False,
    ):
        self._linear = linear
        self._truncate = truncate
        self._variance = variance
        self._n_samples = n_samples
        self._steps = lanczos_steps
        self._seed = seed
        self._tol = cg_tol
        self._max_iter = cg_max_iter
        self._samples: np.ndarray | None = None

    def solve(self, precision: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, bool]:
        """Return a step, (N,), near A^{-1} b, and whether conjugate gradients got there."""
        equations = NormalEquations(*self._maps, precision)
        if not self._truncate:
            found = self._solution(precision)(equations.apply, b, None)
            return found.x, found.converged
        precondition = self._linear.preconditioner(precision)
        return newton_step(equations.apply, b, precondition=precondition, tol=self._tol, max_iter=self._max_iter)

    def variances(self, precision: np.ndarray) -> Variances:
        """Return estimated variances of the predictors."""
        rng = np.random.default_rng(self._seed)
        if self._variance == "lanczos":
            bound = lanczos(*self._maps, precision, self._steps, rng, n_unknowns=self._linear.size)
            return Variances(bound.variance, np.nan, _median_ratio(bound.last_increment, bound.variance), True)
        solution = self._solution(precision, _SAMPLED)
        found = perturb_and_map(*self._maps, precision, self._n_samples, rng, solution, start=self._samples)
        if not found.converged and precision.min() < np.finfo(float).eps * precision.max():
            # More products would not help: where precise sites say nothing, rounding of these hides the others.
            raise _singular(precision)
        self._samples = found.samples
        return Variances(found.variance, np.nan, _median_ratio(found.standard_error, found.variance), found.converged)

    def log_det(self, precision: np.ndarray) -> float:
        """Return NaN."""
        return np.nan

    def proper(self, precision: np.ndarray) -> bool:
        """Return True: products do not tell."""
        return True

    def draw(self, precision: np.ndarray, size: int, rng: np.random.Generator) -> np.ndarray:
        """Return draws of N(0, A^{-1}), (size, N), up to the tolerance of the solutions."""
        return perturb_and_map(*self._maps, precision, size, rng, self._solution(precision, _SAMPLED)).samples

    @property
    def _maps(self) -> tuple[Callable[[np.ndarray], np.ndarray], Callable[[np.ndarray], np.ndarray]]:
        return self._linear.forward, self._linear.adjoint

    def _solution(
        self, precision: np.ndarray, least: float = 0.0
    ) -> Callable[[Any, np.ndarray, np.ndarray | None], Solution]:
        """Return what solves a system, to no smaller a residual than `least` unless it starts there."""
        precondition = self._linear.preconditioner(precision)

        def solve(apply: Any, b: np.ndarray, start: np.ndarray | None) -> Solution:
            tol = max(self._tol, least)
            if start is not None and (size := float(np.linalg.norm(b))) > 0:
                tol = min(tol, _PROGRESS * float(np.linalg.norm(b - apply(start))) / size)
            return conjugate_gradients(
                apply, b, start=start, precondition=precondition, tol=max(tol, _ROUNDING), max_iter=self._max_iter
            )

        return solve


def _singular(precision: np.ndarray) -> NumericalError:
    return NumericalError(
        f"The precision of the unknowns is singular up to rounding, for sites with precisions from "
        f"{precision.min():.2g} to {precision.max():.2g}: the scale of a site may have run to zero. Fix it, or "
        f"give it a prior that keeps away from there."
    )


def _median_ratio(one: np.ndarray, other: np.ndarray) -> float:
    return float(np.median(one[other > 0] / other[other > 0])) if (other > 0).any() else 0.0
