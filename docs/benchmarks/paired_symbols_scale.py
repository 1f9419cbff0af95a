"""Paired symbols past one machine: files, threads and workers, a run of many pairs, and a plan for a billion.

    python -m docs.benchmarks.paired_symbols_scale [--sizes 3000000 10000000 100000000]

Needs 70 bytes of disk and 60 bytes of memory a pair. Measure on an idle machine. Rows that are done are kept in
docs/benchmarks/rows; writes docs/benchmarks/paired_symbols_scale.md.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pandas as pd

from docs.benchmarks._common import header, markdown_table, write_page
from docs.benchmarks._images import Store
from docs.benchmarks.paired_symbols_speed import Problem, peak_kib, simulated
from pymc_ep.datasets import split_pairs
from pymc_ep.models.paired_symbols.engine.divided import DividedPairs
from pymc_ep.models.paired_symbols.engine.state import first_state
from pymc_ep.models.paired_symbols.engine.values import PairCounts
from pymc_ep.models.paired_symbols.engine.variational_bayes import VariationalBayes
from pymc_ep.models.paired_symbols.files import Side, pairs_in_files

NAME = "docs/benchmarks/paired_symbols_scale.py"
FACTORS = 20
SIZES = (3 * 10**6, 10**7, 10**8)
FILES = {3 * 10**6: 8, 10**7: 16, 10**8: 64}
"""Files by number of pairs."""
IN_MEMORY = 10**7
"""Most pairs for the rows that hold all in one part, and for a cluster on this machine."""
WAYS = {
    "one part, one thread": ("whole", 1, 0),
    "one part, two threads": ("whole", 2, 0),
    "files, one thread": ("files", 1, 0),
    "files, two threads": ("files", 2, 0),
    "one worker of one thread": ("files", 2, 1),
    "two workers of one thread": ("files", 2, 2),
}
"""Where the pairs are, threads of this process, and workers."""
PLAN = {"pairs": 1e9, "users": 1e7, "machines": 16, "cores": 16, "gigabits": 10.0}
"""Billions of pairs on a cluster, whose network passes so many Gbit/s."""


def prepare(size: int, folder: Path) -> None:
    """Write simulated pairs to files, and their shape."""
    pairs = simulated(size).tocoo()
    frame = pd.DataFrame({"user": pairs.row.astype(np.int32), "item": pairs.col.astype(np.int32)})
    split_pairs(frame, folder, n=FILES[size])
    (folder / "shape.json").write_text(json.dumps([*pairs.shape, pairs.nnz]))


def sweep_of(pairs: DividedPairs, shape: tuple[int, int], repeats: int) -> dict[str, float]:
    """Return the median time of a sweep after the first, and the bound."""
    problem = Problem(shape, FACTORS)
    engine = VariationalBayes(pairs, extrapolate=False)
    state = engine.init(problem, first_state(problem.prior(np.zeros(0)), np.zeros(0), 0))
    state, seconds = engine.step(problem, state), []
    for _ in range(repeats):
        began = time.perf_counter()
        state = engine.step(problem, state)
        seconds.append(time.perf_counter() - began)
    return {"seconds": float(np.median(seconds)), "bound": state.log_bound}


def measure(folder: Path, way: str) -> dict[str, Any]:
    """Measure one way in this process."""
    where, threads, workers = WAYS[way]
    *sizes, n_pairs = json.loads((folder / "shape.json").read_text())
    shape, repeats = (sizes[0], sizes[1]), 3 if n_pairs <= IN_MEMORY else 1
    numba.set_num_threads(threads)
    sides = Side("user", shape[0]), Side("item", shape[1])
    began = time.perf_counter()
    if where == "whole":
        table = pd.concat(map(pd.read_parquet, sorted(folder.glob("*.parquet"))))
        ones = np.ones(len(table))
        pairs = PairCounts.of(table["user"].to_numpy(), table["item"].to_numpy(), ones, shape)
        del table
        found = sweep_of(DividedPairs.whole(pairs), shape, repeats)
    elif not workers:
        with pairs_in_files(folder, sides) as parts:
            loaded = time.perf_counter() - began
            found = sweep_of(parts, shape, repeats) | {"loaded": loaded}
    else:
        found = on_workers(folder, sides, shape, workers, repeats)
    return found | {"pairs": n_pairs, "users": shape[0], "items": shape[1], "kib": peak_kib()}


def on_workers(folder: Path, sides: tuple[Side, Side], shape: tuple[int, int], workers: int, repeats: int) -> Any:
    """Measure with processes of a cluster on this machine."""
    from distributed import Client, LocalCluster

    options = {"threads_per_worker": 1, "dashboard_address": ":0", "memory_limit": 0}
    with (
        LocalCluster(n_workers=workers, **options) as cluster,
        Client(cluster, direct_to_workers=True) as client,
        pairs_in_files(folder, sides, client) as parts,
    ):
        return sweep_of(parts, shape, repeats) | {"worker_kib": max(client.run(peak_kib).values())}


def in_its_own_process(folder: Path, way: str) -> dict[str, Any]:
    """Return `measure` of a new process."""
    command = [sys.executable, "-m", "docs.benchmarks.paired_symbols_scale", "--one", str(folder), way]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ)
    return json.loads(done.stdout.splitlines()[-1])


def plan(seconds_a_pair: float, items: float) -> list[list[str]]:
    """Return rows of what a sweep moves and takes on a cluster, by the kernel's measured cost."""
    k, machines = FACTORS, int(PLAN["machines"])
    rate = PLAN["gigabits"] / 8.0
    moved = {
        "items to the workers, twice": 2 * items * (2 * k + 3) * 8 * machines,
        "sums of cells of the items": items * 4 * 8 * machines,
        "statistics of the items": items * (k * (k + 5) / 2 + 2) * 8 * machines,
        "copies of the users": PLAN["users"] * (2 * k + 8) * 8,
    }
    rows = [[name, f"{size / 1e9:.2f}", f"{size / 1e9 / rate:.1f}"] for name, size in moved.items()]
    compute = seconds_a_pair * PLAN["pairs"] / (machines * PLAN["cores"])
    total = compute + sum(moved.values()) / 1e9 / rate
    return [
        *rows,
        ["kernels", "-", f"{compute:.1f}"],
        ["a sweep", f"{sum(moved.values()) / 1e9:.1f}", f"{total:.0f}"],
    ]


def tables(store: Store) -> list[str]:
    """Return the parts of the page."""
    sizes = sorted({row["pairs"] for row in store.rows.values()})
    lines = []
    for size in sizes:
        for way in WAYS:
            row = next((r for k, r in store.rows.items() if r["pairs"] == size and k.endswith(f"/{way}")), None)
            if row is None:
                continue
            cells = [f"{row['pairs']:,}", f"{row['users']:,} x {row['items']:,}", way, f"{row['seconds']:.2f}"]
            cells += [f"{1e9 * row['seconds'] / row['pairs']:.0f}", f"{row['kib'] / 2**20:.2f}"]
            cells += [f"{row['worker_kib'] / 2**20:.2f}" if "worker_kib" in row else "-", f"{row['bound'] / size:.10f}"]
            lines.append(cells)
    head = ["Pairs", "Users x items", "Where", "Seconds", "ns a pair", "GiB", "GiB, a worker", "Bound, nats a pair"]
    largest = max((r for k, r in store.rows.items() if k.endswith("files, two threads")), key=lambda row: row["pairs"])
    a_pair = 2.0 * largest["seconds"] / largest["pairs"]
    parts = [markdown_table(head, lines)]
    for items in (1e5, 1e6):
        parts += [f"With {items:,.0f} items:\n", markdown_table(["Part", "GB", "Seconds"], plan(a_pair, items))]
    memory = (PLAN["pairs"] * 24 + PLAN["users"] * 16 * (5 * FACTORS + 8)) / PLAN["machines"] / 1e9
    copies = PLAN["users"] * 8 * 6 * FACTORS / 1e9
    needed = (
        f"A machine holds {memory:.1f} GB: 24 bytes a pair, and five arrays of its users' factors, of which three are "
        f"states that an extrapolation starts from. The process that fits holds {copies:.0f} GB of copies, from which "
        f"lost parts are restored, and the result.\n"
    )
    return [
        INTRODUCTION,
        parts[0],
        overheads(store),
        PLANNED.format(ns=1e9 * a_pair),
        *parts[1:],
        needed,
        store.measured(),
    ]


def overheads(store: Store) -> str:
    """Return the sentence on what a cluster costs beside threads of one process."""
    found = []
    for size in SIZES:
        threads, workers = (
            store.rows.get(f"{size}/{way}") for way in ("files, two threads", "two workers of one thread")
        )
        if threads and workers:
            found.append(f"{100 * (workers['seconds'] / threads['seconds'] - 1):.0f}% ({size:,} pairs)")
    return f"Two workers take longer than two threads on the same files by {' and '.join(found)}.\n"


INTRODUCTION = f"""\
Simulated pairs, 50 a user and 250 an item, {FACTORS} factors, double precision; a sweep with its bound, the median of
three, or one where there are more than {IN_MEMORY:,} pairs. Files are mapped into memory; workers are processes of a
cluster on the same machine, whose process that fits updates the items with two threads. Each row is of a process of its
own; GiB is the greatest memory of that, mapped files included.
"""
PLANNED = """\
## A billion pairs

A plan for 1e9 pairs of 1e7 users on 16 machines of 16 cores, with a network of 10 Gbit/s and 20 factors: what a sweep
moves through the process that fits, and how long it takes if nothing overlaps. Kernels take {ns:.0f} ns a pair and
core, as in the largest run above.
"""


def main() -> None:
    """Measure and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--one", nargs=2)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(measure(Path(given.one[0]), given.one[1])))
        return
    store = Store("paired_symbols_scale")
    for size in given.sizes:
        ways = [way for way, (where, _, _) in WAYS.items() if size <= IN_MEMORY or way == "files, two threads"]
        if all(f"{size}/{way}" in store.rows for way in ways):
            continue
        with tempfile.TemporaryDirectory(prefix="pairs-") as folder:
            prepare(size, Path(folder))
            for way in ways:
                store.get(f"{size}/{way}", lambda at=Path(folder), how=way: in_its_own_process(at, how))
    write_page("paired_symbols_scale", [header("Paired symbols past one machine", NAME, "numba"), *tables(store)])


if __name__ == "__main__":
    main()
