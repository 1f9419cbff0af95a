"""What is distributed: an sdist whose tests run, and a README without links that lead nowhere."""

import importlib.util
import re
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NEEDED = {"tests": "*.*", "docs": "*.*", "examples": "*.py", "pymc_ep": "*.*"}

pytest.importorskip("hatchling", reason="it comes with the extra `test`")


def on_disk():
    """What the tests and the site read, from a checkout as from an sdist."""
    for folder, pattern in NEEDED.items():
        for path in (ROOT / folder).rglob(pattern):
            if path.is_file() and "__pycache__" not in path.parts and path.name != "image_nuts.json":
                yield path.relative_to(ROOT).as_posix()
    yield from ("README.md", "CITATION.cff", "LICENSE", "mkdocs.yml", "noxfile.py", "pyproject.toml")


def test_sdist_holds_what_its_tests_need(tmp_path):
    from hatchling.builders.sdist import SdistBuilder

    (made,) = SdistBuilder(str(ROOT)).build(directory=str(tmp_path))
    with tarfile.open(made) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    assert "image_nuts.json" not in {Path(name).name for name in inside}
    assert not sorted(set(on_disk()) - inside)


@pytest.mark.parametrize("source", [None, "https://example.org/someone/pymc-ep"])
def test_readme_has_no_relative_links(source):
    spec = importlib.util.spec_from_file_location("readme", ROOT / "docs" / "site" / "readme.py")
    hook = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hook)
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    shown = hook.readme(text, source)
    assert not re.findall(r"\]\((?!https?:)[^)]*\)", shown)
    if source is None:
        assert "![" not in shown
        assert "Read on" not in shown
        assert shown.endswith("Licence: Apache-2.0, as PyMC.\n")
    else:
        assert f"]({source}/raw/HEAD/docs/coal_mining.png)" in shown
        assert f"[Contributing]({source}/blob/HEAD/CONTRIBUTING.md)" in shown
