"""Pages of benchmarks: listed in the index, with figures that scripts wrote, each in a section of its own."""

import re
from pathlib import Path

import pytest

from docs.benchmarks import _common

BENCHMARKS = Path(__file__).parents[2] / "docs" / "benchmarks"
PAGES = [page for page in sorted(BENCHMARKS.glob("*.md")) if page.name != "index.md"]
RELIABILITY = BENCHMARKS.parent / "reliability.md"
SECTION = re.compile(r"^<!-- (\w+)\.py -->$(.*?)^<!-- end of \1\.py -->$", re.DOTALL | re.MULTILINE)
FIGURE = re.compile(r"[+-]?\d+(?:,\d{3})*(?:\.\d+)?(?:e[+-]?\d+)?")
VERDICTS = ("yes", "partly", "no", "-")
LINK = re.compile(r"\]\((\w+\.md)\)")


def rows_of(text: str) -> list[list[str]]:
    """Cells of the tables of a text, without their heads."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    rules = [i for i, line in enumerate(lines) if not line.strip("|- ")]
    return [line.strip("| ").split(" | ") for i, line in enumerate(lines) if i not in rules and i + 1 not in rules]


def written(page: Path) -> dict[str, str]:
    """What scripts wrote on a page of benchmarks, by script."""
    return dict(SECTION.findall(page.read_text(encoding="utf-8")))


def assert_measured(page: Path, cell: str) -> None:
    unknown = set(FIGURE.findall(cell)) - set(FIGURE.findall(" ".join(written(page).values())))
    assert not unknown, f"{unknown} of {cell!r} is in no table of {page.name}"


def test_index():
    """It lists every page, in figures that the scripts wrote there."""
    index = BENCHMARKS / "index.md"
    rows = rows_of(index.read_text(encoding="utf-8"))
    assert {LINK.search(row[0])[1] for row in rows} == {page.name for page in PAGES}
    for link, asked, measured, met in rows:
        assert met in VERDICTS
        assert max(len(asked), len(measured)) < 50, "a cell holds a figure or some five words"
        assert_measured(BENCHMARKS / LINK.search(link)[1], measured)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_page_begins_with_what_was_measured(page):
    """It begins with what was asked and measured, in figures that the scripts wrote below."""
    rows = rows_of(page.read_text(encoding="utf-8").partition("<!-- ")[0])
    assert rows
    for _, _, measured, peer, met in rows:
        assert met in VERDICTS
        assert_measured(page, measured)
        assert_measured(page, peer)


def test_every_script_has_a_section():
    scripts = [path.stem for path in BENCHMARKS.glob("*.py") if not path.stem.startswith("_")]
    sections = [section for page in (*PAGES, RELIABILITY) for section in written(page).items()]
    assert sorted(script for script, _ in sections) == sorted(scripts)
    for script, text in sections:
        assert f"`python -m docs.benchmarks {script}`" in text


def test_a_script_writes_its_section_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(_common, "PAGES", tmp_path)
    parts = [_common.header("Speed", "docs/benchmarks/speed.py"), "## Large\n", "1 s\n"]
    page = _common.write_page("speed", parts)
    assert page.read_text().startswith(
        "# Speed\n\n<!-- speed.py -->\n\n## Large\n\n1 s\n\n`python -m docs.benchmarks speed`"
    )
    shared = tmp_path / "both.md"
    page.rename(shared)
    shared.write_text(shared.read_text() + "\n<!-- size.py -->\nkept\n<!-- end of size.py -->\nlast\n")
    assert _common.write_page("speed", parts) == shared
    first = shared.read_text()
    assert first.startswith("# Speed\n\n<!-- speed.py -->\n\n## Speed\n\n### Large\n")
    assert first.endswith("\n<!-- end of speed.py -->\n\n<!-- size.py -->\nkept\n<!-- end of size.py -->\nlast\n")
    _common.write_page("speed", parts)
    assert shared.read_text() == first
