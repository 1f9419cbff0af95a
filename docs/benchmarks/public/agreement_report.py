"""The page "agreement with NUTS", from the stored rows and references."""

from collections import Counter
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

from docs.benchmarks._common import header, markdown_table
from docs.benchmarks.public.base import MODELS
from docs.benchmarks.public.comparison import verdict
from docs.benchmarks.public.references import QUANTILES
from docs.benchmarks.public.tails import TAIL_LIMITS, TAIL_WRONG, tail_excess

__all__ = ["report"]

FIRST = ("posteriordb", "Bambi", "PyMC gallery")
"""Sources of the models that this package was developed with; those of the others it had never seen."""
LATEST = ("textbooks", "vignettes", "two_parameters")
"""Modules of the models that were listed last, and fitted as the package stood."""
EFFECTIVE = 4000
"""Effective draws for which nutpie's time is scaled: as many as the fit's independent ones."""
JOINT_RATIO = 1.2
"""Ratio of sds of the total log likelihood, either way, beyond which a model is listed whatever its size."""

_WITHIN, _TOLD = 3.0, 1.0
"""Factor within which a time is foreseen, and the shortest that `explain` tells, s."""

Rows = dict[str, dict[str, Any]]


def report(rows: dict[str, Rows], references: Rows) -> list[str]:
    """Return the parts of the page."""
    main = rows.get("default") or next(iter(rows.values()), {})
    label = "default" if "default" in rows else next(iter(rows), "default")
    parts = [header("Agreement with NUTS", "docs/benchmarks/agreement.py", "nutpie", "bambi"), INTRODUCTION]
    parts += ["## Targets\n", _targets(main, references)]
    if len(rows) > 1:
        parts += ["## Treatments of the hyperparameters\n", _treatments(rows, references)]
    parts += ["## Models\n", COLUMNS, _models(main, references)]
    parts += ["## Quantiles of hyperparameters\n", TAIL_COLUMNS, _tails(main, references)]
    parts += ["## Not right\n", _statements(main, references)]
    parts += ["## Joint draws\n", JOINT, _joint(main, references)]
    parts += ["## Not fitted\n", _refusals(main)]
    if label != "default":
        parts.insert(2, f'Measured with `hyper="{label}"`.\n')
    return parts


def _verdicts(rows: Rows, references: Rows) -> dict[str, str]:
    return {name: verdict(rows.get(name), references.get(name, {})) for name in MODELS}


def _judged(verdicts: dict[str, str]) -> list[str]:
    return [n for n, v in verdicts.items() if v.split(",")[0] in ("right", "off", "wrong")]


def _ratios(name: str, row: dict[str, Any], references: Rows) -> tuple[float, float] | None:
    """Return nutpie's time over the fit's, cold and warm."""
    times = references.get(name, {}).get("nutpie", {})
    if "tune" not in times or "cold" not in row:
        return None
    warm = times["tune"] + (times["seconds"] - times["tune"]) * EFFECTIVE / times["least_ess"]
    return (warm + times["compile"]) / row["cold"], warm / row["warm"]


def _share(names: Sequence[str], of: Sequence[str]) -> str:
    return f"{len(names)} of {len(of)} ({len(names) / max(len(of), 1):.0%})"


def _targets(rows: Rows, references: Rows) -> str:
    verdicts = _verdicts(rows, references)
    judged = _judged(verdicts)
    new = [n for n in judged if MODELS[n].source not in FIRST]
    latest = [n for n in judged if MODELS[n].build.__module__.rpartition(".")[2] in LATEST]
    ratios = [r for n in judged if (r := _ratios(n, rows[n], references))]

    def among(names: Sequence[str], wanted: Callable[[str], bool]) -> str:
        return _share([n for n in names if wanted(verdicts[n])], names)

    lines = [
        ["within 0.1 sd of NUTS on all parameters", "90%", lambda v: v.startswith("right")],
        ["wrong without a warning", "none", lambda v: v == "wrong, silent"],
        ["right, but warned", "below 2%", lambda v: v == "right, warned"],
    ]
    cells = [[text, target, *(among(of, test) for of in (judged, new, latest))] for text, target, test in lines]
    tailed = [n for n in judged if rows[n].get("tails")]
    right = [n for n in tailed if tail_excess(rows[n]["tails"]) <= 1]
    latest_right, latest_tailed = ([n for n in of if n in latest] for of in (right, tailed))
    shares = [_share(right, tailed), "", _share(latest_right, latest_tailed)]
    cells.append(["95 and 99% quantiles of all hyperparameters right", "all", *shares])
    timed = [n for n, row in rows.items() if n in MODELS and row.get("foreseen") is not None]
    times = {n: [max(rows[n][what], _TOLD) for what in ("warm", "foreseen")] for n in timed}
    close = [n for n, (taken, foreseen) in times.items() if 1 / _WITHIN <= taken / foreseen <= _WITHIN]
    said = "seconds of a warm fit within three times of those foreseen, less than one as one"
    cells.append([said, "90%", _share(close, timed), "", ""])
    for k, (text, target) in enumerate((("cold", "4"), ("warm", "5"))):
        found = [f"{median(r[k] for r in ratios):.2g}, {len(ratios)} models" if ratios else "not measured", "", ""]
        cells.append([f"nutpie's time over the fit's, {text}, median", target, *found])
    return markdown_table(["", "target", "all models", "of them never fitted before", "of these the latest"], cells)


def _treatments(rows: dict[str, Rows], references: Rows) -> str:
    shared = [n for n in MODELS if all("cold" in rows[h].get(n, {}) for h in rows)]
    cells = []
    for hyper, some in rows.items():
        verdicts = _verdicts(some, references)
        counts = Counter(verdicts[n].split(",")[0] for n in shared)
        silent = sum(verdicts[n] == "wrong, silent" for n in shared)
        fits, warm = median(some[n]["evaluations"] for n in shared), median(some[n]["warm"] for n in shared)
        cells.append([f"`{hyper}`", *(str(counts[k]) for k in ("right", "off", "wrong")), str(silent)])
        cells[-1] += [f"{fits:.0f}", f"{warm:.2g}"]
    head = ["", "right", "off", "wrong", "silently", "fits, median", "warm seconds, median"]
    text = f"On the {len(shared)} models that all of them fit. {EARLIER if 'grid and design' in rows else ''}\n\n"
    return text + markdown_table(head, cells)


def _starred(name: str) -> str:
    return name + (" *" if MODELS[name].simulated else "")


def _models(rows: Rows, references: Rows) -> str:
    verdicts = _verdicts(rows, references)
    cells = []
    for name in MODELS:
        row = rows.get(name, {})
        if "cold" not in row:
            continue
        cell = [_starred(name), MODELS[name].source, str(row["hyperparameters"]), verdicts[name]]
        if row.get("compared"):
            cell += [str(row["compared"]), f"{row['mean']['error']:.2f} (`{row['mean']['at']}`)"]
            cell += [" ".join(f"{row[f'{q:.0%}']['error']:.2f}" for q in QUANTILES)]
            cell += [" to ".join(f"{v:.2f}" for v in row["sd_ratio"])]
        else:
            cell += [""] * 4
        ratios = _ratios(name, row, references)
        cell += [str(row["evaluations"]), f"{row['cold']:.2g}", f"{row['warm']:.2g}"]
        cell += [f"{r:.2g}" for r in ratios] if ratios else ["", ""]
        quality = references.get(name, {}).get("reference", {})
        cell.append(str(quality.get("least_ess", "")))
        cells.append(cell)
    head = ["model", "source", "p", "verdict", "scalars", "mean error", "5, 50, 95%", "sd ratio", "fits", "cold"]
    return markdown_table([*head, "warm", "NUTS / fit cold", "warm", "least ESS"], cells)


def _tails(rows: Rows, references: Rows) -> str:
    verdicts = _verdicts(rows, references)
    cells = []
    for name in _judged(verdicts):
        errors = rows[name].get("tails")
        if not errors:
            continue
        cell = [_starred(name), str(rows[name]["hyperparameters"])]
        for key, limit in TAIL_LIMITS.items():
            found = errors.get(key)
            digits = 3 if limit < 0.1 else 2
            cell.append(f"{found['error']:.{digits}f} (`{found['at']}`)" if found else "")
        excess = tail_excess(errors)
        cell.append("right" if excess <= 1 else "off" if excess <= TAIL_WRONG else "wrong")
        cell.append("quadrature" if references[name]["reference"].get("quadrature") else "NUTS")
        cells.append(cell)
    return markdown_table(["model", "p", "95%", "99%", "beyond 95%", "beyond 99%", "quantiles", "reference"], cells)


def _statements(rows: Rows, references: Rows) -> str:
    verdicts = _verdicts(rows, references)
    shown = [n for n in MODELS if n in rows and "cold" in rows[n] and verdicts[n] not in ("right", "no reference")]
    cells = [[n, verdicts[n], "; ".join(rows[n]["warnings"]) or rows[n]["status"]] for n in shown]
    return markdown_table(
        ["model", "verdict", "what the fit says"], [[c.replace("|", "/") for c in row] for row in cells]
    )


def _joint(rows: Rows, references: Rows) -> str:
    cells = []
    for name in MODELS:
        row, theirs = rows.get(name, {}), references.get(name, {}).get("log_likelihood")
        if "log_likelihood" not in row or not theirs:
            continue
        ratio = row["log_likelihood"][1] / theirs[1]
        if row["hyperparameters"] > 3 or not 1 / JOINT_RATIO < ratio < JOINT_RATIO:
            pairs = zip(row["log_likelihood"], theirs, strict=True)
            cells.append([_starred(name), str(row["hyperparameters"]), f"{ratio:.2g}"])
            cells[-1] += [f"{a:.1f} ({b:.1f})" for a, b in pairs]
    return markdown_table(["model", "p", "sd ratio", "mean", "sd", "1%"], cells)


def _refusals(rows: Rows) -> str:
    cells = []
    for name in MODELS:
        row = rows.get(name, {})
        said = row.get("refused") or row.get("failed")
        if said:
            cells.append([_starred(name), MODELS[name].obstacle or "none", said.replace("|", "/").replace("\n", " ")])
    return markdown_table(["model", "obstacle", "what is said"], cells)


INTRODUCTION = """\
A star marks simulated data, by the source or here by the source's formula.

- Right: a mean is within 0.1 sd of the reference.
- Right too, where measured: 95% quantiles of hyperparameters are within 0.1 sd and 99% ones within 0.2 sd. Under a
  heavy-tailed prior (Cauchy, Student-t, their halves, inverse gamma) the probability beyond them is within 0.01 and
  0.005 instead.
- Wrong: a mean is beyond 0.25 sd, or a 5, 50 or 95% quantile is beyond 0.6 sd, or one of those of hyperparameters
  beyond 2.5 times its limit.
- All limits allow two Monte Carlo errors of both sides on top.
- Warned: the fit raised a `ConvergenceWarning`, or has `converged` false.

nutpie's times are for 4000 effective draws of the slowest parameter, as many as the fit returns. Where these times
are given, nutpie and the fit ran one after the other on an idle machine. The other fits ran beside other work. Cold
times start with empty caches of compiled code. Summaries of the NUTS runs are in `rows/agreement_nuts.json`.
"""
EARLIER = (
    '"Grid and design" is how this package integrated before it had an emulator: fits on a grid of up to three '
    "hyperparameters, or at the points of a composite design of more. Latent variables were averaged over these fits. "
    "Now they have a posterior at each of 1,000 draws, which takes longer."
)
COLUMNS = """\
- p: number of hyperparameters.
- Errors: the greatest over all scalars, latent values included, in sds of the reference.
- Fits: evaluations of the evidence.
- Cold, warm: seconds.
"""
TAIL_COLUMNS = """\
The greatest errors over all hyperparameters, and of which. 95%, 99%: of quantiles, in sds of the reference. Beyond 95%,
99%: of the probability beyond the reference's quantile, under heavy-tailed priors; below 5% and 1% too, where the prior
falls like a power on both sides. Quadrature is over all unknowns of models that have two.
"""
JOINT = """\
Total log likelihood of the draws: the fit's, and NUTS's in parentheses. It shows errors of the joint distribution,
which single variables hide. Listed are models with more than three hyperparameters, and those whose sd is off by a
fifth.
"""
