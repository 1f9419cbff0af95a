"""Calibration of predictions: histograms of transforms, and reliability of probabilities."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pymc as pm
import scipy

from pymc_ep.compat import Container
from pymc_ep.diagnostics.calibration import loo_pit, predictive_pit
from pymc_ep.plots.axes import axes_for

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["plot_calibration"]

_BAND = 0.95
"""Probability that a bar or point of calibrated predictions lies in its band."""


def plot_calibration(
    idata: Container,
    model: pm.Model | None = None,
    var_name: str | None = None,
    *,
    data: Mapping[str, Any] | None = None,
    bins: int = 10,
    ax: "Axes | None" = None,
    figsize: Sequence[float] | None = None,
) -> "Axes":
    """Plot the histogram of probability integral transforms, or the reliability of probabilities.

    Parameters
    ----------
    idata : arviz.InferenceData or xarray.DataTree
        Result of `pymc_ep.fit`.
    model : pymc.Model, optional
        The fitted model; by default the model of the context.
    var_name : str, optional
        The observed variable; may be left out where there is one only.
    data : mapping of str to array_like, optional
        New observations of one variable, as for `pymc_ep.diagnostics.predictive_pit`. Without it each
        observation of the fit is predicted with itself left out.
    bins : int
    ax : matplotlib.axes.Axes, optional
    figsize : (float, float), optional
        Of a new figure, in inches.

    Returns
    -------
    matplotlib.axes.Axes
        For counts and real numbers, the share of transforms in each bin: flat where predictions are calibrated, like a
        cup where they are too certain, like a cap where they are too uncertain. The transform of a count is an
        interval, over which its share is spread evenly (Czado, Gneiting and Held 2009). For zeros and ones, the
        frequency of ones against the predicted probability. In 95% of calibrated cases a bar or point lies in its band.

    Raises
    ------
    UnsupportedModelError, ValueError
        As `pymc_ep.diagnostics.loo_pit` and `predictive_pit` do.
    """
    transforms = loo_pit(idata, model, var_name) if data is None else predictive_pit(idata, model, data)
    what = "leave-one-out probability" if data is None else "predictive probability"
    lower, upper = (np.ravel(transforms[name].to_numpy()) for name in sorted(map(str, transforms.data_vars)))
    (panel,) = axes_for(1, ax, figsize)
    edges = np.linspace(0.0, 1.0, bins + 1)
    if transforms.attrs["domain"] == "binary":
        _reliability(panel, lower, upper, edges)
        panel.set_xlabel(f"{what} of 1")
    else:
        _histogram(panel, lower, upper, edges)
        panel.set_xlabel(f"{what} integral transform")
    return panel


def _histogram(panel: "Axes", lower: np.ndarray, upper: np.ndarray, edges: np.ndarray) -> None:
    """Draw the share of transforms in each bin, and the band of the share of uniform transforms."""
    n, bins = len(lower), len(edges) - 1
    # The share of each interval below each edge; that of a point is zero or one.
    width = np.where(upper > lower, upper - lower, 1.0)
    below = np.where(upper > lower, np.clip((edges[:, None] - lower) / width, 0.0, 1.0), edges[:, None] >= upper)
    # All lie between the outer edges, to rounding.
    below[0], below[-1] = 0.0, 1.0
    share = np.diff(below.mean(axis=1))
    low, high = (scipy.stats.binom.ppf(q, n, 1.0 / bins) / n for q in ((1 - _BAND) / 2, (1 + _BAND) / 2))
    panel.bar(edges[:-1], share, width=np.diff(edges), align="edge", color="C0", alpha=0.6, edgecolor="white")
    panel.axhline(1.0 / bins, color="gray", linestyle="--")
    panel.axhspan(low, high, color="gray", alpha=0.2)
    panel.set(ylabel="share of observations", xlim=(0, 1))


def _reliability(panel: "Axes", lower: np.ndarray, upper: np.ndarray, edges: np.ndarray) -> None:
    """Draw the frequency of ones against the predicted probability, in bins of this probability."""
    is_one = lower > 0
    predicted = 1.0 - np.where(is_one, lower, upper)
    bins = np.clip(np.digitize(predicted, edges) - 1, 0, len(edges) - 2)
    for k in np.unique(bins):
        in_bin = bins == k
        size, probability = in_bin.sum(), predicted[in_bin].mean()
        low, high = (scipy.stats.binom.ppf(q, size, probability) / size for q in ((1 - _BAND) / 2, (1 + _BAND) / 2))
        panel.plot([probability] * 2, [low, high], color="gray", alpha=0.4, linewidth=4)
        panel.plot(probability, is_one[in_bin].mean(), marker="o", color="C0")
    panel.plot([0, 1], [0, 1], color="gray", linestyle="--")
    panel.set(ylabel="frequency of 1", xlim=(0, 1), ylim=(-0.02, 1.02))
