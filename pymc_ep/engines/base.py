"""What an engine is, and how it ends."""

from typing import Any, NamedTuple, Protocol

__all__ = ["Engine", "Status"]


class Status(NamedTuple):
    """How an iteration ended.

    Attributes
    ----------
    converged : bool
    sentence : str
        For people, kept in the result.
    interrupted : bool
        Whether the user ended it.
    """

    converged: bool
    sentence: str
    interrupted: bool = False


class Engine(Protocol):
    """One algorithm. Problems and states are NamedTuples of arrays."""

    def init(self, problem: Any, start: Any = None) -> Any:
        """Return the first state, from an earlier state's arrays where given."""

    def step(self, problem: Any, state: Any) -> Any:
        """Return the next state: a pure function of arrays."""

    def objective(self, state: Any) -> float:
        """Return the quantity that is reported for each iteration, such as log Z."""

    def change(self, state: Any) -> float:
        """Return the size of the last change, as the stopping test takes it."""

    def finished(self, state: Any) -> Status | None:
        """Return how the iteration ended, or None while it goes on."""
