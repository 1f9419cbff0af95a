"""A Gaussian of independent rows for bilinear models, by ascent of a lower bound (Ko and Khan 2014).

Given one matrix the other one's rows are apart, and the bound of `bilinear_bound` is concave in what `bilinear_rows`
makes of each. The first steps raise the rows of one matrix after those of the other, from wherever they start. That is
sure but slow, as what one matrix gains the other one has to follow: on listening counts it took thirty times as many
evaluations as L-BFGS on both matrices and the hyperparameters at once, which all later steps are. Neither lowers the
bound. Covariances join after the first steps: rows of independent entries are a start near to their best.
"""

from typing import Any, NamedTuple

import numpy as np

from pymc_ep.engines.ascent import BoundAscent, lbfgs_steps
from pymc_ep.engines.base import Status
from pymc_ep.engines.bilinear.block_ascent import raised_rows
from pymc_ep.engines.bilinear.bound import BilinearBound, Derivatives, Sides
from pymc_ep.engines.bilinear.row_parameters import FIRST_VARIANCE, factored, packed, packed_gradient, unpacked
from pymc_ep.engines.bilinear.values import AnyRows, BilinearPrior, MatrixPrior
from pymc_ep.exceptions import InvalidDataError, NumericalError
from pymc_ep.kernels.inner_products import Rows
from pymc_ep.numerics.optimise.batched_lbfgs import Found, Scale, maximise_many, scaled

__all__ = ["State", "VariationalGaussian", "first_state"]

_SWEEPS = 3
"""Steps of one matrix after the other before all is raised at once."""
_ROUNDS = 10
"""Iterations of L-BFGS in a step."""
_SETTLED = 1e-2
"""What a row's slope has to promise to be moved, relative to the tolerance."""
_STALLED = 1e-2
"""Nats a cell that a gradient may promise where the iteration has converged."""
_NEARBY = 1e-3
"""Step of the differences that tell curvatures in hyperparameters."""
_FIRST_SPREAD = 0.1
"""Standard deviation of the means to start from. At means of zero the gradient is zero as well."""


class State(NamedTuple):
    """The posterior after some steps.

    Attributes
    ----------
    left, right : Rows or FactoredRows
        Either matrix, (I, K) and (J, K'), with its bias as the last column where it has one.
    theta : ndarray, (p,)
        Unconstrained hyperparameters.
    log_bound : float
        Lower bound on the log density of the data; with points estimated, times their prior density.
    objective : float
        The same plus the log prior of the hyperparameters.
    change : float
        Increase of the objective in the last step, for each cell.
    found : Found, optional
        Where the ascent of all at once is.
    loop : int
        Steps made.
    promised : float
        What a Newton step of the rows would raise the objective by, for each cell, by its gradient; zero before the
        first ascent of all at once.
    """

    left: AnyRows
    right: AnyRows
    theta: np.ndarray
    log_bound: float
    objective: float
    change: float
    found: Found | None
    loop: int
    promised: float

    @property
    def sides(self) -> Sides:
        """Both matrices."""
        return self.left, self.right


class VariationalGaussian(BoundAscent):
    """Ascent of the bound.

    Parameters
    ----------
    bound : BilinearBound
    learn : bool
        Whether hyperparameters are learned.
    tol : float
        Increase of the objective in one step, for each cell, at which the iteration ends.
    max_iter : int
    full : bool
        Whether rows end with covariances, where they start without.
    """

    def __init__(self, bound: BilinearBound, *, learn: bool, tol: float, max_iter: int, full: bool = False):
        super().__init__(tol, max_iter)
        self.bound, self.learn, self.full = bound, learn, full

    def init(self, problem: Any, start: Any = None) -> State:
        """Return the state at its start, with its bound."""
        return self._evaluated(problem, start)

    def step(self, problem: Any, state: State) -> State:
        """Raise the bound."""
        if state.loop < _SWEEPS or self._stalled(state):
            after = self._evaluated(problem, self._sweep(problem, state))
        else:
            after = self._ascent(problem, state)
        change = (after.objective - state.objective) / self.bound.cells.y.size
        return after._replace(change=change, loop=state.loop + 1)

    def may_end(self, state: State) -> bool:
        """Return whether a small change is that of the whole bound by now: not before all is raised at once."""
        return state.loop > _SWEEPS and not self._stalled(state)

    def finished(self, state: State) -> Status | None:
        """Return how the iteration ended, or None while it goes on."""
        if self._stalled(state) and state.found is None:
            return Status(
                False,
                f"stopped after {state.loop} steps, as none raises the bound, although its gradient promises "
                f"{state.promised:.2g} a cell; give a better start by start=, or another seed=, or lower the scale of "
                f"counts this large",
            )
        return super().finished(state)

    def _stalled(self, state: State) -> bool:
        """Return whether an ascent found nothing higher where there should be: then one of either matrix may."""
        return state.change <= self.tol and state.promised > _STALLED

    def _evaluated(self, problem: Any, state: State) -> State:
        prior = problem.prior(state.theta)
        bound = self.bound.value(prior, state.sides)
        return state._replace(log_bound=bound, objective=bound + prior.log_prior)

    def _sweep(self, problem: Any, state: State) -> State:
        """Raise the rows of the left matrix, then those of the right one, then the hyperparameters."""
        prior, sides = problem.prior(state.theta), list(state.sides)
        for own in range(2):
            sides[own] = self._raised(prior, (sides[0], sides[1]), own)
        state = state._replace(left=sides[0], right=sides[1], found=None)
        if not self._learns(state):
            return state

        def evaluate(theta: np.ndarray) -> tuple[float, np.ndarray]:
            given = problem.prior(theta)
            found = self.bound.derivatives(given, state.sides)
            return found.value + given.log_prior, _of_theta(problem, theta, found)

        return state._replace(theta=lbfgs_steps(evaluate, state.theta, _ROUNDS)[0])

    def _learns(self, state: State) -> bool:
        return self.learn and state.theta.size > 0

    def _raised(self, prior: BilinearPrior, sides: Sides, own: int) -> AnyRows:
        """Return the rows of one matrix raised towards their maximum, given those of the other one."""
        block = self.bound.block(prior, sides, own)
        return raised_rows(block, sides[own], max_iter=_ROUNDS, tol=_SETTLED * self.tol)

    def _ascent(self, problem: Any, state: State) -> State:
        """Raise all at once."""
        learns, points = self._learns(state), self.bound.points
        if self.full:
            state = state._replace(left=factored(state.left), right=factored(state.right))
        parts = [packed(rows, own) for rows, own in zip(state.sides, points)]
        ends = np.cumsum([part.size for part in parts])

        def taken_apart(at: np.ndarray) -> tuple[Sides, np.ndarray]:
            left, right, theta = np.split(at, ends)
            new_left, new_right = (
                unpacked(one.reshape(part.shape), own, type(state.left))
                for one, part, own in zip((left, right), parts, points)
            )
            return (new_left, new_right), theta if learns else state.theta

        def evaluate(_: np.ndarray, at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            try:
                # Trial steps may overflow, which the line search turns back from.
                with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
                    sides, theta = taken_apart(at[0])
                    prior = problem.prior(theta)
                    found = self.bound.derivatives(prior, sides)
                    of_sides = self.bound.of_sides(prior, sides, found)
                    gradient = [packed_gradient(*one).ravel() for one in zip(of_sides, sides, points)]
                    gradient += [_of_theta(problem, theta, found)] if learns else []
            except (NumericalError, InvalidDataError):
                return np.array([-np.inf]), np.zeros_like(at)
            value, slope = found.value + prior.log_prior, np.concatenate(gradient)
            good = np.isfinite(value) and np.isfinite(slope).all()
            return np.array([value if good else -np.inf]), slope[None]

        whole = np.concatenate([*(part.ravel() for part in parts), *([state.theta] if learns else [])])
        start, scale = state.found or whole[None], self._scale(problem, state, learns)
        found = maximise_many(evaluate, start, scale, max_iter=_ROUNDS, tol=0.0)
        ((left, right), theta), objective = taken_apart(found.points[0]), float(found.values[0])
        bound = objective - problem.prior(theta).log_prior
        steps = found.gradients * scaled(scale, np.zeros(1, dtype=int), found.gradients)
        # Of rows alone: where scales are learned to be none, slopes in them are all but rounding.
        promised = 0.5 * float(steps[0, : ends[-1]].sum()) / self.bound.cells.y.size
        return State(left, right, theta, bound, objective, state.change, found, state.loop, promised)

    def _scale(self, problem: Any, state: State, learns: bool) -> Scale:
        """Return about the inverse of minus the Hessian of all that is raised at once."""
        prior, numbers = problem.prior(state.theta), [np.arange(len(rows.mean)) for rows in state.sides]
        scales = [self.bound.block(prior, state.sides, own).scale(numbers[own]) for own in (0, 1)]
        of_theta = self._curvature(problem, state) if learns else np.zeros(0)
        sizes = [packed(rows, own).size for rows, own in zip(state.sides, self.bound.points)]

        def scale(_: np.ndarray, gradients: np.ndarray) -> np.ndarray:
            *sides, theta = np.split(gradients[0], np.cumsum(sizes))
            out = [
                scaled(one, rows, part.reshape(len(rows), -1)).ravel()
                for one, rows, part in zip(scales, numbers, sides)
            ]
            return np.concatenate([*out, of_theta * theta])[None]

        return scale

    def _curvature(self, problem: Any, state: State) -> np.ndarray:
        """Return about the inverse of minus each second derivative in the hyperparameters, (p,)."""

        def slope(theta: np.ndarray) -> np.ndarray:
            return _of_theta(problem, theta, self.bound.derivatives(problem.prior(theta), state.sides))

        here = slope(state.theta)

        def fall(k: int, step: np.ndarray) -> float:
            try:
                return here[k] - slope(state.theta + step)[k]
            except (NumericalError, InvalidDataError):
                # Beside the edge, such as that where a learned covariance of a prior is singular in doubles.
                return 0.0

        curvature = np.array([fall(k, step) for k, step in enumerate(_NEARBY * np.eye(state.theta.size))]) / _NEARBY
        # Where it is not concave, whatever its size is.
        return 1.0 / np.maximum(np.abs(curvature), 1.0)


def first_state(prior: BilinearPrior, n_factors: int, points: Any, theta: np.ndarray, seed: Any) -> State:
    """Return a feasible state of small random means."""
    rng = np.random.default_rng(seed)

    def side(own: MatrixPrior, fixed: np.ndarray) -> Rows:
        mean = np.where(np.isfinite(own.variance), own.mean, 0.0)
        spread = np.minimum(_FIRST_SPREAD, np.sqrt(own.variance[:, :n_factors]))
        mean[:, :n_factors] += spread * rng.standard_normal(spread.shape)
        return Rows(mean, np.where(fixed, 0.0, np.minimum(FIRST_VARIANCE, own.variance)))

    left, right = side(prior.left, points[0]), side(prior.right, points[1])
    return State(left, right, theta, np.nan, np.nan, np.inf, None, 0, 0.0)


def _of_theta(problem: Any, theta: np.ndarray, found: Derivatives) -> np.ndarray:
    return problem.pullback(theta, found.of_prior, found.of_offset, found.of_parameters)
