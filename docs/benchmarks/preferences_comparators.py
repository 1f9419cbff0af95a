"""Comparators of expectation propagation on Sushi-A: Laplace's approximation and Jaakkola's bound.

    python -m docs.benchmarks.preferences_comparators

Takes five minutes on one core. Finished rows are kept. Writes its section of
docs/benchmarks/preferences.md; needs sushi3 in PYMC_EP_DATA.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import pymc_ep as pmep
from docs.benchmarks._common import header, markdown_table, mean_se, write_page
from docs.benchmarks._images import Store
from docs.benchmarks.preferences import EM, HELD_OUT, PROTOCOLS, measured

NAME = "docs/benchmarks/preferences_comparators.py"
A = PROTOCOLS["A"]
ROWS: tuple[tuple[str, str, str, Callable[..., Any], str], ...] = (
    ("GPitem", "laplace", "probit", pmep.PairwiseProbit, "0.910"),
    ("GPitem", "laplace", "logit", pmep.PairwiseLogit, "-"),
    ("GPVU", "laplace", "probit", pmep.PairwiseProbit, "-"),
    ("GPVU", "jaakkola", "logit", pmep.PairwiseLogit, "0.854"),
)
"""Prior, method, link, comparisons and published bits (Khan, Ko and Seeger 2014)."""
WAYS = (("a tenth held out", HELD_OUT), ("to the end", {"held_out": 0}), ("EM, 50 iterations", EM))


def row(label: list[str], bits: list[float], seconds: list[float], scales: list[float], published: str) -> list[str]:
    """Return a row of the table."""
    error = float(np.std(bits, ddof=1) / np.sqrt(len(bits)))
    cells = [mean_se(float(np.mean(bits)), error, 3), published, f"{np.median(seconds):.1f}", f"{np.mean(scales):.2f}"]
    return [*label, *cells]


def main() -> None:
    """Measure all rows that are not there yet, and write the section."""
    store, rows = Store("preferences_comparators"), []
    for kind, method, link, compare, published in ROWS:
        for way, options in WAYS:
            label = [kind, f'"{method}", {link}', way]
            fits = partial(measured, kind, A, {"method": method} | options, compare)
            kept = store.get("/".join(label), lambda: {"cells": row(label, *fits(), published)})  # noqa: B023
            assert kept is not None
            rows.append(kept["cells"])
    head = ["Prior", "Method", "Learned", "Bits (standard error)", "Published", "Seconds", "Spread of utilities"]
    about = "Draws, priors and columns are those of the tables above.\n"
    parts = [header("Sushi-A by other methods", NAME), about, markdown_table(head, rows), store.measured()]
    write_page("preferences_comparators", parts)


if __name__ == "__main__":
    main()
