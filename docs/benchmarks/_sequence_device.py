"""Networks of the benchmark of sequences on an accelerator: an epoch in JAX and in PyTorch, and a training to its end.

    python -m docs.benchmarks._sequence_device DATA.npz --write foursquare-nyc
    python -m docs.benchmarks._sequence_device DATA.npz [--out FOLDER] [--seconds 420] [--hidden N ...]

The first call keeps a data set in a file, which goes to the machine that has the accelerator; the second prints a line
of JSON for each row at once, and adds it to FOLDER/rows.jsonl. Rows that no longer fit into the seconds are left out.
The page has the tables of docs/benchmarks/rows/sequences_device.jsonl.
"""

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np

from docs.benchmarks._common import PAGES, markdown_table
from docs.benchmarks._sequence_data import Task, scored, split, user_mean
from docs.benchmarks._sequence_networks import in_torch, predictor_of, trained
from docs.benchmarks._sequence_rows import PAPER, TIMED
from pymc_ep.models.sequences.engine.training import Training
from pymc_ep.models.sequences.kernel import Sequences, longest_first, window_of

JAX: dict[str, Any] = {"compile_kwargs": {"mode": "JAX"}}
OWN, POOLED = (16, 32, 64, 128), (32, 128, 256, 768)
"""Units of networks whose matrices are each user's, and of those with one set."""
FEW = 32
"""Users of a group by default; an accelerator likes all at once."""
BLOCKS = (2**19, 2**22, 2**28)
"""Other bounds on the logits of a block than the one that is set."""
FULL: dict[str, Any] = {"users_per_batch": 128, "learning_rate": 0.003, "epochs": 60, "patience": 8}
"""Of the training to its end. With 64 units the held-out loss is 5.3 nats after 15 epochs at a rate of 0.01, and 7.2 at
0.003; with 768 a step of 0.003 is as long beside first weights, N(0, 1 / D), as one of 0.01 there."""
FULL_SECONDS, SCORING_SECONDS, ROW_SECONDS = 170, 40, 25
"""What the training to its end may take, of which scoring on the host; and what another row is thought to take."""


class Network(NamedTuple):
    """Units, whether users share matrices, and users of a group."""

    hidden: int
    pooled: bool
    users: int

    def row(self) -> dict[str, Any]:
        """Return what a row says of the network."""
        return {"network": "pooled GRU" if self.pooled else "C-GRU", "hidden": self.hidden, "users": self.users}


Measure = Callable[[Task, Network], dict[str, Any]]


def write(path: Path, name: str) -> None:
    """Keep the task of the test events of a data set."""
    task = split(name).test
    parts = {"before": task.before, "after": task.after}
    arrays = {f"{key}_lengths": list(map(len, part)) for key, part in parts.items()}
    arrays |= {key: np.concatenate(part).astype(np.int32) for key, part in parts.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path, n_items=task.n_items, **arrays)


def read(path: Path) -> Task:
    """Return the task that `write` has kept."""
    with np.load(path) as kept:
        before, after = (
            np.split(kept[key].astype(np.int64), np.cumsum(kept[f"{key}_lengths"])[:-1]) for key in ("before", "after")
        )
        return Task(before, after, int(kept["n_items"]))


@contextmanager
def epoch_ends() -> Iterator[list[float]]:
    """Note when epochs end, weights being on the host by then."""
    ends: list[float] = []

    def noted(self: Training, *args: Any, own: Callable[..., Any] = Training._epoch_over) -> Any:
        after = own(self, *args)
        ends.append(time.perf_counter())
        return after

    with patch.object(Training, "_epoch_over", noted):
        yield ends


def in_jax(task: Task, network: Network, *, precision: str | None = None, block: int | None = None) -> dict[str, Any]:
    """Return wall seconds of the first epoch, with compilation, and of later ones, in a precision of products."""
    import jax

    from pymc_ep.models.sequences.kernel import jax as kernel

    jax.config.update("jax_default_matmul_precision", precision)
    architecture = PAPER | {"hidden": network.hidden, "pooled": network.pooled}
    options = TIMED | JAX | {"held_out": 0, "seed": 0, "users_per_batch": network.users}
    with patch.object(kernel, "DEVICE_BLOCK", block or kernel.DEVICE_BLOCK), epoch_ends() as ends:
        jax.clear_caches()
        began = time.perf_counter()
        found = trained(task, architecture, options)
    if len(ends) < 2:
        raise TimeoutError("no second epoch")
    return {
        "in": "JAX",
        "precision": precision or "default",
        "block": block or kernel.DEVICE_BLOCK,
        "seconds": float(np.diff(ends).mean()),
        "first": ends[0] - began,
        "nats": found.idata["fit"]["training_nats"].values.tolist(),
        "peak GiB": peak(),
    }


def peak() -> float | None:
    """Return the most memory of the device that JAX has held so far, in GiB; None where it does not tell."""
    import jax

    known = jax.devices()[0].memory_stats() or {}
    return known["peak_bytes_in_use"] / 2**30 if "peak_bytes_in_use" in known else None


def in_torch_too(task: Task, network: Network, device: str, epochs: int) -> dict[str, Any]:
    """Return wall seconds of an epoch in PyTorch, the first one left out, in full single precision."""
    settings = {"kind": "GRU", "hidden": network.hidden, "pooled": network.pooled, "users_per_batch": network.users}
    tail = np.zeros(len(task.before), dtype=np.int64)
    found = in_torch(sys.executable, task, tail, TIMED | settings | {"device": device, "epochs": epochs}, 0)
    seconds = float(found["seconds"][1:].mean())
    return {"in": "PyTorch", "precision": "float32", "seconds": seconds, "nats": found["nats"].tolist()}


def host(task: Task, network: Network) -> dict[str, Any]:
    """Return the seconds that the host takes to lay out the windows of an epoch."""
    from pymc_ep.models.sequences.kernel.jax import grid_of

    lengths = np.array(list(map(len, task.before)))
    sequences, windows = Sequences.of_parts(task.before, task.n_items), 0
    order, began = np.random.default_rng(0).permutation(len(lengths)), time.perf_counter()
    for at in range(0, len(order), network.users):
        users = longest_first(lengths, order[at : at + network.users])
        for begin in range(0, int(lengths[users[0]]), TIMED["batch"]):
            window, _ = window_of(sequences, lengths, users, begin, TIMED["batch"])
            np.bincount(window.items, minlength=task.n_items)
            grid_of(window, TIMED["batch"], len(users), task.n_items, None, np.dtype(np.float32))
            windows += 1
    return {"in": "layout of windows", "windows": windows, "seconds": time.perf_counter() - began}


def full(task: Task, network: Network, *, repeats: bool) -> dict[str, Any]:
    """Return the row of a network that is trained until held-out events get no likelier, or until its time is over."""
    import jax

    jax.config.update("jax_default_matmul_precision", None)
    architecture = {"hidden": network.hidden, "pooled": network.pooled, "repeats": repeats}
    with epoch_ends() as ends, alarm(FULL_SECONDS - SCORING_SECONDS):
        began = time.perf_counter()
        found = trained(task, architecture, FULL | JAX | {"seed": 0})
    fit, users = found.idata["fit"], task.users
    scores = scored(task, predictor_of(task, found))
    return {
        "in": "JAX, to the end",
        "repeats": repeats,
        "seconds": float(np.diff(ends).mean()),
        "first": ends[0] - began,
        "validation": fit["objective"].values.tolist(),
        "training": fit["training_nats"].values.tolist(),
        "best epoch": int(fit["best_epoch"]),
        "nats": -user_mean(users, scores.log_p),
        "recall": user_mean(users, scores.recall),
    }


@contextmanager
def alarm(seconds: float) -> Iterator[None]:
    """Interrupt what runs once seconds are over, as a key would."""

    def ring(*_: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def plan(task: Task, own: Sequence[int], pooled: Sequence[int]) -> Iterator[tuple[Network, Measure, int]]:
    """Yield networks, what is measured of them and what it may take, what matters most first."""
    import jax

    every, device = len(task.before), "cpu" if jax.default_backend() == "cpu" else "cuda"
    peers = [Network(D, False, every) for D in own[1:3]] + [Network(pooled[-1], True, every)]
    few = Network(peers[0].hidden, False, FEW)
    first = [peers[0], peers[2], few, Network(pooled[-1], True, FEW)]
    rows: list[tuple[Network, Measure]] = [(one, in_jax) for one in first]
    rows += [(one, partial(in_torch_too, device=device, epochs=3)) for one in peers]
    largest = Network(pooled[-1], True, FULL["users_per_batch"])
    whole = [partial(full, repeats=repeats) for repeats in (False, True)]
    rows += [(largest, one) for one in whole]
    for users in (every, FEW):
        networks = [Network(D, False, users) for D in own] + [Network(D, True, users) for D in pooled]
        rows += [(one, in_jax) for one in networks if one not in first]
        rows.append((few._replace(users=users), host))
    rows += [(one, partial(in_jax, precision="float32")) for one in peers]
    rows.append((few, partial(in_torch_too, device=device, epochs=2)))
    rows += [(one, partial(in_jax, block=block)) for one in peers[::2] for block in BLOCKS]
    yield from ((one, function, FULL_SECONDS if function in whole else ROW_SECONDS) for one, function in rows)


def measure(task: Task, out: Path, seconds: float, own: Sequence[int], pooled: Sequence[int]) -> None:
    """Print and keep the rows that fit into the seconds."""
    import jax

    end, device = time.perf_counter() + seconds, str(jax.devices()[0].device_kind)
    out.mkdir(parents=True, exist_ok=True)
    for network, function, needed in plan(task, own, pooled):
        began = time.perf_counter()
        row = {"device": device} | network.row() | attempt(partial(function, task, network), end - began, needed)
        row["took"] = time.perf_counter() - began
        print(json.dumps(row), flush=True)
        with (out / "rows.jsonl").open("a") as file:
            file.write(json.dumps(row) + "\n")


def attempt(function: Callable[[], dict[str, Any]], left: float, needed: float) -> dict[str, Any]:
    """Return a row, or why there is none: a row that fails costs no other."""
    if left < needed:
        return {"left out": f"{left:.0f} s left"}
    try:
        with alarm(left):
            return function()
    except (Exception, KeyboardInterrupt) as error:
        return {"failed": repr(error)[:500]}


def tables() -> Iterator[str]:
    """Yield what the page says of the rows that are kept."""
    path = PAGES / "rows" / "sequences_device.jsonl"
    rows = [row for row in map(json.loads, path.read_text().splitlines()) if "seconds" in row]
    known: dict[tuple[str, int, int], dict[str, float]] = {}
    for row in rows:
        column = f"{row['in']}, {row['precision']}" if "precision" in row else row["in"]
        known.setdefault((row["network"], row["hidden"], row["users"]), {}).setdefault(column, row["seconds"])
    columns = ["JAX, default", "JAX, float32", "PyTorch, float32"]
    shown = {key: found for key, found in known.items() if columns[0] in found}
    yield (
        f"Wall seconds of an epoch on one {rows[0]['device']}, the first one and compilation (4 to 34 s) left out. The "
        f"default precision of JAX's products there is TF32.\n"
    )
    yield markdown_table(
        ["network", "units", "users a step", *columns],
        (
            [name, f"{hidden}", f"{users:,}", *(f"{found[c]:.2f}" if c in found else "-" for c in columns)]
            for (name, hidden, users), found in sorted(shown.items())
        ),
    )
    for row in rows:
        if "recall" in row:
            yield (
                f"The {row['network']} of {row['hidden']} units {'with' if row['repeats'] else 'without'} repeats, "
                f"trained to its end in {row['took']:.0f} s: {row['nats']:.3f} nats of a test event, Recall@20 "
                f"{row['recall']:.3f}, best epoch {row['best epoch']}.\n"
            )


def main() -> None:
    """Keep a data set, or measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--write", metavar="NAME")
    parser.add_argument("--out", type=Path, default=Path())
    parser.add_argument("--seconds", type=float, default=420.0)
    parser.add_argument("--own", type=int, nargs=4, default=OWN, metavar="N", help="units of C-GRU")
    parser.add_argument("--pooled", type=int, nargs=4, default=POOLED, metavar="N", help="units of pooled GRU")
    options = parser.parse_args()
    if options.write:
        write(options.data, options.write)
        return
    # PyTorch shares the device's memory with JAX.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    measure(read(options.data), options.out, options.seconds, options.own, options.pooled)


if __name__ == "__main__":
    main()
