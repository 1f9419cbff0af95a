"""An interrupted fit returns what it has reached.

Loops catch `INTERRUPTS` where they know a state worth returning, and ask `reached` for it:

    try:
        ...
    except INTERRUPTS as stop:
        at = reached(stop, best)
"""

from typing import Any

__all__ = ["INTERRUPTS", "Interrupted", "is_interrupt", "reached"]

INTERRUPTS = (KeyboardInterrupt, SystemError)
"""What an interruption may arrive as: a compiled function that finds one pending raises SystemError because of it."""


class Interrupted(KeyboardInterrupt):
    """A fit at given hyperparameters was interrupted; `at` is what it had reached."""

    def __init__(self, at: Any):
        super().__init__("a fit was interrupted")
        self.at = at


def is_interrupt(error: BaseException | None) -> bool:
    """Whether an exception is an interruption, or has one for its cause."""
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


def reached(stop: BaseException, best: Any = None) -> Any:
    """Return the best so far, or what the interrupted fit had reached; raise `stop` where there is neither."""
    if not is_interrupt(stop):
        raise stop
    at = getattr(stop, "at", None) if best is None else best
    if at is None:
        raise KeyboardInterrupt from stop
    return at
