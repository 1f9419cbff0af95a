"""Hidden-Markov-tree and factorial wavelet models: the denoising and inpainting tables of Ko and Seeger (2012).

    python -m docs.benchmarks.wavelet_tables [--quick] [--images 37] [--tasks denoising inpainting] [--models ...]
                                             [--columns ...]

Four models, variational posterior and posterior mode, at first and at learned hyperparameters, with what scikit-image
makes of the same pictures. Needs the folder ``images256`` under ``PYMC_EP_DATA``. Rows that are done are kept in
``docs/benchmarks/rows``. Writes docs/benchmarks/wavelet_tables.md.
"""

import argparse
import itertools
import time
from collections.abc import Iterable
from typing import Any

import numpy as np

from docs.benchmarks._common import header, markdown_table, mean_se, write_page
from docs.benchmarks._images import NORMAL_95, Store, shortfall
from docs.benchmarks._wavelets import (
    HIGH,
    LEVELS,
    LOW,
    MODELS,
    NU,
    PEERS,
    TASKS,
    WAVELET,
    WEIGHTS,
    Fitter,
    Problem,
    first_values,
    pictures,
    problem,
    quality,
    some_pictures,
)

NAME = "docs/benchmarks/wavelet_tables.py"
FIRST, LEARNED, FIRST_MODE, LEARNED_MODE = COLUMNS = ("VB init", "VB learned", "MAP init", "MAP learned")
LAPLACE, STUDENT, LAPLACE_TREE, STUDENT_TREE = MODELS
OUTER, SAMPLES = 15, 30
GAIN, FAR, COVERAGE = 0.3, 2.0, (0.85, 0.95)
"""Aims: dB of the best model over Laplace, factorial; dB of VB over MAP when inpainting; between what coverage is."""
SECONDS = {"denoising": 10.0, "inpainting": 90.0}
PUBLISHED = {
    "denoising": {
        LAPLACE: ("24.5 (0.7)", "24.7 (0.9)", "24.5 (1.4)", "23.2 (1.6)"),
        STUDENT: ("20.8 (0.0)", "23.3 (0.5)", "24.9 (1.1)", "24.7 (1.6)"),
        LAPLACE_TREE: ("24.3 (0.7)", "25.0 (1.0)", "25.1 (1.3)", "25.0 (1.6)"),
        STUDENT_TREE: ("21.1 (0.1)", "25.2 (1.3)", "24.3 (1.0)", "24.3 (1.6)"),
    },
    "inpainting": {
        LAPLACE: ("23.0", "23.3 (2.1)", "15.1", "20.0 (2.3)"),
        STUDENT: ("21.0", "20.1 (1.7)", "20.6", "20.0 (2.2)"),
        LAPLACE_TREE: ("22.2", "23.5 (2.2)", "19.8", "19.7 (2.6)"),
        STUDENT_TREE: ("21.2", "23.6 (2.2)", "19.0", "19.8 (2.5)"),
    },
}
"""Ko and Seeger (2012), 77 other pictures: PSNR in dB, mean (sd), as far as given."""

OPTIONS: dict[str, dict[str, Any]] = {
    FIRST: {"method": "dsb", "hyper": "fixed", "outer": OUTER, "n_samples": SAMPLES},
    LEARNED: {"method": "dsb", "hyper": "optimize", "outer": OUTER, "n_samples": SAMPLES},
    FIRST_MODE: {"method": "map", "hyper": "fixed"},
    LEARNED_MODE: {"method": "map", "hyper": "fixed"},
}

Hyper = dict[str, Any]
Rows = dict[str, dict[str, Any]]


# Fits


FITTER = Fitter()


def measure(
    task: str, model: str, given: Problem, column: str, learned: Hyper | None, levels: int = LEVELS
) -> dict[str, Any]:
    """Fit one model to one picture; `learned` are the values at which the mode is then sought."""
    start = learned if column == LEARNED_MODE else first_values(model, given.picture, levels)
    idata, seconds = FITTER.fit(task, model, given, levels, start, OPTIONS[column])
    fit, what = idata["fit"], "mode" if column in (FIRST_MODE, LEARNED_MODE) else "mean"
    estimate = np.asarray(idata[f"posterior_{what}"]["u"])
    out = quality(estimate, given.truth) | {
        "seconds": seconds,
        "run_seconds": float(fit.attrs["run_time"]),
        "outer": int(fit["n_iter"]),
        "converged": bool(fit["converged"]),
        "status": str(fit.attrs["status"]),
    }
    if column in (FIRST, LEARNED):
        inside = np.abs(given.truth - estimate) <= NORMAL_95 * np.asarray(idata["posterior_sd"]["u"])
        out["log_evidence"] = float(fit["log_evidence"]) if "log_evidence" in fit else None
        out["coverage"] = float(inside.mean())
        out["coverage_seen"] = float(inside[given.seen].mean())
        out["coverage_missing"] = None if given.seen.all() else float(inside[~given.seen].mean())
    if column == LEARNED:
        prefix = "hyper_mode_"
        modes = {str(name): fit[name] for name in fit.data_vars if str(name).startswith(prefix)}
        out["hyper"] = {name.removeprefix(prefix): np.asarray(value).tolist() for name, value in modes.items()}
    return out


def measure_peer(task: str, peer: str, given: Problem) -> dict[str, Any]:
    """Return what a peer reaches, and its seconds."""
    began = time.perf_counter()
    estimate = PEERS[task][peer](given)
    seconds = time.perf_counter() - began
    return quality(estimate, given.truth) | {"seconds": seconds}


def measure_all(store: Store, task: str, name: str, models: Iterable[str], columns: Iterable[str]) -> None:
    """Measure for one picture what is not there yet."""
    given = problem(task, name)
    for peer in PEERS[task]:
        store.get(f"{task}/{name}/{peer}", lambda p=peer: measure_peer(task, p, given))
    for model, column in itertools.product(models, columns):
        learned = store.rows.get(f"{task}/{name}/{model}/{LEARNED}", {}).get("hyper")
        if column != LEARNED_MODE or learned:
            how = (task, model, given, column, learned)
            store.get(f"{task}/{name}/{model}/{column}", lambda how=how: measure(*how))


# The page


def values(rows: Rows, task: str, who: str, what: str = "psnr") -> dict[str, float]:
    """Return a number by picture, where it is known: of a peer, or of "<model>/<column>"."""
    keys = (key.split("/", 2) for key in rows)
    found = {name: rows[f"{task}/{name}/{who}"].get(what) for own, name, last in keys if (own, last) == (task, who)}
    return {name: value for name, value in found.items() if value is not None}


def paired(one: dict[str, float], other: dict[str, float]) -> np.ndarray:
    """Return differences on the pictures that both have."""
    return np.array([one[name] - other[name] for name in sorted(one.keys() & other.keys())])


def mean_and_error(differences: np.ndarray) -> str:
    """Format a mean with its standard error; of one picture there is none."""
    if len(differences) < 2:
        return f"{differences[0]:+.2f}" if len(differences) else "-"
    return f"{differences.mean():+.2f} ({differences.std(ddof=1) / np.sqrt(len(differences)):.2f})"


def spread(found: dict[str, float], digits: int = 2) -> str:
    """Format a mean and standard deviation over pictures."""
    known = np.array(list(found.values()))
    if len(known) < 2:
        return f"{known[0]:.{digits}f}" if len(known) else "-"
    return mean_se(float(known.mean()), known.std(ddof=1), digits)


def similarity_table(rows: Rows, task: str) -> str:
    """Return structural similarities."""
    lines = [[m, *(spread(values(rows, task, f"{m}/{c}", "ssim"), 3) for c in COLUMNS)] for m in MODELS]
    return markdown_table(["SSIM", *COLUMNS], lines)


def psnr_table(rows: Rows, task: str) -> str:
    """Return ours above the published ones."""
    lines = []
    for model in MODELS:
        ours = [values(rows, task, f"{model}/{column}") for column in COLUMNS]
        lines += [[model, *map(spread, ours)], ["as published", *PUBLISHED[task][model]]]
    return markdown_table(["PSNR, dB", *COLUMNS], lines)


def differences_table(rows: Rows, task: str) -> str:
    """Return what learning, averaging and another model change, paired by picture; and bounds where they are known."""
    pairs = {
        f"{LEARNED} - {FIRST}": lambda m: (f"{m}/{LEARNED}", f"{m}/{FIRST}"),
        f"{LEARNED} - {LEARNED_MODE}": lambda m: (f"{m}/{LEARNED}", f"{m}/{LEARNED_MODE}"),
        f"{LEARNED_MODE} - {FIRST_MODE}": lambda m: (f"{m}/{LEARNED_MODE}", f"{m}/{FIRST_MODE}"),
        f"{LEARNED} - that of {LAPLACE}": lambda m: (f"{m}/{LEARNED}", f"{LAPLACE}/{LEARNED}"),
    }

    def cell(who: tuple[str, str], what: str = "psnr") -> str:
        return mean_and_error(paired(*(values(rows, task, one, what) for one in who)))

    lines = [[m, *(cell(pair(m)) for pair in pairs.values())] for m in MODELS]
    head = ["paired differences, dB", *pairs]
    if values(rows, task, f"{LAPLACE}/{LEARNED}", "log_evidence"):
        head.append("the same of the bound on log evidence, nats")
        for model, line in zip(MODELS, lines):
            line.append(cell((f"{model}/{LEARNED}", f"{LAPLACE}/{LEARNED}"), "log_evidence"))
    return markdown_table(head, lines)


def peers_table(rows: Rows, task: str) -> str:
    """Return what the peers reach, and what the best model has over each."""
    best = values(rows, task, f"{STUDENT_TREE}/{LEARNED}")
    lines = []
    for peer in PEERS[task]:
        found, seconds = values(rows, task, peer), values(rows, task, peer, "seconds")
        cells = [spread(found), spread(values(rows, task, peer, "ssim"), 3), mean_and_error(paired(best, found))]
        lines.append([peer, *cells, f"{np.median(list(seconds.values())):.2g}" if seconds else "-"])
    head = ["", "PSNR, dB", "SSIM", f"{STUDENT_TREE}, {LEARNED} - this, dB", "seconds"]
    return markdown_table(head, lines)


def coverage_table(rows: Rows, task: str) -> str:
    """Return how many pixels 90% intervals contain, apart for those seen and those missing."""
    whats = {"coverage": "all pixels"}
    if TASKS[task].kept < 1:
        whats |= {"coverage_seen": "seen", "coverage_missing": "missing"}
    cases = list(itertools.product(whats, (FIRST, LEARNED)))
    lines = [[m, *(spread(values(rows, task, f"{m}/{c}", what), 3) for what, c in cases)] for m in MODELS]
    return markdown_table(["coverage", *(f"{whats[what]}, {column}" for what, column in cases)], lines)


def effort_table(rows: Rows, task: str) -> str:
    """Return seconds, outer loops, and how many fits settled."""
    lines = []
    for model in MODELS:
        cells = []
        for column in COLUMNS:
            whats = [values(rows, task, f"{model}/{column}", what) for what in ("seconds", "outer", "converged")]
            seconds, outer, settled = (list(what.values()) for what in whats)
            done = sum(settled), len(settled)
            cells.append(
                "{:.3g}; {:.0f}; {} of {}".format(*map(np.median, (seconds, outer)), *done) if seconds else "-"
            )
        lines.append([model, *cells])
    return markdown_table(["seconds; outer loops; settled", *COLUMNS], lines)


def hyper_table(rows: Rows, task: str) -> str:
    """Return medians of the learned hyperparameters over pictures, finest level first, and how often states swapped."""
    lines = []
    for model, scales in MODELS.items():
        found = list(values(rows, task, f"{model}/{LEARNED}", "hyper").values())
        if not found:
            continue
        for name in found[0]:
            median = np.median([one[name] for one in found], axis=0)
            lines.append([model if name == next(iter(scales)) else "", name, listed(median)])
        if "high" in scales:
            swapped = [np.greater(one["low"], one["high"]).sum() for one in found]
            lines.append(["", "levels with low above high", f"{sum(swapped)} of {LEVELS * len(found)}"])
    return markdown_table(["", "", "median"], lines)


def listed(median: np.ndarray) -> str:
    """Format values by level; of probabilities those below a low and a high parent."""
    rows = np.atleast_2d(np.asarray(median).T)
    return " / ".join(", ".join(f"{value:.3g}" for value in row) for row in rows)


def at_least(what: str, differences: np.ndarray, target: float) -> str:
    """Say whether a mean difference in dB is as large as it should be, and by how much it falls short."""
    if not len(differences):
        return ""
    mean = differences.mean()
    verdict = "met" if mean >= target else f"missed by {target - mean:.2f} dB"
    return f"- {what}: {mean_and_error(differences)} dB against at least {target:g} dB, {verdict}.\n"


def checks(rows: Rows, task: str) -> str:
    """Say of each aim whether it is met."""

    def over(one: str, other: str) -> np.ndarray:
        return paired(values(rows, task, one), values(rows, task, other))

    def learned(one: str, other: str, target: float = 0.0) -> str:
        return at_least(f"{one} over {other}, {LEARNED}", over(f"{one}/{LEARNED}", f"{other}/{LEARNED}"), target)

    out = [
        learned(LAPLACE_TREE, LAPLACE),
        *(learned(STUDENT_TREE, other) for other in (STUDENT, LAPLACE_TREE)),
        learned(STUDENT_TREE, LAPLACE, GAIN),
    ]
    for model in (LAPLACE, LAPLACE_TREE, STUDENT_TREE):
        gain = over(f"{model}/{LEARNED}", f"{model}/{FIRST}")
        out.append(at_least(f"{model}, {LEARNED} over {FIRST}", gain, 0.0))
    if task == "inpainting":
        for model in (LAPLACE, LAPLACE_TREE, STUDENT_TREE):
            gain = over(f"{model}/{LEARNED}", f"{model}/{LEARNED_MODE}")
            out.append(at_least(f"{model}, {LEARNED} over {LEARNED_MODE}", gain, FAR))
    return "".join([*out, covered(rows, task), in_time(rows, task)])


def covered(rows: Rows, task: str) -> str:
    """Say whether coverage is near its name, of pixels seen and of pixels missing."""
    low, high = COVERAGE
    out = ""
    for what in ("seen",) if TASKS[task].kept == 1 else ("seen", "missing"):
        found = values(rows, task, f"{STUDENT_TREE}/{LEARNED}", f"coverage_{what}")
        if found:
            mean = float(np.mean(list(found.values())))
            miss = max(low - mean, mean - high)
            verdict = "met" if miss <= 0 else f"missed by {miss:.3f}"
            out += f"- {STUDENT_TREE}, {LEARNED}: coverage of pixels {what}, {mean:.3f}; {low} to {high}: {verdict}.\n"
    return out


def in_time(rows: Rows, task: str) -> str:
    """Say whether the fits that learn are as fast as they should be."""
    out = ""
    for model in (LAPLACE_TREE, STUDENT_TREE):
        seconds = values(rows, task, f"{model}/{LEARNED}", "seconds")
        if seconds:
            median = float(np.median(list(seconds.values())))
            out += f"- {shortfall(f'{model}, {LEARNED}: time, median', median, SECONDS[task], 1, ' s')}\n"
    return out


def task_part(rows: Rows, task: str) -> list[str]:
    """Return what the page says of a task."""
    if not any(key.startswith(f"{task}/") for key in rows):
        return []
    counts = {column: [len(values(rows, task, f"{model}/{column}")) for model in MODELS] for column in COLUMNS}
    told = "; ".join(f"{column}: {', '.join(map(str, count))}" for column, count in counts.items())
    return [
        HEADINGS[task],
        f"Pictures, of {len(pictures())}, in the order of the models below: {told}.\n",
        psnr_table(rows, task),
        differences_table(rows, task),
        checks(rows, task),
        peers_table(rows, task),
        similarity_table(rows, task),
        coverage_table(rows, task),
        "Learned hyperparameters, medians over pictures, finest level first:\n",
        hyper_table(rows, task),
        effort_table(rows, task),
    ]


def page(store: Store) -> list[str]:
    """Return the parts of the page."""
    rows = store.rows
    parts = [header("Wavelets on hidden Markov trees", NAME, "scikit-image", "PyWavelets"), INTRODUCTION]
    return [*parts, *(part for task in TASKS for part in task_part(rows, task)), store.measured()]


INTRODUCTION = f"""\
Pictures are 256 x 256 pixels, from 0 to 1, drawn at random from 37 where not all were measured. Ko and Seeger's 77
are not public: orders compare, levels of PSNR do not. Their figures are below ours.

- Cells: means (standard deviations) over pictures. Differences: paired by picture, means (standard errors).
- Noise: `default_rng(i).normal(0, sd)` for picture i in the order of names. Its variance is known.
- Models: {WAVELET} coefficients on {LEVELS} levels, the scaling coefficients flat. Factorial ones are `SparseField`
  with a scale for each level. Trees are `WaveletTree` with a scale for each state and level. Student-t has nu =
  {NU:g}.
- Priors: half-normal of scale one for scales; for probabilities those that `WaveletTree` gives them.
- VB init: `method="dsb"` at first values, `hyper="fixed"`.
- VB learned: `hyper="optimize"` from there, {OUTER} outer loops at most. Variances are exact where they can be
  afforded, else from {SAMPLES} samples.
- MAP init, MAP learned: `method="map"` at the same first values, and at those that VB learned. Ko and Seeger learn
  the latter by the same steps at variances of zero. Here the mode takes over VB's, as scale and coefficients have no
  joint maximum.
- PSNR and SSIM (Gaussian windows): of the mean or mode as it is, without clipping.
- Coverage: 90% intervals of single pixels.
- Seconds: medians, with one thread of BLAS beside one other process, or where that was busier the processor's. The
  first fit of a model compiles it.

First values of the scales are moments of the coefficients of the picture as it was observed, with holes filled
linearly and with noise. Half of each level's mean square is the square of the mean absolute coefficient, as under a
Laplace distribution. A factorial potential has this mean absolute value, low and high states {LOW:g} and {HIGH:g}
times that. Probabilities of states are where `WaveletTree` starts them.
"""
HEADINGS = {
    "denoising": f"""## Denoising

Noise of variance 0.01 on all pixels. Two peers know the noise too. BayesShrink is soft, on {WAVELET}. Total variation
(Chambolle 2004) has the weight, out of {len(WEIGHTS)} from {WEIGHTS[0]:g} to {WEIGHTS[-1]:g}, of least estimated risk
(Stein 1981; Ramani, Blu and Unser 2008), or of least true error.
""",
    "inpainting": """## Inpainting

A quarter of the pixels is left, `default_rng(0).choice(65536, 16384, replace=False)`, with noise of variance 1e-5.
Peers: SciPy's `griddata`, beyond the outermost pixels the nearest one's value, and scikit-image's
`inpaint_biharmonic`.
""",
}


def quick() -> None:
    """Fit 64 x 64 pixels of the first picture by every model in every way."""
    name = pictures()[0]
    for task in TASKS:
        given = problem(task, name, 64)
        for model in MODELS:
            learned: Hyper | None = None
            for column in COLUMNS:
                row = measure(task, model, given, column, learned, levels=3)
                learned = row.pop("hyper", learned)
                print(task, model, column, row, flush=True)


def main() -> None:
    """Measure and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=len(pictures()), help="so many, in an order drawn at random")
    parser.add_argument("--tasks", nargs="*", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--models", nargs="*", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--columns", nargs="*", default=list(COLUMNS), choices=COLUMNS)
    parser.add_argument("--quick", action="store_true", help="64 x 64 pixels, printed only")
    options = parser.parse_args()
    if options.quick:
        quick()
        return
    store = Store("wavelet_tables")
    for name, task in itertools.product(some_pictures(options.images), options.tasks):
        measure_all(store, task, name, options.models, options.columns)
    print(write_page("wavelet_tables", page(store)))


if __name__ == "__main__":
    main()
