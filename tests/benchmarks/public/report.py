"""The page's tables, from the rows of all models."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tests.benchmarks._common import header, markdown_table
from tests.benchmarks.public.summary import DRAWS, KURTOSIS, SKEWNESS, Row

__all__ = ["report"]

ERROR_TARGET, SD_TARGET = 0.1, 0.05
WARM_TARGET, COLD_TARGET = 50, 3


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def _times(value: float | None) -> str:
    """Format a ratio or a time to two significant digits."""
    return "" if value is None else f"{value:.0f}" if value >= 10 else f"{value:.2g}"


def _median(rows: Sequence[Row], value: Callable[[Row], float | None]) -> float | None:
    found = [v for v in map(value, rows) if v is not None]
    return float(np.median(found)) if found else None


def _title(row: Row) -> str:
    return f"{row.model.name}{' *' if row.model.simulated else ''}"


def recognition_table(rows: Sequence[Row]) -> str:
    """What was recognised of each fitted model."""
    cells = []
    for row in rows:
        lines = dict(line.split(None, 1) for line in row.ep["explain"].splitlines() if len(line.split(None, 1)) == 2)
        names = row.ep["latent_names"]
        hyper = row.ep["hyper_names"]
        cells.append(
            [
                _title(row),
                row.model.source,
                _listed(names),
                ", ".join(sorted(set(row.ep["sites"]))),
                f"{len(hyper)}: {_listed(hyper)}" if hyper else "none",
                lines.get("solver", ""),
            ]
        )
    return markdown_table(["model", "source", "latent", "sites", "hyperparameters", "solver"], cells)


def _listed(names: Sequence[str], most: int = 6) -> str:
    shown = ", ".join(f"`{n}`" for n in names[:most])
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown


def refusal_table(rows: Sequence[Row], messages: dict[str, dict[str, Any]]) -> str:
    """What was not fitted: what stands in the way, and the message."""
    cells = []
    for row in rows:
        found = messages[row.model.name]
        said = found.get("refused") or f"**{found.get('failed', '')}**"
        cells.append([_title(row), row.model.source, row.model.obstacle or "**none**", said.replace("|", "\\|")])
    return markdown_table(["model", "source", "not latent Gaussian because of", "message"], cells)


def agreement_table(rows: Sequence[Row]) -> str:
    """Errors against the reference."""
    cells = [
        [
            _title(row),
            str(row.parameters),
            row.reference,
            "yes" if row.near_gaussian else "no",
            _number(row.error_median, 3),
            f"{_number(row.error_max, 3)} (`{row.worst}`)",
            f"{_number(row.ratio_least, 3)} to {_number(row.ratio_most, 3)}",
            _number(row.noise, 3),
            "" if row.ep["converged"] else "not converged",
        ]
        for row in rows
        if row.error_max is not None
    ]
    head = ["model", "parameters", "reference", "near-Gaussian", "mean error, median", "greatest", "sd ratio", "noise"]
    return markdown_table([*head, ""], cells)


def time_table(rows: Sequence[Row]) -> str:
    """Seconds and ratios."""
    cells = [
        [
            _title(row),
            _times(row.ep["cold"]),
            _times(row.ep["warm"]),
            _times(row.ep["solve"]),
            _times(row.nuts.get("compile_time")),
            _times(row.nuts.get("seconds")),
            _number(row.nuts.get("least_ess"), 0),
            str(row.nuts.get("divergences", "")),
            _times(row.nuts_cold),
            _times(row.nuts_warm),
            _times(row.cold_ratio),
            _times(row.warm_ratio),
        ]
        for row in rows
    ]
    head = ["model", "cold", "warm", "of which solving", "nutpie compiles", "samples", "least ESS", "divergences"]
    return markdown_table([*head, "nutpie cold", "warm", "ratio cold", "ratio warm"], cells)


def target_lines(rows: Sequence[Row], hyper: str) -> str:
    """Return the medians against the targets."""
    fitted = [r for r in rows if r.ep]
    expected = [r for r in rows if not r.model.obstacle and r.outcome != "not run"]
    near = [r for r in fitted if r.near_gaussian]
    good_mean = [r for r in near if r.error_max is not None and r.error_max < ERROR_TARGET]
    good_sd = [r for r in near if r.ratio_least and r.ratio_least > 1 - SD_TARGET and r.ratio_most < 1 + SD_TARGET]
    cells = [
        [
            "latent Gaussian models recognised",
            "all",
            f"{sum(bool(r.ep) for r in expected)} of {len(expected)}",
        ],
        [f"greatest mean error, near-Gaussian posteriors, below {ERROR_TARGET} sd", "all", _share(good_mean, near)],
        ["its median over these models", f"{ERROR_TARGET}", _number(_median(near, lambda r: r.error_max), 3)],
        [f"all sd ratios within {SD_TARGET:.0%}, near-Gaussian posteriors", "all", _share(good_sd, near)],
        ["warm: nutpie's time / ours, median", f"{WARM_TARGET}", _times(_median(fitted, lambda r: r.warm_ratio))],
        ["cold: nutpie's time / ours, median", f"{COLD_TARGET}", _times(_median(fitted, lambda r: r.cold_ratio))],
    ]
    return f'### Targets, `hyper="{hyper}"`\n\n' + markdown_table(["", "target", "measured"], cells)


def _share(good: Sequence[Row], of: Sequence[Row]) -> str:
    return f"{len(good)} of {len(of)}"


def report(rows: Sequence[Row], messages: dict[str, dict[str, Any]]) -> list[str]:
    """Return the parts of the page, of whatever has been measured."""
    name = "tests/benchmarks/public_models.py"
    parts = [header("Models that others wrote", name, "nutpie", "bambi"), INTRODUCTION]
    by_hyper = {hyper: [r for r in rows if r.hyper == hyper] for hyper in dict.fromkeys(r.hyper for r in rows)}
    measured = {hyper: some for hyper, some in by_hyper.items() if any(r.ep for r in some)}
    parts += [target_lines(some, hyper) for hyper, some in measured.items()]
    first = next(iter(by_hyper.values()))
    parts += ["## Recognised\n", recognition_table([r for r in first if r.ep])]
    parts += ["## Not fitted\n", REFUSAL_TEXT]
    parts += [refusal_table([r for r in first if r.outcome in ("refused", "failed")], messages)]
    for hyper, some in measured.items():
        fitted = [r for r in some if r.ep]
        explain = some is first
        parts += [f'## Agreement, `hyper="{hyper}"`\n', *([AGREEMENT_TEXT] if explain else [])]
        parts += [agreement_table(fitted)]
        parts += [f'## Time, `hyper="{hyper}"`\n', *([TIME_TEXT] if explain else []), time_table(fitted)]
    return parts


INTRODUCTION = """\
Models of posteriordb transcribed with their priors (where Stan's program has none, `pm.Flat` and `pm.HalfFlat`),
formulas of Bambi's documentation built by Bambi, and models of PyMC's example gallery, each through `pymc_ep.fit` as it
stands. Data are the sources' own; a star marks those that the source simulates, or that were simulated here with the
source's formula because its data were not at hand: at its size, but for 300 of stochastic_volatility's 2906 days.
"""
REFUSAL_TEXT = """\
Models that are not latent Gaussian are here to show the refusal; "none" in the third
column marks a latent Gaussian model that was not fitted.
"""
AGREEMENT_TEXT = f"""\
Errors of means in sds of the reference, and ratios of sds, over all parameters that fit and reference share, latent
values and hyperparameters on the model's own scale. The reference is posteriordb's (10,000 draws) or a run of nutpie
with four chains; "noise" is the Monte Carlo error of a mean in it, one over the root of the least effective sample
size. The fit's own moments are from up to 40,000 independent draws. Near-Gaussian: every parameter's skewness in the
reference is below {SKEWNESS} and its excess kurtosis below {KURTOSIS}.
"""
TIME_TEXT = f"""\
Seconds. Cold: in a fresh process with empty compile caches of PyTensor and Numba, from the finished `pm.Model` to
{DRAWS} draws. Warm: the same call again, which fits anew (median of three); what is not solving lays out draws, log
likelihoods and labels. nutpie: four chains, 1000 tuning steps and 1000 draws each, on all cores; its time is scaled so
that the slowest parameter has {DRAWS} effective draws, as many as the fit's independent ones (tuning counts once).
"""
