"""Denoising by wavelets on translated grids: what an average of posteriors gains, next to cycle spinning.

    python -m docs.benchmarks.translations [--images 37] [--rows ...] [--page]

Needs the folder ``images256`` under ``PYMC_EP_DATA`` and scikit-image. Rows that are done are kept in
``docs/benchmarks/rows``. Writes docs/benchmarks/tree_tasks.md.
"""

from typing import Any, NamedTuple

import numpy as np

from docs.benchmarks._common import header, markdown_table, mean_se, write_page
from docs.benchmarks._images import Store, coverage, shortfall
from docs.benchmarks._wavelets import (
    LEVELS,
    PEERS,
    WAVELET,
    Fitter,
    Problem,
    options_of_pictures,
    pictures,
    problem,
    quality,
    some_pictures,
)

NAME = "docs/benchmarks/translations.py"
OUTER = 15


class Row(NamedTuple):
    """One of our fits."""

    method: str
    model: str
    wavelet: str
    grids: int


OURS = {
    f"{row.method}: {row.model}, {row.wavelet}, {row.grids} grid{'s' * (row.grids > 1)}": row
    for row in (
        Row("dsb", "Normal/Student-t, tree", WAVELET, 1),
        Row("dsb", "Normal/Student-t, tree", WAVELET, 16),
        Row("ep", "Normal, tree", WAVELET, 1),
        Row("ep", "Normal, tree", WAVELET, 16),
        Row("ep", "Normal, tree", "haar", 1),
        Row("ep", "Normal, tree", "haar", 16),
    )
}
REFERENCE = "BayesShrink"
"""What all are compared with, picture by picture."""
TARGET = 27.8
"""Of PSNR in dB; that of scikit-image's total variation with the best weight on these pictures."""
FITTER = Fitter()


def ours(given: Problem, row: Row) -> dict[str, Any]:
    """Fit with hyperparameters learned from the noisy picture alone."""
    options = {"method": row.method, "translations": row.grids, "random_seed": 0}
    if row.method == "dsb":
        options["outer"] = OUTER
    idata, seconds = FITTER.fit("denoising", row.model, given, LEVELS, {}, options, row.wavelet)
    fit = idata["fit"]
    mean, sd = (np.asarray(idata[f"posterior_{what}"]["u"]) for what in ("mean", "sd"))
    told = {"seconds": seconds, "converged": bool(fit["converged"]), "log_evidence": float(fit["log_evidence"])}
    return quality(mean, given.truth) | {"coverage": coverage(mean, sd, given.truth)} | told


def page(store: Store) -> list[str]:
    """Return the parts of the page."""
    rows = store.rows
    images = [name for name in pictures() if f"{name}/peers" in rows]
    peers = {key: {name: rows[f"{name}/peers"][key] for name in images} for key in PEERS["denoising"]}
    table = {key: {name: rows[f"{name}/{key}"] for name in images if f"{name}/{key}" in rows} for key in OURS} | peers
    lines = []
    for key, by_name in table.items():
        found = list(by_name.values())
        if not found:
            continue
        psnr = np.array([row["psnr"] for row in found])
        gain = psnr - np.array([peers[REFERENCE][name]["psnr"] for name in by_name])
        lines.append(
            [
                key,
                str(len(found)),
                f"{psnr.mean():.2f} ({psnr.std(ddof=1):.2f})",
                mean_se(gain.mean(), gain.std(ddof=1) / len(gain) ** 0.5),
                f"{np.mean([row['ssim'] for row in found]):.3f}",
                f"{np.mean([row['coverage'] for row in found]):.3f}" if "coverage" in found[0] else "-",
                f"{np.median([row['seconds'] for row in found]):.3g}" if "seconds" in found[0] else "-",
                f"{sum(row['converged'] for row in found)} of {len(found)}" if "converged" in found[0] else "-",
            ]
        )
    head = ["method", "pictures", "PSNR, dB", f"over {REFERENCE}", "SSIM", "coverage", "seconds", "settled"]
    means = {key: float(np.mean([row["psnr"] for row in table[key].values()])) for key in OURS if table[key]}
    best = max(means, key=lambda key: means[key] if len(table[key]) == len(images) else -np.inf)
    return [
        header("Translated grids", NAME, "scikit-image", "PyWavelets"),
        INTRODUCTION.format(count=len(images)),
        markdown_table(head, lines),
        f"- {shortfall(f'{best}: PSNR, dB below the target of {TARGET}', TARGET - means[best], 0.0, 2)}\n",
        store.measured(),
    ]


INTRODUCTION = f"""{{count}} of 37 pictures, drawn at random where not all, 256 x 256 pixels from 0 to 1, with noise
`default_rng(i).normal(0, 0.1)` for picture i. The noise is known. Scales and probabilities are learned from the noisy
picture.

- Model: a `WaveletTree` on {LEVELS} levels, scaling coefficients flat; `translations=` is the number of grids.
- "dsb": Normal low and Student-t (nu 2.1) high states, {OUTER} outer loops.
- "ep": Normal states. EP is exact on each grid here.
- Peers know the noise as well. The weight "by estimated risk" needs no truth. The oracle's is the best there is.
- PSNR: mean (sd) over pictures. Over {REFERENCE}: paired differences (standard error).
- Coverage: 90% intervals of single pixels.
- Seconds: medians, with one thread of BLAS, beside other work on both processors.
"""


def main() -> None:
    """Measure and write the page."""
    parser = options_of_pictures(__doc__)
    parser.add_argument("--rows", nargs="*", default=[*OURS, "peers"], choices=[*OURS, "peers"], metavar="ROW")
    options = parser.parse_args()
    store = Store("translations")
    for name in () if options.page else some_pictures(options.images):
        given = problem("denoising", name)
        for key, row in OURS.items():
            if key in options.rows:
                store.get(f"{name}/{key}", lambda given=given, row=row: ours(given, row))
        if "peers" in options.rows:
            store.get(f"{name}/peers", lambda given=given: measure_peers(given))
    print(write_page("translations", page(store)))


def measure_peers(given: Problem) -> dict[str, Any]:
    """Return the quality of all peers."""
    return {key: quality(method(given), given.truth) for key, method in PEERS["denoising"].items()}


if __name__ == "__main__":
    main()
