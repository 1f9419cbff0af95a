"""Cost of a fit, estimated from the sizes of model and data before any large array is formed."""

from typing import NamedTuple

__all__ = ["Cost", "in_words"]


class Cost(NamedTuple):
    """Estimated memory of a fit, within a factor of two, and its time on one core, within a factor of three or so.

    Attributes
    ----------
    memory : int
        Largest memory in use at a time, in bytes, without the model and its data.
    seconds : float
    what : str
        Beginning of a sentence that goes on with the memory: "A fit of 300 observations needs".
    arrays : str
        Description of the arrays that take most of the memory.
    steps : str
        Description of the work that takes the time: "some 20 fits of 8 sweeps each".
    cure : str
        A sentence on alternatives that take less memory.
    quicker : str
        A sentence on alternatives that take less time; by default `cure`.
    on_jax : bool
        Whether the arrays are on JAX's device.
    """

    memory: int
    seconds: float
    what: str
    arrays: str
    steps: str
    cure: str
    quicker: str = ""
    on_jax: bool = False

    @property
    def sentence(self) -> str:
        """Memory and time, in words."""
        return f"about {_in_bytes(self.memory)} of memory and {in_words(self.seconds)}"


def _in_bytes(size: float) -> str:
    return f"{size / 1e9:.2g} GB" if size >= 1e8 else f"{max(1, round(size / 1e6))} MB"


def in_words(seconds: float) -> str:
    """Return a time in hours, minutes or seconds."""
    for unit, length in (("hours", 3600.0), ("minutes", 60.0)):
        if seconds >= 1.5 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(1, round(seconds))} s"
