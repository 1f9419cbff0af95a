"""Fields on maps and meshes beside NUTS, a dense process, a Hilbert-space approximation, and a grid.

    python -m docs.benchmarks fields [--models NAME ...]

Lip cancer in Scotland and oral cancer in Germany by `BYM2`; zinc in the soil of a plain of the Meuse by `SPDE`, by its
covariance and by `pm.gp.HSGP`, all with one Matern prior of smoothness 1; and 3,604 trees as a log Gaussian Cox
process, on a mesh and in the cells of a grid. Each is fitted twice, and some are sampled by nutpie, in a process of its
own with one thread of BLAS. Needs nutpie, rdata, and the data: the folders ``disease-mapping`` and ``point-patterns``
under ``PYMC_EP_DATA``, a checkout of stan-dev/example-models named by ``PUBLIC_STAN_EXAMPLES``, and by ``PUBLIC_MEUSE``
the file ``meuse.rda`` of R's package sp (Burrough and McDonnell 1998), which Debian has as r-cran-sp. Writes its part
of docs/benchmarks/fields.md. Half an hour.
"""

import json
import logging
import os
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pymc as pm
import pytensor.tensor as pt
import scipy.sparse
from scipy.interpolate import RegularGridInterpolator

import pymc_ep as pmep
from docs.benchmarks._common import PAGES, chosen_models, header, markdown_table, printed_apart, write_page
from docs.benchmarks.cox_process import Grid, cells
from docs.benchmarks.latent_fields_nuts import against, fitted_twice, germany, scotland
from pymc_ep.compat import group

MEUSE = "PUBLIC_MEUSE"
"""Environment variable with the path of ``meuse.rda``."""
WINDOW = np.array([[0.0, 0.0], [1000.0, 0.0], [1000.0, 500.0], [0.0, 500.0]])
"""Corners of the plot of trees, in metres."""
PICTURED = "trees, mesh of 12.5 m"
BASIS, STRETCH = [24, 24], 1.5
"""Functions along either side, and how much farther than the data the approximation reaches."""


class Matern1(pm.gp.cov.Stationary):
    """Matern covariance of smoothness 1, that of `SPDE`: r K_1(r) at distances r in units of ls = range / sqrt(8)."""

    def full_from_distance(self, dist: Any, squared: bool = False) -> Any:
        """Return the covariance at scaled distances."""
        r = pt.maximum(pt.sqrt(dist + 1e-14) if squared else dist, 1e-6)
        return r * pt.kv(1.0, r)

    def power_spectral_density(self, omega: Any) -> Any:
        """Return the spectral density in the plane at frequencies, (m, 2)."""
        kappa2 = 1.0 / pt.squeeze(self.ls) ** 2
        return 4.0 * np.pi * kappa2 / (kappa2 + pt.sum(omega**2, axis=1)) ** 2


def disease_map(read: Callable[[], tuple[pd.DataFrame, np.ndarray]]) -> pm.Model:
    """Write the model of a map, islands included."""
    areas, edges = read()
    n = len(areas)
    w = scipy.sparse.coo_array((np.ones(len(edges)), edges.T), shape=(n, n)).tocsr()
    with pm.Model() as model:
        sigma, rho = pmep.priors.pc_sigma("sigma", u=1, alpha=0.01), pm.Beta("rho", 0.5, 0.5)
        eta = pm.Normal("level", 0, 1) + pmep.BYM2("effect", W=w.maximum(w.T), sigma=sigma, rho=rho)
        if "aff_percent" in areas:
            eta += pm.Normal("outdoors", 0, 1) * areas["aff_percent"].to_numpy() / 10
        risk = pm.Deterministic("risk", eta)
        pm.Poisson("y", areas["expected"].to_numpy() * pm.math.exp(risk), observed=areas["observed"].to_numpy())
    return model


def scotland_of_inla() -> pm.Model:
    """Write the model of Scotland with the islands joined, and the priors, of Stan's case study by Morris (2019)."""
    folder = Path(os.environ["PUBLIC_STAN_EXAMPLES"]) / "knitr" / "car-iar-poisson" / "update_2021_02"
    data = json.loads((folder / "scotland_connected.data.json").read_text())
    edges, n = np.array(data["edges"]) - 1, data["I"]
    w = scipy.sparse.coo_array((np.ones(len(edges[0])), edges), shape=(n, n)).tocsr()
    with pm.Model() as model:
        sigma, rho = pm.HalfNormal("sigma", 1), pm.Beta("rho", 0.5, 0.5)
        level, outdoors = pm.Normal("level", 0, 30), pm.Normal("outdoors", 0, 30)
        effect = pmep.BYM2("effect", W=w + w.T, sigma=sigma, rho=rho)
        risk = pm.Deterministic("risk", level + outdoors * np.array(data["x"]) / 10 + effect)
        pm.Poisson("y", np.array(data["E"]) * pm.math.exp(risk), observed=np.array(data["y"]))
    return model


def meuse(prior: str, edge: float = 0.05) -> pm.Model:
    """Write the model of the logarithm of zinc; lengths in kilometres."""
    import rdata

    table = rdata.read_rda(os.environ[MEUSE])["meuse"]
    places = table[["x", "y"]].to_numpy(dtype=float) / 1000
    places -= places.mean(axis=0)
    with pm.Model() as model:
        length = pmep.priors.pc_range("range", r0=0.1, alpha=0.05)
        sigma, noise = pmep.priors.pc_sigma("sigma", u=2, alpha=0.05), pm.HalfNormal("noise", 0.5)
        trend = pm.Normal("level", 6, 2) + pm.Normal("slope", 0, 3) * np.sqrt(table["dist"].to_numpy(dtype=float))
        if prior == "SPDE":
            field = pmep.SPDE("f", mesh=pmep.meshes.around(places, longest=edge), range=length, sigma=sigma).at(places)
        else:
            covariance = sigma**2 * Matern1(2, ls=length / np.sqrt(8.0))
            if prior == "HSGP":
                field = pm.gp.HSGP(cov_func=covariance, m=BASIS, c=STRETCH).prior("f", X=places)
            else:
                field = pm.gp.Latent(cov_func=covariance).prior("f", X=places, reparameterize=False)
        risk = pm.Deterministic("risk", trend + field)
        pm.Normal("y", risk, noise, observed=np.log(table["zinc"].to_numpy(dtype=float)))
    return model


def tree_mesh(edge: float) -> tuple[pmep.meshes.Mesh, np.ndarray]:
    """Return a mesh of the plot of trees, and their places, (m, 2)."""
    points = pd.read_csv(Path(os.environ["PYMC_EP_DATA"]) / "point-patterns" / "bei.csv")[["x", "y"]].to_numpy()
    return pmep.meshes.around(WINDOW, longest=edge, rim=150), points


def trees(edge: float, given: tuple[float, float] | None = None) -> pm.Model:
    """Write the Cox process on a mesh, with range and standard deviation learned or given; lengths in metres."""
    folder = Path(os.environ["PYMC_EP_DATA"]) / "point-patterns"
    raster = np.load(folder / "bei_covariates.npz")
    mesh, points = tree_mesh(edge)
    exposure = mesh.areas_within(WINDOW)
    seen = exposure > 0
    nearest = np.clip(mesh.vertices[seen], WINDOW[0], WINDOW[2])[:, ::-1]
    grids = [RegularGridInterpolator((raster["yrow"], raster["xcol"]), raster[k]) for k in ("elev", "grad")]
    covariates = np.stack([grid(nearest) for grid in grids], axis=1)
    field = partial(pmep.SPDE, mesh=mesh)
    return cox_process(field, seen, covariates, exposure[seen], mesh.counts(points)[seen], given)


def trees_in_cells(rows: int, columns: int, given: tuple[float, float] | None = None) -> pm.Model:
    """Write the same in cells, with a dense process."""
    data = cells(Grid(rows, columns, 0, False))

    def field(name: str, range: Any, sigma: Any) -> Any:
        gp = pm.gp.Latent(cov_func=sigma**2 * Matern1(2, ls=range / np.sqrt(8.0)))
        return gp.prior(name, X=data.centres, reparameterize=False)

    n = len(data.counts)
    area = np.full(n, WINDOW[2].prod() / n)
    return cox_process(field, np.ones(n, dtype=bool), data.covariates, area, data.counts, given)


def cox_process(
    field: Callable[..., Any],
    seen: np.ndarray,
    covariates: np.ndarray,
    area: np.ndarray,
    counts: np.ndarray,
    given: tuple[float, float] | None,
) -> pm.Model:
    """Write a log Gaussian Cox process with standardised covariates."""
    standard = (covariates - covariates.mean(axis=0)) / covariates.std(axis=0)
    with pm.Model() as model:
        length, sigma = given or (
            pmep.priors.pc_range("range", r0=20, alpha=0.05),
            pmep.priors.pc_sigma("sigma", u=3, alpha=0.05),
        )
        level = pm.Normal("level", np.log(counts.sum() / area.sum()), 3)
        elevation, slope = pm.Normal("elevation", 0, 1), pm.Normal("slope", 0, 1)
        eta = level + elevation * standard[:, 0] + slope * standard[:, 1] + field("f", range=length, sigma=sigma)[seen]
        risk = pm.Deterministic("risk", eta)
        pm.Poisson("y", area * pm.math.exp(risk), observed=counts)
    return model


MODELS: dict[str, tuple[int, Callable[[], pm.Model]]] = {
    "Scotland, BYM2": (10_000, partial(disease_map, scotland)),
    "Scotland, islands joined, BYM2": (10_000, scotland_of_inla),
    "Germany, BYM2": (10_000, partial(disease_map, germany)),
    "zinc, SPDE, mesh of 100 m": (500, partial(meuse, "SPDE", 0.1)),
    "zinc, SPDE, mesh of 50 m": (0, partial(meuse, "SPDE")),
    "zinc, the process": (0, partial(meuse, "process")),
    "zinc, HSGP": (2_000, partial(meuse, "HSGP")),
    "trees, mesh of 25 m": (500, partial(trees, 25.0)),
    "trees, 20 x 40 cells": (0, partial(trees_in_cells, 20, 40)),
    PICTURED: (0, partial(trees, 12.5)),
    "trees, mesh of 12.5 m, range given": (0, partial(trees, 12.5, (100.0, 1.4))),
    "trees, 40 x 80 cells, range given": (0, partial(trees_in_cells, 40, 80, (100.0, 1.4))),
}
"""Draws of a chain, none where the model is not sampled, and the model."""
SHOWN = ("sigma", "rho", "range", "noise", "level", "slope", "outdoors", "elevation")
"""Scalars whose moments are shown, where a model has them."""


def worker(name: str) -> None:
    """Fit and sample one model in this process, and print the result as a line of JSON."""
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    draws, build = MODELS[name]
    model = build()
    fit, spent = fitted_twice(model)
    means, sds = (group(fit, f"posterior_{what}") for what in ("mean", "sd"))
    out: dict[str, Any] = {
        "unknowns": sum(point.size for point in model.initial_point().values()),
        "spent": spent,
        "evidence": float(group(fit, "fit")["log_evidence"]),
        "elpd": float(pmep.loo(fit, model).elpd),
        "converged": bool(group(fit, "fit")["converged"]),
        "found": {k: [float(means[k]), float(sds[k])] for k in SHOWN if k in means},
    }
    if name == PICTURED:
        draw(fit)
    print(json.dumps(out | against(model, fit, draws) if draws else out))


def draw(fit: Any) -> None:
    """Draw the field of trees."""
    mesh, points = tree_mesh(12.5)
    axes = pmep.plots.plot_field(fit, "f", mesh, points=points, figsize=(11, 3))
    for panel in axes:
        panel.set(xlim=(0, 1000), ylim=(0, 500))
    axes[0].figure.savefig(PAGES / "fields.png", dpi=100)


def main() -> None:
    """Measure all and write the page."""
    models = chosen_models(__doc__, MODELS, worker)
    load, rows = os.getloadavg()[0], []
    for name in models:
        found = printed_apart(__file__, name)
        shown = "; ".join(f"{k} {mean:.3g} ({sd:.2g})" for k, (mean, sd) in found["found"].items())
        cells = [str(found["unknowns"]), *(f"{s:.1f}" for s in found["spent"]), f"{found['evidence']:.1f}"]
        cells += [f"{found['elpd']:.1f}", shown]
        if "nuts" in found:
            low, high = found["sds"]
            hyper = max(abs(off) for off, _ in found["hyper"].values())
            ratios = [ratio for _, ratio in found["hyper"].values()]
            cells += [f"{found['nuts']:.0f}", f"{found['ess']:.0f}", f"{found['mean']:.2f}", f"{low:.2f} to {high:.2f}"]
            cells += [f"{hyper:.2f}", f"{min(ratios):.2f} to {max(ratios):.2f}"]
        else:
            cells += ["-"] * 6
        rows.append([name, *cells, "yes" if found["converged"] else "no"])
        print(*rows[-1], sep=" | ", flush=True)
    head = ["model", "unknowns", "first fit, s", "again, s", "log evidence", "elpd", "mean (sd)", "nutpie, s"]
    head += ["least ESS", "worst mean, sd", "sds, ratio", "scalars: worst mean, sd", "sds, ratio", "converged"]
    text = f"Processor seconds; load average {load:.1f} to {os.getloadavg()[0]:.1f}. With draws.\n"
    title = header("Fields beside others", "docs/benchmarks/fields.py", "nutpie")
    print(write_page("fields", [title, text, markdown_table(head, rows)]))


if __name__ == "__main__":
    main()
