"""An interrupted fit returns what it has reached.

Loops catch `INTERRUPTS` where they hold a state worth returning, and get it from `reached`:

    try:
        ...
    except INTERRUPTS as stop:
        at = reached(stop, best)
"""

from typing import TypeVar

__all__ = ["INTERRUPTS", "Interrupted", "is_interrupt", "reached"]

State = TypeVar("State")
"""State that a loop has reached."""

INTERRUPTS = (KeyboardInterrupt, SystemError)
"""Exceptions that an interruption can surface as. A compiled function that returns with one pending raises a
SystemError caused by it."""


class Interrupted(KeyboardInterrupt):
    """A fit at given hyperparameters was interrupted in the state `at`."""

    def __init__(self, at: object):
        super().__init__("a fit was interrupted")
        self.at = at


def is_interrupt(error: BaseException | None) -> bool:
    """Return whether an exception is an interruption or was caused by one."""
    seen: set[int] = set()
    pending = [error]
    while pending:
        one = pending.pop()
        if isinstance(one, KeyboardInterrupt):
            return True
        if one is not None and id(one) not in seen:
            seen.add(id(one))
            pending += [one.__cause__, one.__context__]
    return False


def reached(stop: BaseException, best: State | None = None) -> State:
    """Return the best state so far, else the state of the interrupted fit; raise if there is neither."""
    if not is_interrupt(stop):
        raise stop
    at = getattr(stop, "at", None) if best is None else best
    if at is None:
        raise KeyboardInterrupt from stop
    return at
