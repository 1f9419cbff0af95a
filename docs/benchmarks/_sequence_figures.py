"""Figures of `sequences`: losses of groups of users, and learning curves, from its rows."""

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np

from docs.benchmarks._common import PAGES

__all__ = ["draw_curves", "draw_groups"]

matplotlib.use("Agg")
from matplotlib import pyplot

METHODS = {
    "2-gram": ("0.75", ""),
    "1-gram of the user": ("0.5", ""),
    "SASRec": ("C3", ""),
    "C-GRU": ("C0", ""),
    "C-GRU, repeats": ("C0", "///"),
    "hierarchical C-GRU, repeats": ("C2", "///"),
    "pooled GRU, repeats": ("C1", "///"),
}
"""Colours and hatches of the methods that are drawn."""
DPI = 110

Rows = Mapping[str, Mapping[str, Sequence[Mapping[str, Any]]]]
"""Rows of seeds by title of the data set and method."""


def draw_groups(rows: Rows, bounds: Mapping[str, Mapping[str, Sequence[str]]], labels: Mapping[str, str]) -> str:
    """Draw nats of three groups of users by each criterion, a panel for each data set; return the line of the page."""
    figure, axes = pyplot.subplots(len(rows), len(labels), figsize=(10.0, 3.0 * len(rows)), layout="constrained")
    for panels, (title, methods) in zip(np.atleast_2d(axes), rows.items()):
        drawn = [method for method in METHODS if methods.get(method)]
        for panel, (what, label) in zip(panels, labels.items()):
            for k, method in enumerate(drawn):
                colour, hatch = METHODS[method]
                nats = np.array([row[what] for row in methods[method]])
                places = np.arange(3) + (k - (len(drawn) - 1) / 2) * 0.8 / len(drawn)
                style = {"color": colour, "hatch": hatch, "edgecolor": "white", "width": 0.8 / len(drawn)}
                panel.bar(places, nats.mean(axis=0), label=method, **style)
            panel.set_xticks(range(3), bounds[title][what])
            panel.set(xlabel=label, title=title, ylabel="nats a test event")
    shown = {label: handle for panel in np.ravel(axes) for handle, label in zip(*panel.get_legend_handles_labels())}
    figure.legend(shown.values(), shown, loc="outside lower center", ncols=4, frameon=False)
    figure.savefig(PAGES / "sequences_groups.png", dpi=DPI)
    pyplot.close(figure)
    return (
        "![Nats a test event of groups of users, by the entropy and the number of their events](sequences_groups.png)\n"
    )


def draw_curves(rows: Rows) -> str:
    """Draw nats by epoch in training, dashed, and of the validation events; return the line of the page."""
    figure, axes = pyplot.subplots(1, len(rows), figsize=(10.0, 3.4), layout="constrained", squeeze=False)
    for panel, (title, methods) in zip(axes[0], rows.items()):
        for k, (method, seeds) in enumerate((m, own) for m, own in methods.items() if own and "curves" in own[0]):
            for one in seeds:
                training, validation = one["curves"]
                epochs = 1 + np.arange(len(training))
                panel.plot(epochs, training, color=f"C{k}", ls="--", lw=0.8)
                panel.plot(epochs, validation, color=f"C{k}", lw=1.3, label=method if one is seeds[0] else None)
        panel.set(title=title, xlabel="epoch", ylabel="nats an event", xscale="log")
        _, most = panel.get_xlim()
        ticks = [tick for tick in (1, 2, 5, 10, 20, 50) if tick <= most]
        panel.set_xticks(ticks, list(map(str, ticks)))
        panel.minorticks_off()
    shown = {label: handle for panel in axes[0] for handle, label in zip(*panel.get_legend_handles_labels())}
    figure.legend(shown.values(), shown, loc="outside lower center", ncols=4, frameon=False)
    figure.savefig(PAGES / "sequences_curves.png", dpi=DPI)
    pyplot.close(figure)
    return "![Nats an event by epoch, in training and of validation events](sequences_curves.png)\n"
