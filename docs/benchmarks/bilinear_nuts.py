"""Variational Gaussians and shrinkage of singular values against NUTS, on small matrices of counts and bits.

    python -m docs.benchmarks.bilinear_nuts [--page]

Needs nutpie, and the folders ``melbourne-pedestrians`` and ``hetrec2011-lastfm-2k`` under ``PYMC_EP_DATA``. Rows that
are done are kept in ``docs/benchmarks/rows``. Writes docs/benchmarks/bilinear_nuts.md.
"""

import argparse
import time
import warnings
from typing import Any, NamedTuple

import arviz as az
import numpy as np
import pymc as pm
import xarray as xr
from scipy.special import logsumexp

import pymc_ep as pmep
from docs.benchmarks._cells import Observed, log_likelihood, model_of
from docs.benchmarks._common import header, markdown_table, write_page
from docs.benchmarks._images import Store
from pymc_ep.datasets import load_lastfm, load_melbourne_pedestrians

NAME = "docs/benchmarks/bilinear_nuts.py"
CASES = ("Melbourne, counts", "LastFM, bits")
SHAPE, FACTORS = (60, 20), 3
SCALES = {"Melbourne, counts": 1.5, "LastFM, bits": 1.0}
"""Prior standard deviations of both matrices."""
CHAINS, TUNE, DRAWS = 4, 1000, 1000
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "vg, independent": ("vg", {}),
    "vg, covariances": ("vg", {"covariance": "full"}),
    "vbmf": ("vbmf", {}),
    "mode": ("vg", {"estimate": ["V", "U"]}),
}


class Case(NamedTuple):
    """A model, whether of bits, and the cells left out."""

    model: pm.Model
    bits: bool
    held_out: Observed


def values_of(name: str) -> np.ndarray:
    """Return a matrix of `SHAPE`.

    Random hours at the first sensors, of floor(sqrt y / 3 + 1/2) people; or whether random listeners, of those who
    listened to five or more of the artists with most listeners, listened to each of these.
    """
    rng = np.random.default_rng(0)
    if name.startswith("Melbourne"):
        counts = load_melbourne_pedestrians().to_numpy()[:, : SHAPE[1]]
        counts = counts[np.isfinite(counts).all(axis=1)]
        return np.floor(np.sqrt(counts[rng.choice(len(counts), SHAPE[0], replace=False)]) / 3 + 0.5)
    table = load_lastfm()
    table = table[table["artist"].isin(table["artist"].value_counts().index[: SHAPE[1]])]
    heard = table.pivot(index="user", columns="artist", values="plays").notna().to_numpy()
    heard = heard[heard.sum(axis=1) >= 5]
    return heard[rng.choice(len(heard), SHAPE[0], replace=False)].astype(float)


def case_of(name: str) -> Case:
    """Return a case, half the cells of which are left out."""
    values, bits, scale = values_of(name), name.endswith("bits"), SCALES[name]
    order = np.random.default_rng(1).permutation(values.size)
    rows, cols = np.unravel_index(order, values.shape)
    cells, half = Observed(rows, cols, values[rows, cols].astype(int)), values.size // 2
    learned, held_out = (Observed(*(part[here] for part in cells)) for here in (slice(half), slice(half, None)))
    return Case(model_of(SHAPE, learned, bits, scale, FACTORS), bits, held_out)


def predictors(posterior: Any) -> np.ndarray:
    """Return draws of the predictors of all cells, (chains, draws, I, J)."""
    v, u = (np.asarray(posterior[one]) for one in "VU")
    return np.einsum("csid,csjd->csij", v, u)


def densities(f: np.ndarray, cells: Observed, bits: bool) -> np.ndarray:
    """Return log predictive densities, (n,): means over draws of the predictors, (s, I, J)."""
    log_density = log_likelihood(cells.y, f[:, cells.rows, cells.cols], bits)
    return logsumexp(log_density, axis=0) - np.log(len(f))


def sampled(name: str) -> dict[str, Any]:
    """Sample by NUTS, and return what the chains are worth."""
    import nutpie

    case = case_of(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compiled = nutpie.compile_pymc_model(case.model)
        began = time.perf_counter()
        chains = nutpie.sample(compiled, draws=DRAWS, tune=TUNE, chains=CHAINS, cores=1, seed=1, progress_bar=False)
    seconds = time.perf_counter() - began
    f = predictors(chains["posterior"])
    of_f = xr.Dataset({"f": (("chain", "draw", "i", "j"), f)})
    flat = f.reshape(-1, *SHAPE)
    return {
        "mean": flat.mean(axis=0).tolist(),
        "sd": flat.std(axis=0).tolist(),
        "nats": -float(densities(flat, case.held_out, case.bits).mean()),
        "r_hat": float(az.rhat(of_f)["f"].max()),
        "bulk": float(az.ess(of_f)["f"].min()),
        "divergences": int(chains["sample_stats"]["diverging"].sum()),
        "seconds": seconds,
    }


def fitted(name: str, method: str, nuts: dict[str, Any]) -> dict[str, Any]:
    """Fit and compare with NUTS; the second fit is timed, as kernels are compiled then."""
    case, (engine, options) = case_of(name), METHODS[method]
    for _ in range(2):
        with warnings.catch_warnings():
            # The page says what did not converge.
            warnings.simplefilter("ignore", pmep.ConvergenceWarning)
            began = time.perf_counter()
            idata = pmep.fit(
                engine, model=case.model, hyper="fixed", draws=DRAWS, chains=CHAINS, progressbar=False, **options
            )
            seconds = time.perf_counter() - began
    f = predictors(idata["posterior"]).reshape(-1, *SHAPE)
    error = np.abs(f.mean(axis=0) - nuts["mean"]) / nuts["sd"]
    cells = {"rows": case.held_out.rows, "cols": case.held_out.cols, "observed": case.held_out.y}
    return {
        "nats": -float(pmep.log_predictive(idata, case.model, {"y": cells})["y"].mean()),
        "error": np.quantile(error, [0.5, 0.95]).tolist(),
        "ratio": np.quantile(f.std(axis=0) / nuts["sd"], [0.05, 0.5, 0.95]).tolist(),
        "seconds": seconds,
        "log_evidence": float(idata["fit"]["log_evidence"]),
        "converged": bool(idata["fit"]["converged"]),
        "status": str(idata["fit"].attrs["status"]),
    }


def page(store: Store) -> list[str]:
    """Return the parts of the page."""
    parts = [header("Bilinear models against NUTS", NAME, "nutpie", "numba"), INTRODUCTION]
    for name in CASES:
        nuts = store.rows[f"{name}/NUTS"]
        lines = [["NUTS", f"{nuts['nats']:.4f}", "-", "-", "-", f"{nuts['seconds']:.3g}", ""]]
        for method in METHODS:
            row = store.rows[f"{name}/{method}"]
            low, middle, high = row["ratio"]
            lines.append(
                [
                    method,
                    f"{row['nats']:.4f}",
                    " / ".join(f"{e:.2f}" for e in row["error"]),
                    f"{middle:.2f} ({low:.2f} to {high:.2f})",
                    f"{row['log_evidence']:.1f}",
                    f"{row['seconds']:.3g}",
                    f"{nuts['seconds'] / row['seconds']:.0f}",
                ]
            )
        chains = (
            f"Prior standard deviations of {SCALES[name]:g}. NUTS: {CHAINS} chains of {DRAWS} draws after {TUNE}, "
            f"largest R-hat of a predictor {nuts['r_hat']:.3f}, least effective size {nuts['bulk']:.0f}, "
            f"{nuts['divergences']} divergences.\n"
        )
        parts += [f"## {name}\n", chains, markdown_table(HEAD, lines)]
    return [*parts, store.measured()]


HEAD = [
    "method",
    "nats held out",
    "error of means, median / 95%",
    "sd over NUTS's, median (5 to 95%)",
    "bound",
    "seconds",
    "times faster",
]
INTRODUCTION = f"""\
Matrices are {SHAPE[0]} x {SHAPE[1]}, with {FACTORS} factors and fixed scales. Half the cells are left out. Entries
are bits, or counts with rates log(1 + e^f): `vbmf` has no bound for e^f.

- Nats: mean negative log predictive probability of what is left out.
- Errors: those of the means of the predictors of all cells, in NUTS's standard deviations.
- Bound: of the log evidence. For the mode it is the log density.
- Seconds: a second fit in the process, with {DRAWS * CHAINS} draws.
"""


def main() -> None:
    """Measure and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--page", action="store_true", help="write the page from the rows that there are")
    options = parser.parse_args()
    store = Store("bilinear_nuts")
    for name in () if options.page else CASES:
        nuts = store.get(f"{name}/NUTS", lambda name=name: sampled(name))
        for method in METHODS:
            store.get(f"{name}/{method}", lambda how=(name, method, nuts): fitted(*how))
    print(write_page("bilinear_nuts", page(store)))


if __name__ == "__main__":
    main()
