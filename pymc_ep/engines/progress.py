"""The progress bar of fits that take longer than two seconds."""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from threading import Timer

from pymc_ep import compat
from pymc_ep.engines.base import Report

__all__ = ["LONG", "progress"]

_log = logging.getLogger(__name__)

LONG = 60.0
"""Expected seconds above which the log announces a fit beforehand. Without a progress bar, a fit that has taken as many
is announced too."""
_SILENT_SECONDS = 2.0
"""Seconds before the progress bar appears: short fits print nothing."""


@contextmanager
def progress(name: str, enabled: bool) -> Iterator[Report]:
    """Yield a report that shows a progress bar after `_SILENT_SECONDS`; unless `enabled`, log when a minute is over."""
    with ExitStack() as stack:
        if not enabled:
            minute = Timer(LONG, _log.warning, ["This fit has taken a minute. Ctrl-C returns what was reached."])
            minute.daemon = True
            minute.start()
            stack.callback(minute.cancel)
            yield Report()
            return
        report = _ProgressBar(name.upper(), stack)
        yield report
        report.finish()


class _ProgressBar(Report):
    """Progress bar, shown after `_SILENT_SECONDS` until `stack` is closed."""

    def __init__(self, name: str, stack: ExitStack):
        self._name, self._stack, self._began = name, stack, time.perf_counter()
        self._show: Callable[..., None] | None = None
        self._phase, self._done = "", 0
        self._total: int | None = None
        self._values: tuple[float, ...] = ()

    def __call__(self, objective: float, change: float) -> None:
        self._values = objective, change
        self._done += self._total is None
        self._refresh()

    def phase(self, name: str, total: int | None = None) -> None:
        self._phase, self._done, self._total = name, 0, total
        self._refresh()

    def advance(self) -> None:
        self._done += 1
        self._refresh()

    def finish(self) -> None:
        """Leave the bar full, as a phase may end before its largest number of steps."""
        if self._show is not None:
            self._show(self._phase, self._done, self._done, *self._values)

    def _refresh(self) -> None:
        elapsed = time.perf_counter() - self._began
        if self._show is None and elapsed > _SILENT_SECONDS:
            self._show = self._stack.enter_context(compat.progress(self._name, elapsed))
        if self._show is not None:
            self._show(self._phase, self._done, self._total, *self._values)
