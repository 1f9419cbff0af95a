"""The reference has every public name, and every option of every method with its default."""

import ast
import importlib
import inspect
import re
import types
import typing
from pathlib import Path
from types import ModuleType

import pytest

import pymc_ep
from pymc_ep.forms import methods

PAGES = Path(__file__).parents[2] / "docs" / "reference"
TEXT = "\n".join(page.read_text(encoding="utf-8") for page in sorted(PAGES.glob("*.md")))
NAMES = re.findall(r"^::: ([\w.]+)$", TEXT, re.MULTILINE)
ROOMS = [
    "contracts",
    "datasets",
    "diagnostics",
    "forms",
    "operators",
    "plots",
    "predict",
    "sites",
    "sites.cells",
    "tables",
]


def named(dotted):
    """What a name in the reference means."""
    path, _, name = dotted.rpartition(".")
    return getattr(importlib.import_module(path) if path != "pymc_ep" else pymc_ep, name)


def test_every_name_exists_and_is_there_once():
    assert len(set(map(id, map(named, NAMES)))) == len(NAMES)


@pytest.mark.parametrize("room", ["", *ROOMS])
def test_every_public_name_is_in_the_reference(room):
    """Rooms and the package's own sites, which are constants, aside."""
    module = importlib.import_module(f"pymc_ep.{room}".rstrip("."))
    public = {name: getattr(module, name) for name in module.__all__ if not name.isupper()}
    shown = [named(name) for name in NAMES]
    missing = [name for name, what in public.items() if not isinstance(what, ModuleType) and what not in shown]
    assert not missing


def test_options_of_all_methods_have_a_type():
    """Which their defaults have; and no others have one. A constant stands for itself, a sequence for any."""
    every = {(name, repr(default)): default for entry in methods() for name, default in entry.options.items()}
    hints = typing.get_type_hints(pymc_ep.MethodOptions)
    assert {name for name, _ in every} == set(hints)
    for (name, _), default in every.items():
        several = typing.get_origin(hints[name]) in (typing.Union, types.UnionType)
        kinds = typing.get_args(hints[name]) if several else [hints[name]]
        flat = [value for kind in kinds for value in (typing.get_args(kind) or [kind])]
        plain = [part for part in flat if isinstance(part, type)] + ([tuple] if name == "estimate" else [])
        assert default in flat or typing.Any in plain or isinstance(default, tuple(plain)), name
    assert set(hints) < set(inspect.signature(pymc_ep.fit).parameters)


def values(cell):
    """The defaults in one cell of a table, apart by commas outside of brackets."""
    return [ast.literal_eval(part.strip("` ")) for part in re.split(r",(?![^(]*\))", cell)]


@pytest.mark.parametrize("entry", methods(), ids=lambda entry: f"{entry.name}-{entry.form.__name__}")
def test_every_option_of_a_method_is_in_the_reference(entry):
    page = (PAGES / "methods.md").read_text(encoding="utf-8")
    section = re.search(rf'^## `"{entry.name}"`.*?(?=^## |\Z)', page, re.DOTALL | re.MULTILINE)[0]
    rows = [[cell.strip() for cell in line.split("|")[1:3]] for line in section.splitlines() if line.startswith("| `")]
    shown = {
        (name, default)
        for names, defaults in rows
        for name, default in zip(re.findall(r"`(\w+)`", names), values(defaults), strict=True)
    }
    # A method of several forms may have a table, and a default, for each.
    assert not set(entry.options.items()) - shown
