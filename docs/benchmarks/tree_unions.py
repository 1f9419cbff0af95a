"""A wavelet tree and potentials on differences of neighbours, both on one image: what the union gains.

    python -m docs.benchmarks.tree_unions [--images 8] [--page]

Needs the folder ``images256`` under ``PYMC_EP_DATA`` and scikit-image. Rows that are done are kept in
``docs/benchmarks/rows``. Writes docs/benchmarks/tree_tasks.md.
"""

import time
import warnings
from typing import Any

import numpy as np
import pymc as pm

import pymc_ep as pmep
from docs.benchmarks._common import header, markdown_table, mean_se, write_page
from docs.benchmarks._images import Store, coverage
from docs.benchmarks._wavelets import TASKS, Problem, image, options_of_pictures, problem, quality, some_pictures

NAME = "docs/benchmarks/tree_unions.py"
SIDE, LEVELS, WAVELET, OUTER = 64, 4, "haar", 15
TREE = "Normal, tree"
TIMES = (1, 2, 4, 8)
"""Scales of the differences beside a tree, in those that they have alone."""
REFERENCE = "tree"


def fitted(given: Problem, tree: bool, scale: Any) -> tuple[dict[str, Any], float | None]:
    """Fit a tree, differences, or both; return what is kept, and the scale of the differences if it was learned."""
    shape = given.truth.shape
    operator = pmep.operators.Gradient2D(shape)
    with pm.Model() as model:
        b = pm.HalfNormal("b", 1) if scale is None else scale
        if tree:
            u = image(TREE, shape, LEVELS, WAVELET)
            if b:
                # A factor for each difference, which is what an observation of zero is.
                differences = pmep.apply_operator(operator, u)
                pm.Laplace("edges", differences, b, observed=np.zeros(differences.type.shape))
        else:
            u = pmep.SparseField("u", operator=operator, potential=pm.Laplace.dist(0, b))
        pm.Normal("y", u, TASKS["denoising"].sd, observed=given.picture)
    began = time.perf_counter()
    with warnings.catch_warnings():
        # Rows say what did not converge.
        warnings.simplefilter("ignore", pmep.ConvergenceWarning)
        idata = pmep.fit("dsb", model=model, outer=OUTER, draws=0, progressbar=False)
    fit = idata["fit"]
    mean, sd = (idata[f"posterior_{what}"]["u"].to_numpy() for what in ("mean", "sd"))
    kept = quality(mean, given.truth) | {
        "coverage": coverage(mean, sd, given.truth),
        "seconds": time.perf_counter() - began,
        "converged": bool(fit["converged"]),
    }
    return kept, float(fit["hyper_mode_b"]) if scale is None else None


def measure(store: Store, name: str) -> None:
    """Fill in the rows of a picture."""
    given = problem("denoising", name, SIDE)

    def alone() -> dict[str, Any]:
        kept, scale = fitted(given, False, None)
        return kept | {"scale": scale}

    scale = store.get(f"{name}/differences", alone)["scale"]
    store.get(f"{name}/tree", lambda: fitted(given, True, 0.0)[0])
    for times in TIMES:
        store.get(f"{name}/both, {times}", lambda times=times: fitted(given, True, times * scale)[0])


def page(store: Store) -> list[str]:
    """Return the parts of the page."""
    table: dict[str, dict[str, dict[str, Any]]] = {}
    for key, row in store.rows.items():
        name, model = key.split("/")
        table.setdefault(model, {})[name] = row
    lines = []
    for model, by_name in sorted(table.items(), key=lambda item: (item[0].startswith("both"), item[0])):
        rows = list(by_name.values())
        gain = np.array([row["psnr"] - table[REFERENCE][name]["psnr"] for name, row in by_name.items()])
        lines.append(
            [
                f"{model} times the scale alone" if model.startswith("both") else model,
                str(len(rows)),
                f"{np.mean([row['psnr'] for row in rows]):.2f}",
                mean_se(gain.mean(), gain.std(ddof=1) / len(gain) ** 0.5),
                f"{np.mean([row['ssim'] for row in rows]):.3f}",
                f"{np.mean([row['coverage'] for row in rows]):.3f}",
                f"{np.median([row['seconds'] for row in rows]):.3g}",
            ]
        )
    head = ["model", "pictures", "PSNR, dB", "over the tree (se)", "SSIM", "coverage", "seconds"]
    parts = [header("Trees and differences together", NAME, "scikit-image", "PyWavelets"), INTRODUCTION]
    return [*parts, markdown_table(head, lines), store.measured()]


INTRODUCTION = f"""\
Corners of {SIDE} x {SIDE} pixels of pictures drawn at random from 37, with noise of standard deviation
{TASKS["denoising"].sd}, by `method="dsb"` with {OUTER} outer loops and exact variances. Coverage is that of 90%
intervals.

- Differences: a `SparseField` on `Gradient2D` with Laplace potentials of a learned scale.
- Tree: a `WaveletTree` on {WAVELET} of {LEVELS} levels with Normal states, all scales and probabilities learned.
- Both: the tree's prior times a Laplace factor for each difference,
  `pm.Laplace("edges", apply_operator(Gradient2D(shape), u), b, observed=zeros)`.

The scale b is held at some multiples of what differences alone have learned. The product of both priors has no
normaliser that is known, and as an observation of zeros it would draw b to zero.
"""


def main() -> None:
    """Measure and write the page."""
    parser = options_of_pictures(__doc__)
    parser.set_defaults(images=8)
    options = parser.parse_args()
    store = Store("tree_unions")
    for name in () if options.page else some_pictures(options.images):
        measure(store, name)
    print(write_page("tree_unions", page(store)))


if __name__ == "__main__":
    main()
