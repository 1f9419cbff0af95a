"""Figures of `sequences`: losses of groups of users, and learning curves, from its rows."""

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np

from docs.benchmarks._common import PAGES

__all__ = ["draw_curves", "draw_groups"]

matplotlib.use("Agg")
from matplotlib import pyplot

COLOURS = {"hierarchical C-GRU": "C2", "C-GRU": "C0", "pooled GRU": "C1", "C-tanh": "C4"}
"""Colours of networks, with repeats and without."""
REPEATS = ", repeats"
"""How names of networks with repeats end."""
METHODS = {
    "2-gram": ("0.75", ""),
    "1-gram of the user": ("0.5", ""),
    "SASRec": ("C3", ""),
    "C-GRU": (COLOURS["C-GRU"], ""),
    **{f"{network}{REPEATS}": (COLOURS[network], "///") for network in ("C-GRU", "hierarchical C-GRU", "pooled GRU")},
}
"""Colours and hatches of the methods whose groups are drawn."""
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
    endings = {REPEATS: "with repeats", "": "without"}
    figure, axes = pyplot.subplots(len(endings), len(rows), figsize=(10.0, 5.6), layout="constrained", squeeze=False)
    for panels, (ending, words) in zip(axes, endings.items()):
        for panel, (title, methods) in zip(panels, rows.items()):
            for network, colour in COLOURS.items():
                for one in methods.get(network + ending, []):
                    training, validation = one["curves"]
                    epochs = 1 + np.arange(len(training))
                    panel.plot(epochs, training, color=colour, ls="--", lw=0.8)
                    panel.plot(epochs, validation, color=colour, lw=1.3, label=network)
            panel.set(title=f"{title}, {words}", xlabel="epoch", ylabel="nats an event", xscale="log")
            _, most = panel.get_xlim()
            ticks = [tick for tick in (1, 2, 5, 10, 20, 50) if tick <= most]
            panel.set_xticks(ticks, list(map(str, ticks)))
            panel.minorticks_off()
            panel.set_visible(bool(panel.lines))
    shown = {label: handle for panel in axes.flat for handle, label in zip(*panel.get_legend_handles_labels())}
    figure.legend(shown.values(), shown, loc="outside lower center", ncols=4, frameon=False)
    figure.savefig(PAGES / "sequences_curves.png", dpi=DPI)
    pyplot.close(figure)
    return "![Nats an event by epoch, in training and of validation events](sequences_curves.png)\n"
