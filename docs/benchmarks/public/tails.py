"""Outer quantiles of hyperparameters, of references and of fits beside them."""

from collections.abc import Iterator
from typing import Any

import arviz as az
import numpy as np
import pymc as pm
import xarray as xr

__all__ = ["TAIL_LIMITS", "TAIL_WRONG", "tail_errors", "tail_excess", "tail_summaries"]

TAILS = (0.01, 0.05, 0.95, 0.99)
SMALL = 30
"""Elements of a variable up to which these quantiles are kept."""
TAIL_LIMITS = {"95%": 0.1, "99%": 0.2, "beyond 95%": 0.01, "beyond 99%": 0.005}
"""Errors of quantiles that are right: in sds of the reference, and under a heavy-tailed prior of the probability beyond
the reference's quantile."""
TAIL_WRONG = 2.5
"""Multiple of these limits beyond which a quantile is wrong."""
HEAVY_SIDES = {"HalfCauchy": (1,), "HalfStudentT": (1,), "InverseGamma": (1,), "Cauchy": (0, 1), "StudentT": (0, 1)}
"""Priors whose tails fall like a power, and where they do: below, above."""


def _quantile_errors(draws: np.ndarray, ess: np.ndarray) -> np.ndarray:
    """Return quantile, its Monte Carlo error, and ESS for each of `TAILS`, (4, 3).

    The error of the quantile q is half of what separates the quantiles q - e and q + e, with e^2 = q (1 - q) / ESS.
    """
    q = np.array(TAILS)
    e = np.sqrt(q * (1 - q) / ess)
    lower, middle, upper = (np.quantile(draws, np.clip(p, 0, 1)) for p in (q - e, q, q + e))
    return np.column_stack([middle, (upper - lower) / 2, ess])


def tail_summaries(posterior: xr.Dataset, names: list[str]) -> dict[str, list[dict[str, Any] | None]]:
    """Return by variable with few elements, for each in turn, its sd and the rows of `_quantile_errors`.

    A constant element has None.
    """
    found: dict[str, list[dict[str, Any] | None]] = {}
    for name in names:
        values = posterior[name].values
        flat = values.reshape(*values.shape[:2], -1)
        if flat.shape[2] > SMALL:
            continue
        found[name] = []
        for draws in np.moveaxis(flat, 2, 0):
            if np.ptp(draws) == 0:
                found[name].append(None)
                continue
            ess = np.array([float(az.ess(draws, method="quantile", prob=q)) for q in TAILS])
            rows = [[float(f"{v:.5g}") for v in row] for row in _quantile_errors(draws, ess)]
            found[name].append({"sd": float(f"{draws.std(ddof=1):.5g}"), "quantiles": rows})
    return found


def tail_errors(
    model: pm.Model, names: tuple[str, ...], posterior: xr.Dataset, reference: dict[str, Any]
) -> dict[str, dict[str, Any]]:
    """Return the greatest errors of outer quantiles of some variables by key of `TAIL_LIMITS`.

    Each has the error, where it is, and the greatest beyond two Monte Carlo errors of both sides.
    """
    found: dict[str, dict[str, Any]] = {}
    for name in names:
        prior = model[name].owner.op._print_name[0]
        flat = posterior[name].values.reshape(posterior.sizes["chain"] * posterior.sizes["draw"], -1)
        places = list(np.ndindex(*posterior[name].shape[2:]))
        for k, theirs in enumerate(reference.get(name, [])):
            if theirs is None:
                continue
            label = f"{name}[{','.join(map(str, places[k]))}]" if places[k] else name
            for key, error, noise in _element_errors(flat[:, k], theirs, HEAVY_SIDES.get(prior)):
                worst = found.setdefault(key, {"error": -1.0, "at": "", "beyond": -np.inf})
                if error > worst["error"]:
                    worst |= {"error": float(f"{error:.3g}"), "at": label}
                worst["beyond"] = max(worst["beyond"], float(f"{error - 2 * noise:.3g}"))
    return found


def _element_errors(
    draws: np.ndarray, reference: dict[str, Any], sides: tuple[int, ...] | None
) -> Iterator[tuple[str, float, float]]:
    """Yield key, error and its noise for the outer quantiles of an element; `sides` are those of a heavy tail."""
    # Latent variables are drawn several times at one draw of the hyperparameters, which counts once.
    own_ess = np.full(len(TAILS), len(np.unique(draws)))
    own, theirs = _quantile_errors(draws, own_ess), np.array(reference["quantiles"])
    for key, places in (("95%", (1, 2)), ("99%", (0, 3))):
        for side in (1,) if sides is None else sides:
            (quantile, spread, ess), (at, their_spread, their_ess) = own[places[side]], theirs[places[side]]
            if sides is None:
                yield key, abs(quantile - at) / reference["sd"], np.hypot(spread, their_spread) / reference["sd"]
            else:
                tail = TAILS[places[0]]
                error = abs(np.mean(draws > at if side else draws < at) - tail)
                yield f"beyond {key}", error, np.sqrt(tail * (1 - tail) * (1 / ess + 1 / their_ess))


def tail_excess(errors: dict[str, dict[str, Any]]) -> float:
    """Return the greatest error beyond noise as a multiple of its limit; zero where nothing was compared."""
    return max((found["beyond"] / TAIL_LIMITS[key] for key, found in errors.items()), default=0.0)
