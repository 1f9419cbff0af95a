"""Deblurring of photon counts with total variation: EP, Gaussian and Poisson, and the double loop.

    python -m docs.benchmarks.deblurring [--quick] [--cases astronaut head cameraman64 ...] [--draws 5]

The table of Ko and Seeger (2015) on pictures of known making, with total variation, Anscombe's transform and
Richardson-Lucy beside. Needs the folders ``images256`` and ``faces32`` under ``PYMC_EP_DATA`` and scikit-image. Rows
that are done are kept in ``docs/benchmarks/rows``. Writes docs/benchmarks/deblurring.md and .png.
"""

import argparse
import itertools
import time
from typing import Any

import numpy as np
import pymc as pm

import pymc_ep as pmep
from docs.benchmarks._common import hyper_modes, write_page
from docs.benchmarks._deblurring import (
    BOUND_AT_EP,
    BOUNDS,
    CASES,
    CUT,
    DRAWS,
    GAUSSIAN,
    KNOWN,
    LEARNED_BOUND,
    ORACLE,
    ORACLE_FACTORS,
    PEERS,
    POISSON,
    U_MAX,
    Case,
    measured,
    page,
)
from docs.benchmarks._images import (
    BLUR,
    Reconstruction,
    Store,
    anscombe,
    coverage,
    from_anscombe,
    intensity,
    panels,
    photons,
    psnr,
    relative_error,
    total_variation,
)

NAME = "docs/benchmarks/deblurring.py"
Hyper = dict[str, float] | None


# Models


def kind(model: str) -> type:
    """Return the type of the data: counts are integers."""
    return int if model in (POISSON, CUT) else float


def build(model: str, size: int) -> pm.Model:
    """Build one of the models; the counts are data, so that all of a size share what was compiled."""
    shape = (size, size)
    blurred = pmep.operators.Convolution2D(shape, BLUR)
    with pm.Model() as built:
        counts = pm.Data("counts", np.ones(shape, dtype=kind(model)))
        tau = pm.HalfNormal("tau", 5)
        u = pmep.SparseField(
            "u", operator=pmep.operators.Gradient2D(shape), potential=pm.Laplace.dist(0, 1 / tau), shape=shape
        )
        f = pmep.apply_operator(blurred, u)
        if model in (POISSON, CUT):
            pmep.RectifiedPoisson("y", f, zero_mass=model == POISSON, observed=counts)
        elif model == "bound, weighted":
            pm.Normal("y", f, pm.math.sqrt(pm.math.maximum(counts, 1)), observed=counts)
        elif model == "bound, Anscombe":
            pm.Normal("y", f, 1.0, observed=counts)
        elif model in (KNOWN, "bound, sd of mean"):
            pm.Normal("y", f, pm.math.sqrt(counts.mean()), observed=counts)
        else:
            pm.Normal("y", f, pm.HalfNormal("sigma", 5), observed=counts)
    return built


class Fitter:
    """Models by likelihood and size, built once; the compiled functions stay with them."""

    def __init__(self) -> None:
        self.models: dict[tuple[str, int], pm.Model] = {}

    def fit(self, model: str, counts: np.ndarray, start: Hyper = None, hyper: str = "optimize") -> tuple[Any, float]:
        """Fit and return the container and the seconds, compilation included."""
        key = (model, len(counts))
        if key not in self.models:
            self.models[key] = build(*key)
        options: dict[str, Any] = {"method": "ep"}
        if model in BOUNDS:
            options = {"method": "dsb", "variance": "exact"} | ({"outer": 200} if model == LEARNED_BOUND else {})
        data = anscombe(counts) if model == "bound, Anscombe" else counts
        with self.models[key]:
            pm.set_data({"counts": data.astype(kind(model))})
            began = time.perf_counter()
            found = pmep.fit(draws=0, hyper=hyper, start=start, random_seed=1, progressbar=False, **options)
        return found, time.perf_counter() - began


FITTER = Fitter()


# One row: one picture, one u_max, one draw of the noise, one model


def measure(
    case: Case, u_max: float, draw: int, model: str, start: Hyper = None, hyper: str = "optimize"
) -> dict[str, Any]:
    """Fit one model to one draw."""
    shot = photons(case.image, case.size, u_max, draw)
    found, seconds = FITTER.fit(model, shot.counts, start, hyper)
    fit = found["fit"]
    mean, sd = (np.asarray(found[f"posterior_{what}"]["u"]) for what in ("mean", "sd"))
    estimate, inside = summary(model, mean, sd, shot.truth)
    return {
        "error": relative_error(estimate, shot.truth),
        "mean_error": relative_error(mean, shot.truth),
        "psnr": psnr(estimate, shot.truth, u_max),
        "coverage": inside,
        "sd": float(np.median(sd)),
        "hyper": start if hyper == "fixed" else hyper_modes(fit),
        "log_evidence": float(fit["log_evidence"]) if "log_evidence" in fit else None,
        "seconds": seconds,
        "run_seconds": float(fit.attrs["run_time"]),
        "evaluations": int(fit.sizes.get("hyper_iteration", 1)),
        "converged": bool(fit["converged"]),
        "status": str(fit.attrs["status"]),
    }


def summary(model: str, mean: np.ndarray, sd: np.ndarray, truth: np.ndarray) -> tuple[np.ndarray, float]:
    """Return the estimate and the coverage of 90% intervals."""
    if model == "bound, Anscombe":
        # The blur hardly mixes pixels: the field models the transformed picture.
        return from_anscombe(mean), coverage(mean, sd, anscombe(truth))
    return intensity(mean, sd), coverage(mean, sd, truth)


def measure_peers(case: Case, u_max: float, draw: int) -> dict[str, Any]:
    """Return errors of the data and of the peers at their best settings."""
    shot = photons(case.image, case.size, u_max, draw)
    began = time.perf_counter()
    found: dict[str, Reconstruction] = {name: peer(shot.counts, shot.truth) for name, peer in PEERS.items()}
    return {
        "data": relative_error(shot.counts, shot.truth),
        **{name: one.error for name, one in found.items()},
        "settings": {name: one.setting for name, one in found.items()},
        "seconds": time.perf_counter() - began,
    }


def measure_oracle(case: Case, u_max: float, draw: int, tau: float) -> dict[str, Any]:
    """Fit the Poisson likelihood at multiples of a tau, and keep the one that the truth likes best."""
    rows = [measure(case, u_max, draw, POISSON, {"tau": factor * tau}, "fixed") for factor in ORACLE_FACTORS]
    return min(rows, key=lambda row: row["error"])


def start_of(store: Store, name: str, u_max: float, draw: int, model: str) -> Hyper:
    """Return what the first draw found; for the first draw the prior, or what that of a like case found."""
    row = store.rows.get(f"{name if draw else CASES[name].like}/{u_max}/0/{model}")
    return row["hyper"] if row else None


def measure_all(store: Store, cases: list[str], u_maxes: list[int], draws: int) -> None:
    """Measure what is not there yet."""
    for draw, name, u_max in itertools.product(range(draws), cases, u_maxes):
        case = CASES[name]
        fixed = case.fixed
        if draw and fixed:
            continue
        at = (case, u_max, draw)
        store.get(f"{name}/{u_max}/{draw}/peers", lambda at=at: measure_peers(*at))
        # The slowest last: evidence has a long valley between tau and a learned sd.
        for model in (POISSON, KNOWN, CUT, *BOUNDS, GAUSSIAN):
            start = start_of(store, name, u_max, draw, model)
            if (start is not None or not fixed) and (model != LEARNED_BOUND or (draw == 0 and case.size <= 32)):
                how = (*at, model, start, "fixed" if fixed else "optimize")
                store.get(f"{name}/{u_max}/{draw}/{model}", lambda how=how: measure(*how))
        found = store.rows.get(f"{name}/{u_max}/{draw}/{GAUSSIAN}")
        if found and draw == 0 and case.size <= 32:
            how = (*at, LEARNED_BOUND, found["hyper"], "fixed")
            store.get(f"{name}/{u_max}/0/{BOUND_AT_EP}", lambda how=how: measure(*how))
        best = store.rows.get(f"{name}/{u_max}/{draw}/{POISSON}")
        if best and draw == 0 and not fixed:
            tau = best["hyper"]["tau"]
            store.get(f"{name}/{u_max}/0/{ORACLE}", lambda at=at, tau=tau: measure_oracle(*at, tau))


# The picture, and all of it


def picture(store: Store) -> None:
    """Draw the astronaut's face at the middle level."""
    case, u_max = CASES["astronaut"], 20
    shot = photons(case.image, case.size, u_max, 0)
    row = store.rows[f"astronaut/{u_max}/0/{POISSON}"]
    found, _ = FITTER.fit(POISSON, shot.counts, row["hyper"], "fixed")
    mean, sd = (np.asarray(found[f"posterior_{what}"]["u"]) for what in ("mean", "sd"))
    tv = total_variation(shot.counts, shot.truth)
    panels(
        "deblurring",
        [
            [
                ("truth", shot.truth, u_max),
                ("photons", shot.counts, u_max),
                ("EP, Poisson: mean", intensity(mean, sd), u_max),
                ("EP, Poisson: sd", sd, None),
                ("TV, oracle weight", tv.estimate, u_max),
            ]
        ],
    )


def main() -> None:
    """Measure and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="*", default=list(CASES), choices=list(CASES))
    parser.add_argument("--draws", type=int, default=DRAWS, choices=range(1, DRAWS + 1), help="of the noise")
    parser.add_argument("--levels", nargs="*", type=int, default=list(U_MAX), choices=U_MAX)
    parser.add_argument("--quick", action="store_true", help="the astronaut, one draw, one level; no page")
    options = parser.parse_args()
    store = Store("deblurring")
    if options.quick:
        options.cases, options.draws, options.levels = ["astronaut"], 1, [20]
    measure_all(store, options.cases, options.levels, options.draws)
    if options.quick:
        return
    if ("astronaut", 20) in measured(store, POISSON):
        picture(store)
    print(write_page("deblurring", page(store, NAME)))


if __name__ == "__main__":
    main()
