"""Disease maps: Scotland (56 districts), Germany (544 regions), Finland (911 cells).

    python -m docs.benchmarks.disease_maps [--maps scotland germany finland] [--draws 2000]

Counts with an area effect: a conditional autoregression, an intrinsic one beside independent effects, and a Gaussian
process, each fitted by EP; the first two against NUTS (nutpie where it is installed), the third against the Laplace
approximation at the same hyperparameters. Needs the folder ``disease-mapping`` under ``PYMC_EP_DATA``. Writes
docs/benchmarks/disease_maps.md and .png; about ten minutes, most of it NUTS on Germany.
"""

import argparse
import importlib.util
import json
import os
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pymc as pm
import scipy.linalg
import scipy.optimize
from scipy.special import gammaln

import pymc_ep as pmep
from docs.benchmarks._common import PAGES, header, markdown_table, write_page

NAME = "docs/benchmarks/disease_maps.py"
STORE = PAGES.parents[1] / "build" / "disease_maps.json"
PUBLISHED = -2866.88
"""Log evidence by Laplace's method of Finland under a Gaussian process (Vanhatalo et al. 2010, by GPstuff and Stan)."""
HYPER = {"scotland": ("tau", "rho"), "germany": ("spatial_sd", "own_sd"), "finland": ("ell", "amp")}
FIELD = {"scotland": "risk", "germany": "risk", "finland": "f"}


def read(name: str) -> pd.DataFrame:
    """Read a table."""
    return pd.read_csv(Path(os.environ["PYMC_EP_DATA"]) / "disease-mapping" / name)


def adjacency(name: str, n: int) -> np.ndarray:
    """Read undirected edges, numbered from 1."""
    edges = read(name).to_numpy() - 1
    weights = np.zeros((n, n))
    weights[edges[:, 0], edges[:, 1]] = weights[edges[:, 1], edges[:, 0]] = 1.0
    return weights


def scotland() -> pm.Model:
    """Lip cancer with a conditional autoregression; each island is joined to the nearest district."""
    data = read("scotland_lip.csv")
    n = len(data)
    weights = adjacency("scotland_lip_edges.csv", n)
    place = np.column_stack([data["easting_km"].to_numpy(), data["northing_km"].to_numpy()])
    for island in np.flatnonzero(weights.sum(axis=0) == 0):
        distance = np.linalg.norm(place - place[island], axis=1)
        distance[island] = np.inf
        weights[island, distance.argmin()] = weights[distance.argmin(), island] = 1.0
    with pm.Model() as model:
        tau, rho = pm.HalfNormal("tau", 1), pm.Beta("rho", 1, 1)
        phi = pm.CAR("phi", mu=np.zeros(n), W=weights, alpha=rho, tau=tau)
        beta = pm.Normal("beta", 0, 5, shape=2)
        risk = pm.Deterministic("risk", beta[0] + beta[1] * data["aff_percent"].to_numpy() / 10 + phi)
        pm.Poisson("y", data["expected"].to_numpy() * pm.math.exp(risk), observed=data["observed"].to_numpy())
    return model


def germany() -> pm.Model:
    """Oral cancer with an intrinsic autoregression and independent effects (Besag, York and Mollie 1991)."""
    data = read("germany_oral.csv")
    n = len(data)
    with pm.Model() as model:
        spatial_sd, own_sd = pm.HalfNormal("spatial_sd", 1), pm.HalfNormal("own_sd", 1)
        level = pm.Normal("level", 0, 1)
        spatial = pm.ICAR("spatial", W=adjacency("germany_oral_edges.csv", n), sigma=1.0)
        own = pm.Normal("own", 0, 1, shape=n)
        risk = pm.Deterministic("risk", level + spatial_sd * spatial + own_sd * own)
        pm.Poisson("y", data["expected"].to_numpy() * pm.math.exp(risk), observed=data["observed"].to_numpy())
    return model


def finland() -> pm.Model:
    """Heart attacks with a Gaussian process on the lattice, Matern 3/2, flat priors of its logarithms."""
    data = read("finland_heart.csv")
    place = np.column_stack([data["x"].to_numpy(), data["y"].to_numpy()]).astype(float)
    with pm.Model() as model:
        ell, amp = pm.LogNormal("ell", 1, 2), pm.LogNormal("amp", -1, 2)
        gp = pm.gp.Latent(cov_func=amp**2 * pm.gp.cov.Matern32(2, ls=ell))
        f = gp.prior("f", X=place, reparameterize=False)
        pm.Poisson("y", data["expected"].to_numpy() * pm.math.exp(f), observed=data["observed"].to_numpy())
    return model


MODELS: dict[str, Callable[[], pm.Model]] = {"scotland": scotland, "germany": germany, "finland": finland}


def clock(function: Callable[[], Any]) -> tuple[float, Any]:
    """Return the seconds of one call, and what it returned."""
    began = time.perf_counter()
    value = function()
    return time.perf_counter() - began, value


def measure(name: str, draws: int) -> dict[str, Any]:
    """Fit one map by EP, twice, and by its reference."""
    model = MODELS[name]()
    cold, found = clock(lambda: pmep.fit(model=model, progressbar=False, random_seed=1))
    warm, found = clock(lambda: pmep.fit(model=model, progressbar=False, random_seed=1))
    fit = found["fit"]
    out = {
        "status": fit.attrs["status"],
        "seconds": (cold, warm),
        "log_evidence": float(fit["log_evidence"]),
        "hyper": {h: (float(found["posterior_mean"][h]), float(found["posterior_sd"][h])) for h in HYPER[name]},
        "field": [np.asarray(found[f"posterior_{what}"][FIELD[name]]).tolist() for what in ("mean", "sd")],
    }
    if name == "finland":
        modes = [float(fit[f"hyper_mode_{h}"]) for h in HYPER[name]]
        return out | {"laplace": laplace_evidence(*modes), "laplace_best": best_laplace(modes)}
    with warnings.catch_warnings(), model:
        warnings.simplefilter("ignore")
        sampler = "nutpie" if importlib.util.find_spec("nutpie") else "pymc"
        seconds, chains = clock(
            lambda: pm.sample(draws, tune=draws, chains=2, random_seed=1, nuts_sampler=sampler, progressbar=False)
        )
        try:
            whole = clock(lambda: pmep.fit(model=model, hyper="integrate", progressbar=False, random_seed=1))
        except ValueError:
            whole = None
    out |= {"sampler": sampler, "nuts_seconds": seconds, "optimize": against(found, chains, name)}
    if whole is not None:
        out |= {"integrate_seconds": whole[0], "integrate": against(whole[1], chains, name)}
    return out


def against(found: Any, chains: Any, name: str) -> dict[str, Any]:
    """Summarise the agreement of the field and of the hyperparameters with the chains."""
    table = pmep.compare_to_mcmc(found, chains, var_names=[FIELD[name], *HYPER[name]])
    field = table[table.index.str.startswith(FIELD[name])]
    return {
        "error": float(field["mean_difference"].abs().median()),
        "worst": float(field["mean_difference"].abs().max()),
        "ratio": float(field["sd_ratio"].median()),
        "ess": float(table["ess_bulk"].min()),
        "hyper": {h: (float(table.loc[h, "mean_difference"]), float(table.loc[h, "sd_ratio"])) for h in HYPER[name]},
        "reference": {h: (float(table.loc[h, "mean_mcmc"]), float(table.loc[h, "sd_mcmc"])) for h in HYPER[name]},
    }


# Laplace's method for Finland, by other formulas


def laplace_evidence(ell: float, amp: float) -> float:
    """Return log p(y) by Laplace's method: Newton's steps to the mode, and the determinant there."""
    data = read("finland_heart.csv")
    place = np.column_stack([data["x"].to_numpy(), data["y"].to_numpy()]).astype(float)
    scaled = np.sqrt(3) * np.linalg.norm(place[:, None] - place, axis=2) / ell
    covariance = amp**2 * (1 + scaled) * np.exp(-scaled) + 1e-6 * np.eye(len(data))
    y, expected = data["observed"].to_numpy(), data["expected"].to_numpy()
    f = np.zeros(len(y))
    for _ in range(50):
        rate = expected * np.exp(f)
        root = np.sqrt(rate)
        factor = scipy.linalg.cholesky(np.eye(len(y)) + root[:, None] * covariance * root, lower=True)
        b = rate * f + y - rate
        inner = scipy.linalg.cho_solve((factor, True), root * (covariance @ b))
        weights = b - root * inner
        new = covariance @ weights
        if np.abs(new - f).max() < 1e-10:
            break
        f = new
    log_likelihood = y * (np.log(expected) + f) - expected * np.exp(f) - gammaln(y + 1)
    return float(log_likelihood.sum() - 0.5 * weights @ f - np.log(factor.diagonal()).sum())


def best_laplace(start: list[float]) -> dict[str, Any]:
    """Maximise Laplace's evidence over length scale and amplitude."""
    found = scipy.optimize.minimize(
        lambda t: -laplace_evidence(*np.exp(t)),
        np.log(start),
        method="Nelder-Mead",
        options={"xatol": 1e-3, "fatol": 1e-4},
    )
    return {"log_evidence": -float(found.fun), "hyper": np.exp(found.x).tolist()}


# The page


def page(results: dict[str, Any]) -> list[str]:
    """Return the parts of the page for the maps there are."""
    rows = [
        [
            name.capitalize(),
            str(len(r["field"][0])),
            f"{r['log_evidence']:.2f}",
            "; ".join(f"{h} {m:.3g} ({s:.2g})" for h, (m, s) in r["hyper"].items()),
            f"{r['seconds'][0]:.3g} / {r['seconds'][1]:.3g}",
            r["status"],
        ]
        for name, r in results.items()
    ]
    parts = [
        header("Disease maps", NAME, "nutpie"),
        INTRODUCTION,
        markdown_table(
            ["map", "areas", "log evidence", "hyperparameters, mean (sd)", "cold / warm, s", "status"], rows
        ),
    ]
    rows = [
        [
            name.capitalize(),
            how,
            f"{a['error']:.3f} ({a['worst']:.3f})",
            f"{a['ratio']:.3f}",
            "; ".join(f"{h} {d:+.2f} sd, {q:.2f}" for h, (d, q) in a["hyper"].items()),
            f"{a['ess']:.0f}",
            f"{r['nuts_seconds']:.0f} ({r['sampler']})",
        ]
        for name, r in results.items()
        for how in ("optimize", "integrate")
        if (a := r.get(how))
    ]
    if rows:
        head = [
            "map",
            "hyper",
            "error of means, sd",
            "sd ratio",
            "hyperparameters: error, sd ratio",
            "least ESS",
            "NUTS, s",
        ]
        parts += [AGREEMENT, markdown_table(head, rows)]
    if "finland" in results:
        r = results["finland"]
        parts.append(
            FINLAND.format(
                published=PUBLISHED,
                ep=r["log_evidence"],
                laplace=r["laplace"],
                best=r["laplace_best"]["log_evidence"],
                ell=r["laplace_best"]["hyper"][0],
                amp=r["laplace_best"]["hyper"][1],
            )
        )
        picture(r)
        parts.append("![Finland: posterior mean and standard deviation of the log relative risk](disease_maps.png)\n")
    return parts


def picture(result: dict[str, Any]) -> None:
    """Draw means and standard deviations of Finland on its lattice."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    data = read("finland_heart.csv")
    figure, axes = plt.subplots(1, 2, figsize=(7, 5), layout="constrained")
    for axis, values, title in zip(axes, result["field"], ("mean", "standard deviation")):
        image = np.full((data["y"].to_numpy().max() + 1, data["x"].to_numpy().max() + 1), np.nan)
        image[data["y"].to_numpy(), data["x"].to_numpy()] = values
        drawn = axis.imshow(image, origin="lower")
        axis.set_title(title)
        axis.set_axis_off()
        figure.colorbar(drawn, ax=axis, shrink=0.6)
    figure.savefig(PAGES / "disease_maps.png", dpi=110)


INTRODUCTION = """\
Counts of deaths or cases are compared with their expected number.

- Scotland: lip cancer, a conditional autoregression. The share of outdoor work is a covariate. Islands are joined to
  the nearest district.
- Germany: oral cancer, an intrinsic autoregression beside independent effects.
- Finland: heart attacks in cells of 20 km, a Gaussian process with a Matern 3/2 covariance.

Hyperparameters are at the maximum of log evidence plus log prior. The warm time is that of another fit of the same
model, compiled already.
"""
AGREEMENT = """## Against NUTS

Differences of posterior means of the field, in posterior standard deviations: median (worst) over areas. Ratio of
standard deviations: median. NUTS has 2 chains; its seconds include compilation.
"""
FINLAND = """## Finland: the evidence against Laplace's method

- Published for these data by Laplace's method: {published:.2f}, with a covariance that its sources do not give in full.
- EP at its own hyperparameters: {ep:.2f}.
- Laplace's method there, by other formulas: {laplace:.2f}.
- Laplace's method at its own maximum: {best:.2f} (length scale {ell:.3g} cells, amplitude {amp:.3g}).
"""


def main() -> None:
    """Measure and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--maps", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--draws", type=int, default=2000, help="of each NUTS chain, after as many to tune")
    options = parser.parse_args()
    results = json.loads(STORE.read_text()) if STORE.exists() else {}
    for name in options.maps:
        results[name] = measure(name, options.draws)
        STORE.parent.mkdir(exist_ok=True)
        STORE.write_text(json.dumps(results))
        print(name, {k: v for k, v in results[name].items() if k != "field"})
    print(write_page("disease_maps", page({name: results[name] for name in MODELS if name in results})))


if __name__ == "__main__":
    main()
