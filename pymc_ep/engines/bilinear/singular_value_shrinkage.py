"""Bilinear models by shrinkage of singular values (Seeger and Bouchard 2012).

Where no log density of a cell curves more than a parabola of curvature kappa, a Gaussian likelihood of pseudo-data with
the variance 1 / kappa, in all cells of the matrix whether observed or not, bounds it from below and touches it at given
predictors. The best posterior under that likelihood is known in closed form from singular values and vectors of the
pseudo-data, which are a sparse matrix plus one of low rank. It raises the bound

    B = sum_cells log p(y | E f) - kappa / 2 sum_all Var f - KL(Q(V) || P) - KL(Q(U) || P),

and the pseudo-data at its means are the next ones. They may as well be those at means carried on beyond the last step,
where the bound is no lower for it (Nesterov's acceleration, started again wherever it is).
"""

import copy
from typing import Any, NamedTuple, cast

import numpy as np
import scipy.sparse

from pymc_ep.engines.ascent import BoundAscent, lbfgs_steps
from pymc_ep.engines.bilinear.bound import Derivatives
from pymc_ep.engines.bilinear.row_parameters import divergence
from pymc_ep.engines.bilinear.values import BilinearPrior, Cells, MatrixPrior
from pymc_ep.engines.loop import run
from pymc_ep.kernels.inner_products import Rows, variance
from pymc_ep.numerics.factorisation.singular_value_shrinkage import (
    best_variances,
    shrink,
    shrink_empirically,
    shrink_to_points,
)
from pymc_ep.numerics.factorisation.sparse_plus_low_rank import LeadingPairs, SparsePlusLowRank
from pymc_ep.sites.cells.likelihoods import CellBound, CurvedCellSite

__all__ = ["SingularValueShrinkage", "State"]

_SPARE = 5
"""Singular vectors that are carried along beside the wanted ones, so that these settle sooner."""
_LOOSE = 1e-3
"""Increase of the bound for each cell from which on prior variances and hyperparameters are learned. From the first
steps, whose means are still small, they would be learned to be none."""
_ROUNDS = 10
"""Iterations of L-BFGS for the hyperparameters in a step."""
_TO_MODES = 1e-3, 50
"""Increase of the log density for each cell up to which, and steps for which at most, modes are looked for first."""


class State(NamedTuple):
    """The posterior after some steps.

    Attributes
    ----------
    left_mean, left_variance : ndarray, (I, D)
        Moments of the left matrix; variances are the same in all rows.
    right_mean, right_variance : ndarray, (J, D)
    theta : ndarray, (p,)
        Unconstrained hyperparameters.
    log_bound : float
        Lower bound on the log density of the data; of points the joint log density.
    objective : float
        The same plus the log prior of the hyperparameters.
    change : float
        Increase of the objective in the last step, for each cell.
    loop : int
        Steps made.
    learning : bool
        Whether prior variances and hyperparameters are learned by now.
    left_before, right_before : ndarray, (I, D) and (J, D)
        Means of the step before.
    momentum : float
        At least one; decides how far means are carried on.
    basis : ndarray, (J, k)
        Right singular vectors.
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
        """Return the state with other moments."""
        return self._replace(
            left_mean=left.mean, left_variance=left.variance, right_mean=right.mean, right_variance=right.variance
        )


class SingularValueShrinkage(BoundAscent):
    """Ascent of the bound.

    Parameters
    ----------
    cells : Cells
    shape : (I, J)
    rank : int
        Columns that may have means.
    shrinkage : {"vb", "map"}
        A posterior, or the mode of the joint density.
    ard : bool
        Whether each column has prior variances of its own that are learned, in place of the model's.
    learn : bool
        Whether hyperparameters are learned.
    tol : float
        Increase of the objective in one step, for each cell, at which the iteration ends.
    max_iter : int
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
        max_iter: int = 1000,
    ):
        super().__init__(tol, max_iter)
        self.cells, self.shape, self.rank = cells, shape, rank
        self.site = cast(CurvedCellSite, cells.site)
        self.points, self.ard, self.learn = shrinkage == "map", ard, learn
        self._nothing = np.zeros(cells.y.shape)
        keys = np.empty(cells.y.shape, dtype=np.int64)
        keys[cells.by_left.order] = cells.by_left.own * shape[1] + cells.by_left.others
        self._places = np.unique(keys, return_inverse=True)[1]
        self._curvature = None if self.site.parameters else self._largest(())

    def curvature(self, prior: BilinearPrior) -> tuple[float, tuple[np.ndarray, ...]]:
        """Return kappa, and its derivatives in the likelihood's parameters, (n,) each."""
        return self._curvature or self._largest(prior.parameters)

    def _largest(self, parameters: tuple[np.ndarray, ...]) -> tuple[float, tuple[np.ndarray, ...]]:
        own, *derivatives = self.site.curvature(self.cells.y, *parameters)
        # A cell that is observed twice curves twice.
        there = self._places == np.argmax(np.bincount(self._places, own))
        return float(own[there].sum()), tuple(np.where(there, part, 0.0) for part in derivatives)

    def first(self, prior: BilinearPrior, theta: np.ndarray, seed: Any) -> State:
        """Return a state without means, and with the best variances there are for these."""
        m, n = self.shape
        none = LeadingPairs(np.zeros((m, 0)), np.zeros(0), np.zeros((n, 0)))
        left, right = self._posterior(prior, none, self.curvature(prior)[0], learning=False)
        basis = np.random.default_rng(seed).standard_normal((n, min(self.rank + _SPARE, m, n)))
        return State(
            *left, *right, theta, np.nan, np.nan, np.inf, 0, False, left.mean, right.mean, 1.0, basis, none.values
        )

    def from_modes(self, problem: Any, state: State) -> State:
        """Return a state about the mode of the joint density in place of one without means.

        From means of zero a column gets some only where its singular value stands out of the variance of all cells at
        once. On listening counts of which a fifth was observed four columns of five never did, and the bound ended
        0.3 nats for each cell lower than it does from the mode, where they stay. Neither start is always the better.
        """
        # A copy shares what was made of the cells.
        engine = copy.copy(self)
        engine.points, engine.ard, engine.learn = True, False, False
        engine.tol, engine.max_iter = _TO_MODES
        points = state.with_sides(*(Rows(rows.mean, np.zeros_like(rows.variance)) for rows in state.sides))
        modes = run(engine, problem, points, max_iter=engine.max_iter + 1)
        prior, left, right = problem.prior(state.theta), modes.state.left_mean, modes.state.right_mean
        started = state.with_sides(Rows(left, state.left_variance), Rows(right, state.right_variance))
        return self._varied(prior, started._replace(left_before=left, right_before=right, basis=modes.state.basis))

    def init(self, problem: Any, start: Any = None) -> State:
        """Return the state at its start, with its bound."""
        return self._evaluated(problem.prior(start.theta), start)

    def step(self, problem: Any, state: State) -> State:
        """Raise the bound."""
        prior = problem.prior(state.theta)
        after = self._evaluated(prior, self._moved(prior, state, exactly=not state.values.size))
        if not self._rises(state, after):
            # From the means themselves, and with singular vectors that are as good as exact.
            state = state._replace(momentum=1.0)
            after = self._evaluated(prior, self._moved(prior, state, exactly=True))
            if after.objective < state.objective:
                # By rounding.
                after = state._replace(values=after.values, basis=after.basis)
        if state.learning and self.learn and state.theta.size:
            after = self._learned(problem, after)
        change = (after.objective - state.objective) / self.cells.y.size
        learning = state.learning or change < _LOOSE
        if learning and not state.learning:
            after = self._evaluated(prior, after._replace(learning=True))
        return after._replace(change=change, loop=state.loop + 1)

    def may_end(self, state: State) -> bool:
        """Return whether a small change is that of the whole bound by now: not before hyperparameters are learned."""
        return state.learning

    def priors(self, prior: BilinearPrior, state: State) -> BilinearPrior:
        """Return the prior with the variances of columns that are learned in place of the model's.

        At a given posterior the best one is the mean second moment of its entries.
        """
        if not (self.ard and state.learning):
            return prior
        best = (
            MatrixPrior(own.mean, np.broadcast_to((rows.mean**2 + rows.variance).mean(axis=0), own.mean.shape))
            for own, rows in zip((prior.left, prior.right), state.sides)
        )
        left, right = best
        return prior._replace(left=left, right=right)

    def _rises(self, state: State, after: State) -> bool:
        return after.objective - state.objective > self.tol * self.cells.y.size

    def _moved(self, prior: BilinearPrior, state: State, *, exactly: bool = False) -> State:
        """Return the best posterior for the pseudo-data at the means, carried on beyond the last step."""
        longer = (1 + np.sqrt(1 + 4 * state.momentum**2)) / 2
        by = (state.momentum - 1) / longer
        left = np.hstack([(1 + by) * state.left_mean, -by * state.left_before])
        right = np.hstack([state.right_mean, state.right_before])
        kappa, _ = self.curvature(prior)
        cells = self._at(prior, self._products(left, right))
        by_left, by_right = (
            scipy.sparse.csr_array((cells.of_mean[pairs.order] / kappa, pairs.others, pairs.ends), shape=shape)
            for pairs, shape in ((self.cells.by_left, self.shape), (self.cells.by_right, self.shape[::-1]))
        )
        matrix = SparsePlusLowRank(by_left, by_right, left, right)
        found = matrix.leading(state.basis, self.rank) if exactly else matrix.improved(state.basis)
        sides = self._posterior(prior, found, kappa, learning=state.learning)
        return state.with_sides(*sides)._replace(
            left_before=state.left_mean,
            right_before=state.right_mean,
            momentum=longer,
            basis=found.right,
            values=found.values,
        )

    def _posterior(
        self, prior: BilinearPrior, pairs: LeadingPairs, kappa: float, *, learning: bool
    ) -> tuple[Rows, Rows]:
        """Return the best posterior for pseudo-data with these singular values and vectors."""
        variances = prior.left.variance[0], prior.right.variance[0]
        # The largest singular values belong to the columns that vary most.
        columns = np.argsort(-variances[0] * variances[1], kind="stable")[: min(self.rank, len(pairs.values))]
        singular = np.zeros(len(variances[0]))
        singular[columns] = pairs.values[: len(columns)]
        if self.points:
            shrunk = shrink_to_points(singular, 1 / kappa, *variances)
        elif self.ard and learning:
            shrunk = shrink_empirically(singular, self.shape, 1 / kappa)
        else:
            shrunk = shrink(singular, self.shape, 1 / kappa, *variances)

        def side(vectors: np.ndarray, norms: np.ndarray, own: np.ndarray) -> Rows:
            mean = np.zeros((len(vectors), len(norms)))
            mean[:, columns] = vectors[:, : len(columns)] * norms[columns]
            return Rows(mean, np.tile(own, (len(mean), 1)))

        return (
            side(pairs.left, shrunk.left, shrunk.left_variance),
            side(pairs.right, shrunk.right, shrunk.right_variance),
        )

    def _products(self, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        """Return inner products of rows at the cells, (n,)."""
        pairs, out = self.cells.by_left, np.empty(self.cells.y.shape)
        out[pairs.order] = variance(pairs, *(Rows(mean, np.zeros(mean.shape)) for mean in (left, right)))[0]
        return out

    def _at(self, prior: BilinearPrior, products: np.ndarray) -> CellBound:
        """Return log densities and their derivatives."""
        return self.site.bounded(self.cells.y, products + prior.offset, self._nothing, *prior.parameters)

    def _evaluated(self, prior: BilinearPrior, state: State) -> State:
        bound = self._derivatives(self.priors(prior, state), state, self._at(prior, self._means(state))).value
        return state._replace(log_bound=bound, objective=bound + prior.log_prior)

    def _means(self, state: State) -> np.ndarray:
        return self._products(state.left_mean, state.right_mean)

    def _derivatives(self, prior: BilinearPrior, state: State, cells: CellBound) -> Derivatives:
        """Return B and its derivatives in priors, offsets and parameters."""
        (left, right), (kappa, of_parameters) = state.sides, self.curvature(prior)
        spread = left.variance.sum(axis=0) @ (right.mean**2 + right.variance).sum(axis=0)
        spread += (left.mean**2).sum(axis=0) @ right.variance.sum(axis=0)
        value, of_priors = float(cells.value.sum() - kappa / 2 * spread), []
        for rows, own in zip((left, right), (prior.left, prior.right)):
            # Columns whose prior variance is learned to be none are none.
            some = own.variance[0] > 0
            total, of_prior = divergence(
                Rows(rows.mean[:, some], rows.variance[:, some]),
                MatrixPrior(own.mean[:, some], own.variance[:, some]),
                np.full(int(some.sum()), self.points),
            )
            value += float(total.sum())
            of_priors.append(MatrixPrior(*np.zeros((2, *own.mean.shape))))
            for whole, part in zip(of_priors[-1][:2], of_prior):
                whole[:, some] = part
        own_parameters = tuple(a - spread / 2 * b for a, b in zip(cells.of_parameters, of_parameters))
        return Derivatives(value, (of_priors[0], of_priors[1]), cells.of_mean, own_parameters, cells)

    def _learned(self, problem: Any, state: State) -> State:
        """Raise the hyperparameters at the present means, and at the variances that suit each of their values."""
        means = self._means(state)

        def evaluate(theta: np.ndarray) -> tuple[float, np.ndarray]:
            prior = problem.prior(theta)
            at = self._varied(prior, state)
            found = self._derivatives(self.priors(prior, at), at, self._at(prior, means))
            slope = problem.pullback(theta, found.of_prior, found.of_offset, found.of_parameters)
            return found.value + prior.log_prior, slope

        theta = lbfgs_steps(evaluate, state.theta, _ROUNDS)[0]
        prior = problem.prior(theta)
        return self._evaluated(prior, self._varied(prior, state)._replace(theta=theta))

    def _varied(self, prior: BilinearPrior, state: State) -> State:
        """Return the state with the best variances at its means."""
        if self.points or self.ard:
            return state
        norms = np.linalg.norm(state.left_mean, axis=0), np.linalg.norm(state.right_mean, axis=0)
        priors = prior.left.variance[0], prior.right.variance[0]
        found = best_variances(norms, self.shape, 1 / self.curvature(prior)[0], *priors)
        left, right = (Rows(rows.mean, np.tile(own, (len(rows.mean), 1))) for rows, own in zip(state.sides, found))
        return state.with_sides(left, right)
