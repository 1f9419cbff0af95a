"""Solvers for the precision A = D^T diag(pi) D and its predictor variances: by a factor, or matrix-free."""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from pymc_ep.exceptions import NumericalError
from pymc_ep.numerics.iterative.conjugate_gradients import Solution, conjugate_gradients, newton_step
from pymc_ep.numerics.iterative.marginal_variances import lanczos, perturb_and_map
from pymc_ep.numerics.precision.plan import Algebra, PrecisionFactor

__all__ = ["Exact", "Iterative", "LinearPart", "PrecisionSolver", "Variances"]


_DRAW_TOL = 3e-3
"""Relative residual at which a draw counts as solved. The sampling error of variances from 30 draws is 20 times larger
or more."""
_LEAST_TOL = 1e-10
"""Smallest relative residual that is requested: rounding prevents much smaller ones."""
_PROGRESS = 0.1
"""Factor by which a draw that starts from the last outer loop must reduce its first residual. Precise observations
dominate the right-hand side, and hide changes of the potentials: without this factor, the old draw would pass for a
solution."""
_KEPT_NOISE = 2**28
"""Largest size, B, of random numbers that are kept from one outer loop to the next: 256 MiB, the size of 30 draws for
an image of 512 x 512. Generating them takes a third of the time of the solutions."""


class Variances(NamedTuple):
    """Variances of the predictors under the precision A.

    Attributes
    ----------
    values : ndarray, (n,)
        diag(D A^{-1} D^T), or an estimate of it.
    log_det : float
        log |A|; NaN where it is not known.
    error : float
        Median relative standard error of the estimates; for Lanczos' method the median relative increment of its last
        step; 0 for exact variances.
    solved : bool
        Whether all linear systems for the variances were solved to their tolerance.
    samples : tuple of ndarray, (N,)
        Draws of which estimates are made; draws at a similar precision can start from these.
    """

    values: np.ndarray
    log_det: float
    error: float
    solved: bool
    samples: tuple[np.ndarray, ...] = ()


class LinearPart(Protocol):
    """Linear map D, (n, N), from a compiled form's unknowns to its predictors."""

    @property
    def size(self) -> int:
        """Number N of unknowns."""

    @property
    def algebra(self) -> Algebra:
        """Algebra that factorises D^T diag(pi) D."""

    def forward(self, x: np.ndarray) -> np.ndarray:
        """Return D x, (n,), for x (N,)."""

    def adjoint(self, v: np.ndarray) -> np.ndarray:
        """Return D^T v, (N,), for v (n,)."""

    def normal(self, weights: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
        """Return D^T diag(weights) D as a function of vectors (N,)."""

    def preconditioner(self, weights: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
        """Return an approximate inverse of D^T diag(weights) D, as a function of vectors (N,)."""


class PrecisionSolver(Protocol):
    """Solver for the precision A = D^T diag(pi) D of the unknowns, (N, N), given pi, (n,)."""

    exact: bool
    """Whether variances are exact and log |A| is known."""

    def solve(self, precision: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, bool]:
        """Return A^{-1} b, (N,), to the accuracy of a Newton step, and whether this accuracy was reached."""

    def variances(self, precision: np.ndarray, samples: tuple[np.ndarray, ...] = ()) -> Variances:
        """Return the variances of the predictors; estimates start from `samples`, draws at another precision."""

    def log_det(self, precision: np.ndarray) -> float:
        """Return log |A|; NaN unless `exact`."""

    def proper(self, precision: np.ndarray) -> bool:
        """Return whether A is positive definite; True if unknown."""


class Exact:
    """Exact solver by a factor of A; the factor at the last pi is cached.

    Parameters
    ----------
    linear : LinearPart
    """

    exact = True

    def __init__(self, linear: LinearPart):
        self._linear = linear
        self._last: tuple[np.ndarray, PrecisionFactor] | None = None

    def solve(self, precision: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, bool]:
        """Return A^{-1} b, (N,), and True."""
        return self._proper_factor(precision).solve(b), True

    def variances(self, precision: np.ndarray, samples: tuple[np.ndarray, ...] = ()) -> Variances:
        """Return the exact variances of the predictors."""
        factor = self._proper_factor(precision)
        return Variances(factor.predictor_variances(), float(factor.log_det), 0.0, True)

    def log_det(self, precision: np.ndarray) -> float:
        """Return log |A|."""
        return float(self._proper_factor(precision).log_det)

    def proper(self, precision: np.ndarray) -> bool:
        """Return whether A is positive definite beyond rounding."""
        return bool(self._factor(precision).proper)

    def _proper_factor(self, precision: np.ndarray) -> PrecisionFactor:
        factor = self._factor(precision)
        if not factor.proper:
            raise _singular(precision)
        return factor

    def _factor(self, precision: np.ndarray) -> PrecisionFactor:
        # The end of one step and the start of the next pass the same array, for log |A| and for variances.
        if self._last is None or self._last[0] is not precision:
            self._last = precision, self._linear.algebra.factor(precision)
        return self._last[1]


class Iterative:
    """Matrix-free solver: conjugate gradients, and variances by sampling or from a Krylov space.

    Every outer loop uses the same random numbers, so that the iteration converges, and each draw starts from its
    solution in the last loop.

    Parameters
    ----------
    linear : LinearPart
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
        Whether solutions for steps of the inner loop are truncated once further iterations gain little. This pays on
        the way to a mode and with sites that are not log-concave, where precisions differ much and change from step to
        step. Elsewhere few steps are needed, and they are solved fully.
    """

    exact = False

    def __init__(
        self,
        linear: LinearPart,
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
        self._kept_noise: Sequence[np.ndarray] = ()

    def solve(self, precision: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, bool]:
        """Return an approximation of A^{-1} b, (N,), and whether conjugate gradients converged."""
        if not self._truncate:
            solution = self._solution(precision)(b, None)
            return solution.x, solution.converged
        return newton_step(
            self._linear.normal(precision),
            b,
            precondition=self._linear.preconditioner(precision),
            tol=self._tol,
            max_iter=self._max_iter,
        )

    def variances(self, precision: np.ndarray, samples: tuple[np.ndarray, ...] = ()) -> Variances:
        """Return estimated variances of the predictors."""
        rng = np.random.default_rng(self._seed)
        if self._variance == "lanczos":
            normal = self._linear.normal(precision)
            # diag(D Q T^-1 Q^T D^T) <= diag(D A^-1 D^T), with T = Q^T A Q for orthonormal Q of the Krylov space.
            bound = lanczos(self._linear.forward, normal, self._steps, rng, n_unknowns=self._linear.size)
            return Variances(bound.variance, np.nan, _median_ratio(bound.last_increment, bound.variance), True)
        solution = self._solution(precision, _DRAW_TOL)
        # c = A^-1 D^T (pi^1/2 e) ~ N(0, A^-1), e ~ N(0, I); z is the mean of (D c)^2 with c scaled to c^T A c = N.
        estimate = perturb_and_map(*self._maps, precision, self._noise(len(precision)), solution, start=samples or None)
        if not estimate.converged and precision.min() < np.finfo(float).eps * precision.max():
            # More iterations would not help: rounding errors of the precise sites exceed the precision of the others.
            raise _singular(precision)
        error = _median_ratio(estimate.standard_error, estimate.variance)
        return Variances(estimate.variance, np.nan, error, estimate.converged, tuple(estimate.samples))

    def log_det(self, precision: np.ndarray) -> float:
        """Return NaN."""
        return np.nan

    def proper(self, precision: np.ndarray) -> bool:
        """Return True: without a factor this is unknown."""
        return True

    def draw(self, precision: np.ndarray, size: int, rng: np.random.Generator) -> np.ndarray:
        """Return draws of N(0, A^{-1}), (size, N), to the tolerance of the solver."""
        noise = (rng.standard_normal(len(precision)) for _ in range(size))
        return np.stack(perturb_and_map(*self._maps, precision, noise, self._solution(precision, _DRAW_TOL)).samples)

    @property
    def _maps(self) -> tuple[Callable[[np.ndarray], np.ndarray], Callable[[np.ndarray], np.ndarray]]:
        return self._linear.forward, self._linear.adjoint

    def _noise(self, n: int) -> Iterable[np.ndarray]:
        """Return the standard normal numbers, (n,), of each draw: the same in every outer loop."""
        if not self._kept_noise:
            rng = np.random.default_rng(self._seed)
            numbers = (rng.standard_normal(n) for _ in range(self._n_samples))
            if 8 * n * self._n_samples > _KEPT_NOISE:
                return numbers
            self._kept_noise = list(numbers)
        return self._kept_noise

    def _solution(
        self, precision: np.ndarray, least: float = 0.0
    ) -> Callable[[np.ndarray, np.ndarray | None], Solution]:
        """Return a conjugate gradient solver: (b, start) -> solution.

        Its tolerance, relative to b, is the larger of ``cg_tol`` and `least`, and smaller if the start's residual is
        already near this tolerance.
        """
        apply, precondition = self._linear.normal(precision), self._linear.preconditioner(precision)

        def solve(b: np.ndarray, start: np.ndarray | None) -> Solution:
            return conjugate_gradients(
                apply,
                b,
                start=start,
                precondition=precondition,
                tol=max(self._tol, least, _LEAST_TOL),
                progress=_PROGRESS,
                least_tol=_LEAST_TOL,
                max_iter=self._max_iter,
            )

        return solve


def _singular(precision: np.ndarray) -> NumericalError:
    return NumericalError(
        f"The precision of the unknowns is singular up to rounding, for sites with precisions from "
        f"{precision.min():.2g} to {precision.max():.2g}: the scale of a site may have run to zero. Fix it, or "
        f"give it a prior that keeps away from there."
    )


def _median_ratio(numerator: np.ndarray, denominator: np.ndarray) -> float:
    return (
        float(np.median(numerator[denominator > 0] / denominator[denominator > 0])) if (denominator > 0).any() else 0.0
    )
