"""The one loop around every engine's step: stopping, history, progress, records for a checkpoint."""

from collections.abc import Callable
from functools import partial
from typing import Any, Generic, NamedTuple

import numpy as np

from pymc_ep.engines.base import Engine, Packs, Problem, Start, State, Status
from pymc_ep.engines.checkpoint import UNRECORDED, Record
from pymc_ep.engines.interrupt import INTERRUPTS, reached

__all__ = ["Run", "run"]

_NO_THETA = np.zeros(0)
"""Hyperparameters of states without any."""


class Run(NamedTuple, Generic[State]):
    """The end of an iteration and its history.

    Attributes
    ----------
    state : NamedTuple of arrays
    status : Status
    objective, change : ndarray, (iterations,)
    thetas : ndarray, (iterations, p)
        The field ``theta`` of the states, unconstrained hyperparameters; p is 0 without it.
    """

    state: State
    status: Status
    objective: np.ndarray
    change: np.ndarray
    thetas: np.ndarray = np.zeros((0, 0))


class _Recorded(NamedTuple):
    """A state, as its engine packs it, and the history up to it."""

    state: Any
    objective: np.ndarray
    change: np.ndarray
    thetas: np.ndarray


def run(
    engine: Engine[Problem, Start, State],
    problem: Problem,
    start: Start | None = None,
    *,
    max_iter: int,
    report: Callable[[float, float], None] | None = None,
    record: Record = UNRECORDED,
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
    record : Record
        The loop's record in the checkpoint, ``call.checkpoint.record(...)``: it receives each state, and holds the
        state from which the loop goes on.
    """
    state = engine.init(problem, start)
    objective, change, thetas = [engine.objective(state)], [engine.change(state)], [_theta(state)]
    if record is not UNRECORDED:
        like = _Recorded(_packed(engine, state), np.zeros(0), np.zeros(0), np.zeros((0, len(thetas[0]))))
        before = record.state(like)
        if before is not None and len(before.objective) <= max_iter:
            state = engine.unpacked(problem, before.state) if isinstance(engine, Packs) else before.state
            objective, change, thetas = before.objective.tolist(), before.change.tolist(), list(before.thetas)
    status = engine.finished(state)
    try:
        while status is None:
            if len(objective) >= max_iter:
                status = Status(False, engine.exhausted(state, max_iter))
                break
            state = engine.step(problem, state)
            objective.append(engine.objective(state))
            thetas.append(_theta(state))
            change.append(engine.change(state))
            record.keep(partial(_recorded, engine, state, objective, change, thetas, len(change)))
            if report is not None:
                report(objective[-1], change[-1])
            status = engine.finished(state)
    except INTERRUPTS as stop:
        state = reached(stop, state)
        status = Status(
            False, f"interrupted after {len(change)} iterations with a change of {change[-1]:.2g}", interrupted=True
        )
    finally:
        record.close()
    n = len(change)
    return Run(state, status, np.array(objective[:n]), np.array(change), np.array(thetas[:n]))


def _theta(state: Any) -> np.ndarray:
    return getattr(state, "theta", _NO_THETA)


def _packed(engine: Any, state: Any) -> Any:
    return engine.packed(state) if isinstance(engine, Packs) else state


def _recorded(
    engine: Any, state: Any, objective: list[float], change: list[float], thetas: list[np.ndarray], n: int
) -> _Recorded:
    """Return the n-th state with the history up to it."""
    history = np.array(objective[:n]), np.array(change[:n]), np.array(thetas[:n])
    return _Recorded(_packed(engine, state), *history)
