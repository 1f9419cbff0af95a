"""The page of bad inputs has the sentences that they get."""

import re
from pathlib import Path

import pytest

from docs.benchmarks.bad_inputs import MISTAKES, answer

PAGE = Path(__file__).parents[2] / "docs" / "reliability.md"
ROW = re.compile(r"^\| (.+?) \| `(\w+)` \| (.+) \|$", re.MULTILINE)


def test_every_mistake_is_on_the_page():
    assert [name for name, *_ in ROW.findall(PAGE.read_text(encoding="utf-8"))] == list(MISTAKES)


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_gets_the_sentence_of_the_page(name):
    rows = {row[0]: row[1:] for row in ROW.findall(PAGE.read_text(encoding="utf-8"))}
    assert rows[name] == answer(MISTAKES[name])
