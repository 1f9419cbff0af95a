"""Evidence of comparisons at hyperparameters, and its gradient.

Where the log evidence is stationary in the factors, as at a fixed point of EP, its gradient holds the factors fixed:

    d log Z / d b = sum_u w_u,        d log Z / d S = -1/2 sum_u (Q_u - w_u w_u^T).

The gradient of Laplace's approximation has a `Response` too.
"""

from collections.abc import Callable
from copy import copy
from typing import Any, NamedTuple, Protocol

import numpy as np

from pymc_ep.engines.base import Status
from pymc_ep.engines.partitions import Handles, Partitions
from pymc_ep.models.preferences.engine.approximations import EXPECTATION, Approximation
from pymc_ep.models.preferences.engine.kernels import Curvature, Kernel
from pymc_ep.models.preferences.engine.users import Effort, Totals, expect
from pymc_ep.models.preferences.engine.values import UtilityPrior
from pymc_ep.sites.base import Site

__all__ = ["ComparisonEvidence", "PreferenceProblem", "State"]

_PATIENCE = 10
"""Number of evaluations without a higher score on held-out comparisons that end a search: scores of single steps go up
and down by less."""


class PreferenceProblem(Protocol):
    """Model of the engine: its prior at hyperparameters, and derivatives."""

    def prior(self, theta: np.ndarray) -> tuple[UtilityPrior, Kernel]:
        """Return the prior of utilities at theta, (p,)."""

    def log_prior(self, theta: np.ndarray) -> float:
        """Return the log prior of the hyperparameters."""

    def gradient(self, theta: np.ndarray, slope: np.ndarray, curvature: Curvature) -> np.ndarray:
        """Return the gradient in theta, (p,), of the log prior and of a function of the prior of utilities.

        Its derivative in b is the slope, (I,), and in S = V V^T + s2 K the curvature, (I, I), times -1/2.
        """

    def theta_of(self, theta: np.ndarray, prior: UtilityPrior) -> np.ndarray:
        """Return theta with the parameters of the prior set to given values."""


class State(NamedTuple):
    """The factors of all users at hyperparameters.

    Attributes
    ----------
    theta : ndarray, (p,)
    users : Handles
        `UserFactors` of each part.
    totals : Totals
    objective : float
        Log evidence, by the method, and the log prior of the hyperparameters.
    score : float
        Score of the state: the log probability of comparisons that are held out, or `objective` without any.
    change : float
        Rise of the objective in the last iteration, per comparison.
    loop : int
        Number of evaluations of the evidence.
    best : State, optional
        The earlier state of the highest score, without its curvature; None if that is this one.
    stale : int
        Number of evaluations since then.
    """

    theta: np.ndarray
    users: Handles
    totals: Totals
    objective: float
    score: float
    change: float = np.inf
    loop: int = 0
    best: "State | None" = None
    stale: int = 0

    @property
    def chosen(self) -> "State":
        """The state of the highest score so far."""
        return self if self.best is None else self.best

    @property
    def bare(self) -> "State":
        """The state without matrices of all items, which its gradient alone needs."""
        return self._replace(totals=self.totals._replace(curvature=np.zeros((0, 0)), response=None))

    def with_users(self, other: Callable[[Any], Any]) -> "State":
        """Return the state, and its best state, with a function applied to the users of each."""
        best = None if self.best is None else self.best.with_users(other)
        return self._replace(users=other(self.users), best=best)

    def after(self, before: "State", n_pairs: int) -> "State":
        """Return this state as the successor of another."""
        change, best = (self.objective - before.objective) / n_pairs, before.chosen
        state = self._replace(change=change, loop=before.loop + 1)
        if self.score > best.score:
            return state
        return state._replace(best=best.bare, stale=before.stale + 1)


class ComparisonEvidence:
    """Evidence of all comparisons.

    Parameters
    ----------
    partitions : Partitions
        Whose data are the `ObservedComparisons` of users.
    n_users, n_pairs : int
        In all parts.
    site : Site
        Of a comparison.
    effort : Effort
    approximation : Approximation
    holds_out : bool
        Whether some comparisons are held out.
    """

    def __init__(
        self,
        partitions: Partitions,
        n_users: int,
        n_pairs: int,
        site: Site,
        effort: Effort,
        approximation: Approximation = EXPECTATION,
        *,
        holds_out: bool = False,
    ):
        self.partitions, self.n_users, self.n_pairs, self.site, self.effort = partitions, n_users, n_pairs, site, effort
        self.approximation, self.holds_out = approximation, holds_out

    def to_tolerance(self, tol: float) -> "ComparisonEvidence":
        """Return the same evidence of factors that are iterated to another tolerance."""
        other = copy(self)
        other.effort = self.effort._replace(tol=tol)
        return other

    def at(self, problem: PreferenceProblem, theta: np.ndarray, users: Handles) -> State:
        """Return the state with the factors of all users settled; for exceptions see `settled`."""
        users, totals = self.settled(problem, theta, users)
        objective = totals.log_z + problem.log_prior(theta)
        return State(theta, users, totals, objective, totals.held_log_p if self.holds_out else objective)

    def settled(self, problem: PreferenceProblem, theta: np.ndarray, users: Handles) -> tuple[Handles, Totals]:
        """Settle the factors of all users, from given factors; where workers are lost, their parts start anew.

        Raises
        ------
        NumericalError
            If the prior covariance of the items of a user is not positive definite.
        """
        prior, kernel = problem.prior(theta)
        shared = prior.mean, kernel.covariance(prior), self.site, self.approximation, self.effort

        def settled() -> tuple[Handles, Totals]:
            after, totals = self.partitions.run(expect, users, shared=shared)
            self.partitions.keep(after)
            return after, totals

        return self.partitions.attempt(settled)

    def gradient(self, problem: PreferenceProblem, state: State) -> np.ndarray:
        """Return the gradient of the objective, (p,)."""
        return problem.gradient(state.theta, *state.totals.derivatives)

    def packed(self, state: State) -> State:
        """Return the state with the factors of the users of each part in the place of handles."""
        return self.partitions.attempt(
            lambda: state.with_users(lambda handles: tuple(self.partitions.collect(handles)))
        )

    def unpacked(self, packed: State) -> State:
        """Return the state with handles in the place of factors."""
        return self.partitions.attempt(lambda: packed.with_users(self.partitions.place))

    def may_stop(self, state: State) -> Status | None:
        """Return the status of a search whose score on comparisons that are held out rises no more."""
        if not self.holds_out or state.stale < _PATIENCE:
            return None
        return Status(
            True,
            f"stopped after {state.chosen.loop} evaluations of the evidence, as further ones make comparisons that are "
            f"held out less probable",
        )
