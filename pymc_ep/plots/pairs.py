"""Popularities of paired symbols, and ranks of held-out pairs."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import xarray as xr
from numpy.typing import ArrayLike

from pymc_ep.compat import Container
from pymc_ep.plots.axes import axes_for
from pymc_ep.results import fit_group, posterior_moments

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["plot_popularity", "plot_rank_by_activity"]


def plot_popularity(
    idata: Container,
    var_name: str,
    *,
    ax: "Axes | None" = None,
    figsize: Sequence[float] | None = None,
) -> "Axes":
    """Plot popularities of `PairedSymbols` against the numbers of observed pairs.

    Parameters
    ----------
    idata : arviz.InferenceData or xarray.DataTree
        Result of `pymc_ep.fit`.
    var_name : str
        Popularities of users or of items, such as ``"views_item_popularity"``.
    ax : matplotlib.axes.Axes, optional
    figsize : (float, float), optional
        Of a new figure, in inches.

    Returns
    -------
    matplotlib.axes.Axes
        On logarithmic axes, a dot for each symbol: the posterior mean of its popularity, and its share of the censored
        pairs. Where the shares fall away from the line of equal frequency, the symbol is pruned: it is taken for
        unpopular rather than for disliked. ``constant_messages=True`` prevents that.

    Raises
    ------
    ValueError
        Where the fit has no such popularities.
    """
    fit, means = fit_group(idata), posterior_moments(idata, "mean")
    if f"{var_name}_pairs" not in fit:
        known = [repr(str(name).removesuffix("_pairs")) for name in fit if str(name).endswith("_popularity_pairs")]
        raise ValueError(f"The fit has no popularities {var_name!r}; it has {', '.join(known) or 'none'}.")
    pairs = fit[f"{var_name}_pairs"].to_numpy()
    (panel,) = axes_for(1, ax, figsize)
    seen = pairs > 0
    for values, label in (
        (means[var_name].to_numpy(), "popularity, posterior mean"),
        (fit[f"{var_name}_censored"].to_numpy(), "share of censored pairs"),
    ):
        panel.loglog(pairs[seen], np.maximum(values[seen], np.finfo(float).tiny), ".", markersize=3, label=label)
    ends = np.array([pairs[seen].min(), pairs[seen].max()])
    panel.loglog(ends, ends / pairs.sum(), color="black", linewidth=0.8, label="frequency")
    panel.set(xlabel="observed pairs", ylabel="probability", title=var_name)
    panel.legend(frameon=False)
    return panel


def plot_rank_by_activity(
    ranks: xr.Dataset,
    pairs: ArrayLike,
    *,
    label: str | None = None,
    ax: "Axes | None" = None,
    figsize: Sequence[float] | None = None,
) -> "Axes":
    """Plot the mean rank of held-out pairs against the number of pairs that their rows were learned from.

    Parameters
    ----------
    ranks : xarray.Dataset
        What `pymc_ep.rank_items` returned.
    pairs : array_like of int, (n,)
        Number of learned pairs of the row of each held-out pair.
    label : str, optional
        Of the line, for several in one panel.
    ax : matplotlib.axes.Axes, optional
    figsize : (float, float), optional
        Of a new figure, in inches.

    Returns
    -------
    matplotlib.axes.Axes
        Means in bins that double, with two standard errors; 1/2 is chance.

    Raises
    ------
    ValueError
        For as many numbers of pairs as there are not ranks.
    """
    rank, counts = ranks["rank"].to_numpy(), np.asarray(pairs)
    if counts.shape != rank.shape:
        raise ValueError(f"pairs= has the shape {counts.shape}, and there are {len(rank)} ranks; give one for each.")
    (panel,) = axes_for(1, ax, figsize)
    bins = np.floor(np.log2(np.maximum(counts, 1))).astype(int)
    groups = [rank[bins == k] for k in np.unique(bins)]
    means = [float(group.mean()) for group in groups]
    errors = [2.0 * float(group.std() / np.sqrt(len(group))) for group in groups]
    panel.errorbar(2.0 ** (np.unique(bins) + 0.5), means, yerr=errors, marker="o", capsize=2, label=label)
    panel.set(xscale="log", xlabel="pairs learned from", ylabel="mean rank of the held-out pair")
    if label is not None:
        panel.legend(frameon=False)
    return panel
