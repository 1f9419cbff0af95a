"""Variational Bayes for paired symbols beside NUTS, on small data drawn from the model.

    python -m docs.benchmarks.paired_symbols_nuts

Minutes of NUTS. Writes docs/benchmarks/paired_symbols_nuts.md.
"""

import time
import warnings
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import pymc as pm
from scipy import sparse
from scipy.special import expit

import pymc_ep as pmep
from docs.benchmarks._common import header, markdown_table, write_page
from pymc_ep.compat import group, largest_rhat

NAME = "docs/benchmarks/paired_symbols_nuts.py"
SHAPE = (12, 10)
CASES = ((0, 150, 1.0), (1, 600, 1.0), (2, 600, 4.0))
"""Seed, pairs, and censored pairs for each of them."""
FITS: dict[str, dict[str, Any]] = {
    "posterior of all": {},
    "constant messages": {"constant_messages": True},
    "items as points": {"estimate": ["V", "c"]},
    "both": {"estimate": ["V", "c"], "constant_messages": True},
}


class Exact(NamedTuple):
    """NUTS: preferences (I, J, s), popularities of items (J, s), p(item | user), seconds and the largest R-hat."""

    a: np.ndarray
    psi: np.ndarray
    predictive: np.ndarray
    seconds: float
    rhat: float


def model_of(seed: int, n_pairs: int, ratio: float) -> pm.Model:
    """Return a model of one factor with data that were drawn from it."""
    rng, (n_users, n_items) = np.random.default_rng(seed), SHAPE
    u, v = rng.normal(size=(n_users, 1)), rng.normal(size=(n_items, 1))
    b, c = rng.normal(size=n_users), rng.normal(size=n_items)
    p = np.outer(rng.dirichlet(np.ones(n_users)), rng.dirichlet(np.ones(n_items)))
    p = p * expit(u @ v.T + b[:, None] + c)
    counts = rng.multinomial(n_pairs, (p / p.sum()).ravel()).reshape(SHAPE)
    with pm.Model() as model:
        U, V = pm.Normal("U", 0, 1, shape=(n_users, 1)), pm.Normal("V", 0, 1, shape=(n_items, 1))
        B, C = pm.Normal("b", 0, 1, shape=n_users), pm.Normal("c", 0, 1, shape=n_items)
        pmep.PairedSymbols("views", U, V, B, C, observed=sparse.csr_array(counts), censored_ratio=ratio)
        pm.Deterministic("a", U @ V.T + B[:, None] + C)
    return model


def sampled(model: pm.Model) -> Exact:
    """Sample a model by NUTS."""
    began = time.perf_counter()
    with model:
        idata = pm.sample(1000, tune=1000, chains=2, random_seed=1, progressbar=False, target_accept=0.9)
    seconds = time.perf_counter() - began
    posterior = group(idata, "posterior")
    a, psi = (posterior[name].stack(s=("chain", "draw")).to_numpy() for name in ("a", "views_item_popularity"))
    predictive = expit(a) * psi
    predictive = (predictive / predictive.sum(axis=1, keepdims=True)).mean(axis=-1)
    return Exact(a, psi, predictive, seconds, largest_rhat(posterior["a"].to_numpy()))


def compared(model: pm.Model, exact: Exact, options: dict[str, Any]) -> list[str]:
    """Return figures of a fit beside NUTS."""
    began = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pmep.ConvergenceWarning)
        idata = pmep.fit(model=model, progressbar=False, random_seed=1, max_iter=3000, draws=500, **options)
    seconds = time.perf_counter() - began
    a = group(idata, "posterior")["a"].stack(s=("chain", "draw")).to_numpy()
    mean, sd = (group(idata, f"posterior_{what}")["views_item_popularity"].to_numpy() for what in ("mean", "sd"))
    users, items = np.indices(SHAPE).reshape(2, -1)
    log_p = pmep.log_predictive(idata, model, {"views": np.column_stack([users, items])})["views"].to_numpy()
    nats = (exact.predictive * (np.log(exact.predictive) - log_p.reshape(SHAPE))).sum(axis=1).mean()
    spread, psi_spread = exact.a.std(axis=-1), exact.psi.std(axis=-1)
    return [
        f"{np.abs((a.mean(axis=-1) - exact.a.mean(axis=-1)) / spread).mean():.2f}",
        f"{np.median(a.std(axis=-1) / spread):.2f}",
        f"{np.abs((mean - exact.psi.mean(axis=-1)) / psi_spread).mean():.2f}",
        f"{np.median(sd / psi_spread):.2f}",
        f"{nats:.4f}",
        f"{seconds:.1f}",
    ]


def rows() -> Iterable[list[str]]:
    """Yield the rows of the table."""
    for seed, n_pairs, ratio in CASES:
        model = model_of(seed, n_pairs, ratio)
        exact = sampled(model)
        yield [f"{n_pairs}, {ratio:g}", "NUTS", "", "", "", "", f"R-hat {exact.rhat:.3f}", f"{exact.seconds:.0f}"]
        for name, options in FITS.items():
            yield ["", name, *compared(model, exact, options)]


def main() -> None:
    """Sample, fit and write the page."""
    what = (
        "12 users, 10 items, one factor and biases, standard normal priors. Errors of means of preferences a and of "
        "item popularities psi are in standard deviations of NUTS, on average; standard deviations are medians of "
        "their ratio to those of NUTS. The divergence is that of p(item | user) from NUTS's, on average over users, in "
        "nats."
    )
    head = ["Pairs, ratio", "Fit", "a: error", "a: sd", "psi: error", "psi: sd", "Divergence", "Seconds"]
    write_page(
        "paired_symbols_nuts", [header("Paired symbols beside NUTS", NAME), f"{what}\n", markdown_table(head, rows())]
    )


if __name__ == "__main__":
    main()
