"""Plots of the result of `pymc_ep.diagnose`."""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import xarray as xr

from pymc_ep.plots.axes import axes_for

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["plot_diagnose"]

_INDICATOR = "_non_gaussianity"
"""Suffix of the names of divergences in the dataset."""
_NAMED = 3
"""Number of sites that are named in the picture: more labels would overlap."""
_BINS = 50
"""Bins of the histogram of weights."""
_LEAST_LOG_WEIGHT = -100.0
"""Least log of weight over mean weight on the axis. Lower weights are counted there: exp(-100) is zero in any mean."""


def plot_diagnose(
    dataset: xr.Dataset, *, ax: "Axes | Iterable[Axes] | None" = None, figsize: Sequence[float] | None = None
) -> np.ndarray:
    """Plot how far each site is from Gaussian, and the importance weights.

    Parameters
    ----------
    dataset : xarray.Dataset
        Result of `pymc_ep.diagnose`.
    ax : sequence of matplotlib.axes.Axes, optional
        One each for sites and for weights, whichever the dataset has.
    figsize : (float, float), optional
        Of a new figure, in inches.

    Returns
    -------
    ndarray of matplotlib.axes.Axes
        Divergence of each tilted distribution from its Gaussian, by the position of the observation in C order, with
        names at the largest ones. Then the histogram of the weights relative to their mean, on a log scale.
    """
    panels = []
    if "worst_site" in dataset.dims:
        panels.append(partial(_sites, dataset=dataset))
    if "log_weight" in dataset:
        panels.append(partial(_weights, dataset=dataset, log_weight=np.ravel(dataset["log_weight"].to_numpy())))
    if not panels:
        raise ValueError("The dataset has neither sites nor weights to plot; see its attribute 'absent'.")
    axes = axes_for(len(panels), ax, figsize)
    for panel, draw in zip(axes, panels):
        draw(panel)
    return axes


def _sites(panel: "Axes", dataset: xr.Dataset) -> None:
    for name in map(str, dataset):
        if name.endswith(_INDICATOR) and "worst_site" not in dataset[name].dims:
            values = np.ravel(dataset[name].to_numpy())
            label = name.removesuffix(_INDICATOR)
            panel.plot(np.arange(values.size), values, marker=".", linestyle="none", label=label)
    for k in range(min(_NAMED, dataset.sizes["worst_site"])):
        worst = dataset.isel(worst_site=k)
        at = int(worst["worst_index"]), float(worst["worst_non_gaussianity"])
        # Towards the middle, so that names stay inside the frame.
        side, aligned = (5, "left") if at[0] <= np.mean(panel.get_xlim()) else (-5, "right")
        label = f"{worst['worst_variable'].item()}[{at[0]}]"
        panel.annotate(label, at, textcoords="offset points", xytext=(side, 0), ha=aligned, va="center")
    panel.set(xlabel="observation", ylabel="divergence from Gaussian (nats)", title="tilted distributions")
    panel.legend()


def _weights(panel: "Axes", dataset: xr.Dataset, log_weight: np.ndarray) -> None:
    finite = log_weight[np.isfinite(log_weight)]
    if finite.size:
        top = finite.max()
        relative = finite - top - np.log(np.exp(finite - top).sum() / log_weight.size)
        panel.hist(np.maximum(relative, _LEAST_LOG_WEIGHT), bins=_BINS, color="C0", log=True)
    title = f"Pareto k = {float(dataset['pareto_k']):.2f}" if "pareto_k" in dataset else "importance weights"
    panel.axvline(0.0, color="gray", linestyle="--")
    panel.set(xlabel="log weight over mean weight", ylabel="draws", title=title)
