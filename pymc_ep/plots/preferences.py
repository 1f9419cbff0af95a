"""Maps of items by their factors, and rankings of items for one user."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import xarray as xr
from numpy.typing import ArrayLike

from pymc_ep.compat import Container
from pymc_ep.exceptions import InvalidDataError, at_index, first_index
from pymc_ep.plots.axes import axes_for
from pymc_ep.results import posterior_moments

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.text import Annotation

__all__ = ["plot_item_map", "plot_item_ranks"]

_ARROW = "C1"
"""Colour of the arrows of features, and of their names."""
_SHOWN = 0.95
"""Least total probability, for each item, of the ranks that are shown."""


def plot_item_map(
    idata: Container,
    var_name: str = "V",
    *,
    features: pd.DataFrame | ArrayLike | None = None,
    n_labels: int = 25,
    ax: "Axes | None" = None,
    figsize: Sequence[float] | None = None,
) -> "Axes":
    """Plot items so that items which the same users like are close to each other.

    Parameters
    ----------
    idata : arviz.InferenceData or xarray.DataTree
        Result of `pymc_ep.fit`.
    var_name : str
        Factors of the items, (items, factors), such as V of `pymc_ep.PreferenceUtility`.
    features : DataFrame or array_like, (items, F), optional
        Features of the items, such as zeros and ones for genres of films, drawn as arrows. The columns of a DataFrame
        name them.
    n_labels : int
        Largest number of items that are named, the ones farthest from the middle. Names that would cover other names
        are left out.
    ax : matplotlib.axes.Axes, optional
    figsize : (float, float), optional
        Of a new figure, in inches.

    Returns
    -------
    matplotlib.axes.Axes
        A dot for each item, in the two leading principal directions of the factors' posterior mean. The distance of
        two items is the standard deviation over users of the difference of the items' utilities, as far as it is due to
        these directions. The label of each axis has its share of the variance. An arrow points to where a feature
        grows, by a regression of the feature on the two directions. Its length is the multiple correlation of the
        regression, times the distance of the outermost item from the middle.

    Raises
    ------
    ValueError
        Where the fit has no moments of `var_name`, or `var_name` is no matrix of two factors or more.
    InvalidDataError
        For features that are not finite, or of another number of items.
    """
    means = posterior_moments(idata, "mean")
    if var_name not in means or means[var_name].ndim != 2 or min(means[var_name].shape) < 2:
        raise ValueError(
            f"var_name={var_name!r} is no matrix of the fit, (items, factors), with two factors or more; the fit has "
            f"{', '.join(map(repr, means))}."
        )
    factors = means[var_name]
    left, sizes, _ = np.linalg.svd(factors.to_numpy() - factors.to_numpy().mean(axis=0), full_matrices=False)
    at, shares = (left * sizes)[:, :2], sizes**2 / (sizes**2).sum()
    arrows = {} if features is None else _arrows(_features(features, len(at)), at)
    (panel,) = axes_for(1, ax, figsize)
    panel.axhline(0.0, color="0.85", linewidth=0.8, zorder=0)
    panel.axvline(0.0, color="0.85", linewidth=0.8, zorder=0)
    panel.plot(*at.T, "o", color="C0", markersize=3)
    panel.set(title=f"{factors.dims[0]}s by {var_name}")
    panel.set(**{f"{axis}label": f"direction {k + 1}, {shares[k]:.0%} of the variance" for k, axis in enumerate("xy")})
    panel.update_datalim([*arrows.values(), (0.0, 0.0)])
    panel.margins(0.25)
    panel.set_aspect("equal", adjustable="datalim")
    # Sizes of texts, in pixels, are known once the axes have their place.
    panel.figure.draw_without_rendering()
    taken = []
    for name, end in arrows.items():
        panel.annotate("", end, (0.0, 0.0), arrowprops={"arrowstyle": "->", "color": _ARROW})
        taken.append(_named(panel, name, end, fontsize="small", color=_ARROW).get_window_extent())
    labels, radius = factors[factors.dims[0]].to_numpy(), np.hypot(*at.T)
    for k in np.argsort(-radius, kind="stable")[:n_labels]:
        text = _named(panel, str(labels[k]), at[k], fontsize="x-small", color="0.25")
        if text.get_window_extent().count_overlaps(taken):
            text.remove()
        else:
            taken.append(text.get_window_extent())
    return panel


def _features(features: pd.DataFrame | ArrayLike, n_items: int) -> pd.DataFrame:
    """Return features as a table; raise InvalidDataError unless there is one finite row for each item."""
    table = pd.DataFrame(features).astype(float)
    if len(table) != n_items:
        raise InvalidDataError(f"features= has {len(table)} rows, and there are {n_items} items; give one of each.")
    bad = ~np.isfinite(table.to_numpy())
    if bad.any():
        place = first_index(bad)
        raise InvalidDataError(f"features= has {table.to_numpy()[place]}{at_index(place)}; replace it by a number.")
    return table


def _arrows(features: pd.DataFrame, at: np.ndarray) -> dict[str, np.ndarray]:
    """Return the end of each feature's arrow, (2,), by name; features that are constant are left out."""
    ends = {}
    for name, values in features.items():
        apart = values.to_numpy() - values.mean()
        slope = np.linalg.lstsq(at, apart, rcond=None)[0]
        length = np.linalg.norm(slope)
        if length > 0:
            ends[str(name)] = slope / length * np.hypot(*at.T).max() * (at @ slope).std() / apart.std()
    return ends


def _named(panel: "Axes", name: str, at: np.ndarray, *, fontsize: str, color: str) -> "Annotation":
    """Write a name beside a point, away from the middle."""
    return panel.annotate(
        name,
        (at[0], at[1]),
        (3.0 * np.sign(at[0]), 2.0 * np.sign(at[1])),
        textcoords="offset points",
        ha="left" if at[0] >= 0 else "right",
        va="bottom" if at[1] >= 0 else "top",
        fontsize=fontsize,
        color=color,
    )


def plot_item_ranks(
    ranks: xr.Dataset, *, n: int = 20, ax: "Axes | None" = None, figsize: Sequence[float] | None = None
) -> "Axes":
    """Plot the probability of each rank of the items that are likely to be best for one user.

    Parameters
    ----------
    ranks : xarray.Dataset
        Result of `pymc_ep.rank_items` for one user, for comparisons of items.
    n : int
        Largest number of items.
    ax : matplotlib.axes.Axes, optional
    figsize : (float, float), optional
        Of a new figure, in inches.

    Returns
    -------
    matplotlib.axes.Axes
        A row for each item, in the order of mean ranks, which are shown as dots. A column for each rank, up to the rank
        by which every row has 95% of its probability. The darker a cell, the more probable the rank.

    Raises
    ------
    ValueError
        For ranks of several users, and of models without comparisons.
    """
    if "rank_probability" not in ranks:
        raise ValueError("ranks= has no probabilities of ranks; give what rank_items returns for comparisons of items.")
    probability = ranks["rank_probability"]
    *users, item, _ = probability.dims
    if any(probability.sizes[dim] > 1 for dim in users):
        raise ValueError(f"ranks= is of {probability.sizes[users[0]]} users; select one, as by .isel({users[0]}=[0]).")
    who = ", ".join(f"{dim} = {probability[dim].item()}" for dim in users)
    of_ranks, mean = (ranks[name].squeeze(users, drop=True) for name in ("rank_probability", "mean_rank"))
    best = np.argsort(mean.to_numpy(), kind="stable")[:n]
    shown, place = of_ranks.to_numpy()[best], mean.to_numpy()[best]
    last = min(1 + int((shown.cumsum(axis=1) < _SHOWN).sum(axis=1).max()), shown.shape[1])
    (panel,) = axes_for(1, ax, (5.5, 1.2 + 0.2 * len(best)) if figsize is None else figsize)
    extent = (0.5, last + 0.5, len(best) - 0.5, -0.5)
    cells = panel.imshow(shown[:, :last], cmap="Blues", vmin=0.0, extent=extent, aspect="auto", interpolation="nearest")
    seen = place <= last
    panel.plot(place[seen], np.flatnonzero(seen), "o", color="C1", markersize=4, label="mean rank")
    panel.set_yticks(np.arange(len(best)), [str(label) for label in of_ranks[item].to_numpy()[best]])
    panel.set(xlabel="rank", title=who)
    panel.figure.colorbar(cells, ax=panel, label="probability")
    panel.legend(loc="upper right", frameon=False)
    return panel
