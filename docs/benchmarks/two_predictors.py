"""Likelihoods with two predictors, by the default fit beside chains of nutpie.

    python -m docs.benchmarks two_predictors [--models NAME ...]

Fifteen groups of fourteen simulated observations, with a slope and effects of groups in both predictors. Each model is
fitted twice and sampled in a process of its own, with one thread of BLAS. Needs nutpie; writes its part of
docs/benchmarks/two_predictors.md. Ten minutes.
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
from scipy.special import expit

import pymc_ep as pmep
from docs.benchmarks._common import chosen_models, header, markdown_table, printed_apart, write_page
from docs.benchmarks.small_models import seconds
from pymc_ep.compat import group

GROUPS, EACH = 15, 14
DRAWS, TUNE, CHAINS = 4_000, 1_000, 2
FIRST, SECOND = ("a", "b", "u", "su"), ("c", "d", "v", "sv")
"""Variables of the first predictor and of the second."""

Simulate = Callable[[np.random.Generator, np.ndarray, np.ndarray], np.ndarray]
Observe = Callable[[Any, Any, np.ndarray], Any]


def ones_and_more(rng: np.random.Generator, mean: np.ndarray) -> np.ndarray:
    """Draw counts of a Poisson distribution without its zeros."""
    counts = rng.poisson(mean)
    while (zero := counts == 0).any():
        counts[zero] = rng.poisson(mean[zero])
    return counts


def beta_draws(rng: np.random.Generator, logit: np.ndarray, log_size: np.ndarray) -> np.ndarray:
    """Draw shares with this mean and dispersion, away from zero and one."""
    share, size = expit(logit), np.exp(log_size)
    return np.clip(rng.beta(share * size, (1 - share) * size), 1e-4, 1 - 1e-4)


def gamma_draws(rng: np.random.Generator, log_mean: np.ndarray, log_shape: np.ndarray) -> np.ndarray:
    """Draw positive numbers with this mean and shape."""
    shape = np.exp(log_shape)
    return rng.gamma(shape, np.exp(log_mean) / shape)


exp, inv = pm.math.exp, pm.math.invlogit
FAMILIES: dict[str, tuple[tuple[float, float], Simulate, Observe]] = {
    "Normal: mean, scale": (
        (1.0, -0.3),
        lambda rng, a, b: rng.normal(a, np.exp(b)),
        lambda a, b, y: pm.Normal("y", a, exp(b), observed=y),
    ),
    "Student-t: mean, scale": (
        (1.0, -0.3),
        lambda rng, a, b: a + np.exp(b) * rng.standard_t(4, len(a)),
        lambda a, b, y: pm.StudentT("y", nu=4, mu=a, sigma=exp(b), observed=y),
    ),
    "Gumbel: location, scale": (
        (1.0, -0.3),
        lambda rng, a, b: rng.gumbel(a, np.exp(b)),
        lambda a, b, y: pm.Gumbel("y", a, exp(b), observed=y),
    ),
    "Negative binomial: mean, dispersion": (
        (1.5, 0.5),
        lambda rng, a, b: rng.poisson(gamma_draws(rng, a, b)),
        lambda a, b, y: pm.NegativeBinomial("y", mu=exp(a), alpha=exp(b), observed=y),
    ),
    "Gamma: mean, shape": (
        (0.5, 0.8),
        gamma_draws,
        lambda a, b, y: pm.Gamma("y", alpha=exp(b), beta=exp(b - a), observed=y),
    ),
    "Weibull: scale, shape": (
        (0.5, 0.5),
        lambda rng, a, b: np.exp(a) * rng.weibull(np.exp(b)),
        lambda a, b, y: pm.Weibull("y", alpha=exp(b), beta=exp(a), observed=y),
    ),
    "Beta: mean, precision": (
        (0.3, 2.0),
        beta_draws,
        lambda a, b, y: pm.Beta("y", mu=inv(a), nu=exp(b), observed=y),
    ),
    "Beta-binomial: mean, precision": (
        (0.3, 1.5),
        lambda rng, a, b: rng.binomial(10, beta_draws(rng, a, b)),
        lambda a, b, y: pm.BetaBinomial("y", n=10, alpha=inv(a) * exp(b), beta=inv(-a) * exp(b), observed=y),
    ),
    "Zero-inflated Poisson: mean, presence": (
        (1.3, 0.7),
        lambda rng, a, b: rng.poisson(np.exp(a)) * (rng.uniform(size=len(a)) < expit(b)),
        lambda a, b, y: pm.ZeroInflatedPoisson("y", psi=inv(b), mu=exp(a), observed=y),
    ),
    "Zero-inflated negative binomial: mean, presence": (
        (1.3, 0.7),
        lambda rng, a, b: rng.poisson(gamma_draws(rng, a, np.log(3.0))) * (rng.uniform(size=len(a)) < expit(b)),
        lambda a, b, y: pm.ZeroInflatedNegativeBinomial(
            "y", psi=inv(b), mu=exp(a), alpha=pm.Exponential("alpha", 0.5), observed=y
        ),
    ),
    "Hurdle Poisson: mean, presence": (
        (1.0, 0.7),
        lambda rng, a, b: ones_and_more(rng, np.exp(a)) * (rng.uniform(size=len(a)) < expit(b)),
        lambda a, b, y: pm.HurdlePoisson("y", psi=inv(b), mu=exp(a), observed=y),
    ),
}


def simulated(name: str) -> pm.Model:
    """Simulate one family and write its model."""
    levels, simulate, observe = FAMILIES[name]
    rng = np.random.default_rng(11)
    g = np.repeat(np.arange(GROUPS), EACH)
    x, z = rng.standard_normal((2, len(g)))
    first = levels[0] + 0.5 * x + rng.normal(0, 0.6, GROUPS)[g]
    second = levels[1] + 0.3 * z + rng.normal(0, 0.4, GROUPS)[g]
    y = simulate(rng, first, second)
    with pm.Model() as model:
        a, b = pm.Normal("a", levels[0], 1.5), pm.Normal("b", 0, 1)
        c, d = pm.Normal("c", levels[1], 1.5), pm.Normal("d", 0, 1)
        u = pm.Normal("u", 0, pm.HalfNormal("su", 1), shape=GROUPS)
        v = pm.Normal("v", 0, pm.HalfNormal("sv", 0.5), shape=GROUPS)
        observe(a + b * x + u[g], c + d * z + v[g], y)
    return model


def worker(name: str) -> None:
    """Fit and sample one model in this process, and print the result as a line of JSON."""
    import nutpie

    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    model, fits, chains = simulated(name), [], []
    fit = partial(pmep.fit, model=model, random_seed=0, progressbar=False)
    spent = [seconds(lambda: fits.append(fit()))[0] for _ in range(2)]
    compiled = nutpie.compile_pymc_model(model)
    options = {"draws": DRAWS, "tune": TUNE, "chains": CHAINS, "cores": 1, "seed": 1, "progress_bar": False}
    sampled = seconds(lambda: chains.append(nutpie.sample(compiled, **options)))[0]
    found = pmep.compare_to_mcmc(fits[-1], chains[0], var_names=[v.name for v in model.free_RVs])
    part = found.index.str.split("[").str[0]
    print(
        json.dumps(
            {
                "seconds": spent,
                "nuts": sampled,
                "ess": float(found["ess_bulk"].min()),
                "means": [float(found["mean_difference"][part.isin(names)].abs().max()) for names in (FIRST, SECOND)],
                "sds": [float(found["sd_ratio"].min()), float(found["sd_ratio"].max())],
                "converged": bool(group(fits[-1], "fit")["converged"]),
            }
        )
    )


def main() -> None:
    """Measure all and write the page."""
    models = chosen_models(__doc__, FAMILIES, worker)
    load, rows = os.getloadavg()[0], []
    for name in models:
        found = printed_apart(__file__, name)
        again, (low, high) = found["seconds"][1], found["sds"]
        cells = [f"{found['seconds'][0]:.1f}", f"{again:.1f}", f"{found['nuts']:.1f}", f"{found['nuts'] / again:.1f}"]
        cells += [f"{found['ess']:.0f}", *(f"{off:.2f}" for off in found["means"]), f"{low:.2f} to {high:.2f}"]
        rows.append([name, *cells, "yes" if found["converged"] else "no"])
        print(*rows[-1], sep=" | ", flush=True)
    head = ["likelihood: both predictors", "first fit, s", "again, s", "nutpie, s", "nutpie / again", "least ESS"]
    head += ["worst mean of the first, sd", "of the second, sd", "sds, ratio", "converged"]
    text = f"Processor seconds; load average {load:.1f} to {os.getloadavg()[0]:.1f}.\n"
    title = header("Families beside NUTS", "docs/benchmarks/two_predictors.py", "nutpie")
    print(write_page("two_predictors", [title, text, markdown_table(head, rows)]))


if __name__ == "__main__":
    main()
