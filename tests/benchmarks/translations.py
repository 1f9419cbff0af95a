"""Denoising by wavelets on translated grids: what an average of posteriors gains, next to cycle spinning.

    python -m tests.benchmarks.translations [--images 37] [--rows ours peers]

Needs the folder ``images256`` under ``PYMC_EP_DATA`` and scikit-image. Rows that are done are kept in
``build/translations.json``. Writes docs/benchmarks/translations.md.
"""

import argparse
from typing import Any

import numpy as np

from tests.benchmarks._common import header, markdown_table, mean_se, write_page
from tests.benchmarks._images import Store, coverage, shortfall
from tests.benchmarks._wavelets import LEVELS, PEERS, WAVELET, Fitter, Problem, pictures, problem, quality

NAME = "tests/benchmarks/translations.py"
MODEL = "Normal/Student-t, tree"
GRIDS = (1, 16)
OUTER = 15
TARGET = 27.8
"""Of PSNR in dB; that of scikit-image's total variation with the best weight on these pictures."""
FITTER = Fitter()
Rows = dict[str, dict[str, Any]]


def ours(given: Problem, grids: int) -> dict[str, Any]:
    """Fit with hyperparameters learned from the noisy picture alone."""
    options = {"method": "dsb", "outer": OUTER, "translations": grids, "random_seed": 0}
    fit, seconds = FITTER.fit("denoising", MODEL, given, LEVELS, {}, options)
    mean, sd = (np.asarray(fit[f"u_{what}"]) for what in ("mean", "sd"))
    return quality(mean, given.truth) | {"coverage": coverage(mean, sd, given.truth), "seconds": seconds}


def page(rows: Rows) -> list[str]:
    """Return the parts of the page."""
    names = [f"{MODEL}, {grids} grid{'s' * (grids > 1)}" for grids in GRIDS] + list(PEERS["denoising"])
    images = [name for name in pictures() if all(f"{name}/{which}" in rows for which in (*GRIDS, "peers"))]
    table: dict[str, list[dict[str, Any]]] = {
        key: [rows[f"{name}/{grids}"] for name in images] for key, grids in zip(names, GRIDS)
    }
    table |= {key: [rows[f"{name}/peers"][key] for name in images] for key in PEERS["denoising"]}
    base = np.array([row["psnr"] for row in table[names[0]]])
    lines = []
    for key, found in table.items():
        psnr = np.array([row["psnr"] for row in found])
        gain = psnr - base
        lines.append(
            [
                key,
                f"{psnr.mean():.2f} ({psnr.std(ddof=1):.2f})",
                mean_se(gain.mean(), gain.std(ddof=1) / len(gain) ** 0.5),
                f"{np.mean([row['ssim'] for row in found]):.3f}",
                f"{np.mean([row['coverage'] for row in found]):.3f}" if "coverage" in found[0] else "-",
                f"{np.median([row['seconds'] for row in found]):.3g}" if "seconds" in found[0] else "-",
            ]
        )
    head = ["method", "PSNR, dB", "over one grid", "SSIM", "coverage", "seconds"]
    best = float(np.mean([row["psnr"] for row in table[names[1]]]))
    return [
        header("Wavelets on translated grids", NAME, "scikit-image", "PyWavelets"),
        INTRODUCTION.format(count=len(images)),
        markdown_table(head, lines),
        f"- {shortfall(f'PSNR with {GRIDS[1]} grids, dB below the target', TARGET - best, 0.0, 2)}\n",
    ]


INTRODUCTION = f"""The first {{count}} of 37 pictures by name, 256 x 256 pixels from 0 to 1, with noise
`default_rng(i).normal(0, 0.1)` for picture i. A `WaveletTree` on {WAVELET}, {LEVELS} levels, Normal low and Student-t
(nu 2.1) high states, scaling coefficients flat. The noise is known; scales and probabilities are learned from the noisy
picture, in {OUTER} outer loops, and `translations=` is the number of grids. Peers know the noise as well; the weight
"by estimated risk" needs no truth, the oracle's is the best there is.

PSNR: mean (sd) over pictures; over one grid: paired differences (standard error). Coverage is that of 90% intervals of
single pixels. Seconds are medians; one thread of BLAS, while the peers were measured on the other processor.
"""


def main() -> None:
    """Measure and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=len(pictures()), help="so many of the first ones by name")
    parser.add_argument("--rows", nargs="*", default=["ours", "peers"], choices=["ours", "peers"])
    options = parser.parse_args()
    store = Store("translations")
    for name in pictures()[: options.images]:
        given = problem("denoising", name)
        for grids in GRIDS if "ours" in options.rows else ():
            store.get(f"{name}/{grids}", lambda given=given, grids=grids: ours(given, grids))
        if "peers" in options.rows:
            store.get(f"{name}/peers", lambda given=given: measure_peers(given))
    print(write_page("translations", page(store.rows)))


def measure_peers(given: Problem) -> dict[str, Any]:
    """Return the quality of all peers."""
    return {key: quality(method(given), given.truth) for key, method in PEERS["denoising"].items()}


if __name__ == "__main__":
    main()
