"""Speed, memory and convergence of variational Bayes for paired symbols, beside implicit's ALS.

    python -m docs.benchmarks.paired_symbols_speed [--peers PYTHON] [--most 30000000]

Needs ``gowalla-counts`` and ``ml-1m`` under ``PYMC_EP_DATA``, and for the peer an interpreter that has implicit.
Measure on an idle machine. Writes docs/benchmarks/paired_symbols_speed.md.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import numba
import numpy as np
from scipy import sparse

from docs.benchmarks._common import header, markdown_table, write_page
from docs.benchmarks._pairs import pairs_of
from pymc_ep.models.paired_symbols.engine.divided import DividedPairs
from pymc_ep.models.paired_symbols.engine.state import State, first_state
from pymc_ep.models.paired_symbols.engine.values import Block, PairCounts, PairedPrior, Side
from pymc_ep.models.paired_symbols.engine.variational_bayes import VariationalBayes

NAME = "docs/benchmarks/paired_symbols_speed.py"
FACTORS = (10, 20, 50, 100)
SIZES = (10**5, 10**6, 10**7, 3 * 10**7)
LARGE = 3 * 10**6
"""Pairs of the simulated data of the first table."""
REPEATS = 3
PEER = """
import json, sys, time
import numpy as np, scipy.sparse as sp
import implicit.als
from threadpoolctl import threadpool_limits
given = np.load(sys.argv[1])
counts = sp.csr_matrix((given["data"], given["indices"], given["indptr"]), shape=tuple(given["shape"]))
out = {}
with threadpool_limits(1):
    for factors in (32, 64):
        seconds = []
        for epochs in (2, 7):
            als = implicit.als.AlternatingLeastSquares
            model = als(factors=factors, iterations=epochs, num_threads=1, random_state=0)
            began = time.perf_counter()
            model.fit(counts, show_progress=False)
            seconds.append(time.perf_counter() - began)
        out[factors] = (seconds[1] - seconds[0]) / 5
print(json.dumps(out))
"""
"""Seconds of an epoch of conjugate gradients on one core: the difference of seven epochs and two."""


class Problem:
    """A model with standard normal priors and uniform popularities."""

    def __init__(self, shape: tuple[int, int], width: int):
        def side(n: int) -> Side:
            ones = np.broadcast_to(1.0, (n, width)), np.ones(n)
            return Side(Block(np.zeros((n, width)), ones[0]), Block(np.zeros(n), ones[1]), np.ones(n))

        self._prior = PairedPrior(side(shape[0]), side(shape[1]), (), 1.0)

    def prior(self, theta: np.ndarray) -> PairedPrior:
        """Return the prior, which has no hyperparameters."""
        return self._prior


def simulated(n: int, seed: int = 0) -> sparse.csr_array:
    """Return about `n` distinct pairs, 50 a user and 250 an item, with popularities that fall off as a power."""
    rng = np.random.default_rng(seed)
    shape = n // 50, n // 250
    users = rng.integers(shape[0], size=int(1.1 * n))
    items = (shape[1] * rng.random(int(1.1 * n)) ** 2).astype(np.int64)
    key = np.unique(users * shape[1] + items)
    key = rng.permutation(key)[:n]
    return sparse.csr_array((np.ones(len(key)), np.divmod(key, shape[1])), shape=shape)


def started(pairs: sparse.csr_array, width: int, **options: object) -> tuple[VariationalBayes, Problem, State]:
    """Return engine, model and first state of a data set, with one censored pair for each observed one."""
    table = pairs.tocoo()
    counts = PairCounts.of(table.row, table.col, table.data, pairs.shape)
    problem = Problem(pairs.shape, width)
    dtype = str(options.pop("dtype", "float64"))
    engine = VariationalBayes(DividedPairs.whole(counts), **options)  # type: ignore[arg-type]
    return engine, problem, engine.init(problem, first_state(problem.prior(np.zeros(0)), np.zeros(0), 0, dtype))


def sweep_seconds(pairs: sparse.csr_array, width: int, **options: object) -> float:
    """Return the median time of a full sweep, bound included."""
    engine, problem, state = started(pairs, width, extrapolate=False, **options)
    state, seconds = engine.step(problem, state), []
    for _ in range(REPEATS):
        began = time.perf_counter()
        state = engine.step(problem, state)
        seconds.append(time.perf_counter() - began)
    return float(np.median(seconds))


def peer_epochs(python: str | None, pairs: sparse.csr_array) -> dict[str, float]:
    """Return seconds of an epoch of implicit's ALS by number of factors; empty without an interpreter."""
    if python is None:
        return {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "pairs.npz"
        parts = {"data": pairs.data, "indices": pairs.indices, "indptr": pairs.indptr, "shape": pairs.shape}
        np.savez(path, **parts)  # type: ignore[arg-type]
        done = subprocess.run([python, "-c", PEER, path], capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def by_factors(name: str, pairs: sparse.csr_array, python: str | None) -> Iterable[list[str]]:
    """Yield rows of the table by number of factors, on one core."""
    epochs, n = peer_epochs(python, pairs), pairs.nnz
    for width in FACTORS:
        seconds = sweep_seconds(pairs, width)
        beside = [f"{seconds / epochs['32']:.1f}" if epochs else "-"]
        yield [name, str(width), f"{seconds:.2f}", f"{n / seconds / 1e6:.2f}", *beside]
    for factors, seconds in epochs.items():
        yield [name, f"ALS, {factors}", f"{seconds:.2f}", f"{n / seconds / 1e6:.2f}", "-"]


def in_its_own_process(size: int) -> dict[str, float]:
    """Return seconds of a sweep at 20 factors and the memory of the process, for one size."""
    done = subprocess.run(
        [sys.executable, "-m", "docs.benchmarks.paired_symbols_speed", "--one", str(size)],
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


def one_size(size: int) -> dict[str, float]:
    """Measure one size: seconds of a sweep on one core, and the greatest memory of the process."""
    numba.set_num_threads(1)
    sweep_seconds(simulated(10**4), 20, backend="numba")
    pairs = simulated(size)
    seconds = sweep_seconds(pairs, 20)
    return {"pairs": pairs.nnz, "users": pairs.shape[0], "items": pairs.shape[1], "seconds": seconds, "kib": peak_kib()}


def peak_kib() -> int:
    """Return the greatest memory of this process, which `resource` would take over from its parent."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("VmHWM")))


def by_size(most: int) -> tuple[list[list[str]], float]:
    """Return rows of the table by number of pairs, and the exponent of seconds in pairs."""
    found = [in_its_own_process(size) for size in SIZES if size <= most]
    rows = [
        [
            f"{row['pairs']:,.0f}",
            f"{row['users']:,.0f} x {row['items']:,.0f}",
            f"{row['seconds']:.2f}",
            f"{1e9 * row['seconds'] / row['pairs']:.0f}",
            f"{row['kib'] / 2**10:,.0f}",
        ]
        for row in found
    ]
    logs = np.log([[row["pairs"], row["seconds"]] for row in found])
    return rows, float(np.polyfit(logs[:, 0], logs[:, 1], 1)[0])


def by_body(pairs: sparse.csr_array) -> Iterable[list[str]]:
    """Yield rows of the table of bodies, threads and storage, at 20 factors."""
    numba.set_num_threads(2)
    both = sweep_seconds(pairs, 20)
    numba.set_num_threads(1)
    base = sweep_seconds(pairs, 20)
    # JAX comes last: its threads stay.
    cases: dict[str, Callable[[], float]] = {
        "Numba": lambda: base,
        "Numba, two threads": lambda: both,
        "Numba, single precision": lambda: sweep_seconds(pairs, 20, dtype="float32"),
        "Numba, one factor after the other": lambda: sweep_seconds(pairs, 20, sequential=True),
        "C": lambda: sweep_seconds(pairs, 20, backend="c"),
        "NumPy": lambda: sweep_seconds(pairs, 20, backend="numpy"),
        "JAX, all cores": lambda: sweep_seconds(pairs, 20, backend="jax"),
    }
    for name, measure in cases.items():
        seconds = measure()
        yield [name, f"{seconds:.2f}", f"{base / seconds:.2f}"]


def converged(name: str, pairs: sparse.csr_array) -> Iterable[list[str]]:
    """Yield rows of the table of sweeps to convergence, with and without extrapolation."""
    for extrapolate in (False, True):
        engine, problem, state = started(pairs, 20, extrapolate=extrapolate)
        began = time.perf_counter()
        while engine.finished(state) is None and state.loop < 1000:
            state = engine.step(problem, state)
        seconds = time.perf_counter() - began
        bound = state.log_bound / engine.pairs.total
        yield [name, "yes" if extrapolate else "no", str(state.loop), f"{seconds:.1f}", f"{bound:.5f}"]


def rounding(pairs: sparse.csr_array) -> str:
    """Return the sentence on what single precision loses."""
    ends = {}
    for dtype in ("float64", "float32"):
        engine, problem, state = started(pairs, 20, dtype=dtype)
        for _ in range(30):
            state = engine.step(problem, state)
        ends[dtype] = engine.whole(state)
    one, other = ends["float64"], ends["float32"]
    users, rounded = one.users.symbols, other.users.symbols
    moved = np.abs(users.mean - rounded.mean) / np.sqrt(users.variance)
    nats = abs(one.log_bound - other.log_bound) / pairs.nnz
    return (
        f"Single precision, after 30 sweeps: means of users differ by {np.median(moved):.1e} of their standard "
        f"deviations in the median and {np.quantile(moved, 0.99):.1e} in 99 of 100, and the bound by {nats:.1e} nats a "
        f"pair."
    )


def main() -> None:
    """Measure and write the page."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--peers", default=None)
    parser.add_argument("--most", type=int, default=SIZES[-1])
    parser.add_argument("--one", type=int, default=None)
    given = parser.parse_args()
    if given.one is not None:
        print(json.dumps(one_size(given.one)))
        return
    numba.set_num_threads(1)
    gowalla, large = pairs_of("Gowalla"), simulated(LARGE)
    sweep_seconds(simulated(10**4), 20, backend="numba")
    factors = [*by_factors("Gowalla", gowalla, given.peers), *by_factors("simulated", large, given.peers)]
    sizes, exponent = by_size(given.most)
    bodies = list(by_body(gowalla))
    numba.set_num_threads(2)
    ends = [*converged("ML-1M", pairs_of("ML-1M")), *converged("Gowalla", gowalla)]
    what = (
        f"A sweep updates all users, all items, popularities and the bound; one core, double precision. Gowalla has "
        f"{gowalla.nnz:,} pairs, the simulated data {large.nnz:,}. ALS is implicit's, one epoch of its conjugate "
        f"gradients on one core in the same run; the last column is the time of a sweep over that of its epoch with 32 "
        f"factors."
    )
    growth = (
        f"By size, 20 factors, simulated; each in a process of its own. Seconds grow as pairs to the {exponent:.2f}."
    )
    write_page(
        "paired_symbols_speed",
        [
            header("Paired symbols: cost", NAME, "numba"),
            f"{what}\n",
            markdown_table(["Data", "Factors", "Seconds", "Million pairs a second", "Over ALS"], factors),
            f"{growth}\n",
            markdown_table(["Pairs", "Users x items", "Seconds", "ns a pair", "MiB"], sizes),
            "Bodies of the row updates, Gowalla, 20 factors.\n",
            markdown_table(["Body", "Seconds", "Speed-up"], bodies),
            f"{rounding(gowalla)}\n",
            "Sweeps to convergence at 20 factors, a rise of 1e-6 nats a pair, two threads.\n",
            markdown_table(["Data", "Extrapolated", "Sweeps", "Seconds", "Bound, nats a pair"], ends),
        ],
    )


if __name__ == "__main__":
    main()
