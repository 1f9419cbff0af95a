"""A latent function or a rate with its band, and the data."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from pymc_ep.compat import Container, group, has_group
from pymc_ep.plots.axes import axes_for
from pymc_ep.plots.marginals import fits_of, levels_of, marginals_of, percent
from pymc_ep.results import selected

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["plot_latent"]


def plot_latent(
    idata: Container | Sequence[Container] | Mapping[str, Container],
    var_name: str,
    *,
    coords: Mapping[str, Any] | None = None,
    x: ArrayLike | None = None,
    data: str | ArrayLike | None = None,
    transform: Callable[[Any], Any] | None = None,
    ci_probs: Sequence[float] | None = None,
    ci_kind: str | None = None,
    hdi_prob: float | None = None,
    model_names: Sequence[str] | None = None,
    xlabel: str | None = None,
    ylabel: str | None = None,
    ax: "Axes | None" = None,
    figsize: Sequence[float] | None = None,
) -> "Axes":
    """Plot the band of a function of one coordinate, with data points.

    Parameters
    ----------
    idata : arviz.InferenceData, xarray.DataTree or xarray.Dataset, or a dict or list of them
        Result of `pymc_ep.fit`, of `pymc_ep.predict` or of `pymc.sample`. Several are drawn over each other.
    var_name : str
        A variable with one dim, or with more dims if `coords` selects all but one.
    coords : mapping, optional
        Labels of the elements that are drawn, by dim.
    x : array_like, optional
        Positions of the variable's values on the horizontal axis; by default the coordinates of its dim.
    data : str or array_like, optional
        Name of an observed variable of the (first) fit, or data, one for each value of the variable.
    transform : callable, optional
        Increasing function that is applied to the band, such as `numpy.exp` for the rate of log-linear counts.
    ci_probs, ci_kind, hdi_prob, model_names
        As in `plot_forest`.
    xlabel, ylabel : str, optional
        Labels, with units for instance; by default the names of the dim and of the variable.
    ax : matplotlib.axes.Axes, optional
    figsize : (float, float), optional
        Of a new figure, in inches.

    Returns
    -------
    matplotlib.axes.Axes
        Median, and intervals of 50% and 90% as in `plot_forest`; points are the data.

    Raises
    ------
    ValueError
        Where there is no such variable, where it does not have exactly one dim, and for intervals of highest density of
        a transform.
    """
    levels = levels_of(ci_probs, ci_kind, hdi_prob)
    if transform is not None and levels.kind == "hdi":
        raise ValueError("transform= keeps equal tails and no highest density: leave it or ci_kind='eti'.")
    fits = fits_of(idata, model_names)
    (marginals,) = marginals_of(fits, [var_name], coords=coords).values()
    first = selected(next(iter(marginals.values())).like, coords, squeeze=True)
    if first.ndim != 1:
        raise ValueError(
            f"{var_name!r} has the dims {first.dims}, but a band needs one; plot_image shows two, and plot_forest any "
            f"number."
        )
    (dim,) = first.dims
    (panel,) = axes_for(1, ax, figsize)
    several = len(marginals) > 1
    strength = np.linspace(0.2, 0.35, len(levels.probs))
    for k, (fit, marginal) in enumerate(marginals.items()):
        at = np.asarray(marginal.like[dim] if x is None else x)
        if at.shape != (marginal.like.size,):
            raise ValueError(f"x= has the shape {at.shape}, but {var_name!r} has {marginal.like.size} values.")
        order = np.argsort(at, kind="stable")
        for alpha, prob in zip(strength, levels.probs):
            low, high = (_curve(end, transform)[order] for end in marginal.interval(prob, levels.kind))
            label = None if several else percent(prob)
            panel.fill_between(at[order], low, high, color=f"C{k}", alpha=alpha, linewidth=0, label=label)
        label = fit if several else "median"
        panel.plot(at[order], _curve(marginal.middle, transform)[order], color=f"C{k}", label=label)
    if data is not None:
        points = _points(next(iter(fits.values())), data)
        if points.shape != at.shape:
            raise ValueError(f"data= has the shape {points.shape}, but {var_name!r} has {at.size} values.")
        panel.plot(at, points, color="black", marker=".", linestyle="none", label="data")
    panel.set(xlabel=dim if xlabel is None else xlabel, ylabel=var_name if ylabel is None else ylabel)
    panel.margins(x=0.02)
    panel.legend(loc="best")
    return panel


def _curve(values: np.ndarray, transform: Callable[[Any], Any] | None) -> np.ndarray:
    return np.ravel(values) if transform is None else np.asarray(transform(np.ravel(values)))


def _points(idata: Container, data: str | ArrayLike) -> np.ndarray:
    """Return the observed variable that `data` names, or `data` itself."""
    if not isinstance(data, str):
        return np.asarray(data)
    observed = group(idata, "observed_data") if hasattr(idata, "groups") and has_group(idata, "observed_data") else {}
    if data not in observed:
        raise ValueError(f"data={data!r} is no observed variable of the fit; pass the values instead.")
    return observed[data].to_numpy()
