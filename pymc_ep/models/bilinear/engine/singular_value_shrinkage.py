"""Bilinear models by shrinkage of singular values (Seeger and Bouchard 2012).

If the second derivative of every cell's log density is at least -kappa, a Gaussian likelihood of pseudo-data with
variance 1 / kappa is a lower bound that touches at given predictors. The pseudo-data fill the whole matrix, observed or
not, and are a sparse matrix plus one of low rank. The best posterior Q under the Gaussian likelihood has a closed form
in the singular values and vectors of the pseudo-data. It raises the bound

    B = sum_cells log p(y | E f) - kappa / 2 sum_all Var f - KL(Q(V) || P) - KL(Q(U) || P),

with predictors f, matrices V and U, and prior P. The means of Q give the next pseudo-data. Nesterov's acceleration
extrapolates these means beyond the last step, and restarts whenever the bound does not rise.
"""

import copy
from typing import NamedTuple, cast

import numpy as np
import scipy.sparse

from pymc_ep.engines.ascent import BoundAscent, lbfgs_steps
from pymc_ep.engines.checkpoint import UNRECORDED, Record
from pymc_ep.engines.loop import run
from pymc_ep.models.bilinear.engine.bound import Derivatives
from pymc_ep.models.bilinear.engine.row_parameters import divergence
from pymc_ep.models.bilinear.engine.values import BilinearPrior, BilinearProblem, Cells, MatrixPrior
from pymc_ep.models.bilinear.kernel import Rows, variance
from pymc_ep.numerics.backend.namespace import Array
from pymc_ep.numerics.factorisation.singular_value_shrinkage import (
    best_variances,
    shrink,
    shrink_empirically,
    shrink_to_points,
)
from pymc_ep.numerics.factorisation.sparse_plus_low_rank import LeadingPairs, SparsePlusLowRank
from pymc_ep.sites.cells.base import CellBound, CurvedCellSite

__all__ = ["SingularValueShrinkage", "State"]

_OVERSAMPLING = 5
"""Oversampling: number of singular vectors kept beyond the wanted ones. They speed up the subspace iteration for the
wanted ones, at the cost of as many more products."""
_LEARN_BELOW = 1e-3
"""Increase of the bound in a step, nats per cell, below which prior variances and hyperparameters are learned. Before,
while means are still small, learned prior variances would be zero."""
_ROUNDS = 10
"""Largest number of L-BFGS iterations over the hyperparameters in a step. Their maximum moves with the next means, and
is not worth finding exactly."""
_MODE_STOP = 1e-3, 50
"""Increase of the log density, nats per cell, and number of steps, at which the search for the mode stops. The mode is
only a start."""


class State(NamedTuple):
    """The posterior after some steps.

    Attributes
    ----------
    left_mean, left_variance : ndarray, (I, D)
        Moments of the left matrix; all rows have the same variances.
    right_mean, right_variance : ndarray, (J, D)
        Moments of the right matrix, likewise.
    theta : ndarray, (p,)
        Unconstrained hyperparameters.
    log_bound : float
        Lower bound on the log density of the data; for point estimates the joint log density.
    objective : float
        `log_bound` plus the log prior of the hyperparameters.
    change : float
        Increase of the objective in the last step, per cell.
    loop : int
        Number of steps made.
    learning : bool
        Whether prior variances and hyperparameters are being learned.
    left_before, right_before : ndarray, (I, D) and (J, D)
        Means before the last step.
    momentum : float
        Nesterov's t, at least 1; sets the length of the extrapolation.
    basis : ndarray, (J, k)
        Right singular vectors of the last pseudo-data.
    values : ndarray, (k,)
        Singular values of the last pseudo-data.
    """

    left_mean: np.ndarray
    left_variance: np.ndarray
    right_mean: np.ndarray
    right_variance: np.ndarray
    theta: np.ndarray
    log_bound: float
    objective: float
    change: float
    loop: int
    learning: bool
    left_before: np.ndarray
    right_before: np.ndarray
    momentum: float
    basis: np.ndarray
    values: np.ndarray

    @property
    def sides(self) -> tuple[Rows, Rows]:
        """Moments of both matrices."""
        return Rows(self.left_mean, self.left_variance), Rows(self.right_mean, self.right_variance)

    def with_sides(self, left: Rows, right: Rows) -> "State":
        """Return the state with the moments of `left` and `right`."""
        return self._replace(
            left_mean=left.mean, left_variance=left.variance, right_mean=right.mean, right_variance=right.variance
        )


class SingularValueShrinkage(BoundAscent[State]):
    """Ascent of the bound of a bilinear model by shrinkage of singular values.

    Parameters
    ----------
    cells : Cells
    shape : (I, J)
        Numbers of rows of the left and of the right matrix.
    rank : int
        Largest number of columns with means other than zero.
    shrinkage : {"vb", "map"}
        Variational posterior, or mode of the joint density.
    ard : bool
        Automatic relevance determination: whether the prior variances of each column are learned, in place of the
        model's.
    learn : bool
        Whether hyperparameters are learned.
    tol : float
        Increase of the objective in one step, per cell, at which the iteration ends.
    backend : {"auto", "numpy", "c", "numba", "jax"}
        Implementation of the inner products.
    """

    def __init__(
        self,
        cells: Cells,
        shape: tuple[int, int],
        *,
        rank: int,
        shrinkage: str = "vb",
        ard: bool = False,
        learn: bool = False,
        tol: float = 1e-6,
        backend: str = "auto",
    ):
        super().__init__(tol)
        self.cells, self.shape, self.rank, self.backend = cells, shape, rank, backend
        self.site = cast(CurvedCellSite, cells.site)
        self.points, self.ard, self.learn = shrinkage == "map", ard, learn
        self._zeros = np.zeros(cells.y.shape)
        # Cell (i, j) has the key i J + j, so that repeated observations share a place.
        keys = np.empty(cells.y.shape, dtype=np.int64)
        keys[cells.by_left.order] = cells.by_left.own * shape[1] + cells.by_left.others
        self._places = np.unique(keys, return_inverse=True)[1]
        self._curvature = None if self.site.parameters else self._largest(())

    def curvature(self, prior: BilinearPrior) -> tuple[float, tuple[np.ndarray, ...]]:
        """Return kappa, and its derivatives in the likelihood's parameters, (n,) each."""
        return self._curvature or self._largest(prior.parameters)

    def _largest(self, parameters: tuple[np.ndarray, ...]) -> tuple[float, tuple[np.ndarray, ...]]:
        curvatures, *derivatives = self.site.curvature(self.cells.y, *parameters)
        # The curvatures of repeated observations of a cell add up.
        at_largest = self._places == np.argmax(np.bincount(self._places, curvatures))
        # kappa is a maximum over cells, so that its derivatives are zero at all others.
        return float(curvatures[at_largest].sum()), tuple(
            np.where(at_largest, derivative, 0.0) for derivative in derivatives
        )

    def first(self, prior: BilinearPrior, theta: np.ndarray, seed: Array) -> State:
        """Return a state with means of zero, and the variances that are best for these means."""
        m, n = self.shape
        no_pairs = LeadingPairs(np.zeros((m, 0)), np.zeros(0), np.zeros((n, 0)))
        left, right = self._posterior(prior, no_pairs, self.curvature(prior)[0], learning=False)
        basis = np.random.default_rng(seed).standard_normal((n, min(self.rank + _OVERSAMPLING, m, n)))
        return State(
            *left, *right, theta, np.nan, np.nan, np.inf, 0, False, left.mean, right.mean, 1.0, basis, no_pairs.values
        )

    def from_modes(self, problem: BilinearProblem, state: State, record: Record = UNRECORDED) -> State:
        """Return a state with means at the mode of the joint density, in place of means of zero.

        From means of zero, a column is only used if its singular value exceeds a threshold that grows with the variance
        of all cells. On listening counts, a fifth of them observed, four columns of five never exceeded the threshold,
        and the bound ended 0.3 nats per cell lower than from the mode, where these columns are kept. Neither start is
        always better.
        """
        # A shallow copy shares the arrays of the cells.
        engine = copy.copy(self)
        engine.points, engine.ard, engine.learn = True, False, False
        engine.tol, max_iter = _MODE_STOP
        points = state.with_sides(*(Rows(rows.mean, np.zeros_like(rows.variance)) for rows in state.sides))
        modes = run(engine, problem, points, max_iter=max_iter + 1, record=record)
        prior, left, right = problem.prior(state.theta), modes.state.left_mean, modes.state.right_mean
        started = state.with_sides(Rows(left, state.left_variance), Rows(right, state.right_variance))
        return self._with_best_variances(
            prior, started._replace(left_before=left, right_before=right, basis=modes.state.basis)
        )

    def init(self, problem: BilinearProblem, start: State | None = None) -> State:
        """Return the first state, with its bound."""
        assert start is not None, "an ascent has no start of its own"
        return self._evaluated(problem.prior(start.theta), start)

    def step(self, problem: BilinearProblem, state: State) -> State:
        """Make an accelerated step, or a plain one if the rise is at most `tol` a cell; then learn hyperparameters."""
        prior = problem.prior(state.theta)
        after = self._evaluated(prior, self._shrunk(prior, state, exactly=not state.values.size))
        if not self._has_risen(state, after):
            # Restart: no extrapolation, and singular vectors to full accuracy.
            state = state._replace(momentum=1.0)
            after = self._evaluated(prior, self._shrunk(prior, state, exactly=True))
            if after.objective < state.objective:
                # Lower by rounding only.
                after = state._replace(values=after.values, basis=after.basis)
        if state.learning and self.learn and state.theta.size:
            after = self._with_learned_theta(problem, after)
        change = (after.objective - state.objective) / self.cells.y.size
        learning = state.learning or change < _LEARN_BELOW
        if learning and not state.learning:
            after = self._evaluated(prior, after._replace(learning=True))
        return after._replace(change=change, loop=state.loop + 1)

    def may_end(self, state: State) -> bool:
        """Return whether a small change means convergence: only once hyperparameters are being learned."""
        return state.learning

    def priors(self, prior: BilinearPrior, state: State) -> BilinearPrior:
        """Return the prior; if the variances of columns are learned, these replace the model's.

        At a given posterior the best prior variance of a column is the mean second moment of its entries.
        """
        if not (self.ard and state.learning):
            return prior
        best = (
            MatrixPrior(
                matrix_prior.mean, np.broadcast_to((rows.mean**2 + rows.variance).mean(axis=0), matrix_prior.mean.shape)
            )
            for matrix_prior, rows in zip((prior.left, prior.right), state.sides)
        )
        left, right = best
        return prior._replace(left=left, right=right)

    def _has_risen(self, state: State, after: State) -> bool:
        return after.objective - state.objective > self.tol * self.cells.y.size

    def _shrunk(self, prior: BilinearPrior, state: State, *, exactly: bool = False) -> State:
        """Return the state with the best posterior for the pseudo-data at the extrapolated means.

        With `exactly`, singular vectors are converged, not only improved by one iteration.
        """
        # Nesterov: t' = (1 + sqrt(1 + 4 t^2)) / 2, extrapolation by e = (t - 1) / t'.
        next_momentum = (1 + np.sqrt(1 + 4 * state.momentum**2)) / 2
        extrapolation = (state.momentum - 1) / next_momentum
        # X = M + e (M - M_before) in factors, with M = L R^T: X = ((1 + e) L, -e L_before) (R, R_before)^T.
        left = np.hstack([(1 + extrapolation) * state.left_mean, -extrapolation * state.left_before])
        right = np.hstack([state.right_mean, state.right_before])
        kappa, _ = self.curvature(prior)
        cells = self._cell_bounds(prior, self._products(left, right))
        # Pseudo-data X + (d log p / df) / kappa, with zeros for the derivatives of cells that are not observed.
        by_left, by_right = (
            scipy.sparse.csr_array((cells.of_mean[pairs.order] / kappa, pairs.others, pairs.ends), shape=shape)
            for pairs, shape in ((self.cells.by_left, self.shape), (self.cells.by_right, self.shape[::-1]))
        )
        matrix = SparsePlusLowRank(by_left, by_right, left, right)
        leading = matrix.leading(state.basis, self.rank) if exactly else matrix.improved(state.basis)
        sides = self._posterior(prior, leading, kappa, learning=state.learning)
        return state.with_sides(*sides)._replace(
            left_before=state.left_mean,
            right_before=state.right_mean,
            momentum=next_momentum,
            basis=leading.right,
            values=leading.values,
        )

    def _posterior(
        self, prior: BilinearPrior, pairs: LeadingPairs, kappa: float, *, learning: bool
    ) -> tuple[Rows, Rows]:
        """Return the best posterior for pseudo-data with given leading singular values and vectors."""
        variances = prior.left.variance[0], prior.right.variance[0]
        # The largest singular values go to the columns with the largest product of prior variances.
        columns = np.argsort(-variances[0] * variances[1], kind="stable")[: min(self.rank, len(pairs.values))]
        singular = np.zeros(len(variances[0]))
        singular[columns] = pairs.values[: len(columns)]
        if self.points:
            shrunk = shrink_to_points(singular, 1 / kappa, *variances)
        elif self.ard and learning:
            shrunk = shrink_empirically(singular, self.shape, 1 / kappa)
        else:
            shrunk = shrink(singular, self.shape, 1 / kappa, *variances)

        def side(vectors: np.ndarray, norms: np.ndarray, column_variances: np.ndarray) -> Rows:
            mean = np.zeros((len(vectors), len(norms)))
            mean[:, columns] = vectors[:, : len(columns)] * norms[columns]
            return Rows(mean, np.tile(column_variances, (len(mean), 1)))

        return (
            side(pairs.left, shrunk.left, shrunk.left_variance),
            side(pairs.right, shrunk.right, shrunk.right_variance),
        )

    def _products(self, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        """Return the inner products of rows of `left` and `right` at the cells, (n,)."""
        pairs, out = self.cells.by_left, np.empty(self.cells.y.shape)
        rows = (Rows(mean, np.zeros(mean.shape)) for mean in (left, right))
        out[pairs.order] = variance(pairs, *rows, backend=self.backend)[0]
        return out

    def _cell_bounds(self, prior: BilinearPrior, products: np.ndarray) -> CellBound:
        """Return the cells' log densities, (n,), and their derivatives, at the inner products `products`, (n,)."""
        return self.site.bounded(self.cells.y, products + prior.offset, self._zeros, *prior.parameters)

    def _evaluated(self, prior: BilinearPrior, state: State) -> State:
        bound = self.derivatives(prior, state).value
        return state._replace(log_bound=bound, objective=bound + prior.log_prior)

    def derivatives(self, prior: BilinearPrior, state: State) -> Derivatives:
        """Return the bound B and its derivatives in priors, offsets and likelihood parameters."""
        return self._derivatives(self.priors(prior, state), state, self._cell_bounds(prior, self._means(state)))

    def _means(self, state: State) -> np.ndarray:
        return self._products(state.left_mean, state.right_mean)

    def _derivatives(self, prior: BilinearPrior, state: State, cells: CellBound) -> Derivatives:
        """Return the bound and its derivatives from the cells' bounds; `prior` has any learned variances."""
        (left, right), (kappa, of_parameters) = state.sides, self.curvature(prior)
        # sum_all Var f = sum_d (sum_i a_id) (sum_j n_jd^2 + b_jd) + (sum_i m_id^2) (sum_j b_jd).
        spread = left.variance.sum(axis=0) @ (right.mean**2 + right.variance).sum(axis=0)
        spread += (left.mean**2).sum(axis=0) @ right.variance.sum(axis=0)
        value, of_priors = float(cells.value.sum() - kappa / 2 * spread), []
        for rows, matrix_prior in zip((left, right), (prior.left, prior.right)):
            # A column whose learned prior variance is zero is pruned.
            positive = matrix_prior.variance[0] > 0
            total, of_prior = divergence(
                Rows(rows.mean[:, positive], rows.variance[:, positive]),
                MatrixPrior(matrix_prior.mean[:, positive], matrix_prior.variance[:, positive]),
                np.full(int(positive.sum()), self.points),
            )
            value += float(total.sum())
            of_priors.append(MatrixPrior(*np.zeros((2, *matrix_prior.mean.shape))))
            for whole, derivative in zip(of_priors[-1][:2], of_prior):
                whole[:, positive] = derivative
        # d/dphi (sum_cells log p - kappa / 2 sum_all Var f) of a likelihood parameter phi.
        of_site_parameters = tuple(a - spread / 2 * b for a, b in zip(cells.of_parameters, of_parameters))
        return Derivatives(value, (of_priors[0], of_priors[1]), cells.of_mean, of_site_parameters, cells)

    def _with_learned_theta(self, problem: BilinearProblem, state: State) -> State:
        """Maximise the bound over hyperparameters, at the present means and the best variances for each value."""
        means = self._means(state)

        def evaluate(theta: np.ndarray) -> tuple[float, np.ndarray]:
            prior = problem.prior(theta)
            at = self._with_best_variances(prior, state)
            derivatives = self._derivatives(self.priors(prior, at), at, self._cell_bounds(prior, means))
            slope = problem.pullback(theta, derivatives.of_prior, derivatives.of_offset, derivatives.of_parameters)
            return derivatives.value + prior.log_prior, slope

        theta = lbfgs_steps(evaluate, state.theta, _ROUNDS)[0]
        prior = problem.prior(theta)
        return self._evaluated(prior, self._with_best_variances(prior, state)._replace(theta=theta))

    def _with_best_variances(self, prior: BilinearPrior, state: State) -> State:
        """Return the state with the best variances at its means; as it is for points, or with learned variances."""
        if self.points or self.ard:
            return state
        norms = np.linalg.norm(state.left_mean, axis=0), np.linalg.norm(state.right_mean, axis=0)
        priors = prior.left.variance[0], prior.right.variance[0]
        variances = best_variances(norms, self.shape, 1 / self.curvature(prior)[0], *priors)
        left, right = (
            Rows(rows.mean, np.tile(column_variances, (len(rows.mean), 1)))
            for rows, column_variances in zip(state.sides, variances)
        )
        return state.with_sides(left, right)
