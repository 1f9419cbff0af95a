"""The default fit beside what else a PyMC user has: NUTS, ADVI and Laplace's approximation, on three small models.

    python -m docs.benchmarks.peers [--reference-draws 5000]

Each method runs with its defaults in this process, twice: the first time compiles, the second is called warm. Errors
are against a long NUTS run. Needs nutpie and pymc-extras; writes docs/benchmarks/peers.md. Five minutes.
"""

import argparse
import logging
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pymc as pm

import pymc_ep as pmep
from docs.benchmarks._common import header, markdown_table, write_page

DRAWS = 1000
"""Draws of each of four chains of every method but NUTS's reference."""


def eight_schools() -> pm.Model:
    """Rubin (1981): effects of coaching in eight schools, Gelman's half-Cauchy scale."""
    y, sd = np.array([28, 8, -3, 7, -1, 1, 18, 12]), np.array([15, 10, 16, 11, 9, 11, 10, 18])
    with pm.Model() as model:
        mu, tau = pm.Normal("mu", 0, 5), pm.HalfCauchy("tau", 5)
        theta = pm.Deterministic("theta", mu + tau * pm.Normal("z", 0, 1, shape=8))
        pm.Normal("y", theta, sd, observed=y)
    return model


def seeds() -> pm.Model:
    """Crowder (1978): seeds that germinated on 21 plates, two kinds and two extracts of roots; plates differ."""
    r = np.array([10, 23, 23, 26, 17, 5, 53, 55, 32, 46, 10, 8, 10, 8, 23, 0, 3, 22, 15, 32, 3])
    n = np.array([39, 62, 81, 51, 39, 6, 74, 72, 51, 79, 13, 16, 30, 28, 45, 4, 12, 41, 30, 51, 7])
    kind = np.repeat([0.0, 1.0], [11, 10])
    extract = np.array([0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1], dtype=float)
    design = np.column_stack([np.ones(21), kind, extract, kind * extract])
    with pm.Model() as model:
        beta, sigma = pm.Normal("beta", 0, 2, shape=4), pm.HalfNormal("sigma", 1)
        plate = pm.Deterministic("plate", sigma * pm.Normal("z", 0, 1, shape=21))
        pm.Binomial("r", n=n, logit_p=design @ beta + plate, observed=r)
    return model


def coal() -> pm.Model:
    """Coal mining disasters, 40 bins of 111 years: a Gaussian process in the log of the rate."""
    counts, edges = np.histogram(pmep.datasets.load_coal(), bins=40)
    years = (edges[:-1] + edges[1:]) / 2
    with pm.Model() as model:
        ell, amp = pm.InverseGamma("ell", mu=15, sigma=15), pm.HalfNormal("amp", 2)
        level = pm.Normal("level", 0, 2)
        gp = pm.gp.Latent(mean_func=pm.gp.mean.Constant(level), cov_func=amp**2 * pm.gp.cov.ExpQuad(1, ell))
        pm.Poisson("y", pm.math.exp(gp.prior("f", X=years[:, None])), observed=counts)
    return model


MODELS: dict[str, tuple[Callable[[], pm.Model], tuple[str, ...]]] = {
    "Eight schools": (eight_schools, ("mu", "tau", "theta")),
    "Seeds, binomial with plates": (seeds, ("beta", "sigma", "plate")),
    "Coal, Cox process": (coal, ("ell", "amp", "level", "f")),
}
"""Models and the variables that are compared."""


def nuts(model: pm.Model, draws: int, accept: float, seed: int) -> Any:
    """Sample by nutpie."""
    import nutpie

    compiled = nutpie.compile_pymc_model(model)
    return nutpie.sample(
        compiled, draws=draws, tune=1000, chains=4, target_accept=accept, seed=seed, progress_bar=False
    )


def laplace(model: pm.Model, seed: int) -> Any:
    """Approximate about the mode of the joint density, as pymc-extras does by default."""
    import pymc_extras as pmx

    with model:
        return pmx.fit_laplace(draws=4 * DRAWS, random_seed=seed, progressbar=False)


def advi(model: pm.Model, seed: int) -> Any:
    """Fit the mean field for PyMC's own number of steps, and draw."""
    with model:
        approximation = pm.fit(method="advi", random_seed=seed, progressbar=False)
        return approximation.sample(4 * DRAWS, random_seed=seed)


RUN: dict[str, Callable[[pm.Model, int], Any]] = {
    "pymc_ep.fit": lambda model, seed: pmep.fit(model=model, random_seed=seed, progressbar=False),
    "pm.sample (nutpie)": lambda model, seed: nuts(model, DRAWS, 0.8, seed),
    "pm.fit (ADVI)": advi,
    "fit_laplace (pymc-extras)": laplace,
}


def moments(idata: Any, names: tuple[str, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Return means and sds of all elements."""
    flat = [idata["posterior"][n].to_numpy().reshape(-1, int(np.prod(idata["posterior"][n].shape[2:]))) for n in names]
    draws = np.concatenate(flat, axis=1)
    return draws.mean(axis=0), draws.std(axis=0, ddof=1)


def measure(build: Callable[[], pm.Model], names: tuple[str, ...], draws: int) -> dict[str, list[float]]:
    """Return by method the greatest mean error, the least and greatest sd ratio, cold and warm seconds."""
    model = build()
    mean, sd = moments(nuts(model, draws, 0.99, 1), names)
    found = {}
    for method, run in RUN.items():
        seconds = []
        for seed in (2, 3):
            began = time.perf_counter()
            idata = run(model, seed)
            seconds.append(time.perf_counter() - began)
        own_mean, own_sd = moments(idata, names)
        ratio = own_sd / sd
        found[method] = [float(np.max(np.abs(own_mean - mean) / sd)), float(ratio.min()), float(ratio.max()), *seconds]
    return found


def main() -> None:
    """Measure all and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reference-draws", type=int, default=5_000)
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    rows = []
    for name, (build, variables) in MODELS.items():
        for method, (error, least, most, cold, warm) in measure(build, variables, arguments.reference_draws).items():
            rows.append([name, method, f"{error:.2f}", f"{least:.2f} to {most:.2f}", f"{cold:.1f}", f"{warm:.1f}"])
            print(*rows[-1], sep=" | ", flush=True)
    head = ["model", "method", "greatest mean error / sd", "sd ratios", "first call, s", "second call, s"]
    title = header("Beside NUTS, ADVI and Laplace", "docs/benchmarks/peers.py", "nutpie", "pymc-extras")
    text = (
        f"Each method has four times {DRAWS} draws. The reference is a long NUTS run: four chains of "
        f"{arguments.reference_draws} draws, acceptance 0.99. Errors are over all elements of the variables that "
        f"a user would look at; NUTS's own error is that of its draws. Effects are non-centred, which suits NUTS. "
        f"First calls compile, with caches that other models have filled. R-INLA is missing, as no R was at hand.\n"
    )
    print(write_page("peers", [title, text, markdown_table(head, rows)]))


if __name__ == "__main__":
    main()
