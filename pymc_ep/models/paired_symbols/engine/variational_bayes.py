"""Variational Bayes for paired symbols: coordinate ascent in closed form (Paquet, Koenigstein and Winther 2014).

Users are divided into parts, with their pairs. A sweep needs four sums over parts: moments of the users for xi*, the
normaliser of censored users, moments of the updated users, and statistics of blocks of items. Items are updated in the
calling process.
"""

from typing import Any

import numpy as np
from scipy.special import logsumexp

from pymc_ep.models.paired_symbols.engine import user_steps
from pymc_ep.models.paired_symbols.engine.bound import log_bound, side_terms, updated_gammas
from pymc_ep.models.paired_symbols.engine.divided import DividedPairs
from pymc_ep.models.paired_symbols.engine.extrapolation import continued, squared_lengths, step_length, with_censored
from pymc_ep.models.paired_symbols.engine.left_out import calibrated
from pymc_ep.models.paired_symbols.engine.state import PairedProblem, State, Summary
from pymc_ep.models.paired_symbols.engine.sweeps import Sweeps
from pymc_ep.models.paired_symbols.engine.updates import (
    background,
    best_xi,
    censored_logits,
    constant_popularity,
    crossed,
)
from pymc_ep.models.paired_symbols.engine.user_steps import Shared, UserTerms
from pymc_ep.models.paired_symbols.engine.values import (
    PairedPrior,
    Points,
    Popularity,
    Rows,
    Side,
    expected_priors,
    rows_of,
)
from pymc_ep.models.paired_symbols.kernel import (
    NOTHING,
    Background,
    Censored,
    Statistics,
    Symbols,
    row_backend,
    solve_rows,
)
from pymc_ep.numerics.memory import chunks

__all__ = ["VariationalBayes"]


class VariationalBayes(Sweeps):
    """Coordinate ascent of the bound for users and items.

    Parameters
    ----------
    pairs : DividedPairs
    sequential : bool
        Whether the factors of a symbol are updated one after the other instead of all at once.
    constant_messages : bool
        Whether preferences are left out of the posteriors of popularities and censored symbols, which then stay at
        their fixed point, and not at the maximum of the bound.
    points : pair of Points
        Whether factors and biases of the users, and of the items, are points.
    extrapolate : bool
        Whether every third sweep starts from extrapolated factors.
    learn : bool
        Whether hyperparameters, other than precisions with Gamma priors, are updated too.
    tol : float
        The iteration ends once a sweep raises the objective by no more than `tol` nats a pair.
    backend : {"auto", "numpy", "c", "numba", "jax"}
        Implementation of the kernels.
    """

    def __init__(
        self,
        pairs: DividedPairs,
        *,
        sequential: bool = False,
        constant_messages: bool = False,
        points: tuple[Points, Points] = (Points(), Points()),
        extrapolate: bool = True,
        learn: bool = False,
        tol: float = 1e-6,
        backend: str = "auto",
    ):
        super().__init__(pairs.total, extrapolate=extrapolate, learn=learn, tol=tol)
        self.pairs, self.sequential, self.constant = pairs, sequential, constant_messages
        self.points, self.backend = points, backend
        self.partitions = pairs.partitions
        self._placed: tuple[np.ndarray, PairedPrior, Any] | None = None

    def init(self, problem: PairedProblem, start: Any = None) -> State:
        """Return the first state with its bound; `start` has the values of all users."""
        return self.partitions.attempt(lambda: self._first(problem, start))

    def _first(self, problem: PairedProblem, start: State) -> State:
        prior, _ = self._prior(problem, start.theta)
        if self.constant:
            number = self._number(prior)
            users, items = (
                rows._replace(popularity=constant_popularity(side.concentration, counts, number))
                for rows, side, counts in zip(
                    (start.users, start.items), (prior.users, prior.items), (self.pairs.users, self.pairs.items)
                )
            )
            start = start._replace(users=users, items=items)
        total = float(start.users.popularity.concentration.sum())
        distributed = start._replace(users=self._placed_users(start), user_total=total)
        return self._kept(self._evaluated(problem, distributed))

    def step(self, problem: PairedProblem, state: State) -> State:
        """Return the state after a sweep.

        Every third sweep starts from extrapolated factors, unless these lower the objective.
        """
        return self.partitions.attempt(lambda: self._kept(super(VariationalBayes, self).step(problem, state)))

    def whole(self, state: State) -> State:
        """Return the state with the values of all users instead of handles, and without `sums` and trail."""
        return state._replace(users=self._all_users(state), sums=None, trail=())

    def packed(self, state: State) -> State:
        """Return the state and its trail with the values of all users instead of handles."""

        def collected() -> State:
            sums = self.pairs.joined(self.partitions.collect(state.sums))
            return self.whole(state)._replace(sums=sums, trail=tuple(map(self.whole, state.trail)))

        return self.partitions.attempt(collected)

    def unpacked(self, problem: PairedProblem, packed: State) -> State:
        """Return the state and its trail with handles instead of the values of all users."""

        def placed() -> State:
            trail = tuple(previous._replace(users=self._placed_users(previous)) for previous in packed.trail)
            sums = self.partitions.place(self.pairs.split(packed.sums))
            return packed._replace(users=self._placed_users(packed), sums=sums, trail=trail)

        return self.partitions.attempt(placed)

    def summarised(self, problem: PairedProblem, state: State, *, calibrate: bool = True) -> Summary:
        """Return the log normalisers of censored symbols, for predictions, and a calibration if `calibrate`."""
        return self.partitions.attempt(lambda: self._summarised(problem, state, calibrate=calibrate))

    def _summarised(self, problem: PairedProblem, state: State, *, calibrate: bool) -> Summary:
        prior, sides = self._prior(problem, state.theta)
        users, (symbols, popularity) = state.users, state.items
        shared = self._shared(prior, state, background(symbols, popularity.censored))
        _, of_users = self._user_logits(sides, state, shared.of_items, shared.number)
        _, (moments, sums) = self.partitions.run(user_steps.item_sums, users, shared=(shared,))
        concentration, total = popularity.concentration, popularity.concentration.sum()
        logits = censored_logits(concentration, total, symbols, moments, sums, state.xi, constant=self.constant)
        calibration = None
        if calibrate:
            both = (sides, prior.items), (users, state.items)
            calibration = calibrated(self.partitions, *both, shared, moments, self.points[1])
        return Summary((of_users, float(logsumexp(logits))), calibration)

    def _all_users(self, state: State) -> Rows:
        return self.pairs.joined(self.partitions.collect(state.users))

    def _placed_users(self, state: State) -> Any:
        """Place the values of all users in their partitions, and return the handles."""
        return self.partitions.place(self.pairs.split(state.users))

    def _kept(self, state: State) -> State:
        self.partitions.keep(state.users, state.sums)
        return state

    def _prior(self, problem: PairedProblem, theta: np.ndarray) -> tuple[PairedPrior, Any]:
        """Return the prior, and handles of the prior of each part's users."""
        if self._placed is None or not np.array_equal(self._placed[0], theta):
            prior = problem.prior(theta)
            self._placed = theta.copy(), prior, self.partitions.place(self.pairs.split(prior.users))
        return self._placed[1:]

    def _number(self, prior: PairedPrior) -> float:
        """Return the number D' of censored pairs."""
        return prior.censored_ratio * self.total

    def _shared(self, prior: PairedPrior, state: State, of_items: Background) -> Shared:
        return Shared(
            state.items.symbols,
            state.items.popularity.censored,
            of_items,
            self._number(prior),
            state.user_total,
            state.xi,
            state.gammas,
            self.points[0],
            self.sequential,
            self._chosen_backend(state),
        )

    def _chosen_backend(self, state: State) -> str:
        return row_backend(self.backend, self.pairs.n_cells, state.items.symbols.mean.shape[1])

    def _extrapolated(self, trail: tuple[State, ...]) -> State:
        users, items, last = [state.users for state in trail], [state.items for state in trail], trail[-1]
        _, lengths = self.partitions.run(user_steps.trail_lengths, *users)
        a = step_length(lengths + squared_lengths(items))
        further, normaliser = self.partitions.run(user_steps.extrapolate, *users, shared=(a,), combine=np.logaddexp)
        moved, _ = self.partitions.run(user_steps.normalise, further, shared=(normaliser,))
        rows, logits = continued(items, a)
        return last._replace(users=moved, items=with_censored(rows, logits, float(logsumexp(logits))))

    def _sweep(self, problem: PairedProblem, state: State) -> State:
        """Return the state after updates of censored users, users, xi*, censored items and items, in this order.

        Each update raises the bound.
        """
        prior, sides = self._prior(problem, state.theta)
        number, t = self._number(prior), state.items.popularity.censored
        of_items = background(state.items.symbols, t)
        if self.constant:
            logits, normaliser = self.partitions.place([None] * self.partitions.n), 0.0
        else:
            # sum_i alpha_i = sum_i alpha0_i + D + D', as the s_i sum to one.
            total = float(prior.users.concentration.sum()) + self.total + number
            state = state._replace(user_total=total)
            logits, normaliser = self._user_logits(sides, state, of_items, number)
        shared = self._shared(prior, state, of_items)
        users, (of_users, sums) = self.partitions.run(
            user_steps.update, sides, state.users, logits, shared=(normaliser, shared)
        )
        # sum_G s_i t_j E a_ij^2 and sum_G s_i t_j.
        _, _, square, weight = t @ sums
        xi = best_xi(crossed(of_users, of_items), square, weight, state.xi)
        state = state._replace(users=users, xi=xi)
        popularity = self._item_popularity(prior.items, number, state, of_users, sums)
        items = self._items(prior.items, state, Censored(number, popularity.censored, NOTHING.mean, of_users, xi))
        return state._replace(items=Rows(items, popularity))

    def _user_logits(self, sides: Any, state: State, of_items: Background, number: float) -> tuple[Any, float]:
        """Return handles of the logits of censored users, and their log-sum-exp over all parts."""
        arguments = of_items, number, state.user_total, state.xi, self.constant
        return self.partitions.run(
            user_steps.logits, sides, state.users, state.sums, shared=arguments, combine=np.logaddexp
        )

    def _item_popularity(
        self, side: Side, number: float, state: State, of_users: Background, sums: np.ndarray
    ) -> Popularity:
        """Return the updated posteriors of the items' popularities and of a censored item.

        Popularities are updated before the censored item and after it. With constant messages both stay unchanged.
        """
        symbols, before = state.items
        if self.constant:
            return before
        prior, counts = side.concentration, self.pairs.items
        concentration = Popularity.of(prior, counts, number, before.censored).concentration
        logits = censored_logits(concentration, concentration.sum(), symbols, of_users, sums, state.xi, constant=False)
        return Popularity.of(prior, counts, number, np.exp(logits - logsumexp(logits)))

    def _items(self, side: Side, state: State, censored: Censored) -> Symbols:
        """Return the updated items, computed in blocks of items."""
        items, priors = state.items.symbols, expected_priors(side, state.gammas)
        n_items, width = items.mean.shape
        per_item = 8 * sum(Statistics.widths(width))
        backend = self._chosen_backend(state)
        blocks = []
        for rows in chunks(n_items, per_item, self.partitions.term_bytes):
            block, block_priors = rows_of(items, rows), rows_of(priors, rows)
            block_censored = censored._replace(own=censored.own[rows])
            arguments = (block, block_censored._replace(background=NOTHING), rows, backend)
            _, statistics = self.partitions.run(user_steps.item_statistics, state.users, shared=arguments)
            blocks.append(
                solve_rows(statistics, block, block_priors, block_censored, sequential=self.sequential, backend=backend)
            )
        return self.points[1].of(Symbols(*map(np.concatenate, zip(*blocks))))

    def _evaluated(self, problem: PairedProblem, state: State, *, update: bool = False) -> State:
        """Return the state with the sums of its cells, the best xi* and the bound; optionally update the precisions."""
        prior, sides = self._prior(problem, state.theta)
        number, (symbols, popularity) = self._number(prior), state.items
        of_items = background(symbols, popularity.censored)
        shared = self._shared(prior, state, of_items)
        terms: UserTerms
        sums, terms = self.partitions.run(user_steps.evaluate, sides, state.users, shared=(shared,))
        pair = crossed(terms.background, of_items)
        _, _, square, weight = terms.cells
        xi = best_xi(pair, square, weight, state.xi)
        item_total = float(popularity.concentration.sum())
        side_sums = terms.side, side_terms(prior.items, state.items, self.pairs.items, number, item_total)
        gammas = updated_gammas(prior, side_sums) if update else state.gammas
        totals = state.user_total, item_total
        bound = log_bound(prior, gammas, side_sums, totals, number, terms.cells, pair, xi)
        return state._replace(sums=sums, xi=xi, gammas=gammas, log_bound=bound, objective=bound + prior.log_prior)
