"""Sushi-A with all utilities of 200 people as one Gaussian, whose covariance is that of people times that of items.

    python -m docs.benchmarks.preferences_gpfull

The model of Bonilla, Guo and Sanner (2010): features of people and of items, an ordinary `pm.MvNormal` of 2,000 values,
PyMC's Bernoulli of differences, and expectation propagation where they take Laplace's approximation. Takes two minutes
on one core.
Writes its section of docs/benchmarks/preferences.md; needs sushi3 in PYMC_EP_DATA.
"""

import os
import time
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pymc as pm

import pymc_ep as pmep
from docs.benchmarks._common import header, markdown_table, mean_se, write_page
from docs.benchmarks.preferences import PROTOCOLS, SEEDS, drawn
from pymc_ep.compat import group
from pymc_ep.datasets import load_sushi

NAME = "docs/benchmarks/preferences_gpfull.py"
A = PROTOCOLS["A"]
COLUMNS = ["gender", "age", "prefecture", "region", "east", "prefecture_now", "region_now", "east_now", "moved"]


def people(seed: int) -> np.ndarray:
    """Return the nine features of the people of a draw, standardised, (200, 9)."""
    path = Path(os.environ["PYMC_EP_DATA"]) / "sushi3" / "sushi3.udata"
    table = pd.read_csv(path, sep="\t", header=None, names=["id", "gender", "age", "time", *COLUMNS[2:]])
    some = load_sushi("a").rankings.sample(A.n_users, random_state=seed).index
    features = table.loc[some, COLUMNS].to_numpy(dtype=float)
    return (features - features.mean(axis=0)) / features.std(axis=0)


def kernel(x: np.ndarray) -> np.ndarray:
    """Return exp(-|x - x'|^2 / psi), (n, n), with psi the number of features, as the other tables have it."""
    squares = ((x[:, None] - x) ** 2).sum(axis=2)
    return np.exp(-squares / x.shape[1]) + 0.1 * np.eye(len(x))


def measured(seed: int, *, with_mean: bool) -> tuple[float, float, float]:
    """Return bits a held-out comparison, seconds and the scale of utilities."""
    x, train, held_out = drawn(A, seed)
    covariance = np.kron(kernel(people(seed)), kernel(x))
    with pm.Model() as model:
        sigma = pm.HalfNormal("sigma", 3)
        mean = pm.Normal("b", 0, 2, shape=len(x)) if with_mean else np.zeros(len(x))
        f = pm.MvNormal("f", np.zeros(len(covariance)), sigma**2 * covariance)
        rows = {name: pm.Data(name, values) for name, values in train.items()}
        utilities = f.reshape((A.n_users, len(x))) + mean
        gain = utilities[rows["users"], rows["winners"]] - utilities[rows["users"], rows["losers"]]
        pm.Bernoulli("prefers", p=pm.math.invprobit(gain), observed=pm.Data("ones", np.ones(len(train["users"]), int)))
    began = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pmep.ConvergenceWarning)
        idata = pmep.fit(model=model, hyper="optimize", draws=0, progressbar=False)
    seconds = time.perf_counter() - began
    with model:
        pm.set_data(dict(zip(train, held_out)) | {"ones": np.ones(len(held_out[0]), int)})
    log_p = pmep.log_predictive(idata, model, {"prefers": np.ones(len(held_out[0]))})["prefers"].to_numpy()
    return -float(log_p.mean()) / np.log(2), seconds, float(group(idata, "posterior_mean")["f"].to_numpy().std())


def main() -> None:
    """Measure and write the section."""
    rows = []
    for name, with_mean in (("GPfull", False), ("GPfull and a mean of items", True)):
        bits, seconds, scales = np.array([measured(seed, with_mean=with_mean) for seed in SEEDS]).T
        score = mean_se(float(bits.mean()), float(bits.std(ddof=1) / np.sqrt(len(bits))), 3)
        rows.append([name, score, "-" if with_mean else "0.897", f"{np.median(seconds):.1f}", f"{scales.mean():.2f}"])
        print(*rows[-1], sep=" | ", flush=True)
    about = (
        "All utilities are one Gaussian, with the scale at its mode. Draws and columns are those of the tables above.\n"
    )
    head = ["Prior", "Bits (standard error)", "Published, by Laplace", "Seconds", "Spread of utilities"]
    write_page("preferences_gpfull", [header("Sushi-A as one Gaussian", NAME), about, markdown_table(head, rows)])


if __name__ == "__main__":
    main()
