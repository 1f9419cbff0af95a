"""Every Python block of every page, and every example, runs as a reader would run it."""

import inspect
import re
import runpy
from pathlib import Path

import pytest

import pymc_ep as pmep
from docs.site import outputs
from pymc_ep.compat import PYMC_6
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


@pytest.mark.filterwarnings("ignore::pymc.exceptions.ImputationWarning")  # PyMC's word that it draws missing data
@pytest.mark.parametrize("page", [p for p in PAGES if BLOCK.search(p.read_text(encoding="utf-8"))], ids=name)
def test_page_runs(page):
    """And prints what it shows, if it shows outputs: those of PyMC 6, as summaries of ArviZ 0.x have other columns."""
    text = page.read_text(encoding="utf-8")
    if "import bambi" in text:
        pytest.importorskip("bambi", reason="Bambi needs PyMC 6")
    shows = outputs.OUTPUT in text
    others = {}
    for block, printed in outputs.ran(text, page):
        shown = block["printed"] or ""
        if shows and (PYMC_6 or not outputs.SUMMARY.search(shown)):
            line = text.count("\n", 0, block.start()) + 1
            others |= {f"line {line}": found} if (found := outputs.differences(shown, printed)) else {}
    assert not others, f"python -m docs.site.outputs {name(page)} writes what is printed now"


def test_what_differs_between_outputs():
    shown = "mean of b 1.26 +- 0.31 after 104 fits\nabout 2 MB and 3 s\nthe largest change is 3.5e-09\n"
    assert not outputs.differences(shown, shown.replace("104", "96").replace("3 s", "8 s").replace("3.5e-09", "1e-10"))
    assert not outputs.differences(shown, shown.replace("0.31", "0.33"))
    for old, new in {"1.26": "-1.26", "0.31": "0.35", "of b": "of c", "about": "about\n"}.items():
        assert outputs.differences(shown, shown.replace(old, new))


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page):
    prose = FENCED.sub("", page.read_text(encoding="utf-8"))
    missing = [target for target in LINK.findall(prose) if not (page.parent / target).exists()]
    assert not missing


@pytest.mark.parametrize("example", EXAMPLES, ids=name)
def test_example_says_how_to_get_its_data(example):
    """Those that the package neither ships nor simulates: by a command, into the folder that the loader opens."""
    text = example.read_text(encoding="utf-8")
    loaders = [getattr(pmep.datasets, name) for name in re.findall(r"datasets\.(load_\w+)", text)]
    for loader in loaders:
        if "path" in inspect.signature(loader).parameters:
            first = text.partition("# %%\n")[0]
            assert "```bash" in first and "export PYMC_EP_DATA=$PWD" in first
            folders = re.findall(r"``([\w-]+)``", loader.__doc__.partition("Returns")[0])
            assert any(folder in first for folder in folders), folders


def test_index_lists_every_page():
    index = ROOT / "docs" / "index.md"
    pages = {page.name for page in index.parent.glob("*.md")} - {index.name}
    assert pages == {link for link in LINK.findall(index.read_text(encoding="utf-8")) if re.fullmatch(r"\w+\.md", link)}


def test_readme_names_every_likelihood():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    named = {line.split("  ")[0].removesuffix(", bilinear") for line in str(pmep.supported()).splitlines()[1:]}
    assert not [likelihood for likelihood in named if likelihood[0].isupper() and likelihood not in text]


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
