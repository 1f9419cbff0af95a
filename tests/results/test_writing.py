"""How many draws a result stores by default."""

from types import SimpleNamespace

import pytest

from pymc_ep.results import STORED_NUMBERS, layout_of


@pytest.mark.parametrize(("numbers", "expected"), [(10, 1000), (STORED_NUMBERS / 80, 20), (STORED_NUMBERS / 3, 0)])
def test_draws_by_default_are_as_many_as_can_be_stored(numbers, expected):
    solution = SimpleNamespace(draws=lambda *size: None, most_draws=1000, numbers_per_draw=int(numbers))
    chains, draws, remark = layout_of(None, 4, solution)
    assert (chains, draws) == (4, expected)
    assert bool(remark) == (expected < 1000)
    assert layout_of(7, 4, solution) == (4, 7, "")
