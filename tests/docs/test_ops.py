"""The table of Ops on its page is that of the registries, and an empty cell has its reason."""

from importlib import import_module
from pathlib import Path

import pytest

pytest.importorskip("jax")

from docs.contributing import ops
from pymc_ep.kernels import array_kernels

ROOT = Path(__file__).parents[2]


def test_the_page_has_the_table():
    assert ops.parts()[1] == ops.table(), "python -m docs.contributing.ops writes it anew"


def test_every_cell_says_something_in_five_words():
    for row in ops.rows():
        assert all(row.cells()), f"{row.op.__name__} lacks what uses it, a reason or tests in docs/contributing/ops.py"
        assert not [cell for cell in row.cells() if len(cell.split()) > 5]


def test_notes_are_of_ops_that_there_are():
    bodies = {(row.op.__name__, column) for row in ops.rows() for column in row.bodies}
    assert set(ops.NOTES) <= bodies
    assert set(ops.USERS) == {row.op.__name__ for row in ops.rows()}


@pytest.mark.parametrize("name", ops.USERS)
def test_the_contract_runs_every_op(name, monkeypatch):
    """Examples of kernels, whose outputs it compares between bodies, hold every Op of theirs."""
    row = next(row for row in ops.rows() if row.op.__name__ == name)
    assert (ROOT / row.tests).is_file()
    package, found = row.op.__module__.rpartition(".")[0], []
    names = [name for name, kernel in array_kernels().items() if kernel.package == package]
    perform = row.op.perform
    monkeypatch.setattr(row.op, "perform", lambda self, *given: found.append(perform(self, *given)))
    for name in names:
        import_module(f"tests.kernels.test_{name}").example("FAST_COMPILE")
    assert found or not names
