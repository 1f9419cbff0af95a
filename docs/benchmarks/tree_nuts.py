"""EP and the double loop on wavelet trees against long NUTS runs, the states summed out, on 8 x 8 pixels of a picture.

    python -m docs.benchmarks.tree_nuts [--quick] [--cases ...] [--page]

Needs scikit-image's picture of an astronaut. Rows that are done are kept in ``docs/benchmarks/rows``. Writes
docs/benchmarks/image_nuts.md.
"""

import argparse
import time
import warnings
from typing import Any, NamedTuple

import arviz as az
import numpy as np
import pymc as pm

import pymc_ep as pmep
from docs.benchmarks._common import header, markdown_table, write_page
from docs.benchmarks._crops import EYE, U_MAX, crop
from docs.benchmarks._images import Store, shortfall

NAME = "docs/benchmarks/tree_nuts.py"
SIDE, LEVELS = 8, 2
LOW, HIGH = np.array([0.03, 0.08]), np.array([0.15, 0.5])
"""Scales for a picture from 0 to 1, finest level first."""
TRANSITION = {"root": 0.4, "child": [[0.1, 0.7]]}
SD, HALF_SD = 0.1, 0.03
CHAINS, TUNE = 4, 1000
MEAN_ERROR, SD_ERROR = 0.1, 0.05
"""Aims for EP."""
PAIRS = {"Normal": pm.Normal.dist, "Laplace": pm.Laplace.dist}


class Case(NamedTuple):
    """What is observed, under which potentials, what is fitted, and which package's NUTS stands beside it."""

    data: str
    pair: str
    engines: tuple[str, ...]
    sampler: str = "pymc"

    @property
    def title(self) -> str:
        """Of its row."""
        return f"{self.pair} states, {DATA[self.data]}"


DATA = {
    "noise": f"every pixel with noise {SD}",
    "counts": f"every pixel a rectified count, {U_MAX} at the brightest",
    "half": f"half of the pixels with noise {HALF_SD}",
}
CASES = {
    "noise": Case("noise", "Normal", ("ep", "dsb")),
    "counts": Case("counts", "Normal", ("ep",)),
    "half": Case("half", "Laplace", ("dsb",), "nutpie"),
}


def build(case: Case) -> pm.Model:
    """Build the model; NUTS samples it as it is."""
    rng = np.random.default_rng(0)
    truth = crop(*EYE)[4 : 4 + SIDE, 4 : 4 + SIDE]
    peak = U_MAX / truth.max() if case.data == "counts" else 1.0
    potential = PAIRS[case.pair]
    with pm.Model() as model:
        states = {"low": potential(0, LOW * peak), "high": potential(0, HIGH * peak)}
        u = pmep.WaveletTree("u", shape=(SIDE, SIDE), levels=LEVELS, transition=TRANSITION, **states)
        if case.data == "noise":
            pm.Normal("y", u, SD, observed=truth + rng.normal(0, SD, truth.shape))
        elif case.data == "counts":
            pmep.RectifiedPoisson("y", u, observed=rng.poisson(truth * peak))
        else:
            seen = np.zeros(truth.size, dtype=bool)
            seen[rng.choice(truth.size, truth.size // 2, replace=False)] = True
            seen = seen.reshape(truth.shape)
            pm.Normal("y", u[seen], HALF_SD, observed=(truth + rng.normal(0, HALF_SD, truth.shape))[seen])
    return model


def measure_nuts(case: Case, draws: int) -> dict[str, Any]:
    """Sample with PyMC, or by it with nutpie where trajectories are hundreds of steps long."""
    with build(case) as model, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        how: dict[str, Any] = {"tune": TUNE, "chains": CHAINS, "target_accept": 0.9, "random_seed": 1}
        if case.sampler == "pymc":
            start = {"u": np.full((SIDE, SIDE), np.mean(model.rvs_to_values[model["y"]].eval()))}
            how |= {"initvals": start, "cores": 1}
        else:
            how |= {"nuts_sampler": case.sampler, "cores": 2}
        began = time.perf_counter()
        chains = pm.sample(draws, progressbar=False, **how)
    posterior = chains["posterior"]
    found = np.asarray(posterior["u"]).reshape(-1, SIDE, SIDE)
    return {
        "mean": found.mean(axis=0).tolist(),
        "sd": found.std(axis=0).tolist(),
        "r_hat": float(az.rhat(posterior)["u"].max()),
        "bulk": float(az.ess(posterior)["u"].min()),
        "divergences": int(chains["sample_stats"]["diverging"].sum()),
        "draws": draws,
        "seconds": time.perf_counter() - began,
    }


def measure_fit(case: Case, engine: str, nuts: dict[str, Any]) -> dict[str, Any]:
    """Fit and compare with NUTS."""
    with build(case), warnings.catch_warnings():
        # The page says what did not converge.
        warnings.simplefilter("ignore", pmep.ConvergenceWarning)
        began = time.perf_counter()
        idata = pmep.fit(engine, draws=0, progressbar=False)
        seconds = time.perf_counter() - began
    error = np.abs(np.asarray(idata["posterior_mean"]["u"]) - nuts["mean"]) / nuts["sd"]
    ratio = np.asarray(idata["posterior_sd"]["u"]) / nuts["sd"]
    return {
        "error": [float(np.median(error)), float(error.max())],
        "ratio": np.quantile(ratio, [0.05, 0.5, 0.95]).tolist(),
        "log_evidence": float(idata["fit"]["log_evidence"]),
        "converged": bool(idata["fit"]["converged"]),
        "seconds": seconds,
    }


def page(rows: dict[str, Any]) -> list[str]:
    """Return the parts of the page."""
    lines, chains, verdicts = [], [], ""
    for name, case in CASES.items():
        if (nuts := rows.get(f"{name}/NUTS")) is None:
            continue
        mixing = f"{nuts['r_hat']:.3f}", f"{nuts['bulk']:.0f}", str(nuts["divergences"]), f"{nuts['seconds']:.3g}"
        chains.append([case.title, case.sampler, f"{CHAINS} x {nuts['draws']}", *mixing])
        for engine in case.engines:
            if (one := rows.get(f"{name}/{engine}")) is None:
                continue
            low, middle, high = one["ratio"]
            lines.append(
                [
                    case.title if engine == case.engines[0] else "",
                    engine if one["converged"] else f"{engine}, not converged",
                    f"{one['error'][0]:.3f} ({one['error'][1]:.3f})",
                    f"{middle:.3f}",
                    f"{low:.3f} to {high:.3f}",
                    f"{one['log_evidence']:.3f}",
                    f"{one['seconds']:.3g}",
                ]
            )
            if engine == "ep":
                what = f"EP, {case.title}"
                verdicts += f"- {shortfall(f'{what}: error of means in sd, median', one['error'][0], MEAN_ERROR)}\n"
                off = abs(middle - 1)
                verdicts += f"- {shortfall(f'{what}: distance of sd ratio from one, median', off, SD_ERROR)}\n"
    head = ["model", "", "error of means, sd", "sd ratio", "5 to 95%", "log evidence", "seconds"]
    return [
        header("Wavelet trees", NAME),
        INTRODUCTION,
        markdown_table(head, lines),
        verdicts,
        "The chains:\n",
        markdown_table(
            ["model", "NUTS of", "draws", "R-hat, worst", "bulk ESS, least", "divergences", "seconds"], chains
        ),
    ]


INTRODUCTION = f"""\
The crop is {SIDE} x {SIDE} pixels at the eye of the same astronaut. The prior is a `WaveletTree` of {LEVELS} levels
on db2 with given scales and probabilities.

- NUTS samples the model block as it stands: the log density has the states summed out.
- Error of means: in NUTS's standard deviations, median (worst) over pixels.
- Sd ratio: the engine's over NUTS's, median, and range of nine tenths of the pixels.
- Log evidence: EP's is exact with Gaussian noise on every pixel, and an approximation else. The double loop's is a
  lower bound.
"""


def main() -> None:
    """Measure and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a sixth of the draws, into a store of their own, no page")
    parser.add_argument("--page", action="store_true", help="write the page from the rows there are")
    parser.add_argument("--cases", nargs="*", default=list(CASES), choices=list(CASES), metavar="CASE")
    options = parser.parse_args()
    name = "tree_nuts_quick" if options.quick else "tree_nuts"
    store = Store(name)
    for case_name in () if options.page else options.cases:
        case = CASES[case_name]
        draws = 250 if options.quick else 1500
        nuts = store.get(f"{case_name}/NUTS", lambda case=case, draws=draws: measure_nuts(case, draws))
        for engine in case.engines if nuts else ():
            store.get(f"{case_name}/{engine}", lambda c=case, e=engine, n=nuts: measure_fit(c, e, n))
    if not options.quick:
        print(write_page(name, page(store.rows)))


if __name__ == "__main__":
    main()
