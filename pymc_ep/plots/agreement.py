"""Plot of the marginal posteriors of a fit against Markov chains."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from pymc_ep.compat import Container, group
from pymc_ep.diagnostics.agreement import compare_to_mcmc, flat_draws
from pymc_ep.plots.axes import axes_for, draw_density
from pymc_ep.plots.marginals import marginals_of
from pymc_ep.results import selected

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["plot_compare"]

_MANY = 12
"""Number of elements above which means and standard deviations are plotted rather than densities."""
_BINS = 40
"""Bins of a histogram of some 1000 draws."""


def plot_compare(
    idata: Container,
    idata_nuts: Container,
    var_names: str | Sequence[str] | None = None,
    *,
    filter_vars: str | None = None,
    coords: Mapping[str, Any] | None = None,
    kind: str = "auto",
    ax: "Axes | Iterable[Axes] | None" = None,
    figsize: Sequence[float] | None = None,
) -> np.ndarray:
    """Plot the marginal posteriors of a fit against Markov chains.

    Parameters
    ----------
    idata : arviz.InferenceData or xarray.DataTree
        Result of `pymc_ep.fit`.
    idata_nuts : arviz.InferenceData or xarray.DataTree
        Result of `pymc.sample` for the same model.
    var_names : str or sequence of str, optional
        By default all variables that both results have.
    filter_vars, coords
        As in `pymc_ep.compare_to_mcmc`.
    kind : {"auto", "density", "scatter"}
        ``"density"``: one panel for each element, with the histogram of the chains and the density of the fit. The
        density is ArviZ's kernel estimate from the draws of the fit, or for a latent variable with few draws the normal
        with its posterior moments. ``"scatter"``: one panel of the means, one of the standard deviations. ``"auto"``
        takes densities for up to 12 elements.
    ax : sequence of matplotlib.axes.Axes, optional
        One for each panel.
    figsize : (float, float), optional
        Of a new figure, in inches.

    Returns
    -------
    ndarray of matplotlib.axes.Axes

    Raises
    ------
    ValueError
        As `pymc_ep.compare_to_mcmc` does, and for an unknown `kind`.
    """
    if kind not in ("auto", "density", "scatter"):
        raise ValueError(f"kind={kind!r} must be 'auto', 'density' or 'scatter'.")
    table = compare_to_mcmc(idata, idata_nuts, var_names, filter_vars=filter_vars, coords=coords)
    if kind == "auto":
        kind = "density" if len(table) <= _MANY else "scatter"
    if kind == "scatter":
        axes = axes_for(2, ax, figsize)
        _scatter(axes[0], table, "mean", table["mean_mcse"] * table["sd_mcmc"])
        _scatter(axes[1], table, "sd", table["sd_mcse"] * table["sd_mcmc"])
        return axes
    axes = axes_for(len(table), ax, figsize)
    names = list(dict.fromkeys(str(label).split("[")[0] for label in table.index))
    fit = marginals_of({"": idata}, names, coords=coords)
    densities = [density for name in names for density in fit[name][""].densities()]
    chains = group(idata_nuts, "posterior")
    samples = [sample for name in names for sample in flat_draws(selected(chains[name], coords))]
    for panel, label, (at, density), sample in zip(axes, table.index, densities, samples):
        panel.hist(sample, bins=_BINS, density=True, color="C1", alpha=0.4, label="MCMC")
        draw_density(panel, at, density, color="C0", label="fit")
        panel.set(title=label, yticks=[])
    axes[0].legend()
    return axes


def _scatter(panel: "Axes", table: pd.DataFrame, column: str, error: pd.Series) -> None:
    """Draw one moment of the fit against the chains' moment, with four standard errors of the chains."""
    x, y = table[f"{column}_mcmc"], table[column]
    panel.errorbar(x, y, xerr=4 * error, fmt=".", color="C0", ecolor="C1", label="element, MCMC error times 4")
    ends = [min(x.min(), y.min()), max(x.max(), y.max())]
    panel.plot(ends, ends, color="gray", linestyle="--", label="equal")
    panel.set(xlabel="MCMC", ylabel="fit", title=_TITLES[column])
    panel.legend()


_TITLES = {"mean": "posterior mean", "sd": "posterior standard deviation"}
"""Titles of the panels of a scatter plot, by moment."""
