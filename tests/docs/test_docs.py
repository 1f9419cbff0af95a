"""Every Python block of every page, and every example, runs as a reader would run it."""

import re
import runpy
from pathlib import Path

import pytest

from pymc_ep.forms import registry
from pymc_ep.graphs import families
from pymc_ep.sites import base
from pymc_ep.sites.cells import base as cells

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
FENCED = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\((?!https?:)([^)#\s]+)")


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    yield
    from matplotlib import pyplot

    pyplot.close("all")


@pytest.fixture(autouse=True)
def _registries():
    """What a page registers is gone after it."""
    registry.forms()  # which imports those of the package
    everything = (base._REGISTRY, families._FAMILIES, registry._FORMS, registry._METHODS, cells._SITES)
    before = [(entries, dict(entries)) for entries in everything]
    yield
    for now, entries in before:
        now.clear()
        now.update(entries)


@pytest.mark.parametrize("page", [p for p in PAGES if BLOCK.search(p.read_text(encoding="utf-8"))], ids=name)
def test_page_runs(page):
    text = page.read_text(encoding="utf-8")
    namespace = {"__name__": "__main__"}
    for block in BLOCK.finditer(text):
        # Blank lines in front make a traceback point at the line of the page.
        lines_before = text.count("\n", 0, block.start(1))
        exec(compile("\n" * lines_before + block[1], str(page), "exec"), namespace)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page):
    prose = FENCED.sub("", page.read_text(encoding="utf-8"))
    missing = [target for target in LINK.findall(prose) if not (page.parent / target).exists()]
    assert not missing


@pytest.mark.parametrize("example", EXAMPLES, ids=name)
def test_example_runs(example, tmp_path, capsys):
    try:
        runpy.run_path(str(example), run_name="__main__")
    except FileNotFoundError as missing:
        if "PYMC_EP_DATA" not in str(missing):
            raise
        pytest.skip(f"{example.name} needs data that are not here: {missing}")
    assert capsys.readouterr().out.strip(), "an example prints its table"
    picture = tmp_path / f"{example.stem}.png"
    assert picture.read_bytes().startswith(b"\x89PNG"), "an example saves its picture"
