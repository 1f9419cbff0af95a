"""States and sizes of wavelet coefficients, level by level."""

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from pymc_ep.compat import Container
from pymc_ep.plots.axes import axes_for
from pymc_ep.results import fit_group, posterior_moments

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["plot_coefficients", "plot_states"]

_BINS = 40
"""Bins of a histogram of coefficients."""
_LEAST = 1e-6
"""Modulus of a coefficient, relative to the largest, below which all are counted in one bin: the axis is
logarithmic."""


def plot_states(
    idata: Container,
    var_name: str,
    *,
    cmap: str = "viridis",
    ax: "Axes | None" = None,
    figsize: Sequence[float] | None = None,
) -> "Axes":
    """Show where the coefficients of a `WaveletTree` are in the high state.

    Parameters
    ----------
    idata : arviz.InferenceData or xarray.DataTree
        Result of `pymc_ep.fit`.
    var_name : str
        A `WaveletTree` of the model.
    cmap : str
        Matplotlib's name of the colours.
    ax : matplotlib.axes.Axes, optional
    figsize : (float, float), optional
        Of a new figure, in inches.

    Returns
    -------
    matplotlib.axes.Axes
        Probabilities of the high state in the usual arrangement of a wavelet transform: of each level horizontal
        details at the bottom left, vertical ones at the top right and diagonal ones at the bottom right, with the next,
        coarser level at the top left.

    Raises
    ------
    ValueError
        Where the fit has no states of `var_name`.
    """
    (panel,) = axes_for(1, ax, figsize)
    high, shape = _coefficient_values(idata, var_name, "indicator")
    mosaic = np.full(shape, np.nan)
    for (rows, columns), bands in _levels(high, shape):
        mosaic[rows : 2 * rows, :columns], mosaic[:rows, columns : 2 * columns] = bands[0], bands[1]
        mosaic[rows : 2 * rows, columns : 2 * columns] = bands[2]
    shown = panel.imshow(mosaic, cmap=cmap, vmin=0.0, vmax=1.0, interpolation="nearest")
    panel.figure.colorbar(shown, ax=panel, label="probability of the high state")
    panel.set(title=f"{var_name}: states of the coefficients", xticks=[], yticks=[])
    return panel


def plot_coefficients(
    idata: Container,
    var_name: str,
    *,
    ax: "Axes | Iterable[Axes] | None" = None,
    figsize: Sequence[float] | None = None,
) -> np.ndarray:
    """Plot how large the coefficients of a `WaveletTree` are in either state, a panel for each level.

    Parameters
    ----------
    idata : arviz.InferenceData or xarray.DataTree
        Result of `pymc_ep.fit`.
    var_name : str
        A `WaveletTree` of the model.
    ax : sequence of matplotlib.axes.Axes, optional
        One for each level.
    figsize : (float, float), optional
        Of a new figure, in inches.

    Returns
    -------
    ndarray of matplotlib.axes.Axes
        Histograms of the logarithms of the sizes of posterior means, for either state, the finest level first. A
        coefficient counts in both histograms, by the probabilities of its states.

    Raises
    ------
    ValueError
        Where the fit has no states of `var_name`.
    """
    high, shape = _coefficient_values(idata, var_name, "indicator")
    sizes = np.abs(_coefficient_values(idata, var_name, "coefficient_mean")[0])
    sizes = np.log10(np.maximum(sizes, _LEAST * max(sizes.max(), np.finfo(float).tiny)))
    levels = list(zip(_levels(high, shape), _levels(sizes, shape)))
    axes = axes_for(len(levels), ax, figsize)
    edges = np.linspace(sizes.min(), sizes.max(), _BINS + 1)
    for k, (panel, ((_, states), (_, values))) in enumerate(zip(axes, levels)):
        for weight, label in ((1.0 - states, "low"), (states, "high")):
            panel.hist(values.ravel(), edges, weights=weight.ravel(), alpha=0.6, label=label)
        panel.set(title=f"level {k}", xlabel="log10 of the size", ylabel="coefficients")
    axes[0].legend(frameon=False)
    return axes


def _coefficient_values(idata: Container, name: str, what: str) -> tuple[np.ndarray, tuple[int, int]]:
    """Return the values of all coefficients, finest level first, and the shape of the image."""
    fit = fit_group(idata)
    if f"{name}_{what}" not in fit:
        names = [repr(str(key).removesuffix("_indicator")) for key in fit if str(key).endswith("_indicator")]
        raise ValueError(
            f"The fit has no {name}_{what}; variables with states of their coefficients: {', '.join(names) or 'none'}."
        )
    means = posterior_moments(idata, "mean")
    rows, columns = (means if name in means else posterior_moments(idata, "mode"))[name].shape
    return fit[f"{name}_{what}"].to_numpy(), (rows, columns)


def _levels(values: np.ndarray, shape: tuple[int, int]) -> Iterator[tuple[tuple[int, int], np.ndarray]]:
    """Yield the shape of a band and the three bands of each level, the finest first."""
    rows, columns = shape
    while len(values):
        rows, columns = rows // 2, columns // 2
        bands, values = np.split(values, [3 * rows * columns])
        yield (rows, columns), bands.reshape(3, rows, columns)
