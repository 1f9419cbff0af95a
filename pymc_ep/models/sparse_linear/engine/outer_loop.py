"""The double loop: a Gaussian posterior by lower bounds of all sites (Seeger and Nickisch 2011; Ko and Seeger 2012).

The predictors are eta = m0 + D x. With Gaussians of precision pi below the sites, and A = D^T diag(pi) D, the evidence
is at least exp(B) for every x and every z > 0:

    B = -log|A| / 2 + sum_i value_i + z^T pi / 2,

where value_i is `pymc_ep.sites.bounds.Bounded.value` at eta_i and z_i. The Gaussian below a super-Gaussian site of
centre c_i touches the site at the squared distance z_i + (eta_i - c_i)^2 from the centre. A flat density of x counts as
(2 pi)^{-1/2} for each unknown, as in `numerics.gaussian.coefficient_space`; a form's log excess has the remaining
factor.

log|A| is concave in pi. Its tangent, with slopes z = diag(D A^{-1} D^T), turns B into a sum over sites. The inner loop
maximises the sum over x; then it is maximised over the hyperparameters. Each outer loop updates z. With exact variances
B never decreases.
"""

from typing import NamedTuple

import numpy as np

from pymc_ep.engines.ascent import lbfgs_steps
from pymc_ep.engines.base import Status
from pymc_ep.engines.prior import FactorValues
from pymc_ep.exceptions import InvalidDataError, NumericalError
from pymc_ep.models.sparse_linear.engine.bounded_sites import BoundedSites
from pymc_ep.models.sparse_linear.engine.inner_loop import Inner, InnerProblem, minimise
from pymc_ep.models.sparse_linear.engine.precision_solvers import LinearPart, PrecisionSolver, Variances
from pymc_ep.numerics.optimise.anderson import anderson

__all__ = ["DoubleLoop", "Start", "State"]

_START_ROUNDS = 5
"""Number of fixed-point iterations z = 1 / pi(z) for the variance under each site alone, from the typical variance.
This is only a start: more digits are of no use."""
_HYPER_ITERATIONS = 10
"""Largest number of L-BFGS iterations on the hyperparameters in one outer loop. The maximum moves with the next z, and
is not worth finding exactly."""
_LEAST_VARIANCE = 1e-100
"""Least variance of a predictor. Constant predictors, zero rows of D, have variance zero; this keeps log z finite and
1 / z from overflowing."""
_LOG_VARIANCE_RANGE = np.log(_LEAST_VARIANCE), -np.log(_LEAST_VARIANCE)
"""Range that extrapolated log z are clipped to. Every z > 0 gives a valid bound, so that clipping is safe."""
_MEMORY = 5
"""Number of past outer loops that Anderson extrapolation uses. More would capture slow directions better, but include
moves that are out of date."""
_GROWTH = 2.0
"""Factor by which the change may grow from one outer loop to the next: beyond it, extrapolation without a bound
restarts. Estimated variances alone make the change fluctuate, so that small growth is no failure."""
_STRETCH, _LONGEST_STRETCH = 2.0, 16.0
"""First and largest length of a stretched move, relative to the move itself. The first is also the factor by which
successive stretches grow. The largest limits the cost of a failed one."""
_ALIGNED = 0.9
"""Cosine of successive moves above which moves are stretched where no bound is known. Only a bound could show that a
move is too long."""
_ROUNDING_LIMIT = 1e-6
"""Largest rounding error of the bound, nats, at an extrapolated state. Far away the terms z_i pi_i are huge and cancel,
and their rounding error could pass for a rise of the bound."""
_SMOOTHING_DECREASE = 0.1
"""Factor on z in each outer loop towards a mode, down to the smoothing of the options. Without the intermediate steps,
modes of pictures with missing pixels took three to six times as long under Laplace potentials; under Student-t
potentials the modes were lower."""


class Start(NamedTuple):
    """Start of a double loop.

    Attributes
    ----------
    theta : ndarray, (p,)
        Unconstrained hyperparameters.
    unknowns : ndarray, (N,), optional
        x; by default 0.
    variance : ndarray, (n,), optional
        z; by default the variance of each predictor under its site alone.
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
        z: variances of the predictors under the precisions of the previous outer loop.
    least : ndarray, (n,)
        Value down to which z decreases on the way to a mode; zero otherwise.
    shift, precision : ndarray, (n,)
        b and pi: the sites ``exp(b eta - pi eta**2 / 2)``.
    theta : ndarray, (p,)
        Unconstrained hyperparameters.
    log_bound : float
        B plus log excess: a lower bound on the log evidence. NaN unless variances are exact.
    objective : float
        Log prior, plus log excess, plus B; where variances are not exact, plus the sum of the sites' values in place of
        B.
    change : float
        Largest move in the last outer loop, see `DoubleLoop.change`.
    error : float
        Median relative standard error of z.
    solved : bool
        Whether all linear systems of the last outer loop were solved to their tolerance.
    points, moves : ndarray, (k, N + n + p)
        (x, log z, theta) before each of the last k outer loops, and the change of these by the loop, before any
        acceleration.
    stretch : float
        Factor by which the next move may be stretched.
    loop : int
        Number of outer loops made.
    samples : tuple of ndarray, (N,)
        Draws behind estimated variances, see `Variances`.
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
    samples: tuple[np.ndarray, ...] = ()


class DoubleLoop:
    """The double loop on a sparse linear form.

    Parameters
    ----------
    linear : LinearPart
    solver : PrecisionSolver
    inner : {"irls", "lbfgs", "newton-cg"}
    inner_max_iter : int
    tol : float
        Change at which the outer loop stops.
    inner_tol : float
        Rise of the inner objective, nats per site, at which an inner loop stops.
    learn : bool
        Whether hyperparameters are learned: moved towards the maximum of log bound plus log prior.
    smoothing : float, optional
        Seek the mode of the posterior density, smoothed at kinks, in place of the bound's maximum: z decreases by a
        constant factor in each outer loop, down to this multiple of the predictor's variance under its site alone.
    """

    def __init__(
        self,
        linear: LinearPart,
        solver: PrecisionSolver,
        *,
        inner: str,
        inner_max_iter: int,
        tol: float,
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
            alone = _alone(problem, prior)
            z = alone if z is None else z
            if self.smoothing is not None:
                least = self.smoothing * np.maximum(alone, _LEAST_VARIANCE)
        z = np.maximum(z, np.maximum(least, _LEAST_VARIANCE))
        bounds = problem.bounded(prior, eta, z)
        problem.require_determined(self.solver.proper(bounds.precision))
        no_history = np.zeros((0, len(unknowns) + len(z) + start.theta.size))
        not_evaluated = np.nan, np.nan, np.inf, 0.0, True
        blank = State(unknowns, z, least, z, z, start.theta, *not_evaluated, no_history, no_history, _STRETCH, 0)
        return self._tight(problem, blank)

    def step(self, problem: BoundedSites, state: State) -> State:
        """Make one outer loop: update variances, unknowns, hyperparameters and precisions in turn."""
        spread = self._variances(state)
        prior = problem.prior(state.theta)
        inner = self._inner(problem, prior, state.unknowns, spread.values)
        theta, value = state.theta, float(inner.bounded.value.sum()) + prior.log_prior + prior.log_excess
        if self.learn and theta.size:
            theta, value = lbfgs_steps(problem.hyper_objective(inner.fitted, spread.values), theta, _HYPER_ITERATIONS)
        after = state._replace(
            unknowns=inner.unknowns,
            variance=spread.values,
            theta=theta,
            error=spread.error,
            solved=spread.solved and inner.solved,
            loop=state.loop + 1,
            samples=spread.samples,
        )
        if self.smoothing is not None:
            after = self._tight(problem, after)
            return after._replace(change=max(self._size_by_gain(state, after), self._size_of_step(inner)))
        after = after._replace(change=self._size_of_move(state, after))
        # Guaranteed bound, by the tangent of log|A| at the previous precisions; NaN if log|A| is unknown.
        # log|A| <= log|A_0| + z^T (pi - pi_0), so that B >= sum_i value_i + z^T pi_0 / 2 - log|A_0| / 2.
        guaranteed = value + 0.5 * float(spread.values @ state.precision) - 0.5 * spread.log_det
        return self._accelerated(problem, state, after, guaranteed)

    def objective(self, state: State) -> float:
        """Return the bound, or the inner objective if variances are estimates, plus the log prior."""
        return state.objective

    def change(self, state: State) -> float:
        """Return the size of the move in the last outer loop.

        This is the largest of three numbers: moves of the predictors in standard deviations, relative changes of these
        standard deviations, and moves of the unconstrained hyperparameters. If variances are estimates, root mean
        squares over the predictors replace the maxima: of thousands of potentials that are not log-concave, some jump
        to another maximum in every loop.

        For a mode the size is sqrt(2 gain / n): the root mean square move, in standard deviations, to the top of a
        Gaussian. The gain is the larger of two rises of the log density: by the last outer loop, and g^T A^{-1} g / 2
        by a next step at the gradient g. The second remains large for a search that stalls away from a stationary
        point.
        """
        return state.change

    def finished(self, state: State) -> Status | None:
        """Return how the outer loop ended, or None while it goes on."""
        if state.change <= self.tol and (self.smoothing is None or (state.variance <= state.least).all()):
            return Status(state.solved, f"converged after {_progress(state)}")
        return None

    def exhausted(self, state: State, iterations: int) -> str:
        """Return the sentence for a double loop that is not finished at the largest number of outer loops."""
        return f"stopped after {_progress(state, '; raise outer or tol')}"

    def _variances(self, state: State) -> Variances:
        if self.smoothing is not None:
            return Variances(np.maximum(_SMOOTHING_DECREASE * state.variance, state.least), np.nan, 0.0, True)
        spread = self.solver.variances(state.precision, state.samples)
        return spread._replace(values=np.maximum(spread.values, _LEAST_VARIANCE))

    def _inner(self, problem: BoundedSites, prior: FactorValues, unknowns: np.ndarray, z: np.ndarray) -> Inner:
        inner = InnerProblem(
            self.linear.forward, self.linear.adjoint, prior.mean, lambda eta: problem.bounded(prior, eta, z)
        )
        return minimise(inner, unknowns, self.solver, self.inner, max_iter=self.inner_max_iter, tol=self.inner_tol)

    def _accelerated(self, problem: BoundedSites, before: State, state: State, guaranteed: float) -> State:
        """Return the state accelerated by Anderson extrapolation or by a stretched move, or else as it is.

        Alternating updates of z, unknowns and hyperparameters make short moves. Every z and x give a valid bound, so
        that an extrapolated state is accepted if its bound is no lower than `guaranteed`, a lower limit of the plain
        state's. Where bounds are unknown, it is accepted if the change has not grown much and the state lies in the
        direction of the last move.

        Far from the maximum of a scale that the data hardly determine, moves grow slowly, and Anderson's rule would
        extrapolate them backwards. Such moves are stretched instead, by a factor that doubles each time; where bounds
        are unknown, only if successive moves are aligned.
        """
        start = _packed(before)
        points = np.concatenate([before.points, start[None]])[-_MEMORY:]
        moves = np.concatenate([before.moves, _packed(state)[None] - start])[-_MEMORY:]
        accelerated = None
        if len(points) > 1 and (self._has_bound or state.change < _GROWTH * before.change):
            extrapolated = _extrapolated(state, points, moves)
            if self._has_bound or _cosine(state, _packed(extrapolated) - start, moves[-1]) > 0.0:
                accelerated = self._tight_or_none(problem, extrapolated)
        if accelerated is not None and (not self._has_bound or accelerated.objective >= guaranteed):
            return accelerated._replace(stretch=_STRETCH)
        last = slice(None) if len(points) == 1 else slice(-1, None)
        state = state._replace(points=points[last], moves=moves[last], stretch=_STRETCH)
        if len(points) > 1 and (self._has_bound or _cosine(state, *moves[-2:]) > _ALIGNED):
            accelerated = self._tight_or_none(problem, _unpacked(state, start + before.stretch * moves[-1]))
            if accelerated is not None and (not self._has_bound or accelerated.objective >= guaranteed):
                return accelerated._replace(stretch=min(_STRETCH * before.stretch, _LONGEST_STRETCH))
        return self._tight(problem, state)

    def _tight_or_none(self, problem: BoundedSites, state: State) -> State | None:
        """Return `_tight` of a state; None if it fails, or if rounding dominates its bound, far from the data."""
        try:
            tight = self._tight(problem, state)
        except (NumericalError, InvalidDataError):
            return None
        # Doubles near z^T pi are this far apart; values have -pi_i z_i / 2, which cancels it in B.
        rounding = np.finfo(float).eps * float(tight.variance @ tight.precision)
        return tight if rounding < _ROUNDING_LIMIT else None

    def _tight(self, problem: BoundedSites, state: State) -> State:
        """Return the state with the tightest Gaussian lower bounds of the sites, and the bound B."""
        prior = problem.prior(state.theta)
        eta = prior.mean + self.linear.forward(state.unknowns)
        bounds = problem.bounded(prior, eta, state.variance)
        total = float(bounds.value.sum()) + prior.log_excess
        if self.smoothing is not None:
            # At a mode a flat density counts as 1.
            total -= 0.5 * self.linear.size * np.log(2 * np.pi)
        log_bound = np.nan
        if self._has_bound:
            # B = sum_i value_i + z^T pi / 2 - log|A| / 2.
            total += 0.5 * float(state.variance @ bounds.precision) - 0.5 * self.solver.log_det(bounds.precision)
            log_bound = total
        # d value_i / d eta_i = b_i - pi_i eta_i.
        return state._replace(
            shift=bounds.gradient + bounds.precision * eta,
            precision=bounds.precision,
            log_bound=log_bound,
            objective=total + prior.log_prior,
        )

    def _size_of_move(self, before: State, state: State) -> float:
        moved = np.abs(self.linear.forward(state.unknowns - before.unknowns))
        # |d eta_i| / z_i^1/2 and |d log z_i^1/2|.
        of_predictors = moved / np.sqrt(state.variance), 0.5 * np.abs(np.log(state.variance / before.variance))
        measure = np.max if self.solver.exact else _root_mean_square
        return float(max(*map(measure, of_predictors), np.abs(state.theta - before.theta).max(initial=0.0)))

    @staticmethod
    def _size_by_gain(before: State, state: State) -> float:
        # A Gaussian log density rises by t^2 / 2 for each predictor that moves t standard deviations to its top.
        return float(np.sqrt(2.0 * max(state.objective - before.objective, 0.0) / len(state.variance)))

    def _size_of_step(self, inner: Inner) -> float:
        slope = self.linear.adjoint(inner.bounded.gradient)
        # The step d = A(w)^-1 g gains g^T d / 2, and t = (2 gain / n)^1/2 = (g^T d / n)^1/2.
        step, _ = self.solver.solve(inner.bounded.weight, slope)
        return float(np.sqrt(max(slope @ step, 0.0) / len(inner.fitted)))

    @property
    def _has_bound(self) -> bool:
        return self.solver.exact and self.smoothing is None


def _alone(problem: BoundedSites, prior: FactorValues) -> np.ndarray:
    """Return each predictor's variance under its site alone, (n,), which does not depend on the data's origin."""
    shift, precision = problem.form.first_sites(prior)
    # Fixed point of 1 / z = pi(z), with the predictor held at the centre b / pi of its first site.
    centre = shift / precision
    for _ in range(_START_ROUNDS):
        precision = problem.bounded(prior, centre, 1.0 / precision).precision
    return 1.0 / precision


def _extrapolated(state: State, points: np.ndarray, moves: np.ndarray) -> State:
    """Return the state with x, log z and theta extrapolated from past points and moves.

    The weights of past points are from a least squares problem in log z and theta alone, which have no unit.
    """
    weights = np.ones(points.shape[1])
    weights[: len(state.unknowns)] = 0.0
    return _unpacked(state, anderson(points, moves, weights))._replace(points=points, moves=moves)


def _unpacked(state: State, packed: np.ndarray) -> State:
    """Return the state with x, log z and theta from one vector, (N + n + p,), the inverse of `_packed`."""
    n = len(state.unknowns)
    unknowns, log_variance, theta = np.split(packed, [n, n + len(state.variance)])
    return state._replace(unknowns=unknowns, variance=np.exp(np.clip(log_variance, *_LOG_VARIANCE_RANGE)), theta=theta)


def _cosine(state: State, first: np.ndarray, second: np.ndarray) -> float:
    """Return the cosine between the log z and theta parts of two moves, (N + n + p,); 0 if either is zero."""
    n = len(state.unknowns)
    lengths = float(np.linalg.norm(first[n:]) * np.linalg.norm(second[n:]))
    return float(first[n:] @ second[n:]) / lengths if lengths > 0.0 else 0.0


def _root_mean_square(size: np.ndarray) -> float:
    return float(np.sqrt(np.mean(size**2)))


def _packed(state: State) -> np.ndarray:
    """Return (x, log z, theta) as one vector, (N + n + p,)."""
    return np.concatenate([state.unknowns, np.log(state.variance), state.theta])


def _progress(state: State, cure: str = "") -> str:
    loops = f"{state.loop} outer loop{'' if state.loop == 1 else 's'}"
    unsolved = "" if state.solved else "; conjugate gradients stopped short of cg_tol: raise cg_max_iter"
    return f"{loops} with a change of {state.change:.2g}{cure}{unsolved}"
