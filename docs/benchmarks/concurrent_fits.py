"""Fits of many models in threads: how many raise or differ from fits in turn, with the package's locks and without.

    python -m docs.benchmarks concurrent_fits

Writes a section of docs/reliability.md. A minute.
"""

import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from subprocess import run

import numpy as np
import pymc as pm

import pymc_ep as pmep
from docs.benchmarks._common import header, markdown_table, write_page
from pymc_ep import concurrency

__all__ = ["FITS", "THREADS", "fitted", "outcomes"]

FITS, THREADS = 32, 8
UNLOCKED = "--unlocked"


def model_of(k: int) -> pm.Model:
    """Build the k-th model: their functions of sites are the same ones, their data are not."""
    counts = np.random.default_rng(k).poisson(2.0, 300)
    with pm.Model() as model:
        level, nu = pm.Normal("level", 0.0, 2.0, shape=30), pm.Gamma("nu", 4.0, 1.0)
        if k % 2:
            pm.Poisson("y", pm.math.exp(level[np.arange(300) % 30]), observed=counts)
        else:
            pm.StudentT("y", nu=nu, mu=level[np.arange(300) % 30], sigma=1.0, observed=counts.astype(float))
    return model


def fitted(model: pm.Model) -> float:
    """Return the evidence of a model."""
    return float(pmep.fit(model=model, hyper="fixed", draws=0, progressbar=False)["fit"]["log_evidence"])


def outcomes(fits: int = FITS) -> Counter:
    """Return how many fits in threads give the number of a fit in turn, differ from it, and raise."""

    def outcome(model: pm.Model) -> float | None:
        try:
            return fitted(model)
        except Exception:
            return None

    # Here, as PyTensor changes flags for all threads while it builds a graph.
    models = [model_of(k) for k in range(fits)]
    with ThreadPoolExecutor(THREADS) as threads:
        found = list(threads.map(outcome, models))
    names = {None: "raised", True: "the same", False: "others"}
    return Counter(names[None if one is None else one == fitted(model_of(k))] for k, one in enumerate(found))


def main() -> None:
    """Count both, the fits without locks in a process of their own, as they may end it, and write the section."""
    if UNLOCKED in sys.argv:
        concurrency.CompiledFunction.renew_lock = lambda self: setattr(self, "_lock", nullcontext())
        concurrency._COMPILATION = nullcontext()
        print(*(f"{name}:{count}" for name, count in outcomes().items()), sep=",")
        return
    without = run(
        [sys.executable, "-m", "docs.benchmarks", "concurrent_fits", UNLOCKED], capture_output=True, text=True
    )
    ended = dict(part.split(":") for part in without.stdout.strip().split(",") if ":" in part)
    rows = []
    for what, counts in (("locked, as they are", outcomes()), ("without locks", ended)):
        rows.append([what, *(str(counts.get(name, 0)) for name in ("the same", "others", "raised"))])
    if without.returncode:
        rows[-1] = ["without locks", "the process ended", "", ""]
    table = markdown_table(
        ["compilation and functions", "the same numbers as in turn", "other numbers", "raised"], rows
    )
    text = f"{FITS} fits of as many models in {THREADS} threads, which share the compiled functions of their sites."
    print(table)
    print(write_page("concurrent_fits", [header("Fits in threads", __file__), f"{text}\n", table]))


if __name__ == "__main__":
    main()
