"""Inpainting of photographs of which a quarter is seen: potentials on second differences, next to scikit-image.

    python -m docs.benchmarks.inpainting [--images 37] [--page]

Needs the folder ``images256`` under ``PYMC_EP_DATA`` and scikit-image. Rows that are done are kept in
``docs/benchmarks/rows``. Writes docs/benchmarks/inpainting.md.
"""

import time
import warnings
from typing import Any

import numpy as np
import pymc as pm

import pymc_ep as pmep
from docs.benchmarks._common import header, markdown_table, mean_se, write_page
from docs.benchmarks._images import Store, coverage, shortfall
from docs.benchmarks._wavelets import (
    PEERS,
    TASKS,
    Problem,
    options_of_pictures,
    pictures,
    problem,
    quality,
    some_pictures,
)

NAME = "docs/benchmarks/inpainting.py"
DOUBLE_LOOP, EP = OURS = (
    "Laplace on second differences, double loop",
    "the same, EP at the scale that the double loop learned",
)
BEST = "biharmonic"
OUTER = 15
TARGET, COVERAGE = 27.2, (0.85, 0.95)
"""PSNR in dB on all pictures, that of the biharmonic equation; and between what 90% intervals are to cover."""
SD = TASKS["inpainting"].sd


def ours(given: Problem, learned: float | None = None) -> dict[str, Any]:
    """Fit by the double loop, which learns the scale of the potentials, or by EP at the scale that it has learned."""
    how: dict[str, Any] = {"method": "dsb", "outer": OUTER}
    if learned is not None:
        how = {"method": "ep", "hyper": "fixed", "start": {"scale": learned}}
    with pm.Model(), warnings.catch_warnings():
        # The page says what did not converge.
        warnings.simplefilter("ignore", pmep.ConvergenceWarning)
        scale = pm.HalfNormal("scale", 1)
        operator = pmep.operators.Hessian2D(given.truth.shape)
        u = pmep.SparseField("u", operator=operator, potential=pm.Laplace.dist(0, scale), shape=given.truth.shape)
        pm.Normal("y", u[given.seen], SD, observed=given.values)
        began = time.perf_counter()
        idata = pmep.fit(draws=0, progressbar=False, random_seed=0, **how)
        seconds = time.perf_counter() - began
    fit = idata["fit"]
    mean, sd = (np.asarray(idata[f"posterior_{what}"]["u"]) for what in ("mean", "sd"))
    parts = {"seen": given.seen, "missing": ~given.seen}
    return quality(mean, given.truth) | {
        **{name: coverage(mean[part], sd[part], given.truth[part]) for name, part in parts.items()},
        "scale": float(fit["hyper_mode_scale"]) if learned is None else learned,
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
    methods = [*OURS, *PEERS["inpainting"]]
    images = [name for name in pictures() if all(f"{name}/{which}" in rows for which in methods)]
    table = {which: [rows[f"{name}/{which}"] for name in images] for which in methods}
    base, best = (np.array([row["psnr"] for row in table[which]]) for which in (DOUBLE_LOOP, BEST))
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
    checks = "".join(judged(which, table[which], best) for which in OURS)
    head = ["method", "PSNR, dB", "the double loop over this", "SSIM", "coverage, seen", "missing", "seconds"]
    return [
        header("Inpainting of photographs", NAME, "scikit-image"),
        INTRODUCTION.format(count=len(images)),
        markdown_table(head, lines),
        checks,
        store.measured(),
    ]


def judged(which: str, rows: list[dict[str, Any]], best: np.ndarray) -> str:
    """Say whether one of our methods does what is asked."""
    psnr = np.array([row["psnr"] for row in rows])
    out = f"{which}:\n\n- {shortfall(f'PSNR, dB below {BEST}', -float(np.mean(psnr - best)), 0.0, 2)}\n"
    if len(rows) == len(pictures()):
        out += f"- {shortfall(f'PSNR, dB below the target of {TARGET}', TARGET - psnr.mean(), 0.0, 2)}\n"
    for what in ("seen", "missing"):
        values = [row[what] for row in rows]
        mean = float(np.mean(values))
        met = "met" if COVERAGE[0] <= mean <= COVERAGE[1] else "missed"
        spread = f"from {min(values):.3f} to {max(values):.3f} by picture"
        out += f"- Coverage of pixels {what}: {mean:.3f}, {spread}; {COVERAGE[0]} to {COVERAGE[1]} asked, {met}.\n"
    return out + f"- {sum(row['converged'] for row in rows)} of {len(rows)} fits settled.\n\n"


INTRODUCTION = f"""\
{{count}} of 37 pictures, drawn at random where not all, 256 x 256 pixels from 0 to 1. A quarter of the pixels is seen,
the same for all, with noise of sd {SD:.2g}, known.

- Model: a `SparseField` on `Hessian2D` with Laplace potentials of one scale.
- The double loop learns the scale from the pixels seen, in {OUTER} outer loops with exact variances. EP takes its
  scale.
- PSNR: mean (sd) over pictures. Gain of the double loop: paired differences (standard error).
- Coverage: 90% intervals of single pixels, for those seen and those missing.
- Seconds: medians, with one thread of BLAS, beside other work.
"""


def main() -> None:
    """Measure and write the page."""
    options = options_of_pictures(__doc__).parse_args()
    store = Store("inpainting")
    for name in () if options.page else some_pictures(options.images):
        given = problem("inpainting", name)
        first = store.get(f"{name}/{DOUBLE_LOOP}", lambda given=given: ours(given))
        if first:
            store.get(f"{name}/{EP}", lambda given=given, first=first: ours(given, first["scale"]))
        for which in PEERS["inpainting"]:
            store.get(f"{name}/{which}", lambda given=given, which=which: peer(which, given))
    print(write_page("inpainting", page(store)))


if __name__ == "__main__":
    main()
