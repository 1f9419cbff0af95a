"""A fit of one public model beside its NUTS reference: errors by scalar, warnings, times, and the verdict."""

import time
import warnings
from typing import Any

import numpy as np
import pymc as pm
import xarray as xr

import pymc_ep as pmep
from docs.benchmarks._common import prepare_compilers
from docs.benchmarks.public.base import MODELS
from docs.benchmarks.public.references import QUANTILES, likelihood_summary
from docs.benchmarks.public.tails import TAIL_WRONG, tail_errors, tail_excess
from pymc_ep.calls import chosen_hyper, cost_of
from pymc_ep.contracts.method import Call
from pymc_ep.forms import able_methods, compiled_form

__all__ = ["measure_fit", "seconds_foreseen", "verdict"]

RIGHT, WRONG, WRONG_QUANTILE = 0.1, 0.25, 0.6
"""Errors in sds of the reference: of a mean that is right, of one that is wrong, of a wrong quantile."""
QUANTILE_NOISE = (2.1, 1.25, 2.1)
"""Monte Carlo errors of a normal's 5, 50 and 95% quantiles over that of its mean."""
USABLE_R_HAT, USABLE_ESS = 1.03, 200
"""R-hat above which, and effective sample size below which, a reference says nothing."""


def measure_fit(name: str, hyper: str, reference: dict[str, Any]) -> dict[str, Any]:
    """Fit twice, the first time with empty compile caches, and compare the draws of both with the reference."""
    model = MODELS[name].build()
    prepare_compilers()
    options = {} if hyper == "default" else {"hyper": hyper}
    fits, seconds = [], []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for seed in (1, 2):
            began = time.perf_counter()
            fits.append(pmep.fit(model=model, log_likelihood=True, progressbar=False, random_seed=seed, **options))
            seconds.append(time.perf_counter() - began)
    warned = sorted({str(w.message) for w in caught if issubclass(w.category, pmep.ConvergenceWarning)})
    posterior = xr.concat(
        [
            fit["posterior"].to_dataset() if hasattr(fit["posterior"], "to_dataset") else fit["posterior"]
            for fit in fits
        ],
        "draw",
    )
    row = {
        "hyperparameters": _hyper_size(model),
        "cold": _short(seconds[0], 3),
        "warm": _short(seconds[1], 3),
        "foreseen": seconds_foreseen(model),
        "evaluations": _evaluations(fits[1]["fit"]),
        "converged": bool(fits[0]["fit"]["converged"]),
        "status": str(fits[0]["fit"].attrs.get("status", "")),
        "warnings": warned,
    }
    if "log_likelihood" in fits[0]:
        totals = [
            sum(g[n].sum([d for d in g[n].dims if d not in ("chain", "draw")]).values for n in g.data_vars)
            for g in (fit["log_likelihood"] for fit in fits)
        ]
        row["log_likelihood"] = likelihood_summary(np.concatenate(totals, axis=1))
    if "scalars" in reference:
        row |= _errors(posterior, reference["scalars"])
    if "tails" in reference:
        row["tails"] = tail_errors(model, compiled_form(model).form.hyper_names, posterior, reference["tails"])
    return row


def seconds_foreseen(model: pm.Model) -> float | None:
    """Return the time of a fit without options as `explain` foresees it, None where it foresees none."""
    form = compiled_form(model)
    method = able_methods(form.form)[0]
    hyper, _ = chosen_hyper(method, form, {}, chains=True)
    cost = cost_of(method, Call(form, form.start, hyper), {"chains": 4, "draws": 1000})
    return None if cost is None else _short(cost.seconds)


def _short(value: float, digits: int = 3) -> float:
    return float(f"{value:.{digits}g}")


def _hyper_size(model: pm.Model) -> int:
    start = model.initial_point()
    names = compiled_form(model).form.hyper_names
    return int(sum(np.size(start[model.rvs_to_values[model[n]].name]) for n in names))


def _evaluations(fit: xr.Dataset) -> int:
    """Return how often the evidence was evaluated: as the fit says, or as long as the trace of its search is."""
    if "n_evaluations" in fit:
        return int(fit["n_evaluations"])
    return int(fit["hyper_objective"].size) if "hyper_objective" in fit else 1


def _errors(posterior: xr.Dataset, scalars: dict[str, Any]) -> dict[str, Any]:
    """Return the greatest errors, in sds of the reference, with where they are, and the greatest beyond noise."""
    labels, theirs, ours = [], [], []
    for name, kept in scalars.items():
        if name not in posterior:
            continue
        flat = posterior[name].values.reshape(posterior.sizes["chain"] * posterior.sizes["draw"], -1)
        elements = range(flat.shape[1]) if kept["kept"] == "all" else kept["kept"]
        places = list(np.ndindex(*kept["shape"]))
        labels += [f"{name}[{','.join(map(str, places[k]))}]" if kept["shape"] else name for k in elements]
        part = flat[:, list(elements)]
        ours.append([part.mean(axis=0), part.std(axis=0, ddof=1), *np.quantile(part, QUANTILES, axis=0)])
        theirs.append(np.array(kept["values"]))
    if not labels:
        return {"compared": 0}
    own, (mean, sd, *quantiles, bulk, tail) = np.concatenate(ours, axis=1), np.concatenate(theirs, axis=1)
    draws = posterior.sizes["chain"] * posterior.sizes["draw"]
    noise, tail_noise = np.sqrt(1 / bulk + 1 / draws), np.sqrt(1 / tail + 1 / draws)
    found = {"compared": len(labels), "sd_ratio": [_short(v) for v in _extremes(own[1] / sd)]}
    errors = {"mean": (np.abs(own[0] - mean) / sd, noise)}
    for k, q in enumerate(QUANTILES):
        own_noise = QUANTILE_NOISE[k] * (noise if q == 0.5 else tail_noise)
        errors[f"{q:.0%}"] = (np.abs(own[2 + k] - quantiles[k]) / sd, own_noise)
    for key, (error, scale) in errors.items():
        worst, excess = int(error.argmax()), error - 2 * scale
        found[key] = {"error": _short(error[worst]), "at": labels[worst], "beyond": _short(excess.max())}
    return found


def _extremes(values: np.ndarray) -> tuple[float, float]:
    return float(values.min()), float(values.max())


def verdict(row: dict[str, Any] | None, reference: dict[str, Any]) -> str:
    """Say in one or two words how a fit compares; errors count beyond two Monte Carlo errors of both sides."""
    if row is None:
        return "not run"
    if "refused" in row:
        return "refused"
    if "failed" in row:
        return "failed"
    quality = reference.get("reference", {})
    if not row.get("compared") or quality["r_hat"] > USABLE_R_HAT or quality["least_ess"] < USABLE_ESS:
        return "no reference"
    warned = bool(row["warnings"]) or not row["converged"]
    wrong = row["mean"]["beyond"] > WRONG or any(row[f"{q:.0%}"]["beyond"] > WRONG_QUANTILE for q in QUANTILES)
    tails = tail_excess(row.get("tails", {}))
    if wrong or tails > TAIL_WRONG:
        return "wrong, warned" if warned else "wrong, silent"
    if row["mean"]["beyond"] > RIGHT or tails > 1:
        return "off, warned" if warned else "off"
    return "right, warned" if warned else "right"
