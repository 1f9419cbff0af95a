"""NUTS on the evidence against NUTS on the full model.

    python -m docs.benchmarks.evidence_sampling --posteriordb DIR [--models ...] [--runs ...]

posteriordb's gp_pois_regr, 544 regions of Germany, preferences of five people, and a matrix of counts by the bound of
``"vg"``. `marginalize` leaves the hyperparameters, PyMC's NUTS and nutpie sample them;
the same two sample the full model. Chains run one after another on one core on both sides. DIR is a checkout of
stan-dev/posteriordb; maps and counts need the folders ``disease-mapping`` and ``melbourne-pedestrians`` under
``PYMC_EP_DATA``; nutpie has to be installed. Each run is stored as soon as it is made, and
docs/benchmarks/evidence_sampling.md is written from what there is; all of it takes about an hour.
"""

import argparse
import logging
import os
import time
import warnings
from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import arviz as az
import numpy as np
import pymc as pm
import xarray as xr

import pymc_ep as pmep
from docs.benchmarks._common import header, markdown_table, write_page
from docs.benchmarks._images import Store
from docs.benchmarks.bilinear_nuts import values_of
from docs.benchmarks.disease_maps import adjacency, read
from docs.benchmarks.preferences_nuts import model_of as preferences
from docs.benchmarks.preferences_nuts import standardised_model_of as standardised_preferences
from docs.benchmarks.public import FOLDERS, MODELS
from pymc_ep.compat import group

NAME = "docs/benchmarks/evidence_sampling.py"
SEED = 1
TARGET = 10.0
"""Asked: so many times the effective samples a second of the full model."""
LOOSE = 1e-4
"""EP's tolerance in the runs that are called loose: the evidence is stationary in the sites, so its error is of the
square of that."""
WITHIN = 3.0
"""Joint Monte Carlo errors within which means count as equal; there are about twenty comparisons."""


def germany_car() -> pm.Model:
    """Oral cancer with a proper conditional autoregression, its field centred, as PyMC's users write it."""
    data = read("germany_oral.csv")
    n = len(data)
    with pm.Model() as model:
        tau, rho = pm.HalfNormal("tau", 20), pm.Beta("rho", 1, 1)
        level = pm.Normal("level", 0, 1)
        phi = pm.CAR("phi", mu=np.zeros(n), W=adjacency("germany_oral_edges.csv", n), alpha=rho, tau=tau)
        pm.Poisson("y", data["expected"].to_numpy() * pm.math.exp(level + phi), observed=data["observed"].to_numpy())
    return model


def counts_by_hour() -> pm.Model:
    """Pedestrians at 20 sensors in 60 hours, and a prior scale that both matrices of factors share."""
    counts = values_of("Melbourne, counts")
    rows, columns = np.indices(counts.shape).reshape(2, -1)
    with pm.Model() as model:
        scale = pm.HalfNormal("scale", 2.0)
        V, U = (pm.Normal(name, 0, scale, shape=(n, 3)) for name, n in zip("VU", counts.shape))
        pmep.BilinearPoisson("y", V, U, rows, columns, link="softplus", observed=counts.ravel().astype(int))
    return model


class Setting(NamedTuple):
    """A model, its hyperparameters, and how long the chains are: (chains, tuning, draws) by side and sampler.

    Attributes
    ----------
    full : callable, optional
        Another spelling of the model, in which NUTS mixes better.
    method : str, optional
        Of `marginalize`, whose evidence is a bound then, that no grid integrates.
    """

    title: str
    build: Callable[[], pm.Model]
    hyper: tuple[str, ...]
    lengths: dict[str, tuple[int, int, int]]
    full: Callable[[], pm.Model] | None = None
    method: str | None = None

    @property
    def runs(self) -> tuple[str, ...]:
        """What is measured: of a bound neither a grid nor another tolerance."""
        return RUNS[1:4] if self.method else RUNS


SETTINGS = {
    "gp_pois_regr": Setting(
        "posteriordb's gp_pois_regr: 11 counts, a Gaussian process, its length scale and amplitude",
        MODELS["gp_pois_regr"].build,
        ("rho", "alpha"),
        {"evidence": (4, 500, 1000), "full": (4, 500, 1000), "full nutpie": (4, 1000, 10000)},
    ),
    "germany_car": Setting(
        "Germany, 544 regions: a proper conditional autoregression, centred",
        germany_car,
        ("tau", "rho"),
        {"evidence": (2, 150, 250), "full": (2, 500, 1000), "full nutpie": (4, 1000, 10000)},
    ),
    "preferences": Setting(
        "Fifty comparisons of six items by five people: the scale of their own utilities",
        partial(preferences, "true answers, sigma learned"),
        ("sigma",),
        {"evidence": (4, 500, 1000), "full": (4, 500, 1000), "full nutpie": (4, 1000, 10000)},
        full=partial(standardised_preferences, "true answers, sigma learned"),
    ),
    "counts_by_hour": Setting(
        "Counts of pedestrians, 60 hours by 20 sensors: the prior scale of three factors, by the bound of `vg`",
        counts_by_hour,
        ("scale",),
        {"evidence": (2, 150, 250), "full": (2, 500, 1000), "full nutpie": (4, 1000, 2000)},
        method="vg",
    ),
}
RUNS = ("grid", "full nutpie", "full pymc", "evidence pymc", "evidence pymc loose")


# One run


def measure(setting: Setting, run: str) -> dict[str, Any]:
    """Sample, or integrate over a grid, and summarise the hyperparameters."""
    side, *how = run.split()
    model = (setting.full or setting.build)() if side == "full" else setting.build()
    if run == "grid":
        idata = pmep.fit(model=model, hyper="integrate", draws=0, progressbar=False)
        moments = {h: (float(idata["posterior_mean"][h]), float(idata["posterior_sd"][h])) for h in setting.hyper}
        return {"moments": moments}
    options = {"method": setting.method} | ({"tol": LOOSE} if "loose" in how else {})
    target = pmep.marginalize(model, **options) if side == "evidence" else model
    lengths = setting.lengths.get(run) or setting.lengths[side]
    sample = sample_nutpie if "nutpie" in how else sample_pymc
    compiling, sampling, trace = sample(target, *lengths)
    out = summarise(trace, setting.hyper) | {"compiling": compiling, "sampling": sampling, "lengths": lengths}
    if side == "evidence":
        counts = target[f"{setting.method or 'ep'}_log_evidence"].owner.op.counts
        out |= {"evaluations": counts.evaluations, "failed": counts.failed}
    return out


def sample_pymc(model: pm.Model, chains: int, tune: int, draws: int) -> tuple[float, float, Any]:
    """Return the seconds of compilation, those of tuning and sampling, and what PyMC's own NUTS drew."""
    seconds: list[float] = []
    options = {"tune": tune, "chains": chains, "cores": 1, "random_seed": SEED, "nuts_sampler": "pymc"}
    began = time.process_time()
    # Compilation ends before the first call, the last comes before the result is put together.
    note = {"callback": lambda trace, draw: seconds.append(time.process_time())}
    trace = pm.sample(draws, model=model, progressbar=False, compute_convergence_checks=False, **options, **note)
    return seconds[0] - began, seconds[-1] - seconds[0], trace


def sample_nutpie(model: pm.Model, chains: int, tune: int, draws: int) -> tuple[float, float, Any]:
    """Return the same of nutpie."""
    import nutpie

    names = [rv.name for rv in model.free_RVs]
    began = time.process_time()
    compiled = nutpie.compile_pymc_model(model, var_names=names)
    between = time.process_time()
    options = {"tune": tune, "chains": chains, "cores": 1, "seed": SEED, "progress_bar": False}
    trace = nutpie.sample(compiled, draws=draws, **options)
    return between - began, time.process_time() - between, trace


def summarise(trace: Any, hyper: tuple[str, ...]) -> dict[str, Any]:
    """Return effective draws, gradients for each draw, divergences, and moments with their Monte Carlo errors."""
    posterior, stats = group(trace, "posterior"), group(trace, "sample_stats")
    names = list(hyper)
    ess = {h: least(posterior[[h]]) for h in names}
    errors = az.mcse(posterior[names])
    slowest = min(ess, key=ess.__getitem__)
    return {
        "ess": ess[slowest],
        "slowest": slowest,
        "r_hat": max(float(v) for v in az.rhat(posterior[names]).data_vars.values()),
        "gradients": float(stats["n_steps"].sum()),
        "draws": int(posterior.sizes["chain"] * posterior.sizes["draw"]),
        "divergences": int(stats["diverging"].sum()),
        "moments": {h: (float(posterior[h].mean()), float(posterior[h].std(ddof=1))) for h in names},
        "errors": {h: float(errors[h]) for h in names},
    }


def least(posterior: xr.Dataset) -> float:
    """Return the lesser of the effective sample sizes of bulk and tail."""
    return min(float(v) for method in ("bulk", "tail") for v in az.ess(posterior, method=method).data_vars.values())


# The page


def rate(run: dict[str, Any]) -> float:
    """Return effective draws a second of tuning and sampling."""
    return run["ess"] / run["sampling"]


def speed_rows(runs: dict[str, Any]) -> list[list[str]]:
    """Return a row for each run of a setting."""
    rows = []
    for name in RUNS:
        if (r := runs.get(name)) is None or name == "grid":
            continue
        chains, tune, draws = r["lengths"]
        evaluated = f"{r['evaluations'] / r['sampling']:.0f}, {r['failed']}" if "evaluations" in r else ""
        rows.append(
            [
                name.replace(" ", ", "),
                f"{chains} x ({tune} + {draws})",
                f"{r['compiling']:.1f}",
                f"{r['sampling']:.1f}",
                f"{r['ess']:.0f} ({r['slowest']})",
                f"{rate(r):.2f}",
                f"{r['gradients'] / r['ess']:.1f}",
                evaluated,
                f"{r['divergences']}",
                f"{r['r_hat']:.3f}",
            ]
        )
    return rows


def ratio_rows(results: dict[str, Any]) -> list[list[str]]:
    """Return the ratios of effective draws a second, the evidence's over the full model's, with the verdict."""
    rows = []
    for name, runs in results.items():
        for mine in RUNS[3:]:
            for other in ("full pymc", "full nutpie"):
                if mine in runs and other in runs:
                    a, b = runs[mine], runs[other]
                    ratio = rate(a) / rate(b)
                    fewer = (b["gradients"] / b["ess"]) / (a["gradients"] / a["ess"])
                    verdict = "reached" if ratio >= TARGET else f"short by a factor of {TARGET / ratio:.2g}"
                    rows.append([name, mine, other, f"{ratio:.3g}", verdict, f"{fewer:.1f}"])
    return rows


def agreement_rows(results: dict[str, Any]) -> list[list[str]]:
    """Return hyperparameters side by side, against whichever chains on the full model have more effective draws."""
    rows = []
    for name, runs in results.items():
        full = [run for run in RUNS if run.startswith("full") and run in runs]
        if not full:
            continue
        best = max(full, key=lambda run: runs[run]["ess"])
        for h in SETTINGS[name].hyper:
            mean, sd = runs[best]["moments"][h]
            own_error = runs[best]["errors"][h]
            label = f"{best.replace(' ', ', ')}: the reference"
            rows.append([name, h, label, f"{mean:.4g} ({sd:.3g})", "", f"{own_error / sd:.3f}", ""])
            for run in (*RUNS[1:], "grid"):
                if run not in runs or run == best:
                    continue
                own, own_sd = runs[run]["moments"][h]
                error = np.hypot(own_error, runs[run].get("errors", {h: 0.0})[h])
                distance = abs(own - mean) / error
                rows.append(
                    [
                        name,
                        h,
                        "evidence on a grid" if run == "grid" else run.replace(" ", ", "),
                        f"{own:.4g} ({own_sd:.3g})",
                        f"{(own - mean) / sd:+.3f}",
                        f"{error / sd:.3f}",
                        ("yes" if distance < WITHIN else "no") + f", {distance:.1f}",
                    ]
                )
    return rows


def page(results: dict[str, Any]) -> list[str]:
    """Return the parts of the page."""
    head = ["side, sampler", "chains x (tuning + draws)", "compile, s", "sample, s", "least ESS", "ESS / s"]
    head += ["gradients / ESS", "evaluations / s, failed", "divergences", "R-hat"]
    parts = [header("NUTS on the evidence", NAME, "nutpie"), INTRODUCTION.format(seed=SEED, loose=LOOSE)]
    for name, runs in results.items():
        parts += [f"## {SETTINGS[name].title}\n", markdown_table(head, speed_rows(runs))]
    head = ["model", "evidence", "full model", "ratio of ESS / s", "asked: 10", "gradients / ESS, full over evidence"]
    parts += [RATIOS, markdown_table(head, ratio_rows(results))]
    head = ["model", "hyperparameter", "from", "mean (sd)", "difference, sd", "Monte Carlo error, sd"]
    parts += [AGREEMENT.format(within=WITHIN), markdown_table([*head, "equal, errors apart"], agreement_rows(results))]
    return parts


INTRODUCTION = """\
`marginalize` leaves one or two hyperparameters. "Evidence" is the model that it makes, "full" the one it was made from;
of preferences NUTS takes utilities as linear maps of standard normals, without which it hardly mixes.

- Effective samples (ESS): the lesser of bulk and tail, of the slowest hyperparameter.
- Seconds are those of the processor, as the machine had other work to do. They include tuning. Compilation stands by
  itself, without what a C compiler took.
- Chains run one after another on one core; seed {seed}.
- "Loose": EP's tolerance is {loose:g}, else 1e-8.
- Gradients are those of the draws after tuning.
- Evaluations are fits with gradient, by EP or by the bound. A failed one counts as density zero.
"""
RATIOS = """## Effective samples a second

The last column is the gain in gradients alone: so many times fewer for an effective sample. Where it exceeds the
ratio of ESS a second, the rest goes into the cost of one evaluation: a converged EP fit, where the full model needs
one density.
"""
AGREEMENT = """## The hyperparameters' posteriors

The reference is the run on the full model with more effective draws. Differences are in its standard deviations, with
the joint Monte Carlo error. Means are equal within {within:g} of these errors; the number is how many they are apart.

The evidence on a grid (`fit(hyper="integrate")`) has no Monte Carlo error of its own. Its difference is the error of
EP and of the grid, as far as the chains resolve it. Where two samplers of the full model differ, or R-hat is larger
than 1.01, the full model has not been sampled well enough to judge by.
"""


def main() -> None:
    """Measure what is not stored, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--posteriordb", help="checkout of stan-dev/posteriordb")
    parser.add_argument("--models", nargs="*", default=list(SETTINGS), choices=list(SETTINGS))
    parser.add_argument("--runs", nargs="*", default=list(RUNS), choices=RUNS)
    options = parser.parse_args()
    if options.posteriordb:
        os.environ[FOLDERS["posteriordb"]] = options.posteriordb
    logging.disable(logging.INFO)
    warnings.simplefilter("ignore")
    store = Store("evidence_sampling")
    for name, run in product(options.models, options.runs):
        if run in SETTINGS[name].runs:
            store.get(f"{name}, {run}", partial(measure, SETTINGS[name], run))
    results = {
        name: {run: store.rows[f"{name}, {run}"] for run in RUNS if f"{name}, {run}" in store.rows} for name in SETTINGS
    }
    print(write_page("evidence_sampling", page({name: runs for name, runs in results.items() if runs})))


if __name__ == "__main__":
    main()
