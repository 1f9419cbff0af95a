"""Temporary values of shared variables."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np
from pytensor.compile.sharedvalue import SharedVariable

__all__ = ["exchanged"]


@contextmanager
def exchanged(values: Mapping[SharedVariable, np.ndarray]) -> Iterator[None]:
    """Replace the values of shared variables within a ``with`` block, and restore them at its end."""
    # Borrowed, so that the same arrays are restored: caches are keyed by their identity.
    before = {variable: variable.get_value(borrow=True) for variable in values}
    try:
        for variable, value in values.items():
            variable.set_value(value, borrow=True)
        yield
    finally:
        for variable, value in before.items():
            variable.set_value(value, borrow=True)
