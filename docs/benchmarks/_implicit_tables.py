"""Tables of `implicit_feedback`, from its rows."""

import json
from collections.abc import Sequence
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from docs.benchmarks._common import markdown_table
from docs.benchmarks._pairs import BINS, DATA

__all__ = ["Table", "stated", "validation_key", "values_of"]

SCORES = {"rank": 4, "warm_rank": 4, "recall": 4, "ndcg": 4, "log_p": 3, "warm_log_p": 3}
"""Columns of the main table, and their digits."""
HEAD = ["method", "mean rank", "rank, warm", "Recall@20", "NDCG@20", "log p", "log p, warm", "seconds", "splits"]
Grids = dict[str, dict[str, tuple[Any, ...]]]
"""Values of each setting, by method."""
FACTOR_SCORES = ("warm_rank", "recall", "log_p")
"""Columns of the table of numbers of factors."""
WORDS = {
    "points": {True: "items as points", False: "full posterior"},
    "constant": {True: "constant messages", False: "all messages"},
    "learned": {True: "scales learned", False: "scales fixed"},
}
"""Words for settings of paired symbols; others are printed with their names."""


class Table(NamedTuple):
    """Rows, and what to make tables of.

    Attributes
    ----------
    rows : dict
        By data set, seed, or ``validation`` for that split, method and settings.
    ours, peers : tuple of str
        Methods.
    chosen : dict
        Settings by data set and method.
    """

    rows: dict[str, Any]
    ours: tuple[str, ...]
    peers: tuple[str, ...]
    chosen: dict[str, dict[str, dict[str, Any]]]

    def seeds(self, data: str, method: str) -> list[dict[str, Any]]:
        """Return the rows of all seeds at the chosen settings."""
        if method not in self.chosen[data]:
            return []
        end = f"/{method}/{json.dumps(self.chosen[data][method])}"
        found = {key.split("/")[1]: row for key, row in self.rows.items() if key.startswith(data) and key.endswith(end)}
        return [row for seed, row in sorted(found.items()) if seed.isdigit()]

    def main(self, data: str) -> str:
        """Return the table of all methods on one data set, the best means in bold."""
        lines = {}
        for method in (*self.peers, *self.ours):
            found = self.seeds(data, method)
            if found:
                lines[method] = [{name: one.get(name, np.nan) for name in (*SCORES, "seconds")} for one in found]
            if found:
                lines |= variants(method, found)
        means = {name: {m: average([one[name] for one in found]) for m, found in lines.items()} for name in SCORES}
        best = {name: np.nanmax([-np.inf, *values.values()]) for name, values in means.items()}
        out = []
        for method, found in lines.items():
            cells = [
                cell([one[name] for one in found], digits, bold=means[name][method] == best[name])
                for name, digits in SCORES.items()
            ]
            seconds = np.median([one["seconds"] for one in found])
            out.append([method, *cells, f"{seconds:.3g}" if seconds else "-", str(len(found))])
        return markdown_table(HEAD, out)

    def cold(self, data: str) -> str:
        """Say how many held-out items have no learned pair."""
        shares = [one["cold"] for one in self.seeds(data, "popularity")]
        return f"Of the held-out items {np.mean(shares):.2%} are cold, that is, without a learned pair.\n"

    def settings(self) -> str:
        """Return the table of chosen settings."""
        lines = []
        for method in (*self.peers, *self.ours):
            chosen = [self.chosen[data].get(method) for data in DATA]
            lines.append([method, *(" ".join(words(one)) if one else "-" for one in chosen)])
        return markdown_table(["method", *DATA], lines)

    def best_peer(self, data: str) -> str:
        """Return the peer with the best mean rank."""
        ranks = {m: np.mean([one["rank"] for one in self.seeds(data, m)]) for m in self.peers if self.seeds(data, m)}
        return max(ranks, key=lambda method: ranks[method])

    def activity(self) -> str:
        """Return the table of mean ranks by the number of learned pairs of a user."""
        ends = [f" to {edge - 1:.0f}" if np.isfinite(edge) else " or more" for edge in BINS[1:]]
        edges = [f"{begin}{end}" for begin, end in zip(BINS, ends)]
        lines = []
        for data in DATA:
            counts = self.seeds(data, "popularity")
            if not counts:
                continue
            users = np.mean([one["bin_users"] for one in counts], axis=0)
            lines.append([f"{data}: users", *(f"{n:.0f}" for n in users)])
            for method in ("popularity", self.best_peer(data), *self.ours):
                found = [one["bins"] for one in self.seeds(data, method)]
                if found:
                    bins = [[value for value in column if value is not None] for column in zip(*found)]
                    cells = [f"{np.mean(b):.4f}" if b else "-" for b in bins]
                    lines.append([f"{data}: {method}", *cells])
        return markdown_table(["", *edges], lines)

    def effects(self, around: dict[str, Any], grids: Grids, data: Sequence[str]) -> str:
        """Return the table of one setting after the other, on the validation split."""
        lines = []
        for method, grid in grids.items():
            base = stated(around, grid)
            changes = [{name: value} for name, values in grid.items() for value in values if value != base[name]]
            for change in ({}, *changes):
                keys = [validation_key(one, method, base | change) for one in data]
                cells = [text for key in keys for text in effect(self.rows.get(key))]
                lines.append([method, " ".join(words(change)) or "as stated", *cells])
        head = [f"{one}: {what}" for one in data for what in ("mean rank", "log p", "size", "seconds")]
        return markdown_table(["posterior", "change", *head], lines)

    def factors(self, around: dict[str, Any], grids: Grids, numbers: Sequence[int]) -> str:
        """Return the table of numbers of factors, on the validation split."""
        lines = []
        for data, (method, grid), number in product(DATA, grids.items(), numbers):
            row = self.rows.get(validation_key(data, method, stated(around, grid) | {"factors": number}))
            if row is not None:
                cells = [f"{row[name]:.{SCORES[name]}f}" for name in FACTOR_SCORES]
                lines.append([data, method, str(number), *cells, f"{row['seconds']:.3g}", str(row["sweeps"])])
        head = [HEAD[1 + list(SCORES).index(name)] for name in FACTOR_SCORES]
        return markdown_table(["data", "posterior", "factors", *head, "seconds", "sweeps"], lines)

    def unconverged(self) -> str:
        """Say how many fits of ours ended at the greatest number of sweeps."""
        found = [one for data in DATA for method in self.ours for one in self.seeds(data, method)]
        stopped = sum(not one["converged"] for one in found)
        return f"Of {len(found)} fits of paired symbols {stopped} ended at 100 sweeps before they had converged.\n"


def validation_key(data: str, method: str, settings: dict[str, Any]) -> str:
    """Return the key of a row of the validation split."""
    return f"{data}/validation/{method}/{json.dumps(settings)}"


def stated(around: dict[str, Any], grid: dict[str, tuple[Any, ...]]) -> dict[str, Any]:
    """Return the settings that are varied one at a time, as far as a posterior has them in its grid."""
    return {name: around[name] if around[name] in values else values[0] for name, values in grid.items()}


def effect(row: dict[str, Any] | None) -> list[str]:
    """Return the cells of one data set."""
    if row is None:
        return ["-"] * 4
    return [f"{row['rank']:.4f}", f"{row['log_p']:.3f}", f"{row['preferences']:.3g}", f"{row['seconds']:.3g}"]


def variants(method: str, found: list[dict[str, Any]]) -> dict[str, list[dict[str, float]]]:
    """Return rows that are ranked otherwise than by default."""
    out = {}
    for name, how in (("by_p", "by probability"), ("by_mean", "by mean preference"), ("as_score", "as a score")):
        some = [one[name] | {"seconds": 0.0} for one in found if name in one]
        if some:
            none = dict.fromkeys(SCORES, np.nan)
            out[f"{method}, {how}"] = [none | one for one in some]
    return out


def average(values: list[float]) -> float:
    """Return the mean of what is known."""
    known = [value for value in values if not np.isnan(value)]
    return float(np.mean(known)) if known else np.nan


def cell(values: list[float], digits: int, *, bold: bool) -> str:
    """Format a mean with its standard error."""
    values = [value for value in values if not np.isnan(value)]
    if not values:
        return "-"
    mean = f"{np.mean(values):.{digits}f}"
    spread = f" ({np.std(values, ddof=1) / np.sqrt(len(values)):.{digits}f})" if len(values) > 1 else ""
    return (f"**{mean}**" if bold else mean) + spread


def words(settings: dict[str, Any]) -> list[str]:
    """Format settings."""
    return [WORDS[name][value] if name in WORDS else f"{name}={value:g}" for name, value in settings.items()]


def values_of(grid: dict[str, tuple[Any, ...]]) -> str:
    """Format the values of settings, other than those that are not varied."""
    out = []
    for name, values in grid.items():
        some = [WORDS[name][value] if name in WORDS else f"{value:g}" for value in values]
        if name not in WORDS:
            out.append(f"{name} {', '.join(some)}")
        elif len(values) > 1:
            out.append(" or ".join(some))
    return "; ".join(out)
