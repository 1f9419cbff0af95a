"""Plots of the posterior of an image, and of how often its intervals contain the truth."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy
import xarray as xr
from numpy.typing import ArrayLike
from scipy.special import erf

from pymc_ep.compat import Container, group, has_group
from pymc_ep.plots.axes import axes_for
from pymc_ep.results import posterior_moments, require_dims, selected

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["moment_of", "plot_coverage", "plot_image"]

_PANEL = (3.4, 2.9)
"""Width and height of one image with its colour bar, in inches."""
_MISSING_COLOUR = "lightsteelblue"
"""Colour of missing data: no shade of gray, which would be a value."""
_BAND = 0.95
"""Probability that a share of calibrated intervals lies in the band."""
_LEVELS = np.linspace(0.01, 0.99, 99)
"""Nominal coverages at which intervals are counted."""


def plot_image(
    idata: Container,
    var_name: str,
    *,
    coords: Mapping[str, Any] | None = None,
    truth: ArrayLike | None = None,
    data: str | ArrayLike | None = None,
    cmap: str = "gray",
    ax: "Axes | Iterable[Axes] | None" = None,
    figsize: Sequence[float] | None = None,
) -> np.ndarray:
    """Show the posterior mean and standard deviation of an image, next to truth and data where given.

    Parameters
    ----------
    idata : arviz.InferenceData or xarray.DataTree
        Result of `pymc_ep.fit`.
    var_name : str
        A variable with two axes, rows and columns, or with more axes if `coords` selects all but two.
    coords : mapping, optional
        Labels by dim, such as ``{"frame": 3}`` of a stack of images.
    truth : array, (rows, columns), optional
    data : str or array with two axes, optional
        Name of an observed variable, or an image, of any shape and with NaN where nothing was observed.
    cmap : str
        Matplotlib's name of the colours of all panels but the standard deviation's.
    ax : sequence of matplotlib.axes.Axes, optional
        One for each panel.
    figsize : (float, float), optional
        Of a new figure, in inches.

    Returns
    -------
    ndarray of matplotlib.axes.Axes
        Truth, data, mean (or mode) and standard deviation, as far as available. The first three share one range of
        colours, the truth's or else the mean's, and one colour bar, on which an arrow marks values beyond it.
        The first row is on top, and the axes are in the variable's coordinates where these are evenly spaced numbers.

    Raises
    ------
    ValueError
        Where `var_name` is no image in the fit, and for a truth or data of the wrong shape.
    """
    what = "mode" if var_name in posterior_moments(idata, "mode") else "mean"
    mean, sds = moment_of(idata, var_name, what), posterior_moments(idata, "sd")
    require_dims(coords, [mean])
    mean = selected(mean, coords, squeeze=True)
    panels = []
    if truth is not None:
        panels.append(("truth", _image(truth, "truth", mean.shape)))
    if data is not None:
        panels.append(("data", _image(_observed(idata, data, coords), "data")))
    panels.append((f"posterior {what}", _image(mean, var_name)))
    shared = len(panels)
    if var_name in sds:
        panels.append(("posterior sd", _image(selected(sds[var_name], coords, squeeze=True), var_name)))
    size = (_PANEL[0] * len(panels), _PANEL[1]) if figsize is None else figsize
    axes = axes_for(len(panels), ax, size, columns=len(panels))
    # The range of noisy data would leave few colours to the image.
    leading = panels[0 if truth is not None else shared - 1][1]
    low, high = np.nanmin(leading), np.nanmax(leading)
    bars = []
    for k, (panel, (title, image)) in enumerate(zip(axes, panels)):
        # Data with other pixels do not have the variable's coordinates.
        extent = _extent(mean) if image.shape == mean.shape else None
        colours = {"cmap": cmap, "vmin": low, "vmax": high} if k < shared else {"cmap": "viridis"}
        shown = panel.imshow(image, extent=extent, interpolation="nearest", **colours)
        panel.set(title=title, facecolor=_MISSING_COLOUR)
        bars.append(shown)
    scale = np.concatenate([image.ravel() for _, image in panels[:shared]])
    axes[0].figure.colorbar(bars[0], ax=list(axes[:shared]), extend=_colour_bar_extend(scale, low, high))
    if len(panels) > shared:
        axes[-1].figure.colorbar(bars[-1], ax=axes[-1])
    return axes


def plot_coverage(
    idata: Container,
    truth: ArrayLike,
    var_name: str,
    *,
    ax: "Axes | None" = None,
    figsize: Sequence[float] | None = None,
) -> "Axes":
    """Plot how often central intervals contain the truth, against how often they should.

    Parameters
    ----------
    idata : arviz.InferenceData or xarray.DataTree
        Result of `pymc_ep.fit`.
    truth : array
        True values, in the variable's shape; elements that are NaN are not counted.
    var_name : str
        A variable whose mean and standard deviation the fit has; its elements are counted together.
    ax : matplotlib.axes.Axes, optional
    figsize : (float, float), optional
        Of a new figure, in inches.

    Returns
    -------
    matplotlib.axes.Axes
        The share of elements whose truth lies in the central interval of their Gaussian marginal, by the interval's
        probability: above the diagonal where intervals are too wide. For independent elements each point lies in the
        band in 95% of calibrated cases. Neighbours in an image are not independent, and their shares scatter more.

    Raises
    ------
    ValueError
        Where the fit has no moments of `var_name`, and for a truth of another shape or without a number.
    """
    mean, sd = (moment_of(idata, var_name, what).to_numpy() for what in ("mean", "sd"))
    truth = np.asarray(truth, dtype=float)
    if truth.shape != mean.shape:
        raise ValueError(
            f"truth= has the shape {truth.shape}, but {var_name!r} has {mean.shape}; give one of its shape."
        )
    counted = ~np.isnan(truth)
    if not counted.any():
        raise ValueError("truth= holds no number; give at least one element that is not NaN.")
    distance, sd = np.abs(truth - mean)[counted], sd[counted]
    # An element of standard deviation zero is in all intervals or in none.
    scaled = np.divide(distance, sd, out=np.where(distance > 0, np.inf, 0.0), where=sd > 0)
    least = np.sort(erf(scaled / np.sqrt(2.0)))
    share = np.searchsorted(least, _LEVELS, side="right") / least.size
    band = [scipy.stats.binom.ppf(q, least.size, _LEVELS) / least.size for q in ((1 - _BAND) / 2, (1 + _BAND) / 2)]
    (panel,) = axes_for(1, ax, figsize)
    panel.fill_between(_LEVELS, *band, color="gray", alpha=0.3, linewidth=0)
    panel.plot([0, 1], [0, 1], color="gray", linestyle="--")
    panel.plot(_LEVELS, share)
    panel.set(xlabel="probability of the interval", ylabel="share that contains the truth", title=var_name)
    panel.set(xlim=(0, 1), ylim=(-0.02, 1.02))
    return panel


def moment_of(idata: Container, name: str, what: str) -> xr.DataArray:
    """Return the posterior moment of a variable, such as "mean"; raise where the fit has none."""
    moments = posterior_moments(idata, what)
    if name not in moments:
        names = ", ".join(map(repr, map(str, moments))) or "none"
        raise ValueError(f"The fit has no posterior {what} of {name!r}; variables with this moment: {names}.")
    return moments[name]


def _observed(idata: Container, data: str | ArrayLike, coords: Mapping[str, Any] | None) -> ArrayLike:
    """Return the observed variable that `data` names, or `data` itself."""
    if not isinstance(data, str):
        return data
    observed = group(idata, "observed_data") if has_group(idata, "observed_data") else {}
    if data not in observed:
        names = ", ".join(repr(str(name)) for name in observed) or "none"
        raise ValueError(f"data={data!r} is no observed variable of the container; there are: {names}.")
    return selected(observed[data], coords, squeeze=True)


def _image(values: ArrayLike, name: str, shape: tuple[int, ...] | None = None) -> np.ndarray:
    image = np.asarray(values, dtype=float)
    if image.ndim != 2:
        raise ValueError(
            f"{name} has the shape {image.shape}, and an image has two axes; of observed pixels make an image with NaN "
            f"where there are none."
        )
    if shape is not None and image.shape != shape:
        raise ValueError(f"{name}= has the shape {image.shape}, but the variable has {shape}; give one of its shape.")
    return image


def _colour_bar_extend(image: np.ndarray, low: float, high: float) -> str:
    """Return Matplotlib's ``extend=`` of a colour bar: which ends have values beyond them."""
    return {(False, False): "neither", (True, False): "min", (False, True): "max", (True, True): "both"}[
        bool(np.nanmin(image) < low), bool(np.nanmax(image) > high)
    ]


def _extent(image: xr.DataArray) -> tuple[float, ...] | None:
    """Return left, right, bottom and top edges of an image in its coordinates; None unless these are evenly spaced."""
    ends = []
    for dim in reversed(image.dims):
        at = np.asarray(image.coords[dim]) if dim in image.coords else np.arange(image.sizes[dim])
        if at.dtype.kind not in "iuf":
            return None
        steps = np.diff(at.astype(float))
        step = steps.mean() if steps.size else 1.0
        if step == 0 or not np.allclose(steps, step, rtol=1e-3):
            return None
        ends.append((float(at[0] - step / 2), float(at[-1] + step / 2)))
    (left, right), (top, bottom) = ends
    return left, right, bottom, top
