"""Inpainting of photographs of which a quarter is seen: potentials on second differences, next to scikit-image.

    python -m tests.benchmarks.inpainting [--images 37] [--page]

Needs the folder ``images256`` under ``PYMC_EP_DATA`` and scikit-image. Rows that are done are kept in
``docs/benchmarks/rows``. Writes docs/benchmarks/inpainting.md.
"""

import argparse
import time
import warnings
from typing import Any

import numpy as np
import pymc as pm

import pymc_ep as pmep
from tests.benchmarks._common import header, markdown_table, mean_se, write_page
from tests.benchmarks._images import Store, coverage, shortfall
from tests.benchmarks._wavelets import PEERS, TASKS, Problem, pictures, problem, quality, some_pictures

NAME = "tests/benchmarks/inpainting.py"
OURS = "Laplace on second differences, double loop"
BEST = "biharmonic"
OUTER = 15
TARGET, COVERAGE = 27.2, (0.85, 0.95)
"""PSNR in dB on all pictures, that of the biharmonic equation; and between what 90% intervals are to cover."""
SD = TASKS["inpainting"].sd


def ours(given: Problem) -> dict[str, Any]:
    """Fit with the scale of the potentials learned from the pixels that are seen."""
    with pm.Model(), warnings.catch_warnings():
        # The page says what did not converge.
        warnings.simplefilter("ignore", pmep.ConvergenceWarning)
        scale = pm.HalfNormal("scale", 1)
        operator = pmep.operators.Hessian2D(given.truth.shape)
        u = pmep.SparseField("u", operator=operator, potential=pm.Laplace.dist(0, scale), shape=given.truth.shape)
        pm.Normal("y", u[given.seen], SD, observed=given.values)
        began = time.perf_counter()
        fit = pmep.fit("dsb", draws=0, progressbar=False, outer=OUTER, random_seed=0)["fit"]
        seconds = time.perf_counter() - began
    mean, sd = (np.asarray(fit[f"u_{what}"]) for what in ("mean", "sd"))
    parts = {"seen": given.seen, "missing": ~given.seen}
    return quality(mean, given.truth) | {
        **{name: coverage(mean[part], sd[part], given.truth[part]) for name, part in parts.items()},
        "scale": float(fit["hyper_mode_scale"]),
        "seconds": seconds,
        "converged": bool(fit["converged"]),
    }


def peer(name: str, given: Problem) -> dict[str, Any]:
    """Return the quality of a peer, and its seconds."""
    began = time.perf_counter()
    estimate = PEERS["inpainting"][name](given)
    seconds = time.perf_counter() - began
    return quality(estimate, given.truth) | {"seconds": seconds}


def page(store: Store) -> list[str]:
    """Return the parts of the page."""
    rows = store.rows
    methods = [OURS, *PEERS["inpainting"]]
    images = [name for name in pictures() if all(f"{name}/{which}" in rows for which in methods)]
    table = {which: [rows[f"{name}/{which}"] for name in images] for which in methods}
    base, best = (np.array([row["psnr"] for row in table[which]]) for which in (OURS, BEST))
    lines = []
    for which, found in table.items():
        psnr = np.array([row["psnr"] for row in found])
        covered = [f"{np.mean([row[k] for row in found]):.3f}" if k in found[0] else "-" for k in ("seen", "missing")]
        gain = base - psnr
        lines.append(
            [
                which,
                f"{psnr.mean():.2f} ({psnr.std(ddof=1):.2f})",
                mean_se(gain.mean(), gain.std(ddof=1) / len(gain) ** 0.5),
                f"{np.mean([row['ssim'] for row in found]):.3f}",
                *covered,
                f"{np.median([row['seconds'] for row in found]):.3g}",
            ]
        )
    ours_rows = table[OURS]
    ends = {what: [row[what] for row in ours_rows] for what in ("seen", "missing")}
    checks = f"- {shortfall(f'PSNR, dB below {BEST}', -float(np.mean(base - best)), 0.0, 2)}\n"
    if len(images) == len(pictures()):
        checks += f"- {shortfall(f'PSNR, dB below the target of {TARGET}', TARGET - base.mean(), 0.0, 2)}\n"
    for what, values in ends.items():
        mean = float(np.mean(values))
        met = "met" if COVERAGE[0] <= mean <= COVERAGE[1] else "missed"
        spread = f"from {min(values):.3f} to {max(values):.3f} by picture"
        checks += f"- Coverage of pixels {what}: {mean:.3f}, {spread}; {COVERAGE[0]} to {COVERAGE[1]} asked, {met}.\n"
    settled = sum(row["converged"] for row in ours_rows)
    checks += f"- {settled} of {len(images)} fits settled within {OUTER} outer loops.\n"
    head = ["method", "PSNR, dB", "ours over this", "SSIM", "coverage, seen", "missing", "seconds"]
    return [
        header("Inpainting of photographs", NAME, "scikit-image"),
        INTRODUCTION.format(count=len(images)),
        markdown_table(head, lines),
        checks,
        store.measured(),
    ]


INTRODUCTION = f"""{{count}} of 37 pictures, drawn at random where not all, 256 x 256 pixels from 0 to 1, a quarter of
them seen, the same for all, with noise of sd {SD:.2g}. A `SparseField` on `Hessian2D` with Laplace potentials of one
scale, which is learned from the pixels seen; {OUTER} outer loops with exact variances. The noise is known.

PSNR: mean (sd) over pictures; ours over each: paired differences (standard error). Coverage is that of 90% intervals of
single pixels, for those seen and those missing. Seconds are medians, with one thread of BLAS and beside other work.
"""


def main() -> None:
    """Measure and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=len(pictures()), help="so many, in an order drawn at random")
    parser.add_argument("--page", action="store_true", help="write the page from the rows there are")
    options = parser.parse_args()
    store = Store("inpainting")
    for name in () if options.page else some_pictures(options.images):
        given = problem("inpainting", name)
        store.get(f"{name}/{OURS}", lambda given=given: ours(given))
        for which in PEERS["inpainting"]:
            store.get(f"{name}/{which}", lambda given=given, which=which: peer(which, given))
    print(write_page("inpainting", page(store)))


if __name__ == "__main__":
    main()
