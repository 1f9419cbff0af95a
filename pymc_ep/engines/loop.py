"""The one loop around every engine's step: stopping, history, progress."""

from collections.abc import Callable
from typing import Generic, NamedTuple

import numpy as np

from pymc_ep.engines.base import Engine, Problem, Start, State, Status
from pymc_ep.engines.interrupt import INTERRUPTS, reached

__all__ = ["Run", "run"]


class Run(NamedTuple, Generic[State]):
    """The end of an iteration and its history.

    Attributes
    ----------
    state : NamedTuple of arrays
    status : Status
    objective, change : ndarray, (iterations,)
    """

    state: State
    status: Status
    objective: np.ndarray
    change: np.ndarray


def run(
    engine: Engine[Problem, Start, State],
    problem: Problem,
    start: Start | None = None,
    *,
    max_iter: int,
    report: Callable[[float, float], None] | None = None,
) -> Run[State]:
    """Iterate `engine` on `problem` until it has finished, reached `max_iter` states, or was interrupted.

    Parameters
    ----------
    engine : Engine
    problem : NamedTuple of arrays
    start : optional
        Warm start, passed to `engine.init`.
    max_iter : int
    report : callable, optional
        Called after each iteration with objective and change.
    """
    state = engine.init(problem, start)
    objective, change = [engine.objective(state)], [engine.change(state)]
    status = engine.finished(state)
    try:
        while status is None:
            if len(objective) >= max_iter:
                status = Status(False, engine.exhausted(state, max_iter))
                break
            state = engine.step(problem, state)
            objective.append(engine.objective(state))
            change.append(engine.change(state))
            if report is not None:
                report(objective[-1], change[-1])
            status = engine.finished(state)
    except INTERRUPTS as stop:
        state = reached(stop, state)
        status = Status(
            False, f"interrupted after {len(change)} iterations with a change of {change[-1]:.2g}", interrupted=True
        )
    return Run(state, status, np.array(objective[: len(change)]), np.array(change))
