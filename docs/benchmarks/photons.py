"""Real photons, Fermi's Galactic Centre and Chandra's G21.5-0.9: fitted to one half, scored on the other.

    python -m docs.benchmarks.photons [--quick] [--cases fermi chandra full] [--splits 1] [--models ...]

Total variation with the instrument's blur, exposure and background on whole maps: EP where its algebra is exact, the
double loop in single bins, and Richardson-Lucy. Needs the folders ``counts-fermi-gc`` and ``counts-chandra-g21`` under
``PYMC_EP_DATA``. Rows that are done are kept in ``docs/benchmarks/rows``. Writes docs/benchmarks/photons.md and .png.
"""

import argparse
import os
import time
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pymc as pm

import pymc_ep as pmep
from docs.benchmarks._common import header, hyper_modes, markdown_table, write_page
from docs.benchmarks._images import Store, panels
from docs.benchmarks._photons import (
    KEPT,
    Scene,
    chandra,
    cropped,
    fermi,
    gaussian_log_density,
    nothing,
    richardson_lucy_oracle,
    smoothed_oracle,
    thinned,
)

NAME = "docs/benchmarks/photons.py"
POISSON, CUT, SOFTPLUS, GAUSSIAN = "rectified Poisson", "rectified Poisson, cut", "softplus Poisson", "Gaussian noise"
GAUSSIAN_MEAN = "Gaussian noise, sd of mean"
LOOP = "softplus Poisson, double loop"
RL, SMOOTHED, NOTHING = "Richardson-Lucy, oracle", "Gaussian smoothing, oracle", "background alone"
PEERS = {RL: richardson_lucy_oracle, SMOOTHED: smoothed_oracle, NOTHING: nothing}
BINS = 4
"""Bins of Fermi's map along each side of a pixel for EP."""
TOLERANCE = 1e-4
"""Of EP: on these maps evidences are then exact to 1e-3 or so, of 1e4 to 1e5."""
SAMPLES, OUTER = 30, 50
START = 0.2
"""Where searches for tau start, within a factor of a few of where they end; the double loop in single bins at 1."""
FAR = f"{LOOP}, from tau {START}"
LOOPS = (LOOP, FAR)


class Case(NamedTuple):
    """A scene, the models that are fitted to so many splits of it, and how the double loop gets its variances."""

    name: str
    scene: Callable[[], Scene]
    models: tuple[str, ...]
    splits: int
    variance: str


CASES = {
    "fermi": Case(
        f"Fermi, {BINS} x {BINS} bins",
        lambda: fermi(BINS),
        (POISSON, CUT, SOFTPLUS, GAUSSIAN, LOOP),
        3,
        "exact",
    ),
    "full": Case("Fermi, single bins", lambda: fermi(1), LOOPS, 1, "perturb-and-map"),
    "chandra": Case("Chandra", chandra, (POISSON, SOFTPLUS, GAUSSIAN_MEAN, LOOP), 1, "exact"),
}
SPLITS = max(case.splits for case in CASES.values())
MODELS = tuple(dict.fromkeys(model for case in CASES.values() for model in case.models))


# Models


def build(scene: Scene, model: str, counts: np.ndarray) -> pm.Model:
    """Build a model of one half of the photons; the field is the sky at full exposure."""
    exposure, background = KEPT * scene.exposure, KEPT * scene.background
    with pm.Model() as built:
        tau = pm.HalfNormal("tau", 1)
        u = pmep.SparseField(
            "u",
            operator=pmep.operators.Gradient2D(scene.field, boundary="reflect"),
            potential=pm.Laplace.dist(0, 1 / tau),
            shape=scene.field,
        )
        seen = exposure * pmep.apply_operator(pmep.operators.Convolution2D(scene.field, scene.psf), u)[scene.inside]
        if model in (GAUSSIAN, GAUSSIAN_MEAN):
            rate = pm.Deterministic("rate", seen + background)
            sigma = pm.HalfNormal("sigma", 5) if model == GAUSSIAN else np.sqrt(counts.mean())
            pm.Normal("y", rate, sigma, observed=counts.astype(float))
        elif model in (SOFTPLUS, *LOOPS):
            # A dark sky has the rate of the background, as it has under the other likelihoods.
            eta = seen + np.log(np.expm1(background))
            pmep.SoftplusPoisson("y", eta, observed=counts)
            pmep.SoftplusPoisson("held_out", eta)
        else:
            pmep.RectifiedPoisson("y", seen + background, zero_mass=model == POISSON, observed=counts)
            pmep.RectifiedPoisson("held_out", seen + background, zero_mass=model == POISSON)
    return built


def fitted(scene: Scene, model: str, built: pm.Model, variance: str) -> Any:
    """Fit by EP or the double loop, which may end before its tolerance: its status is on the page."""
    tau = 1.0 if model == LOOP and variance != "exact" else START
    shared: dict[str, Any] = {"model": built, "start": {"tau": tau}, "draws": 0, "progressbar": False}
    if model not in LOOPS:
        return pmep.fit(method="ep", tol=TOLERANCE, **shared)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pmep.ConvergenceWarning)
        return pmep.fit(method="dsb", variance=variance, n_samples=SAMPLES, outer=OUTER, **shared)


def measure(scene: Scene, model: str, split: int, variance: str) -> dict[str, Any]:
    """Fit one half, score the other."""
    train, held_out = thinned(scene, split)
    built = build(scene, model, train)
    load, began, processor = os.getloadavg()[0], time.perf_counter(), time.process_time()
    found = fitted(scene, model, built, variance)
    seconds, processor = time.perf_counter() - began, time.process_time() - processor
    fit = found["fit"]
    if model in (GAUSSIAN, GAUSSIAN_MEAN):
        noise = float(fit["hyper_mode_sigma"]) ** 2 if model == GAUSSIAN else train.mean()
        sd = np.sqrt(np.asarray(found["posterior_sd"]["rate"]) ** 2 + noise)
        density = gaussian_log_density(held_out, np.asarray(found["posterior_mean"]["rate"]), sd)
    else:
        density = np.asarray(pmep.log_predictive(found, built, {"held_out": held_out})["held_out"])
    return {
        "log_density": density,
        "setting": "; ".join(f"{name} {value:.3g}" for name, value in hyper_modes(fit).items()),
        "log_evidence": float(fit["log_evidence"]) if "log_evidence" in fit else None,
        "seconds": seconds,
        "processor_seconds": processor,
        "load": [load, os.getloadavg()[0]],
        "rounds": int(fit["n_iter"]) if model in LOOPS else int(fit.sizes["hyper_iteration"]),
        "converged": bool(fit["converged"]),
        "status": str(fit.attrs["status"]),
        "maps": [np.asarray(found[f"posterior_{what}"]["u"])[scene.inside] for what in ("mean", "sd")],
    }


def algebra(case: str) -> dict[str, Any]:
    """Ask what exact algebra would take."""
    scene = CASES[case].scene()
    told = pmep.explain(build(scene, CASES[case].models[0], thinned(scene, 0)[0]))
    return {"sentence": next(line for line in told.split("\n") if line.startswith("solver")).split("; ", 1)[1]}


def stored(row: dict[str, Any], split: int) -> dict[str, Any]:
    """Return a row for JSON; maps of the first split alone."""
    maps = [np.round(one, 4).tolist() for one in row.pop("maps", [])]
    row["log_density"] = np.round(row["log_density"].ravel(), 6).tolist()
    return row | ({"maps": maps} if maps and split == 0 else {})


# The page


def rows_of(store: Store, case: str, model: str) -> dict[int, dict[str, Any]]:
    """Return the rows of a model by split."""
    return {k: row for k in range(SPLITS) if (row := store.rows.get(f"{case}/{k}/{model}"))}


def known(store: Store, case: str) -> dict[str, dict[int, dict[str, Any]]]:
    """Return all rows of a case by model, those of the model that others are compared with first."""
    found = {model: rows_of(store, case, model) for model in (*CASES[case].models, *PEERS)}
    return {model: rows for model, rows in found.items() if rows}


def difference(one: dict[int, dict[str, Any]], other: dict[int, dict[str, Any]]) -> tuple[float, float]:
    """Return the mean difference of log densities over splits that both have, and its standard error."""
    splits = sorted(one.keys() & other.keys())
    apart = np.concatenate([np.subtract(one[k]["log_density"], other[k]["log_density"]) for k in splits])
    return float(apart.mean()), float(apart.std(ddof=1) / np.sqrt(len(apart)) * np.sqrt(len(splits)))


def table(store: Store, case: str) -> str:
    """Format the scores of one scene."""
    rows = known(store, case)
    reference = next(iter(rows))
    lines = []
    for model, found in rows.items():
        first = next(iter(found.values()))
        mean = float(np.mean([np.mean(row["log_density"]) for row in found.values()]))
        line = [model, str(len(found)), f"{mean:.4f}"]
        if model == reference:
            line.append("-")
        else:
            line.append("{:+.4f} ({:.4f})".format(*difference(rows[reference], found)))
        line += [
            "; ".join(dict.fromkeys(row["setting"] for row in found.values())) if model in PEERS else first["setting"]
        ]
        if model in PEERS:
            line += ["-"] * 3
        else:
            evidence = first["log_evidence"]
            medians = (np.median([row[what] for row in found.values()]) for what in ("seconds", "processor_seconds"))
            line += [
                "-" if evidence is None else f"{evidence:.1f}",
                f"{' / '.join(f'{one:.3g}' for one in medians)} ({first['rounds']})",
                f"{sum(row['converged'] for row in found.values())} of {len(found)}",
            ]
        lines.append(line)
    head = ["model", "splits", "held-out log density", f"{reference} - this", "setting", "log evidence or bound"]
    return markdown_table([*head, "seconds / of the processor (rounds)", "converged"], lines)


def verdict(store: Store, case: str) -> str:
    """Say what predicts best, and how far the model that others are compared with is behind; and what ended early."""
    rows = known(store, case)
    reference = next(iter(rows))
    ahead = {model: -difference(rows[reference], found)[0] for model, found in rows.items()}
    best, oracle = (
        max((model for model in among if model in rows), key=lambda model: ahead[model])
        for among in (CASES[case].models, (RL, SMOOTHED))
    )

    def against(one: str, other: str) -> str:
        gap = difference(rows[one], rows[other])[0]
        return f"{one} {'is ahead of it' if gap > 0 else 'falls short of it'} by {abs(gap):.4f} nats a pixel"

    told = "" if best == reference else f"; {against(reference, best)}"
    sentences = [f"Without an oracle, the best is {best}{told}.", f"With one, it is {oracle}; {against(best, oracle)}."]
    ends = {
        model: [row["status"] for row in found.values() if not row.get("converged", True)]
        for model, found in rows.items()
    }
    told = [f"- {model}: {'; '.join(dict.fromkeys(found))}." for model, found in ends.items() if found]
    return "\n".join([" ".join(sentences), *(["", *told] if told else [])]) + "\n"


def busy(store: Store) -> str:
    """Say how busy the machine was when times were taken."""
    loads = [load for row in store.rows.values() for load in row.get("load", [])]
    return (
        "Seconds are those of the clock and of the processor, medians over splits, with compilation. Other work ran on "
        f"the machine: its load, of which a fit is one, was {np.median(loads):.1f} in the median before and after "
        f"fits, and up to {max(loads):.1f}.\n"
    )


def picture(store: Store) -> bool:
    """Draw counts, means, standard deviations and Richardson-Lucy."""
    rows = []
    for key, case in CASES.items():
        found, best = (store.rows.get(f"{key}/0/{model}") for model in (case.models[0], RL))
        if found and best:
            mean, sd = (np.array(one) for one in found["maps"])
            # Square roots, for the sake of the dynamic range.
            rows.append(
                [
                    (f"{case.name}: root of counts", np.sqrt(thinned(case.scene(), 0)[0]), None),
                    ("root of the mean", np.sqrt(np.maximum(mean, 0)), None),
                    ("sd", sd, None),
                    ("root of Richardson-Lucy", np.sqrt(np.array(best["maps"][0])), None),
                ]
            )
    if rows:
        panels("photons", rows, size=(4.4, 2.6))
    return bool(rows)


def page(store: Store) -> list[str]:
    """Return the parts of the page."""
    parts = [header("Real photons", NAME), INTRODUCTION, busy(store)]
    for case, heading in HEADINGS.items():
        if known(store, case):
            how = store.get(f"{case}/algebra", lambda c=case: algebra(c))["sentence"]
            parts += [heading, f"`explain`: {how}.\n", table(store, case), verdict(store, case)]
    if picture(store):
        parts.append("![Counts, posterior mean and standard deviation, Richardson-Lucy](photons.png)\n")
        parts.append("In single bins the mean and its standard deviation are on the scale of the softplus link.\n")
    return parts


INTRODUCTION = f"""\
The photons of each whole map are dealt into two halves at random, `default_rng(split).binomial(counts, {KEPT})`.
Given the sky, the halves are independent. One is fitted, the other is scored.

- Score: mean log predictive probability of a count, in nats a pixel, averaged over splits. Differences are paired by
  pixel and split, with a standard error as if the pixels of one split were the sample.
- Rate: exposure times blurred sky plus background.
- Prior of the sky: total variation, with reflecting boundaries and a margin of the blur's radius around the map. Its
  tau is fitted by evidence, from {START}.
- "Cut": `zero_mass=False`.
- Softplus link: an offset gives a dark sky the rate of the background.
- Gaussian noise: its sd is learned. A count has the probability of the unit interval around it, and zero all below as
  well.
- EP stops at changes of {TOLERANCE:g}. Its rounds are evaluations of the evidence.
- The double loop has the softplus likelihood, by the bound of its curvature. Its rounds are outer loops.
- Richardson-Lucy: the iteration starts flat, and knows blur, exposure and background. It stops where **the held-out
  half** likes it best: an oracle. The prediction is a Poisson count at its rate.
- Gaussian smoothing: the same of the counts smoothed by a Gaussian. Its width is such an oracle too.
"""
HEADINGS = {
    "fermi": f"""## Fermi-LAT, Galactic Centre, in pixels of {BINS} x {BINS} bins

The map has 200 x 400 bins of 0.05 degrees, 10 to 500 GeV. The 21 x 21 point spread function, the exposure and the
predicted diffuse background come with it. Here it has {200 // BINS} x {400 // BINS} pixels of {BINS} x {BINS} bins
each, so that exact algebra can take it. Counts and background are summed, and exposure is averaged. The point spread
function is the response of a pixel to light spread evenly over another one, 7 x 7.
""",
    "full": f"""## Fermi-LAT, Galactic Centre, in single bins

The same photons in 200 x 400 bins, with the 21 x 21 point spread function. It ties each of the 220 x 420 unknowns to
1680 others, which is too much for exact algebra. The double loop alone can take it, with variances from {SAMPLES}
samples, at most {OUTER} outer loops, and tau from 1. Its tau follows the variances and these follow tau, which is
slow here: learned from {START}, tau ends elsewhere. The density of a count in a bin does not compare with that in a
pixel of {BINS} x {BINS}.
""",
    "chandra": """## Chandra, G21.5-0.9

The frame has 216 x 261 pixels of an arc second. The map has neither exposure nor point spread function. Exposure is
one, the blur is a Gaussian of sd 0.5 pixels on 5 x 5, and the background is the mean of the top and bottom 20 rows. A
learned sd of Gaussian noise runs to zero in the middle of this frame: it is held at the root of the mean count.
""",
}


def quick(case: str) -> None:
    """Fit a small crop by every model."""
    scene = cropped(CASES[case].scene(), 12)
    for model in CASES[case].models:
        row = measure(scene, model, 0, CASES[case].variance)
        print(case, model, np.mean(row["log_density"]), row["setting"], row["seconds"], row["status"])
    for model, peer in PEERS.items():
        print(case, model, np.mean(peer(scene, 0)["log_density"]))


def main() -> None:
    """Measure and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="*", default=list(CASES), choices=list(CASES))
    parser.add_argument("--splits", type=int, default=SPLITS, choices=range(1, SPLITS + 1))
    parser.add_argument("--models", nargs="*", default=list(MODELS), choices=MODELS)
    parser.add_argument("--quick", action="store_true", help="12 x 12 pixels and one split; nothing is kept or written")
    options = parser.parse_args()
    if options.quick:
        for case in options.cases:
            quick(case)
        return
    store = Store("photons")
    for case in options.cases:
        scene = CASES[case].scene()
        for split in range(min(options.splits, CASES[case].splits)):
            for model, peer in PEERS.items():
                store.get(f"{case}/{split}/{model}", lambda p=peer, s=scene, k=split: stored(p(s, k), k))
            for model in CASES[case].models:
                if model in options.models:
                    key = (scene, model, split, CASES[case].variance)
                    store.get(f"{case}/{split}/{model}", lambda a=key, k=split: stored(measure(*a), k))
    print(write_page("photons", page(store)))


if __name__ == "__main__":
    main()
