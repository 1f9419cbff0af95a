"""A Cox process in the plane: Beilschmiedia trees in the forest of Barro Colorado Island, under three links.

    python -m docs.benchmarks.cox_process [--grids coarse fine] [--exact exp softplus rectified]

Counts of 3,604 trees in cells of a plot of 1000 m by 500 m, with elevation and slope as covariates beside a Gaussian
process in the plane: 20 x 40 cells with the process as it is, 50 x 100 cells with a Hilbert-space approximation of it
and, for the links of ``--exact``, once with the process itself. Needs the folder ``point-patterns`` under
``PYMC_EP_DATA``. Writes docs/benchmarks/links.md; about ten minutes.
"""

import argparse
import json
import os
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
import pandas as pd
import pymc as pm

from docs.benchmarks._common import PAGES, header, markdown_table, write_page
from docs.benchmarks._counts import (
    FOLDS,
    LINKS,
    add_counts,
    all_scores,
    difference,
    finite_basis,
    fit_all,
    folds,
    plain,
    predictor_prior,
    score_fold,
)

NAME = "docs/benchmarks/cox_process.py"
STORE = PAGES.parents[1] / "build" / "cox_process.json"
WIDTH, HEIGHT = 1000.0, 500.0
BASIS, STRETCH = [40, 20], 1.3
"""Functions along either side, and how much farther than the plot the approximation reaches."""


class Grid(NamedTuple):
    """Cells of the plot; `folds` of the five that are held out in turn."""

    rows: int
    columns: int
    folds: int
    basis: bool


GRIDS = {"coarse": Grid(20, 40, 5, False), "fine": Grid(50, 100, 1, True)}


class Cells(NamedTuple):
    """Counts, (n,), centres in metres, (n, 2), and standardised elevation and slope, (n, 2)."""

    counts: np.ndarray
    centres: np.ndarray
    covariates: np.ndarray


def cells(grid: Grid) -> Cells:
    """Count trees, and average the covariates' 5 m raster, by cell."""
    folder = Path(os.environ["PYMC_EP_DATA"]) / "point-patterns"
    trees, raster = pd.read_csv(folder / "bei.csv"), np.load(folder / "bei_covariates.npz")
    x, y = np.linspace(0, WIDTH, grid.columns + 1), np.linspace(0, HEIGHT, grid.rows + 1)
    counts = np.histogram2d(trees["y"], trees["x"], bins=[y, x])[0].ravel().astype(np.int64)
    centres = np.stack([c.ravel() for c in np.meshgrid((x[1:] + x[:-1]) / 2, (y[1:] + y[:-1]) / 2)], axis=1)
    at = [
        np.clip(np.searchsorted(edges, raster[k], side="right") - 1, 0, len(edges) - 2)
        for edges, k in ((y, "yrow"), (x, "xcol"))
    ]
    cell = (at[0][:, None] * grid.columns + at[1]).ravel()
    sums = [np.bincount(cell, weights=raster[k].ravel(), minlength=len(counts)) for k in ("elev", "grad")]
    means = np.stack(sums, axis=1) / np.bincount(cell, minlength=len(counts))[:, None]
    return Cells(counts, centres, (means - means.mean(axis=0)) / means.std(axis=0))


def build(link: str, data: Cells, basis: bool) -> pm.Model:
    """Return the model of one link; priors in units of the predictor."""
    centre, unit = predictor_prior(link, data.counts)
    with pm.Model() as model:
        ell, amp = pm.LogNormal("ell", np.log(50), 1), pm.HalfNormal("amp", 3 * unit)
        level, beta = pm.Normal("level", centre, 3 * unit), pm.Normal("beta", 0, unit, shape=2)
        covariance = amp**2 * pm.gp.cov.Matern32(2, ls=ell)
        if basis:
            f = finite_basis(pm.gp.HSGP(cov_func=covariance, m=BASIS, c=STRETCH), data.centres)
        else:
            f = pm.gp.Latent(cov_func=covariance).prior("f", X=data.centres, reparameterize=False)
        add_counts(link, level + pm.math.dot(data.covariates, beta) + f, data.counts)
    return model


def measure(name: str, link: str) -> dict[str, Any]:
    """Fit to all cells of the coarse grid and to the training parts of either."""
    grid = GRIDS[name]
    data = cells(grid)
    model = build(link, data, grid.basis)
    out: dict[str, Any] = {"n": len(data.counts)}
    start = None
    if not grid.basis:
        whole = fit_all(model, data.counts)
        start = whole.modes
        out["whole"] = plain(whole)
        out["approximation"] = fit_all(build(link, data, True), data.counts, start, "fixed").log_evidence
    parts = folds(len(data.counts))[: grid.folds]
    out["folds"] = [plain(score_fold(model, data.counts, part, start)) for part in parts]
    return out


def exact(link: str, modes: dict[str, float]) -> dict[str, Any]:
    """Fit the process itself to the training part of the fine grid, at given hyperparameters."""
    data = cells(GRIDS["fine"])
    return plain(score_fold(build(link, data, False), data.counts, folds(len(data.counts))[0], modes, "fixed"))


# The page


def grid_part(name: str, results: dict[str, Any]) -> list[str]:
    """Return heading, table and differences of one grid."""
    grid, rows = GRIDS[name], []
    for link, r in results.items():
        first = r.get("whole", r["folds"][0])
        seconds = [fold["seconds"] for fold in r["folds"]]
        rows.append(
            [
                link,
                f"{all_scores(r['folds']).mean():.4f}",
                f"{first['log_evidence']:.2f}",
                *(f"{first['modes'][h]:.3g}" for h in ("ell", "amp")),
                f"{first['seconds']:.3g} ({first['evaluations']})",
                f"{np.median(seconds):.3g}" if "whole" in r else "-",
                str(sum(not fold["converged"] for fold in [first, *r["folds"]])),
            ]
        )
    apart = differences({link: all_scores(r["folds"]) for link, r in results.items()})
    head = [
        "link",
        "held-out log density",
        "log evidence",
        "ell, m",
        "amp",
        "first fit, s (evaluations)",
        "fold, s",
        "not converged",
    ]
    what = HEADINGS[name].format(rows=grid.rows, columns=grid.columns, n=grid.rows * grid.columns)
    return [what, markdown_table(head, rows), f"Differences on the same cells: {apart}.\n"]


def page(results: dict[str, Any]) -> list[str]:
    """Return the parts of the page."""
    parts = [header("Trees in the plane", NAME), INTRODUCTION]
    for name in results:
        parts += grid_part(name, results[name])
    return [*parts, *approximation_part(results), CONCLUSION]


def approximation_part(results: dict[str, Any]) -> list[str]:
    """Return what the approximation costs."""
    rows = [
        ["coarse", link, f"{r['whole']['log_evidence']:.2f}", f"{r['approximation']:.2f}", "-", "-", "-"]
        for link, r in results.get("coarse", {}).items()
    ]
    for link, r in results.get("fine", {}).items():
        if not (itself := r.get("exact")):
            continue
        evidence = [f"{fit['log_evidence']:.2f}" for fit in (itself, r["folds"][0])]
        density = [f"{np.mean(fit['log_density']):.4f}" for fit in (itself, r["folds"][0])]
        rows.append(["fine", link, *evidence, *density, f"{itself['seconds']:.3g}"])
    head = ["grid", "link", "log evidence, process", "approximation", "held-out log density, process", "approximation"]
    parts = [APPROXIMATION, markdown_table([*head, "one fit of the process, s"], rows)]
    itself = {link: np.array(r["exact"]["log_density"]) for link, r in results.get("fine", {}).items() if "exact" in r}
    if len(itself) == len(LINKS):
        parts.append(f"Differences on the fine grid, with the process itself: {differences(itself)}.\n")
    return parts


def differences(densities: dict[str, np.ndarray]) -> str:
    """Format the differences of the exponential link from the others on the same cells."""
    best = densities["exp"]
    return "; ".join(f"exp - {link}: {difference(best, other)}" for link, other in densities.items() if link != "exp")


INTRODUCTION = f"""\
3,604 trees (Beilschmiedia pendula, Barro Colorado Island) on 1000 m by 500 m, counted in cells.

- Predictor: a level, elevation and slope (averaged by cell, standardised), and a Gaussian process with a Matern 3/2
  covariance.
- Priors: length scale LogNormal(log 50 m, 1), amplitude HalfNormal(3 u), level Normal(predictor at the mean count, 3
  u), both coefficients Normal(0, u). The unit u is 1 for the exponential link, and the mean count, at least 1, for
  the others.
- Hyperparameters are at the maximum of log evidence plus log prior.
- Cells are held out at random, in {FOLDS} parts of equal size.
- Log density is the mean of log p(count) over held-out cells, in nats: higher is better.
- Standard errors of differences are over cells, as if these were independent.
- One thread of BLAS. Other work ran on the machine, so that seconds are upper bounds.
"""
HEADINGS = {
    "coarse": """## {rows} x {columns} cells

The process itself, in the space of the {n} observations. Evidence, hyperparameters and the first seconds are those of a
fit to all cells, compilation included. The folds have the same compiled model, and start at its hyperparameters.
""",
    "fine": f"""## {{rows}} x {{columns}} cells

A Hilbert-space approximation with {BASIS[0]} x {BASIS[1]} functions, {STRETCH} times as wide as the plot, in the space
of its coefficients. One part is held out. Evidence is that of the other four fifths. Seconds include compilation.
""",
}
APPROXIMATION = """## The approximation

The process itself and its approximation at the same hyperparameters. On the coarse grid these are those of the
process and of all cells. On the fine grid they are those of the approximation and of four fifths of the cells. The
length scales are near the shortest that so few functions can follow, which costs evidence.
"""
CONCLUSION = """\
The exponential link predicts best on both grids. The trees grow in dense clusters, where effects multiply, and under
this link covariates and process act on ratios. On the fine grid the approximation costs as much predictive density as
the softplus link, or more. Where the process itself can be fitted, it is worth its time.
"""


def save(results: dict[str, Any]) -> None:
    """Keep what was measured."""
    STORE.parent.mkdir(exist_ok=True)
    STORE.write_text(json.dumps(results))


def main() -> None:
    """Measure and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--grids", nargs="*", default=list(GRIDS), choices=list(GRIDS))
    parser.add_argument("--exact", nargs="*", default=list(LINKS), choices=LINKS, help="of the fine grid")
    options = parser.parse_args()
    results = json.loads(STORE.read_text()) if STORE.exists() else {}
    for name in options.grids:
        results[name] = {link: measure(name, link) for link in LINKS}
        save(results)
    for link in options.exact if "fine" in results else ():
        results["fine"][link]["exact"] = exact(link, results["fine"][link]["folds"][0]["modes"])
        save(results)
    print(write_page("cox_process", page({name: results[name] for name in GRIDS if name in results})))


if __name__ == "__main__":
    main()
