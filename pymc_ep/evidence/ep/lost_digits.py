"""Fits in another representation of the prior, where rounding limits the one that ``solver="auto"`` chose."""

from collections.abc import Callable
from typing import Any, TypeVar

from pymc_ep.exceptions import NumericalError

__all__ = ["LostDigits", "with_all_digits"]

Result = TypeVar("Result")


class LostDigits(Exception):
    """Rounding limits the representation that ``solver="auto"`` chose; caught by `with_all_digits`.

    Parameters
    ----------
    chosen, exact : str
        Names of the chosen representation, and of the one that loses no digits.
    """

    def __init__(self, chosen: str, exact: str):
        super().__init__(f"solver={chosen!r} is limited by rounding; solver={exact!r} is not")
        self.chosen, self.exact = chosen, exact


def with_all_digits(settings: dict[str, Any], fit: Callable[[dict[str, Any]], Result]) -> Result:
    """Return ``fit(settings)``; where it raises `LostDigits`, the fit in the representation that loses no digits.

    Where that fit fails, as for a singular prior covariance, which has no factor, return the fit in the chosen
    representation after all.
    """
    try:
        return fit(settings)
    except LostDigits as limit:
        chosen, exact = limit.chosen, limit.exact
    try:
        return fit(settings | {"solver": exact})
    except NumericalError:
        return fit(settings | {"solver": chosen})
