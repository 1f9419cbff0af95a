"""Cost of bilinear Poisson models: against a mode, against factors and cells, and on all visits of Gowalla.

    python -m docs.benchmarks.bilinear_scaling [--most 10000000] [--page]

Needs the folder ``gowalla-counts`` under ``PYMC_EP_DATA`` for its last part. Rows that are done are kept in
``docs/benchmarks/rows``. Writes docs/benchmarks/bilinear_scaling.md.
"""

import argparse
import json
import subprocess
import sys
import time
import warnings
from typing import Any

import numpy as np
import pymc as pm

import pymc_ep as pmep
from docs.benchmarks._cells import Observed, dataset
from docs.benchmarks._common import header, markdown_table, write_page
from docs.benchmarks._images import Store, shortfall

NAME = "docs/benchmarks/bilinear_scaling.py"
FACTORS = (1, 2, 4, 8, 16, 32, 64)
CELLS = (10_000, 100_000, 1_000_000, 10_000_000)
OF_FACTORS, OF_CELLS = 100_000, 10
"""Cells where factors vary, and factors where cells vary."""
A_ROW = 50
"""Cells of a row, and of a column, on average."""
STEPS = 6
"""Steps of a fit that is timed: three of either matrix in turn, then three of both."""
WHOLE = 20
"""Factors on all visits."""
METHODS = {"mean field": (), "mode": ("U", "V")}
LIMITS = {"ratio": 3.0, "seconds": 180.0}
SCRIPT = """
import json, resource, sys
from docs.benchmarks.bilinear_scaling import timed
how = json.loads(sys.argv[1])
row = timed(**how)
row["gigabytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
print(json.dumps(row))
"""


def simulated(n: int, factors: int) -> Observed:
    """Return counts whose predictors have mean one half and standard deviation one half."""
    rng = np.random.default_rng(0)
    side = max(2, n // A_ROW)
    rows, cols = rng.integers(side, size=(2, n))
    v, u = rng.normal(0, 1, (2, side, factors))
    f = 0.5 + 0.5 * np.einsum("cd,cd->c", v[rows], u[cols]) / factors**0.5
    return Observed(rows, cols, rng.poisson(np.exp(np.minimum(f, 4.0))))


def fitted(cells: Observed, factors: int, estimate: tuple[str, ...], **options: Any) -> dict[str, Any]:
    """Fit Poisson counts with fixed scales: seconds, steps, and how it ended."""
    with pm.Model() as model, warnings.catch_warnings():
        # Rows say what did not converge.
        warnings.simplefilter("ignore", pmep.ConvergenceWarning)
        V = pm.Normal("V", 0, 0.5, shape=(int(cells.rows.max()) + 1, factors))
        U = pm.Normal("U", 0, 0.5, shape=(int(cells.cols.max()) + 1, factors))
        pmep.BilinearPoisson("y", V, U, cells.rows, cells.cols, observed=cells.y)
        began = time.perf_counter()
        idata = pmep.fit(
            "vg", model=model, hyper="fixed", estimate=estimate, draws=0, progressbar=False, random_seed=0, **options
        )
        seconds = time.perf_counter() - began
    fit = idata["fit"]
    return {
        "seconds": seconds,
        "steps": int(fit["n_iter"]),
        "converged": bool(fit["converged"]),
        "status": fit.attrs["status"],
    }


def timed(n: int, factors: int, method: str) -> dict[str, Any]:
    """Time a few steps on simulated cells, after a small fit that loads the compiled kernels."""
    fitted(simulated(40_000, 1), 1, METHODS[method], max_iter=STEPS, tol=1e-12)
    return fitted(simulated(n, factors), factors, METHODS[method], max_iter=STEPS, tol=1e-12)


def elsewhere(**how: Any) -> dict[str, Any]:
    """Time in a process of its own, whose greatest memory is told too."""
    out = subprocess.run([sys.executable, "-c", SCRIPT, json.dumps(how)], stdout=subprocess.PIPE, check=True, text=True)
    return json.loads(out.stdout.splitlines()[-1])


def whole(method: str) -> dict[str, Any]:
    """Fit all visits of Gowalla to convergence."""
    fitted(simulated(40_000, 1), 1, METHODS[method], max_iter=STEPS, tol=1e-12)
    return fitted(dataset("Gowalla"), WHOLE, METHODS[method])


def slope(sizes: list[int], seconds: list[float]) -> float:
    """Return the exponent of the cost."""
    return float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0])


def table(store: Store, kind: str, sizes: tuple[int, ...]) -> list[str]:
    """Return the table of one kind of size, with slopes."""
    lines, known = [], []
    for size in sizes:
        rows = [store.rows.get(f"{kind}/{size}/{method}") for method in METHODS]
        if any(row is None for row in rows):
            continue
        each = [row["seconds"] / row["steps"] for row in rows]
        known.append((size, *each))
        lines.append(
            [f"{size:,}", *(f"{1e3 * s:.4g}" for s in each), f"{each[0] / each[1]:.2f}", f"{rows[0]['gigabytes']:.2f}"]
        )
    told = [f"{name} {slope([k[0] for k in known], [k[1 + i] for k in known]):.2f}" for i, name in enumerate(METHODS)]
    ratio = float(np.median([k[1] / k[2] for k in known]))
    return [
        markdown_table([kind, *(f"{name}, ms a step" for name in METHODS), "ratio", "GB, mean field"], lines),
        f"Exponents of the cost: {', '.join(told)}.\n",
        f"- {shortfall('Mean field over mode, median', ratio, LIMITS['ratio'], 2)}\n",
    ]


def page(store: Store) -> list[str]:
    """Return the parts of the page."""
    parts = [header("Factors and cells", NAME, "numba"), INTRODUCTION]
    parts += ["## Factors\n", f"{OF_FACTORS:,} cells.\n", *table(store, "factors", FACTORS)]
    parts += ["## Cells\n", f"{OF_CELLS} factors.\n", *table(store, "cells", CELLS)]
    lines = [
        [method, f"{row['seconds']:.3g}", str(row["steps"]), row["status"]]
        for method in METHODS
        if (row := store.rows.get(f"Gowalla/{method}"))
    ]
    parts += ["## All visits of Gowalla\n", f"378,968 cells, {WHOLE} factors, to convergence.\n"]
    parts += [markdown_table(["method", "seconds", "steps", "status"], lines)]
    if row := store.rows.get("Gowalla/mean field"):
        parts += [f"- {shortfall('Mean field', row['seconds'], LIMITS['seconds'], 0, ' s')}\n"]
    return [*parts, store.measured()]


INTRODUCTION = f"""\
Poisson counts of rate exp(v^T u), fixed scales, `method="vg"`: the mean field, and the mode of both matrices by the
same iteration.

- A step is ten iterations of L-BFGS.
- Simulated cells lie at random, {A_ROW} a row and a column on average.
- Seconds are of {STEPS} steps. They include reading the model and compilation by PyTensor. Numba's kernels are loaded
  before.
- Memory is the greatest of the process, data and PyMC included.
- The first two tables: one thread, beside other measurements on the other core. Ten million cells: the processor's
  seconds.
- The last table: two threads, nothing beside.
"""


def main() -> None:
    """Measure and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--most", type=int, default=CELLS[-1], help="cells at most")
    parser.add_argument("--page", action="store_true", help="write the page from the rows that there are")
    options = parser.parse_args()
    store = Store("bilinear_scaling")
    for method in () if options.page else METHODS:
        for factors in FACTORS:
            how = {"n": OF_FACTORS, "factors": factors, "method": method}
            store.get(f"factors/{factors}/{method}", lambda how=how: elsewhere(**how))
        for n in CELLS:
            if n <= options.most:
                how = {"n": n, "factors": OF_CELLS, "method": method}
                store.get(f"cells/{n}/{method}", lambda how=how: elsewhere(**how))
        store.get(f"Gowalla/{method}", lambda method=method: whole(method))
    print(write_page("bilinear_scaling", page(store)))


if __name__ == "__main__":
    main()
