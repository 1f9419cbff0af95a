"""Wrapper of an engine that saves checkpoints and records the trace of the hyperparameters."""

from collections.abc import Callable
from operator import attrgetter
from typing import Generic

import numpy as np

from pymc_ep.engines.base import Engine, Problem, Start, State, Status
from pymc_ep.engines.checkpoint import Checkpoint

__all__ = ["RecordedEngine"]


class RecordedEngine(Generic[Problem, Start, State]):
    """Engine that delegates to another one, saves its state at intervals, and records its hyperparameters.

    Parameters
    ----------
    engine : Engine
    checkpoint : Checkpoint, optional
        Receives the state at intervals.
    arrays : callable
        Maps a state to the named arrays from which a fit resumes.
    theta : callable, optional
        Maps a state to its unconstrained hyperparameters, (p,); by default the field ``theta``.

    Attributes
    ----------
    thetas : list of ndarray, (p,)
        Hyperparameters of the first state and after each step.
    """

    def __init__(
        self,
        engine: Engine[Problem, Start, State],
        checkpoint: Checkpoint | None,
        arrays: Callable[[State], dict[str, np.ndarray]],
        theta: Callable[[State], np.ndarray] = attrgetter("theta"),
    ):
        self._engine, self._checkpoint, self._arrays = engine, checkpoint or Checkpoint(None), arrays
        self._theta = theta
        self.thetas: list[np.ndarray] = []

    def init(self, problem: Problem, start: Start | None = None) -> State:
        """Return the first state."""
        return self._recorded(self._engine.init(problem, start))

    def step(self, problem: Problem, state: State) -> State:
        """Make one step."""
        after = self._recorded(self._engine.step(problem, state))
        self.save(after)
        return after

    def objective(self, state: State) -> float:
        """Return the objective of the wrapped engine."""
        return self._engine.objective(state)

    def change(self, state: State) -> float:
        """Return the last change, as the wrapped engine measures it."""
        return self._engine.change(state)

    def finished(self, state: State) -> Status | None:
        """Return how the iteration ended, or None while it goes on."""
        return self._engine.finished(state)

    def exhausted(self, state: State, iterations: int) -> str:
        """Return the sentence of the engine within for a state that is not finished at the last iteration."""
        return self._engine.exhausted(state, iterations)

    def save(self, state: State, *, last: bool = False) -> None:
        """Save the state if the checkpoint is due or if `last`."""
        if last or self._checkpoint.due:
            self._checkpoint.save(last=True, **self._arrays(state))

    def _recorded(self, state: State) -> State:
        self.thetas.append(self._theta(state))
        return state
