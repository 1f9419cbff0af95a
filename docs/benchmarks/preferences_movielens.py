"""Preferences from comparisons of films: MovieLens 100K and 1M beside the published figures, and curves of learning.

    python -m docs.benchmarks.preferences_movielens [--sizes 100k 1m] [--seeds 3] [--curves] [--page]

Takes half an hour on one core for 100K. Finished rows are kept, so that it may be
stopped. --page writes docs/benchmarks/preferences_movielens.md and its figure; needs ml-100k and ml-1m in
PYMC_EP_DATA.
"""

import argparse
from functools import partial
from typing import Any

import matplotlib.pyplot as plt
import numpy as np

from docs.benchmarks._common import PAGES, header, markdown_table, mean_se, write_page
from docs.benchmarks._films import Films, curve, fitted, loaded, npca
from docs.benchmarks._images import Store

NAME = "docs/benchmarks/preferences_movielens.py"
N_FACTORS = 30
CAP = 25
"""Most training comparisons of a user in the tables."""
CAPS = (25, 100, 400, 900)
"""The same in the figure."""
STEPS = {"npca": 30, "em": 40, "evidence": 40}
PUBLISHED = {
    ("100k", "NPCA"): "0.525",
    ("100k", "GPVU"): "0.483",
    ("1m", "NPCA"): "0.375",
    ("1m", "GPVU"): "0.368",
}
"""Bits a comparison (Khan, Ko and Seeger 2014)."""
HELD_OUT = {"held_out": 0.1}
FITS: dict[str, tuple[str, dict[str, Any]]] = {
    "mean alone, a tenth held out": ("b", HELD_OUT),
    "GPitem, a tenth held out": ("GPitem", HELD_OUT),
    "VU, a tenth held out": ("VU", HELD_OUT),
    "GPVU, a tenth held out": ("GPVU", HELD_OUT),
    "GPVU, proper priors": ("GPVU proper", {}),
    "GPVU, EM, 40 iterations": ("GPVU", {"learn": "em", "max_iter": STEPS["em"], "held_out": 0}),
}
NPCA = f"NPCA, EM, {STEPS['npca']} iterations"
LARGE = ("GPVU, a tenth held out", "GPVU, proper priors")
"""Fits of 1M. NPCA and EM take as many products of all films as passes."""
FILMS = {"new": True, "known": False}
"""Whether the films of a user's test comparisons have none in training."""


def draw(size: str, cap: int, films: str, seed: int) -> Films:
    """Return the comparisons of a draw."""
    return loaded(size, cap, unseen=FILMS[films], seed=seed)


def measure(store: Store, size: str, seeds: int) -> None:
    """Measure all rows of the tables of a size."""
    for seed in range(seeds):
        for films in FILMS:
            comparisons, prefix = draw(size, CAP, films, seed), f"{size}/{films}/{CAP}"
            for label, (kind, options) in FITS.items():
                if size == "1m" and label not in LARGE:
                    continue
                store.get(f"{prefix}/{label}/{seed}", partial(fitted, comparisons, kind, N_FACTORS, **options))
            if size != "1m":
                store.get(f"{prefix}/{NPCA}/{seed}", partial(pca_row, comparisons))


def pca_row(films: Films) -> dict[str, Any]:
    """Return the row of NPCA at its last pass."""
    found = npca(films, STEPS["npca"])
    return found | {"bits": found["bits"][-1], "seconds": found["seconds"][-1], "evaluations": len(found["bits"])}


def measure_curves(store: Store) -> None:
    """Measure the curves of the figure."""
    for cap in CAPS:
        films = draw("100k", cap, "new", 0)
        for learn in ("em", "evidence"):
            store.get(f"curve/{cap}/{learn}", partial(curve, films, N_FACTORS, learn, STEPS[learn]))
        store.get(f"100k/new/{cap}/GPVU, a tenth held out/0", partial(fitted, films, "GPVU", N_FACTORS, **HELD_OUT))


def table(store: Store, size: str, films: str) -> str:
    """Return the table of a size, and of new or known films; none without rows."""
    rows = []
    for label in (*FITS, NPCA):
        prefix = f"{size}/{films}/{CAP}/{label}/"
        found = [row for key, row in sorted(store.rows.items()) if key.startswith(prefix)]
        if not found:
            continue
        bits = [row["bits"] for row in found]
        error = np.std(bits, ddof=1) / np.sqrt(len(bits)) if len(bits) > 1 else found[0].get("error", np.nan)
        rows.append(
            [
                label,
                mean_se(float(np.mean(bits)), float(error), 3),
                PUBLISHED.get((size, label.split(",")[0]), "-"),
                f"{np.median([row['seconds'] for row in found]):.0f}",
                f"{np.median([row['evaluations'] for row in found]):.0f}",
                f"{np.mean([row['spread'] for row in found]):.2f}" if "spread" in found[0] else "-",
                str(len(found)),
            ]
        )
    head = ["Prior and learning", "Bits (standard error)", "Published", "Seconds", "Passes", "Spread", "Draws"]
    return markdown_table(head, rows) if rows else ""


def figure(store: Store) -> None:
    """Draw the curves: bits against passes over the data and against seconds."""
    fig, axes = plt.subplots(1, 2, figsize=(9, 4.0), sharey=True, layout="constrained")
    for cap, colour in zip(CAPS, ("C0", "C1", "C2", "C3")):
        for learn, style in (("em", "--"), ("evidence", "-")):
            row = store.rows[f"curve/{cap}/{learn}"]
            for ax, x in zip(axes, (np.arange(1, len(row["bits"]) + 1), row["seconds"])):
                label = f"{cap} a user, {'EM' if learn == 'em' else 'L-BFGS'}"
                ax.plot(x, row["bits"], style, color=colour, label=label)
        if early := store.rows.get(f"100k/new/{cap}/GPVU, a tenth held out/0"):
            for ax, x in zip(axes, (early["evaluations"], early["seconds"])):
                ax.plot(x, early["bits"], "o", color=colour)
    axes[0].set(xlabel="passes over the data", ylabel="bits a held-out comparison", ylim=(0.5, 1.1))
    axes[1].set(xlabel="seconds", xscale="log")
    fig.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", fontsize=8, ncols=4)
    fig.savefig(PAGES / "preferences_movielens.png", dpi=110)


def main() -> None:
    """Measure what is asked for; write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="*", default=[], choices=["100k", "1m"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--curves", action="store_true")
    parser.add_argument("--page", action="store_true")
    options = parser.parse_args()
    store = Store("preferences_movielens")
    for size in options.sizes:
        measure(store, size, options.seeds)
    if options.curves:
        measure_curves(store)
    if options.page:
        figure(store)
        write_page("preferences_movielens", page(store))


def page(store: Store) -> list[str]:
    """Return the parts of the page."""
    parts = [header("Preferences from comparisons of films", NAME)]
    for size in ("100k", "1m"):
        for films, about in (
            ("new", "The films of a user's test comparisons have no comparison of that user in training."),
            ("known", "Test comparisons are any; most of their films have won or lost in training too."),
        ):
            if rows := table(store, size, films):
                parts += [f"## MovieLens {size.upper()}, {films} films\n", f"{about}\n", rows]
    rows = []
    for cap in CAPS:
        for learn, name in (("em", "EM"), ("evidence", "L-BFGS to the end")):
            bits = store.rows[f"curve/{cap}/{learn}"]["bits"]
            lowest = int(np.argmin(bits))
            rows.append([str(cap), name, f"{bits[lowest]:.3f}", str(lowest + 1), f"{bits[-1]:.3f}", str(len(bits))])
    head = ["Most a user", "Learned", "Fewest bits", "At pass", "Bits at last", "Passes"]
    about = (
        "GPVU, new films, the first draw. In the picture a dot is the fit with a tenth held out, which ends early.\n"
    )
    curves = "![Bits against passes over the data and against seconds](preferences_movielens.png)\n"
    return [*parts, "## Learning\n", about, markdown_table(head, rows), curves, store.measured()]


if __name__ == "__main__":
    main()
