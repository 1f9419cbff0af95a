"""Gaussian process classification: pima, ionosphere, sonar, and the digits 3 and 5 of USPS.

    python -m docs.benchmarks.classification [--sklearn PYTHON] [--gpy PYTHON] [--sets pima ionosphere sonar usps]

A Gaussian process with squared-exponential covariance under the probit link, hyperparameters optimised, on seeded
splits; next to it, where interpreters that have them are given, scikit-learn's classifier (Laplace's method, logistic
link, its own hyperparameters) and GPy's EP at the same hyperparameters. Needs the folder ``classification`` under
``PYMC_EP_DATA``. Writes docs/benchmarks/classification.md; about ten minutes.
"""

import argparse
import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
import pandas as pd
import pymc as pm
from scipy.spatial.distance import cdist
from scipy.special import log_ndtr

import pymc_ep as pmep
from docs.benchmarks._common import GPY, PAGES, header, markdown_table, run_elsewhere, write_page

NAME = "docs/benchmarks/classification.py"
STORE = PAGES.parents[1] / "build" / "classification.json"
SETS = ("pima", "ionosphere", "sonar", "usps")
SPLITS = 5
USPS_TRAIN = 767
"""As many as Kuss and Rasmussen (2005) train on; which ones is not known."""
AMPLITUDE = np.e
"""Where all searches start, and the length scale at the root of the number of inputs."""
JITTER = 1e-6
"""PyMC's addition to the diagonal of a Gaussian process."""
SKLEARN = """
import json, sys, time
import numpy as np
from sklearn.gaussian_process import GaussianProcessClassifier
from sklearn.gaussian_process.kernels import RBF, ConstantKernel
out = []
for path in sys.argv[1:]:
    d = np.load(path)
    kernel = ConstantKernel(float(d["amp"]) ** 2, (1e-4, 1e6)) * RBF(float(d["ell"]), (1e-3, 1e4))
    began = time.perf_counter()
    model = GaussianProcessClassifier(kernel).fit(d["x"], d["y"])
    seconds = time.perf_counter() - began
    one = model.predict_proba(d["x_new"])[:, 1]
    amp, ell = np.exp(model.kernel_.theta / [2, 1])
    out.append([seconds, float(model.log_marginal_likelihood_value_), one.tolist(), float(ell), float(amp)])
    print(json.dumps(out), flush=True)
"""


class Split(NamedTuple):
    """Training and test parts: inputs (n, d) and (m, d), bits (n,) and (m,)."""

    x: np.ndarray
    y: np.ndarray
    x_new: np.ndarray
    y_new: np.ndarray


def splits(name: str) -> list[Split]:
    """Return seeded random splits: one of USPS, five in two thirds and a third of the others."""
    folder = Path(os.environ["PYMC_EP_DATA"]) / "classification"
    if name == "usps":
        data = np.load(folder / "usps_3v5.npz")
        x, y = data["X"] / 1000.0, (data["digit"] == 3).astype(np.int64)
        return [split(x, y, USPS_TRAIN, 0)]
    table = pd.read_csv(folder / f"{name}.csv")
    x, y = table.drop(columns="y").to_numpy(dtype=float), table["y"].to_numpy()
    return [standardized(split(x, y, 2 * len(y) // 3, seed)) for seed in range(SPLITS)]


def split(x: np.ndarray, y: np.ndarray, train: int, seed: int) -> Split:
    """Take so many data at random for training."""
    order = np.random.default_rng(seed).permutation(len(y))
    first, rest = order[:train], order[train:]
    return Split(x[first], y[first], x[rest], y[rest])


def standardized(part: Split) -> Split:
    """Shift and scale inputs by mean and standard deviation of the training part; constant ones are only shifted."""
    mean, sd = part.x.mean(axis=0), part.x.std(axis=0)
    sd[sd == 0] = 1
    return part._replace(x=(part.x - mean) / sd, x_new=(part.x_new - mean) / sd)


def build(part: Split) -> pm.Model:
    """Return the model, with the new bits that `log_predictive` scores."""
    d = part.x.shape[1]
    with pm.Model() as model:
        ell, amp = pm.HalfNormal("ell", 3 * np.sqrt(d)), pm.HalfNormal("amp", 10)
        gp = pm.gp.Latent(cov_func=amp**2 * pm.gp.cov.ExpQuad(d, ls=ell))
        f = gp.prior("f", X=part.x, reparameterize=False)
        pm.Bernoulli("y", p=pm.math.invprobit(f), observed=part.y)
        pm.Bernoulli("y_new", p=pm.math.invprobit(gp.conditional("f_new", Xnew=part.x_new)))
    return model


def start_of(part: Split) -> dict[str, float]:
    """Return the hyperparameters that all searches start from."""
    return {"ell": float(np.sqrt(part.x.shape[1])), "amp": float(AMPLITUDE)}


def fit(part: Split) -> dict[str, Any]:
    """Fit twice with a search, the second time compiled already, and once at the mode; score the test part."""
    began = time.perf_counter()
    model = build(part)
    search = pmep.fit(model=model, draws=0, start=start_of(part), progressbar=False)
    compiled = time.perf_counter()
    search = pmep.fit(model=model, draws=0, start=start_of(part), progressbar=False)
    ended = time.perf_counter()
    modes = {name: float(search["fit"][f"hyper_mode_{name}"]) for name in ("ell", "amp")}
    held = pmep.fit(model=model, draws=0, hyper="fixed", start=modes, progressbar=False)
    score, plug_in = (pmep.log_predictive(r, model, {"y_new": part.y_new})["y_new"] for r in (search, held))
    return {
        "log_evidence": float(held["fit"]["log_evidence"]),
        "modes": modes,
        "converged": bool(search["fit"]["converged"]) and bool(held["fit"]["converged"]),
        "score": np.asarray(score).tolist(),
        "plug_in": np.asarray(plug_in).tolist(),
        "cold": compiled - began,
        "warm": ended - compiled,
        "one_fit": float(held["fit"].attrs["run_time"]),
    }


def covariances(part: Split, modes: dict[str, float]) -> dict[str, np.ndarray]:
    """Return what GPy needs at given hyperparameters, by other code than PyMC's."""

    def kernel(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return modes["amp"] ** 2 * np.exp(-0.5 * cdist(a, b, "sqeuclidean") / modes["ell"] ** 2)

    return {
        "covariance": kernel(part.x, part.x) + JITTER * np.eye(len(part.x)),
        "cross": kernel(part.x_new, part.x),
        "variance": np.full(len(part.x_new), modes["amp"] ** 2 + JITTER),
        "y": part.y,
    }


def version_of(package: str, python: str) -> str:
    """Return a package with its version under another interpreter."""
    ask = f"from importlib.metadata import version; print(version({package!r}))"
    done = subprocess.run([python, "-c", ask], capture_output=True, text=True, check=True)
    return f"{package} {done.stdout.strip()}"


def measure(name: str, sklearn: str | None, gpy: str | None, limit: float) -> dict[str, Any]:
    """Fit all splits of a data set, here and elsewhere."""
    parts = splits(name)
    ours = [fit(part) for part in parts]
    out: dict[str, Any] = {
        "sizes": [len(parts[0].y), len(parts[0].y_new), parts[0].x.shape[1]],
        "ours": ours,
        "versions": [],
    }
    if sklearn:
        inputs = ({**part._asdict(), **start_of(part)} for part in parts)
        found = run_elsewhere(sklearn, SKLEARN, inputs, limit)
        out["versions"].append(version_of("scikit-learn", sklearn))
        out["sklearn"] = [
            {
                "warm": s,
                "log_evidence": z,
                "score": bernoulli(part.y_new, np.array(one)),
                "modes": {"ell": ell, "amp": a},
            }
            for part, (s, z, one, ell, a) in zip(parts, found)
        ]
    if gpy:
        found = run_elsewhere(gpy, GPY, (covariances(part, r["modes"]) for part, r in zip(parts, ours)), limit)
        out["versions"].append(version_of("GPy", gpy))
        out["gpy"] = [
            {"one_fit": s, "log_evidence": z, "plug_in": probit(part.y_new, np.array(mean), np.array(variance))}
            for part, (s, z, mean, variance) in zip(parts, found)
        ]
    return out


def bernoulli(y: np.ndarray, one: np.ndarray) -> list[float]:
    """Return the log probabilities of the bits."""
    return np.log(np.where(y == 1, one, 1 - one)).tolist()


def probit(y: np.ndarray, mean: np.ndarray, variance: np.ndarray) -> list[float]:
    """Return the log predictive probabilities of the bits under Gaussian latent values."""
    return log_ndtr((2 * y - 1) * mean / np.sqrt(1 + variance)).tolist()


# The page


def error_rate(score: list[float]) -> float:
    """Return the share of bits that were given less than one half."""
    return float(np.mean(np.array(score) < np.log(0.5)))


def middle(fits: list[dict[str, Any]], what: str) -> float:
    """Return the median of one figure over splits."""
    return float(np.median([np.mean(fit[what]) for fit in fits]))


def rows_of(name: str, r: dict[str, Any]) -> list[list[str]]:
    """Return the rows of the first table."""
    rows = []
    for title, key in (("pymc_ep", "ours"), ("scikit-learn", "sklearn")):
        if fits := r.get(key):
            rows.append(
                [
                    f"{name}, {title}",
                    f"{middle(fits, 'score'):.4f}",
                    f"{np.median([error_rate(fit['score']) for fit in fits]):.3f}",
                    f"{middle(fits, 'log_evidence'):.2f}",
                    *(f"{np.median([fit['modes'][h] for fit in fits]):.3g}" for h in ("ell", "amp")),
                    f"{middle(fits, 'cold'):.3g} / {middle(fits, 'warm'):.3g}"
                    if key == "ours"
                    else f"{middle(fits, 'warm'):.3g}",
                ]
            )
    return rows


def paired(ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> list[str]:
    """Format differences of log score and error rate on the same splits, mean and range, and the ratio of seconds."""
    score = [np.mean(a["score"]) - np.mean(b["score"]) for a, b in zip(ours, theirs)]
    error = [error_rate(a["score"]) - error_rate(b["score"]) for a, b in zip(ours, theirs)]
    ratio = [b["warm"] / a["warm"] for a, b in zip(ours, theirs)]
    return [spread(score, 4), spread(error, 3), f"{np.median(ratio):.2g}"]


def spread(values: list[float], digits: int) -> str:
    """Format a mean with the range of several values."""
    if len(values) == 1:
        return f"{values[0]:+.{digits}f}"
    return f"{np.mean(values):+.{digits}f} ({min(values):+.{digits}f} to {max(values):+.{digits}f})"


def same(ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> list[str]:
    """Format what EP here and EP in GPy have in common."""
    pairs = list(zip(ours, theirs))
    ratio = [b["one_fit"] / a["one_fit"] for a, b in pairs]
    return [
        f"{max(abs(a['log_evidence'] - b['log_evidence']) for a, b in pairs):.1e}",
        f"{max(np.abs(np.subtract(a['plug_in'], b['plug_in'])).max() for a, b in pairs):.1e}",
        f"{np.median([a['one_fit'] for a, _ in pairs]):.3g}",
        f"{np.median([b['one_fit'] for _, b in pairs]):.3g}",
        f"{np.median(ratio):.2g}",
        f"{len(pairs)} of {len(ours)}",
    ]


def page(results: dict[str, Any]) -> list[str]:
    """Return the parts of the page."""
    sizes = "; ".join(
        f"{name} {r['sizes'][0]} / {r['sizes'][1]}, {r['sizes'][2]} inputs" for name, r in results.items()
    )
    failed = sum(not fit["converged"] for r in results.values() for fit in r["ours"])
    found = sorted({version for r in results.values() for version in r["versions"]})
    head = ["data", "log score", "error rate", "log evidence", "ell", "amp", "cold / warm, s"]
    parts = [
        header("Gaussian process classification", NAME),
        INTRODUCTION.format(sizes=sizes, versions=", ".join(found)),
        markdown_table(head, [row for name, r in results.items() for row in rows_of(name, r)]),
        f"Fits of pymc_ep that did not converge: {failed}.\n",
    ]
    if rows := [[n, *paired(r["ours"], r["sklearn"])] for n, r in results.items() if r.get("sklearn")]:
        parts += [PAIRED, markdown_table(["data", "log score", "error rate", "seconds, ratio"], rows)]
    if rows := [[n, *same(r["ours"], r["gpy"])] for n, r in results.items() if r.get("gpy")]:
        head = ["data", "log Z apart", "log p(y) apart", "fit, s", "GPy, s", "ratio", "splits"]
        parts += [SAME, markdown_table(head, rows)]
    return parts


INTRODUCTION = """\
Bits under the probit link of a Gaussian process with mean zero and squared-exponential covariance, one length scale.

- Training / test sizes: {sizes}.
- Splits are random and seeded: five of the first three sets, one of USPS. The sizes are those of Kuss and Rasmussen
  (2005), the split of USPS is not.
- Inputs are standardised by the training part, but for the pixels of USPS, which are in [-1, 1]. The zeros that stand
  for missing values in pima are taken as they are.
- Priors: length scale HalfNormal(3 sqrt(inputs)), amplitude HalfNormal(10).
- Hyperparameters are at the maximum of log evidence plus log prior. Predictions have their uncertainty to first
  order.
- scikit-learn has the same kernel, Laplace's method, the logistic link, and the maximum of its evidence. Its latent
  scale and its evidence are those of another model.
- All searches start at the same place.
- Log score is the mean of log p(y) over the test part, in nats: higher is better. Figures are medians over splits.
- One thread of BLAS. Other work ran on the machine, evenly over what is compared.

Compared with: {versions}.
"""
PAIRED = """## Against scikit-learn

pymc_ep minus scikit-learn on the same splits: mean (range). The ratio is that of scikit-learn's seconds to those of a
compiled search.
"""
SAME = """## Against GPy's EP

At the same hyperparameters: the largest differences of log Z and of log p(y) over splits and test data, and median
seconds of one fit. GPy has its own settings, sequential updates to 1e-6. The differences come from these: a tighter
tolerance here does not change them.
"""


def main() -> None:
    """Measure and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sklearn", metavar="PYTHON", help="interpreter that has scikit-learn")
    parser.add_argument("--gpy", metavar="PYTHON", help="interpreter that has GPy")
    parser.add_argument("--limit", type=float, default=200.0, help="seconds for either on one data set")
    parser.add_argument("--sets", nargs="*", default=list(SETS), choices=list(SETS))
    options = parser.parse_args()
    results = json.loads(STORE.read_text()) if STORE.exists() else {}
    for name in options.sets:
        results[name] = measure(name, options.sklearn, options.gpy, options.limit)
        STORE.parent.mkdir(exist_ok=True)
        STORE.write_text(json.dumps(results))
    print(write_page("classification", page({name: results[name] for name in SETS if name in results})))


if __name__ == "__main__":
    main()
