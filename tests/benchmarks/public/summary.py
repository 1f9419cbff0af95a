"""From the cached measurements to one row a model: outcome, agreement with the reference, times, ratios."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tests.benchmarks.public.base import PublicModel, reference_draws

__all__ = ["Row", "summarise"]

DRAWS = 4000
"""Independent draws of a fit, for which nutpie's time is scaled."""
SKEWNESS, KURTOSIS = 0.5, 1.0
"""A posterior whose parameters all stay below these (skewness, excess kurtosis) counts as near-Gaussian."""


@dataclass
class Row:
    """What a table says of one model under one treatment of the hyperparameters; None where not measured.

    Errors of means are in sds of the reference. Times are in seconds; nutpie's are scaled to `DRAWS` effective draws
    of the slowest parameter.
    """

    model: PublicModel
    hyper: str
    outcome: str
    ep: dict[str, Any] = field(default_factory=dict)
    nuts: dict[str, Any] = field(default_factory=dict)
    reference: str = ""
    near_gaussian: bool | None = None
    parameters: int = 0
    error_median: float | None = None
    error_max: float | None = None
    worst: str = ""
    ratio_least: float | None = None
    ratio_most: float | None = None
    noise: float | None = None
    nuts_warm: float | None = None
    nuts_cold: float | None = None

    @property
    def warm_ratio(self) -> float | None:
        """Return nutpie's time over the fit's, compiled beforehand on both sides."""
        return None if self.nuts_warm is None or not self.ep else self.nuts_warm / self.ep["warm"]

    @property
    def cold_ratio(self) -> float | None:
        """Return nutpie's time over the fit's, compilation included on both sides."""
        return None if self.nuts_cold is None or not self.ep else self.nuts_cold / self.ep["cold"]


def summarise(model: PublicModel, hyper: str, ep: dict[str, Any] | None, nuts: dict[str, Any] | None) -> Row:
    """Put together what was measured of one model."""
    outcome = "not run" if ep is None else next((k for k in ("refused", "failed") if k in ep), "fitted")
    row = Row(model, hyper, outcome, ep=ep if outcome == "fitted" else {})
    row.nuts = nuts if nuts is not None and "moments" in nuts else {}
    if row.nuts:
        scale = DRAWS / row.nuts["least_ess"]
        row.nuts_warm = row.nuts["tune_seconds"] + (row.nuts["seconds"] - row.nuts["tune_seconds"]) * scale
        row.nuts_cold = row.nuts_warm + row.nuts["compile_time"]
    reference = _reference(model, row)
    if reference and row.ep:
        _compare(row, reference)
    return row


def _reference(model: PublicModel, row: Row) -> dict[str, list[float]]:
    """Return mean, sd, skewness, excess kurtosis by parameter; the noise is of a mean, in sds."""
    if model.reference is not None:
        draws = {name: values.ravel() for name, values in reference_draws(model.reference).items()}
        row.reference = "reference draws"
        row.noise = max(len(v) for v in draws.values()) ** -0.5
        return {name: _moments(values) for name, values in draws.items()}
    if row.nuts:
        row.reference = f"nutpie, {row.nuts['reference']['draws']} draws"
        row.noise = row.nuts["reference"]["least_ess"] ** -0.5
    return row.nuts.get("moments", {})


def _moments(values: np.ndarray) -> list[float]:
    mean, sd = values.mean(), values.std(ddof=1)
    z = (values - mean) / sd
    return [mean, sd, (z**3).mean(), (z**4).mean() - 3]


def _compare(row: Row, reference: dict[str, list[float]]) -> None:
    fitted = row.ep["moments"]
    # A constant (the fixed corner of a Cholesky factor, say) has nothing to compare.
    names = [n for n, values in reference.items() if n in fitted and values[1] > 1e-12 * (1 + abs(values[0]))]
    if not names:
        raise ValueError(f"{row.model.name}: no parameter of the reference is one of the fit's.")
    mean, sd, skewness, kurtosis = np.array([reference[n] for n in names]).T
    own_mean, own_sd, _, _ = np.array([fitted[n] for n in names]).T
    error, ratio = np.abs(own_mean - mean) / sd, own_sd / sd
    row.parameters = len(names)
    row.near_gaussian = bool(np.all(np.abs(skewness) < SKEWNESS) and np.all(np.abs(kurtosis) < KURTOSIS))
    row.error_median, row.error_max = float(np.median(error)), float(error.max())
    row.worst = names[int(error.argmax())]
    row.ratio_least, row.ratio_most = float(ratio.min()), float(ratio.max())
