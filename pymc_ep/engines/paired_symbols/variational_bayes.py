"""Variational Bayes for paired symbols: coordinate ascent in closed form (Paquet, Koenigstein and Winther 2014).

Users lie in parts, with the pairs that are theirs. A sweep asks these for four sums: moments of the users for xi*, the
normaliser of censored users, moments of the updated users, and statistics of blocks of items. Items are updated here.
"""

from typing import Any, NamedTuple, Protocol

import numpy as np
from scipy.special import logsumexp

from pymc_ep.engines.ascent import BoundAscent, lbfgs_steps
from pymc_ep.engines.paired_symbols import user_steps
from pymc_ep.engines.paired_symbols.bound import log_bound, side_terms, updated_gammas
from pymc_ep.engines.paired_symbols.divided import DividedPairs
from pymc_ep.engines.paired_symbols.extrapolation import continued, squared_lengths, step_length, with_censored
from pymc_ep.engines.paired_symbols.left_out import Calibration, calibrated
from pymc_ep.engines.paired_symbols.updates import (
    background,
    best_xi,
    censored_logits,
    constant_popularity,
    crossed,
)
from pymc_ep.engines.paired_symbols.user_steps import Shared, UserTerms
from pymc_ep.engines.paired_symbols.values import (
    GammaFactor,
    PairedPrior,
    Points,
    Popularity,
    Rows,
    Side,
    expected_priors,
    first_symbols,
    rows_of,
)
from pymc_ep.kernels.paired_symbols import (
    NOTHING,
    Background,
    Censored,
    Statistics,
    Symbols,
    row_backend,
    solve_rows,
)

__all__ = ["PairedProblem", "State", "Summary", "VariationalBayes", "first_state"]

_SWEEPS = 3
"""Number of successive factors from which further ones are extrapolated."""
_HYPER_STEPS = 5
"""Number of L-BFGS steps in the hyperparameters after each sweep: a sweep moves the rows more than these."""


class PairedProblem(Protocol):
    """Model of the engine: its prior at hyperparameters, and the expected log prior."""

    def prior(self, theta: np.ndarray) -> PairedPrior:
        """Return the prior at theta, (p,)."""

    def expected_log_prior(self, theta: np.ndarray, users: Symbols, items: Symbols) -> tuple[float, np.ndarray]:
        """Return the expected log density of factors and hyperparameters, and its gradient in theta, (p,)."""


class State(NamedTuple):
    """Posterior factors after a sweep.

    Attributes
    ----------
    users : Rows or Handles
        Of all users; within the engine, of the users of each part.
    items : Rows
    gammas : tuple of GammaFactor
        Posteriors of the learned precisions.
    theta : ndarray, (p,)
        Unconstrained hyperparameters.
    xi : float
        xi* of the cells without observed pairs.
    user_total : float
        Sum of the concentrations of all users.
    sums : Handles
        `pair_sums` of the users of each part.
    log_bound : float
        Lower bound on the log density of the pairs.
    objective : float
        `log_bound` and the log prior of the hyperparameters.
    change : float
        Rise of the objective in the last sweep, per pair; in a sweep from extrapolated factors the mean of the last
        three.
    loop : int
        Number of sweeps.
    trail : tuple of State
        States before the sweeps since the last extrapolation, two at most.
    """

    users: Any
    items: Rows
    gammas: tuple[GammaFactor, ...]
    theta: np.ndarray
    xi: float = 1.0
    user_total: float = 0.0
    sums: Any = None
    log_bound: float = -np.inf
    objective: float = -np.inf
    change: float = np.inf
    loop: int = 0
    trail: tuple["State", ...] = ()


class Summary(NamedTuple):
    """Numbers for predictions, beside the factors.

    Attributes
    ----------
    log_normalisers : pair of float
        Log sums over users and over items, which normalise the posterior of a censored symbol.
    calibration : Calibration, optional
        None where it was not asked for, or too few users have two items.
    """

    log_normalisers: tuple[float, float]
    calibration: Calibration | None


def first_state(
    prior: PairedPrior,
    theta: np.ndarray,
    seed: int,
    dtype: str = "float64",
    points: tuple[Points, Points] = (Points(), Points()),
) -> State:
    """Return factors with their priors' variances and small random means, and uniform censored symbols.

    Parameters
    ----------
    prior : PairedPrior
    theta : ndarray, (p,)
        Unconstrained hyperparameters.
    seed : int
        Of the means.
    dtype : str
        Storage of factors and biases.
    points : pair of Points
        Which of the users and of the items are points.
    """
    rng = np.random.default_rng(seed)
    sides = []
    for side, which in zip((prior.users, prior.items), points):
        symbols = which.of(Symbols(*(part.astype(dtype) for part in first_symbols(side, prior.gammas, rng))))
        n = len(side.concentration)
        sides.append(Rows(symbols, Popularity(side.concentration.astype(float), np.full(n, 1.0 / n))))
    return State(sides[0], sides[1], prior.gammas, theta)


class VariationalBayes(BoundAscent):
    """Coordinate ascent of the bound.

    Parameters
    ----------
    pairs : DividedPairs
    sequential : bool
        Whether factors of a row are updated one after the other instead of all at once.
    constant_messages : bool
        Whether preferences are left out of the posteriors of popularities and censored symbols, which then stay at
        their fixed point, and not at the maximum of the bound.
    points : pair of Points
        Which of the users and of the items are points.
    extrapolate : bool
        Whether every third sweep starts from extrapolated factors.
    learn : bool
        Whether hyperparameters, other than precisions with Gamma priors, are updated too.
    tol : float
        The iteration ends once the bound changes by no more nats a pair in a sweep.
    backend : {"auto", "numpy", "c", "numba", "jax"}
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
        super().__init__(tol)
        self.pairs, self.sequential, self.constant = pairs, sequential, constant_messages
        self.points, self.backend = points, backend
        self.extrapolate, self.learn = extrapolate, learn
        self.parts = pairs.parts
        self._placed: tuple[np.ndarray, PairedPrior, Any] | None = None

    def init(self, problem: PairedProblem, start: Any = None) -> State:
        """Return the first state with its bound, given the values of all users."""
        return self.parts.attempt(lambda: self._first(problem, start))

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
        trail = tuple(map(self._distributed, start.trail))
        return self._kept(self._evaluated(problem, self._distributed(start))._replace(trail=trail))

    def step(self, problem: PairedProblem, state: State) -> State:
        """Make one sweep; every third one from extrapolated factors, unless that lowers the objective."""
        return self.parts.attempt(lambda: self._kept(self._stepped(problem, state)))

    def _stepped(self, problem: PairedProblem, state: State) -> State:
        trail = (*state.trail, state)
        if not self.extrapolate or len(trail) < _SWEEPS:
            after = self._swept(problem, state)
            rise = self._per_pair(after.objective - state.objective)
            kept = tuple(one._replace(trail=()) for one in trail) if self.extrapolate else ()
            return after._replace(change=rise, loop=state.loop + 1, trail=kept)
        further = self._evaluated(problem, self._extrapolated(trail))
        after = self._swept(problem, further)
        if not after.objective >= state.objective:
            after = self._swept(problem, state)
        # Extrapolations differ in length, so that the mean rise of all three sweeps is what is compared with `tol`.
        rise = self._per_pair(after.objective - trail[0].objective) / _SWEEPS
        return after._replace(change=rise, loop=state.loop + 1, trail=())

    def may_end(self, state: State) -> bool:
        """Return whether a round of sweeps is complete."""
        return state.loop > 0 and not state.trail

    def whole(self, state: State) -> State:
        """Return the state with the values of all users, in the place of handles."""
        trail = tuple(self.whole(one) for one in state.trail)
        return state._replace(users=self._all_users(state), sums=None, trail=trail)

    def summarised(self, problem: PairedProblem, state: State, *, calibrate: bool = True) -> Summary:
        """Return numbers for predictions, beside the factors of the last state."""
        return self.parts.attempt(lambda: self._summarised(problem, state, calibrate=calibrate))

    def _summarised(self, problem: PairedProblem, state: State, *, calibrate: bool) -> Summary:
        prior, sides = self._prior(problem, state.theta)
        users, (symbols, popularity) = state.users, state.items
        shared = self._shared(prior, state, background(symbols, popularity.censored))
        _, of_users = self._user_logits(sides, state, shared.of_items, shared.number)
        _, (moments, sums) = self.parts.run(user_steps.item_sums, users, shared=(shared,))
        concentration, total = popularity.concentration, popularity.concentration.sum()
        found = censored_logits(concentration, total, symbols, moments, sums, state.xi, constant=self.constant)
        calibration = None
        if calibrate:
            both = (sides, prior.items), (users, state.items)
            calibration = calibrated(self.parts, *both, shared, moments, self.points[1])
        return Summary((of_users, float(logsumexp(found))), calibration)

    def _all_users(self, state: State) -> Rows:
        return self.pairs.joined(self.parts.collect(state.users))

    def _distributed(self, state: State) -> State:
        """Return the state of all users with handles in the place of their values."""
        users = self.parts.place(self.pairs.split(state.users))
        total = float(state.users.popularity.concentration.sum())
        return state._replace(users=users, user_total=total, trail=())

    def _kept(self, state: State) -> State:
        self.parts.keep(state.users, state.sums)
        return state

    def _prior(self, problem: PairedProblem, theta: np.ndarray) -> tuple[PairedPrior, Any]:
        """Return the prior, and handles of that of each part's users."""
        if self._placed is None or not np.array_equal(self._placed[0], theta):
            prior = problem.prior(theta)
            self._placed = theta.copy(), prior, self.parts.place(self.pairs.split(prior.users))
        return self._placed[1:]

    def _number(self, prior: PairedPrior) -> float:
        """Return the number D' of censored pairs."""
        return prior.censored_ratio * self.pairs.total

    def _per_pair(self, rise: float) -> float:
        return rise / max(1.0, self.pairs.total)

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
        users, items, last = [one.users for one in trail], [one.items for one in trail], trail[-1]
        _, lengths = self.parts.run(user_steps.trail_lengths, *users)
        a = step_length(lengths + squared_lengths(items))
        further, normaliser = self.parts.run(user_steps.extrapolate, *users, shared=(a,), combine=np.logaddexp)
        moved, _ = self.parts.run(user_steps.normalise, further, shared=(normaliser,))
        rows, logits = continued(items, a)
        return last._replace(users=moved, items=with_censored(rows, logits, float(logsumexp(logits))))

    def _swept(self, problem: PairedProblem, state: State) -> State:
        """Return the state after a sweep, and updates of precisions and hyperparameters."""
        state = self._sweep(problem, state)
        if self.learn and state.theta.size:
            users, items = self._all_users(state).symbols, state.items.symbols
            theta, _ = lbfgs_steps(
                lambda theta: problem.expected_log_prior(theta, users, items), state.theta, _HYPER_STEPS
            )
            state = state._replace(theta=theta)
        return self._evaluated(problem, state, update=True)

    def _sweep(self, problem: PairedProblem, state: State) -> State:
        """Update the censored users and the users, then xi*, the censored items and the items.

        Each line raises the bound.
        """
        prior, sides = self._prior(problem, state.theta)
        number, t = self._number(prior), state.items.popularity.censored
        of_items = background(state.items.symbols, t)
        if self.constant:
            found, normaliser = self.parts.place([None] * self.parts.n), 0.0
        else:
            total = float(prior.users.concentration.sum()) + self.pairs.total + number
            state = state._replace(user_total=total)
            found, normaliser = self._user_logits(sides, state, of_items, number)
        shared = self._shared(prior, state, of_items)
        users, (of_users, sums) = self.parts.run(
            user_steps.update, sides, state.users, found, shared=(normaliser, shared)
        )
        _, _, square, weight = t @ sums
        xi = best_xi(crossed(of_users, of_items), square, weight, state.xi)
        state = state._replace(users=users, xi=xi)
        popularity = self._item_popularity(prior.items, number, state, of_users, sums)
        items = self._items(prior.items, state, Censored(number, popularity.censored, NOTHING.mean, of_users, xi))
        return state._replace(items=Rows(items, popularity))

    def _user_logits(self, sides: Any, state: State, of_items: Background, number: float) -> tuple[Any, float]:
        """Return handles of the logits of censored users, and the logarithm of their sum."""
        told = of_items, number, state.user_total, state.xi, self.constant
        return self.parts.run(user_steps.logits, sides, state.users, state.sums, shared=told, combine=np.logaddexp)

    def _item_popularity(
        self, side: Side, number: float, state: State, of_users: Background, sums: np.ndarray
    ) -> Popularity:
        """Return the posterior of the items' popularities, that of a censored item, and the former again.

        With constant messages these stay at their fixed point.
        """
        symbols, before = state.items
        if self.constant:
            return before
        prior, counts = side.concentration, self.pairs.items
        concentration = Popularity.of(prior, counts, number, before.censored).concentration
        found = censored_logits(concentration, concentration.sum(), symbols, of_users, sums, state.xi, constant=False)
        return Popularity.of(prior, counts, number, np.exp(found - logsumexp(found)))

    def _items(self, side: Side, state: State, censored: Censored) -> Symbols:
        """Return the updated items, block after block."""
        own, priors = state.items.symbols, expected_priors(side, state.gammas)
        n_items, width = own.mean.shape
        per_item = 8 * sum(Statistics.widths(width))
        step, backend = max(1, self.parts.term_bytes // per_item), self._chosen_backend(state)
        blocks = []
        for begin in range(0, n_items, step):
            here = slice(begin, min(begin + step, n_items))
            block, own_priors = rows_of(own, here), rows_of(priors, here)
            seen = censored._replace(own=censored.own[here])
            told = (block, seen._replace(background=NOTHING), here, backend)
            _, statistics = self.parts.run(user_steps.item_statistics, state.users, shared=told)
            blocks.append(solve_rows(statistics, block, own_priors, seen, sequential=self.sequential, backend=backend))
        return self.points[1].of(Symbols(*map(np.concatenate, zip(*blocks))))

    def _evaluated(self, problem: PairedProblem, state: State, *, update: bool = False) -> State:
        """Return the state with the sums of its cells, the best xi* and the bound; optionally update the precisions."""
        prior, sides = self._prior(problem, state.theta)
        number, (symbols, popularity) = self._number(prior), state.items
        of_items = background(symbols, popularity.censored)
        shared = self._shared(prior, state, of_items)
        terms: UserTerms
        sums, terms = self.parts.run(user_steps.evaluate, sides, state.users, shared=(shared,))
        pair = crossed(terms.background, of_items)
        _, _, square, weight = terms.cells
        xi = best_xi(pair, square, weight, state.xi)
        item_total = float(popularity.concentration.sum())
        both = terms.side, side_terms(prior.items, state.items, self.pairs.items, number, item_total)
        gammas = updated_gammas(prior, both) if update else state.gammas
        totals = state.user_total, item_total
        bound = log_bound(prior, gammas, both, totals, number, terms.cells, pair, xi)
        return state._replace(sums=sums, xi=xi, gammas=gammas, log_bound=bound, objective=bound + prior.log_prior)
