"""Log densities of cells of a matrix: functions of NumPy arrays, and the graphs of the sites of the same likelihoods.

    python -m docs.benchmarks.cells

Writes a section of docs/benchmarks/bilinear_scaling.md.
"""

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from docs.benchmarks._common import header, markdown_table, write_page
from pymc_ep.sites import compile_site, get_site
from pymc_ep.sites.cells.base import cell_site, cell_site_names

CELLS = 1_000, 1_000_000
REPEATS = {1_000: 200, 1_000_000: 7}
PARAMETERS = {"negative_binomial": (2.0,), "normal": (1.5,)}


def main() -> None:
    """Measure all likelihoods, and write the section."""
    rows = [row for name in cell_site_names() for row in _rows(name)]
    columns = ("likelihood", "cells", "NumPy, ns", "site's graph, ns", "first call of the graph, s", "bound, ns")
    text = (
        "Nanoseconds a cell on one thread, medians of 200 and of 7 calls, and the seconds of a first call of\n"
        "a site's compiled graph. The engines ask for the bound; densities serve draws and predictions. Both\n"
        "densities agree to 3e-14. The graphs are written for EP's tails. They are slower than NumPy for all\n"
        "likelihoods but that of many bits, by up to a factor of two and a half at a million cells and by one\n"
        "of ten and more at a thousand. So cells keep functions of their own, and a test holds them to the\n"
        "sites.\n"
    )
    write_page(
        "cells", [header("Likelihoods of cells", "docs/benchmarks/cells.py"), text, markdown_table(columns, rows)]
    )


def _rows(name: str) -> list[tuple[str, ...]]:
    out = []
    rng = np.random.default_rng(0)
    cells = cell_site(name, truncated=False)
    assert cells is not None
    for n in CELLS:
        y = {"logit": rng.integers(0, 2, n), "normal": rng.normal(size=n)}.get(name, rng.poisson(3.0, n)).astype(float)
        f = rng.normal(size=n)
        parameters = [np.full(n, value) for value in PARAMETERS.get(name, ())]
        graph = compile_site(get_site(name))
        began = time.perf_counter()
        graph.log_density(y, f, *parameters)
        first = time.perf_counter() - began
        spread = np.full(n, 0.3) if cells.spread == "variance" else f + 0.15
        timed = (
            lambda y=y, f=f, p=parameters: cells.log_density(y, f, *p),
            lambda y=y, f=f, p=parameters, graph=graph: graph.log_density(y, f, *p),
            lambda y=y, f=f, p=parameters, spread=spread: cells.bounded(y, f, spread, *p),
        )
        own, of_site, bound = (f"{_median(call, REPEATS[n]) / n * 1e9:.1f}" for call in timed)
        out.append((name, f"{n:,}", own, of_site, f"{first:.2f}", bound))
    return out


def _median(call: Callable[[], Any], repeats: int) -> float:
    seconds = []
    for _ in range(repeats):
        began = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - began)
    return float(np.median(seconds))


if __name__ == "__main__":
    main()
