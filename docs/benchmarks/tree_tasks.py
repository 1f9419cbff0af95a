"""Wavelet trees where no pixel is seen by itself: deblurring and compressed sensing, next to gradients and to peers.

    python -m docs.benchmarks.tree_tasks [--images 37] [--page]

Needs the folder ``images256`` under ``PYMC_EP_DATA``, scikit-image and PyLops. Rows that are done are kept in
``docs/benchmarks/rows``. Writes docs/benchmarks/tree_tasks.md.
"""

import time
import warnings
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pylops
import pymc as pm
from pylops.optimization.sparsity import fista
from scipy.sparse.linalg import LinearOperator
from skimage.restoration import unsupervised_wiener

import pymc_ep as pmep
from docs.benchmarks._common import header, markdown_table, mean_se, write_page
from docs.benchmarks._images import Store, area_average, coverage, load, shortfall
from docs.benchmarks._wavelets import WAVELET, image, options_of_pictures, pictures, quality, some_pictures
from pymc_ep.operators import Convolution2D, Fourier2D, Gradient2D, LinearMap, apply_operator

NAME = "docs/benchmarks/tree_tasks.py"
SIDE, LEVELS, OUTER = 128, 4, 15
SHAPE = SIDE, SIDE
TREE, FACTORIAL, GRADIENTS = MODELS = (
    "Normal/Student-t, tree",
    "Laplace, factorial",
    "Laplace on differences",
)
COVERAGE = (0.85, 0.95)
CENTRE = 8
"""Radius below which all frequencies are measured."""
REACH = 12.8
"""Radius at which the probability that a frequency is measured would be one, as it falls like 1 / radius."""
WEIGHTS, STEPS = np.geomspace(1e-4, 1e-1, 7), 100
"""Of FISTA: weights of the l1 norm, and steps."""


class Task(NamedTuple):
    """What is measured of a picture from 0 to 1, with what noise, and what to compare with if nothing is done."""

    operator: LinearMap
    sd: float
    untouched: Callable[[np.ndarray], np.ndarray]


@cache
def tasks() -> dict[str, Task]:
    """Return both tasks."""
    along = np.exp(-0.5 * (np.arange(-4, 5) / 1.5) ** 2)
    blur = Convolution2D(SHAPE, np.outer(along, along) / along.sum() ** 2, boundary="reflect")
    radius = np.hypot(*np.meshgrid(*[np.fft.fftfreq(SIDE) * SIDE] * 2))
    # Marking one frequency measures its conjugate too.
    marked = 1.0 - np.sqrt(1.0 - np.minimum(1.0, REACH / np.maximum(radius, REACH)))
    keep = (np.random.default_rng(0).random(SHAPE) < marked) | (radius < CENTRE)
    waves = Fourier2D(SHAPE, keep)
    return {
        "deblurring": Task(blur, 0.01, lambda y: y),
        "compressed sensing": Task(waves, 10**-2.5, waves.adjoint),
    }


def truth_of(name: str) -> np.ndarray:
    """Return a picture from 0 to 1, averaged over 2 x 2 pixels."""
    return area_average(load(name), SIDE) / 255


def measured(task: Task, name: str) -> np.ndarray:
    """Return what is measured of a picture; its place among all names is the seed of the noise."""
    noise = np.random.default_rng(pictures().index(name)).normal(0, task.sd, task.operator.output_shape)
    return task.operator.forward(truth_of(name)) + noise


def ours(task: Task, name: str, model: str) -> dict[str, Any]:
    """Fit by the double loop with hyperparameters learned from what was measured."""
    truth, y = truth_of(name), measured(task, name)
    with pm.Model(), warnings.catch_warnings():
        # The page says what did not converge.
        warnings.simplefilter("ignore", pmep.ConvergenceWarning)
        if model == GRADIENTS:
            scale = pm.HalfNormal("scale", 1)
            u = pmep.SparseField("u", operator=Gradient2D(SHAPE), potential=pm.Laplace.dist(0, scale), shape=SHAPE)
        else:
            u = image(model, SHAPE, LEVELS)
        pm.Normal("y", apply_operator(task.operator, u), task.sd, observed=y)
        began = time.perf_counter()
        idata = pmep.fit("dsb", draws=0, progressbar=False, outer=OUTER, random_seed=0)
        seconds = time.perf_counter() - began
    fit = idata["fit"]
    mean, sd = (np.asarray(idata[f"posterior_{what}"]["u"]) for what in ("mean", "sd"))
    told = {"coverage": coverage(mean, sd, truth), "seconds": seconds, "converged": bool(fit["converged"])}
    return quality(mean, truth) | told


# Peers


def untouched(task: Task, y: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """Return the picture as measured; of frequencies that were not, zero."""
    return task.untouched(y)


def wiener(task: Task, y: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """Deblur by a Gaussian prior on differences, with both its scale and the noise estimated."""
    return unsupervised_wiener(y, task.operator.kernel, clip=False, rng=0)[0]


def shrunken(task: Task, y: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """Find the mode under Laplace potentials on wavelets by FISTA, with the weight of least error."""
    operator = task.operator
    products = LinearOperator(
        (y.size, truth.size),
        matvec=lambda x: operator.forward(x.reshape(SHAPE)).ravel(),
        rmatvec=lambda v: operator.adjoint(v.reshape(operator.output_shape)).ravel(),
        dtype=float,
    )
    wavelets = pylops.signalprocessing.DWT2D(SHAPE, wavelet=WAVELET, level=LEVELS)
    found = [
        fista(pylops.LinearOperator(products), y.ravel(), niter=STEPS, SOp=wavelets.H, eps=weight, alpha=1.0)[0]
        for weight in WEIGHTS
    ]
    return min((x.reshape(SHAPE) for x in found), key=lambda x: float(np.mean((x - truth) ** 2)))


Peer = Callable[[Task, np.ndarray, np.ndarray], np.ndarray]
PEERS: dict[str, dict[str, Peer]] = {
    "deblurring": {
        "as measured": untouched,
        "unsupervised Wiener filter": wiener,
        "FISTA, db2, oracle weight": shrunken,
    },
    "compressed sensing": {"as measured": untouched, "FISTA, db2, oracle weight": shrunken},
}


def peer(task: str, name: str, which: str) -> dict[str, Any]:
    """Return the quality of a peer, and its seconds for all weights."""
    given, truth = tasks()[task], truth_of(name)
    y = measured(given, name)
    began = time.perf_counter()
    estimate = PEERS[task][which](given, y, truth)
    seconds = time.perf_counter() - began
    return quality(estimate, truth) | {"seconds": seconds}


# The page


def task_part(store: Store, task: str) -> list[str]:
    """Return the table of a task and what it says."""
    methods = [*MODELS, *PEERS[task]]
    images = [name for name in pictures() if all(f"{task}/{name}/{which}" in store.rows for which in methods)]
    table = {which: [store.rows[f"{task}/{name}/{which}"] for name in images] for which in methods}
    base = np.array([row["psnr"] for row in table[TREE]])
    lines = []
    for which, found in table.items():
        psnr = np.array([row["psnr"] for row in found])
        over, ours_too = base - psnr, which in MODELS
        lines.append(
            [
                which,
                mean_se(psnr.mean(), psnr.std(ddof=1)),
                mean_se(over.mean(), over.std(ddof=1) / len(over) ** 0.5),
                f"{np.mean([row['ssim'] for row in found]):.3f}",
                f"{np.mean([row['coverage'] for row in found]):.3f}" if ours_too else "-",
                f"{np.median([row['seconds'] for row in found]):.3g}",
                f"{sum(row['converged'] for row in found)} of {len(found)}" if ours_too else "-",
            ]
        )
    head = ["method", "PSNR, dB", "tree over this", "SSIM", "coverage", "seconds", "settled"]
    checks = ""
    for model in MODELS:
        mean = float(np.mean([row["coverage"] for row in table[model]]))
        outside = max(COVERAGE[0] - mean, mean - COVERAGE[1])
        checks += f"- {shortfall(f'{model}: coverage outside {COVERAGE[0]} to {COVERAGE[1]}', outside, 0.0)}\n"
    return [
        f"## {task.capitalize()}\n",
        f"{len(images)} of {len(pictures())} pictures.\n",
        markdown_table(head, lines),
        checks,
    ]


def page(store: Store) -> list[str]:
    """Return the parts of the page."""
    waves = tasks()["compressed sensing"].operator
    parts = [
        header("Deblurring and compressed sensing", NAME, "scikit-image", "PyLops", "PyWavelets"),
        INTRODUCTION.format(share=waves.output_shape[0] / SIDE**2),
    ]
    return [*parts, *(part for task in tasks() for part in task_part(store, task)), store.measured()]


INTRODUCTION = f"""\
Pictures are {SIDE} x {SIDE} pixels from 0 to 1, drawn at random from 37 where not all.

- Deblurring: a Gaussian blur of sd 1.5 pixels, mirrored at the border, and noise of sd 0.01 on each pixel.
- Compressed sensing: {{share:.0%}} of the Fourier coefficients, with noise of sd 0.0032. All within {CENTRE} of the
  zero frequency are measured, others at random, the fewer the further out.
- Ours: the double loop, {OUTER} outer loops, on {WAVELET} wavelets of {LEVELS} levels or on the differences of
  neighbours. All scales and probabilities are learned from what was measured.
- Peers: scikit-image's `unsupervised_wiener`, and PyLops' FISTA with {STEPS} steps and the best of {len(WEIGHTS)}
  weights, which it is told.
- PSNR: mean (sd) over pictures. Tree over this: paired differences (standard error).
- Coverage: 90% intervals of single pixels.
- Seconds: medians, beside other work, with compilation; of FISTA for all weights.
"""


def main() -> None:
    """Measure and write the page."""
    options = options_of_pictures(__doc__).parse_args()
    store = Store("tree_tasks")
    for name in () if options.page else some_pictures(options.images):
        for task, given in tasks().items():
            for which in PEERS[task]:
                store.get(f"{task}/{name}/{which}", lambda how=(task, name, which): peer(*how))
            for model in MODELS:
                store.get(f"{task}/{name}/{model}", lambda how=(given, name, model): ours(*how))
    print(write_page("tree_tasks", page(store)))


if __name__ == "__main__":
    main()
