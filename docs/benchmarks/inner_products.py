"""Bodies of the inner products of Gaussian rows: NumPy, Numba, C and JAX.

    python -m docs.benchmarks.inner_products

Needs JAX (the extra ``jax``) and a C compiler. Writes docs/benchmarks/bilinear_scaling.md.
"""

import time
from collections.abc import Callable
from functools import partial

import numba
import numpy as np

from docs.benchmarks._common import header, markdown_table, write_page
from pymc_ep.models.bilinear import kernel as inner_products
from pymc_ep.models.bilinear.kernel import Rows
from pymc_ep.numerics.pairs import Pairs

NAME = "docs/benchmarks/inner_products.py"
CELLS, SHAPE, D, REPEATS = 620_000, (20_000, 5_000), 20, 7
NAMES = {"numpy": "NumPy, some pairs at a time", "numba": "Numba", "c": "C", "jax": "JAX"}
"""Of the bodies."""

Body = Callable[[], tuple[np.ndarray, ...]]


def problem() -> tuple[Pairs, Rows, Rows, np.ndarray, np.ndarray]:
    """Return cells, rows of both sides and weights of both statistics."""
    rng = np.random.default_rng(0)
    pairs = Pairs.of(*(rng.integers(size, size=CELLS) for size in SHAPE), SHAPE[0])
    own, other = (Rows(rng.normal(0, 0.3, (size, D)), rng.uniform(0.01, 0.3, (size, D))) for size in SHAPE)
    weight, weight_log = rng.normal(size=(2, CELLS))
    return pairs, own, other, weight, weight_log


def bodies() -> dict[str, Body]:
    """Return what computes values and their pullback by each body, ready to run."""
    pairs, own, other, weight, weight_log = problem()

    def run(backend: str) -> tuple[np.ndarray, ...]:
        value = inner_products.log_mean_exp(pairs, own, other, backend=backend)
        return *value, *inner_products.log_mean_exp_pullback(pairs, own, other, weight, weight_log, backend=backend)

    return {NAMES[backend]: partial(run, backend) for backend in NAMES}


def main() -> None:
    """Measure and write the page."""
    numba.set_num_threads(1)
    runs = bodies()
    reference, seconds, apart = runs["NumPy, some pairs at a time"](), {name: [] for name in runs}, {}
    for name, run in runs.items():
        # The first run of each compiles.
        differences = [np.abs(one - two).max() / np.abs(two).max() for one, two in zip(run(), reference)]
        apart[name] = max(differences)
    for _ in range(REPEATS):
        for name, run in runs.items():
            began = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - began)
    least = {name: min(times) for name, times in seconds.items()}
    lines = [
        [name, f"{1000 * took:.0f}", f"{took / least['Numba']:.2f}", f"{apart[name]:.1g}"]
        for name, took in least.items()
    ]
    head = ["body", "ms", "over Numba's", "largest difference from NumPy, relative"]
    title = "Bodies of the inner products of Gaussian rows"
    print(
        write_page("inner_products", [header(title, NAME, "numba", "jax"), INTRODUCTION, markdown_table(head, lines)])
    )


INTRODUCTION = f"""\
Values of E f and log E e^f and their pullback to the own rows, for {CELLS:,} cells of {SHAPE[0]:,} x {SHAPE[1]:,},
{D} factors, independent entries. Times are the least of {REPEATS} runs in turn, one thread of each.

- NumPy's body is the default for small problems, Numba's for large ones; C and JAX run where the mode asks for them.
- JAX: on the processor, arrays copied to it and back included.
"""


if __name__ == "__main__":
    main()
