"""Logistic regression with many data: time and memory against n and p.

    python -m docs.benchmarks.regression_scaling [--largest 1000000]

Fits p coefficients to n simulated bits, each case in a process of its own: seconds of the whole fit (compilation and
draws included), seconds of EP alone, peak memory, and the distance to Newton's maximum of the posterior, whose
curvature is nearly the posterior's at these sizes. Writes docs/benchmarks/regression_scaling.md; three minutes.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import time

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
import pymc as pm
from scipy.special import expit

import pymc_ep as pmep
from docs.benchmarks._common import header, markdown_table, write_page

NAME = "docs/benchmarks/regression_scaling.py"
PRIOR_SD = 2.5
CASES = [(10_000, 50), (100_000, 10), (100_000, 50), (100_000, 200), (1_000_000, 50)]


def simulate(n: int, p: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw a design and bits."""
    rng = np.random.default_rng([n, p])
    x = rng.normal(size=(n, p))
    return x, (rng.random(n) < expit(x @ rng.normal(0, 0.3, p))).astype(np.int64)


def newton(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the maximum of the posterior and the standard deviations from its curvature."""
    beta = np.zeros(x.shape[1])
    for _ in range(30):
        rate = expit(x @ beta)
        hessian = (x.T * (rate * (1 - rate))) @ x + np.eye(len(beta)) / PRIOR_SD**2
        step = np.linalg.solve(hessian, x.T @ (y - rate) - beta / PRIOR_SD**2)
        beta += step
        if np.abs(step).max() < 1e-10:
            break
    return beta, np.sqrt(np.diag(np.linalg.inv(hessian)))


def worker(n: int, p: int) -> dict[str, float]:
    """Measure one case."""
    x, y = simulate(n, p)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.perf_counter()
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, PRIOR_SD, shape=p)
        pm.Bernoulli("y", logit_p=pm.math.dot(x, beta), observed=y)
    idata = pmep.fit(model=model, progressbar=False, random_seed=1)
    seconds = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    mode, sd = newton(x, y)
    return {
        "seconds": seconds,
        "run": float(idata["fit"].attrs["run_time"]),
        "before": before / 2**20,
        "peak": peak / 2**20,
        "iterations": int(idata["fit"]["n_iter"]),
        "converged": bool(idata["fit"]["converged"]),
        "error": float(np.abs((np.asarray(idata["posterior_mean"]["beta"]) - mode) / sd).max()),
        "ratio": float(np.max(np.abs(np.asarray(idata["posterior_sd"]["beta"]) / sd - 1))),
    }


def slope(results: dict[tuple[int, int], dict[str, float]], first: tuple[int, int], last: tuple[int, int]) -> float:
    """Return the exponent of EP's seconds between two cases."""
    growth = (last[0] * last[1]) / (first[0] * first[1])
    return float(np.log(results[last]["run"] / results[first]["run"]) / np.log(growth))


INTRODUCTION = """\
Bernoulli, logistic link, independent Normal priors, no hyperparameters, 4000 draws, one thread.

- Peak memory includes Python and its libraries, the design and the simulation.
- The last two columns compare with Newton's maximum of the posterior and its curvature: the largest difference of
  means in posterior standard deviations, and the largest relative difference of standard deviations. Both must be
  small; the rest is the posterior's skewness.

Target: n = 1,000,000 with p = 50 under 60 s and 4 GB.
"""


def main() -> None:
    """Measure and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--largest", type=int, default=1_000_000)
    parser.add_argument("--worker", type=int, nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        print(json.dumps(worker(*options.worker)))
        return
    results = {}
    for n, p in (case for case in CASES if case[0] <= options.largest):
        command = [
            sys.executable,
            "-W",
            "ignore",
            "-m",
            "docs.benchmarks.regression_scaling",
            "--worker",
            str(n),
            str(p),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        results[n, p] = json.loads(done.stdout.splitlines()[-1])
        print(n, p, results[n, p], flush=True)
    rows = [
        [
            f"{n:,}",
            str(p),
            f"{r['seconds']:.3g}",
            f"{r['run']:.3g}",
            f"{r['iterations']}{'' if r['converged'] else ', not converged'}",
            f"{r['peak']:.2f}",
            f"{r['error']:.1e}",
            f"{r['ratio']:.1e}",
        ]
        for (n, p), r in results.items()
    ]
    head = ["n", "p", "fit, s", "EP, s", "sweeps", "peak, GiB", "mean apart, sd", "sd apart"]
    slopes = (
        f"EP's time grows as p^{slope(results, (100_000, 10), (100_000, 200)):.2f} from p = 10 to 200 at n = 100,000"
    )
    if (1_000_000, 50) in results:
        slopes += (
            f", and as n^{slope(results, (10_000, 50), (1_000_000, 50)):.2f} from n = 10,000 to 1,000,000 at p = 50"
        )
    parts = [
        header("Logistic regression with many data", NAME),
        INTRODUCTION,
        markdown_table(head, rows),
        slopes + ".\n",
    ]
    print(write_page("regression_scaling", parts))


if __name__ == "__main__":
    main()
