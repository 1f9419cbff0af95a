"""Bodies of the inner products of Gaussian rows: NumPy, Numba, C, and composition under JAX.

    python -m docs.benchmarks.inner_products

Needs JAX (the extra ``jax``) and a C compiler. Writes docs/benchmarks/bilinear_scaling.md.
"""

import ctypes
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from docs.benchmarks._common import header, markdown_table, write_page
from pymc_ep.models.bilinear import kernel as inner_products
from pymc_ep.models.bilinear.kernel import Pairs, Rows, op

NAME = "docs/benchmarks/inner_products.py"
CELLS, SHAPE, D, REPEATS = 620_000, (20_000, 5_000), 20, 7
C = r"""
#include <math.h>
#include <stdint.h>

void value(int64_t rows, int64_t k, const int64_t *ends, const int64_t *others, const double *m, const double *a,
           const double *n, const double *b, double *out, double *log_out) {
    for (int64_t i = 0; i < rows; i++)
        for (int64_t c = ends[i]; c < ends[i + 1]; c++) {
            const double *mi = m + i * k, *ai = a + i * k, *nj = n + others[c] * k, *bj = b + others[c] * k;
            double total = 0, terms = 0, logs = 0, improper = 0;
            for (int64_t begin = 0; begin < k; begin += 16) {
                double product = 1;
                int64_t end = begin + 16 < k ? begin + 16 : k;
                for (int64_t d = begin; d < end; d++) {
                    double r = 1 - ai[d] * bj[d], both = mi[d] * nj[d];
                    improper += r > 0 ? 0 : 1;
                    product *= r;
                    total += both;
                    terms += (both + 0.5 * (ai[d] * nj[d] * nj[d] + bj[d] * mi[d] * mi[d])) / r;
                }
                logs += log(fabs(product));
            }
            out[c] = total;
            log_out[c] = improper == 0 ? terms - 0.5 * logs : INFINITY;
        }
}

void pullback(int64_t rows, int64_t k, const int64_t *ends, const int64_t *others, const double *m, const double *a,
              const double *n, const double *b, const double *w, const double *v, double *of_m, double *of_a) {
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t d = 0; d < k; d++) of_m[i * k + d] = of_a[i * k + d] = 0;
        for (int64_t c = ends[i]; c < ends[i + 1]; c++) {
            const double *mi = m + i * k, *ai = a + i * k, *nj = n + others[c] * k, *bj = b + others[c] * k;
            for (int64_t d = 0; d < k; d++) {
                double r = 1 - ai[d] * bj[d], g = (nj[d] + bj[d] * mi[d]) / r;
                of_m[i * k + d] += w[c] * nj[d] + v[c] * g;
                of_a[i * k + d] += 0.5 * v[c] * (bj[d] / r + g * g);
            }
        }
    }
}
"""
"""The loops of the Numba body, but for logarithms, which it takes of more columns at once."""
FLAGS = ("-O3", "-march=native", "-ffast-math", "-fno-finite-math-only", "-shared", "-fPIC")

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

    def ours(few: float) -> tuple[np.ndarray, ...]:
        with mock.patch.object(op, "_FEW", few):
            value = inner_products.log_mean_exp(pairs, own, other)
            return *value, *inner_products.log_mean_exp_pullback(pairs, own, other, weight, weight_log)

    return {
        "NumPy, some pairs at a time": lambda: ours(np.inf),
        "Numba": lambda: ours(-1),
        "C": in_c(pairs, own, other, weight, weight_log),
        "JAX, by composition and autodiff": in_jax(pairs, own, other, weight, weight_log),
    }


def in_c(pairs: Pairs, own: Rows, other: Rows, weight: np.ndarray, weight_log: np.ndarray) -> Body:
    """Compile the C body; return what runs it."""
    folder = Path(tempfile.mkdtemp())
    (folder / "body.c").write_text(C)
    subprocess.run(["gcc", *FLAGS, "-o", folder / "body.so", folder / "body.c", "-lm"], check=True)
    library = ctypes.CDLL(str(folder / "body.so"))

    def call(name: str, *arrays: np.ndarray) -> None:
        pointers = [array.ctypes.data_as(ctypes.c_void_p) for array in arrays]
        getattr(library, name)(ctypes.c_int64(SHAPE[0]), ctypes.c_int64(D), *pointers)

    def run() -> tuple[np.ndarray, ...]:
        given, value = (pairs.ends, pairs.others, *own, *other), (np.empty(CELLS), np.empty(CELLS))
        slopes = (np.empty(own.mean.shape), np.empty(own.mean.shape))
        call("value", *given, *value)
        call("pullback", *given, weight, weight_log, *slopes)
        return *value, *slopes

    return run


def in_jax(pairs: Pairs, own: Rows, other: Rows, weight: np.ndarray, weight_log: np.ndarray) -> Body:
    """Return what runs gathers and sums under JAX, in double precision."""
    import jax
    import jax.numpy as jnp

    jax.config.update("jax_enable_x64", True)

    def value(m: Any, a: Any) -> Any:
        m, a, n, b = m[pairs.own], a[pairs.own], *(jnp.asarray(part)[pairs.others] for part in other)
        r, product = 1.0 - a * b, m * n
        terms = (product + 0.5 * (a * n**2 + b * m**2)) / r - 0.5 * jnp.log(r)
        return product.sum(axis=1), jnp.where((r > 0).all(axis=1), terms.sum(axis=1), jnp.inf)

    @jax.jit
    def both(m: Any, a: Any) -> Any:
        found, pull = jax.vjp(value, m, a)
        return *found, *pull((jnp.asarray(weight), jnp.asarray(weight_log)))

    return lambda: tuple(np.asarray(part) for part in jax.block_until_ready(both(*own)))


def main() -> None:
    """Measure and write the page."""
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
    compiler = subprocess.run(["gcc", "-dumpfullversion"], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
    introduction = INTRODUCTION.format(compiler=compiler, flags=" ".join(FLAGS[:4]))
    title = "Bodies of the inner products of Gaussian rows"
    print(
        write_page("inner_products", [header(title, NAME, "numba", "jax"), introduction, markdown_table(head, lines)])
    )


INTRODUCTION = f"""\
Values of E f and log E e^f and their pullback to the own rows, for {CELLS:,} cells of {SHAPE[0]:,} x {SHAPE[1]:,},
{D} factors, independent entries. Times are the least of {REPEATS} runs in turn, one thread of each.

- The package has the NumPy and the Numba body.
- C: the same loops, gcc {{compiler}} {{flags}}. The package does without, as Numba comes with every PyTensor.
- JAX: arrays of cells times factors, on the processor. The package does without, as no engine of these models works
  on JAX's arrays.
"""


if __name__ == "__main__":
    main()
