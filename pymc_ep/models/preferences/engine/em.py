"""Learning the prior of utilities by EM, from Gaussian posteriors of users (Khan, Ko and Seeger 2014, algorithm 1)."""

from pymc_ep.engines.ascent import BoundAscent
from pymc_ep.engines.base import Status
from pymc_ep.models.preferences.engine.evidence import ComparisonEvidence, PreferenceProblem, State
from pymc_ep.models.preferences.engine.maximisation import Statistics, maximised
from pymc_ep.models.preferences.engine.values import Learned

__all__ = ["PreferenceEM"]


class PreferenceEM(BoundAscent[State]):
    """EM: alternates updates of the prior in closed form, and of the factors of all users.

    Parameters
    ----------
    evidence : ComparisonEvidence
    learned : Learned
    tol : float
        Rise of the log evidence, in nats a comparison, at which the iteration ends.
    """

    def __init__(self, evidence: ComparisonEvidence, learned: Learned, *, tol: float):
        super().__init__(tol)
        self.evidence, self.learned = evidence, learned

    def init(self, problem: PreferenceProblem, start: State | None = None) -> State:
        """Return `start`, which must be given."""
        assert start is not None
        return start

    def step(self, problem: PreferenceProblem, state: State) -> State:
        """Return the state after an update of the prior, and then of the factors of all users."""
        totals, n_users = state.totals, self.evidence.n_users
        prior, kernel = problem.prior(state.theta)
        after = maximised(prior, kernel, Statistics(totals.slope / n_users, totals.curvature / n_users), self.learned)
        updated = self.evidence.at(problem, problem.theta_of(state.theta, after), state.users)
        return updated.after(state, self.evidence.n_pairs)

    def packed(self, state: State) -> State:
        """Return the state with the factors of users instead of handles."""
        return self.evidence.packed(state)

    def unpacked(self, problem: PreferenceProblem, packed: State) -> State:
        """Return the state with handles instead of the factors of users."""
        return self.evidence.unpacked(packed)

    def finished(self, state: State) -> Status | None:
        """Return how the iteration ended, or None while it goes on."""
        return self.evidence.may_stop(state) or super().finished(state)

    def may_end(self, state: State) -> bool:
        """Return whether the iteration may end at this state: only after an update of the prior."""
        return state.loop > 0
