"""Stopping test of engines that ascend a bound."""

from typing import NamedTuple

import numpy as np
import pytest

from pymc_ep.engines.ascent import BoundAscent


class At(NamedTuple):
    objective: float
    change: float
    loop: int = 5


class Ascent(BoundAscent):
    def may_end(self, state):
        return True


def test_a_small_rise_of_a_finite_bound_is_convergence():
    assert Ascent(1e-6).finished(At(-10.0, 1e-3)) is None
    assert Ascent(1e-6).finished(At(-10.0, 1e-7)).converged


@pytest.mark.parametrize("objective", [-np.inf, np.inf, np.nan])
def test_a_bound_that_is_not_finite_is_no_convergence(objective):
    """A step from a finite bound to -inf has a change of -inf, which is below any tolerance."""
    status = Ascent(1e-6).finished(At(objective, -np.inf))
    assert not status.converged
    assert "not finite" in status.sentence
    assert "start=" in status.sentence
