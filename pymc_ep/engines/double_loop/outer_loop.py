"""The double loop: a Gaussian posterior by lower bounds of all sites (Seeger and Nickisch 2011; Ko and Seeger 2012).

With Gaussians of precision pi below sites of eta = m0 + D x, and A = D^T diag(pi) D, the evidence is at least exp(B),

    B = -log|A| / 2 + sum_i value_i + z^T pi / 2,        pi_i tight at x_i = z_i + (eta_i - c_i)^2,

for every x and every z > 0, where value_i is `pymc_ep.sites.bounds.Bounded.value` at eta_i and z_i. A flat density of x
counts as (2 pi)^{-1/2} for each unknown, as in `numerics.gaussian.coefficient_space`; a form's log excess tells the
rest. As
log|A| is concave in pi, its tangent with slopes z = diag(D A^{-1} D^T) makes of B a sum over sites that x, pi and the
hyperparameters can raise one after the other: the inner loop. An outer loop renews z. With exact variances B never
falls.
"""

from typing import Any, NamedTuple

import numpy as np

from pymc_ep.engines.ascent import lbfgs_steps
from pymc_ep.engines.base import Status
from pymc_ep.engines.double_loop.bounded_sites import BoundedSites
from pymc_ep.engines.double_loop.inner_loop import Inner, InnerProblem, minimise
from pymc_ep.engines.double_loop.precision_solvers import PrecisionSolver, Variances
from pymc_ep.engines.prior import FactorValues
from pymc_ep.exceptions import InvalidDataError, NumericalError
from pymc_ep.numerics.optimise.anderson import anderson

__all__ = ["DoubleLoop", "Start", "State"]

_FIRST = 5
"""Rounds towards variances at which each site alone would have the precision of their inverse."""
_LEARNING = 10
"""Iterations of L-BFGS on the hyperparameters in one outer loop."""
_LEAST = 1e-100
"""Least variance of a predictor, for those that are constant: a row of zeros in D."""
_LOG_VARIANCE = np.log(_LEAST), -np.log(_LEAST)
"""Between what extrapolated log variances are kept, to which a bound belongs as to all others."""
_MEMORY = 5
"""Outer loops that are extrapolated from."""
_GROWTH = 2.0
"""Growth of moves from one outer loop to the next at which extrapolation without a bound starts anew."""
_STRETCH, _LONGEST = 2.0, 16.0
"""First and greatest length of a move that is stretched, and by what it grows; relative to the move."""
_ALIGNED = 0.9
"""Cosine between moves from which they are stretched without a bound."""
_ROUNDED = 1e-6
"""Nats of the bound that rounding may decide at a state that was extrapolated to: far away terms of any size, z times
precisions, cancel, and what is left of them looks like a bound."""
_SHARPER = 0.1
"""What an outer loop towards a mode makes of z, down to the smoothing asked for. From there at once, modes of pictures
with missing pixels take three to six times as long under Laplace potentials; under Student-t ones they are lower."""


class Start(NamedTuple):
    """Where a double loop starts.

    Attributes
    ----------
    theta : ndarray, (p,)
        Unconstrained hyperparameters.
    unknowns : ndarray, (N,), optional
        x; by default 0.
    variance : ndarray, (n,), optional
        z; by default that of each site alone.
    """

    theta: np.ndarray
    unknowns: np.ndarray | None = None
    variance: np.ndarray | None = None


class State(NamedTuple):
    """The double loop after some outer loops.

    Attributes
    ----------
    unknowns : ndarray, (N,)
        x, the posterior mean.
    variance : ndarray, (n,)
        z: variances of the predictors under the precisions before these.
    least : ndarray, (n,)
        What z goes to on the way to a mode; zero otherwise.
    shift, precision : ndarray, (n,)
        b and pi: the sites ``exp(b eta - pi eta**2 / 2)``.
    theta : ndarray, (p,)
        Unconstrained hyperparameters.
    log_bound : float
        B plus log excess: a lower bound on the log evidence. NaN unless variances are exact.
    objective : float
        B, or the sum of values where variances are not exact, plus log prior and log excess of the hyperparameters.
    change : float
        Largest move in the last outer loop, see `DoubleLoop.change`.
    error : float
        Median relative standard error of z.
    solved : bool
        Whether all linear systems of the last outer loop were solved to their tolerance.
    points, moves : ndarray, (k, N + n + p)
        x, log z and theta before the last outer loops, and how far each of these by itself took them.
    stretch : float
        How many times its length the next move may be stretched.
    loop : int
        Outer loops made.
    """

    unknowns: np.ndarray
    variance: np.ndarray
    least: np.ndarray
    shift: np.ndarray
    precision: np.ndarray
    theta: np.ndarray
    log_bound: float
    objective: float
    change: float
    error: float
    solved: bool
    points: np.ndarray
    moves: np.ndarray
    stretch: float
    loop: int


class DoubleLoop:
    """The double loop on a sparse linear form.

    Parameters
    ----------
    linear : linear part of the compiled form
        With ``forward`` and ``adjoint``.
    solver : PrecisionSolver
    inner : {"irls", "lbfgs", "newton-cg"}
    inner_max_iter : int
    tol : float
        Change at which the outer loop stops.
    outer : int
        Outer loops to make at most.
    inner_tol : float
        Decrease of the inner objective, relative to its size, at which an inner loop stops.
    learn : bool
        Whether hyperparameters are raised to the maximum of bound times prior.
    smoothing : float, optional
        Takes z from where it starts to this multiple of the variance of each site alone, by a constant factor each
        outer loop: the unknowns then go to the mode of the posterior density, smoothed at kinks.
    """

    def __init__(
        self,
        linear: Any,
        solver: PrecisionSolver,
        *,
        inner: str,
        inner_max_iter: int,
        tol: float,
        outer: int,
        inner_tol: float = 1e-7,
        learn: bool = False,
        smoothing: float | None = None,
    ):
        self.linear = linear
        self.solver = solver
        self.inner = inner
        self.inner_max_iter = inner_max_iter
        self.inner_tol = inner_tol
        self.tol = tol
        self.outer = outer
        self.learn = learn
        self.smoothing = smoothing

    def init(self, problem: BoundedSites, start: Start | None = None) -> State:
        """Return the state before the first outer loop."""
        start = start or Start(problem.form.start)
        prior = problem.prior(start.theta)
        unknowns = np.zeros(self.linear.size) if start.unknowns is None else start.unknowns
        eta = prior.mean + self.linear.forward(unknowns)
        z, least = start.variance, np.zeros(len(eta))
        if z is None or self.smoothing is not None:
            alone = np.ones(len(eta))
            for _ in range(_FIRST):
                alone = 1.0 / problem.bounded(prior, eta, alone).precision
            z = alone if z is None else z
            if self.smoothing is not None:
                least = self.smoothing * np.maximum(alone, _LEAST)
        z = np.maximum(z, np.maximum(least, _LEAST))
        found = problem.bounded(prior, eta, z)
        problem.require_determined(self.solver.proper(found.precision))
        none = np.zeros((0, len(unknowns) + len(z) + start.theta.size))
        unknown = np.nan, np.nan, np.inf, 0.0, True
        nothing = State(unknowns, z, least, z, z, start.theta, *unknown, none, none, _STRETCH, 0)
        return self._tight(problem, nothing)

    def step(self, problem: BoundedSites, state: State) -> State:
        """Make one outer loop: variances, unknowns, hyperparameters, precisions."""
        spread = self._variances(state)
        prior = problem.prior(state.theta)
        inner = self._inner(problem, prior, state.unknowns, spread.values)
        theta, value = state.theta, float(inner.bounded.value.sum()) + prior.log_prior + prior.log_excess
        if self.learn and theta.size:
            theta, value = lbfgs_steps(problem.hyper_objective(inner.fitted, spread.values), theta, _LEARNING)
        after = state._replace(
            unknowns=inner.unknowns,
            variance=spread.values,
            theta=theta,
            error=spread.error,
            solved=spread.solved and inner.solved,
            loop=state.loop + 1,
        )
        if self.smoothing is not None:
            after = self._tight(problem, after)
            return after._replace(change=self._risen(state, after))
        after = after._replace(change=self._moved(state, after))
        # Of the bound, by the tangent of log|A| at the precisions before; NaN where that is not known.
        certain = value + 0.5 * float(spread.values @ state.precision) - 0.5 * spread.log_det
        return self._farther(problem, state, after, certain)

    def objective(self, state: State) -> float:
        """Return the bound, or the inner objective where variances are not exact, with the log prior."""
        return state.objective

    def change(self, state: State) -> float:
        """Return the size of the last outer loop.

        The largest of: moves of predictors in units of their standard deviations, changes of these standard
        deviations relative to them, and moves of hyperparameters. Where variances are estimates, root mean squares over
        the predictors stand for the largest ones: of thousands of potentials that are not log-concave, in each loop
        some go to another maximum. For a mode, such a root mean square by what the density has gained: that of moves in
        standard deviations towards the top of a Gaussian.
        """
        return state.change

    def finished(self, state: State) -> Status | None:
        """Return how the outer loop ended, or None while it goes on."""
        loops = f"{state.loop} outer loop{'' if state.loop == 1 else 's'}"
        unsolved = "; conjugate gradients stopped short of cg_tol: raise cg_max_iter" if not state.solved else ""
        if state.change <= self.tol and (self.smoothing is None or (state.variance <= state.least).all()):
            return Status(state.solved, f"converged after {loops} with a change of {state.change:.2g}{unsolved}")
        if state.loop >= self.outer:
            return Status(
                False, f"stopped after {loops} with a change of {state.change:.2g}; raise outer or tol{unsolved}"
            )
        return None

    def _variances(self, state: State) -> Variances:
        if self.smoothing is not None:
            return Variances(np.maximum(_SHARPER * state.variance, state.least), np.nan, 0.0, True)
        spread = self.solver.variances(state.precision)
        return spread._replace(values=np.maximum(spread.values, _LEAST))

    def _inner(self, problem: BoundedSites, prior: FactorValues, unknowns: np.ndarray, z: np.ndarray) -> Inner:
        inner = InnerProblem(
            self.linear.forward, self.linear.adjoint, prior.mean, lambda eta: problem.bounded(prior, eta, z)
        )
        return minimise(inner, unknowns, self.solver, self.inner, max_iter=self.inner_max_iter, tol=self.inner_tol)

    def _farther(self, problem: BoundedSites, before: State, state: State, certain: float) -> State:
        """Return the state extrapolated from the last loops by Anderson's rule, or stretched, or as it is.

        Moves are short where z and the unknowns follow the hyperparameters or each other. Any z and unknowns give a
        bound, so that others than the loop's own are taken if theirs is no lower than is certain of these. Where
        bounds are not known, extrapolated ones are taken as long as moves do not grow, and if they lie ahead.

        Where the data say little of a scale, far from its maximum, moves grow slowly, and are extrapolated to where
        they came from. They are stretched instead, twice as far each time: without a bound, if they are aligned.
        """
        start = _joined(before)
        points = np.concatenate([before.points, start[None]])[-_MEMORY:]
        moves = np.concatenate([before.moves, _joined(state)[None] - start])[-_MEMORY:]
        found = None
        if len(points) > 1 and (self._bounds or state.change < _GROWTH * before.change):
            farther = _extrapolated(state, points, moves)
            if self._bounds or _cosine(state, _joined(farther) - start, moves[-1]) > 0.0:
                found = self._tight_or_none(problem, farther)
        if found is not None and (not self._bounds or found.objective >= certain):
            return found._replace(stretch=_STRETCH)
        last = slice(None) if len(points) == 1 else slice(-1, None)
        state = state._replace(points=points[last], moves=moves[last], stretch=_STRETCH)
        if len(points) > 1 and (self._bounds or _cosine(state, *moves[-2:]) > _ALIGNED):
            found = self._tight_or_none(problem, _at(state, start + before.stretch * moves[-1]))
            if found is not None and (not self._bounds or found.objective >= certain):
                return found._replace(stretch=min(_STRETCH * before.stretch, _LONGEST))
        return self._tight(problem, state)

    def _tight_or_none(self, problem: BoundedSites, state: State) -> State | None:
        """Return `_tight`, or None where hyperparameters or variances are so far away that it is not to be had."""
        try:
            found = self._tight(problem, state)
        except (NumericalError, InvalidDataError):
            return None
        rounding = np.finfo(float).eps * float(found.variance @ found.precision)
        return found if rounding < _ROUNDED else None

    def _tight(self, problem: BoundedSites, state: State) -> State:
        """Return the state with the Gaussians that touch the sites best, and its bound."""
        prior = problem.prior(state.theta)
        eta = prior.mean + self.linear.forward(state.unknowns)
        found = problem.bounded(prior, eta, state.variance)
        total = float(found.value.sum()) + prior.log_excess
        if self.smoothing is not None:
            # At a mode a flat density counts as 1.
            total -= 0.5 * self.linear.size * np.log(2 * np.pi)
        log_bound = np.nan
        if self._bounds:
            total += 0.5 * float(state.variance @ found.precision) - 0.5 * self.solver.log_det(found.precision)
            log_bound = total
        return state._replace(
            shift=found.gradient + found.precision * eta,
            precision=found.precision,
            log_bound=log_bound,
            objective=total + prior.log_prior,
        )

    def _moved(self, before: State, state: State) -> float:
        moved = np.abs(self.linear.forward(state.unknowns - before.unknowns))
        of_predictors = moved / np.sqrt(state.variance), 0.5 * np.abs(np.log(state.variance / before.variance))
        measure = np.max if self.solver.exact else _root_mean_square
        return float(max(*map(measure, of_predictors), np.abs(state.theta - before.theta).max(initial=0.0)))

    @staticmethod
    def _risen(before: State, state: State) -> float:
        return float(np.sqrt(2.0 * max(state.objective - before.objective, 0.0) / len(state.variance)))

    @property
    def _bounds(self) -> bool:
        return self.solver.exact and self.smoothing is None


def _extrapolated(state: State, points: np.ndarray, moves: np.ndarray) -> State:
    """Return the state with x, log z and theta extrapolated; weights come from log z and theta, which have no unit."""
    weights = np.ones(points.shape[1])
    weights[: len(state.unknowns)] = 0.0
    return _at(state, anderson(points, moves, weights))._replace(points=points, moves=moves)


def _at(state: State, joined: np.ndarray) -> State:
    """Return the state with x, log z and theta from one vector, see `_joined`."""
    n = len(state.unknowns)
    unknowns, log_variance, theta = np.split(joined, [n, n + len(state.variance)])
    return state._replace(unknowns=unknowns, variance=np.exp(np.clip(log_variance, *_LOG_VARIANCE)), theta=theta)


def _cosine(state: State, one: np.ndarray, other: np.ndarray) -> float:
    """Return the cosine between two moves of log z and theta; 0 where one is none."""
    n = len(state.unknowns)
    lengths = float(np.linalg.norm(one[n:]) * np.linalg.norm(other[n:]))
    return float(one[n:] @ other[n:]) / lengths if lengths > 0.0 else 0.0


def _root_mean_square(size: np.ndarray) -> float:
    return float(np.sqrt(np.mean(size**2)))


def _joined(state: State) -> np.ndarray:
    return np.concatenate([state.unknowns, np.log(state.variance), state.theta])
