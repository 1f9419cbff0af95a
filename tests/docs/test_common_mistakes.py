"""The page of first calls has what mistakes are answered, and none by an error that is not of the package."""

import re
from pathlib import Path

import pytest

from docs.benchmarks.common_mistakes import answer_to
from docs.benchmarks.mistakes import MISTAKES

PAGE = (Path(__file__).parents[2] / "docs" / "benchmarks" / "first_calls.md").read_text(encoding="utf-8")
ROWS = dict(re.findall(r"^\| (.+?) \| .+? \| (fits|warned|refused|of PyMC|of ArviZ|raw) \|", PAGE, re.MULTILINE))
REFUSED = [name for name, gives in ROWS.items() if gives == "refused" and name in MISTAKES and not MISTAKES[name].bambi]


def test_every_mistake_is_on_the_page():
    assert set(MISTAKES) <= set(ROWS)
    assert "raw" not in ROWS.values()


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name):
    assert answer_to(name)[0] == "refused"
