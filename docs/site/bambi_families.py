"""The table of families in docs/bambi.md: each by Bambi on simulated data, fitted here and sampled by NUTS.

    python -m docs.site.bambi_families

prints the rows, or those of the responses that are given. It needs PyMC 6 and takes some ten minutes.
"""

import logging
import sys
import time
import warnings

import bambi as bmb
import numpy as np
import pandas as pd
from scipy.special import expit

import pymc_ep as pmep

SAMPLED = {"draws": 1000, "tune": 1000, "chains": 2, "cores": 1, "random_seed": 1, "target_accept": 0.9}
GROUPS = " ~ x + (1|g)"
FAMILIES = {
    "gaussian": "gaussian",
    "t": "t",
    "asymmetriclaplace": "asymmetriclaplace",
    "bernoulli": "bernoulli",
    "p(binomial, size)": "binomial",
    "p(beta_binomial, size)": "beta_binomial",
    "poisson": "poisson",
    "negativebinomial": "negativebinomial",
    "zero_inflated_poisson": "zero_inflated_poisson",
    "zero_inflated_negativebinomial": "zero_inflated_negativebinomial",
    "hurdle_poisson": "hurdle_poisson",
    "hurdle_gamma": "hurdle_gamma",
    "beta": "beta",
    "gamma": "gamma",
    "exponential": "exponential",
    "weibull": "weibull",
    "censored(time, status)": "weibull",
    "cumulative": "cumulative",
    "sratio": "sratio",
    "weighted(poisson, weight)": "poisson",
}
LOG_LINKS = ("gamma", "exponential")


def simulated(n: int = 200, groups: int = 12) -> pd.DataFrame:
    """Return a response of each family, all with the slope 0.6 of x and effects of groups with the scale 0.5."""
    rng = np.random.default_rng(1)
    x, g = rng.normal(size=n), rng.integers(0, groups, n)
    eta = 0.3 + 0.6 * x + 0.5 * rng.normal(size=groups)[g]
    mean, share, size = np.exp(eta), expit(eta), rng.integers(3, 12, n)
    data = {
        "gaussian": eta + 0.5 * rng.normal(size=n),
        "t": eta + 0.5 * rng.standard_t(3, size=n),
        "asymmetriclaplace": eta + rng.laplace(0, 0.5, size=n),
        "bernoulli": rng.binomial(1, share),
        "size": size,
        "binomial": rng.binomial(size, share),
        "beta": rng.beta(10 * share, 10 * (1 - share)),
        "poisson": rng.poisson(mean),
        "negativebinomial": rng.poisson(rng.gamma(2, mean / 2)),
        "gamma": rng.gamma(3, mean / 3),
        "exponential": rng.exponential(mean),
        "weibull": mean * rng.weibull(1.5, n),
        "weight": rng.uniform(0.5, 2, n),
    }
    data["beta_binomial"] = rng.binomial(size, data["beta"])
    zero = rng.random(n) < 0.3
    for name in ("poisson", "negativebinomial"):
        data[f"zero_inflated_{name}"] = np.where(zero, 0, data[name])
    positive = data["poisson"]
    while np.any(none := positive == 0):
        positive = np.where(none, rng.poisson(mean), positive)
    data["hurdle_poisson"] = np.where(zero, 0, positive)
    data["hurdle_gamma"] = np.where(zero, 0, data["gamma"])
    data["time"] = np.minimum(data["weibull"], 1.5)
    data["status"] = np.where(data["weibull"] > 1.5, "right", "none")
    order = (eta[:, None] + rng.logistic(size=(n, 1)) > np.array([-1.0, 0.2, 1.2])).sum(axis=1)
    data["cumulative"] = data["sratio"] = pd.Categorical(order, ordered=True)
    return pd.DataFrame(data | {"x": x, "g": [f"g{k:02d}" for k in g]})


def main() -> None:
    """Print a row for each family."""
    logging.getLogger("pymc").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    data = simulated()
    for response in sys.argv[1:] or FAMILIES:
        family = FAMILIES[response]
        options = {"link": "log"} if family in LOG_LINKS else {}
        model = bmb.Model(response + GROUPS, data, family=family, **options)
        began = time.perf_counter()
        idata = pmep.fit(model=model, random_seed=1, progressbar=False)
        fitted = time.perf_counter()
        sampled = model.fit(progressbar=False, **SAMPLED)
        ended = time.perf_counter()
        numbers = []
        for v in ("x", "1|g_sigma"):
            ours, theirs = ((i["posterior"][v].mean().item(), i["posterior"][v].std().item()) for i in (idata, sampled))
            numbers += [f"{ours[0]:.2f} ± {ours[1]:.2f}", f"{theirs[0]:.2f} ± {theirs[1]:.2f}"]
        seconds = f"{fitted - began:.0f}, {ended - fitted:.0f}"
        if not idata["fit"]["converged"]:
            seconds += ", with a warning"
        label = f"`{response}`" if family in response else f"`{response}`, `{family}`"
        print(f"| {label} | {' | '.join(numbers)} | {seconds} |", flush=True)


if __name__ == "__main__":
    main()
