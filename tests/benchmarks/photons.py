"""Real photons, Fermi's Galactic Centre and Chandra's G21.5-0.9: fitted to one half, scored on the other.

    python -m tests.benchmarks.photons [--quick] [--cases fermi chandra] [--splits 1]

Total variation with the instrument's blur, exposure and background; rectified Poisson, softplus and Gaussian
likelihoods by EP, and Richardson-Lucy. Needs the folders ``counts-fermi-gc`` and ``counts-chandra-g21`` under
``PYMC_EP_DATA``. Rows that are done are kept in ``build/photons.json``. Writes docs/benchmarks/photons.md and .png.
"""

import argparse
import os
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pymc as pm
from scipy import ndimage, stats

import pymc_ep as pmep
from tests.benchmarks._common import header, hyper_modes, markdown_table, write_page
from tests.benchmarks._images import Store, panels, richardson_lucy

NAME = "tests/benchmarks/photons.py"
POISSON, CUT, SOFTPLUS, GAUSSIAN = "rectified Poisson", "rectified Poisson, cut", "softplus Poisson", "Gaussian noise"
MODELS = (POISSON, CUT, SOFTPLUS, GAUSSIAN)
RL, SMOOTHED, NOTHING = "Richardson-Lucy, oracle", "Gaussian smoothing, oracle", "background alone"
KEPT = 0.5
"""Share of the photons that are fitted."""
RL_ITERATIONS = 300
SPLITS = 3
TOLERANCE = 1e-6
"""Of EP: the blur of Fermi ties hundreds of pixels to each count, and its sweeps are dense algebra."""


class Scene(NamedTuple):
    """A map of counts and what is known of the instrument; the field is larger than the map by `margin` a side."""

    counts: np.ndarray
    exposure: np.ndarray
    background: np.ndarray
    psf: np.ndarray
    margin: int

    @property
    def field(self) -> tuple[int, int]:
        rows, columns = self.counts.shape
        return rows + 2 * self.margin, columns + 2 * self.margin

    @property
    def inside(self) -> tuple[slice, slice]:
        rows, columns = self.counts.shape
        return slice(self.margin, self.margin + rows), slice(self.margin, self.margin + columns)


def _folder(name: str) -> Path:
    return Path(os.environ["PYMC_EP_DATA"]) / name


def fermi(size: int) -> Scene:
    """Crop the Galactic Centre; exposure relative to its mean, so that the field is in photons a pixel."""
    data = np.load(_folder("counts-fermi-gc") / "fermi_gc.npz")
    rows, columns = data["counts"].shape
    crop = tuple(slice(n // 2 - size // 2, n // 2 - size // 2 + size) for n in (rows, columns))
    exposure = data["exposure"][crop].astype(float)
    psf = data["psf"].astype(float)
    return Scene(
        data["counts"][crop].astype(int),
        exposure / exposure.mean(),
        data["background"][crop].astype(float),
        psf / psf.sum(),
        margin=8,
    )


def chandra(size: int) -> Scene:
    """Crop around the brightest pixel; a narrow Gaussian blur, and the level at the frame's edge as background."""
    counts = np.load(_folder("counts-chandra-g21") / "chandra_g21.npz")["counts"].astype(int)
    row, column = np.unravel_index(counts.argmax(), counts.shape)
    edge = np.concatenate([counts[:20].ravel(), counts[-20:].ravel()]).mean()
    weights = np.exp(-(np.arange(-2.0, 3.0) ** 2) / (2 * 0.5**2))
    psf = np.outer(weights, weights)
    top, left = row - size // 2, column - size // 2
    shape = (size, size)
    crop = counts[top : top + size, left : left + size]
    return Scene(crop, np.ones(shape), np.full(shape, edge), psf / psf.sum(), margin=2)


SCENES = {"fermi": fermi, "chandra": chandra}
SIZES = {"fermi": 32, "chandra": 60}


def thinned(scene: Scene, split: int) -> tuple[np.ndarray, np.ndarray]:
    """Return two halves of the photons: given the sky they are independent Poisson counts with half the rate."""
    kept = np.random.default_rng(split).binomial(scene.counts, KEPT)
    return kept, scene.counts - kept


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
        seen = pmep.apply_operator(pmep.operators.Convolution2D(scene.field, scene.psf), u)[scene.inside]
        rate = pm.Deterministic("rate", exposure * seen + background)
        if model == GAUSSIAN:
            pm.Normal("y", rate, pm.HalfNormal("sigma", 5), observed=counts.astype(float))
        elif model == SOFTPLUS:
            pmep.SoftplusPoisson("y", rate, observed=counts)
            pmep.SoftplusPoisson("held_out", rate)
        else:
            pmep.RectifiedPoisson("y", rate, zero_mass=model == POISSON, observed=counts)
            pmep.RectifiedPoisson("held_out", rate, zero_mass=model == POISSON)
    return built


def score(model: str, built: pm.Model, found: Any, held_out: np.ndarray) -> np.ndarray:
    """Return log predictive probabilities of the held-out counts."""
    if model != GAUSSIAN:
        return np.asarray(pmep.log_predictive(found, built, {"held_out": held_out})["held_out"])
    # The probability of the unit interval around the count, to which zero's adds all below it.
    fit = found["fit"]
    sd = np.sqrt(np.asarray(fit["rate_sd"]) ** 2 + float(fit["hyper_mode_sigma"]) ** 2)
    upper = stats.norm.logcdf(held_out + 0.5, np.asarray(fit["rate_mean"]), sd)
    lower = stats.norm.logcdf(held_out - 0.5, np.asarray(fit["rate_mean"]), sd)
    # Far above the mean both are near zero, and the interval is the difference of the upper tails.
    above = stats.norm.logsf(held_out - 0.5, np.asarray(fit["rate_mean"]), sd)
    beyond = stats.norm.logsf(held_out + 0.5, np.asarray(fit["rate_mean"]), sd)
    left = upper + np.log1p(-np.exp(np.minimum(lower - upper, -1e-300)))
    right = above + np.log1p(-np.exp(np.minimum(beyond - above, -1e-300)))
    return np.where(held_out == 0, upper, np.where(upper < above, left, right))


def measure(scene: Scene, model: str, split: int) -> dict[str, Any]:
    """Fit one half, score the other."""
    train, held_out = thinned(scene, split)
    built = build(scene, model, train)
    began = time.perf_counter()
    found = pmep.fit(method="ep", model=built, tol=TOLERANCE, draws=0, progressbar=False)
    seconds = time.perf_counter() - began
    fit = found["fit"]
    row = {
        "log_density": score(model, built, found, held_out).ravel().tolist(),
        "hyper": hyper_modes(fit),
        "log_evidence": float(fit["log_evidence"]),
        "seconds": seconds,
        "evaluations": int(fit.sizes["hyper_iteration"]),
        "converged": bool(fit["converged"]),
        "status": str(fit.attrs["status"]),
    }
    if split == 0:
        row["maps"] = [np.asarray(fit[f"u_{what}"])[scene.inside].tolist() for what in ("mean", "sd")]
    return row


# Peers


def instrument(scene: Scene) -> tuple[Any, Any]:
    """Return the expected counts of one half as a function of the sky, and the transpose of its linear part."""
    kernel = np.zeros(scene.field)
    rows, columns = scene.psf.shape
    kernel[:rows, :columns] = scene.psf
    spectrum = np.fft.rfft2(np.roll(kernel, (-(rows // 2), -(columns // 2)), axis=(0, 1)))

    def forward(u: np.ndarray) -> np.ndarray:
        seen = np.fft.irfft2(np.fft.rfft2(u) * spectrum, s=scene.field)[scene.inside]
        return KEPT * (scene.exposure * np.maximum(seen, 0) + scene.background)

    def adjoint(v: np.ndarray) -> np.ndarray:
        wide = np.zeros(scene.field)
        wide[scene.inside] = KEPT * scene.exposure * v
        return np.maximum(np.fft.irfft2(np.fft.rfft2(wide) * spectrum.conj(), s=scene.field), 0)

    return forward, adjoint


def measure_richardson_lucy(scene: Scene, split: int) -> dict[str, Any]:
    """Stop where the held-out photons like it best: an oracle, which no practitioner has."""
    train, held_out = thinned(scene, split)
    forward, adjoint = instrument(scene)
    began = time.perf_counter()
    best: dict[str, Any] = {"mean": -np.inf}
    flat = np.full(scene.field, max(train.mean() / KEPT - scene.background.mean(), 0.1 * train.mean()))
    for k, u in richardson_lucy(train, forward, adjoint, flat, RL_ITERATIONS):
        density = stats.poisson.logpmf(held_out, forward(u))
        if density.mean() > best["mean"]:
            best = {"mean": float(density.mean()), "log_density": density, "iteration": k, "map": u[scene.inside]}
    best |= {"log_density": best["log_density"].ravel().tolist(), "map": best["map"].tolist()}
    return best | {"seconds": time.perf_counter() - began}


def measure_smoothed(scene: Scene, split: int) -> dict[str, Any]:
    """Smooth the counts by the width that the held-out photons like best."""
    train, held_out = thinned(scene, split)
    found = []
    for sd in np.geomspace(0.4, 6, 25):
        rate = ndimage.gaussian_filter(train.astype(float), sd, mode="reflect") + 1e-3
        found.append((stats.poisson.logpmf(held_out, rate), float(sd)))
    density, sd = max(found, key=lambda one: one[0].mean())
    return {"log_density": density.ravel().tolist(), "width": sd}


def measure_nothing(scene: Scene, split: int) -> dict[str, Any]:
    """Score the background alone."""
    _, held_out = thinned(scene, split)
    return {"log_density": stats.poisson.logpmf(held_out, KEPT * scene.background).ravel().tolist()}


# The page


def rows_of(store: Store, case: str, model: str) -> list[dict[str, Any]]:
    """Return the rows of all splits to which every model was fitted."""
    keys = ([f"{case}/{split}/{m}" for m in (model, *MODELS)] for split in range(SPLITS))
    return [store.rows[known[0]] for known in keys if all(key in store.rows for key in known)]


def table(store: Store, case: str) -> str:
    """Format the scores of one scene."""
    reference = rows_of(store, case, POISSON)
    lines = []
    for model in (*MODELS, RL, SMOOTHED, NOTHING):
        rows = rows_of(store, case, model)
        if not rows:
            continue
        means = [float(np.mean(row["log_density"])) for row in rows]
        line = [model, f"{np.mean(means):.4f}"]
        pairs = list(zip(rows, reference))
        apart = np.concatenate([np.subtract(b["log_density"], a["log_density"]) for a, b in pairs] or [[np.nan]])
        error = apart.std(ddof=1) / np.sqrt(len(apart)) * np.sqrt(len(pairs))
        line.append("-" if model == POISSON else f"{apart.mean():+.4f} ({error:.4f})")
        if model in MODELS:
            line += [
                "; ".join(f"{h} {rows[0]['hyper'][h]:.3g}" for h in rows[0]["hyper"]),
                f"{rows[0]['log_evidence']:.1f}",
                f"{np.median([row['seconds'] for row in rows]):.3g} ({rows[0]['evaluations']})",
                f"{sum(row['converged'] for row in rows)} of {len(rows)}",
            ]
        elif model == RL:
            line += [
                f"iteration {', '.join(str(row['iteration']) for row in rows)}",
                "-",
                f"{rows[0]['seconds']:.2g}",
                "-",
            ]
        elif model == SMOOTHED:
            line += [f"sd {rows[0]['width']:.2g} pixels", "-", "-", "-"]
        else:
            line += ["-"] * 4
        lines.append(line)
    head = ["model", "held-out log density", "rectified Poisson - this", "setting", "log evidence"]
    return markdown_table([*head, "seconds (evaluations)", "converged"], lines)


def verdict(store: Store, case: str) -> str:
    """Say what predicts best, and how far the rectified Poisson likelihood is behind."""
    rows = {model: rows_of(store, case, model) for model in (*MODELS, RL, SMOOTHED)}
    means = {m: float(np.mean([np.mean(row["log_density"]) for row in found])) for m, found in rows.items() if found}
    sentences = []
    for among, candidates in (("Without an oracle", MODELS), ("With one", (RL, SMOOTHED))):
        best = max((m for m in candidates if m in means), key=lambda m: means[m])
        behind = means[best] - means[POISSON]
        how = f"falls short of it by {behind:.4f}" if behind > 0 else f"is ahead of it by {-behind:.4f}"
        told = "" if best == POISSON else f"; the rectified Poisson likelihood {how} nats a pixel"
        sentences.append(f"{among}, the best is {best}{told}.")
    return " ".join(sentences) + "\n"


def picture(store: Store, cases: list[str]) -> bool:
    """Draw counts, means, standard deviations and Richardson-Lucy."""
    rows = []
    for case in cases:
        fitted, best = (store.rows.get(f"{case}/0/{model}") for model in (POISSON, RL))
        if fitted and best:
            scene = SCENES[case](SIZES[case])
            # Square roots, for the sake of the dynamic range.
            mean, sd = (np.array(one) for one in fitted["maps"])
            rows.append(
                [
                    (f"{case}: root of counts", np.sqrt(thinned(scene, 0)[0]), None),
                    ("root of the mean", np.sqrt(np.maximum(mean, 0)), None),
                    ("sd", sd, None),
                    ("root of Richardson-Lucy", np.sqrt(np.array(best["map"])), None),
                ]
            )
    if rows:
        panels("photons", rows)
    return bool(rows)


def page(store: Store) -> list[str]:
    """Return the parts of the page."""
    parts = [header("Real photons", NAME), INTRODUCTION]
    for case in SCENES:
        if rows_of(store, case, POISSON):
            parts += [HEADINGS[case], table(store, case), verdict(store, case)]
    if picture(store, list(SCENES)):
        parts.append("![Counts, posterior mean and standard deviation, Richardson-Lucy](photons.png)\n")
    return parts


INTRODUCTION = f"""The photons of a map are dealt into two halves, `default_rng(split).binomial(counts, {KEPT})`:
given the sky, these are independent. One half is fitted, the other scored: mean log predictive probability of a count,
in nats a pixel, averaged over up to {SPLITS} splits; differences are paired by pixel, with a standard error as if the
pixels of one split were the sample. The rate is exposure times blurred sky plus background; the sky has a
total-variation prior (reflecting boundaries, a margin around the map) whose tau is fitted by evidence. "Cut" is
`zero_mass=False`. Under Gaussian noise, with a learned sd, a count has the probability of the unit interval around it,
and zero all below as well. Richardson and Lucy's iteration starts flat, knows blur, exposure and background, and is
stopped where **the held-out half** likes it best: an oracle. Its prediction is a Poisson count at its rate, and so is
that of the counts smoothed by a Gaussian, whose width is such an oracle too.
"""
HEADINGS = {
    "fermi": f"""## Fermi-LAT, Galactic Centre

The central {SIZES["fermi"]} x {SIZES["fermi"]} pixels of 0.05 degrees, 10 to 500 GeV, with the 21 x 21 point spread
function, the exposure and the predicted diffuse background that come with the map.
""",
    "chandra": f"""## Chandra, G21.5-0.9

{SIZES["chandra"]} x {SIZES["chandra"]} pixels of an arc second around the brightest. The map has neither exposure nor
point spread function: exposure is one, the blur a Gaussian of sd 0.5 pixels, the background the mean of the top and
bottom 20 rows of the frame.
""",
}


def main() -> None:
    """Measure and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="*", default=list(SCENES), choices=list(SCENES))
    parser.add_argument("--splits", type=int, default=SPLITS, choices=range(1, SPLITS + 1))
    parser.add_argument("--models", nargs="*", default=list(MODELS), choices=MODELS)
    parser.add_argument("--quick", action="store_true", help="12 x 12 pixels and one split; nothing is kept or written")
    options = parser.parse_args()
    if options.quick:
        for case in options.cases:
            scene = SCENES[case](12)
            for model in options.models:
                row = measure(scene, model, 0)
                print(case, model, np.mean(row["log_density"]), row["hyper"], row["seconds"], row["status"])
            print(case, RL, measure_richardson_lucy(scene, 0)["mean"])
        return
    store = Store("photons")
    for split in range(options.splits):
        for case in options.cases:
            scene = SCENES[case](SIZES[case])
            store.get(f"{case}/{split}/{RL}", lambda s=scene, k=split: measure_richardson_lucy(s, k))
            store.get(f"{case}/{split}/{SMOOTHED}", lambda s=scene, k=split: measure_smoothed(s, k))
            store.get(f"{case}/{split}/{NOTHING}", lambda s=scene, k=split: measure_nothing(s, k))
            for model in options.models:
                store.get(f"{case}/{split}/{model}", lambda a=(scene, model, split): measure(*a))
    print(write_page("photons", page(store)))


if __name__ == "__main__":
    main()
