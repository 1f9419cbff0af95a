"""A spike train: 3,000 bins of 10 ms of one retinal neuron in low and in high light, under three links.

    python -m docs.benchmarks.spike_train [--light low high] [--dense-search high]

The rate is a Gaussian process in time. Each link is fitted with a Hilbert-space approximation of the process in five
folds, and once with the process itself, n = 3000, at the same hyperparameters; for the lights of ``--dense-search`` the
exponential link's hyperparameters are sought with the process itself too. Needs the folder ``spike-counts`` under
``PYMC_EP_DATA``. Writes docs/benchmarks/links.md; a quarter of an hour.
"""

import argparse
import json
import os
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
import pandas as pd
import pymc as pm
from scipy.special import gammaln

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

NAME = "docs/benchmarks/spike_train.py"
STORE = PAGES.parents[1] / "build" / "spike_train.json"
BASIS, STRETCH = 600, 1.2
"""How many functions, and how much farther than the recording the approximation reaches."""
SEARCHED = "exp"


def read(light: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the middles of the bins in seconds, and the counts."""
    table = pd.read_csv(Path(os.environ["PYMC_EP_DATA"]) / "spike-counts" / "retina_counts_10ms.csv")
    return table["t_s"].to_numpy() + 0.005, table[f"count_{light}"].to_numpy()


def build(link: str, time: np.ndarray, counts: np.ndarray, basis: bool) -> pm.Model:
    """Return the model of one link."""
    centre, unit = predictor_prior(link, counts)
    with pm.Model() as model:
        ell, amp = pm.LogNormal("ell", np.log(0.2), 1), pm.HalfNormal("amp", unit)
        level = pm.Normal("level", centre, unit)
        covariance = amp**2 * pm.gp.cov.Matern32(1, ls=ell)
        if basis:
            f = finite_basis(pm.gp.HSGP(cov_func=covariance, m=[BASIS], c=STRETCH), time[:, None])
        else:
            f = pm.gp.Latent(cov_func=covariance).prior("f", X=time[:, None], reparameterize=False)
        add_counts(link, level + f, counts)
    return model


def measure(light: str, link: str, search: bool) -> dict[str, Any]:
    """Fit to all bins and in folds with the approximation, and once with the process itself."""
    time, counts = read(light)
    model = build(link, time, counts, True)
    whole = fit_all(model, counts)
    out = {"whole": plain(whole)}
    out["folds"] = [plain(score_fold(model, counts, part, whole.modes)) for part in folds(len(counts))]
    exact = build(link, time, counts, False)
    out["dense"] = plain(fit_all(exact, counts, whole.modes, "fixed"))
    if search and link == SEARCHED:
        out["search"] = plain(fit_all(exact, counts, whole.modes))
    return out


# The page


def light_part(light: str, results: dict[str, Any]) -> list[str]:
    """Return heading, tables and differences of one light."""
    rows, dense = [], []
    for link, r in results.items():
        whole, exact = r["whole"], r["dense"]
        rows.append(
            [
                link,
                f"{all_scores(r['folds']).mean():.4f}",
                f"{whole['log_evidence']:.2f}",
                *(f"{whole['modes'][h]:.3g}" for h in ("ell", "amp")),
                f"{whole['seconds']:.3g} ({whole['evaluations']})",
                f"{np.median([fold['seconds'] for fold in r['folds']]):.3g}",
                str(sum(not fold["converged"] for fold in [whole, *r["folds"]])),
            ]
        )
        dense.append([link, "held", f"{exact['log_evidence']:.2f}", *at(whole), f"{exact['seconds']:.3g} (1)"])
        if found := r.get("search"):
            seconds = f"{found['seconds']:.3g} ({found['evaluations']})"
            dense.append([link, "sought", f"{found['log_evidence']:.2f}", *at(found), seconds])
    first = all_scores(results["exp"]["folds"])
    apart = [f"exp - {link}: {difference(first, all_scores(results[link]['folds']))}" for link in LINKS[1:]]
    time, counts = read(light)
    head = [
        "link",
        "held-out log density",
        "log evidence",
        "ell, s",
        "amp",
        "fit, s (evaluations)",
        "fold, s",
        "not converged",
    ]
    return [
        f"## {light.capitalize()} light, {counts.sum()} spikes\n",
        markdown_table(head, rows),
        "Differences on the same bins: " + "; ".join(apart) + f".\n\n{CONSTANT} {constant_rate(counts):.4f}.\n",
        f"The process itself, n = {len(time)}:\n",
        markdown_table(["link", "hyperparameters", "log evidence", "ell, s", "amp", "fit, s (evaluations)"], dense),
    ]


def at(fit: dict[str, Any]) -> list[str]:
    """Format the hyperparameters."""
    return [f"{fit['modes'][h]:.3g}" for h in ("ell", "amp")]


def constant_rate(counts: np.ndarray) -> float:
    """Return the held-out log density, on the same folds, of a constant rate estimated from the other bins."""
    log_density = []
    for part in folds(len(counts)):
        mean = np.delete(counts, part).mean()
        log_density.append(counts[part] * np.log(mean) - mean - gammaln(counts[part] + 1))
    return float(np.concatenate(log_density).mean())


INTRODUCTION = f"""\
Spontaneous firing of one retinal neuron in culture for 30 s, counted in 3,000 bins of 10 ms (Kramer and Eden 2016).

- Predictor: a level and a Gaussian process in time with a Matern 3/2 covariance.
- Priors: length scale LogNormal(log 0.2 s, 1), amplitude HalfNormal(1), level Normal(predictor at the mean count, 1).
- Hyperparameters are at the maximum of log evidence plus log prior.
- Upper table of each light: a Hilbert-space approximation with {BASIS} functions, {STRETCH} times as wide as the
  recording, in the space of its coefficients. A fit to all bins, compilation included, and {FOLDS} folds with the
  same compiled model, from its hyperparameters.
- Lower table: the process itself, in the space of the observations, at the hyperparameters of the approximation
  ("held") or with a search from there ("sought").
- Bins are held out at random. Log density is the mean of log p(count) over them, in nats: higher is better. Standard
  errors of differences are over bins, as if these were independent.
- One thread of BLAS. Other work ran on the machine, so that seconds are upper bounds.
"""
CONSTANT = "Held-out log density of a constant rate, the mean of the other bins:"
CONCLUSION = """\
Low light: counts vary less than Poisson counts of a constant rate do. The amplitude goes to zero, where the links do
not differ, and the length scale is what its prior makes it. High light: the rate changes within tenths of a second.
The rectified link predicts best, as under it the neuron can be silent.
"""


def main() -> None:
    """Measure and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--light", nargs="*", default=["low", "high"], choices=["low", "high"])
    parser.add_argument("--dense-search", nargs="*", default=["high"], choices=["low", "high"])
    options = parser.parse_args()
    results = json.loads(STORE.read_text()) if STORE.exists() else {}
    for light in options.light:
        results[light] = {link: measure(light, link, light in options.dense_search) for link in LINKS}
        STORE.parent.mkdir(exist_ok=True)
        STORE.write_text(json.dumps(results))
    parts = [header("A spike train", NAME), INTRODUCTION]
    for light in ("low", "high"):
        parts += light_part(light, results[light]) if light in results else []
    print(write_page("spike_train", [*parts, CONCLUSION]))


if __name__ == "__main__":
    main()
