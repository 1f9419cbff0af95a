"""Means and intervals of many elements."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from pymc_ep.compat import Container
from pymc_ep.plots.axes import axes_for
from pymc_ep.plots.intervals import Intervals, intervals_of, labels_of
from pymc_ep.results import settings

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["plot_forest"]

_MOST = 60
"""Most elements with names on the axis; more would not fit a page."""
_ROW = 0.22
"""Height of a row, in inches."""


def plot_forest(
    idata: Container,
    var_names: str | Sequence[str] | None = None,
    *,
    ax: "Axes | None" = None,
    figsize: Sequence[float] | None = None,
) -> "Axes":
    """Plot medians with intervals of 50% and 90%, a row for each element.

    Parameters
    ----------
    idata : arviz.InferenceData, xarray.DataTree or xarray.Dataset
        Result of `pymc_ep.fit`, also one without draws, or of `pymc_ep.predict`.
    var_names : str or sequence of str, optional
        By default the variables that were integrated out.
    ax : matplotlib.axes.Axes, optional
    figsize : (float, float), optional
        Of a new figure, in inches.

    Returns
    -------
    matplotlib.axes.Axes
        Intervals are those of the normal with the posterior's moments; for hyperparameters, and for variables that are
        not affine in the latent ones, those of the draws.
    """
    names = settings(idata)["latent"] if var_names is None else var_names
    parts: list[Intervals] = []
    labels: list[str] = []
    for name in [names] if isinstance(names, str) else names:
        found = intervals_of(idata, name)
        parts.append(found)
        labels += labels_of(found.middle, name)
    low, lower, middle, upper, high = (
        np.concatenate([np.ravel(found[k].to_numpy()) for found in parts]) for k in range(len(Intervals._fields))
    )
    n = len(labels)
    (panel,) = axes_for(1, ax, (4.8, 1.2 + _ROW * min(n, _MOST)) if figsize is None else figsize)
    row = np.arange(n)
    panel.hlines(row, low, high, color="C0", linewidth=1.0, label="90%")
    panel.hlines(row, lower, upper, color="C0", linewidth=3.0, label="50%")
    panel.plot(middle, row, color="black", marker="|", linestyle="none", label="median")
    panel.set(xlabel="posterior", ylim=(n - 0.5, -0.5))
    if n <= _MOST:
        panel.set_yticks(row, labels)
    else:
        panel.set(ylabel="element")
    if low.min() < 0 < high.max():
        panel.axvline(0.0, color="gray", linestyle="--", linewidth=1.0, zorder=0)
    panel.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3, frameon=False)
    return panel
