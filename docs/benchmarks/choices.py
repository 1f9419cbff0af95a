"""Choices among several categories, by the default fit beside chains of nutpie.

    python -m docs.benchmarks choices [--models NAME ...]

Simulated choices and counts, with a slope and effects of groups in the log-odds of each category, and the species and
sexes of 200 crabs by their measures (Campbell and Mahon 1974), which are under ``PYMC_EP_DATA``. Each model is fitted
twice and sampled in a process of its own, with one thread of BLAS. Simulated choices are also fitted as Poisson counts
of zero and one with a flat intercept for each row (Baker 1994), the same posterior. Needs nutpie; writes its part of
docs/benchmarks/choices.md. Ten minutes.
"""

import json
import logging
import os
import warnings
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pymc as pm
import pytensor.tensor as pt

import pymc_ep as pmep
from docs.benchmarks._common import chosen_models, header, markdown_table, printed_apart, write_page
from docs.benchmarks.small_models import seconds
from pymc_ep.compat import group

DRAWS, TUNE, CHAINS = 4_000, 1_000, 2
SIMULATED = {
    "3 categories, 300 choices": (3, 300, 30, 1),
    "5 categories, 600 choices": (5, 600, 30, 1),
    "8 categories, 600 choices": (8, 600, 20, 1),
    "4 categories, 5000 choices": (4, 5000, 30, 1),
    "3 categories, 60 rows of 12 counts": (3, 60, 20, 12),
    "5 categories, 60 rows of 12 counts": (5, 60, 20, 12),
}
"""Categories, rows, groups, and counts a row."""
CRABS = "crabs: 4 of species and sex"


def simulated(categories: int, rows: int, groups: int, counts: int, *, poisson: bool = False) -> pm.Model:
    """Simulate choices or counts and write their model, or its equal with Poisson counts."""
    rng = np.random.default_rng(7)
    g, x = rng.integers(0, groups, rows), rng.standard_normal(rows)
    log_odds = rng.normal(0, 0.5, categories - 1) + x[:, None] * rng.normal(0, 0.6, categories - 1)
    log_odds += rng.normal(0, 0.6, (groups, categories - 1))[g]
    weight = np.exp(np.column_stack([np.zeros(rows), log_odds]))
    observed = rng.multinomial(counts, weight / weight.sum(axis=1, keepdims=True))
    with pm.Model() as model:
        level, slope = pm.Normal("level", 0, 1.5, shape=categories - 1), pm.Normal("slope", 0, 1, shape=categories - 1)
        effect = pm.Normal("effect", 0, pm.HalfNormal("sd", 1), shape=(groups, categories - 1))
        eta = pt.concatenate([pt.zeros((rows, 1)), level + x[:, None] * slope + effect[g]], axis=1)
        if poisson:
            pm.Poisson("y", pm.math.exp(pm.Flat("row", shape=rows)[:, None] + eta), observed=observed)
        elif counts == 1:
            pm.Categorical("y", logit_p=eta, observed=observed.argmax(axis=1))
        else:
            pm.Multinomial("y", n=counts, p=pm.math.softmax(eta, axis=-1), observed=observed)
    return model


def crabs() -> pm.Model:
    """Read the crabs and write the model of their species and sex, with coefficients of standard deviation 2."""
    table = pd.read_csv(Path(os.environ["PYMC_EP_DATA"]) / "classification" / "crabs.csv")
    kind = (table["species"] + table["y"].astype(str)).astype("category")
    inputs = np.log(table[["FL", "RW", "CL", "CW", "BD"]].to_numpy())
    # Of five measures of one size, their mean and what the others say beside it.
    size = inputs.mean(axis=1, keepdims=True)
    inputs = np.column_stack([size, inputs[:, :4] - size])
    inputs = (inputs - inputs.mean(axis=0)) / inputs.std(axis=0)
    with pm.Model() as model:
        level, slope = pm.Normal("level", 0, 2, shape=4), pm.Normal("slope", 0, 2, shape=(5, 4))
        pm.Categorical("y", logit_p=level + pt.dot(inputs, slope), observed=kind.cat.codes.to_numpy())
    return model


MODELS = {name: partial(simulated, *case) for name, case in SIMULATED.items()} | {CRABS: crabs}


def worker(name: str) -> None:
    """Fit and sample one model in this process, and print the result as a line of JSON."""
    import nutpie

    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    model, fits, chains = MODELS[name](), [], []
    fit = partial(pmep.fit, model=model, random_seed=0, progressbar=False)
    spent = [seconds(lambda: fits.append(fit()))[0] for _ in range(2)]
    compiled = nutpie.compile_pymc_model(model)
    options = {"draws": DRAWS, "tune": TUNE, "chains": CHAINS, "cores": 1, "seed": 1, "progress_bar": False}
    sampled = seconds(lambda: chains.append(nutpie.sample(compiled, **options)))[0]
    names = [v.name for v in model.free_RVs]
    found = pmep.compare_to_mcmc(fits[-1], chains[0], var_names=names)
    by_counts = []
    if name in SIMULATED and SIMULATED[name][-1] == 1:
        other = pmep.fit(model=simulated(*SIMULATED[name], poisson=True), random_seed=0, progressbar=False)
        table = pmep.compare_to_mcmc(other, chains[0], var_names=names)
        by_counts = [float(table["mean_difference"].abs().max())]
        by_counts += [float(table["sd_ratio"].min()), float(table["sd_ratio"].max())]
    print(
        json.dumps(
            {
                "by_counts": by_counts,
                "seconds": spent,
                "nuts": sampled,
                "ess": float(found["ess_bulk"].min()),
                "mean": float(found["mean_difference"].abs().max()),
                "close": float((found["mean_difference"].abs() <= 0.1).mean()),
                "sds": [float(found["sd_ratio"].min()), float(found["sd_ratio"].max())],
                "converged": bool(group(fits[-1], "fit")["converged"]),
            }
        )
    )


def main() -> None:
    """Measure all and write the page."""
    models = chosen_models(__doc__, MODELS, worker)
    load, rows = os.getloadavg()[0], []
    for name in models:
        found = printed_apart(__file__, name)
        again, (low, high) = found["seconds"][1], found["sds"]
        cells = [f"{found['seconds'][0]:.1f}", f"{again:.1f}", f"{found['nuts']:.1f}", f"{found['nuts'] / again:.1f}"]
        cells += [f"{found['ess']:.0f}", f"{found['mean']:.2f}", f"{found['close']:.0%}", f"{low:.2f} to {high:.2f}"]
        cells += ["{:.2f}, {:.2f} to {:.2f}".format(*found["by_counts"]) if found["by_counts"] else "-"]
        rows.append([name, *cells, "yes" if found["converged"] else "no"])
        print(*rows[-1], sep=" | ", flush=True)
    head = ["model", "first fit, s", "again, s", "nutpie, s", "nutpie / again", "least ESS"]
    head += ["worst mean, sd", "means within 0.1 sd", "sds, ratio"]
    head += ["worst mean and sds as Poisson counts", "converged"]
    text = f"Processor seconds; load average {load:.1f} to {os.getloadavg()[0]:.1f}.\n"
    title = header("Choices beside NUTS", "docs/benchmarks/choices.py", "nutpie")
    print(write_page("choices", [title, text, markdown_table(head, rows)]))


if __name__ == "__main__":
    main()
