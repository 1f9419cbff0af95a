"""What the closed form of singular value shrinkage costs: one curvature for all cells, or one a row, column or cell.

    python -m docs.benchmarks.shrinkage_curvatures [--page]

Needs the folders ``melbourne-pedestrians`` and ``hetrec2011-lastfm-2k`` under ``PYMC_EP_DATA``. Rows that are done are
kept in ``docs/benchmarks/rows``. Writes docs/benchmarks/shrinkage.md.
"""

import argparse
import itertools
import warnings
from functools import cache
from typing import Any, NamedTuple

import numpy as np

import pymc_ep as pmep
from docs.benchmarks._cells import Observed, Split, log_likelihood, model_of
from docs.benchmarks._common import header, markdown_table, write_page
from docs.benchmarks._images import Store
from docs.benchmarks.shrinkage import RANK, fitted, matrix, parts_of
from pymc_ep.sites.cells.base import CurvedCellSite
from pymc_ep.sites.cells.likelihoods import BernoulliCells, SoftplusPoissonCells

NAME = "docs/benchmarks/shrinkage_curvatures.py"
CASES = {("LastFM, counts", 0.8): 0.3, ("Melbourne, counts", 0.9): 1.0, ("Melbourne, bits", 0.9): 1.0}
"""Matrix and share that is missing, and a scale of the prior at which columns are kept."""
CLOSED, LOCAL = "one, of all cells, in closed form", 'bounds of each cell that follow the posterior: `method="vg"`'
CURVATURES = (
    "one, of all cells",
    "one a row, of all cells",
    "one a column, of all cells",
    "one, of observed cells",
    "one a row, of observed cells",
    "one a column, of observed cells",
    "each observed cell's own",
)
TOL, SWEEPS = 1e-6, 2000
"""Increase of the bound for each cell at which ascent ends, and sweeps at most."""


class Side(NamedTuple):
    """Gaussian rows: means, (I, D), and covariances, (I, D, D)."""

    mean: np.ndarray
    covariance: np.ndarray

    @property
    def second(self) -> np.ndarray:
        """E v v^T, (I, D, D)."""
        return self.mean[:, :, None] * self.mean[:, None, :] + self.covariance


def site_of(bits: bool) -> CurvedCellSite:
    """Return the likelihood of cells."""
    return BernoulliCells() if bits else SoftplusPoissonCells()


@cache
def closed(name: str, missing: float) -> Any:
    """Return where the closed form ends, which the ascents start from."""
    parts = parts_of(name, missing)
    model = model_of(parts.shape, parts.learned, name.endswith("bits"), CASES[name, missing], RANK)
    return fitted(model, "vb", max_iter=SWEEPS)[0]


def curvature_of(how: str, cells: Observed, shape: tuple[int, int], bits: bool) -> np.ndarray:
    """Return by how much the pseudo-data of each cell curve, (I, J): by no less than its log density anywhere."""
    own = np.zeros(shape)
    own[cells.rows, cells.cols] = site_of(bits).curvature(cells.y * 1.0)[0]
    axis = 1 if "row" in how else 0 if "column" in how else None
    largest = np.broadcast_to(own.max(axis=axis, keepdims=True), shape)
    if how.startswith("each"):
        return own
    return largest if "all cells" in how else np.where(own > 0, largest, 0.0)


def ascended(how: str, parts: Split, start: tuple[Side, Side], scale: float, bits: bool) -> dict[str, Any]:
    """Raise the bound of pseudo-data by coordinate ascent, from a given posterior, and score it."""
    cells, (left, right) = parts.learned, start
    curvature, site = curvature_of(how, cells, parts.shape, bits), site_of(bits)
    at, y = (cells.rows, cells.cols), cells.y * 1.0
    bounds = [evaluated(curvature, cells, left, right, scale, bits)]
    while len(bounds) <= SWEEPS:
        for turned in (False, True):
            f = left.mean @ right.mean.T
            pulled = curvature * f
            pulled[at] += site.slopes(y, f[at])[0]
            if turned:
                right = best_rows(curvature.T, pulled.T, left, scale)
            else:
                left = best_rows(curvature, pulled, right, scale)
        bounds.append(evaluated(curvature, cells, left, right, scale, bits))
        if bounds[-1] - bounds[-2] < TOL * len(y):
            break
    assert (np.diff(bounds) > -1e-9 * abs(bounds[0])).all(), "coordinate ascent lowered its bound"
    held = parts.held_out
    f = (left.mean @ right.mean.T)[held.rows, held.cols]
    settled = bounds[-1] - bounds[-2] < TOL * len(y)
    return {
        "bound": bounds[-1],
        "loss": -float(log_likelihood(held.y, f, bits).mean()),
        "steps": len(bounds) - 1,
        "converged": bool(settled),
    }


def best_rows(curvature: np.ndarray, pulled: np.ndarray, other: Side, scale: float) -> Side:
    """Return the best rows for pseudo-data that curve by so much and pull at predictors, (I, J) each."""
    d = other.mean.shape[1]
    precision = np.eye(d) / scale**2 + (curvature @ other.second.reshape(len(other.mean), -1)).reshape(-1, d, d)
    covariance = np.linalg.inv(precision)
    return Side((covariance @ (pulled @ other.mean)[:, :, None])[:, :, 0], covariance)


def evaluated(curvature: np.ndarray, cells: Observed, left: Side, right: Side, scale: float, bits: bool) -> float:
    """Return the sum of log p(y | E f) - curvature Var f / 2 less both divergences from the prior."""
    f = left.mean @ right.mean.T
    d = left.mean.shape[1]
    squares = left.second.reshape(-1, d * d) @ right.second.reshape(-1, d * d).T
    value = log_likelihood(cells.y, f[cells.rows, cells.cols], bits).sum() - 0.5 * (curvature * (squares - f**2)).sum()
    for side in (left, right):
        traces = np.einsum("idd->i", side.second) / scale**2
        logs = np.linalg.slogdet(side.covariance)[1] - 2 * d * np.log(scale)
        value -= 0.5 * (traces - d - logs).sum()
    return float(value)


def measured(name: str, missing: float, how: str) -> dict[str, Any]:
    """Fit with curvatures of a kind."""
    parts, bits, scale = parts_of(name, missing), name.endswith("bits"), CASES[name, missing]
    if how == LOCAL:
        model = model_of(parts.shape, parts.learned, bits, scale, RANK)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", pmep.ConvergenceWarning)
            idata = pmep.fit("vg", model=model, hyper="fixed", covariance="full", draws=0, progressbar=False)
    else:
        idata = closed(name, missing)
    fit, means = idata["fit"], [idata["posterior_mean"][one].to_numpy() for one in "VU"]
    if how in (CLOSED, LOCAL):
        f = np.einsum("cd,cd->c", means[0][parts.held_out.rows], means[1][parts.held_out.cols])
        loss = -float(log_likelihood(parts.held_out.y, f, bits).mean())
        settled = {"steps": int(fit["n_iter"]), "converged": bool(fit["converged"])}
        return {"bound": float(fit["log_evidence"]), "loss": loss, "cells": len(parts.learned.y)} | settled
    spreads = [idata["posterior_sd"][one].to_numpy()[:, :, None] ** 2 * np.eye(RANK) for one in "VU"]
    left, right = (Side(mean, spread) for mean, spread in zip(means, spreads))
    return ascended(how, parts, (left, right), scale, bits) | {"cells": len(parts.learned.y)}


def page(store: Store) -> list[str]:
    """Return the parts of the page."""
    parts = [header("Curvatures by row, column or cell", NAME, "numba"), INTRODUCTION]
    for name, missing in CASES:
        kinds = (CLOSED, *CURVATURES, LOCAL)
        known = {how: row for how in kinds if (row := store.rows.get(f"{name}/{missing}/{how}"))}
        if not known:
            continue
        lines = [
            [
                how,
                f"{row['bound'] / row['cells']:.4f}",
                f"{row['loss']:.4f}",
                str(row["steps"]) + ("" if row["converged"] else " (not settled)"),
            ]
            for how, row in known.items()
        ]
        shape = " x ".join(map(str, matrix(name).shape))
        parts += [f"## {name}, {shape}, {missing:.0%} missing\n", markdown_table(HEAD, lines)]
    return [*parts, store.measured()]


HEAD = ["curvature of the pseudo-data", "bound, nats a cell", "loss of cells left out", "steps"]
INTRODUCTION = f"""\
`method="vbmf"` bounds the log density of every cell by a parabola. All cells of the matrix have one curvature,
whether observed or not. This is what makes its best posterior one of singular values.

Two changes raise the bound: curvatures that differ by row or column, which Seeger and Bouchard (2012) leave to future
work, and none where nothing is observed. Neither has a closed form, as rows and their prior no longer scale alike.
Here they are ascended row by row, with full covariances and dense arrays, from where the closed form ends.
`method="vg"` ascends too, and its bounds of each cell follow the posterior.

Rank {RANK}, scales held. The model is the same in every line, so that bounds on its evidence compare. Loss: mean
negative log likelihood of the cells left out, at posterior means.
"""


def main() -> None:
    """Measure and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--page", action="store_true", help="write the page from the rows that there are")
    options = parser.parse_args()
    store = Store("shrinkage_curvatures")
    for case, how in () if options.page else itertools.product(CASES, (CLOSED, *CURVATURES, LOCAL)):
        store.get(f"{case[0]}/{case[1]}/{how}", lambda what=(*case, how): measured(*what))
    print(write_page("shrinkage_curvatures", page(store)))


if __name__ == "__main__":
    main()
