"""What is compared in the deblurring benchmark, and its page: tables, verdicts and words."""

from typing import NamedTuple

import numpy as np

from docs.benchmarks._common import header, markdown_table
from docs.benchmarks._images import (
    BLUR,
    Store,
    anscombe_tv,
    median_sd,
    richardson_lucy_blur,
    shortfall,
    total_variation,
)

U_MAX = (10, 20, 30)
DRAWS = 5


class Case(NamedTuple):
    """A picture at a size; the published errors, by u_max, where the picture is theirs."""

    title: str
    image: str
    size: int
    gaussian: tuple[float, ...] = ()
    poisson: tuple[float, ...] = ()
    like: str = ""
    """Case whose hyperparameters, of the first draw, the first draw begins at."""
    fixed: bool = False
    """Whether it stays there; then it has one draw alone."""


FACE = (0.488, 0.282, 0.245), (0.317, 0.248, 0.207)
CAMERAMAN = (0.182, 0.113, 0.092), (0.124, 0.094, 0.084)
CASES = {
    "astronaut": Case("face of an astronaut, 32 x 32", "face_astronaut", 32, *FACE),
    "head": Case("head of cameraman, 32 x 32", "head_cameraman", 32, *FACE),
    "cameraman64": Case("cameraman, 64 x 64", "cameraman", 64),
    "cameraman128": Case("cameraman, 128 x 128", "cameraman", 128, *CAMERAMAN, like="cameraman64"),
    "cameraman128from64": Case(
        "cameraman, 128 x 128, tau of 64 x 64", "cameraman", 128, *CAMERAMAN, like="cameraman64", fixed=True
    ),
}
GAUSSIAN, KNOWN, POISSON, CUT = "EP, Gaussian", "EP, Gaussian, sd of mean", "EP, Poisson", "EP, Poisson cut"
EP_MODELS = (GAUSSIAN, KNOWN, POISSON, CUT)
LEARNED_BOUND = "bound, Gaussian"
BOUNDS = ("bound, sd of mean", "bound, weighted", "bound, Anscombe", LEARNED_BOUND)
BOUND_AT_EP = "bound at EP's hyperparameters"
PEERS = {
    "TV oracle": total_variation,
    "Anscombe + TV oracle": anscombe_tv,
    "Richardson-Lucy oracle": richardson_lucy_blur,
}
ORACLE = "EP, Poisson, oracle tau"
ORACLE_FACTORS = (0.8, 1.25, 1.6, 2.0, 2.5)
"""Multiples of the tau that evidence finds, among which the oracle chooses, for the first draw."""


# Tables


def values(store: Store, name: str, u_max: int, model: str, what: str) -> list[float]:
    """Return a number of all draws that were measured."""
    rows = (store.rows.get(f"{name}/{u_max}/{draw}/{model}", {}) for draw in range(DRAWS))
    return [row[what] for row in rows if row.get(what) is not None]


def measured(store: Store, model: str | None = None) -> list[tuple[str, int]]:
    """Return the cases and levels with rows of a model (of any EP model)."""
    models = EP_MODELS if model is None else (model,)
    return [(n, u) for n in CASES for u in U_MAX if any(values(store, n, u, m, "error") for m in models)]


def main_table(store: Store) -> str:
    """Format errors of all models and peers."""
    rows = []
    for name, u_max in measured(store):
        case, at = CASES[name], U_MAX.index(u_max)
        published = [f"{column[at]:.3f}" if column else "-" for column in (case.gaussian, case.poisson)]
        rows.append(
            [
                case.title,
                str(u_max),
                median_sd(values(store, name, u_max, "peers", "data")),
                *(median_sd(values(store, name, u_max, m, "error")) for m in EP_MODELS),
                *published,
                *(median_sd(values(store, name, u_max, "peers", peer)) for peer in PEERS),
            ]
        )
    head = ["picture", "u_max", "data", *EP_MODELS, "published, Gaussian", "published, Poisson", *PEERS]
    return markdown_table(head, rows)


def paired(store: Store, name: str, u_max: int, top: tuple[str, str], bottom: tuple[str, str]) -> list[float]:
    """Return ratios on the same draws of (model, number) to (model, number)."""
    ratios = []
    for draw in range(DRAWS):
        rows = [store.rows.get(f"{name}/{u_max}/{draw}/{model}") for model, _ in (top, bottom)]
        if all(rows):
            ratios.append(rows[0][top[1]] / rows[1][bottom[1]])
    return ratios


def ratio_table(store: Store) -> str:
    """Format paired ratios of errors."""
    best = (POISSON, "error")
    rows = []
    for name, u_max in measured(store):
        case, at = CASES[name], U_MAX.index(u_max)
        published = f"{case.poisson[at] / case.gaussian[at]:.2f}" if case.poisson else "-"
        rows.append(
            [
                case.title,
                str(u_max),
                *(median_sd(paired(store, name, u_max, best, (m, "error")), 2) for m in (GAUSSIAN, KNOWN)),
                published,
                median_sd(paired(store, name, u_max, (CUT, "error"), best), 2),
                *(median_sd(paired(store, name, u_max, best, ("peers", peer)), 2) for peer in list(PEERS)[:2]),
                median_sd(paired(store, name, u_max, (ORACLE, "error"), ("peers", "TV oracle")), 2),
            ]
        )
    over = [f"Poisson / {what}" for what in ("Gaussian", "Gaussian, sd of mean")]
    beside = ["cut / Poisson", "Poisson / TV", "Poisson / Anscombe + TV", "Poisson with oracle tau / TV"]
    head = ["picture", "u_max", *over, "published", *beside]
    return markdown_table(head, rows)


def first_and_next(numbers: list[float]) -> list[float]:
    """Return the number of the first draw and the median of the others."""
    return [numbers[0], float(np.median(numbers[1:]))] if len(numbers) > 1 else numbers


def cost_table(store: Store) -> str:
    """Format time, convergence, hyperparameters and coverage of EP."""
    rows = []
    for name, u_max in measured(store):
        for model in EP_MODELS:
            numbers = {what: values(store, name, u_max, model, what) for what in NUMBERS}
            if numbers["error"]:
                rows.append(
                    [
                        CASES[name].title,
                        str(u_max),
                        model,
                        median_sd([h["tau"] for h in numbers["hyper"]], 2),
                        median_sd(numbers["coverage"]),
                        median_sd(numbers["psnr"], 2),
                        " / ".join(f"{one:.3g}" for one in first_and_next(numbers["run_seconds"])),
                        " / ".join(f"{one:.0f}" for one in first_and_next(numbers["evaluations"])),
                        f"{sum(numbers['converged'])} of {len(numbers['converged'])}",
                    ]
                )
    head = ["picture", "u_max", "model", "tau", "coverage", "PSNR, dB", "seconds", "evaluations", "converged"]
    return markdown_table(head, rows)


NUMBERS = ("error", "hyper", "coverage", "psnr", "run_seconds", "evaluations", "converged")


def bound_table(store: Store) -> str:
    """Format the double loop against EP on the same draws."""
    rows = []
    for name, u_max in measured(store):
        ep = (POISSON, "error")
        for model in BOUNDS:
            if values(store, name, u_max, model, "error"):
                time_ratio = paired(store, name, u_max, (POISSON, "run_seconds"), (model, "run_seconds"))
                seconds, converged = (values(store, name, u_max, model, w) for w in ("run_seconds", "converged"))
                rows.append(
                    [
                        CASES[name].title,
                        str(u_max),
                        model,
                        median_sd(values(store, name, u_max, model, "error")),
                        median_sd(paired(store, name, u_max, (model, "error"), ep), 2),
                        median_sd(values(store, name, u_max, model, "coverage")),
                        " / ".join(f"{one:.3g}" for one in first_and_next(seconds)),
                        f"{np.median(time_ratio):.3g}" if time_ratio else "-",
                        f"{sum(converged)} of {len(converged)}",
                    ]
                )
    head = [
        "picture",
        "u_max",
        "model",
        "error",
        "error / EP, Poisson",
        "coverage",
        "seconds",
        "EP's time / this",
        "converged",
    ]
    return markdown_table(head, rows)


def noise_table(store: Store) -> str:
    """Format where the bound and EP's evidence are largest, if the sd of the noise is learned."""
    rows = []
    for name, u_max in measured(store, LEARNED_BOUND):
        bound, ep, there = (store.rows.get(f"{name}/{u_max}/0/{m}") for m in (LEARNED_BOUND, GAUSSIAN, BOUND_AT_EP))
        if bound and ep and there:
            own = (f"{value:.4g}" for row in (bound, ep) for value in (row["hyper"]["sigma"], row["hyper"]["tau"]))
            evidences = (f"{row['log_evidence']:.2f}" for row in (bound, there, ep))
            rows.append([CASES[name].title, str(u_max), *own, *evidences])
    head = [
        "picture",
        "u_max",
        "sd, bound",
        "tau, bound",
        "sd, EP",
        "tau, EP",
        "bound",
        "bound, there",
        "log evidence, EP",
    ]
    return markdown_table(head, rows)


def verdicts(store: Store) -> str:
    """Say of each target how often it is met, and by how much it is missed at worst."""
    compared: dict[str, list[tuple[float, float, str]]] = {}
    for name, u_max in measured(store, POISSON):
        case, at = CASES[name], U_MAX.index(u_max)
        where = f"{case.title}, u_max {u_max}"
        tv = np.median(paired(store, name, u_max, (POISSON, "error"), ("peers", "TV oracle")))
        compared.setdefault("EP, Poisson, over the TV oracle", []).append((float(tv), 1.0, where))
        for model in (GAUSSIAN, KNOWN) if case.poisson else ():
            gain = paired(store, name, u_max, (POISSON, "error"), (model, "error"))
            if gain:
                published = case.poisson[at] / case.gaussian[at]
                what = f"Poisson over {model.removeprefix('EP, ')}, against the published ratio"
                compared.setdefault(what, []).append((float(np.median(gain)), published, where))
    lines = []
    for what, ratios in compared.items():
        met = sum(found <= target for found, target, _ in ratios)
        found, target, where = max(ratios, key=lambda one: one[0] - one[1])
        worst = shortfall(f"least favourable at {where}", found, target)
        lines.append(f"- {what}: met in {met} of {len(ratios)} rows; {worst}\n")
    return "".join(lines)


# The page


def page(store: Store, script: str) -> list[str]:
    """Return the parts of the page that a script of this name writes."""
    return [
        header("Deblurring of photon counts", script, "scikit-image"),
        INTRODUCTION,
        main_table(store),
        RATIOS,
        ratio_table(store),
        verdicts(store),
        "![A face from counts of at most 20 photons a pixel](deblurring.png)\n",
        COST,
        cost_table(store),
        BOUND,
        bound_table(store),
        NOISE,
        noise_table(store),
    ]


INTRODUCTION = f"""\
The model is total variation: a Laplace potential of scale 1 / tau on every horizontal and vertical difference within
the picture.

- The blur is Gaussian, 3 x 3 pixels, sd 0.3, periodic. It keeps {100 * BLUR[1, 1]:.1f}% of the light in its pixel.
- Counts are photons at a maximal intensity u_max of 10, 20 or 30 a pixel. Draw k of the noise is `default_rng(k)`.
- Pictures are area averages, scaled by their maximum.
- Errors are relative l1 errors: median (sd) over draws of the noise. Rows without a spread are of one draw.
- EP fits tau (HalfNormal(5)) by evidence with every draw. It sees no truth. Its estimate is the intensity E max(0,
  u).
- "Gaussian": EP fits the sd of the noise too (HalfNormal(5)). "Gaussian, sd of mean": the sd is the root of the mean
  count.
- "Cut": the rectified Poisson likelihood with `zero_mass=False`, where a count of zero also needs a positive
  intensity.
- "Tau of 64 x 64": all hyperparameters are those of the first draw at 64 x 64.

An oracle chooses what the truth likes best: the weight of TV (scikit-image's `denoise_tv_chambolle`), the same after
Anscombe's transform, or the iteration of Richardson-Lucy. Anscombe's transform stabilises the variance; its inverse
is the closed form of the exact unbiased one.

The published columns (Ko and Seeger 2015) are of their own faces, and of a cameraman whose making they do not say.
Their errors of the data are not known, so that ratios compare better than values.
"""
RATIOS = f"""## Ratios

Ratios of errors on the same draws, median (sd). Below one, the first is better. Two aims: EP without a truth is as
good as TV with an oracle weight, and the gain from Gaussian to Poisson is the published one.

In the last column EP has an oracle too: the best of {", ".join(f"{factor:g}" for factor in ORACLE_FACTORS)} times the
tau by evidence, first draw. What then remains above one is due to the prior, the rest to what evidence chooses. The
priors differ: EP has a posterior mean under potentials of horizontal and vertical differences. TV has a mode, which
is exactly flat in places, and penalises the length of the gradient.
"""
COST = """## What EP found, and what it took

- Tau: by evidence.
- Coverage: the share of pixels whose true intensity is in the 90% interval of the marginal. It is near zero where the
  Gaussian likelihood's evidence is highest without noise.
- Seconds of a fit without compilation, and its evaluations of the evidence: first draw / median of the others. The
  search of the first draw begins at the prior, at 128 x 128 at what 64 x 64 found. The other searches begin at what
  the first found.
- One thread of BLAS. Other work ran on the machine, so that seconds are upper bounds.
"""
BOUND = """## The double loop on the same pictures

The double loop has no bound for the Poisson likelihood. It takes the counts as Gaussian, in four ways: with the mean
count as variance ("sd of mean"), with variance max(y, 1) ("weighted"), after Anscombe's transform with variance one,
or with a learned variance ("Gaussian", first draw at 32 x 32, up to 200 outer loops). Variances are exact.
Hyperparameters are learned where EP's are.
"""
NOISE = """## Learned noise

The rows "bound, Gaussian" are as far from the truth as the data are. With a learned sd of the noise the bound is
largest where there is next to none. The last columns show why: the bound at its own hyperparameters, the bound at
EP's ("there"), and EP's approximation of the log evidence, which is largest at EP's. The more noise there is, the
more the bound falls short of it. On the head of the cameraman the evidence itself is largest without noise. Take the
sd from the mean of the counts, or use EP.
"""
