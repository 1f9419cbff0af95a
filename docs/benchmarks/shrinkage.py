"""Shrinkage of singular values against modes, by how much is missing (Seeger and Bouchard 2012), and on 1e7 cells.

    python -m docs.benchmarks.shrinkage [--only MATRIX] [--page]

Needs the folders ``melbourne-pedestrians`` and ``hetrec2011-lastfm-2k`` under ``PYMC_EP_DATA``. Rows that are done are
kept in ``docs/benchmarks/rows``. Writes docs/benchmarks/shrinkage.md.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
import warnings
from functools import cache
from itertools import pairwise, product
from typing import Any

import numpy as np
import pymc as pm

import pymc_ep as pmep
from docs.benchmarks._cells import Observed, Split, log_likelihood, model_of
from docs.benchmarks._common import header, markdown_table, write_page
from docs.benchmarks._images import Store, shortfall
from pymc_ep.datasets import load_lastfm, load_melbourne_pedestrians

NAME = "docs/benchmarks/shrinkage.py"
MATRICES = ("Melbourne, counts", "Melbourne, bits", "LastFM, counts", "LastFM, bits")
MISSING = (0.5, 0.8, 0.9)
METHODS = ("vb", "map")
RANK = 5
SCALES = {"vb": (0.3, 1.0, 3.0, 10.0, 30.0), "map": (0.03, 0.1, 0.3, 1.0, 3.0)}
"""Prior standard deviations of both matrices to choose from, by a tenth of the cells to learn from; where the first or
last is best, more beyond it while these are better by `WORTH` nats a cell."""
FURTHER, WORTH = 10**0.5, 1e-3
CHOOSING = 1e-4
"""Tolerance of fits to choose by."""
ARTISTS = 300
"""Of LastFM, those that most users listen to."""
PREDICTED = 4000
"""Held-out cells whose predictive density is computed."""
SIMULATED, CELLS, FACTORS, STEPS = 100_000, 10_000_000, 10, 5
PUBLISHED = """| data | 90% missing | 80% | 50% |
| --- | --- | --- | --- |
| bus stops | 72988 to 72874 | 63395 to 63392 | equal |
| antennas | 65695 to 65542 | 56709 to 56702 | equal |
| print jobs | 1794 to 1702 | 1392 to 1288 | equal |
"""
LIMITS = {"ratio": 1.3, "seconds": 60.0, "gigabytes": 4.0}


@cache
def matrix(name: str) -> np.ndarray:
    """Return a matrix, (I, J), NaN where nothing is known.

    Passers-by are floor(sqrt y + 1/2), listening counts floor(log2(1 + y)); a bit of an hour is whether more pass than
    in half of that sensor's hours, and one of a listener whether there was any listening.
    """
    if name.startswith("Melbourne"):
        counts = load_melbourne_pedestrians().to_numpy()
        if name.endswith("bits"):
            return np.where(np.isfinite(counts), counts > np.nanmedian(counts, axis=0), np.nan)
        return np.floor(np.sqrt(counts) + 0.5)
    table = load_lastfm()
    heard = table["artist"].value_counts().index[:ARTISTS]
    wide = table[table["artist"].isin(heard)].pivot(index="user", columns="artist", values="plays").fillna(0.0)
    counts = wide.to_numpy()
    return (counts > 0).astype(float) if name.endswith("bits") else np.floor(np.log2(1.0 + counts))


def parts_of(name: str, missing: float) -> Split:
    """Return a random split."""
    values, rng = matrix(name), np.random.default_rng(0)
    rows, cols = np.nonzero(np.isfinite(values))
    order = rng.permutation(len(rows))
    cells = Observed(rows, cols, values[rows, cols].astype(int)).at(order)
    end = round((1 - missing) * len(order))
    middle = round(0.9 * end)
    ranges = (slice(end), slice(middle), slice(middle, end), slice(end, None))
    return Split(values.shape, *(Observed(*(part[here] for part in cells)) for here in ranges))


def fitted(model: pm.Model, method: str, **options: Any) -> tuple[Any, float]:
    """Fit by shrinkage, and return seconds too."""
    with warnings.catch_warnings():
        # Rows say what did not converge.
        warnings.simplefilter("ignore", pmep.ConvergenceWarning)
        began = time.perf_counter()
        idata = pmep.fit(
            "vbmf", model=model, shrinkage=method, hyper="fixed", draws=0, progressbar=False, random_seed=0, **options
        )
    return idata, time.perf_counter() - began


def loss(idata: Any, cells: Observed, bits: bool) -> np.ndarray:
    """Return minus the log likelihood of cells at the means of both matrices, as Seeger and Bouchard (2012) score."""
    v, u = (idata["posterior_mean"][one].to_numpy() for one in "VU")
    f = np.einsum("cd,cd->c", v[cells.rows], u[cells.cols])
    return -log_likelihood(cells.y, f, bits)


def measured(name: str, missing: float, method: str) -> dict[str, Any]:
    """Choose the prior's scale, fit, and score what is missing."""
    parts, bits = parts_of(name, missing), name.endswith("bits")

    def inner(scale: float) -> float:
        idata, _ = fitted(model_of(parts.shape, parts.inner, bits, scale, RANK), method, tol=CHOOSING)
        return float(loss(idata, parts.chosen_by, bits).mean())

    scores = {scale: inner(scale) for scale in SCALES[method]}
    best = min(scores, key=lambda scale: scores[scale])
    while best in (min(scores), max(scores)):
        beyond = best / FURTHER if best == min(scores) else best * FURTHER
        scores[beyond] = inner(beyond)
        if scores[beyond] > scores[best] - WORTH:
            break
        best = beyond
    model = model_of(parts.shape, parts.learned, bits, best, RANK)
    idata, seconds = fitted(model, method)
    some = Observed(*(part[:PREDICTED] for part in parts.held_out))
    density = pmep.log_predictive(idata, model, {"y": {"rows": some.rows, "cols": some.cols, "observed": some.y}})
    fit = idata["fit"]
    return {
        "loss": float(loss(idata, parts.held_out, bits).mean()),
        "n": len(parts.held_out.y),
        "nats": -float(density["y"].mean()),
        "at_means": float(loss(idata, some, bits).mean()),
        "scale": best,
        "chosen_by": {f"{scale:.3g}": score for scale, score in sorted(scores.items())},
        "rank": int((np.abs(idata["posterior_mean"]["V"].to_numpy()).sum(axis=0) > 0).sum()),
        "seconds": seconds,
        "steps": int(fit["n_iter"]),
        "converged": bool(fit["converged"]),
        "log_evidence": float(fit["log_evidence"]),
    }


def large() -> dict[str, Any]:
    """Fit ten million simulated bits of a matrix of 1e5 x 1e5 for a few steps: seconds a step, and memory."""
    rng = np.random.default_rng(0)
    rows, cols = rng.integers(SIMULATED, size=(2, CELLS))
    v, u = rng.normal(size=(2, SIMULATED, FACTORS)) / FACTORS**0.25
    y = rng.random(CELLS) < 1 / (1 + np.exp(-np.einsum("cd,cd->c", v[rows], u[cols])))
    cells = Observed(rows, cols, y.astype(int))
    model = model_of((SIMULATED, SIMULATED), cells, True, 10.0, FACTORS)
    # The first fit of the process compiles.
    _, seconds = (fitted(model, "vb", init="zeros", max_iter=n, tol=1e-12)[1] for n in (1, STEPS))
    return {
        "step": seconds / STEPS,
        "seconds": seconds,
        "gigabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
    }


def elsewhere() -> dict[str, Any]:
    """Measure the large matrix in a process of its own, whose memory is its own too."""
    script = "import json; from docs.benchmarks.shrinkage import large; print(json.dumps(large()))"
    out = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, check=True, text=True)
    return json.loads(out.stdout.splitlines()[-1])


def page(store: Store) -> list[str]:
    """Return the parts of the page."""
    parts, ratios = [header("Shrinkage against modes", NAME, "numba"), INTRODUCTION], []
    for name in MATRICES:
        lines, gains = [], []
        for missing in MISSING:
            vb, mode = (store.rows.get(f"{name}/{missing}/{method}") for method in METHODS)
            if vb is None or mode is None:
                continue
            each = [row["seconds"] / row["steps"] for row in (vb, mode)]
            ratios.append(vb["seconds"] / mode["seconds"])
            gains.append((missing, 100 * (1 - vb["loss"] / mode["loss"])))
            lines.append(
                [
                    f"{missing:.0%}",
                    *(f"{row['loss'] * row['n']:.0f}" for row in (mode, vb)),
                    f"{gains[-1][1]:.2f}%",
                    *(f"{row['nats']:.4f}" for row in (mode, vb)),
                    *(f"{row['scale']:g}, {row['rank']}" for row in (mode, vb)),
                    *(f"{row['seconds']:.3g} ({row['steps']})" for row in (mode, vb)),
                    f"{ratios[-1]:.2f}, {each[0] / each[1]:.2f}",
                ]
            )
        if not lines:
            continue
        grown = all(b[1] >= a[1] for a, b in pairwise(gains))
        parts += [
            f"## {name}, {' x '.join(map(str, matrix(name).shape))}\n",
            markdown_table(HEAD, lines),
            f"The gain {'grows' if grown else 'does not grow'} with what is missing.\n",
        ]
    if ratios:
        median = float(np.median(ratios))
        parts += [f"- {shortfall('Time of VB over that of MAP, median', median, LIMITS['ratio'], 2)}\n"]
    parts += ["## Published\n", "Sums of losses, MAP to VB, of data that are private.\n", PUBLISHED]
    if row := store.rows.get("1e5 x 1e5"):
        memory = "Gigabytes of the process, data and PyMC included"
        parts += [
            f"## {SIMULATED:,} x {SIMULATED:,}, {CELLS:,} cells\n",
            f"Simulated bits, {FACTORS} factors; {STEPS} steps from means of zero, compilation not included.\n",
        ]
        parts += [f"- {shortfall('Seconds of a fit over its steps', row['step'], LIMITS['seconds'], 1)}\n"]
        parts += [f"- {shortfall(memory, row['gigabytes'], LIMITS['gigabytes'], 2)}\n"]
    return [*parts, store.measured()]


HEAD = [
    "missing",
    "loss, MAP",
    "loss, VB",
    "gain",
    "nats, MAP",
    "nats, VB",
    "scale and rank, MAP",
    "the same, VB",
    "seconds (steps), MAP",
    "the same, VB",
    "time ratios",
]
INTRODUCTION = f"""\
`method="vbmf"` with rank {RANK}: `shrinkage="vb"` (VB) and `shrinkage="map"` (MAP) are the same iteration with
another shrinkage. One split each.

- Loss: sum of negative log likelihoods of the cells left out, at the posterior means, as Seeger and Bouchard (2012)
  score.
- Nats: mean negative log predictive density of {PREDICTED} of these cells. It integrates over what is not known.
- Prior standard deviations are chosen by a tenth of the cells to learn from. VB chooses from {SCALES["vb"]}, MAP from
  {SCALES["map"]}. Both have more where the first or last of these is best.
- Time ratios: of fits, and of steps. VB starts from modes, which its time includes and its steps do not.
- Melbourne: people who passed 55 sensors in 16,056 hours. Counts are floor(sqrt y + 1/2). Bits say whether there were
  more than in half of that sensor's hours.
- LastFM: how often users listened to the {ARTISTS} artists with most listeners, zeros included. Counts are
  floor(log2(1 + y)). Bits say whether a user listened at all. Of LastFM as it is, half a percent of all cells, every
  factor is pruned.
"""


def main() -> None:
    """Measure and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=[*MATRICES, "1e5 x 1e5"], help="measure this one alone")
    parser.add_argument("--page", action="store_true", help="write the page from the rows that there are")
    options = parser.parse_args()
    store = Store("shrinkage")
    wanted = () if options.page else MATRICES if options.only is None else (options.only,)
    for name, missing, method in product((name for name in wanted if name in MATRICES), reversed(MISSING), METHODS):
        store.get(f"{name}/{missing}/{method}", lambda how=(name, missing, method): measured(*how))
    if not options.page and options.only in (None, "1e5 x 1e5"):
        store.get("1e5 x 1e5", elsewhere)
    print(write_page("shrinkage", page(store)))


if __name__ == "__main__":
    main()
