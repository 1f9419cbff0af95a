"""Utilities of five people by expectation propagation and by NUTS, on one model, its priors known or learned.

    python -m docs.benchmarks preferences_nuts

Takes some minutes on one core. Writes its section of docs/benchmarks/preferences.md.
"""

import time
import warnings
from typing import Any

import arviz as az
import numpy as np
import pymc as pm
import xarray as xr
from scipy.special import ndtr, ndtri

import pymc_ep as pmep
from docs.benchmarks._common import header, markdown_table, write_page
from pymc_ep.compat import group

NAME = "docs/benchmarks/preferences_nuts.py"
N_USERS, N_ITEMS, N_PAIRS = 5, 6, 10
CHAINS, TUNE, DRAWS = 4, 1000, 2500
LEVELS = np.array([0.05, 0.5, 0.95])
STRONG = 3.0
"""Factor of the spread of strong preferences."""
HELD, CLOSE = {"hyper": "fixed"}, {"evidence_tol": 1e-8}
FITS: dict[str, dict[str, dict[str, Any]]] = {
    "true answers": {"": HELD},
    "random answers": {"": HELD},
    "strong preferences": {"": HELD},
    "true answers, sigma learned": {"": {}, ", at its mode": CLOSE | {"hyper": "optimize"}},
}
"""Cases, and options of the fits by what is added to their names."""
HEAD = [
    "Comparisons",
    "Means apart, sd: median / largest",
    "sd over NUTS's: least to largest",
    "5, 50, 95% quantiles apart, sd, largest: Gaussian",
    "Draws",
    "Probabilities apart: median / largest",
    "R-hat",
    "Least effective size",
    "Seconds, EP",
    "NUTS",
]
INTRODUCTION = f"""\
{N_USERS} people with {N_PAIRS} comparisons each of {N_ITEMS} items; two factors, means and a kernel of two features are
known. Answers are drawn from the model, or are coins, so that people contradict themselves. Differences of posterior
means and quantiles are in NUTS's standard deviations; "Gaussian" are normal quantiles with the fit's means and standard
deviations. Of strong preferences factors and kernel have {STRONG:.0f} times the spread. Probabilities are those of all
{N_ITEMS * (N_ITEMS - 1) // 2} comparisons of each person. `pm.sample` draws {CHAINS} chains of {DRAWS}. A learned sigma
has the prior HalfNormal(1): NUTS and the fit integrate over it, NUTS with utilities as linear maps of standard normals,
without which its chains hardly mix. With `hyper="optimize"` the fit takes the mode of sigma.
"""


def data_of(name: str) -> dict[str, Any]:
    """Return factors, means, kernel and comparisons of a case."""
    rng, spread = np.random.default_rng(3), STRONG if name.startswith("strong") else 1.0
    x, factors, mean = (rng.normal(size=shape) for shape in ((N_ITEMS, 2), (N_ITEMS, 2), N_ITEMS))
    kernel = np.exp(-0.5 * ((x[:, None] - x) ** 2).sum(axis=-1)) + 0.1 * np.eye(N_ITEMS)
    factors, kernel = spread * factors, spread**2 * kernel
    own = rng.normal(size=(N_USERS, N_ITEMS)) @ np.linalg.cholesky(kernel).T
    utilities = mean + rng.normal(size=(N_USERS, 2)) @ factors.T + own
    users = np.repeat(np.arange(N_USERS), N_PAIRS)
    one = rng.integers(0, N_ITEMS, len(users))
    two = (one + rng.integers(1, N_ITEMS, len(users))) % N_ITEMS
    chance = 0.5 if name.startswith("random") else ndtr(utilities[users, one] - utilities[users, two])
    won = rng.random(len(users)) < chance
    return {
        "V": factors,
        "b": mean,
        "kernel": kernel,
        "rows": {"users": users, "winners": np.where(won, one, two), "losers": np.where(won, two, one)},
    }


def model_of(name: str) -> pm.Model:
    """Return the model of a case."""
    parts = data_of(name)
    rows = parts.pop("rows")
    with pm.Model() as model:
        sigma = pm.HalfNormal("sigma", 1.0) if name.endswith("learned") else 1.0
        f = pmep.PreferenceUtility("f", sigma=sigma, n_users=N_USERS, **parts)
        pmep.PairwiseProbit("prefers", f, **rows)
    return model


def standardised_model_of(name: str) -> pm.Model:
    """Return the model of a case with a learned sigma, for NUTS: utilities as linear maps of standard normals."""
    parts = data_of(name)
    factors, rows = parts["V"], parts["rows"]
    with pm.Model() as model:
        sigma = pm.HalfNormal("sigma", 1.0)
        shared, own = pm.Normal("shared", shape=(N_USERS, 2)), pm.Normal("own", shape=(N_USERS, N_ITEMS))
        root = np.linalg.cholesky(parts["kernel"])
        f = pm.Deterministic("f", parts["b"] + shared @ factors.T + sigma * (own @ root.T))
        pmep.PairwiseProbit("prefers", f, **rows)
    return model


def rows_of(name: str) -> list[list[str]]:
    """Sample a case, fit it, and return the rows of its fits in the table."""
    model = model_of(name)
    with standardised_model_of(name) if name.endswith("learned") else model, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        began = time.perf_counter()
        chains = pm.sample(DRAWS, tune=TUNE, chains=CHAINS, cores=1, random_seed=1, progressbar=False)
        sampled = time.perf_counter() - began
        rows = [
            [name + added, *compared(group(chains, "posterior")["f"], model, options), f"{sampled:.0f}"]
            for added, options in FITS[name].items()
        ]
    return rows


def compared(drawn: xr.DataArray, model: pm.Model, options: dict[str, Any]) -> list[str]:
    """Fit a model, and return the cells of its row: utilities and probabilities beside draws of the former."""
    began = time.perf_counter()
    idata = pmep.fit(model=model, draws=5000, chains=4, random_seed=1, progressbar=False, **options)
    fitted = time.perf_counter() - began
    f = drawn.to_numpy().reshape(-1, N_USERS, N_ITEMS)
    mean, sd = (group(idata, f"posterior_{what}")["f"].to_numpy() for what in ("mean", "sd"))
    apart, ratio = np.abs(mean - f.mean(axis=0)) / f.std(axis=0), sd / f.std(axis=0)
    own, true = group(idata, "posterior")["f"].to_numpy().reshape(-1, N_USERS, N_ITEMS), np.quantile(f, LEVELS, axis=0)
    gaussian, drawn_apart = (
        " / ".join(f"{error:.3f}" for error in (np.abs(found - true) / f.std(axis=0)).max(axis=(1, 2)))
        for found in (mean + sd * ndtri(LEVELS)[:, None, None], np.quantile(own, LEVELS, axis=0))
    )
    first, second = np.triu_indices(N_ITEMS, 1)
    rows = np.repeat(np.arange(N_USERS), len(first)), np.tile(first, N_USERS), np.tile(second, N_USERS)
    said = np.exp(pmep.log_predictive(idata, model, {"prefers": rows})["prefers"].to_numpy())
    off = np.abs(said - ndtr(f[:, rows[0], rows[1]] - f[:, rows[0], rows[2]]).mean(axis=0))
    return [
        f"{np.median(apart):.3f} / {apart.max():.3f}",
        f"{ratio.min():.3f} to {ratio.max():.3f}",
        gaussian,
        drawn_apart,
        f"{np.median(off):.4f} / {off.max():.4f}",
        f"{float(az.rhat(drawn.to_dataset())['f'].max()):.3f}",
        f"{float(az.ess(drawn.to_dataset())['f'].min()):.0f}",
        f"{fitted:.1f}",
    ]


def main() -> None:
    """Measure and write the section."""
    rows = [row for name in FITS for row in rows_of(name)]
    write_page("preferences_nuts", [header("Beside NUTS", NAME), INTRODUCTION, markdown_table(HEAD, rows)])


if __name__ == "__main__":
    main()
