"""Plot of medians and intervals of many elements."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pymc_ep.compat import Container
from pymc_ep.plots.axes import axes_for
from pymc_ep.plots.marginals import fits_of, levels_of, marginals_of, percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["plot_forest"]

_MOST = 60
"""Largest number of elements with names on the axis; more would not fit a page."""
_ROW = 0.22
"""Height of a row of one fit, in inches."""
_SPREAD = 0.7
"""Share of the height between elements over which several fits are spread."""


def plot_forest(
    idata: Container | Sequence[Container] | Mapping[str, Container],
    var_names: str | Sequence[str] | None = None,
    *,
    filter_vars: str | None = None,
    coords: Mapping[str, Any] | None = None,
    ci_probs: Sequence[float] | None = None,
    ci_kind: str | None = None,
    hdi_prob: float | None = None,
    model_names: Sequence[str] | None = None,
    ax: "Axes | None" = None,
    figsize: Sequence[float] | None = None,
) -> "Axes":
    """Plot medians with intervals of 50% and 90%, a row for each element.

    Parameters
    ----------
    idata : arviz.InferenceData, xarray.DataTree or xarray.Dataset, or a dict or list of them
        Result of `pymc_ep.fit`, also one without draws, of `pymc_ep.predict`, or of `pymc.sample`. Several are drawn
        side by side.
    var_names : str or sequence of str, optional
        By default the variables that were integrated out. ``"~x"`` leaves x out.
    filter_vars : {None, "like", "regex"}
        Whether `var_names` are names, parts of names, or regular expressions, as in ArviZ.
    coords : mapping, optional
        Labels of the elements that are drawn, by dim, such as ``{"county": ["AITKIN", "ANOKA"]}``.
    ci_probs : sequence of float, optional
        Probabilities of the intervals, by default 0.5 and 0.9.
    ci_kind : {"eti", "hdi"}
        Intervals with equal tails, the default, or of the highest density.
    hdi_prob : float, optional
        As in ArviZ 0.x: ``ci_kind="hdi"`` with an interval of this probability and one of 50%.
    model_names : sequence of str, optional
        Names of the fits of a list.
    ax : matplotlib.axes.Axes, optional
    figsize : (float, float), optional
        Of a new figure, in inches.

    Returns
    -------
    matplotlib.axes.Axes
        Intervals come from the draws where there are 1000 or more, and always for hyperparameters and for variables
        that are not affine in the latent ones. Otherwise they come from the normal with the posterior's moments.
    """
    levels = levels_of(ci_probs, ci_kind, hdi_prob)
    fits = fits_of(idata, model_names)
    marginals = marginals_of(fits, var_names, filter_vars, coords)
    rows = {label: None for several in marginals.values() for marginal in several.values() for label in marginal.labels}
    place = {label: k for k, label in enumerate(rows)}
    n, size = len(place), _ROW * min(len(place), _MOST) * max(1.0, 0.6 * len(fits))
    (panel,) = axes_for(1, ax, (4.8, 1.2 + size) if figsize is None else figsize)
    ends: list[np.ndarray] = []
    thickness = np.linspace(1.0, 3.0, len(levels.probs))
    for k, fit in enumerate(fits):
        ours = [several[fit] for several in marginals.values() if fit in several]
        at = np.array([place[label] for marginal in ours for label in marginal.labels])
        at = at + (k - (len(fits) - 1) / 2) * _SPREAD / len(fits)
        for width, prob in zip(thickness, levels.probs):
            low, high = (
                np.concatenate(side)
                for side in zip(*(map(np.ravel, marginal.interval(prob, levels.kind)) for marginal in ours))
            )
            name = fit if width == thickness[-1] else ""
            panel.hlines(at, low, high, color=f"C{k}", linewidth=width, label=name or percent(prob))
            ends += [low, high]
        middle = np.concatenate([np.ravel(marginal.middle) for marginal in ours])
        panel.plot(middle, at, color="black", marker="|", linestyle="none", label="median")
    several = len(fits) > 1
    panel.set(xlabel=f"posterior: median, {levels}" if several else "posterior", ylim=(n - 0.5, -0.5))
    if n <= _MOST:
        panel.set_yticks(np.arange(n), list(place))
    else:
        panel.set(ylabel="element")
    if min(map(np.min, ends)) < 0 < max(map(np.max, ends)):
        panel.axvline(0.0, color="gray", linestyle="--", linewidth=1.0, zorder=0)
    handles, names = panel.get_legend_handles_labels()
    shown = [(handle, name) for handle, name in zip(handles, names) if not several or name in fits]
    panel.legend(*zip(*shown), loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3, frameon=False)
    return panel
