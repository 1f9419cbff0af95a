"""Evidence of comparisons at hyperparameters, and its gradient.

Users' utilities have the prior N(b, S), and user u the posterior mean b + S w_u and covariance S - S Q_u S. Where the
log evidence is stationary in the factors, as at a fixed point of EP, its gradient is the gradient at fixed factors:

    d log Z / d b = sum_u w_u,        d log Z / d S = -1/2 sum_u (Q_u - w_u w_u^T).

In Laplace's approximation the log evidence is not stationary in the factors, and a `Response` is added.
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
"""Number of successive evaluations without a higher score on held-out comparisons after which a search ends. Scores go
up and down from step to step, but not for so long."""


class PreferenceProblem(Protocol):
    """The model as this engine sees it: its prior at given hyperparameters, and derivatives."""

    def prior(self, theta: np.ndarray) -> tuple[UtilityPrior, Kernel]:
        """Return the prior of utilities, and its kernel, at theta, (p,)."""

    def log_prior(self, theta: np.ndarray) -> float:
        """Return the log prior of the hyperparameters."""

    def gradient(self, theta: np.ndarray, slope: np.ndarray, curvature: Curvature) -> np.ndarray:
        """Return the gradient in theta, (p,), of the log prior of theta plus a function h of b and S = V V^T + s2 K.

        The derivatives of h are dh/db = `slope`, (I,), and dh/dS = -`curvature` / 2, (I, I).
        """

    def theta_of(self, theta: np.ndarray, prior: UtilityPrior) -> np.ndarray:
        """Return theta, (p,), with the parameters of the prior set to the values of `prior`."""


class State(NamedTuple):
    """The factors of all users at hyperparameters.

    Attributes
    ----------
    theta : ndarray, (p,)
    users : Handles
        Handles of the `UserFactors` of each part.
    totals : Totals
    objective : float
        Log evidence, as the method approximates it, plus log prior of the hyperparameters.
    score : float
        Log probability of the comparisons that are held out; `objective` where none are.
    change : float
        Rise of the objective in the last iteration, per comparison.
    loop : int
        Number of evaluations of the evidence.
    best : State, optional
        Earlier state of the highest score, without its curvature; None where this state has the highest score.
    stale : int
        Number of evaluations since the highest score.
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
        """The state without matrices of all items, which only its gradient needs."""
        return self._replace(totals=self.totals._replace(curvature=np.zeros((0, 0)), response=None))

    def with_users(self, other: Callable[[Any], Any]) -> "State":
        """Return the state with `other` applied to its `users` and to the `users` of its best state."""
        best = None if self.best is None else self.best.with_users(other)
        return self._replace(users=other(self.users), best=best)

    def after(self, before: "State", n_pairs: int) -> "State":
        """Return this state as the successor of `before`, with change, counts and best state updated."""
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
        Parts of the users, with `ObservedComparisons` as data.
    n_users, n_pairs : int
        Number of users in all parts, and number of their comparisons that are not held out.
    site : Site
        Likelihood of a comparison.
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
        """Return a copy whose factors are iterated to the tolerance `tol`."""
        other = copy(self)
        other.effort = self.effort._replace(tol=tol)
        return other

    def at(self, problem: PreferenceProblem, theta: np.ndarray, users: Handles) -> State:
        """Return the state at theta, (p,), with the factors of all users settled; for exceptions see `settled`."""
        users, totals = self.settled(problem, theta, users)
        objective = totals.log_z + problem.log_prior(theta)
        return State(theta, users, totals, objective, totals.held_log_p if self.holds_out else objective)

    def settled(self, problem: PreferenceProblem, theta: np.ndarray, users: Handles) -> tuple[Handles, Totals]:
        """Return the settled factors of all users, iterated from `users`, and their totals.

        Where workers of a cluster are lost, their parts are restored on others, and the iteration is repeated.

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
        """Return the state with the factors of each part's users instead of handles."""
        return self.partitions.attempt(
            lambda: state.with_users(lambda handles: tuple(self.partitions.collect(handles)))
        )

    def unpacked(self, packed: State) -> State:
        """Return the state with handles instead of factors."""
        return self.partitions.attempt(lambda: packed.with_users(self.partitions.place))

    def may_stop(self, state: State) -> Status | None:
        """Return a status that ends the search where its held-out score rises no more; None where it may go on."""
        if not self.holds_out or state.stale < _PATIENCE:
            return None
        return Status(
            True,
            f"stopped after {state.chosen.loop} evaluations of the evidence, as further ones make comparisons that are "
            f"held out less probable",
        )
