"""Output of the Python blocks of a page, kept in the page below each.

    python -m docs.site.outputs docs/quickstart.md docs/glmm.md

runs pages as a reader would, on PyMC 6. It writes what each block prints into a fence ``output`` below it, and keeps
the pictures that a block saves and the page shows. ``tests/docs/test_docs.py`` compares: words have to be the same, and
numbers about the same.
"""

import contextlib
import io
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

OUTPUT = "```output\n"
_BLOCK = re.compile(
    r"^```python\n(?P<code>.*?)^```\n(?:\n```output\n(?P<printed>.*?)^```\n)?", re.DOTALL | re.MULTILINE
)
_NUMBER = re.compile(r"(?<![\w.])[-+]?\d[\d,]*(?:\.\d*)?(?![\d.]*\w)")
_CHANCE = re.compile(r"\b[\d.,]+ (?:ms|s|minutes|kB|MB|GB)\b|\b[\d.]+e-\d+\b")
"""Seconds, memory and what is left of an iteration: no two machines have the same."""
SUMMARY = re.compile(r"^ +mean +sd\b", re.MULTILINE)
"""Head of a table of `arviz.summary`, which has other columns in ArviZ 0.x."""
RELATIVE_ERROR = 0.1
"""Of numbers of two stacks, whose draws and grids of hyperparameters differ: 8% was seen."""


def ran(text: str, source: Path) -> Iterator[tuple[re.Match[str], str]]:
    """Run the blocks of a page in order; yield the match of each, groups ``code`` and ``printed``, and its output."""
    namespace = {"__name__": "__main__"}
    for block in _BLOCK.finditer(text):
        # Blank lines in front make a traceback point at the line of the page.
        lines_before = text.count("\n", 0, block.start("code"))
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(compile("\n" * lines_before + block["code"], str(source), "exec"), namespace)
        yield block, _stripped(printed.getvalue())


def differences(printed: str, now: str) -> list[str]:
    """Return the lines of two outputs that differ by more than a change of stacks or machines explains."""
    old, new = printed.splitlines(), now.splitlines()
    if len(old) != len(new):
        return [f"{len(old)} lines, now {len(new)}:\n{now}"]
    return [f"{a!r}, now {b!r}" for a, b in zip(old, new, strict=True) if not _alike(a, b)]


def _alike(old: str, new: str) -> bool:
    old, new = _CHANCE.sub("", old), _CHANCE.sub("", new)
    if _NUMBER.sub("", old).split() != _NUMBER.sub("", new).split():
        return False
    numbers = zip(_NUMBER.findall(old), _NUMBER.findall(new), strict=True)
    return all(_near(a.replace(",", ""), b.replace(",", "")) for a, b in numbers)


def _near(old: str, new: str) -> bool:
    last_digit = 10.0 ** -len(old.partition(".")[2])
    return abs(float(old) - float(new)) <= max(2.001 * last_digit, RELATIVE_ERROR * abs(float(old)))


def _stripped(output: str) -> str:
    return "".join(f"{line.rstrip()}\n" for line in output.strip("\n").splitlines())


def write(page: Path) -> None:
    """Run a page, and put what it prints and draws into its place."""
    text = page.read_text(encoding="utf-8")
    pieces, end = [], 0
    for block, printed in ran(text, page):
        shown = f"\n{OUTPUT}{printed}```\n" if printed else ""
        pieces += [text[end : block.start()], f"```python\n{block['code']}```\n", shown]
        end = block.end()
    page.write_text("".join([*pieces, text[end:]]), encoding="utf-8")
    for picture in Path().glob("*.png"):
        if f"]({picture.name})" in text:
            picture.replace(page.parent / picture.name)


def main() -> None:
    """Write the outputs of the pages that are given."""
    os.environ["MPLBACKEND"] = "Agg"
    for page in [Path(name).resolve() for name in sys.argv[1:]]:
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            write(page)


if __name__ == "__main__":
    main()
