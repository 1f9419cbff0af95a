"""Figures of `implicit_feedback`: ranks by activity, from its rows, and preferences by activity, from fits."""

from collections.abc import Iterable
from typing import Any

import matplotlib
import numpy as np
import pymc as pm

import pymc_ep as pmep
from docs.benchmarks._common import PAGES
from docs.benchmarks._implicit_tables import Table
from docs.benchmarks._pairs import BINS, DATA

__all__ = ["LEAST_USERS", "draw_activity", "draw_preferences"]

matplotlib.use("Agg")
from matplotlib import pyplot

LEAST_USERS = 5
"""Least mean number of users of a bin that is drawn."""
TICKS = (0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.92, 0.94, 0.95, 0.96, 0.97)
"""Of mean ranks, as far as they are on an axis."""
DPI = 110


def draw_activity(table: Table) -> str:
    """Draw mean ranks by the number of learned pairs, a panel for each data set; return the line of the page."""
    best = {table.best_peer(data) for data in DATA}
    methods = ("popularity", *(name for name in table.peers if name in best), *table.ours)
    figure, axes = pyplot.subplots(1, len(DATA), figsize=(11.0, 3.6), layout="constrained")
    # The last bin has no end.
    middle = np.sqrt(np.multiply(BINS[:-1], (*BINS[1:-1], 2 * BINS[-2])))
    for panel, data in zip(axes, DATA):
        users = np.mean([one["bin_users"] for one in table.seeds(data, "popularity")], axis=0)
        shown = np.flatnonzero(users >= LEAST_USERS)
        for k, method in enumerate(methods):
            rows = table.seeds(data, method)
            ranks = np.array([one["bins"] for one in rows], dtype=float)[:, shown]
            error = 2.0 * np.nanstd(ranks, axis=0, ddof=1) / np.sqrt(len(rows))
            style = {"color": "gray"} if method == "popularity" else {"color": f"C{k - 1}"}
            style |= {"linewidth": 2.0, "marker": "o"} if method in table.ours else {"linewidth": 1.0, "marker": "."}
            panel.errorbar(middle[shown], np.nanmean(ranks, axis=0), error, label=method, capsize=2, **style)
        panel.set(title=data, xscale="log", yscale="logit", xlabel="pairs learned from")
        panel.set_xticks(BINS[:-1], [str(edge) for edge in BINS[:-1]])
        panel.minorticks_off()
        low, high = panel.get_ylim()
        ticks = [tick for tick in TICKS if low < tick < high]
        panel.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    axes[0].set_ylabel("mean rank of the held-out item")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(methods), frameon=False)
    figure.savefig(PAGES / "implicit_feedback_activity.png", dpi=DPI)
    pyplot.close(figure)
    return "![Mean rank by the number of learned pairs, on four data sets](implicit_feedback_activity.png)\n"


def draw_preferences(fits: Iterable[tuple[str, pm.Model, Any]], name: str) -> None:
    """Draw densities of preferences, a panel for each fit with a title and pairs of the given name."""
    fits = list(fits)
    figure, axes = pyplot.subplots(1, len(fits), figsize=(11.0, 3.2), layout="constrained", sharey=True)
    for panel, (title, model, idata) in zip(axes, fits):
        pmep.plots.plot_preference(idata, f"{name}_user_popularity", model, title=title, ax=panel)
        panel.label_outer()
    for panel in axes[:-1]:
        panel.get_legend().remove()
    figure.savefig(PAGES / "implicit_feedback_preferences.png", dpi=DPI)
    pyplot.close(figure)
