"""What a running fit tells of itself."""

__all__ = ["Report"]


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
