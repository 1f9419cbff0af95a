"""Models of thousands of groups: default fits beside NUTS, in time and in what they find.

    python -m docs.benchmarks many_groups [--models NAME ...]

Each model is simulated, and measured in a process of its own with one thread of BLAS: the first fit, with whatever it
compiles, and a second one; then nutpie for as many effective draws of the slowest variable as a fit returns. Errors are
differences of means in standard deviations of NUTS, the largest over all variables and effects; those of NUTS are of
the order of 3 over the root of its effective draws.
"""

import json
import logging
import os
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pymc as pm

import pymc_ep as pmep
from docs.benchmarks._common import chosen_models, header, markdown_table, printed_apart, write_page
from docs.benchmarks.small_models import EFFECTIVE, seconds
from pymc_ep.compat import group

NUTS_AT_MOST = 20_000
"""Most observations for which NUTS is run."""


def counts(n: int, groups: int) -> pm.Model:
    """Simulate counts of groups."""
    rng = np.random.default_rng(n)
    own = rng.permutation(np.arange(n) % groups)
    observed = rng.poisson(np.exp(0.5 + 0.6 * rng.normal(size=groups)[own]))
    with pm.Model() as model:
        level, sd = pm.Normal("level", 0, 5), pm.HalfNormal("sd", 1)
        effect = pm.Normal("effect", 0, sd, shape=groups)
        pm.Poisson("y", pm.math.exp(level + effect[own]), observed=observed)
    return model


def slopes(n: int, groups: int) -> pm.Model:
    """Simulate measurements with a level and a slope of each group."""
    rng = np.random.default_rng(n)
    own, x = rng.permutation(np.arange(n) % groups), rng.normal(size=n)
    observed = 1 + rng.normal(size=groups)[own] + (0.5 + 0.4 * rng.normal(size=groups)[own]) * x + rng.normal(size=n)
    with pm.Model() as model:
        mean, sds, noise = pm.Normal("mean", 0, 5, shape=2), pm.HalfNormal("sds", 1, shape=2), pm.HalfNormal("noise", 1)
        effect = pm.Normal("effect", 0, sds, shape=(groups, 2))
        pm.Normal("y", mean[0] + effect[own, 0] + (mean[1] + effect[own, 1]) * x, noise, observed=observed)
    return model


def crossed(n: int, people: int, items: int) -> pm.Model:
    """Simulate right and wrong answers of people to items."""
    rng = np.random.default_rng(n)
    person, item = rng.permutation(np.arange(n) % people), rng.integers(items, size=n)
    eta = 0.5 + rng.normal(size=people)[person] - 0.8 * rng.normal(size=items)[item]
    with pm.Model() as model:
        level, sds = pm.Normal("level", 0, 2), pm.HalfNormal("sds", 1, shape=2)
        ability, difficulty = pm.Normal("ability", 0, sds[0], shape=people), pm.Normal("item", 0, sds[1], shape=items)
        logit = level + ability[person] - difficulty[item]
        pm.Bernoulli("y", logit_p=logit, observed=rng.random(n) < 1 / (1 + np.exp(-eta)))
    return model


MODELS: dict[str, tuple[int, Callable[[], pm.Model]]] = {
    "4,000 counts, 1,000 groups": (4_000, partial(counts, 4_000, 1_000)),
    "4,000 normal, 1,000 levels and slopes": (4_000, partial(slopes, 4_000, 1_000)),
    "10,000 answers, 1,000 people x 50 items": (10_000, partial(crossed, 10_000, 1_000, 50)),
    "20,000 counts, 5,000 groups": (20_000, partial(counts, 20_000, 5_000)),
    "100,000 counts, 25,000 groups": (100_000, partial(counts, 100_000, 25_000)),
}


def nuts(model: pm.Model, fit: Any) -> dict[str, float]:
    """Return nutpie's seconds for `EFFECTIVE` draws, and the largest differences of the fit from them."""
    import arviz as az
    import nutpie

    compiled, drawn = nutpie.compile_pymc_model(model), {}

    def sample() -> None:
        drawn["draws"] = nutpie.sample(compiled, draws=1000, tune=1000, chains=4, seed=1, progress_bar=False)

    spent = seconds(sample)
    draws = drawn["draws"]
    least = min(float(np.min(values)) for values in az.ess(draws).data_vars.values())
    error, ratios = 0.0, []
    for name, mean in group(fit, "posterior_mean").data_vars.items():
        sampled = group(draws, "posterior")[name]
        sd = sampled.std(("chain", "draw"))
        error = max(error, float((np.abs(sampled.mean(("chain", "draw")) - mean.values) / sd).max()))
        ratios.append((group(fit, "posterior_sd")[name].values / sd).values.ravel())
    low, high = np.quantile(np.concatenate(ratios), [0.01, 0.99])
    return {
        "warm": spent[0] * EFFECTIVE / least,
        "wall": spent[1] * EFFECTIVE / least,
        "ess": least,
        "error": error,
        "low": float(low),
        "high": float(high),
    }


def worker(name: str) -> None:
    """Measure one model in this process, and print the result as a line of JSON."""
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    n, build = MODELS[name]
    model, fits = build(), []
    spent = [seconds(lambda: fits.append(pmep.fit(model=model, random_seed=0, progressbar=False))) for _ in range(2)]
    found = {"first": spent[0][0], "again": spent[1][0]}
    print(json.dumps(found | (nuts(model, fits[-1]) if n <= NUTS_AT_MOST else {})))


def main() -> None:
    """Measure all and write the page."""
    models = chosen_models(__doc__, MODELS, worker)
    load, rows, ratios = os.getloadavg()[0], [], []
    for name in models:
        found = printed_apart(__file__, name)
        cells = [f"{found[what]:.1f}" for what in ("first", "again")]
        if "warm" in found:
            ratios.append(found["warm"] / found["again"])
            cells += [f"{found['warm']:.0f}", f"{ratios[-1]:.1f}", f"{found['ess']:.0f}", f"{found['error']:.2f}"]
            cells.append(f"{found['low']:.2f} to {found['high']:.2f}")
        else:
            cells += ["-"] * 5
        rows.append([name, *cells])
        print(*rows[-1], sep=" | ", flush=True)
    head = ["model", "first fit, s", "again, s", "NUTS, s", "NUTS / again", "ESS", "largest error, sd", "sd ratio, 98%"]
    text = (
        f"Processor seconds; load average {load:.1f} to {os.getloadavg()[0]:.1f}. NUTS takes {np.median(ratios):.1f} "
        f"times as long as a fit (median), for {EFFECTIVE} effective draws of the slowest variable; its compilation is "
        f"left out. ESS is what 4,000 draws had of it.\n"
    )
    title = header("Thousands of groups", "docs/benchmarks/many_groups.py", "nutpie")
    print(write_page("many_groups", [title, text, markdown_table(head, rows)]))


if __name__ == "__main__":
    main()
