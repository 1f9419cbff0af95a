"""Sequences of events: collaborative recurrent networks beside counts, factors, Markov models and self-attention.

    python -m docs.benchmarks.sequences [--data foursquare-nyc brightkite ml-100k] [--seeds 3] [--torch PYTHON] [--jax]
                                        [--only REGEX] [--page]

PYTHON is an interpreter that has torch; without it there are no rows of PyTorch. With --jax networks are trained in
JAX, along the same path. Finished rows are kept in
docs/benchmarks/rows/sequences.json; a second call runs what is missing. Writes docs/benchmarks/sequences.md; needs
foursquare-nyc-10core, brightkite-10core and ml-100k in PYMC_EP_DATA.
"""

import argparse
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from docs.benchmarks._common import header, markdown_table, write_page
from docs.benchmarks._images import Store
from docs.benchmarks._sequence_data import TOP, terciles
from docs.benchmarks._sequence_device import tables
from docs.benchmarks._sequence_figures import draw_curves, draw_groups
from docs.benchmarks._sequence_rows import (
    AFTER_POOLED,
    CONTEXTS,
    DATA,
    DEFAULT,
    NETWORKS,
    NEW_ITEMS,
    SAMPLES,
    SIZES,
    VARIANTS,
    VARIED,
    data_of,
    grids,
    grouping,
    work,
)

NAME = "docs/benchmarks/sequences.py"
GROUPS = {"groups": 2, "lengths": 0}
WORDS = {"groups": "entropy", "lengths": "events"}
"""Keys of groups in rows, digits of their bounds, and words for these."""


def samples(store: Store, name: str) -> str:
    """Return the tables of a sampled softmax."""
    rows = []
    for n in (*SAMPLES, None):
        row = store.rows.get(f"{name}: {DEFAULT}, seed 0" if n is None else f"{name}: sampled={n}")
        if row:
            bias = "0" if n is None else f"{row['bias']:+.4f}"
            nats = [f"{row[which]:.3f}" for which in ("validation_events", "validation")]
            rows.append([f"{n or 'all'}", bias, *nats, f"{row['seconds'] / row['epochs']:.2f}"])
    head = ["items sampled", "bias, nats", "validation, events", "validation, users", "s an epoch"]
    return markdown_table(head, rows)


def rows_of(store: Store, name: str, seeds: int) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of all methods of a data set that are there, by seed.

    Without those of trainings of which no epoch is better than the start, whose weights are the first ones.
    """
    rows = {method: [store.rows.get(f"{name}: {method}")] for method in grids(data_of(name))}
    for method in (*NETWORKS, AFTER_POOLED, "C-GRU, later", "SASRec", NEW_ITEMS):
        rows[method] = [store.rows.get(f"{name}: {method}, seed {seed}") for seed in range(seeds)]
    kept = {method: [row for row in found if row and row.get("best_epoch") != 0] for method, found in rows.items()}
    return {method: found for method, found in kept.items() if found}


def bounds(name: str) -> dict[str, list[str]]:
    """Return the bounds of the groups of users, by what they are grouped by."""
    found = {}
    for what, values in grouping(data_of(name)).items():
        own = [values[terciles(values) == group] for group in range(3)]
        found[what] = [f"{one.min():,.{GROUPS[what]}f} to {one.max():,.{GROUPS[what]}f}" for one in own]
    return found


def section(name: str, rows: dict[str, list[dict[str, Any]]]) -> Iterator[str]:
    """Yield the tables of a data set."""
    counts = data_of(name).counts
    yield f"## {DATA[name]}\n"
    yield ", ".join(f"{n:,} {what}" for what, n in counts.items()) + ".\n"
    bigram = rows["2-gram"][0]["nats"] if "2-gram" in rows else np.nan
    by_nats = sorted(rows, key=lambda method: -mean(rows[method], "nats"))
    yield markdown_table(
        ["method", "seeds", "nats, test", "below 2-gram", "Recall@20", "best epoch", "processor s", "chosen"],
        (summary(method, rows[method], bigram) for method in by_nats),
    )
    yield "### Groups of users\n"
    yield (
        "Test nats of three groups of as many users, by the entropy of their training events in nats and by the number "
        "of these.\n"
    )
    yield markdown_table(
        ["method", *(f"{WORDS[what]} {bound}" for what, own in bounds(name).items() for bound in own)],
        (
            [method, *(f"{v:.3f}" for what in GROUPS for v in np.mean([r[what] for r in rows[method]], axis=0))]
            for method in by_nats
        ),
    )


def mean(rows: Iterable[dict[str, Any]], what: str) -> float:
    """Return the mean of a figure over seeds."""
    return float(np.mean([row[what] for row in rows]))


def summary(method: str, rows: list[dict[str, Any]], bigram: float) -> list[str]:
    """Return the cells of a method."""
    nats = [row["nats"] for row in rows]
    spread = f" ({np.std(nats, ddof=1):.3f})" if len(rows) > 1 else ""
    settings = rows[0].get("settings", {})
    return [
        method,
        str(len(rows)) if "best_epoch" in rows[0] else "-",
        f"{np.mean(nats):.3f}{spread}",
        f"{bigram - np.mean(nats):+.3f}",
        f"{mean(rows, 'recall'):.3f}",
        ", ".join(f"{row['best_epoch']}" for row in rows if "best_epoch" in row) or "-",
        f"{mean(rows, 'seconds'):.1f}" + (f", {rows[0]['device']}" if "device" in rows[0] else ""),
        ", ".join(f"{key} {' '.join(f'{v:.3g}' for v in np.atleast_1d(value))}" for key, value in settings.items())
        or "-",
    ]


def times(store: Store, name: str) -> str:
    """Return the table of seconds."""
    rows = []
    for hidden in SIZES:
        if row := store.rows.get(f"{name}: time, {hidden} units"):
            cells = [f"{hidden}", f"{row['here']:.2f}", f"{row['here'] * 1e6 / row['events']:.1f}"]
            single = store.rows.get(f"{name}: time, {hidden} units, single users")
            cells += [f"{single['here']:.2f}" if single else "-"]
            if "torch" in row:
                cells += [f"{row['torch']:.2f}", f"{row['here'] / row['torch']:.2f}"]
                cells += [f"{row['nats'][-1]:.4f}", f"{row['torch_nats'][-1]:.4f}"]
            else:
                cells += ["-", "-", f"{row['nats'][-1]:.4f}", "-"]
            rows.append(cells)
    head = ["units", "s an epoch", "s a million events", "one user a step, s an epoch"]
    head += ["PyTorch, s an epoch", "ratio", "nats", "PyTorch, nats"]
    return markdown_table(head, rows)


def contexts(store: Store, name: str, seeds: int) -> str:
    """Return the table of contexts."""
    rows = []
    for what, key in {"none": DEFAULT, **{what: f"context {what}" for what in CONTEXTS}}.items():
        found = [store.rows.get(f"{name}: {key}, seed {seed}") for seed in range(seeds)]
        if found := [row for row in found if row]:
            figures = [f"{mean(found, which):.3f}" for which in ("validation_events", "nats", "recall")]
            rows.append([what, f"{len(found)}", *figures])
    return markdown_table(["context", "seeds", "validation, events", "nats, test", f"Recall@{TOP}"], rows)


def choices(store: Store, name: str) -> str:
    """Return the table of other options."""
    rows = []
    keys = {"defaults": f"{DEFAULT}, seed 0"} | {change: change for change in VARIANTS}
    keys |= {"spread=False": "C-GRU, repeats, seed 0", "pooled=True": "pooled GRU, repeats, seed 0"}
    for change, key in keys.items():
        if row := store.rows.get(f"{name}: {key}"):
            nats = [f"{row[which]:.3f}" for which in ("validation_events", "validation", "training")]
            lengths = [f"{row['best_epoch']}", f"{row['epochs']}", f"{row['seconds']:.0f}"]
            rows.append([change, *nats, *lengths])
    head = ["options", "validation, events", "validation, users", "training", "best epoch", "epochs", "processor s"]
    return markdown_table(head, rows)


def page(store: Store, names: Iterable[str], seeds: int) -> Path:
    """Write the page from the rows that are there."""
    parts = [header("Sequences", NAME)]
    rows = {name: rows_of(store, name, seeds) for name in names}
    for name, own in rows.items():
        parts += section(name, own)
    titled = {DATA[name]: own for name, own in rows.items()}
    labels = {"groups": "entropy of a user's training events, nats", "lengths": "number of a user's training events"}
    parts += ["## Pictures\n", draw_groups(titled, {DATA[name]: bounds(name) for name in rows}, labels)]
    parts += ["Dashed in training, else of the validation events.\n", draw_curves(titled)]
    first = "foursquare-nyc"
    timed = (
        f"Training of C-GRU on {DATA[first]}, in single precision and on one core, without held-out events: the second "
        f"and third epoch, of 32 users a step unless said otherwise. PyTorch trains the same network from the same "
        f"weights, in the same order; nats are of a training event in the third epoch.\n"
    )
    varied = (
        "Nats a validation event, over events, which end training, and over users; and nats a training event. Options "
        "that are not named are the defaults.\n"
    )
    sampled = (
        "The default network where the softmax of a window sums over its own items and a sample of the others. The "
        "bias is that of the log probability of a training event, at the weights of the whole softmax.\n"
    )
    parts += ["## Seconds\n", timed, times(store, first), "### On an accelerator\n", *tables()]
    parts += ["## A sampled softmax\n", sampled, samples(store, first)]
    told = "The default network where it is told of each event, before its item, what is known of its time.\n"
    parts += ["## Contexts\n", told, contexts(store, first, seeds)]
    parts += ["## Options\n", varied]
    for name in VARIED:
        parts += [f"### {DATA[name]}\n", choices(store, name)]
    parts.append(store.measured())
    return write_page("sequences", parts)


def main() -> None:
    """Measure what is missing, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="*", choices=list(DATA), default=list(DATA), metavar="NAME")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--torch", metavar="PYTHON", help="interpreter that has torch")
    parser.add_argument(
        "--jax", action="store_true", help="train networks in JAX, on an accelerator where there is one"
    )
    parser.add_argument("--only", default="", metavar="REGEX", help="rows whose key has a match")
    parser.add_argument("--page", action="store_true", help="write the page alone, from the rows that are there")
    options = parser.parse_args()
    store = Store("sequences")
    if not options.page:
        if not options.torch:
            print("no --torch PYTHON: rows of SASRec and times of PyTorch are left out")
        for name in options.data:
            for key, measure in work(name, options.seeds, options.torch, jax=options.jax):
                if re.search(options.only, key):
                    store.get(key, measure)
    print(page(store, DATA, options.seeds))


if __name__ == "__main__":
    main()
