"""How a fit came to its end."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from pymc_ep.plots.axes import axes_for
from pymc_ep.results import fit_group, settings

__all__ = ["plot_convergence"]


def plot_convergence(idata: Any, *, ax: Any = None, figsize: Sequence[float] | None = None) -> np.ndarray:
    """Plot the objective and the largest change by iteration, and the search for the hyperparameters.

    Parameters
    ----------
    idata : arviz.InferenceData or xarray.DataTree
        Result of `pymc_ep.fit`.
    ax : sequence of matplotlib.axes.Axes, optional
        Two, or three where the hyperparameters were optimised.
    figsize : (float, float), optional
        Of a new figure, in inches.

    Returns
    -------
    ndarray of matplotlib.axes.Axes
        Log evidence and change at the returned hyperparameters; then log evidence plus log prior of each evaluation
        of the optimiser, if there was more than one. Of the double loop, which learns hyperparameters on its way, the
        bound with their log prior, and where variances are not exact the objective of the inner loop in its place. Of
        bilinear models the bound with their log prior, and what a step added to it; where all matrices are points it
        is the log density of these and the data.
    """
    fit = fit_group(idata)
    searched = fit.sizes.get("hyper_iteration", 0) > 1
    axes = axes_for(3 if searched else 2, ax, figsize)
    iteration = 1 + np.arange(fit.sizes["iteration"])
    axes[0].plot(iteration, fit["objective"], marker=".")
    axes[0].set(xlabel="iteration", ylabel=fit.attrs["objective_is"], title=fit.attrs["method"].upper())
    axes[1].plot(iteration, fit["max_change"], marker=".")
    tolerance = settings(idata).get("tol")
    if tolerance is not None:
        axes[1].axhline(tolerance, color="gray", linestyle="--", label="tolerance")
        axes[1].legend()
    title = "converged" if bool(fit["converged"]) else "not converged"
    axes[1].set(xlabel="iteration", ylabel=fit.attrs["max_change_is"], yscale="log", title=title)
    if searched:
        axes[2].plot(1 + np.arange(fit.sizes["hyper_iteration"]), fit["hyper_objective"], marker=".")
        axes[2].set(xlabel="evaluation", ylabel="log evidence + log prior", title="hyperparameters")
    return axes
