"""Interruptions by the user, after which a fit returns the state that it has reached.

Loops catch `INTERRUPTS` and get the state from `reached`:

    try:
        ...
    except INTERRUPTS as stop:
        at = reached(stop, best)
"""

import _thread
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TypeVar

__all__ = ["INTERRUPTS", "Interrupted", "is_interrupt", "reached", "signals_outside_numba"]

State = TypeVar("State")
"""State that a loop has reached."""

INTERRUPTS = (KeyboardInterrupt, SystemError)
"""Exceptions that an interruption can surface as. A compiled function that returns while a
KeyboardInterrupt is pending raises a SystemError caused by it."""

_AGAIN = 0.01
"""Seconds until a signal that arrived inside Numba is sent again."""


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
        exception = pending.pop()
        if isinstance(exception, KeyboardInterrupt):
            return True
        if exception is not None and id(exception) not in seen:
            seen.add(id(exception))
            pending += [exception.__cause__, exception.__context__]
    return False


def reached(stop: BaseException, best: State | None = None) -> State:
    """Return `best`, else the state in `stop.at`; raise if there is neither, or `stop` is no interruption."""
    if not is_interrupt(stop):
        raise stop
    at = getattr(stop, "at", None) if best is None else best
    if at is None:
        raise KeyboardInterrupt from stop
    return at


@contextmanager
def signals_outside_numba() -> Iterator[None]:
    """Delay Ctrl-C while Numba's own Python code runs, where a compiled function would raise a SystemError instead.

    This is for loops of other packages, which catch `KeyboardInterrupt` alone.
    """
    if (
        threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    ):
        yield
        return

    def handler(number: int, frame: FrameType | None) -> None:
        if frame is not None and frame.f_globals.get("__name__", "").startswith("numba."):
            threading.Timer(_AGAIN, _thread.interrupt_main).start()
        else:
            signal.default_int_handler(number, frame)

    signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
