"""Laplace's approximation, bounds and EP for bits, beside annealed importance sampling: ionosphere, sonar and USPS.

    python -m docs.benchmarks.approximations [--sets ionosphere sonar usps] [--temperatures 1000]

The comparison of Nickisch and Rasmussen (2008), on splits of the benchmark of classification: log evidence of each
method over a grid of two hyperparameters, under both links; at three points also by annealed importance sampling from
EP's posterior with elliptical slices; log score and errors on test data, and seconds of a fit. Needs the folder
``classification`` under ``PYMC_EP_DATA``. Writes docs/benchmarks/approximations.md; some ten minutes.
"""

import argparse
import json
import os
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
import pymc as pm
from scipy.special import log_ndtr, logsumexp

import pymc_ep as pmep
from docs.benchmarks._common import PAGES, header, markdown_table, write_page
from docs.benchmarks.classification import JITTER, Split, covariances, splits

NAME = "docs/benchmarks/approximations.py"
STORE = PAGES.parents[1] / "build" / "approximations.json"
SETS = ("ionosphere", "sonar", "usps")
METHODS = {"logistic": ("ep", "vg", "laplace", "dsb"), "probit": ("ep", "vg", "laplace")}
LINKS = {"logistic": pm.math.invlogit, "probit": pm.math.invprobit}
LOG_LENGTH, LOG_AMPLITUDE = (0.0, 1.0, 2.0, 3.0), (0.0, 1.5, 3.0, 4.5)
"""Logarithms of the length scale over the root of the number of inputs, plus one, and of the amplitude."""
POINTS = ((2.0, 0.0), (2.0, 1.5), (2.0, 3.0))
"""Where annealed importance sampling is run: weak, typical and strong signals."""
RUNS = 4
"""Runs of annealed importance sampling, whose spread is the error."""


def build(part: Split, link: str) -> pm.Model:
    """Return the model, with the new bits that `log_predictive` scores."""
    d = part.x.shape[1]
    with pm.Model() as model:
        ell, amp = pm.HalfNormal("ell", 100.0), pm.HalfNormal("amp", 100.0)
        gp = pm.gp.Latent(cov_func=amp**2 * pm.gp.cov.ExpQuad(d, ls=ell))
        f = gp.prior("f", X=part.x, reparameterize=False)
        pm.Bernoulli("y", p=LINKS[link](f), observed=part.y)
        pm.Bernoulli("y_new", p=LINKS[link](gp.conditional("f_new", Xnew=part.x_new)))
    return model


def hyper(part: Split, point: tuple[float, float]) -> dict[str, float]:
    """Return the hyperparameters of a point of the grid."""
    length, amplitude = point
    return {"ell": float(np.exp(length - 1.0) * np.sqrt(part.x.shape[1])), "amp": float(np.exp(amplitude))}


def fits(part: Split, link: str) -> list[dict[str, Any]]:
    """Fit by every method at every point of the grid."""
    model, out = build(part, link), []
    for method in METHODS[link]:
        for point in ((a, b) for a in LOG_LENGTH for b in LOG_AMPLITUDE):
            settings = {"model": model, "hyper": "fixed", "start": hyper(part, point), "draws": 0, "progressbar": False}
            found = pmep.fit(method, max_iter=1000, **settings)
            score = np.asarray(pmep.log_predictive(found, model, {"y_new": part.y_new})["y_new"])
            out.append(
                {
                    "method": method,
                    "point": point,
                    "log_evidence": float(found["fit"]["log_evidence"]),
                    "converged": bool(found["fit"]["converged"]),
                    "score": float(score.mean()),
                    "error": float(np.mean(score < np.log(0.5))),
                    "seconds": float(found["fit"].attrs["run_time"]),
                    "sites": [found["fit"][f"y_site_{what}"].to_numpy().tolist() for what in ("shift", "precision")]
                    if method == "ep" and point in POINTS
                    else [],
                }
            )
    return out


def log_likelihood(link: str, y: np.ndarray, f: np.ndarray) -> float:
    """Return the log likelihood of bits."""
    signed = (2 * y - 1) * f
    return float(log_ndtr(signed).sum() if link == "probit" else -np.logaddexp(0.0, -signed).sum())


def annealed(
    part: Split, link: str, point: tuple[float, float], sites: tuple[np.ndarray, np.ndarray], steps: int
) -> tuple[float, float]:
    """Return log Z and the spread of its runs, by annealed importance sampling (Neal 2001) from EP's posterior.

    Each temperature has an elliptical slice (Murray et al. 2010), with EP's posterior in place of the prior and the
    likelihood over EP's sites in place of the likelihood.
    """
    prior = covariances(part, hyper(part, point))["covariance"]
    shift, precision = sites
    whole = np.eye(len(prior)) + np.sqrt(precision)[:, None] * prior * np.sqrt(precision)
    half = np.linalg.solve(np.linalg.cholesky(whole), np.sqrt(precision)[:, None] * prior)
    covariance = prior - half.T @ half
    values, vectors = np.linalg.eigh(covariance)
    root, mean = vectors * np.sqrt(np.maximum(values, 0.0)), covariance @ shift
    log_q = 0.5 * shift @ mean - 0.5 * np.linalg.slogdet(whole)[1]

    def ratio(away: np.ndarray) -> float:
        f = mean + away
        return log_likelihood(link, part.y, f) - float(shift @ f - 0.5 * precision @ f**2)

    return annealed_from(root, ratio, log_q, steps)


def annealed_from(
    root: np.ndarray, ratio: Callable[[np.ndarray], float], log_q: float, steps: int
) -> tuple[float, float]:
    """Return log of the integral of exp(ratio) under N(0, R R^T) plus `log_q`, and the spread of its runs."""
    found = []
    for seed in range(RUNS):
        rng = np.random.default_rng(seed)
        away = root @ rng.standard_normal(len(root))
        own, log_weight = ratio(away), 0.0
        for after in np.arange(1, steps + 1) / steps:
            log_weight += own / steps
            other, least = root @ rng.standard_normal(len(root)), after * own + np.log(rng.random())
            angle = rng.uniform(0.0, 2.0 * np.pi)
            low, high = angle - 2.0 * np.pi, angle
            while after * (moved := ratio(away * np.cos(angle) + other * np.sin(angle))) < least:
                low, high = (angle, high) if angle < 0.0 else (low, angle)
                angle = rng.uniform(low, high)
            away, own = away * np.cos(angle) + other * np.sin(angle), moved
        found.append(log_weight)
    return float(log_q + logsumexp(found) - np.log(RUNS)), float(np.std(found))


def measure(name: str, temperatures: int) -> dict[str, Any]:
    """Measure a data set under both links."""
    part = splits(name)[0]
    out: dict[str, Any] = {"sizes": [len(part.y), len(part.y_new)]}
    for link in LINKS:
        out[link] = {"fits": fits(part, link), "annealed": {}}
        for point in POINTS:
            began = time.perf_counter()
            by_ep = next(fit for fit in out[link]["fits"] if fit["method"] == "ep" and fit["point"] == point)
            shift, precision = map(np.array, by_ep.pop("sites"))
            found = annealed(part, link, point, (shift, precision), temperatures)
            out[link]["annealed"][str(point)] = [*found, time.perf_counter() - began]
    return out


# The page


def at_points(name: str, link: str, r: dict[str, Any]) -> list[list[str]]:
    """Return rows of log evidences at the points that have a reference, as differences from it."""
    rows = []
    for point in POINTS:
        mean, spread, seconds = r[link]["annealed"][str(point)]
        own = {fit["method"]: fit for fit in r[link]["fits"] if tuple(fit["point"]) == point}
        apart = [f"{own[m]['log_evidence'] - mean:+.2f}" if m in own else "-" for m in METHODS["logistic"]]
        rows.append([f"{name}, {link}, {np.exp(point[1]):.3g}", f"{mean:.2f} ({spread:.2f})", *apart, f"{seconds:.3g}"])
    return rows


def over_grid(name: str, link: str, r: dict[str, Any]) -> list[list[str]]:
    """Return a row for each method: its best point, scores there, and how far from EP it is anywhere."""
    rows = []
    by_ep = {tuple(f["point"]): f["log_evidence"] for f in r[link]["fits"] if f["method"] == "ep"}
    for method in METHODS[link]:
        own = [fit for fit in r[link]["fits"] if fit["method"] == method]
        best = max(own, key=lambda fit: fit["log_evidence"])
        farthest = max((fit["log_evidence"] - by_ep[tuple(fit["point"])] for fit in own), key=abs)
        rows.append(
            [
                f"{name}, {link}, {method}",
                f"{best['log_evidence']:.2f}",
                f"{best['point'][0]:g}, {best['point'][1]:g}",
                f"{1.0 + best['score'] / np.log(2):.3f}",
                f"{best['error']:.3f}",
                f"{farthest:+.2f}",
                f"{np.median([fit['seconds'] for fit in own]):.2g}",
                str(sum(not fit["converged"] for fit in own)),
            ]
        )
    return rows


def page(results: dict[str, Any], temperatures: int) -> list[str]:
    """Return the parts of the page."""
    sizes = "; ".join(f"{name} {r['sizes'][0]} / {r['sizes'][1]}" for name, r in results.items())
    names = [(name, link, r) for name, r in results.items() for link in LINKS]
    return [
        header("Approximations of bits", NAME),
        INTRODUCTION.format(sizes=sizes, temperatures=temperatures, runs=RUNS, jitter=JITTER),
        "### Log evidence beside annealed importance sampling\n\nDifferences from it, in nats.\n",
        markdown_table(
            ["data, link, amplitude", "annealed (sd)", *METHODS["logistic"], "annealed, s"],
            [row for one in names for row in at_points(*one)],
        ),
        "### Over the grid\n\nAt the point where each method's evidence is largest.\n",
        markdown_table(
            [
                "data, link, method",
                "log evidence",
                "log ell, log amp",
                "bits",
                "errors",
                "farthest from ep",
                "fit, s",
                "lost",
            ],
            [row for one in names for row in over_grid(*one)],
        ),
    ]


INTRODUCTION = """\
- One split each, training / test: {sizes}, as on the page of classification.
- The grid has 16 points: logarithms of the amplitude 0 to 4.5, and of the length scale 0 to 3, the latter over the root
  of the number of inputs, less one.
- Annealed importance sampling goes from EP's posterior to the exact one by {temperatures} temperatures, an elliptical
  slice at each, in {runs} runs, of which the spread is shown; the logarithm of the length scale is 2.
- Bits are those that a test datum is told better than by a coin. Errors are of test data.
- Seconds are of one fit that has been compiled, on a machine that others shared.
"""


def main() -> None:
    """Measure and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", nargs="*", default=list(SETS), choices=list(SETS))
    parser.add_argument("--temperatures", type=int, default=1000)
    options = parser.parse_args()
    results = json.loads(STORE.read_text()) if STORE.exists() else {}
    for name in options.sets:
        results[name] = measure(name, options.temperatures)
        STORE.parent.mkdir(exist_ok=True)
        STORE.write_text(json.dumps(results))
    found = {name: results[name] for name in SETS if name in results}
    print(write_page("approximations", page(found, options.temperatures)))


if __name__ == "__main__":
    main()
