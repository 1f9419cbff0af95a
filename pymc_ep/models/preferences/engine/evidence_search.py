"""Search for the maximum of log evidence plus log prior over the hyperparameters, by rounds of L-BFGS."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
import scipy

from pymc_ep.engines.ascent import lbfgs
from pymc_ep.engines.base import Report, Status
from pymc_ep.engines.checkpoint import UNRECORDED, Record
from pymc_ep.engines.interrupt import INTERRUPTS, reached
from pymc_ep.engines.loop import Run
from pymc_ep.engines.partitions import Handles
from pymc_ep.models.preferences.engine.evidence import ComparisonEvidence, PreferenceProblem, State

__all__ = ["maximise"]

_MEMORY = 20
"""Number of past steps from which L-BFGS estimates curvature, not the usual ten: this saves costly evaluations."""
_LEAST_REACH = 1e-3
"""Bound on the first step of a round, in units of theta, below which no other round follows. Where a round gains
nothing, as its steps lead to points without an evidence, the next round has a quarter of its bound."""


class _Enough(Exception):
    """Raised to end a search whose score rises no more."""

    def __init__(self, status: Status):
        super().__init__(status.sentence)
        self.status = status


class _Search(NamedTuple):
    """Record of a search after k evaluations, from which L-BFGS repeats its steps without new evaluations.

    Attributes
    ----------
    latest : State
        State of the last evaluation, packed.
    thetas, gradients : ndarray, (k, p)
        Points of all evaluations, and gradients of the objective there.
    objective, change : ndarray, (k,)
        Values of `State.objective` and `State.change` at these points.
    most : int
        Largest number of evaluations of the search.
    """

    latest: State
    thetas: np.ndarray
    gradients: np.ndarray
    objective: np.ndarray
    change: np.ndarray
    most: int


class _Searched:
    """Objective of a search, called by L-BFGS, with the history of its evaluations, perhaps resumed from a record.

    Attributes
    ----------
    latest : State
        State of the last evaluation, without matrices.
    thetas, gradients : list of ndarray, (p,)
    objective, change : list of float
        History of all evaluations, as in `_Search`.
    """

    def __init__(
        self,
        evidence: ComparisonEvidence,
        problem: PreferenceProblem,
        theta: np.ndarray,
        users: Handles,
        most: int,
        record: Record,
        each: Callable[[State], None],
    ):
        self._evidence, self._problem, self._record, self._each = evidence, problem, record, each
        self._at, self._most = 0, most
        first = evidence.at(problem, theta, users)
        self.latest = first.bare
        self.thetas, self.gradients = [theta.copy()], [evidence.gradient(problem, first)]
        self.objective, self.change = [first.objective], [np.inf]
        if record is not UNRECORDED:
            none, zero = np.zeros((0, theta.size)), np.zeros(0)
            before = record.state(_Search(evidence.packed(self.latest), none, none, zero, zero, most))
            if before is not None and before.most <= most:
                self.latest = evidence.unpacked(before.latest)
                self.thetas, self.gradients = list(before.thetas), list(before.gradients)
                self.objective, self.change = before.objective.tolist(), before.change.tolist()

    @property
    def passed(self) -> int:
        """Index in the history of the point at which L-BFGS is: the first point has the index 0."""
        return self._at

    def __call__(self, theta: np.ndarray) -> tuple[float, np.ndarray]:
        """Return objective and gradient, (p,), at theta; from the history where theta is its present or next point."""
        if not np.array_equal(theta, self.thetas[self._at]):
            place = self._at + 1
            if place == len(self.thetas) or not np.array_equal(theta, self.thetas[place]):
                self._evaluate(theta, place)
            self._at = place
        return self.objective[self._at], self.gradients[self._at]

    def _evaluate(self, theta: np.ndarray, place: int) -> None:
        """Evaluate `theta`, (p,), as entry `place` of the history, in place of this and all later entries.

        A point without an evidence is not recorded, and fails again in a resumed search.
        """
        if place == len(self.thetas) and (ended := self._evidence.may_stop(self.latest)) is not None:
            raise _Enough(ended)
        state = self._evidence.at(self._problem, theta, self.latest.users)
        gradient = self._evidence.gradient(self._problem, state)
        for history in (self.thetas, self.gradients, self.objective, self.change):
            del history[place:]
        self.latest = latest = state.bare.after(self.latest, self._evidence.n_pairs)
        self.thetas.append(theta.copy())
        self.gradients.append(gradient)
        self.objective.append(latest.objective)
        self.change.append(latest.change)
        self._record.keep(partial(self._packed, latest, len(self.change)))
        self._each(latest)

    def _packed(self, latest: State, n: int) -> _Search:
        thetas, gradients, objective, change = (
            np.array(history[:n]) for history in (self.thetas, self.gradients, self.objective, self.change)
        )
        return _Search(self._evidence.packed(latest), thetas, gradients, objective, change, self._most)


def maximise(
    evidence: ComparisonEvidence,
    problem: PreferenceProblem,
    theta: np.ndarray,
    users: Handles,
    *,
    tol: float,
    max_iter: int,
    report: Report,
    save: Callable[[State], None] = lambda state: None,
    record: Record = UNRECORDED,
) -> Run[State]:
    """Maximise log evidence plus log prior by L-BFGS, or until the score on held-out comparisons rises no more.

    Parameters
    ----------
    evidence : ComparisonEvidence
    problem : PreferenceProblem
    theta : ndarray, (p,)
        Hyperparameters to start from.
    users : Handles
        Factors to start from.
    tol : float
        The search ends where a further step would raise the objective by no more than `tol` nats per comparison.
    max_iter : int
        Largest number of evaluations.
    report : Report
    save : callable
        Called with each state.
    record : Record
        Record of the checkpoint: it stores each state, and may hold the state of an earlier search to resume.

    Returns
    -------
    Run
        Last state, without matrices, whose `chosen` is the state of the highest score; status and history.
    """

    def each(state: State) -> None:
        report(state.objective, state.change)
        save(state)

    searched = _Searched(evidence, problem, theta, users, max_iter, record, each)
    goal = tol * evidence.n_pairs
    try:
        gain, slope = _climbed(searched, theta, max_iter, goal)
        n = searched.latest.loop
        if gain <= goal:
            sentence = (
                f"converged after {n} evaluations of the evidence, which a further step would raise by {gain:.1g}"
            )
        elif n >= max_iter:
            sentence = f"stopped after {n} evaluations of the evidence, which still rises; raise max_iter={max_iter}"
        else:
            sentence = (
                f"stopped after {n} evaluations of the evidence at a gradient of {slope:.2g}, along which no step "
                f"raises it; start elsewhere with start={{...}}"
            )
        status = Status(gain <= goal, sentence)
    except _Enough as enough:
        status = enough.status
    except INTERRUPTS as stop:
        reached(stop, searched.latest)
        n = len(searched.objective)
        status = Status(False, f"interrupted after {n} evaluations of the evidence", interrupted=True)
    finally:
        record.close()
    n = len(searched.change)
    history = np.array(searched.objective[:n]), np.array(searched.change), np.array(searched.thetas[:n])
    return Run(searched.latest, status, *history)


def _climbed(searched: _Searched, theta: np.ndarray, most: int, goal: float) -> tuple[float, float]:
    """Climb in rounds of L-BFGS from theta, (p,), until a further step gains no more than `goal`, in nats.

    A round ends at an iteration of small gain, even if that is only a short step on a steep slope. With the gradient g
    and the round's estimate H of the inverse curvature, a Newton step would gain g^T H g / 2. Where this gain is above
    the goal, another round starts with an empty memory, unless there were `most` evaluations or steps are too short.

    Returns
    -------
    gain, slope : float
        Gain of a Newton step at the end, and the largest absolute entry of the gradient there.
    """
    reach, value = 1.0, -np.inf
    while True:
        optimum = _round(searched, theta, reach, most, goal)
        # theta = centre + reach u: in theta steps are longer by reach, gradients and their changes by 1 / reach.
        theta, gradient = theta + reach * optimum.x, optimum.jac / reach
        # In units of theta again, in which H is the identity along directions that no step has taken.
        inverse = scipy.optimize.LbfgsInvHessProduct(reach * optimum.hess_inv.sk, optimum.hess_inv.yk / reach)
        gain = 0.5 * float(gradient @ inverse.dot(gradient))
        if gain <= goal or searched.passed >= most or reach < _LEAST_REACH:
            return gain, float(np.max(np.abs(gradient)))
        if -optimum.fun <= value:
            reach /= 4.0
        value = -optimum.fun


def _round(
    searched: _Searched, centre: np.ndarray, reach: float, most: int, goal: float
) -> "scipy.optimize.OptimizeResult":
    """Maximise over u, (p,), where theta = centre + reach u, by L-BFGS; the first step in u is no longer than one."""

    def scaled(u: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = searched(centre + reach * u)
        return value, reach * gradient

    return lbfgs(
        scaled,
        np.zeros_like(centre),
        maxfun=most - searched.passed,
        maxiter=most,
        maxcor=_MEMORY,
        ftol=goal / max(1.0, abs(searched.objective[0])),
        gtol=0.0,
    )
