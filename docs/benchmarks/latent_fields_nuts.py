"""Latent fields of published maps and of a volatility, by the default fit beside long chains of nutpie.

    python -m docs.benchmarks latent_fields_nuts [--models NAME ...]

Each model is fitted twice and sampled in a process of its own, with one thread of BLAS. Needs nutpie, and the folder
``disease-mapping`` under ``PYMC_EP_DATA``; writes its part of docs/benchmarks/latent_fields.md. Half an hour.
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
from scipy.sparse.csgraph import connected_components

import pymc_ep as pmep
from docs.benchmarks._common import chosen_models, header, markdown_table, printed_apart, write_page
from docs.benchmarks.small_models import seconds
from pymc_ep.compat import group

TUNE, CHAINS = 1_000, 2


def table(name: str) -> pd.DataFrame:
    """Return a table of the folder of maps."""
    return pd.read_csv(Path(os.environ["PYMC_EP_DATA"]) / "disease-mapping" / name)


def scotland() -> tuple[pd.DataFrame, np.ndarray]:
    """Return districts with cases of lip cancer, and pairs of neighbours."""
    return table("scotland_lip.csv"), table("scotland_lip_edges.csv").to_numpy()[:, :2] - 1


def germany() -> tuple[pd.DataFrame, np.ndarray]:
    """Return regions with deaths of oral cancer, and pairs of neighbours."""
    return table("germany_oral.csv"), table("germany_oral_edges.csv").to_numpy()[:, :2].astype(int) - 1


def finland() -> tuple[pd.DataFrame, np.ndarray]:
    """Return cells with deaths of heart attacks, and pairs of cells that share a side."""
    areas = table("finland_heart.csv")
    at = {place: i for i, place in enumerate(zip(areas["x"], areas["y"]))}
    pairs = [(i, at[other]) for (x, y), i in at.items() for other in ((x + 1, y), (x, y + 1)) if other in at]
    return areas, np.array(pairs)


def connected(areas: pd.DataFrame, edges: np.ndarray) -> tuple[pd.DataFrame, np.ndarray]:
    """Return the largest group of areas that are connected, and its adjacency matrix."""
    n = len(areas)
    w = scipy.sparse.coo_array((np.ones(len(edges)), edges.T), shape=(n, n)).toarray()
    w = np.maximum(w, w.T)
    component = connected_components(w)[1]
    kept = np.flatnonzero(component == np.bincount(component).argmax())
    return areas.iloc[kept], w[np.ix_(kept, kept)]


def mapped(read: Callable[[], tuple[pd.DataFrame, np.ndarray]], prior: str) -> pm.Model:
    """Write a map with a CAR field, or with an ICAR one beside independent effects."""
    areas, w = connected(*read())
    n = len(areas)
    with pm.Model() as model:
        if prior == "CAR":
            alpha, tau = pm.Beta("alpha", 5, 1), pm.Gamma("tau", 2, 0.2)
            # Cases sum to those expected, so that the level is about zero; chains on one of its own hardly move.
            risk = pm.CAR("risk", mu=np.zeros(n), W=w, alpha=alpha, tau=tau)
        else:
            field_sd, own_sd = pm.HalfNormal("field_sd", 1), pm.HalfNormal("own_sd", 0.5)
            # PyMC's density has no power of ICAR's own sigma, so that the scale stands outside.
            own = pm.Normal("own", pm.Normal("level", 0, 1), own_sd, shape=n)
            risk = pm.Deterministic("risk", field_sd * pm.ICAR("field", W=w) + own)
        expected = areas["expected"].to_numpy()
        pm.Poisson("y", expected * pm.math.exp(risk), observed=areas["observed"].to_numpy())
    return model


def volatility(n: int, prior: str) -> pm.Model:
    """Simulate returns of 2,906 days whose log scale is an autoregression, and take the first n."""
    rng, days = np.random.default_rng(2906), 2_906
    log_scale = np.zeros(days)
    for t in range(1, days):
        log_scale[t] = 0.98 * log_scale[t - 1] + rng.normal(0, 0.12)
    returns = (np.exp(-4.5 + log_scale) * rng.normal(size=days))[:n]
    with pm.Model() as model:
        step = pm.HalfNormal("step", 0.3, initval=0.1)
        if prior == "walk":
            risk = pm.GaussianRandomWalk("risk", sigma=step, init_dist=pm.Normal.dist(-4, 2), steps=n - 1)
        else:
            rho, level = pm.Beta("rho", 20, 1.5), pm.Normal("level", -4, 2)
            start = pm.Normal.dist(0, 1)
            risk = level + pm.AR("field", pt.stack([rho]), sigma=step, init_dist=start, shape=n)
            risk = pm.Deterministic("risk", risk)
        pm.Normal("y", 0, pm.math.exp(risk), observed=returns)
    return model


MODELS: dict[str, tuple[int, Callable[[], pm.Model]]] = {
    "Scotland, CAR": (60_000, partial(mapped, scotland, "CAR")),
    "Scotland, ICAR and own": (60_000, partial(mapped, scotland, "ICAR")),
    "Germany, CAR": (6_000, partial(mapped, germany, "CAR")),
    "Germany, ICAR and own": (30_000, partial(mapped, germany, "ICAR")),
    "Finland, CAR": (4_000, partial(mapped, finland, "CAR")),
    "Finland, ICAR and own": (8_000, partial(mapped, finland, "ICAR")),
    "volatility, walk, 500": (20_000, partial(volatility, 500, "walk")),
    "volatility, AR, 500": (20_000, partial(volatility, 500, "AR")),
    "volatility, walk, 2,906": (0, partial(volatility, 2_906, "walk")),
    "volatility, AR, 2,906": (0, partial(volatility, 2_906, "AR")),
}
"""Draws of a chain, none where the model is only timed, and the model."""


def worker(name: str) -> None:
    """Fit and sample one model in this process, and print the result as a line of JSON."""
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    draws, build = MODELS[name]
    model = build()
    fit, spent = fitted_twice(model)
    lines = pmep.explain(model=model).splitlines()
    solver = next(line for line in lines if line.startswith("solver")).removeprefix("solver").strip()
    found = group(fit, "fit")
    out: dict[str, Any] = {
        "values": int(group(fit, "posterior_mean")["risk"].size),
        "solver": "sparse" if "sparse precision" in solver else "dense",
        "first": spent[0],
        "again": spent[1],
        "converged": bool(found["converged"]),
    }
    print(json.dumps(out | against(model, fit, draws) if draws else out))


def fitted_twice(model: pm.Model) -> tuple[Any, list[float]]:
    """Return the second fit of a model, and the processor seconds of both."""
    fits: list[Any] = []
    fit = partial(pmep.fit, model=model, random_seed=0, progressbar=False)
    spent = [seconds(lambda: fits.append(fit()))[0] for _ in range(2)]
    return fits[-1], spent


def against(model: pm.Model, fit: Any, draws: int) -> dict[str, Any]:
    """Sample, and compare the field and the hyperparameters, in standard deviations of the chains."""
    import nutpie

    compiled = nutpie.compile_pymc_model(model)
    chains: list[Any] = []
    options = {"draws": draws, "tune": TUNE, "chains": CHAINS, "cores": 1, "seed": 1, "progress_bar": False}
    spent = seconds(lambda: chains.append(nutpie.sample(compiled, **options)))[0]
    hyper = [v.name for v in model.free_RVs if v.name in group(fit, "posterior_mean") and v.ndim == 0]
    found = pmep.compare_to_mcmc(fit, chains[0], var_names=["risk", *hyper])
    field = found[found.index.str.startswith("risk")]
    return {
        "nuts": spent,
        "ess": float(found["ess_bulk"].min()),
        "mean": float(field["mean_difference"].abs().max()),
        "sds": [float(field["sd_ratio"].min()), float(field["sd_ratio"].max())],
        "hyper": {h: [float(found.loc[h, key]) for key in ("mean_difference", "sd_ratio")] for h in hyper},
    }


def main() -> None:
    """Measure all and write the page."""
    models = chosen_models(__doc__, MODELS, worker)
    load, rows = os.getloadavg()[0], []
    for name in models:
        found = printed_apart(__file__, name)
        cells = [str(found["values"]), found["solver"], f"{found['first']:.1f}", f"{found['again']:.1f}"]
        if "nuts" in found:
            low, high = found["sds"]
            hyper = "; ".join(f"{h} {off:+.2f}, {ratio:.2f}" for h, (off, ratio) in found["hyper"].items())
            cells += [f"{found['nuts']:.0f}", f"{found['ess']:.0f}", f"{found['mean']:.2f}", f"{low:.2f} to {high:.2f}"]
            cells.append(hyper)
        else:
            cells += ["-"] * 5
        rows.append([name, *cells, "yes" if found["converged"] else "no"])
        print(*rows[-1], sep=" | ", flush=True)
    head = ["model", "values", "algebra", "first fit, s", "again, s", "nutpie, s", "least ESS", "worst mean, sd"]
    head += ["sds, ratio", "hyperparameters: mean, sd; ratio of sds", "converged"]
    text = f"Processor seconds; load average {load:.1f} to {os.getloadavg()[0]:.1f}. With draws.\n"
    title = header("Fields beside NUTS", "docs/benchmarks/latent_fields_nuts.py", "nutpie")
    print(write_page("latent_fields_nuts", [title, text, markdown_table(head, rows)]))


if __name__ == "__main__":
    main()
