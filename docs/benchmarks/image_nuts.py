"""EP and the double loop against long NUTS runs on 16 x 16 crops of a picture.

    python -m docs.benchmarks.image_nuts [--quick] [--cases gaussian rectified softplus tau half quarter scales ...]

Total variation with Gaussian noise and with counts; with missing pixels, Student-t potentials on wavelet coefficients
and Laplace ones on second differences. Needs nutpie and scikit-image's picture of an astronaut. Rows that are done,
with the quantiles of NUTS's draws, are kept in ``docs/benchmarks/rows``; one that is taken out there is measured anew.
Writes docs/benchmarks/image_nuts.md and .png.
"""

import argparse
import time
import warnings
from collections.abc import Iterable
from typing import Any

import arviz as az
import numpy as np

import pymc_ep as pmep
from docs.benchmarks._common import header, markdown_table, mean_se, write_page
from docs.benchmarks._crops import (
    CHECKS,
    CROPS,
    HALF_SD,
    LEVELS,
    NU,
    QUARTER_SD,
    SD,
    SHAPE,
    TAU,
    U_MAX,
    Case,
    same_density,
)
from docs.benchmarks._images import NORMAL_95, Store, panels, shortfall
from pymc_ep.compat import has_group

NAME = "docs/benchmarks/image_nuts.py"
CHAINS, TUNE = 4, 1000
PROBABILITIES = np.linspace(0, 1, 201)
"""Of the quantiles of NUTS's draws that are kept, enough to say how many draws lie in an interval."""
MEAN_ERROR, SD_ERROR, R_HAT = 0.1, 0.05, 1.05
"""Most for EP; most of chains that still are a reference."""
ENGINES: dict[str, tuple[str, dict[str, Any]]] = {
    "EP": ("ep", {}),
    "EP, integrated": ("ep", {"hyper": "integrate"}),
    "EP, power 0.25": ("ep", {"power": 0.25}),
    "double loop": ("dsb", {"variance": "exact"}),
}


# NUTS


def measure_nuts(name: str) -> dict[str, Any]:
    """Sample a case with nutpie, keep the draws and return what the chains are worth."""
    import nutpie

    check = CHECKS[name]
    case = check.build(plain=True)
    same_density(check.build(), case)
    # A flat picture plus jitter of one either way: far from the posterior, and of finite density under all links.
    start = {"u": np.full(SHAPE, np.nanmean(case.y))}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compiled = nutpie.compile_pymc_model(case.model, initial_points=start)
        began = time.perf_counter()
        chains = nutpie.sample(
            compiled, draws=check.draws, tune=TUNE, chains=CHAINS, cores=1, seed=1, progress_bar=False
        )
    seconds = time.perf_counter() - began
    posterior = chains["posterior"]
    hyper = [one for one in ("tau", "b") if one in posterior]
    bulk, tail = (az.ess(posterior, var_names=["u", *hyper], method=how) for how in ("bulk", "tail"))
    draws = np.asarray(posterior["u"]).reshape(-1, *SHAPE)
    quantiles = np.quantile(draws, PROBABILITIES, axis=0)
    return {
        "mean": draws.mean(axis=0).tolist(),
        "sd": draws.std(axis=0).tolist(),
        "quantiles": np.round(quantiles, 5).tolist(),
        "hyper": {one: moments(np.asarray(posterior[one])) for one in hyper},
        "covered": covered(check.build(), *np.quantile(draws, [0.05, 0.95], axis=0)),
        "draws": check.draws,
        "r_hat": max(float(v.max()) for v in az.rhat(posterior, var_names=["u", *hyper]).values()),
        "bulk": min(float(v.min()) for v in bulk.values()),
        "tail": min(float(v.min()) for v in tail.values()),
        "error": float(np.median(np.asarray(bulk["u"]) ** -0.5)),
        "divergences": int(chains["sample_stats"]["diverging"].sum()),
        "steps": float(chains["sample_stats"]["n_steps"].mean()),
        "seconds": seconds,
    }


def moments(draws: np.ndarray) -> dict[str, list[float]]:
    """Return mean and standard deviation over chains and draws."""
    flat = draws.reshape(draws.shape[0] * draws.shape[1], -1)
    return {"mean": flat.mean(axis=0).tolist(), "sd": flat.std(axis=0).tolist()}


def covered(case: Case, low: np.ndarray, high: np.ndarray) -> list[float]:
    """Return the share of the true pixels in their intervals: of all pixels, and of the missing ones if there are."""
    inside = (case.truth >= low) & (case.truth <= high)
    missing = np.isnan(case.y)
    return [float(inside[mask].mean()) for mask in (np.ones(SHAPE, dtype=bool), missing) if mask.any()]


# Engines


def measure_fit(name: str, engine: str, nuts: dict[str, Any]) -> dict[str, Any]:
    """Fit and compare with NUTS."""
    case = CHECKS[name].build()
    method, options = ENGINES[engine]
    with warnings.catch_warnings():
        # The page says what did not converge.
        warnings.simplefilter("ignore", pmep.ConvergenceWarning)
        began = time.perf_counter()
        idata = pmep.fit(method, model=case.model, draws=0, progressbar=False, **options)
        seconds = time.perf_counter() - began
    fit = idata["fit"]
    mean, sd = (np.asarray(idata[f"posterior_{what}"]["u"]) for what in ("mean", "sd"))
    low, high = mean - NORMAL_95 * sd, mean + NORMAL_95 * sd
    error = np.abs(mean - nuts["mean"]) / nuts["sd"]
    quantiles = np.array(nuts["quantiles"]).reshape(len(PROBABILITIES), -1).T
    widths = np.subtract(*(quantiles[:, np.argmin(np.abs(PROBABILITIES - p))] for p in (0.95, 0.05))).reshape(SHAPE)
    below = [np.array([np.interp(x, q, PROBABILITIES) for x, q in zip(end.ravel(), quantiles)]) for end in (low, high)]
    return {
        "mean": mean.tolist(),
        "sd": sd.tolist(),
        "error": [float(np.median(error)), float(error.max())],
        "ratio": np.quantile(sd / nuts["sd"], [0.05, 0.5, 0.95]).tolist(),
        "width": float(np.median((high - low) / widths)),
        "draws": float(np.mean(below[1] - below[0])),
        "covered": covered(case, low, high),
        "hyper": {one: reported(idata, one) for one in nuts["hyper"]},
        "seconds": seconds,
        "converged": bool(fit["converged"]),
        "status": str(fit.attrs["status"]),
    }


def reported(idata: Any, name: str) -> dict[str, list[float]]:
    """Return the mode of a hyperparameter, and its moments where the fit has them."""
    found = {"mode": idata["fit"][f"hyper_mode_{name}"]}
    if has_group(idata, "posterior_mean") and name in idata["posterior_mean"]:
        found |= {what: idata[f"posterior_{what}"][name] for what in ("mean", "sd")}
    return {what: np.ravel(value).tolist() for what, value in found.items()}


# The page


def rows_of(results: dict[str, Any], name: str) -> list[list[str]]:
    """Return the lines of a case in the tables of moments: NUTS, then the engines."""
    check, nuts = CHECKS[name], results[f"{name}/NUTS"]
    rows = [[check.title, "NUTS", *["-"] * 5, *shares(nuts), f"{nuts['seconds']:.3g}"]]
    for engine in check.engines:
        if (one := results.get(f"{name}/{engine}")) is None:
            rows.append(["", engine, "refused", *[""] * (len(rows[0]) - 3)])
            continue
        low, middle, high = one["ratio"]
        rows.append(
            [
                "",
                engine if one["converged"] else f"{engine}, not converged",
                f"{one['error'][0]:.3f} ({one['error'][1]:.3f})",
                f"{middle:.3f}",
                f"{low:.3f} to {high:.3f}",
                f"{one['width']:.3f}",
                f"{one['draws']:.3f}",
                *shares(one),
                f"{one['seconds']:.3g}",
            ]
        )
    return rows


def shares(row: dict[str, Any]) -> list[str]:
    return [f"{share:.3f}" for share in row["covered"]]


def table(results: dict[str, Any], names: Iterable[str], *more: str) -> str:
    head = ["model", "", "error of means, sd", "sd ratio", "5 to 95%", "width ratio", "NUTS's draws inside"]
    rows = [row for name in names if f"{name}/NUTS" in results for row in rows_of(results, name)]
    return markdown_table([*head, "truth inside", *more, "seconds"], rows)


def verdicts(results: dict[str, Any], engines: dict[str, str]) -> str:
    """Say whether EP meets its aims, by its options for each case."""
    lines = []
    for name, engine in engines.items():
        if (one := results.get(f"{name}/{engine}")) is not None:
            what = f"{engine}, {CHECKS[name].title}"
            lines.append(shortfall(f"{what}: error of means in sd, median", one["error"][0], MEAN_ERROR))
            lines.append(shortfall(f"{what}: sd ratio's distance from one, median", abs(one["ratio"][1] - 1), SD_ERROR))
    return "".join(f"- {line}\n" for line in lines)


def hyper_table(results: dict[str, Any], name: str, one: str) -> str:
    """Return what NUTS and the engines find for a hyperparameter, one column a value."""
    rows = []
    for engine in ("NUTS", *CHECKS[name].engines):
        if (found := results.get(f"{name}/{engine}", {}).get("hyper", {}).get(one)) is None:
            continue
        # The double loop holds them, with an sd of zero up to rounding.
        known = max(found["sd"]) > 1e-12
        cells = [f"{m:.4g} ({s:.2g})" for m, s in zip(found["mean"], found["sd"])] if known else []
        modes = [f"{m:.4g}" for m in found.get("mode", [])]
        cells, modes = (part or ["-"] * max(len(cells), len(modes)) for part in (cells, modes))
        rows.append([engine, *cells, *modes])
    levels = [""] if one == "tau" else [f", level {level}" for level in range(1, LEVELS + 1)]
    head = [f"{one}{level}: {what}" for what in ("mean (sd)", "mode") for level in levels]
    return markdown_table(["", *head], rows)


def crops_part(results: dict[str, Any]) -> list[str]:
    """Return whose overconfidence it is: shares over all crops, with standard errors over crops."""
    rows, lines = [], []
    for what, names in crops().items():
        engines = CHECKS[names[0]].engines
        done = [name for name in names if all(f"{name}/{who}" in results for who in ("NUTS", *engines))]
        mixed = [name for name in done if results[f"{name}/NUTS"]["r_hat"] <= R_HAT]
        if len(mixed) < 2:
            continue
        if left_out := len(done) - len(mixed):
            lines.append(
                f"- Scales {what}: {left_out} of {len(done)} crops left out, where NUTS has an R-hat above "
                f"{R_HAT} and is no reference."
            )
        done = mixed
        share = {who: np.array([results[f"{name}/{who}"]["covered"] for name in done]) for who in ("NUTS", *engines)}
        rows.append([what, f"NUTS, {len(done)} crops", *map(with_error, share["NUTS"].T), "-", "-"])
        for engine in engines:
            fits = [results[f"{name}/{engine}"] for name in done]
            failed = sum(not one["converged"] for one in fits)
            rest = ([one["draws"] for one in fits], [one["ratio"][1] for one in fits])
            label = f"{engine}, {failed} not converged" if failed else engine
            rows.append(["", label, *map(with_error, share[engine].T), *map(with_error, rest)])
        nuts, loop = share["NUTS"][:, 1], share["double loop"][:, 1]
        lines.append(
            f"- Scales {what}: the double loop's intervals contain {loop.mean():.3f} of the missing pixels, "
            f"{0.9 - loop.mean():.3f} below 0.9; {with_error(0.9 - nuts)} is the model's, as NUTS shows, and "
            f"{with_error(nuts - loop)} the engine's."
        )
    if not rows:
        return []
    head = ["scales", "", "truth inside", "of missing pixels", "NUTS's draws inside", "sd ratio"]
    return [CROPS_TEXT, markdown_table(head, rows), "\n".join(lines) + "\n"]


def crops() -> dict[str, list[str]]:
    """Return the names of the checks on random crops, with scales known and learned."""
    names = [name for name in CHECKS if name.startswith("crop")]
    return {
        "known": [name for name in names if "scales" not in name],
        "learned": [name for name in names if "scales" in name],
    }


def with_error(values: Any) -> str:
    """Format a mean with its standard error."""
    return mean_se(float(np.mean(values)), float(np.std(values, ddof=1) / np.sqrt(len(values))), 3)


def chains_table(results: dict[str, Any]) -> str:
    groups = {CHECKS[name].title: [name] for name in CHECKS if not name.startswith("crop")}
    groups |= {f"random crops, scales {what}": names for what, names in crops().items()}
    rows = []
    for title, names in groups.items():
        nuts = [results[f"{name}/NUTS"] for name in names if f"{name}/NUTS" in results]
        if not nuts:
            continue
        rows.append(
            [
                title,
                f"{CHAINS} x {nuts[0]['draws']}",
                f"{max(one['r_hat'] for one in nuts):.4f}",
                " / ".join(f"{min(one[what] for one in nuts):.0f}" for what in ("bulk", "tail")),
                f"{max(one['error'] for one in nuts):.4f}",
                str(sum(one["divergences"] for one in nuts)),
                f"{np.mean([one['steps'] for one in nuts]):.0f}",
            ]
        )
    head = ["model", "draws", "R-hat, worst", "ESS, least: bulk / tail", "error of means, sd", "divergences"]
    return markdown_table([*head, "gradients a draw"], rows)


def picture(results: dict[str, Any]) -> None:
    """Draw means and standard deviations side by side."""
    shown = []
    for name, white in (("gaussian", 1.0), ("rectified", float(U_MAX))):
        case = CHECKS[name].build()
        found = {who: results[f"{name}/{who}"] for who in ("NUTS", "EP", "double loop") if f"{name}/{who}" in results}
        spread = float(max(np.max(one["sd"]) for one in found.values()))
        for what, seen, top in (("mean", ("truth", case.truth, white), white), ("sd", ("data", case.y, white), spread)):
            shown.append([seen, *((f"{who}: {what}", np.array(one[what]), top) for who, one in found.items())])
    panels("image_nuts", shown)


def page(results: dict[str, Any]) -> list[str]:
    """Return the parts of the page."""
    return [
        header("Total variation and inpainting", NAME, "nutpie"),
        INTRODUCTION,
        TOTAL_VARIATION,
        table(results, ("gaussian", "rectified", "softplus", "tau")),
        verdicts(results, {"gaussian": "EP", "rectified": "EP", "softplus": "EP", "tau": "EP, integrated"}),
        HYPER,
        hyper_table(results, "tau", "tau"),
        "![Means and standard deviations by NUTS, EP and the double loop](image_nuts.png)\n",
        INPAINTING,
        table(results, ("half", "quarter", "scales", "differences"), "of missing pixels"),
        verdicts(results, {"differences": "EP"}),
        SCALES,
        hyper_table(results, "scales", "b"),
        *crops_part(results),
        CHAINS_TEXT,
        chains_table(results),
    ]


INTRODUCTION = f"""Crops are 16 x 16 pixels of a grey astronaut (scikit-image's, 256 x 256, from 0 to 1).

- NUTS: nutpie, {CHAINS} chains, each from its own point. It samples the same log density as the model block's, up to a
  constant (checked at four points), with sparse matrices in place of operators so that Numba compiles all of it.
- Error of means: in NUTS's standard deviations, median (worst) over pixels.
- Sd ratio: the engine's over NUTS's, median, and range of nine tenths of the pixels.
- Width ratio: the same of 90% intervals, median. NUTS's own intervals are quantiles.
- Inside: the share of NUTS's draws, and of true pixels, in the 90% intervals.
- Seconds: of NUTS without its compilation, of engines with it, on a machine with other work.
"""
TOTAL_VARIATION = f"""## Total variation

The astronaut's eye, blurred by (1/4, 1/2, 1/4) along rows and columns.

- Data: Gaussian noise of sd {SD}, or counts with {U_MAX} photons at the brightest pixel under both links. The double
  loop has no bound for the rectified one.
- Prior: Laplace potentials of scale 1 / tau. Tau is {TAU:g} for a picture from 0 to 1, near the rank over the sum of
  the true absolute differences. Learned, it has a half-normal prior of scale 50.
- "EP" has tau at its mode, with first-order corrections. "EP, integrated" is `hyper="integrate"`.
"""
HYPER = """\
The double loop's small standard deviations under the softplus link are due to its bound. It has one precision
whatever the predictor: the greatest that the likelihood has anywhere.

Moments of tau by NUTS, and what the engines report. The double loop's is the value of greatest bound.
"""
INPAINTING = f"""## Inpainting: whose overconfidence?

On [a larger picture](image_scaling.md), with this prior and learned scales, the double loop's 90% intervals contain
too few true pixels. Is that the model's fault, or the engine's?

- Prior: Student-t potentials (nu {NU:g}) on the coefficients of db2 wavelets, {LEVELS} levels, the scaling
  coefficients flat.
- Data: half of the eye's pixels with noise of sd {HALF_SD:g}, or a quarter with noise of variance
  {QUARTER_SD**2:.0e}.
- Known scales are those of greatest likelihood for the true coefficients of all crops of this page. So is the scale
  of the Laplace potentials on second differences (`Hessian2D`).
- Learned scales have half-normal priors of scale one. The double loop sets them to the values of greatest bound.
- EP that did not converge shows what it had when it stalled.
"""
SCALES = """Learned scales, finest level first:
"""
CROPS_TEXT = f"""\
The same with a quarter of the pixels seen on {CROPS} other crops, at random places: means over crops, with their
standard errors. What NUTS lacks is due to the model. What the double loop lacks beside it is due to its bound and,
with scales learned, to holding them at one value.
"""
CHAINS_TEXT = """## The chains

R-hat and ESS are those of the worst pixel or hyperparameter, of all crops together. The error of means is 1 /
sqrt(ESS), median over pixels.
"""


def measure(store: Store, name: str) -> None:
    """Sample a case and fit it with every engine, as far as that is not done."""
    nuts = store.get(f"{name}/NUTS", lambda: measure_nuts(name))
    for engine in CHECKS[name].engines if nuts else ():
        store.get(f"{name}/{engine}", lambda e=engine: measure_fit(name, e, nuts))


def main() -> None:
    """Measure and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="*", default=list(CHECKS), choices=CHECKS)
    parser.add_argument("--quick", action="store_true", help="the densities of all cases alone; nothing is written")
    options = parser.parse_args()
    if options.quick:
        for name in options.cases:
            same_density(CHECKS[name].build(), CHECKS[name].build(plain=True))
            print(f"{name}: one density")
        return
    store = Store("image_nuts")
    for name in options.cases:
        measure(store, name)
    picture(store.rows)
    print(write_page("image_nuts", page(store.rows)))


if __name__ == "__main__":
    main()
