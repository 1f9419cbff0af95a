"""A fit next to Markov chains."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import scipy

from pymc_ep.compat import Container, group, has_group
from pymc_ep.diagnostics.agreement import compare_to_mcmc, flat_draws
from pymc_ep.plots.axes import axes_for

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["plot_compare"]

_MANY = 12
"""Elements above which means and standard deviations are plotted rather than densities."""
_REACH = 4.0
"""Posterior standard deviations of the fit on either side of its mean, at least, on the axis of a density."""
_POINTS = 201
"""Points of the line of a density."""
_BINS = 40
"""Bins of a histogram of some 1000 draws."""


def plot_compare(
    idata: Container,
    idata_nuts: Container,
    var_names: Sequence[str] | None = None,
    *,
    kind: str = "auto",
    ax: "Axes | Iterable[Axes] | None" = None,
    figsize: Sequence[float] | None = None,
) -> np.ndarray:
    """Plot the marginal posteriors of a fit against those of Markov chains.

    Parameters
    ----------
    idata : arviz.InferenceData or xarray.DataTree
        Result of `pymc_ep.fit`.
    idata_nuts : arviz.InferenceData or xarray.DataTree
        Result of `pymc.sample` for the same model.
    var_names : sequence of str, optional
        By default all variables that both have.
    kind : {"auto", "density", "scatter"}
        ``"density"``: one panel an element, the chains' histogram and the fit's density, a kernel estimate from its
        draws, or without draws the normal with its moments. ``"scatter"``: one panel of the means, one of the
        standard deviations. ``"auto"`` takes densities up to 12 elements.
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
    table = compare_to_mcmc(idata, idata_nuts, var_names)
    if kind == "auto":
        kind = "density" if len(table) <= _MANY else "scatter"
    if kind == "scatter":
        axes = axes_for(2, ax, figsize)
        _scatter(axes[0], table, "mean", table["mean_mcse"] * table["sd_mcmc"])
        _scatter(axes[1], table, "sd", table["sd_mcse"] * table["sd_mcmc"])
        return axes
    axes = axes_for(len(table), ax, figsize)
    chains = _rows(idata_nuts, table)
    draws = _rows(idata, table) if has_group(idata, "posterior") else [None] * len(table)
    for panel, (label, row), own, sample in zip(axes, table.iterrows(), draws, chains):
        _density(panel, row, own, sample)
        panel.set(title=label, yticks=[])
    axes[0].legend()
    return axes


def _rows(container: Container, table: pd.DataFrame) -> list[np.ndarray]:
    """Return the draws of the element in each row of the table."""
    posterior = group(container, "posterior")
    names = dict.fromkeys(str(label).split("[")[0] for label in table.index)
    return [draws for name in names for draws in flat_draws(posterior[name])]


def _density(panel: "Axes", row: pd.Series, own: np.ndarray | None, sample: np.ndarray) -> None:
    """Draw the chains' histogram and the fit's density over it: that of its draws, or the normal of its moments."""
    panel.hist(sample, bins=_BINS, density=True, color="C1", alpha=0.4, label="MCMC")
    low = min(sample.min(), row["mean"] - _REACH * row["sd"])
    high = max(sample.max(), row["mean"] + _REACH * row["sd"])
    if own is None:
        density = scipy.stats.norm(row["mean"], row["sd"]).pdf
    else:
        # Beyond the draws of a bounded variable a kernel estimate would show mass that the fit does not have.
        density, low, high = scipy.stats.gaussian_kde(own), own.min(), own.max()
    at = np.linspace(low, high, _POINTS)
    panel.plot(at, density(at), color="C0", label="fit")


def _scatter(panel: "Axes", table: pd.DataFrame, column: str, error: pd.Series) -> None:
    """Draw one moment of the fit against that of the chains, with four standard errors of these."""
    x, y = table[f"{column}_mcmc"], table[column]
    panel.errorbar(x, y, xerr=4 * error, fmt=".", color="C0", ecolor="C1", label="element, MCMC error times 4")
    ends = [min(x.min(), y.min()), max(x.max(), y.max())]
    panel.plot(ends, ends, color="gray", linestyle="--", label="equal")
    panel.set(xlabel="MCMC", ylabel="fit", title=_TITLES[column])
    panel.legend()


_TITLES = {"mean": "posterior mean", "sd": "posterior standard deviation"}
"""Titles of the panels of a scatter plot, by moment."""
