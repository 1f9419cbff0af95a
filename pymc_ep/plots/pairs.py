"""Popularities and preferences of paired symbols, and ranks of held-out pairs."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pymc as pm
import xarray as xr
from numpy.typing import ArrayLike

from pymc_ep.compat import Container
from pymc_ep.engines.options import check_whole
from pymc_ep.graphs.context import model_of
from pymc_ep.numerics.quadrature.logistic import log_mean_sigmoid
from pymc_ep.plots.axes import axes_for
from pymc_ep.predict.verbs import recommend
from pymc_ep.results import fit_group, posterior_moments

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["plot_popularity", "plot_preference", "plot_rank_by_activity"]

_NUMBERS = 2**21
"""Largest number of pairs from which a density is computed: they take less than 200 MiB."""
_PAIRS = "_pairs"
"""End of the names of variables in the group ``fit`` that hold numbers of observed pairs."""
_EDGES = np.linspace(0.0, 1.0, 51)
"""Edges of the bins of a histogram of preference probabilities."""


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
        pairs. A symbol whose share falls far below the line of equal frequency is pruned: it is taken for unpopular
        rather than for disliked. ``constant_messages=True`` prevents pruning.

    Raises
    ------
    ValueError
        Where the fit has no such popularities.
    """
    fit, means = fit_group(idata), posterior_moments(idata, "mean")
    pairs = _pairs(fit, var_name).to_numpy()
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


def plot_preference(
    idata: Container,
    var_name: str,
    model: pm.Model | None = None,
    *,
    n: int = 200,
    title: str | None = None,
    ax: "Axes | None" = None,
    figsize: Sequence[float] | None = None,
) -> "Axes":
    """Plot how the preferences of users spread over items, by the numbers of pairs that users were observed with.

    Parameters
    ----------
    idata : arviz.InferenceData or xarray.DataTree
        Result of `pymc_ep.fit`.
    var_name : str
        Popularities of users, such as ``"views_user_popularity"``, or of items. With the latter, users and items change
        places: the plot shows how preferences spread over users, by the numbers of pairs of items.
    model : pymc.Model, optional
        The fitted model; by default the model of the context.
    n : int
        Largest number of users for each line, drawn with a fixed seed from all users with so many pairs. To bound
        memory, fewer are drawn where `n` users and all items would make more than 2 million pairs.
    title : str, optional
        Title, such as the censored ratio for several fits side by side; by default `var_name`.
    ax : matplotlib.axes.Axes, optional
    figsize : (float, float), optional
        Of a new figure, in inches.

    Returns
    -------
    matplotlib.axes.Axes
        A density for each number of pairs, in groups that quadruple: the density of the posterior mean of
        P(seen | i, j) = sigmoid(a_ij) over all items j, and over the users i of the group [1]_. It is narrow where
        little is known of preferences, and wide where preferences differ between items. Users without pairs are left
        out.

    Raises
    ------
    ValueError
        Where the fit has no such popularities, or the popularities have no dim.

    References
    ----------
    .. [1] U. Paquet, N. Koenigstein and O. Winther (2014), Scalable Bayesian modelling of paired symbols,
       arXiv:1409.2824.
    """
    check_whole("n", n)
    model = model_of(model)
    fit = fit_group(idata)
    pairs = _pairs(fit, var_name)
    (dim,), counts = pairs.dims, pairs.to_numpy()
    n_others = next(other.size for other in _all_pairs(fit) if other.name != pairs.name)
    if var_name not in model.named_vars_to_dims:
        raise ValueError(
            f"{var_name!r} has no dim, by which its rows are named; give the matrix of its side dims=, such as "
            f"dims=('user', 'factor'), and fit anew."
        )
    (panel,) = axes_for(1, ax, figsize)
    from matplotlib import colormaps

    rng, groups = np.random.default_rng(0), np.where(counts > 0, _doublings(counts) // 2, -1)
    shown = np.unique(groups[groups >= 0])
    for group, shade in zip(shown, np.linspace(0.0, 0.85, len(shown))):
        some = rng.permutation(np.flatnonzero(groups == group))[: min(n, max(1, _NUMBERS // n_others))]
        rows = {str(dim): pairs[dim].to_numpy()[some]}
        predicted = recommend(idata, model, n=n_others, by="predictor_mean", exclude_observed=False, **rows)
        preferences = np.exp(
            log_mean_sigmoid(predicted["predictor_mean"].to_numpy(), predicted["predictor_sd"].to_numpy())
        )
        density, _ = np.histogram(preferences, _EDGES, density=True)
        colour = colormaps["viridis"](shade)
        panel.stairs(density, _EDGES, color=colour, label=f"{4**group} to {4 ** (group + 1) - 1}")
    panel.set(xlabel="preference probability", ylabel="density", title=title or var_name)
    panel.legend(title="observed pairs", frameon=False)
    return panel


def plot_rank_by_activity(
    ranks: xr.Dataset,
    pairs: ArrayLike,
    *,
    label: str | None = None,
    ax: "Axes | None" = None,
    figsize: Sequence[float] | None = None,
) -> "Axes":
    """Plot the mean rank of held-out pairs against the number of fitted pairs of their rows, such as of their users.

    Parameters
    ----------
    ranks : xarray.Dataset
        Result of `pymc_ep.rank_items`.
    pairs : array_like of int, (n,)
        For each held-out pair, the number of pairs of its row in the fit.
    label : str, optional
        Label of the line, for several lines in one panel.
    ax : matplotlib.axes.Axes, optional
    figsize : (float, float), optional
        Of a new figure, in inches.

    Returns
    -------
    matplotlib.axes.Axes
        Mean ranks in bins of the numbers of pairs, each bin twice as wide as the one before, with two standard errors;
        1/2 is chance.

    Raises
    ------
    ValueError
        Where the numbers of ranks and of entries of `pairs` differ.
    """
    rank, counts = ranks["rank"].to_numpy(), np.asarray(pairs)
    if counts.shape != rank.shape:
        raise ValueError(f"pairs= has the shape {counts.shape}, and there are {len(rank)} ranks; give one for each.")
    (panel,) = axes_for(1, ax, figsize)
    bins = _doublings(counts)
    groups = [rank[bins == k] for k in np.unique(bins)]
    means = [float(group.mean()) for group in groups]
    errors = [2.0 * float(group.std() / np.sqrt(len(group))) for group in groups]
    panel.errorbar(2.0 ** (np.unique(bins) + 0.5), means, yerr=errors, marker="o", capsize=2, label=label)
    panel.set(xscale="log", xlabel="pairs learned from", ylabel="mean rank of the held-out pair")
    if label is not None:
        panel.legend(frameon=False)
    return panel


def _all_pairs(fit: xr.Dataset) -> list[xr.DataArray]:
    """Return two arrays, the numbers of observed pairs of the users and of the items."""
    return [fit[name] for name in fit if str(name).endswith(f"_popularity{_PAIRS}")]


def _pairs(fit: xr.Dataset, var_name: str) -> xr.DataArray:
    """Return the numbers of observed pairs of the symbols with these popularities."""
    if f"{var_name}{_PAIRS}" not in fit:
        names = [repr(str(array.name).removesuffix(_PAIRS)) for array in _all_pairs(fit)]
        raise ValueError(f"The fit has no popularities {var_name!r}; it has {', '.join(names) or 'none'}.")
    return fit[f"{var_name}{_PAIRS}"]


def _doublings(counts: np.ndarray) -> np.ndarray:
    """Return floor(log2(count)) for each count; zero for counts below one."""
    return np.floor(np.log2(np.maximum(counts, 1))).astype(int)
