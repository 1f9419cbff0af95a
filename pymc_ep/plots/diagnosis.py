"""Pictures of what `pymc_ep.diagnose` returns."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr

from pymc_ep.plots.axes import axes_for

__all__ = ["plot_diagnose"]

_INDICATOR = "_non_gaussianity"
_NAMED = 3
"""Sites that are named in the picture."""
_BINS = 50


def plot_diagnose(dataset: xr.Dataset, *, ax: Any = None, figsize: Sequence[float] | None = None) -> np.ndarray:
    """Plot how far each site is from Gaussian, and the importance weights.

    Parameters
    ----------
    dataset : xarray.Dataset
        What `pymc_ep.diagnose` returned.
    ax : sequence of matplotlib.axes.Axes, optional
        One, or two where the dataset has weights.
    figsize : (float, float), optional
        Of a new figure, in inches.

    Returns
    -------
    ndarray of matplotlib.axes.Axes
        Divergence of each tilted distribution from its Gaussian by the position of the observation, in C order, the
        worst named; then the histogram of the weights relative to their mean, on a log scale.
    """
    log_weight = dataset.get("log_weight")
    axes = axes_for(1 if log_weight is None else 2, ax, figsize)
    _sites(axes[0], dataset)
    if log_weight is not None:
        _weights(axes[1], dataset, np.ravel(log_weight.to_numpy()))
    return axes


def _sites(panel: Any, dataset: xr.Dataset) -> None:
    for name in map(str, dataset):
        if name.endswith(_INDICATOR) and "worst_site" not in dataset[name].dims:
            values = np.ravel(dataset[name].to_numpy())
            label = name.removesuffix(_INDICATOR)
            panel.plot(np.arange(values.size), values, marker=".", linestyle="none", label=label)
    for k in range(min(_NAMED, dataset.sizes["worst_site"])):
        worst = dataset.isel(worst_site=k)
        at = int(worst["worst_index"]), float(worst["worst_non_gaussianity"])
        panel.annotate(f"{worst['worst_variable'].item()}[{at[0]}]", at, textcoords="offset points", xytext=(4, 4))
    panel.set(xlabel="observation", ylabel="divergence from Gaussian (nats)", title="tilted distributions")
    panel.legend()


def _weights(panel: Any, dataset: xr.Dataset, log_weight: np.ndarray) -> None:
    finite = log_weight[np.isfinite(log_weight)]
    if finite.size:
        top = finite.max()
        relative = finite - top - np.log(np.exp(finite - top).sum() / log_weight.size)
        panel.hist(relative, bins=_BINS, color="C0", log=True)
    title = f"Pareto k = {float(dataset['pareto_k']):.2f}" if "pareto_k" in dataset else "importance weights"
    panel.axvline(0.0, color="gray", linestyle="--")
    panel.set(xlabel="log weight over mean weight", ylabel="draws", title=title)
