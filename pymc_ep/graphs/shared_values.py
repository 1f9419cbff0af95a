"""Shared variables of a model with other values for a while."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np
from pytensor.compile.sharedvalue import SharedVariable

__all__ = ["exchanged"]


@contextmanager
def exchanged(values: Mapping[SharedVariable, np.ndarray]) -> Iterator[None]:
    """Give shared variables other values for a while."""
    # The same arrays come back, so that what is kept for them is found again.
    before = {variable: variable.get_value(borrow=True) for variable in values}
    try:
        for variable, value in values.items():
            variable.set_value(value, borrow=True)
        yield
    finally:
        for variable, value in before.items():
            variable.set_value(value, borrow=True)
