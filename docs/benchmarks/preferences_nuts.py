"""Utilities of five people by expectation propagation and by NUTS, on one model, its priors known or learned.

    python -m docs.benchmarks preferences_nuts

Takes some minutes on one core. Writes its section of docs/benchmarks/preferences.md.
"""

import time
import warnings
from typing import Any, NamedTuple

import arviz as az
import numpy as np
import pymc as pm
from scipy.special import ndtr

import pymc_ep as pmep
from docs.benchmarks._common import header, markdown_table, write_page
from pymc_ep.compat import group

NAME = "docs/benchmarks/preferences_nuts.py"
N_USERS, N_ITEMS, N_PAIRS = 5, 6, 10
CHAINS, TUNE, DRAWS = 4, 1000, 2500
CASES = ("true answers", "random answers", "true answers, sigma learned")
HEAD = [
    "Comparisons",
    "Means apart, sd: median / largest",
    "sd over NUTS's: least to largest",
    "Probabilities apart: median / largest",
    "R-hat",
    "Least effective size",
    "Seconds, EP",
    "NUTS",
]
INTRODUCTION = f"""\
{N_USERS} people with {N_PAIRS} comparisons each of {N_ITEMS} items; two factors, means and a kernel of two features are
known. Answers are drawn from the model, or are coins, so that people contradict themselves. Differences of posterior
means are in NUTS's standard deviations. Probabilities are those of all {N_ITEMS * (N_ITEMS - 1) // 2} comparisons of
each person. `pm.sample` draws {CHAINS} chains of {DRAWS}. A learned sigma has the prior HalfNormal(1): NUTS integrates
over it, and the fit takes its mode.
"""


class Case(NamedTuple):
    """A model, and where sigma is learned what the fit does with it."""

    model: pm.Model
    options: dict[str, Any]


def case_of(name: str) -> Case:
    """Return a case."""
    rng = np.random.default_rng(3)
    x, factors, mean = (rng.normal(size=shape) for shape in ((N_ITEMS, 2), (N_ITEMS, 2), N_ITEMS))
    kernel = np.exp(-0.5 * ((x[:, None] - x) ** 2).sum(axis=-1)) + 0.1 * np.eye(N_ITEMS)
    own = rng.normal(size=(N_USERS, N_ITEMS)) @ np.linalg.cholesky(kernel).T
    utilities = mean + rng.normal(size=(N_USERS, 2)) @ factors.T + own
    users = np.repeat(np.arange(N_USERS), N_PAIRS)
    one = rng.integers(0, N_ITEMS, len(users))
    two = (one + rng.integers(1, N_ITEMS, len(users))) % N_ITEMS
    chance = ndtr(utilities[users, one] - utilities[users, two]) if name.startswith("true") else 0.5
    won = rng.random(len(users)) < chance
    learned = name.endswith("learned")
    with pm.Model() as model:
        sigma = pm.HalfNormal("sigma", 1.0) if learned else 1.0
        f = pmep.PreferenceUtility("f", V=factors, b=mean, kernel=kernel, sigma=sigma, n_users=N_USERS)
        winners, losers = np.where(won, one, two), np.where(won, two, one)
        pmep.PairwiseProbit("prefers", f, users=users, winners=winners, losers=losers)
    return Case(model, {"evidence_tol": 1e-8} if learned else {"hyper": "fixed"})


def row_of(name: str) -> list[str]:
    """Sample and fit a case, and return its row of the table."""
    model, options = case_of(name)
    with model, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        began = time.perf_counter()
        chains = pm.sample(DRAWS, tune=TUNE, chains=CHAINS, cores=1, random_seed=1, progressbar=False)
        sampled = time.perf_counter() - began
        began = time.perf_counter()
        idata = pmep.fit(draws=0, progressbar=False, **options)
        fitted = time.perf_counter() - began
    drawn = group(chains, "posterior")["f"]
    f = drawn.to_numpy().reshape(-1, N_USERS, N_ITEMS)
    mean, sd = (group(idata, f"posterior_{what}")["f"].to_numpy() for what in ("mean", "sd"))
    apart, ratio = np.abs(mean - f.mean(axis=0)) / f.std(axis=0), sd / f.std(axis=0)
    first, second = np.triu_indices(N_ITEMS, 1)
    rows = np.repeat(np.arange(N_USERS), len(first)), np.tile(first, N_USERS), np.tile(second, N_USERS)
    said = np.exp(pmep.log_predictive(idata, model, {"prefers": rows})["prefers"].to_numpy())
    off = np.abs(said - ndtr(f[:, rows[0], rows[1]] - f[:, rows[0], rows[2]]).mean(axis=0))
    return [
        name,
        f"{np.median(apart):.3f} / {apart.max():.3f}",
        f"{ratio.min():.3f} to {ratio.max():.3f}",
        f"{np.median(off):.4f} / {off.max():.4f}",
        f"{float(az.rhat(drawn.to_dataset())['f'].max()):.3f}",
        f"{float(az.ess(drawn.to_dataset())['f'].min()):.0f}",
        f"{fitted:.1f}",
        f"{sampled:.0f}",
    ]


def main() -> None:
    """Measure and write the section."""
    rows = [row_of(name) for name in CASES]
    write_page("preferences_nuts", [header("Beside NUTS", NAME), INTRODUCTION, markdown_table(HEAD, rows)])


if __name__ == "__main__":
    main()
