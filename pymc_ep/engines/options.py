"""Checks of options that several methods take."""

from typing import Any

import numpy as np

__all__ = ["check_flag", "check_whole"]


def check_whole(name: str, value: Any, least: int = 1) -> None:
    """Raise unless an option is a whole number that is not too small."""
    if isinstance(value, bool) or not (isinstance(value, int | np.integer) and value >= least):
        raise ValueError(f"{name}={value!r} must be a whole number of at least {least}.")


def check_flag(name: str, value: Any) -> None:
    """Raise unless an option is true or false; a word such as "no" would be true."""
    if not isinstance(value, bool | np.bool_):
        raise ValueError(f"{name}={value!r} must be True or False.")
