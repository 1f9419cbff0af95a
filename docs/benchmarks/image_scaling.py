"""The double loop from 64 x 64 to 1024 x 1024 pixels: time and memory; compile modes.

    python -m docs.benchmarks.image_scaling [--quick] [--sizes 64 128 256 512 1024]
                                             [--parts scaling inpainting modes dense]

Denoising and inpainting with sampled variances, every run in a process of its own, so that its peak memory is its own.
Needs the folder ``images256`` under ``PYMC_EP_DATA``. Runs that are done are kept in ``docs/benchmarks/rows``.
Writes docs/benchmarks/image_scaling.md and .png.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
import warnings
from typing import Any

import numpy as np
import pymc as pm
from scipy import sparse

import pymc_ep as pmep
from docs.benchmarks._common import header, markdown_table, write_page
from docs.benchmarks._images import (
    Store,
    area_average,
    coverage,
    linear_interpolation,
    load,
    panels,
    psnr,
    shortfall,
)
from pymc_ep.linalg.precision import plan_algebra

NAME = "docs/benchmarks/image_scaling.py"
PICTURE = "photographer"
SIZES = (64, 128, 256, 512, 1024)
NOISE = {"denoising": 0.1, "inpainting": 10**-2.5}
KEPT = 0.25
"""Share of the pixels that inpainting is given."""
SAMPLES, OUTER, LEVELS = 30, 15, 5
TAU = {"denoising": 6.0, "inpainting": 9.0}
SECONDS, STRETCH, GIGABYTES = 90.0, 40.0, 4.0
MODES = {"C": "CVM", "Numba": "NUMBA", "JAX": "JAX"}


# Problems


def picture(size: int) -> np.ndarray:
    """Return the picture from 0 to 1; smaller by averaging, larger by reflection (so that opposite edges meet)."""
    image = load(PICTURE) / 255
    if size <= len(image):
        return area_average(image, size)
    while len(image) < size:
        image = np.block([[image, image[:, ::-1]], [image[::-1], image[::-1, ::-1]]])
    return image


def data(task: str, size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the truth, the flat indices of the observed pixels and their values."""
    truth = picture(size)
    rng = np.random.default_rng(0)
    n = truth.size
    seen = np.arange(n) if task == "denoising" else np.sort(rng.choice(n, int(KEPT * n), replace=False))
    return truth, seen, truth.ravel()[seen] + rng.normal(0, NOISE[task], len(seen))


def interpolated(size: int) -> float:
    """Return the PSNR of linear interpolation."""
    _, truth, observed = build("inpainting", "TV", size)
    return psnr(linear_interpolation(observed), truth, 1.0)


def build(task: str, prior: str, size: int) -> tuple[pm.Model, np.ndarray, np.ndarray]:
    """Build a model; return it with the truth and the observed pixels as a picture (NaN where there is none)."""
    truth, seen, values = data(task, size)
    shape = truth.shape
    with pm.Model() as model:
        if prior == "TV":
            operator = pmep.operators.Gradient2D(shape)
            potential = pm.Laplace.dist(0, 1 / TAU[task])
        elif prior == "TV, tau learned":
            operator = pmep.operators.Gradient2D(shape)
            potential = pm.Laplace.dist(0, 1 / pm.HalfNormal("tau", 50))
        else:
            operator = pmep.operators.Wavelet2D(shape, "db2", LEVELS)
            potential = pm.StudentT.dist(nu=2.1, sigma=pm.HalfNormal("b", 1, shape=LEVELS))
        u = pmep.SparseField("u", operator=operator, potential=potential, shape=shape)
        if task == "denoising":
            pm.Normal("y", u, NOISE[task], observed=values.reshape(shape))
        else:
            mask = np.zeros(truth.size, dtype=bool)
            mask[seen] = True
            pm.Normal("y", u[mask.reshape(shape)], NOISE[task], observed=values)
    observed = np.full(truth.size, np.nan)
    observed[seen] = values
    return model, truth, observed.reshape(shape)


# One run, in a process of its own


def run(task: str, prior: str, size: int, outer: int | None, keep: bool) -> dict[str, Any]:
    """Fit once, with so many outer loops or until it settles, and return time, peak memory and quality."""
    model, truth, observed = build(task, prior, size)

    def fitted(loops: int | None) -> tuple[float, Any]:
        options = {"outer": loops, "tol": 1e-12} if loops else {}
        began = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", pmep.ConvergenceWarning)
            found = pmep.fit(
                "dsb",
                model=model,
                variance="perturb-and-map",
                n_samples=SAMPLES,
                draws=0,
                random_seed=1,
                progressbar=False,
                **options,
            )
        return time.perf_counter() - began, found

    seconds, found = fitted(outer)
    fit = found["fit"]
    mean, sd = (np.asarray(found[f"posterior_{what}"]["u"]) for what in ("mean", "sd"))
    # What a fit takes beside its loops counts at small sizes alone.
    loop_seconds = (fitted(outer)[0] - fitted(1)[0]) / (outer - 1) if outer and size <= 128 else None
    out = {
        "seconds": seconds,
        "run_seconds": float(fit.attrs["run_time"]),
        "outer": int(fit["n_iter"]),
        "loop_seconds": loop_seconds,
        "gigabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
        "psnr": psnr(mean, truth, 1.0),
        "coverage": coverage(mean, sd, truth),
        "status": str(fit.attrs["status"]),
    }
    if keep:
        out["maps"] = [np.round(one, 4).tolist() for one in (truth, np.nan_to_num(observed), mean, sd)]
    return out


def run_apart(what: str, *arguments: Any) -> dict[str, Any]:
    """Run one of `APART` in a process of its own."""
    command = [sys.executable, "-m", "docs.benchmarks.image_scaling", "--one", json.dumps([what, *arguments])]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.strip().splitlines()[-1])


def measure_mode(mode: str, method: str) -> dict[str, Any]:
    """Fit 32 x 32 denoising in a compile mode, twice; moments and seconds."""
    model, _, _ = build("denoising", "TV", 32)
    options: dict[str, Any] = {"variance": "exact"} if method == "dsb" else {}
    seconds = []
    for _ in range(2):
        began = time.perf_counter()
        found = pmep.fit(
            method, model=model, draws=0, progressbar=False, compile_kwargs={"mode": MODES[mode]}, **options
        )
        seconds.append(time.perf_counter() - began)
    fit = found["fit"]
    return {
        "seconds": seconds,
        "log_evidence": float(fit["log_evidence"]),
        "mean": np.asarray(found["posterior_mean"]["u"]).ravel().tolist(),
        "sd": np.asarray(found["posterior_sd"]["u"]).ravel().tolist(),
    }


def run_dense(size: int) -> dict[str, Any]:
    """Time one precision with potentials on wavelets, its factor and all variances, in exact algebra."""
    _, seen, _ = data("inpainting", size)
    wavelet = pmep.operators.Wavelet2D((size, size), "db2", LEVELS).matrix()
    design = sparse.vstack([sparse.eye_array(size**2, format="csr")[seen], wavelet], format="csr")
    algebra = plan_algebra(design, (size, size))
    weights = np.random.default_rng(0).uniform(1.0, 1e3, design.shape[0])
    weights[: len(seen)] = NOISE["inpainting"] ** -2
    began = time.perf_counter()
    factor = algebra.factor(weights)
    middle = time.perf_counter()
    variances = factor.variances(design)
    end = time.perf_counter()
    # The trace of A^{-1} A, in which all entries take part.
    return {
        "sentence": algebra.sentence,
        "factor": middle - began,
        "variances": end - middle,
        "flops": algebra.flops,
        "error": abs(float(weights @ variances) / size**2 - 1),
        "gigabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
    }


# The page


def per_loop(row: dict[str, Any]) -> float:
    return row["loop_seconds"] or row["run_seconds"] / row["outer"]


def scaling_part(store: Store) -> list[str]:
    rows, slopes = [], []
    for task in NOISE:
        known = [(size, store.rows[key]) for size in SIZES if (key := f"scaling/{task}/{size}") in store.rows]
        for size, row in known:
            rows.append(
                [
                    task,
                    f"{size} x {size}",
                    f"{per_loop(row):.3g}",
                    f"{1e6 * per_loop(row) / size**2:.3g}",
                    str(row["outer"]),
                    f"{row['gigabytes']:.2f}",
                    f"{row['psnr']:.2f}",
                    f"{row['coverage']:.3f}",
                ]
            )
        if len(known) > 2:
            slope = np.polyfit(*np.log([[s**2 for s, _ in known], [per_loop(r) for _, r in known]]), 1)[0]
            slopes.append(f"- {task}: time per outer loop grows as N to the power {slope:.2f} (linear: 1).")
        if known and known[-1][0] == SIZES[-1]:
            what = f"{task}, {SIZES[-1]} x {SIZES[-1]}: memory"
            slopes.append("- " + shortfall(what, known[-1][1]["gigabytes"], GIGABYTES, 2, " GiB"))
    head = [
        "task",
        "pixels",
        "seconds a loop",
        "microseconds a pixel",
        "loops",
        "peak memory, GiB",
        "PSNR, dB",
        "coverage",
    ]
    return [SCALING, markdown_table(head, rows), "\n".join(slopes) + "\n"] if rows else []


def inpainting_part(store: Store) -> list[str]:
    rows, lines = [], []
    for prior, outer in RUNS:
        row = store.rows.get(f"inpainting/{prior}/{outer}")
        if row:
            rows.append(
                [
                    prior if outer else f"{prior}, until it settles",
                    f"{row['seconds']:.3g}",
                    f"{row['run_seconds']:.3g}",
                    f"{row['gigabytes']:.2f}",
                    f"{row['psnr']:.2f}",
                    f"{row['coverage']:.3f}",
                    row["status"].replace("|", "/"),
                ]
            )
            if outer:
                lines.append("- " + shortfall(f"{prior}: time", row["seconds"], SECONDS, 0, " s"))
                lines.append("- " + shortfall(f"{prior}: time, stretch", row["seconds"], STRETCH, 0, " s"))
    if not rows:
        return []
    head = ["prior", "seconds", "without compilation", "peak memory, GiB", "PSNR, dB", "coverage", "status"]
    parts = [INPAINTING.format(interpolated=interpolated(256)), markdown_table(head, rows), "\n".join(lines) + "\n"]
    shown = store.rows.get(f"inpainting/TV/{OUTER}")
    if shown:
        truth, observed, mean, sd = (np.array(one) for one in shown["maps"])
        panels(
            "image_scaling",
            [[("truth", truth, 1.0), ("data", observed, 1.0), ("mean", mean, 1.0), ("sd", sd, None)]],
        )
        parts.append("![Inpainting: truth, data, mean, standard deviation](image_scaling.png)\n")
    return parts


def modes_part(store: Store) -> list[str]:
    rows = []
    for method in ("ep", "dsb"):
        base = store.rows.get(f"modes/{method}/C")
        for mode in MODES:
            row = store.rows.get(f"modes/{method}/{mode}")
            if base and row:
                apart = [np.abs(np.subtract(row[w], base[w])) / np.array(base["sd"]) for w in ("mean", "sd")]
                rows.append(
                    [
                        method,
                        mode,
                        f"{row['seconds'][0]:.3g} / {row['seconds'][1]:.3g}",
                        f"{row['log_evidence']:.8f}",
                        f"{apart[0].max():.1e}",
                        f"{apart[1].max():.1e}",
                    ]
                )
    head = ["method", "mode", "first / second fit, s", "log evidence or bound", "means apart, sd", "sds apart, sd"]
    return [COMPILED, markdown_table(head, rows)] if rows else []


def dense_part(store: Store) -> list[str]:
    rows = []
    for size in DENSE:
        row = store.rows.get(f"dense/{size}")
        if row:
            seconds = row["factor"] + row["variances"]
            rows.append(
                [
                    str(size**2),
                    f"{row['factor']:.3g}",
                    f"{row['variances']:.3g}",
                    f"{row['flops']:.2g}",
                    f"{row['flops'] / seconds / 1e9:.3g}",
                    f"{row['gigabytes']:.2f}",
                    f"{row['error']:.1e}",
                ]
            )
    head = ["unknowns", "factor, s", "all variances, s", "operations", "1e9 a second", "peak memory, GiB", "error"]
    return [EXACT, markdown_table(head, rows)] if rows else []


STUDENT = "Student-t on db2"
RUNS = (("TV", OUTER), ("TV, tau learned", OUTER), (STUDENT, OUTER), (STUDENT, None))
"""Inpainting: priors and outer loops."""
INTRODUCTION = f"""\
The picture is "{PICTURE}" of scikit-image, 256 x 256 from 0 to 1. Smaller ones are averages, larger ones reflections.

- Denoising: noise of sd {NOISE["denoising"]:g} on all pixels.
- Inpainting: {100 * KEPT:.0f}% of the pixels are seen, with noise of variance 1e-5.
- Variances are from {SAMPLES} perturb-and-MAP samples.
- Seed 0 for data, 1 for the fit.
"""
SCALING = f"""## From 64 x 64 to 1024 x 1024

Total variation with tau {TAU["denoising"]:g}, known. Seconds are for one outer loop of the first few: the time of a fit
without compilation over its loops. Up to 128 x 128 it is the difference of fits with several loops and with one. Peak
memory is that of the whole process, Python and compiler included.
"""
INPAINTING = f"""## Inpainting, 256 x 256

Each fit has {OUTER} outer loops, whether fewer would do or not. The last row has as many as the engine makes by
default. Priors: total variation with tau {TAU["inpainting"]:g} known and with tau learned; a Student-t potential (nu
= 2.1) on db2 wavelet coefficients, with a learned scale for each of {LEVELS} levels. Linear interpolation between the
same pixels (SciPy's `griddata`) has {{interpolated:.2f}} dB.
"""
COMPILED = """## The same model under C, Numba and JAX

Denoising, 32 x 32, exact variances. The first fit includes compilation. Differences are the greatest over pixels, in
posterior standard deviations.
"""
EXACT = """## Exact algebra for wavelets

Potentials on db2 coefficients reach over the whole picture, so that the precision is dense. The table has what one
sweep of EP takes, or one outer loop with exact variances, up to the largest number of unknowns for which it is meant.
The error is that of the trace of the precision times its inverse, relative to the number of unknowns.
"""
DENSE = (32, 64, 128)
APART = {"fit": run, "dense": run_dense}
PARTS = ("scaling", "inpainting", "modes", "dense")


def main() -> None:
    """Measure and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="*", type=int, default=list(SIZES), choices=SIZES)
    parser.add_argument("--parts", nargs="*", default=list(PARTS), choices=PARTS)
    parser.add_argument("--outer", type=int, default=4, help="outer loops of the runs that measure time per loop")
    parser.add_argument("--quick", action="store_true", help="64 x 64, two loops, printed only")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        what, *arguments = json.loads(options.one)
        print(json.dumps(APART[what](*arguments)))
        return
    if options.quick:
        for task in NOISE:
            print(task, run_apart("fit", task, "TV", 64, 2, False))
        print("dense", run_apart("dense", 32))
        return
    store = Store("image_scaling")
    for size in options.sizes if "scaling" in options.parts else ():
        for task in NOISE:
            store.get(
                f"scaling/{task}/{size}", lambda t=task, s=size: run_apart("fit", t, "TV", s, options.outer, False)
            )
    for prior, outer in RUNS if "inpainting" in options.parts else ():
        key = f"inpainting/{prior}/{outer}"
        store.get(key, lambda p=prior, o=outer: run_apart("fit", "inpainting", p, 256, o, p == "TV"))
    for size in DENSE if "dense" in options.parts else ():
        store.get(f"dense/{size}", lambda s=size: run_apart("dense", s))
    for method in ("ep", "dsb") if "modes" in options.parts else ():
        for mode in MODES:
            store.get(f"modes/{method}/{mode}", lambda o=mode, m=method: measure_mode(o, m))
    parts = [header("Total variation and Student-t potentials", NAME), INTRODUCTION]
    for part in (scaling_part, inpainting_part, dense_part, modes_part):
        parts += part(store)
    print(write_page("image_scaling", parts))


if __name__ == "__main__":
    main()
