"""Protocol of engines, status of an iteration, and progress reports."""

from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

__all__ = ["Engine", "Packs", "Problem", "Report", "Start", "State", "Status"]

Problem = TypeVar("Problem", contravariant=True)
"""Problem of an engine: data and prior."""
Start = TypeVar("Start", contravariant=True)
"""Start of an iteration: a state, or arrays of an earlier fit."""
State = TypeVar("State")
"""State of an iteration, updated by each step."""


class Status(NamedTuple):
    """How an iteration ended.

    Attributes
    ----------
    converged : bool
    sentence : str
        Description for the user, kept in the result.
    interrupted : bool
        Whether the user interrupted the iteration.
    """

    converged: bool
    sentence: str
    interrupted: bool = False


class Engine(Protocol[Problem, Start, State]):
    """One algorithm. Problems and states are NamedTuples of arrays."""

    def init(self, problem: Problem, start: Start | None = None) -> State:
        """Return the first state, made from `start` if given: an earlier state, or arrays of an earlier fit."""

    def step(self, problem: Problem, state: State) -> State:
        """Return the next state: a pure function of arrays."""

    def objective(self, state: State) -> float:
        """Return the quantity reported at each iteration, such as log Z."""

    def change(self, state: State) -> float:
        """Return the size of the last change, which the stopping test compares with its tolerance."""

    def finished(self, state: State) -> Status | None:
        """Return how the iteration ended, or None while it goes on."""

    def exhausted(self, state: State, iterations: int) -> str:
        """Return the sentence for a state that is not finished at the largest number of iterations, with the cure."""


@runtime_checkable
class Packs(Protocol):
    """An engine whose states have more than arrays and numbers, such as factors of matrices, or values on workers."""

    def packed(self, state: Any) -> Any:
        """Return the values that determine the state, as nested NamedTuples of arrays, numbers and None."""

    def unpacked(self, problem: Any, packed: Any) -> Any:
        """Return the state from its packed values, which another process may have saved."""


class Report:
    """Progress report of a fit. This one does nothing; `pymc_ep.engines.progress` makes one that shows a bar.

    A fit consists of phases. A phase of unknown length counts iterations, one of known length calls of `advance`.
    """

    def __call__(self, objective: float, change: float) -> None:
        """Report objective and change of an iteration."""

    def phase(self, name: str, total: int | None = None) -> None:
        """Begin a phase, such as ``phase("integrating", total=120)``."""

    def advance(self) -> None:
        """Report that one more unit of the phase's `total` is done."""
