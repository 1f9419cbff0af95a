"""Partitions in this process, called one after the other; kernels run on the threads of the process."""

from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from typing import Any, TypeVar

from pymc_ep.engines.partitions.base import Function, added

__all__ = ["LocalPartitions"]

Result = TypeVar("Result")
"""Result of a step."""
_TERM_BYTES = 2**20
"""Suitable size of a term, B, 1 MiB, as it stays in a processor's cache. Item statistics in blocks of 4 MiB and more
take up to half as long again."""


class LocalPartitions:
    """Parts of the data in this process. Handles are tuples of the values themselves.

    Parameters
    ----------
    data : sequence
        The data of each part, such as arrays that are mapped from files.
    """

    def __init__(self, data: Sequence[Any]):
        self.data = tuple(data)

    @property
    def n(self) -> int:
        """Number of parts."""
        return len(self.data)

    @property
    def term_bytes(self) -> int:
        """Suitable size of a term, B."""
        return _TERM_BYTES

    def add(self, data: Any) -> None:
        """Add a part, which earlier handles do not include."""
        self.data = *self.data, data

    def place(self, values: Sequence[Any]) -> tuple[Any, ...]:
        """Return the values themselves."""
        if len(values) != self.n:
            raise ValueError(f"{self.n} parts need as many values, and got {len(values)}.")
        return tuple(values)

    def run(
        self,
        function: Function,
        *local: Any,
        shared: Sequence[Any] = (),
        combine: Callable[[Any, Any], Any] | None = None,
    ) -> tuple[Any, Any]:
        """Call a function at each part; see `Partitions.run`."""
        kept = []

        def terms() -> Iterator[Any]:
            for values in zip(self.data, *local, strict=True):
                value, term = function(*values, *shared)
                kept.append(value)
                yield term

        # One term at a time, as each may be as large as the data.
        total = reduce(combine or added, terms())
        return tuple(kept), total

    def collect(self, handles: Any) -> list[Any]:
        """Return the values."""
        return list(handles)

    def keep(self, *handles: Any) -> None:
        """Do nothing: this process keeps what it holds."""

    def attempt(self, step: Callable[[], Result]) -> Result:
        """Return the result of a step."""
        return step()
