"""The ledger of constants and the counts of words are those of the code."""

import re

import pytest

from docs.contributing import words


def test_the_ledger_is_that_of_the_code():
    assert words.PAGE.read_text(encoding="utf-8") == words.page(), "python -m docs.contributing.words writes it"


def test_the_page_has_the_present_counts():
    """To 3%, so that not every change writes the page."""
    page = words.COUNTS.read_text(encoding="utf-8")
    for name, value in words.counted().items():
        shown = re.search(rf"^\| {name} \| [\d.]+ \| ([\d.]+) \|$", page, re.MULTILINE)
        assert shown and float(shown[1]) == pytest.approx(value, rel=0.03), f"{name} is {value} now"
