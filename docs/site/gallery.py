"""MkDocs hook: the scripts of examples/ as pages, each run once and shown with its output; and weights in search.

Jupytext reads a script as a notebook, nbclient runs it and nbconvert writes it as Markdown. A notebook that was run
with the same script and the same package is kept in build/examples/. An example whose data are missing is shown as it
stands, with the picture that is kept in docs/.
"""

import hashlib
import re
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from posixpath import relpath
from typing import Any

import jupytext
import nbformat
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files, InclusionLevel
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from nbconvert import MarkdownExporter

ROOT = Path(__file__).parents[2]
_FIRST = (
    "coal_mining",
    "implicit_feedback",
    "sushi",
    "poisson_deblurring",
    "inpainting",
    "wavelet_tree",
    "lastfm_counts",
)
"""Examples that lead the gallery, those with the most to see first; others follow by name."""
SCRIPTS = sorted(
    (ROOT / "examples").glob("*.py"), key=lambda script: ([*_FIRST, script.stem].index(script.stem), script.stem)
)
KEPT = ROOT / "build" / "examples"
_TITLE = re.compile(r"^# +(.+)$", re.MULTILINE)
_SENTENCE = re.compile(r"^# .+\n+((?:.+\n)*?.*?\.)(?=\s|$)", re.MULTILINE)
_TEMPLATE = """{% extends "markdown/index.md.j2" %}
{% block stream %}

```output
{{ output.text | trim("\n") }}
```

{% endblock stream %}
"""
_BOOSTS = {"reference/": 0.3, "benchmarks/": 0.01, "contributing/": 0.01, "adding_": 0.01}
"""Weights of pages in search, by the start of their path. Of 38 words, such as "offset" and "loo", all have a guide or
an example among their first three results; without weights six had none."""
_LINK = re.compile(r"\]\((?:\.\./)*examples/(\w*)(?:\.py)?\)")


def _shown(output: Any) -> bool:
    """Whether a reader wants it: what was printed or drawn, not bars of progress."""
    return output.get("name") == "stdout" or "image/png" in output.get("data", {})


def run(script: Path) -> tuple[Any, bool]:
    """Return a script as a notebook, and whether it could be run."""
    files = [script, *sorted((ROOT / "pymc_ep").rglob("*.py"))]
    kept = KEPT / f"{script.stem}-{hashlib.sha256(b''.join(f.read_bytes() for f in files)).hexdigest()[:16]}.ipynb"
    if kept.exists():
        return nbformat.read(kept, 4), True
    notebook = jupytext.read(script)
    notebook.metadata["language_info"] = {"name": "python"}
    with tempfile.TemporaryDirectory() as folder:
        client = NotebookClient(
            notebook,
            extra_arguments=["--log-level=ERROR"],
            kernel_name="python3",
            resources={"metadata": {"path": folder}},
            timeout=600,
        )
        try:
            client.execute()
        except CellExecutionError as error:
            if error.ename != "FileNotFoundError" or "PYMC_EP_DATA" not in error.evalue:
                raise PluginError(f"{script.name} fails:\n{error}") from error
            for cell in notebook.cells:
                cell["outputs"] = []
            return notebook, False
    for cell in notebook.cells:
        cell["outputs"] = [output for output in cell.get("outputs", []) if _shown(output)]
    KEPT.mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook, kept)
    return notebook, True


def on_config(config: Any) -> Any:
    """List the examples and the benchmarks in the navigation, after the page about all of them."""
    docs = ROOT / "docs"
    benchmarks = sorted(page.relative_to(docs).as_posix() for page in (docs / "benchmarks").rglob("*.md"))
    for entry in config.nav:
        if "Examples" in entry:
            entry["Examples"] += [f"examples/{script.stem}.md" for script in SCRIPTS]
        if "Benchmarks" in entry:
            entry["Benchmarks"] += [page for page in benchmarks if page not in entry["Benchmarks"]]
    return config


def on_files(files: Files, *, config: Any) -> Files:
    """Add a page for each example, its pictures, the script and the notebook, and a page that shows them all."""

    def add(path: str, content: str | bytes) -> None:
        files.append(File.generated(config, path, content=content, inclusion=InclusionLevel.INCLUDED))

    exporter = MarkdownExporter(raw_template=_TEMPLATE)
    with ThreadPoolExecutor(2) as pool:
        notebooks = list(pool.map(run, SCRIPTS))
    cards = []
    for script, (notebook, was_run) in zip(SCRIPTS, notebooks):
        name, source = script.stem, script.read_text(encoding="utf-8")
        text, resources = exporter.from_notebook_node(notebook)
        title = _TITLE.search(text)[1]
        for picture, data in resources["outputs"].items():
            text = text.replace(f"![png]({picture})", f"[![{title}]({name}_{picture})]({name}_{picture})")
            add(f"examples/{name}_{picture}", data)
        if not was_run:
            text += (
                f"\nThe data may not be redistributed. With them the script draws this:\n\n![{title}](../{name}.png)\n"
            )
        add(f"examples/{name}.ipynb", nbformat.writes(notebook))
        add(f"examples/{name}.py", source)
        add(f"examples/{name}.md", f"{text}\nDownload: [script]({name}.py), [notebook]({name}.ipynb).\n")
        sentence = _SENTENCE.search(text)[1]
        cards.append(f"## [{title}]({name}.md)\n\n{sentence}\n\n[![{title}](../{name}.png)]({name}.md)\n")
    add("examples/index.md", "# Examples\n\nScripts that are run whenever this site is built.\n\n" + "\n".join(cards))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Lead links to a script, or to all of them, to pages; weigh the page in search."""
    boost = next((weight for start, weight in _BOOSTS.items() if page.file.src_uri.startswith(start)), 1.0)
    page.meta.setdefault("search", {"boost": boost})
    folder = page.file.src_uri.rpartition("/")[0] or "."

    def page_of(script: re.Match[str]) -> str:
        return f"]({relpath('examples/' + (script[1] or 'index') + '.md', folder)})"

    return _LINK.sub(page_of, markdown)
