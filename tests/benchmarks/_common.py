"""What the benchmark scripts share: where and when a page was measured, and how its tables are written."""

import os
import platform
from collections.abc import Iterable, Sequence
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

__all__ = ["PAGES", "header", "markdown_table", "mean_se", "processor", "versions", "write_page"]

PAGES = Path(__file__).parents[2] / "docs" / "benchmarks"
"""Folder of the pages that the scripts write."""
PACKAGES = ("pymc", "pytensor", "arviz", "numpy", "scipy")


def processor() -> str:
    """Return the model name of the CPU and how many cores this process may use."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = (line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{next(names, platform.processor())}, {cores} cores"


def versions(*more: str) -> str:
    """Return the versions of Python, the packages that matter to every page, and `more` distributions."""
    parts = [f"Python {platform.python_version()}"]
    for name in (*PACKAGES, *more):
        try:
            parts.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            parts.append(f"{name} absent")
    return ", ".join(parts)


def header(title: str, script: str, *more: str) -> str:
    """Return the first lines of a page: title, script, date, machine and versions."""
    return f"# {title}\n\nWritten by `{script}` on {date.today()}: {processor()}; {versions(*more)}.\n"


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Format a table; the caller formats the cells."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def mean_se(mean: float, spread: float, digits: int = 2) -> str:
    """Format a mean with the spread (standard deviation or error) in parentheses, as the papers' tables do."""
    return f"{mean:.{digits}f} ({spread:.{digits}f})"


def write_page(name: str, parts: Iterable[str]) -> Path:
    """Write ``docs/benchmarks/<name>.md`` from parts set apart by empty lines."""
    page = PAGES / f"{name}.md"
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text("\n".join(parts))
    return page
