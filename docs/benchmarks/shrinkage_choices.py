"""What the steps of singular value shrinkage are made of: other solvers of the same problem, and no acceleration.

    python -m docs.benchmarks.shrinkage_choices [--page]

Needs the folders ``melbourne-pedestrians`` and ``hetrec2011-lastfm-2k`` under ``PYMC_EP_DATA``. Rows that are done are
kept in ``docs/benchmarks/rows``. Writes docs/benchmarks/shrinkage.md.
"""

import argparse
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from typing import Any
from unittest import mock

import numpy as np
import scipy.sparse.linalg

from docs.benchmarks._cells import model_of
from docs.benchmarks._common import header, markdown_table, write_page
from docs.benchmarks._images import Store
from docs.benchmarks.shrinkage import RANK, fitted, matrix, parts_of
from pymc_ep.models.bilinear.engine import singular_value_shrinkage as vbmf
from pymc_ep.numerics.factorisation.sparse_plus_low_rank import LeadingPairs, SparsePlusLowRank

NAME = "docs/benchmarks/shrinkage_choices.py"
CASES = {("LastFM, counts", 0.8): 0.3, ("Melbourne, bits", 0.8): 1.0, ("Melbourne, counts", 0.9): 1.0}
"""Matrix and share that is missing, and a scale of the prior at which columns are kept."""
TOL = 1e-6
"""Of the eigenvalue solvers, relative: that of our own where its pairs are to be as good as exact."""
STEPS = 1000


class Operated(SparsePlusLowRank):
    """The same matrix for solvers that know products with vectors."""

    def leading(self, basis: np.ndarray, wanted: int, **options: Any) -> LeadingPairs:
        """Return what each step takes: it is exact here."""
        return self.improved(basis)

    def forward(self, x: np.ndarray) -> np.ndarray:
        """Return the product with vectors, (n,) or (n, k)."""
        return self.sparse @ x + self.left @ (self.right.T @ x)

    def adjoint(self, x: np.ndarray) -> np.ndarray:
        """Return the product of the transpose."""
        return self.transposed @ x + self.right @ (self.left.T @ x)


class Arpack(Operated):
    """Exact pairs in each step, by ARPACK from the leading vector of the step before."""

    def improved(self, basis: np.ndarray) -> LeadingPairs:
        """Return as many pairs as the basis has columns."""
        m, n = self.sparse.shape
        operator = scipy.sparse.linalg.LinearOperator((m, n), matvec=self.forward, rmatvec=self.adjoint, dtype=float)
        first = basis[:, 0] if n <= m else self.forward(basis[:, 0])
        left, values, right = scipy.sparse.linalg.svds(operator, k=basis.shape[1], tol=TOL, v0=first)
        order = np.argsort(-values)
        return LeadingPairs(left[:, order], values[order], right[order].T)


class Lobpcg(Operated):
    """Exact pairs in each step, by LOBPCG from all vectors of the step before."""

    def improved(self, basis: np.ndarray) -> LeadingPairs:
        """Return as many pairs as the basis has columns."""
        n = self.sparse.shape[1]
        gram = scipy.sparse.linalg.LinearOperator(
            (n, n),
            matvec=lambda x: self.adjoint(self.forward(x)),
            matmat=lambda x: self.adjoint(self.forward(x)),
            dtype=float,
        )
        with warnings.catch_warnings():
            # Of values that have not settled to the last of its digits.
            warnings.simplefilter("ignore")
            _, right = scipy.sparse.linalg.lobpcg(gram, np.linalg.qr(basis)[0], tol=None, maxiter=50)
        return super().improved(right)


@contextmanager
def solved_by(kind: type[SparsePlusLowRank]) -> Iterator[None]:
    """Put another solver in place of ours."""
    with mock.patch.object(vbmf, "SparsePlusLowRank", kind):
        yield


@contextmanager
def not_carried_on() -> Iterator[None]:
    """Take the pseudo-data at the means themselves in each step."""
    own = vbmf.SingularValueShrinkage._moved

    def moved(self: Any, prior: Any, state: Any, *, exactly: bool = False) -> Any:
        return own(self, prior, state._replace(momentum=1.0), exactly=exactly)

    with mock.patch.object(vbmf.SingularValueShrinkage, "_moved", moved):
        yield


VARIANTS = {
    "one step of a subspace iteration": lambda: solved_by(SparsePlusLowRank),
    "the same, not carried on": not_carried_on,
    "ARPACK": lambda: solved_by(Arpack),
    "LOBPCG": lambda: solved_by(Lobpcg),
}


def measured(name: str, missing: float, variant: str) -> dict[str, Any]:
    """Fit to the end, and say how long it took and where it ended."""
    parts, bits = parts_of(name, missing), name.endswith("bits")
    model = model_of(parts.shape, parts.learned, bits, CASES[name, missing], RANK)
    # The first fit of the process compiles.
    fitted(model, "vb", max_iter=1)
    with VARIANTS[variant]():
        idata, seconds = fitted(model, "vb", max_iter=STEPS)
    fit = idata["fit"]
    return {
        "seconds": seconds,
        "steps": int(fit["n_iter"]),
        "bound": float(fit["log_evidence"]),
        "converged": bool(fit["converged"]),
        "cells": len(parts.learned.y),
    }


def page(store: Store) -> list[str]:
    """Return the parts of the page."""
    parts = [header("Solvers and acceleration", NAME, "numba"), INTRODUCTION]
    for name, missing in CASES:
        rows = {variant: store.rows.get(f"{name}/{missing}/{variant}") for variant in VARIANTS}
        known = {variant: row for variant, row in rows.items() if row}
        if not known:
            continue
        most = max(row["bound"] for row in known.values())
        lines = [
            [
                variant,
                f"{row['seconds']:.3g}",
                str(row["steps"]) + ("" if row["converged"] else " (not settled)"),
                f"{1000 * row['seconds'] / row['steps']:.3g}",
                f"{(most - row['bound']) / row['cells']:.2g}",
            ]
            for variant, row in known.items()
        ]
        shape = " x ".join(map(str, matrix(name).shape))
        parts += [f"## {name}, {shape}, {missing:.0%} missing\n", markdown_table(HEAD, lines)]
    return [*parts, store.measured()]


HEAD = ["pairs by", "seconds", "steps", "ms a step", "bound below the best, nats a cell"]
INTRODUCTION = f"""\
`method="vbmf"` with rank {RANK} and scales held, to its own tolerance, or {STEPS} steps. Each step needs the leading
singular vectors of the pseudo-data.

- Ours: one step of a subspace iteration, from the vectors of the step before. Exact vectors only where the bound
  would not rise.
- "Not carried on": without Nesterov's acceleration.
- ARPACK, LOBPCG: SciPy's solvers, which find exact vectors in every step.
- Seconds are the processor's with one thread. They include those of modes to start from.
"""


def main() -> None:
    """Measure and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--page", action="store_true", help="write the page from the rows that there are")
    options = parser.parse_args()
    store = Store("shrinkage_choices")
    for case, variant in () if options.page else product(CASES, VARIANTS):
        store.get(f"{case[0]}/{case[1]}/{variant}", lambda how=(*case, variant): measured(*how))
    print(write_page("shrinkage_choices", page(store)))


if __name__ == "__main__":
    main()
