"""A latent function or a rate with its band, and the data."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from pymc_ep.compat import Container, group, has_group
from pymc_ep.plots.axes import axes_for
from pymc_ep.plots.intervals import Intervals, intervals_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["plot_latent"]


def plot_latent(
    idata: Container,
    var_name: str,
    *,
    x: ArrayLike | None = None,
    data: str | ArrayLike | None = None,
    transform: Callable[[Any], Any] | None = None,
    xlabel: str | None = None,
    ylabel: str | None = None,
    ax: "Axes | None" = None,
    figsize: Sequence[float] | None = None,
) -> "Axes":
    """Plot the band of a function of one coordinate, with data points.

    Parameters
    ----------
    idata : arviz.InferenceData, xarray.DataTree or xarray.Dataset
        Result of `pymc_ep.fit` or of `pymc_ep.predict`.
    var_name : str
        A variable with one dim.
    x : array_like, optional
        Where its values are; by default the coordinates of its dim.
    data : str or array_like, optional
        Name of an observed variable of the fit, or values, one for each of the variable's.
    transform : callable, optional
        Increasing function that is applied to the band, such as `numpy.exp` for the rate of log-linear counts.
    xlabel, ylabel : str, optional
        Labels, with units for instance; by default the names of the dim and of the variable.
    ax : matplotlib.axes.Axes, optional
    figsize : (float, float), optional
        Of a new figure, in inches.

    Returns
    -------
    matplotlib.axes.Axes
        Median, interval of 50% and interval of 90%; points are the data.

    Raises
    ------
    ValueError
        Where there is no such variable, or it has not one dim.
    """
    found = intervals_of(idata, var_name)
    if found.middle.ndim != 1:
        raise ValueError(
            f"{var_name!r} has the dims {found.middle.dims}, but a band needs one; plot_image shows two, and "
            f"plot_forest any number."
        )
    (dim,) = found.middle.dims
    at = np.asarray(found.middle[dim] if x is None else x)
    if at.shape != found.middle.shape:
        raise ValueError(f"x= has the shape {at.shape}, but {var_name!r} has {found.middle.size} values.")
    if transform is not None:
        found = Intervals(*(part.copy(data=transform(part.to_numpy())) for part in found))
    (panel,) = axes_for(1, ax, figsize)
    order = np.argsort(at, kind="stable")
    low, lower, middle, upper, high = (part.to_numpy()[order] for part in found)
    panel.fill_between(at[order], low, high, color="C0", alpha=0.2, linewidth=0, label="90%")
    panel.fill_between(at[order], lower, upper, color="C0", alpha=0.35, linewidth=0, label="50%")
    panel.plot(at[order], middle, color="C0", label="median")
    if data is not None:
        points = _points(idata, data)
        if points.shape != at.shape:
            raise ValueError(f"data= has the shape {points.shape}, but {var_name!r} has {at.size} values.")
        panel.plot(at, points, color="black", marker=".", linestyle="none", label="data")
    panel.set(xlabel=dim if xlabel is None else xlabel, ylabel=var_name if ylabel is None else ylabel)
    panel.margins(x=0.02)
    panel.legend(loc="best")
    return panel


def _points(idata: Container, data: str | ArrayLike) -> np.ndarray:
    """Return the observed variable that `data` names, or `data` itself."""
    if not isinstance(data, str):
        return np.asarray(data)
    known = group(idata, "observed_data") if hasattr(idata, "groups") and has_group(idata, "observed_data") else {}
    if data not in known:
        raise ValueError(f"data={data!r} is no observed variable of the fit; pass the values instead.")
    return known[data].to_numpy()
