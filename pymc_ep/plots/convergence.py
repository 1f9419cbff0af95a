"""Convergence of a fit, and the search or integration over its hyperparameters."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import xarray as xr

from pymc_ep.compat import Container
from pymc_ep.plots.axes import axes_for
from pymc_ep.plots.marginals import hyper_names, labels_of
from pymc_ep.results import fit_group, settings

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["plot_convergence"]

_LEAST_HEIGHT = 0.1
"""Least height of the axis of objectives, in nats: smaller differences do not matter, and so look flat."""
_MOST_POINT_PANELS = 3
"""Largest number of elements of hyperparameters with a panel of log density against value: one row of panels."""


def plot_convergence(
    idata: Container, *, ax: "Axes | Iterable[Axes] | None" = None, figsize: Sequence[float] | None = None
) -> np.ndarray:
    """Plot the objective and the largest change by iteration, and the search or integration over hyperparameters.

    Parameters
    ----------
    idata : arviz.InferenceData or xarray.DataTree
        Result of `pymc_ep.fit`.
    ax : sequence of matplotlib.axes.Axes, optional
        One for each panel.
    figsize : (float, float), optional
        Of a new figure, in inches.

    Returns
    -------
    ndarray of matplotlib.axes.Axes
        By iteration, the objective and the largest change, which the labels of the axes name. The objective of most
        methods is the log evidence at the returned hyperparameters. For the double loop, which learns hyperparameters
        on its way, it is the bound plus the log prior of the hyperparameters, or the objective of the inner loop where
        variances are not exact. For bilinear models it is the bound plus the log prior of the hyperparameters, and the
        change is its increase; where all matrices are point estimates, the bound is the log density of matrices and
        data.

        Then log evidence plus log prior at each evaluation of the optimiser, if there was more than one. Where the
        hyperparameters were integrated over, there follow up to three panels, one for each element: the log density of
        each fit against the element's value.
    """
    fit = fit_group(idata)
    searched = fit.sizes.get("hyper_iteration", 0) > 1
    points = _points(fit, hyper_names(idata))
    axes = axes_for(2 + searched + len(points), ax, figsize)
    iteration = 1 + np.arange(fit.sizes["iteration"])
    axes[0].plot(iteration, fit["objective"], marker=".")
    axes[0].set(xlabel="iteration", ylabel=fit.attrs["objective_is"], title=fit.attrs["method"].upper())
    _set_nats_axis(axes[0])
    axes[1].plot(iteration, fit["max_change"], marker=".")
    tolerance = settings(idata).get("tol")
    if tolerance is not None:
        axes[1].axhline(tolerance, color="gray", linestyle="--", label="tolerance")
        axes[1].legend()
    title = "converged" if bool(fit["converged"]) else "not converged"
    axes[1].set(xlabel="iteration", ylabel=fit.attrs["max_change_is"], yscale="log", title=title)
    for panel in axes[:2]:
        panel.xaxis.get_major_locator().set_params(integer=True)
    if searched:
        axes[2].plot(1 + np.arange(fit.sizes["hyper_iteration"]), fit["hyper_objective"], marker=".")
        axes[2].set(xlabel="evaluation", ylabel="log evidence + log prior", title="search of the hyperparameters")
        axes[2].xaxis.get_major_locator().set_params(integer=True)
        _set_nats_axis(axes[2])
    for panel, (label, values) in zip(axes[2 + searched :], points.items()):
        panel.plot(values, fit["hyper_log_density"] - fit["hyper_log_density"].max(), marker=".", linestyle="none")
        panel.set(xlabel=label, ylabel="log density over its maximum", title=f"{len(values)} fits")
    return axes


def _points(fit: xr.Dataset, names: Sequence[str]) -> dict[str, np.ndarray]:
    """Return the values at all fits of an integral, (k,), of up to three elements of hyperparameters, by label."""
    out: dict[str, np.ndarray] = {}
    for name in names if "hyper_log_density" in fit else ():
        values = fit[f"hyper_point_{name}"]
        flat = values.to_numpy().reshape(len(values), -1)
        out |= dict(zip(labels_of(values[0], name), flat.T))
    return dict(list(out.items())[:_MOST_POINT_PANELS])


def _set_nats_axis(panel: "Axes") -> None:
    """Set a y-axis of at least `_LEAST_HEIGHT` nats, whose labels are values without an offset."""
    low, high = panel.get_ylim()
    if high - low < _LEAST_HEIGHT:
        middle = 0.5 * (low + high)
        panel.set_ylim(middle - 0.5 * _LEAST_HEIGHT, middle + 0.5 * _LEAST_HEIGHT)
    panel.ticklabel_format(axis="y", useOffset=False)
