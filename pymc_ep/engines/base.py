"""What an engine is, how it ends, and what it tells while it runs."""

from typing import Any, NamedTuple, Protocol

__all__ = ["Engine", "Report", "Status"]


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


class Report:
    """What engines call while they run; that of `pymc_ep.calls.progress` shows a bar, this one does nothing.

    A fit consists of phases. One of unknown length counts iterations, one of known length the calls of `advance`.
    """

    def __call__(self, objective: float, change: float) -> None:
        """Tell objective and change of an iteration."""

    def phase(self, name: str, total: int | None = None) -> None:
        """Begin a phase, such as ``phase("integrating", total=120)``."""

    def advance(self) -> None:
        """Tell that another of the phase's `total` is done."""
