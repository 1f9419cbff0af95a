"""Long NUTS runs of all public models, kept as summaries: ``python -m docs.benchmarks.public.references``.

    [--models NAME ...] [--limit 400] [--again] [--times]

Each model runs in a process of its own. A long run is the reference: smaller steps, a mass matrix of low rank, and
non-centred effects where those sample better. Posteriors of two unknowns with heavy tails come from quadrature.
``--times`` measures nutpie's defaults instead, as a user would run them, with empty compile caches: for an idle
machine. A model is stored as soon as it is done, one line each, and a second call runs only the missing ones. The
folders of data are named by the environment variables in `FOLDERS`.
"""

import argparse
import json
import logging
import time
import warnings
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import arviz as az
import numpy as np
import pymc as pm
import xarray as xr

from docs.benchmarks._common import PAGES, prepare_compilers, result_apart
from docs.benchmarks.public.base import MODELS
from docs.benchmarks.public.noncentred import noncentred_twin
from docs.benchmarks.public.quadrature import quadrature_posterior
from docs.benchmarks.public.tails import tail_summaries
from pymc_ep.compat import group, has_group, make_container

__all__ = ["QUANTILES", "REFERENCES", "likelihood_summary", "load_references", "summaries"]

REFERENCES = PAGES / "rows" / "agreement_nuts.json"
CHAINS, TUNE, SHORT = 4, 1000, 1000
"""Chains, tuning steps and draws of the run for the times."""
PILOT, LONG, MOST = 500, 2000, 8000
"""Draws of each chain that tell how many are needed; of the reference at least, and at most."""
TARGET_ESS = 2000
LOW_RANK = 100
"""Unconstrained dimensions up to which the mass matrix is adapted with low rank."""
POOR_ESS, HOPELESS_ESS = 200, 3
"""Least effective sample size of the pilot, less where it diverges, below which the non-centred twin is tried; below
which no reference is."""
QUANTILES = (0.05, 0.5, 0.95)
ESS: tuple[dict[str, Any], ...] = ({"method": "bulk"}, {"method": "tail", "prob": (0.05, 0.95)})
"""Of these two effective sample sizes the second is the lesser of those of both quantiles."""
KEPT = 300
"""Elements of one variable that are kept; of a larger one evenly spaced elements are."""
LIKELIHOOD_DRAWS = 2000


def summaries(posterior: xr.Dataset, names: list[str]) -> dict[str, dict[str, Any]]:
    """Return by variable its shape, the kept elements and their means, sds, quantiles, bulk and tail ESS."""
    found = {}
    for name in names:
        values = posterior[name].values
        flat = values.reshape(*values.shape[:2], -1)
        kept = np.unique(np.linspace(0, flat.shape[2] - 1, min(KEPT, flat.shape[2])).astype(int))
        # A constant, such as the first entry of a Cholesky factor of a correlation, has nothing to compare.
        kept = kept[np.ptp(flat[..., kept], axis=(0, 1)) > 0]
        if not len(kept):
            continue
        part = flat[..., kept]
        ess = [[float(az.ess(part[..., k], **kind)) for k in range(len(kept))] for kind in ESS]
        rows = [part.mean(axis=(0, 1)), part.std(axis=(0, 1), ddof=1), *np.quantile(part, QUANTILES, axis=(0, 1)), *ess]
        found[name] = {
            "shape": list(values.shape[2:]),
            "kept": kept.tolist() if len(kept) < flat.shape[2] else "all",
            "values": [[_rounded(v) for v in row] for row in rows],
        }
    return found


def _rounded(value: float) -> float:
    return float(f"{value:.5g}")


def likelihood_summary(totals: np.ndarray) -> list[float]:
    """Return mean, sd and 1% quantile of a total log likelihood over the draws."""
    return [_rounded(v) for v in (totals.mean(), totals.std(ddof=1), np.quantile(totals, 0.01))]


def _total_log_likelihood(model: pm.Model, posterior: xr.Dataset) -> np.ndarray:
    # PyMC computes no log likelihood of a model whose author chose initial values.
    model.rvs_to_initial_values.update(dict.fromkeys(model.rvs_to_initial_values))
    step = max(1, posterior.sizes["draw"] * CHAINS // LIKELIHOOD_DRAWS)
    with model:
        terms = pm.compute_log_likelihood(
            make_container({"posterior": posterior.isel(draw=slice(None, None, step))}),
            extend_inferencedata=False,
            progressbar=False,
        )
    return sum(terms[n].sum([d for d in terms[n].dims if d not in ("chain", "draw")]) for n in terms.data_vars).values


class Trace(NamedTuple):
    """What nutpie drew: the posterior, None without any, and its statistics while tuning and after."""

    posterior: xr.Dataset | None
    tuning: xr.Dataset
    stats: xr.Dataset

    def has(self, least: int) -> bool:
        """Whether each chain has so many draws."""
        return self.posterior is not None and self.posterior.sizes["draw"] >= least


def _sampled(compiled: Any, draws: int, limit: float, seed: int, **options: Any) -> tuple[Trace, float, float]:
    """Return trace, wall seconds and CPU seconds of nutpie, stopped at the limit; chains cut to one length."""
    import nutpie

    began, cpu = time.perf_counter(), time.process_time()
    sampler = nutpie.sample(
        compiled, draws=draws, tune=TUNE, chains=CHAINS, seed=seed, progress_bar=False, blocking=False, **options
    )
    try:
        trace = sampler.wait(timeout=limit)
    except TimeoutError:
        trace = sampler.abort()
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    if not has_group(trace, "posterior"):
        return Trace(None, xr.Dataset(), xr.Dataset()), seconds, cpu
    stats = (group(trace, name) for name in ("warmup_sample_stats", "sample_stats"))
    return Trace(group(trace, "posterior").dropna("draw"), *stats), seconds, cpu


def _quality(trace: Trace, names: list[str]) -> dict[str, Any]:
    assert trace.posterior is not None, "the caller has looked"
    ess, r_hat = az.ess(trace.posterior, var_names=names), az.rhat(trace.posterior, var_names=names)
    return {
        "draws": int(trace.posterior.sizes["draw"] * trace.posterior.sizes["chain"]),
        "least_ess": round(min(float(ess[n].min()) for n in names)),
        "r_hat": round(max(float(r_hat[n].max()) for n in names), 4),
        "divergences": int(trace.stats["diverging"].sum()),
    }


def _seconds(value: float) -> float:
    return float(f"{value:.3g}")


def measure_times(name: str, limit: float) -> dict[str, Any]:
    """Compile and sample as a user would."""
    import nutpie

    model = MODELS[name].build()
    names = [v.name for v in model.free_RVs]
    prepare_compilers()
    began = time.perf_counter()
    compiled = nutpie.compile_pymc_model(model, var_names=names)
    compile_time = time.perf_counter() - began
    trace, seconds, cpu = _sampled(compiled, SHORT, limit, seed=1)
    found = {"compile": _seconds(compile_time), "seconds": _seconds(seconds), "cpu": _seconds(cpu)}
    if not trace.has(50):
        return {"nutpie": found | {"failed": f"fewer than 50 draws in {limit:g} s"}}
    steps, tuning = (float(stats["n_steps"].sum()) for stats in (trace.stats, trace.tuning))
    return {"nutpie": found | {"tune": _seconds(seconds * tuning / (tuning + steps))} | _quality(trace, names)}


def _reference(model: pm.Model, compiled: Any, draws: int, limit: float) -> tuple[xr.Dataset | None, dict[str, Any]]:
    """Sample with small steps, again with smaller ones where it diverges or falls short."""
    quality: dict[str, Any] = {}
    names = [v.name for v in model.free_RVs]
    for accept in (0.95, 0.99):
        trace, seconds, _ = _sampled(
            compiled,
            draws,
            limit,
            seed=2,
            target_accept=accept,
            low_rank_modified_mass_matrix=compiled.n_dim <= LOW_RANK,
        )
        if not trace.has(100):
            return None, {"failed": f"no reference in {limit:g} s"}
        quality = _quality(trace, names) | {"accept": accept, "seconds": _seconds(seconds)}
        if quality["divergences"] <= quality["draws"] / 2000 and quality["r_hat"] < 1.01 and quality["least_ess"] > 400:
            break
        draws = int(np.clip(1.3 * TARGET_ESS / quality["least_ess"] * draws, draws, MOST))
    return trace.posterior, quality


def _pilot(compiled: Any, names: list[str], limit: float) -> float:
    """Return the least effective sample size of a short run, less where it diverges."""
    trace, _, _ = _sampled(compiled, PILOT, limit, seed=1, low_rank_modified_mass_matrix=compiled.n_dim <= LOW_RANK)
    if not trace.has(50):
        return 1.0
    quality = _quality(trace, names)
    return quality["least_ess"] / (1 + quality["divergences"] / 10)


def measure(name: str, limit: float) -> dict[str, Any]:
    """Sample a reference, in the better of two coordinates where the model's own are bad."""
    import nutpie

    model = MODELS[name].build()
    names = [v.name for v in model.free_RVs]
    if MODELS[name].quadrature:
        return _measure_by_quadrature(model, names)
    compiled = nutpie.compile_pymc_model(model, var_names=names)
    best, as_written = _pilot(compiled, names, limit / 3), True
    found: dict[str, Any] = {}
    if best < POOR_ESS:
        try:
            twin = nutpie.compile_pymc_model(noncentred_twin(MODELS[name].build), var_names=names)
            score = _pilot(twin, names, limit / 3)
            if score > best:
                best, compiled, as_written = score, twin, False
        except Exception as error:
            found["twin_failed"] = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
    if best < HOPELESS_ESS:
        return found | {"failed": f"effective sample size {best:.0f} of the pilot in {limit / 3:.0f} s"}
    draws = int(np.clip(1.3 * TARGET_ESS / best * PILOT, LONG, MOST))
    posterior, quality = _reference(model, compiled, draws, limit)
    if posterior is None:
        return found | quality
    found["reference"] = quality | {"as_written": as_written}
    return found | _summaries(model, posterior, names)


def _measure_by_quadrature(model: pm.Model, names: list[str]) -> dict[str, Any]:
    began = time.perf_counter()
    posterior = quadrature_posterior(model)
    draws = posterior.sizes["draw"] * posterior.sizes["chain"]
    quality = {"draws": draws, "least_ess": draws, "r_hat": 1.0, "divergences": 0, "quadrature": True}
    return {"reference": quality | {"seconds": _seconds(time.perf_counter() - began)}} | _summaries(
        model, posterior, names
    )


def _summaries(model: pm.Model, posterior: xr.Dataset, names: list[str]) -> dict[str, Any]:
    """Return what is kept of the draws of a reference."""
    found: dict[str, Any] = {"scalars": summaries(posterior, names), "tails": tail_summaries(posterior, names)}
    try:
        found["log_likelihood"] = likelihood_summary(_total_log_likelihood(model, posterior))
    except Exception as error:
        found["log_likelihood_failed"] = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
    return found


def load_references() -> dict[str, dict[str, Any]]:
    """Return the stored runs by model."""
    return json.loads(REFERENCES.read_text()) if REFERENCES.exists() else {}


def _store(name: str, found: dict[str, Any]) -> None:
    stored = load_references()
    earlier = {k: v for k, v in stored.get(name, {}).items() if k not in ("failed", "limit")}
    stored[name] = earlier | found
    lines = [f"{json.dumps(k)}: {json.dumps(stored[k], separators=(',', ':'))}" for k in sorted(stored)]
    REFERENCES.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def _run(name: str, limit: float, times: bool) -> dict[str, Any]:
    options = ["--models", name, "--limit", str(limit), *(["--times"] if times else [])]
    return result_apart("docs.benchmarks.public.references", options, 6 * limit + 300, cold=times)


def main() -> None:
    """Run what is missing, or in a child process one model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="*", choices=list(MODELS), default=list(MODELS), metavar="NAME")
    parser.add_argument("--limit", type=float, default=400.0, help="seconds of one long run")
    parser.add_argument("--again", action="store_true", help="run even what is stored")
    parser.add_argument("--times", action="store_true", help="measure nutpie's defaults, not references")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        logging.disable(logging.INFO)
        warnings.simplefilter("ignore")
        run = measure_times if arguments.times else measure
        arguments.child.write_text(json.dumps(run(arguments.models[0], arguments.limit)))
        return
    key = "nutpie" if arguments.times else "scalars"
    for name in arguments.models:
        stored = load_references().get(name, {})
        # A reference that failed is tried again with more time only.
        done = key in stored or (not arguments.times and stored.get("limit", 0) >= arguments.limit)
        if MODELS[name].obstacle or (done and not arguments.again):
            continue
        found = _run(name, arguments.limit, arguments.times)
        if "failed" in found:
            found["limit"] = arguments.limit
        found["versions"] = {package: version(package) for package in ("nutpie", "pymc")}
        _store(name, found)
        print(f"{name}: {found.get('failed') or found.get('nutpie') or found['reference']}", flush=True)


if __name__ == "__main__":
    main()
