"""Sweeps over paired symbols; every third one starts from extrapolated factors."""

from pymc_ep.engines.ascent import BoundAscent, lbfgs_steps
from pymc_ep.models.paired_symbols.engine.state import PairedProblem, State
from pymc_ep.models.paired_symbols.engine.values import Rows

__all__ = ["Sweeps"]

_SWEEPS = 3
"""Number of successive states from which factors are extrapolated."""
_HYPER_STEPS = 5
"""Number of L-BFGS steps in the hyperparameters after each sweep. More do not pay, as the next sweep moves the rows."""


class Sweeps(BoundAscent[State]):
    """Ascent of the bound of D pairs by the sweeps of a subclass.

    Parameters
    ----------
    total : float
        Number D of pairs.
    extrapolate : bool
        Whether every third sweep starts from extrapolated factors.
    learn : bool
        Whether hyperparameters, other than precisions with Gamma priors, are updated too.
    tol : float
        The iteration ends once a sweep raises the objective by no more than `tol` nats a pair.
    """

    def __init__(self, total: float, *, extrapolate: bool, learn: bool, tol: float):
        super().__init__(tol)
        self.total, self.extrapolate, self.learn = total, extrapolate, learn

    def step(self, problem: PairedProblem, state: State) -> State:
        """Return the state after a sweep.

        Every third sweep starts from extrapolated factors, unless these lower the objective.
        """
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
        """Return whether a round of sweeps is complete: three sweeps with extrapolation, else one."""
        return state.loop > 0 and not state.trail

    def _swept(self, problem: PairedProblem, state: State) -> State:
        """Return the state after a sweep and then updates of hyperparameters and learned precisions."""
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
        """Return the posterior factors of the users of all parts."""
        return state.users

    def _sweep(self, problem: PairedProblem, state: State) -> State:
        """Return the state after an update of all symbols and popularities, with the bound of the state before."""
        raise NotImplementedError

    def _evaluated(self, problem: PairedProblem, state: State, *, update: bool = False) -> State:
        """Return the state with the sums of its cells, the best xi* and the bound; optionally update the precisions."""
        raise NotImplementedError

    def _extrapolated(self, trail: tuple[State, ...]) -> State:
        """Return the last state with factors extrapolated from three states."""
        raise NotImplementedError
