"""Wavelet trees from 128 x 128 to 1024 x 1024 pixels: time, memory, and the share of the sum-product.

    python -m docs.benchmarks.tree_scaling [--sizes 128 256 512 1024] [--page]

Denoising and inpainting with hyperparameters learned, every run in a process of its own, so that its peak memory is its
own. Needs the folder ``images256`` under ``PYMC_EP_DATA``. Runs that are done are kept in ``docs/benchmarks/rows``.
Writes docs/benchmarks/image_scaling.md.
"""

import argparse
import cProfile
import json
import pstats
import resource
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pymc as pm

import pymc_ep as pmep
from docs.benchmarks._common import header, markdown_table, write_page
from docs.benchmarks._images import Store, shortfall
from docs.benchmarks._wavelets import LEVELS, TASKS, WAVELET, image
from docs.benchmarks.image_scaling import picture
from pymc_ep.linalg import forest

NAME = "docs/benchmarks/tree_scaling.py"
MODEL = "Normal/Student-t, tree"
SIZES = (128, 256, 512, 1024)
OUTER, ALIKE = 15, {"denoising": 15, "inpainting": 3}
"""Outer loops, and those by which sizes are compared. Above 256 x 256 there are no others: the first ones, with what
they start from, take longer than those that follow, so that a loop's mean share would grow with the size."""
THREADS = 2
SECONDS = {"denoising": 10.0, "inpainting": 90.0}
SHARE = 0.15


def run(task: str, size: int) -> dict[str, Any]:
    """Fit once without a profiler, and where that is not long once with one."""
    truth, (sd, kept) = picture(size), TASKS[task]
    rng = np.random.default_rng(0)
    seen = rng.random(truth.shape) < kept
    pixels = (truth + rng.normal(0, sd, truth.shape))[seen]
    outer, alike = OUTER if size <= 256 else ALIKE[task], ALIKE[task]
    with pm.Model(), warnings.catch_warnings():
        # The loops are counted, not awaited.
        warnings.simplefilter("ignore", pmep.ConvergenceWarning)
        u = image(MODEL, truth.shape)
        pm.Normal("y", u.ravel() if seen.all() else u[seen], sd, observed=pixels)

        def fit(outer: int = outer) -> Any:
            return pmep.fit("dsb", draws=0, progressbar=False, outer=outer, n_samples=30)["fit"]

        began = time.perf_counter()
        found = fit()
        seconds = time.perf_counter() - began
        row = {
            "seconds": seconds,
            "run": float(found.attrs["run_time"]),
            "outer": int(found["n_iter"]),
            "gigabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
            "alike": float((found if outer == alike else fit(alike)).attrs["run_time"]),
        }
        if task == "inpainting":
            with joblib.parallel_config("threading", n_jobs=THREADS):
                row["threads"] = float(fit(alike).attrs["run_time"])
        if size <= 256:
            profile = cProfile.Profile()
            row["share"] = share_of_trees(profile, profile.runcall(fit))
    return row


def share_of_trees(profile: cProfile.Profile, found: Any) -> float:
    """Return the part of a profiled run that was spent within the module of the sum-product."""
    module, inside = str(Path(forest.__file__)), 0.0
    stats = pstats.Stats(profile).stats  # type: ignore[attr-defined]
    for (file, _, _), (_, _, _, _, callers) in stats.items():
        if file == module:
            inside += sum(own[3] for (caller, _, _), own in callers.items() if caller != module)
    return inside / float(found.attrs["run_time"])


def run_apart(task: str, size: int) -> dict[str, Any]:
    """Do `run` in a new process."""
    command = [sys.executable, "-m", "docs.benchmarks.tree_scaling", "--run", task, str(size)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def page(store: Store) -> list[str]:
    """Return the parts of the page."""
    parts = [header("Wavelet trees", NAME, "PyWavelets"), INTRODUCTION]
    for task in TASKS:
        sizes = [size for size in SIZES if f"{task}/{size}" in store.rows]
        rows = [store.rows[f"{task}/{size}"] for size in sizes]
        lines = [
            [
                f"{size} x {size}",
                f"{row['seconds']:.3g}",
                f"{row['run']:.3g}",
                str(row["outer"]),
                f"{row['alike']:.3g}",
                f"{row['threads']:.3g}" if "threads" in row else "-",
                f"{row['gigabytes']:.2f}",
                f"{row['share']:.1%}" if "share" in row else "-",
            ]
            for size, row in zip(sizes, rows)
        ]
        alike = f"in {ALIKE[task]} loops"
        head = ["pixels", "seconds", "without compilation", "outer loops", alike, f"the same, {THREADS} threads"]
        head += ["peak memory, GiB", "sum-product"]
        checks = ""
        if len(rows) > 1:
            power = np.log(rows[-1]["alike"] / rows[0]["alike"]) / np.log((sizes[-1] / sizes[0]) ** 2)
            checks += f"- Seconds {alike} grow as N^{power:.2f} from {sizes[0]} to {sizes[-1]} pixels a side.\n"
        if 256 in sizes:
            row = rows[sizes.index(256)]
            checks += f"- {shortfall('256 x 256', row['seconds'], SECONDS[task], 1, ' s')}\n"
            checks += f"- {shortfall('Part of the sum-product', row['share'], SHARE)}\n"
        parts += [f"## {task.capitalize()}\n", markdown_table(head, lines), checks]
    return [*parts, store.measured()]


INTRODUCTION = f"""\
One picture, averaged to fewer pixels or mirrored to more. The prior is a `WaveletTree` with {WAVELET} on {LEVELS}
levels, Normal low and Student-t high states. The double loop learns all scales and probabilities in {OUTER} outer
loops, or {ALIKE["inpainting"]} when inpainting more than 256 x 256 pixels.

- Denoising: noise of sd 0.1 on all pixels, exact variances.
- Inpainting: a quarter of the pixels with noise of sd 0.0032. Variances are from 30 samples, one after the other, or
  in as many threads as the column says.
- Seconds include the start; those of the first column include compilation. Sizes are compared in as many loops.
- The part of the sum-product is that of a second, profiled run.
"""


def main() -> None:
    """Measure and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="*", type=int, default=SIZES)
    parser.add_argument("--run", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--page", action="store_true", help="write the page from the rows there are")
    options = parser.parse_args()
    if options.run:
        print(json.dumps(run(options.run[0], int(options.run[1]))))
        return
    store = Store("tree_scaling")
    for size in () if options.page else options.sizes:
        for task in TASKS:
            store.get(f"{task}/{size}", lambda how=(task, size): run_apart(*how))
    print(write_page("tree_scaling", page(store)))


if __name__ == "__main__":
    main()
