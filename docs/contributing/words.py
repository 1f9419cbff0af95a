"""Counts of words and constants of the package, and the ledger of its constants.

    python -m docs.contributing.words [FOLDER]

Prints the counts of the package, or of another folder; of the package it writes them into `architecture.md` beside this
file, and `constants.md`.
"""

import ast
import io
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2] / "pymc_ep"
PAGE, COUNTS = (Path(__file__).with_name(name) for name in ("constants.md", "architecture.md"))
DIALECT = frozenset(("found", "here", "known", "made", "one", "ones", "own", "part", "parts", "which"))
"""Names that do not say what a thing is."""
COMMON = frozenset((0.0, 0.5, 1.0, 2.0))
"""Numbers that need no name."""
MOST = 8
"""Numbers of one assignment beyond which it is a table of coefficients."""
HEAD = """# Constants

Numbers that steer the package, by file, with what stands below each in the code: what it trades, and which measurement
chose it. `python -m docs.contributing.words` writes this page.
"""


class Constant(NamedTuple):
    """A number, or a few of one assignment, by which a module steers, and its docstring."""

    names: str
    value: str
    docstring: str


def main(folder: Path = ROOT) -> None:
    """Print the counts of a folder; of the package, write them and the ledger too."""
    counts = counted(folder)
    for name, value in counts.items():
        print(f"| {name} | {value} |")
    if folder == ROOT:
        PAGE.write_text(page(), encoding="utf-8")
        text = COUNTS.read_text(encoding="utf-8")
        for name, value in counts.items():
            text = re.sub(rf"(?m)^(\| {name} \| [\d.]+ \|) [\d.]+ \|$", rf"\1 {value} |", text)
        COUNTS.write_text(text, encoding="utf-8")


def counted(folder: Path = ROOT) -> dict[str, float]:
    """Return the counts of all files of a folder."""
    files = sorted(folder.rglob("*.py"))
    code = comments = docstrings = indirect = literals = constants = 0
    names: Counter[bool] = Counter()
    for path in files:
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text)
        strings = list(_docstrings(tree))
        lines, of_comments = _lines(text, strings)
        code, comments, docstrings = code + lines, comments + of_comments, docstrings + len(strings)
        indirect += sum(any(f"{word} of" in string.value for word in ("those", "that", "which")) for string in strings)
        literals += sum(
            isinstance(node, ast.Constant) and isinstance(node.value, float) and abs(node.value) not in COMMON
            for node in ast.walk(tree)
        )
        constants += len(list(constants_of(tree)))
        names.update(name in DIALECT for name in _names(tree))
    return {
        "files": len(files),
        "lines of code": code,
        "constants": constants,
        "uncommon floats in 1,000 lines of code": round(1000 * literals / code, 1),
        "comments in 100 lines of code": round(100 * comments / code, 1),
        "names that do not say what a thing is, in 10,000": round(10_000 * names[True] / names.total()),
        "docstrings": docstrings,
        "docstrings with those of, that of, which of": indirect,
    }


def page() -> str:
    """Return the ledger of the package."""
    parts = [HEAD]
    for path in sorted(ROOT.rglob("*.py")):
        rows = [
            f"| `{constant.names}` | {constant.value} | {' '.join(constant.docstring.split()).replace('|', '&#124;')} |"
            for constant in constants_of(ast.parse(path.read_text(encoding="utf-8")))
        ]
        if rows:
            place = path.relative_to(ROOT.parent).as_posix()
            parts.append("\n".join([f"\n## `{place}`\n", "| name | value | why |", "|---|---|---|", *rows, ""]))
    return "".join(parts)


def constants_of(tree: ast.Module) -> Iterator[Constant]:
    """Yield the numbers that a module names in capitals."""
    for node, following in zip(tree.body, [*tree.body[1:], None]):
        if not isinstance(node, ast.Assign) or not 0 < _numbers(node.value) <= MOST:
            continue
        names = [name.id for name in ast.walk(node.targets[0]) if isinstance(name, ast.Name)]
        if all(name.isupper() for name in names):
            below = following.value if isinstance(following, ast.Expr) else None
            docstring = below.value if isinstance(below, ast.Constant) and isinstance(below.value, str) else ""
            yield Constant(", ".join(names), ast.unparse(node.value).strip("()"), docstring)


def _numbers(node: ast.expr) -> int:
    """Return how many numbers a tuple has, or 1 for a number; 0 for anything else."""
    if isinstance(node, ast.Tuple):
        counts = list(map(_numbers, node.elts))
        return sum(counts) if all(counts) else 0
    if isinstance(node, ast.BinOp):
        return min(_numbers(node.left), _numbers(node.right))
    if isinstance(node, ast.UnaryOp):
        return _numbers(node.operand)
    return int(isinstance(node, ast.Constant) and type(node.value) in (int, float))


def _docstrings(tree: ast.Module) -> Iterator[ast.Constant]:
    """Yield the strings that stand as statements: docstrings, and those below assignments."""
    for node in ast.walk(tree):
        string = node.value if isinstance(node, ast.Expr) else None
        if isinstance(string, ast.Constant) and isinstance(string.value, str):
            yield string


def _lines(text: str, docstrings: list[ast.Constant]) -> tuple[int, int]:
    """Return the numbers of lines of code and of comments."""
    in_docstrings = {line for string in docstrings for line in range(string.lineno, (string.end_lineno or 0) + 1)}
    code, comments = set(), 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            comments += 1
        elif token.string.strip() and token.type not in (tokenize.NEWLINE, tokenize.NL, tokenize.ENDMARKER):
            code.update(range(token.start[0], token.end[0] + 1))
    return len(code - in_docstrings), comments


def _names(tree: ast.Module) -> Iterator[str]:
    """Yield each use of a name, an argument or an attribute."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Attribute):
            yield node.attr


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
