"""Variational Bayes for paired symbols: coordinate ascent in closed form (Paquet, Koenigstein and Winther 2014)."""

from typing import Any, NamedTuple, Protocol

import numpy as np
from scipy.special import softmax

from pymc_ep.engines.ascent import BoundAscent, lbfgs_steps
from pymc_ep.engines.paired_symbols.bound import log_bound
from pymc_ep.engines.paired_symbols.extrapolation import Factors, extrapolated
from pymc_ep.engines.paired_symbols.updates import (
    background,
    best_xi,
    censored_logits,
    constant_popularity,
    crossed,
    updated_gammas,
)
from pymc_ep.engines.paired_symbols.values import (
    GammaFactor,
    PairCounts,
    PairedPrior,
    Points,
    Popularity,
    Side,
    expected_priors,
    first_symbols,
)
from pymc_ep.kernels.paired_symbols import Cells, Censored, Priors, Symbols, pair_sums, update_rows

__all__ = ["PairedProblem", "State", "VariationalBayes", "first_state"]

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
    users, items : Symbols
    user_popularity, item_popularity : Popularity
    gammas : tuple of GammaFactor
        Posteriors of the learned precisions.
    theta : ndarray, (p,)
        Unconstrained hyperparameters.
    xi : float
        xi* of the cells without observed pairs.
    sums : ndarray, (I, 4)
        `pair_sums` of the users.
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

    users: Symbols
    items: Symbols
    user_popularity: Popularity
    item_popularity: Popularity
    gammas: tuple[GammaFactor, ...]
    theta: np.ndarray
    xi: float
    sums: np.ndarray
    log_bound: float = -np.inf
    objective: float = -np.inf
    change: float = np.inf
    loop: int = 0
    trail: tuple["State", ...] = ()

    @property
    def factors(self) -> Factors:
        """Factors of users and items, which are extrapolated."""
        return self.users, self.items, self.user_popularity, self.item_popularity


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
    symbols = [first_symbols(side, prior.gammas, rng) for side in (prior.users, prior.items)]
    users, items = (which.of(Symbols(*(part.astype(dtype) for part in one))) for one, which in zip(symbols, points))
    s, t = (_uniform(side) for side in (prior.users, prior.items))
    return State(users, items, s, t, prior.gammas, theta, 1.0, np.zeros((len(users.bias), 4)))


def _uniform(side: Side) -> Popularity:
    n = len(side.concentration)
    return Popularity(side.concentration.astype(float), np.full(n, 1.0 / n))


class VariationalBayes(BoundAscent):
    """Coordinate ascent of the bound.

    Parameters
    ----------
    pairs : PairCounts
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
    backend : {"auto", "numpy", "numba", "jax"}
    """

    def __init__(
        self,
        pairs: PairCounts,
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
        self.points = points
        self.extrapolate, self.learn, self.backend = extrapolate, learn, backend

    def init(self, problem: PairedProblem, start: Any = None) -> State:
        """Return the first state with its bound."""
        prior = problem.prior(start.theta)
        if self.constant:
            n = prior.n_censored
            users = constant_popularity(prior.users.concentration, self.pairs.users, n)
            items = constant_popularity(prior.items.concentration, self.pairs.items, n)
            start = start._replace(user_popularity=users, item_popularity=items)
        return self._evaluated(prior, start)

    def step(self, problem: PairedProblem, state: State) -> State:
        """Make one sweep; every third one from extrapolated factors, unless that lowers the objective."""
        trail = (*state.trail, state)
        if not self.extrapolate or len(trail) < _SWEEPS:
            after = self._swept(problem, state)
            rise = self._per_pair(after.objective - state.objective)
            kept = tuple(one._replace(trail=()) for one in trail) if self.extrapolate else ()
            return after._replace(change=rise, loop=state.loop + 1, trail=kept)
        users, items, s, t = extrapolated((trail[0].factors, trail[1].factors, state.factors))
        further = state._replace(users=users, items=items, user_popularity=s, item_popularity=t)
        after = self._swept(problem, self._evaluated(problem.prior(state.theta), further))
        if not after.objective >= state.objective:
            after = self._swept(problem, state)
        # Extrapolations differ in length, so that the mean rise of all three sweeps is what is compared with `tol`.
        rise = self._per_pair(after.objective - trail[0].objective) / _SWEEPS
        return after._replace(change=rise, loop=state.loop + 1, trail=())

    def may_end(self, state: State) -> bool:
        """Return whether a round of sweeps is complete."""
        return state.loop > 0 and not state.trail

    def _per_pair(self, rise: float) -> float:
        return rise / max(1.0, self.pairs.total)

    def _swept(self, problem: PairedProblem, state: State) -> State:
        """Return the state after a sweep, and updates of precisions and hyperparameters."""
        prior = problem.prior(state.theta)
        state = self._sweep(prior, state)
        state = state._replace(gammas=updated_gammas(prior, state.users, state.items))
        if self.learn and state.theta.size:
            theta, _ = lbfgs_steps(
                lambda theta: problem.expected_log_prior(theta, state.users, state.items), state.theta, _HYPER_STEPS
            )
            prior = problem.prior(theta)
            state = state._replace(theta=theta)
        return self._evaluated(prior, state)

    def _sweep(self, prior: PairedPrior, state: State) -> State:
        """Update the censored users and the users, then xi*, the censored items and the items.

        Each line raises the bound.
        """
        pairs, n = self.pairs, prior.n_censored
        users, items, xi, sums = state.users, state.items, state.xi, state.sums
        s, t = state.user_popularity, state.item_popularity
        of_items = background(items, t.censored)
        s = self._popularity(s, prior.users, pairs.users, n, users, of_items, sums, xi)
        priors, censored = expected_priors(prior.users, state.gammas), Censored(n, s.censored, t.censored, of_items, xi)
        users = self.points[0].of(self._rows(pairs.by_user, users, items, priors, censored))
        of_users = background(users, s.censored)
        sums = pair_sums(pairs.by_item, items, users, s.censored, backend=self.backend)
        xi = best_xi(crossed(of_users, of_items), t.censored, sums, xi)
        t = self._popularity(t, prior.items, pairs.items, n, items, of_users, sums, xi)
        priors, censored = expected_priors(prior.items, state.gammas), Censored(n, t.censored, s.censored, of_users, xi)
        items = self.points[1].of(self._rows(pairs.by_item, items, users, priors, censored))
        return state._replace(users=users, items=items, user_popularity=s, item_popularity=t, xi=xi)

    def _popularity(
        self, before: Popularity, side: Side, counts: np.ndarray, n: float, own: Symbols, *others: Any
    ) -> Popularity:
        """Return the posterior of popularities, that of the symbol of a censored pair, and the former again.

        With constant messages these stay at their fixed point.
        """
        if self.constant:
            return before
        concentration = side.concentration + counts + n * before.censored
        logits = censored_logits(concentration, concentration.sum(), own, *others, constant=False)
        censored = softmax(logits)
        return Popularity(side.concentration + counts + n * censored, censored)

    def _rows(self, cells: Cells, own: Symbols, other: Symbols, priors: Priors, censored: Censored) -> Symbols:
        return update_rows(cells, own, other, priors, censored, sequential=self.sequential, backend=self.backend)

    def _evaluated(self, prior: PairedPrior, state: State) -> State:
        """Return the state with the sums of its cells, the best xi* and the bound."""
        s, t = state.user_popularity, state.item_popularity
        sums = pair_sums(self.pairs.by_user, state.users, state.items, t.censored, backend=self.backend)
        of_items = background(state.items, t.censored)
        xi = best_xi(crossed(background(state.users, s.censored), of_items), s.censored, sums, state.xi)
        symbols = state.users, state.items
        bound = log_bound(self.pairs, prior, symbols, (s, t), state.gammas, of_items, sums, xi)
        return state._replace(sums=sums, xi=xi, log_bound=bound, objective=bound + prior.log_prior)
