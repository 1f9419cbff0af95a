"""Protocol of partitions: parts of the data, each with values of its own that stay with the part.

An engine calls `Partitions.run`, which calls a function at every part. The first result of each call stays with the
part; the second, a small term, is added up over the parts:

    users, total = parts.run(update, users, shared=(items, xi))

The function belongs to a module, as workers import it: ``update(data, own users, items, xi) -> (new users, term)``.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias, TypeVar

__all__ = ["Function", "Handles", "Partitions", "added"]

Handles: TypeAlias = Any
"""Reference to one value of each part; the values themselves stay with their parts."""
Result = TypeVar("Result")
"""Result of a step."""
Function = Callable[..., tuple[Any, Any]]
"""Takes the data of a part, the part's own values and the shared values; returns its new value and a term of a sum."""


class Partitions(Protocol):
    """Parts of the data and functions that run there."""

    @property
    def n(self) -> int:
        """Number of parts."""

    @property
    def term_bytes(self) -> int:
        """Suitable size of a term, B: a larger one is better passed in blocks."""

    def place(self, values: Sequence[Any]) -> Handles:
        """Send values, one for each part, to the parts, and return their handles."""

    def run(
        self,
        function: Function,
        *local: Handles,
        shared: Sequence[Any] = (),
        combine: Callable[[Any, Any], Any] | None = None,
    ) -> tuple[Handles, Any]:
        """Call ``function(data, *local, *shared)`` at each part.

        Parameters
        ----------
        function : callable
            Returns the part's new value and a term.
        *local : Handles
            Handles of values of the parts.
        shared : sequence
            Values for all parts.
        combine : callable, optional
            Combines two terms; by default `added`.

        Returns
        -------
        Handles
            Of the new values.
        total
            Terms combined in the order of the parts.
        """

    def collect(self, handles: Handles) -> list[Any]:
        """Return the values of all parts, in their order."""

    def keep(self, *handles: Handles) -> None:
        """Copy values of the parts, so that `attempt` can restore them where a part is lost."""

    def attempt(self, step: Callable[[], Result]) -> Result:
        """Return the result of a step; where parts are lost, restore them and kept values, and repeat the step."""


def added(term: Any, other: Any) -> Any:
    """Return the sum of two terms: arrays, numbers, None, or tuples of terms."""
    if term is None or other is None:
        return term if other is None else other
    if isinstance(term, tuple):
        fields = [added(*pair) for pair in zip(term, other, strict=True)]
        return type(term)(*fields) if hasattr(term, "_fields") else tuple(fields)
    return term + other
