"""Sweeps over paired symbols; every third one starts from extrapolated factors."""

from pymc_ep.engines.ascent import BoundAscent, lbfgs_steps
from pymc_ep.models.paired_symbols.engine.state import PairedProblem, State
from pymc_ep.models.paired_symbols.engine.values import Rows

__all__ = ["Sweeps"]

_SWEEPS = 3
"""Number of successive factors from which further ones are extrapolated."""
_HYPER_STEPS = 5
"""Number of L-BFGS steps in the hyperparameters after each sweep: a sweep moves the rows more than these."""


class Sweeps(BoundAscent[State]):
    """Ascent of the bound of D pairs by the sweeps of a subclass.

    Parameters
    ----------
    total : float
        D.
    extrapolate : bool
        Whether every third sweep starts from extrapolated factors.
    learn : bool
        Whether hyperparameters, other than precisions with Gamma priors, are updated too.
    tol : float
        The iteration ends once the bound changes by no more nats a pair in a sweep.
    """

    def __init__(self, total: float, *, extrapolate: bool, learn: bool, tol: float):
        super().__init__(tol)
        self.total, self.extrapolate, self.learn = total, extrapolate, learn

    def step(self, problem: PairedProblem, state: State) -> State:
        """Make one sweep; every third one from extrapolated factors, unless that lowers the objective."""
        trail = (*state.trail, state)
        if not self.extrapolate or len(trail) < _SWEEPS:
            after = self._swept(problem, state)
            rise = self._per_pair(after.objective - state.objective)
            kept = tuple(previous._replace(trail=()) for previous in trail) if self.extrapolate else ()
            return after._replace(change=rise, loop=state.loop + 1, trail=kept)
        further = self._evaluated(problem, self._extrapolated(trail))
        after = self._swept(problem, further)
        if not after.objective >= state.objective:
            after = self._swept(problem, state)
        # Extrapolations differ in length, so that `tol` is compared with the mean rise of all three sweeps.
        rise = self._per_pair(after.objective - trail[0].objective) / _SWEEPS
        return after._replace(change=rise, loop=state.loop + 1, trail=())

    def may_end(self, state: State) -> bool:
        """Return whether a round of sweeps is complete."""
        return state.loop > 0 and not state.trail

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

    def _per_pair(self, rise: float) -> float:
        return rise / max(1.0, self.total)

    def _all_users(self, state: State) -> Rows:
        """Return the users of all parts."""
        return state.users

    def _sweep(self, problem: PairedProblem, state: State) -> State:
        """Return the state after a sweep."""
        raise NotImplementedError

    def _evaluated(self, problem: PairedProblem, state: State, *, update: bool = False) -> State:
        """Return the state with the sums of its cells, the best xi* and the bound; optionally update the precisions."""
        raise NotImplementedError

    def _extrapolated(self, trail: tuple[State, ...]) -> State:
        """Return the last state with factors extrapolated from three states."""
        raise NotImplementedError
