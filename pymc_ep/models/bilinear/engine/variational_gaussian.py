"""Variational Gaussian of independent rows for bilinear models, by ascent of a lower bound (Ko and Khan 2014).

Given one matrix, the bound (`BilinearBound`) is a sum over the rows of the other, concave in the packed coordinates of
each row (`packed`). The first steps are sweeps: they maximise over the rows of one matrix, then of the other one.
Sweeps are robust but slow, as the matrices follow each other: on listening counts they took thirty times as many
evaluations as joint L-BFGS over both matrices and the hyperparameters, which makes all later steps. Neither sweeps nor
joint ascent lower the bound. Covariances are introduced after the sweeps, as rows of independent entries are a good
start for them.
"""

from typing import NamedTuple

import numpy as np

from pymc_ep.engines.ascent import BoundAscent, lbfgs_steps
from pymc_ep.engines.base import Status
from pymc_ep.exceptions import InvalidDataError, NumericalError
from pymc_ep.models.bilinear.engine.block_ascent import improved_rows
from pymc_ep.models.bilinear.engine.bound import BilinearBound, Derivatives, Sides
from pymc_ep.models.bilinear.engine.row_parameters import factored, packed, unpacked
from pymc_ep.models.bilinear.engine.values import AnyRows, BilinearPrior, BilinearProblem
from pymc_ep.numerics.optimise.batched_lbfgs import Found, Scale, maximise_many, scaled

__all__ = ["State", "VariationalGaussian", "first_state"]

_SWEEPS = 3
"""Number of sweeps before joint ascent: a compromise between their robustness far from the maximum and their
slowness."""
_ROUNDS = 10
"""Largest number of L-BFGS iterations in a step: the interval of progress reports, checkpoints and stopping tests."""
_ROW_TOL = 1e-2
"""Predicted increase, relative to the tolerance per cell, below which a row is converged in a sweep. Small enough for
the sum over rows to stay within the tolerance."""
_STALL_GAIN = 1e-2
"""Predicted increase, nats per cell, above which a small change means a stalled ascent and not convergence: near a
maximum the predicted and the actual increase agree."""
_DIFFERENCE_STEP = 1e-3
"""Step of the finite differences for second derivatives in unconstrained hyperparameters: a compromise between rounding
and curvature of higher order. The result only scales L-BFGS."""


class State(NamedTuple):
    """The posterior after some steps.

    Attributes
    ----------
    left, right : Rows or FactoredRows
        Both matrices, (I, K) and (J, K'), each with its bias, if any, as the last column.
    theta : ndarray, (p,)
        Unconstrained hyperparameters.
    log_bound : float
        Lower bound on the log density of the data; with point estimates, plus their log prior density.
    objective : float
        `log_bound` plus the log prior of the hyperparameters.
    change : float
        Increase of the objective in the last step, per cell.
    found : Found, optional
        L-BFGS state of the joint ascent.
    loop : int
        Number of steps made.
    predicted : float
        Predicted increase of the objective by a Newton step of the rows, per cell: half the product of gradient and
        step. Zero before the first joint ascent.
    """

    left: AnyRows
    right: AnyRows
    theta: np.ndarray
    log_bound: float
    objective: float
    change: float
    found: Found | None
    loop: int
    predicted: float

    @property
    def sides(self) -> Sides:
        """Both matrices."""
        return self.left, self.right


class VariationalGaussian(BoundAscent[State]):
    """Ascent of a bilinear bound over both matrices and the hyperparameters.

    Parameters
    ----------
    bound : BilinearBound
    learn : bool
        Whether hyperparameters are learned.
    tol : float
        Increase of the objective in one step, per cell, at which the iteration ends.
    full : bool
        Whether rows have covariances after the sweeps.
    """

    def __init__(self, bound: BilinearBound, *, learn: bool, tol: float, full: bool = False):
        super().__init__(tol)
        self.bound, self.learn, self.full = bound, learn, full

    def init(self, problem: BilinearProblem, start: State | None = None) -> State:
        """Return the first state, with its bound."""
        assert start is not None, "an ascent has no start of its own"
        return self._evaluated(problem, start)

    def step(self, problem: BilinearProblem, state: State) -> State:
        """Make a sweep, in the first steps and after a stalled ascent, or else a joint ascent."""
        if state.loop < _SWEEPS or self._stalled(state):
            after = self._evaluated(problem, self._sweep(problem, state))
        else:
            after = self._ascent(problem, state)
        change = (after.objective - state.objective) / self.bound.cells.y.size
        return after._replace(change=change, loop=state.loop + 1)

    def may_end(self, state: State) -> bool:
        """Return whether a small change means convergence: not before a joint ascent, and not if it stalled."""
        return state.loop > _SWEEPS and not self._stalled(state)

    def finished(self, state: State) -> Status | None:
        """Return how the iteration ended, or None while it goes on."""
        if self._stalled(state) and state.found is None:
            return Status(
                False,
                f"stopped after {state.loop} steps, as none raises the bound, although its gradient promises "
                f"{state.predicted:.2g} a cell; give a better start by start=, or another seed=, or lower the scale of "
                f"counts this large",
            )
        return super().finished(state)

    def _stalled(self, state: State) -> bool:
        """Return whether the joint ascent stalls although the gradient predicts an increase; a sweep may help."""
        return state.change <= self.tol and state.predicted > _STALL_GAIN

    def _evaluated(self, problem: BilinearProblem, state: State) -> State:
        prior = problem.prior(state.theta)
        bound = self.bound.value(prior, state.sides)
        return state._replace(log_bound=bound, objective=bound + prior.log_prior)

    def _sweep(self, problem: BilinearProblem, state: State) -> State:
        """Maximise over the rows of one matrix, then of the other one, then over the hyperparameters."""
        prior, sides = problem.prior(state.theta), list(state.sides)
        for side in self.bound.order:
            sides[side] = self._improved(prior, (sides[0], sides[1]), side)
        state = state._replace(left=sides[0], right=sides[1], found=None)
        if not self._learns(state):
            return state

        products = self.bound.products(state.sides)

        def evaluate(theta: np.ndarray) -> tuple[float, np.ndarray]:
            given = problem.prior(theta)
            derivatives = self.bound.derivatives(given, state.sides, products)
            return derivatives.value + given.log_prior, _grad_theta(problem, theta, derivatives)

        return state._replace(theta=lbfgs_steps(evaluate, state.theta, _ROUNDS)[0])

    def _learns(self, state: State) -> bool:
        return self.learn and state.theta.size > 0

    def _improved(self, prior: BilinearPrior, sides: Sides, side: int) -> AnyRows:
        """Return the rows of one matrix after some steps towards their maximum, given the other matrix."""
        block = self.bound.block(prior, sides, side)
        return improved_rows(block, sides[side], max_iter=_ROUNDS, tol=_ROW_TOL * self.tol)

    def _ascent(self, problem: BilinearProblem, state: State) -> State:
        """Make some iterations of L-BFGS over both matrices and the hyperparameters jointly."""
        learns, points = self._learns(state), self.bound.points
        if self.full:
            state = state._replace(left=factored(state.left), right=factored(state.right))
        coordinates = [packed(rows, mask) for rows, mask in zip(state.sides, points)]
        ends, given = np.cumsum([matrix.size for matrix in coordinates]), problem.prior(state.theta)

        def shaped(at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            left, right, _ = np.split(at, ends)
            return left.reshape(coordinates[0].shape), right.reshape(coordinates[1].shape)

        def unpack(at: np.ndarray) -> tuple[Sides, np.ndarray]:
            left, right = (unpacked(values, mask, type(state.left)) for values, mask in zip(shaped(at), points))
            return (left, right), at[ends[-1] :] if learns else state.theta

        def evaluate(_: np.ndarray, at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            try:
                # Trial steps may overflow; the line search then backtracks.
                with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
                    sides, theta = unpack(at[0])
                    prior = problem.prior(theta) if learns else given
                    derivatives = self.bound.derivatives(prior, sides)
                    slope = np.empty_like(at)
                    self.bound.of_sides(prior, sides, derivatives, shaped(slope[0]))
                    if learns:
                        slope[0, ends[-1] :] = _grad_theta(problem, theta, derivatives)
            except (NumericalError, InvalidDataError):
                return np.array([-np.inf]), np.zeros_like(at)
            value = derivatives.value + prior.log_prior
            good = np.isfinite(value) and np.isfinite(slope).all()
            return np.array([value if good else -np.inf]), slope

        whole = np.concatenate([*(matrix.ravel() for matrix in coordinates), *([state.theta] if learns else [])])
        start, scale = state.found or whole[None], self._scale(problem, state, learns)
        optimised = maximise_many(evaluate, start, scale, max_iter=_ROUNDS, tol=0.0)
        ((left, right), theta), objective = unpack(optimised.points[0]), float(optimised.values[0])
        bound = objective - problem.prior(theta).log_prior
        # Rise of a Newton step, g^T H g / 2, with H the approximate inverse negative Hessian.
        steps = optimised.gradients * scaled(scale, np.zeros(1, dtype=int), optimised.gradients)
        # Rows only: where learned scales run to zero, gradients in their logarithms are mostly rounding.
        predicted = 0.5 * float(steps[0, : ends[-1]].sum()) / self.bound.cells.y.size
        return State(left, right, theta, bound, objective, state.change, optimised, state.loop, predicted)

    def _scale(self, problem: BilinearProblem, state: State, learns: bool) -> Scale:
        """Return the approximate inverse negative Hessian of the joint ascent, block diagonal."""
        prior, numbers = problem.prior(state.theta), [np.arange(len(rows.mean)) for rows in state.sides]
        scales = [self.bound.block(prior, state.sides, side).scale(numbers[side]) for side in (0, 1)]
        scale_theta = self._curvature(problem, state) if learns else np.zeros(0)
        diagonals = [block_scale.ravel() for block_scale in scales if isinstance(block_scale, np.ndarray)]
        if len(diagonals) == len(scales):
            return np.concatenate([*diagonals, scale_theta])[None]
        sizes = [packed(rows, mask).size for rows, mask in zip(state.sides, self.bound.points)]

        def scale(_: np.ndarray, gradients: np.ndarray) -> np.ndarray:
            *sides, theta = np.split(gradients[0], np.cumsum(sizes))
            out = [
                scaled(block_scale, rows, gradient.reshape(len(rows), -1)).ravel()
                for block_scale, rows, gradient in zip(scales, numbers, sides)
            ]
            return np.concatenate([*out, scale_theta * theta])[None]

        return scale

    def _curvature(self, problem: BilinearProblem, state: State) -> np.ndarray:
        """Return inverse absolute second derivatives of the objective in the hyperparameters, (p,), at most 1."""
        products = self.bound.products(state.sides)

        def slope(theta: np.ndarray) -> np.ndarray:
            return _grad_theta(problem, theta, self.bound.derivatives(problem.prior(theta), state.sides, products))

        gradient = slope(state.theta)

        def decrease(k: int, step: np.ndarray) -> float:
            try:
                return gradient[k] - slope(state.theta + step)[k]
            except (NumericalError, InvalidDataError):
                # Next to the edge of the domain, such as a learned prior covariance that is singular in doubles.
                return 0.0

        # -d^2 B / dtheta_k^2 by forward differences of the gradient.
        curvature = (
            np.array([decrease(k, step) for k, step in enumerate(_DIFFERENCE_STEP * np.eye(state.theta.size))])
            / _DIFFERENCE_STEP
        )
        # Where the objective is not concave the absolute value still gives the scale.
        return 1.0 / np.maximum(np.abs(curvature), 1.0)


def first_state(sides: Sides, theta: np.ndarray) -> State:
    """Return the state before the first step."""
    return State(*sides, theta, np.nan, np.nan, np.inf, None, 0, 0.0)


def _grad_theta(problem: BilinearProblem, theta: np.ndarray, derivatives: Derivatives) -> np.ndarray:
    return problem.pullback(theta, derivatives.of_prior, derivatives.of_offset, derivatives.of_parameters)
