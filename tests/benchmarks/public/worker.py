"""One measurement of one model, in a process of its own: ``python -m tests.benchmarks.public.worker``."""

import argparse
import json
import logging
import time
import traceback
import warnings
from pathlib import Path
from typing import Any

import arviz as az
import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import xarray as xr

import pymc_ep as pmep
from pymc_ep.recognise import compiled_form
from tests.benchmarks.public import MODELS

DRAWS = 4000
WARM_REPETITIONS = 3
NUTS_CHAINS, NUTS_TUNE, NUTS_DRAWS = 4, 1000, 1000


def prepare_compilers() -> None:
    """Build what PyTensor builds once for an installation, whatever is run: its C thunk loop and helper modules."""
    x = pt.vector()
    pytensor.function([x], x + 1.0)(np.ones(2))


def moments(posterior: xr.Dataset, names: list[str]) -> dict[str, list[float]]:
    """Return mean, sd, skewness and excess kurtosis of every scalar parameter, ``"beta[0,1]"``."""
    found = {}
    for name in names:
        values = posterior[name].stack(sample=("chain", "draw"))
        flat = values.transpose("sample", ...).values.reshape(values.sizes["sample"], -1)
        mean, sd = flat.mean(axis=0), flat.std(axis=0, ddof=1)
        with np.errstate(invalid="ignore", divide="ignore"):
            z = (flat - mean) / sd
        shape = posterior[name].shape[2:]
        for k, place in enumerate(np.ndindex(*shape)):
            label = f"{name}[{','.join(map(str, place))}]" if shape else name
            found[label] = [mean[k], sd[k], (z[:, k] ** 3).mean(), (z[:, k] ** 4).mean() - 3]
    return found


def compared(model: pm.Model, posterior: xr.Dataset) -> list[str]:
    """Free variables, and the Deterministics that a reference may name, as far as both sides have them."""
    return [v.name for v in (*model.free_RVs, *model.deterministics) if v.name in posterior]


def measure_ep(name: str, hyper: str) -> dict[str, Any]:
    """Fit twice and more: the first fit compiles, the next ones show run times; then more draws for the moments."""
    model = MODELS[name].build()
    prepare_compilers()

    def fit(**options: Any) -> tuple[Any, float]:
        began = time.perf_counter()
        idata = pmep.fit(model=model, hyper=hyper, progressbar=False, **options)
        return idata, time.perf_counter() - began

    draws = {"draws": DRAWS // 4, "chains": 4, "random_seed": 1}
    idata, cold = fit(**draws)
    # What a second call takes that solves the model anew, and not only the part in the solver.
    again = [fit(**draws) for _ in range(WARM_REPETITIONS if cold < 60 else 1)]
    stored = sum(int(np.prod(idata["posterior"][n].shape[2:])) for n in idata["posterior"].data_vars)
    many = int(np.clip(1e6 / max(stored, 1) / 4, DRAWS / 4, 10 * DRAWS / 4))
    precise, _ = fit(**(draws | {"draws": many, "random_seed": 2}))
    attrs = idata["fit"].attrs
    form = compiled_form(model).form
    return {
        "cold": cold,
        "warm": float(np.median([seconds for _, seconds in again])),
        "solve": float(np.median([found["fit"].attrs["run_time"] for found, _ in again])),
        "draws": 4 * many,
        "converged": bool(idata["fit"]["converged"]),
        "status": str(attrs.get("status", "")),
        "log_evidence": float(idata["fit"]["log_evidence"]),
        "explain": pmep.explain(model),
        "hyper_names": list(form.hyper_names),
        "latent_names": list(form.latent_names),
        "sites": [f"{group.site.name}" for group in form.groups],
        "moments": moments(precise["posterior"], compared(model, precise["posterior"])),
    }


def sample_nuts(compiled: Any, draws: int, limit: float, seed: int) -> tuple[Any, float]:
    """Run nutpie for at most `limit` seconds; what it has by then is the result."""
    import nutpie

    began = time.perf_counter()
    sampler = nutpie.sample(
        compiled, draws=draws, tune=NUTS_TUNE, chains=NUTS_CHAINS, seed=seed, progress_bar=False, blocking=False
    )
    try:
        trace = sampler.wait(timeout=limit)
    except TimeoutError:
        trace = sampler.abort()
    seconds = time.perf_counter() - began
    if "posterior" in trace.groups():
        # Chains that were stopped differ in length; the longer ones are cut.
        trace.posterior = trace.posterior.dropna("draw")
    return trace, seconds


def effective(posterior: xr.Dataset, names: list[str]) -> tuple[float, float]:
    """Return the least bulk effective sample size and the greatest R-hat."""
    ess, r_hat = az.ess(posterior, var_names=names, method="bulk"), az.rhat(posterior, var_names=names)
    return min(float(ess[n].min()) for n in names), max(float(r_hat[n].max()) for n in names)


def measure_nuts(name: str, limit: float, reference_draws: int) -> dict[str, Any]:
    """Compile and sample with nutpie; then sample on for a reference, as far as the limit allows."""
    import nutpie

    model = MODELS[name].build()
    names = [v.name for v in model.free_RVs]
    prepare_compilers()
    began = time.perf_counter()
    compiled = nutpie.compile_pymc_model(model, var_names=names)
    compile_time = time.perf_counter() - began
    trace, seconds = sample_nuts(compiled, NUTS_DRAWS, limit, seed=1)
    if "posterior" not in trace.groups() or trace.posterior.sizes["draw"] < 10:
        return {"failed": f"fewer than 10 draws in {limit:g} s", "compile_time": compile_time, "seconds": seconds}
    least, r_hat = effective(trace.posterior, names)
    steps = float(trace.sample_stats["n_steps"].sum())
    tuning = float(trace.warmup_sample_stats["n_steps"].sum())
    found = {
        "compile_time": compile_time,
        "seconds": seconds,
        "tune_seconds": seconds * tuning / (tuning + steps),
        "draws": int(trace.posterior.sizes["draw"] * trace.posterior.sizes["chain"]),
        "least_ess": least,
        "r_hat": r_hat,
        "divergences": int(trace.sample_stats["diverging"].sum()),
    }
    per_draw = (seconds - found["tune_seconds"]) / trace.posterior.sizes["draw"]
    affordable = int(min(reference_draws, (limit - found["tune_seconds"]) / per_draw))
    if affordable > 1.5 * NUTS_DRAWS and seconds < limit:
        trace, _ = sample_nuts(compiled, affordable, 2 * limit, seed=2)
        least, r_hat = effective(trace.posterior, names)
    reference = {"draws": int(trace.posterior.sizes["draw"] * trace.posterior.sizes["chain"])}
    reference |= {"least_ess": least, "r_hat": r_hat, "divergences": int(trace.sample_stats["diverging"].sum())}
    return found | {"reference": reference, "moments": moments(trace.posterior, names)}


def main() -> None:
    """Measure and write the result, or what stopped it, as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("ep", "nuts"))
    parser.add_argument("name", choices=list(MODELS))
    parser.add_argument("out", type=Path)
    parser.add_argument("--hyper", default="optimize")
    parser.add_argument("--limit", type=float, default=120.0)
    parser.add_argument("--reference-draws", type=int, default=5000)
    arguments = parser.parse_args()
    logging.disable(logging.INFO)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            if arguments.what == "ep":
                found = measure_ep(arguments.name, arguments.hyper)
            else:
                found = measure_nuts(arguments.name, arguments.limit, arguments.reference_draws)
        except pmep.UnsupportedModelError as error:
            found = {"refused": str(error)}
        except Exception as error:
            first = str(error).strip().partition("\n")[0]
            found = {"failed": f"{type(error).__name__}: {first}", "traceback": traceback.format_exc()}
    own = [str(w.message) for w in caught if issubclass(w.category, pmep.ConvergenceWarning | RuntimeWarning)]
    arguments.out.write_text(json.dumps(found | {"warnings": sorted(set(own))}, indent=1))


if __name__ == "__main__":
    main()
