"""What the benchmark scripts share: where and when a page was measured, and how its tables are written."""

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt

__all__ = [
    "GPY",
    "PAGES",
    "chosen_models",
    "header",
    "hyper_modes",
    "markdown_table",
    "mean_se",
    "prepare_compilers",
    "printed_apart",
    "processor",
    "result_apart",
    "run_elsewhere",
    "run_module",
    "versions",
    "write_page",
]

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs" / "benchmarks"
"""Folder of the pages that the scripts write."""
PACKAGES = ("pymc", "pytensor", "arviz", "numpy", "scipy")
EXPONENT = re.compile(r"\b\d(?:\.\d+)?e\+0[2-6]\b")
"""What ``:.3g`` makes of 1,030; pages have 1030."""
GPY = """
import json, sys, time
import numpy as np
import GPy
from paramz import ObsAr
out = []
for path in sys.argv[1:]:
    data = np.load(path)
    K, y = data["covariance"], ObsAr(data["y"][:, None])
    X = np.arange(float(len(y)))[:, None]
    kernel, likelihood = GPy.kern.Fixed(1, K), GPy.likelihoods.Bernoulli()
    began = time.perf_counter()
    found = GPy.inference.latent_function_inference.EP().inference(kernel, X, likelihood, y)
    out.append([time.perf_counter() - began, float(np.squeeze(found[1]))])
    if "cross" in data:
        cross, posterior = data["cross"], found[0]
        inverse = np.squeeze(posterior.woodbury_inv)
        out[-1].append(np.ravel(cross @ posterior.woodbury_vector).tolist())
        out[-1].append((data["variance"] - np.sum(cross @ inverse * cross, axis=1)).tolist())
    print(json.dumps(out), flush=True)
"""
"""For `run_elsewhere`: EP for bits under the probit link with GPy's own settings, seconds and log Z of each input.

With ``cross``, the covariance of new values with the observed ones, and ``variance``, that of the new values, also
their posterior means and variances.
"""


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
    """Return the first part of a section: its heading, and when, where and with what versions it was written."""
    command = f"python -m docs.benchmarks {Path(script).stem}"
    made = f"`{command}` wrote this on {date.today()}, with fixed seeds. {processor()}; {versions(*more)}.\n"
    return f"## {title}\n\n{made}"


def hyper_modes(fit: Any) -> dict[str, float]:
    """Return the scalar hyperparameters that a fit found, from its group ``fit``."""
    prefix = "hyper_mode_"
    return {name.removeprefix(prefix): float(fit[name]) for name in fit.data_vars if name.startswith(prefix)}


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Format a table; the caller formats the cells."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def mean_se(mean: float, spread: float, digits: int = 2) -> str:
    """Format a mean with the spread (standard deviation or error) in parentheses, as the papers' tables do."""
    return f"{mean:.{digits}f} ({spread:.{digits}f})"


def write_page(name: str, parts: Iterable[str]) -> Path:
    """Write the section of a script into the page that has its marks.

    A page is written by hand but for such sections, each between ``<!-- NAME.py -->`` and ``<!-- end of NAME.py -->``.
    Where no page of benchmarks, nor of ``docs`` itself, has the marks of this script, a new one is made,
    ``docs/benchmarks/<name>.md``.

    Parameters
    ----------
    name : str
        The script.
    parts : iterable of str
        What `header` returns, then the rest, set apart by empty lines. The heading is left out where the section is
        the only one of its page; otherwise the headings below it go down by one level. When and where the section was
        written stands at its end.

    Returns
    -------
    Path
        The page.
    """
    first, *rest = parts
    title, _, made = first.partition("\n\n")
    begin, end = f"<!-- {name}.py -->\n", f"<!-- end of {name}.py -->\n"
    pages = [*sorted(PAGES.glob("*.md")), *sorted(PAGES.parent.glob("*.md"))]
    page = next((path for path in pages if begin in path.read_text()), PAGES / f"{name}.md")
    if not page.exists():
        page.write_text(f"{title[1:]}\n\n{begin}\n{end}")
    before, _, after = page.read_text().partition(begin)
    _, _, after = after.partition(end)
    body = EXPONENT.sub(lambda figure: f"{float(figure[0]):.0f}", "\n".join([*rest, made]))
    if "<!-- end of " in before + after:
        body = f"{title}\n\n" + re.sub(r"^(#+ )", r"#\1", body, flags=re.MULTILINE)
    page.write_text(f"{before}{begin}\n{body}\n{end}{after}")
    return page


def run_elsewhere(python: str, driver: str, inputs: Iterable[dict[str, np.ndarray]], limit: float) -> list[Any]:
    """Run a program under another interpreter, for packages that cannot be installed beside this one.

    Parameters
    ----------
    python : str
        The interpreter.
    driver : str
        Source. It gets a file in NumPy's format for each input, and after each prints the list of all answers so far
        as one line of JSON.
    inputs : iterable of dict
        Arrays by name.
    limit : float
        Seconds for all; inputs not answered by then are left out.

    Returns
    -------
    list
        The answers.
    """
    with tempfile.TemporaryDirectory() as folder:
        paths = []
        for i, arrays in enumerate(inputs):
            paths.append(str(Path(folder) / f"{i}.npz"))
            np.savez(paths[-1], **arrays)
        # A driver that is stopped keeps what it has printed so far.
        with (Path(folder) / "out").open("w+") as out:
            try:
                subprocess.run([python, "-W", "ignore", "-c", driver, *paths], stdout=out, timeout=limit, check=True)
            except subprocess.TimeoutExpired:
                print(f"{python} stopped at its time limit", file=sys.stderr)
            out.seek(0)
            lines = out.read().split("\n")
    answers = [line for line in lines if line.startswith("[")]
    return json.loads(answers[-1]) if answers else []


def prepare_compilers() -> None:
    """Build what PyTensor builds once for an installation, whatever is run: its C thunk loop and helper modules."""
    x = pt.vector()
    pytensor.function([x], x + 1.0)(np.ones(2))


def run_module(module: str, options: Sequence[str], limit: float, *, cold: bool = True) -> str:
    """Run a module with one thread for linear algebra, and empty compile caches; return what stopped it, or ``""``."""
    with tempfile.TemporaryDirectory() as caches:
        empty = {"PYTENSOR_FLAGS": f"base_compiledir={caches}/pytensor", "NUMBA_CACHE_DIR": f"{caches}/numba"}
        environment = os.environ | (empty if cold else {})
        environment |= {
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
            "OPENBLAS_NUM_THREADS": "1",
            "OMP_NUM_THREADS": "1",
        }
        command = [sys.executable, "-m", module, *options]
        try:
            done = subprocess.run(command, env=environment, cwd=ROOT, stderr=subprocess.PIPE, text=True, timeout=limit)
        except subprocess.TimeoutExpired:
            return f"no result after {limit:.0f} s"
    if done.returncode:
        last = done.stderr.strip().rpartition("\n")[2]
        return f"the process ended with status {done.returncode}: {last}"
    return ""


def chosen_models(description: str | None, models: Iterable[str], worker: Callable[[str], None]) -> list[str]:
    """Return the models that the command line names; in a process of `printed_apart` run `worker` on one, and exit."""
    names = list(models)
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="*", choices=names, default=names, metavar="NAME")
    parser.add_argument("--worker", choices=names, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        worker(options.worker)
        sys.exit()
    return list(options.models)


def printed_apart(script: str, worker: str) -> dict[str, Any]:
    """Return what a script with ``--worker`` prints last, a line of JSON, in a process with one thread of BLAS."""
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, script, "--worker", worker]
    done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def result_apart(module: str, options: Sequence[str], limit: float, *, cold: bool = True) -> dict[str, Any]:
    """Return what a module run by `run_module` wrote to the file of ``--child``; "failed" holds what stopped it."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.json"
        failure = run_module(module, [*options, "--child", str(out)], limit, cold=cold)
        return {"failed": failure} if failure else json.loads(out.read_text())
