"""Contribution of each factor of a bilinear model to its predictors."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from pymc_ep.compat import Container
from pymc_ep.exceptions import UnsupportedModelError
from pymc_ep.plots.axes import axes_for
from pymc_ep.results import posterior_moments, settings

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["plot_relevance"]


def plot_relevance(idata: Container, *, ax: "Axes | None" = None, figsize: Sequence[float] | None = None) -> "Axes":
    """Plot the size of each factor's contribution to the predictors of a bilinear model, the largest first.

    Parameters
    ----------
    idata : arviz.InferenceData or xarray.DataTree
        Result of `pymc_ep.fit` for a bilinear model, such as one with a `BilinearPoisson`.
    ax : matplotlib.axes.Axes, optional
    figsize : (float, float), optional
        Of a new figure, in inches.

    Returns
    -------
    matplotlib.axes.Axes
        A full bar for each factor: the root mean square, over all pairs of rows of the two matrices, of the product of
        the posterior means of the factor's two entries. An outlined bar is the root mean square of the product itself
        under the posterior: the part above the full bar is uncertainty. The full bar of a factor that the data do not
        need is nearly zero.

    Raises
    ------
    UnsupportedModelError
        For fits of other models.
    """
    latent = settings(idata)["latent"]
    means, sds = (posterior_moments(idata, what) for what in ("mean", "sd"))
    matrices = [means[name] for name in latent if name in means and means[name].ndim == 2][:2]
    if len(matrices) < 2 or matrices[0].shape[1] != matrices[1].shape[1]:
        raise UnsupportedModelError(
            f"plot_relevance takes fits of bilinear models, which have two matrices of factors, but this is one of "
            f"{', '.join(map(repr, latent))}."
        )
    names = [str(mean.name) for mean in matrices]
    squares = [mean.to_numpy() ** 2 for mean in matrices]
    variances = [sds[name].to_numpy() ** 2 for name in names]
    of_means = np.sqrt(np.prod([square.mean(axis=0) for square in squares], axis=0))
    of_products = np.sqrt(np.prod([(m + v).mean(axis=0) for m, v in zip(squares, variances)], axis=0))
    order = np.argsort(-of_means, kind="stable")
    place, labels = np.arange(len(order)), matrices[0][matrices[0].dims[1]].to_numpy()[order]
    (panel,) = axes_for(1, ax, figsize)
    panel.bar(place, of_products[order], facecolor="none", edgecolor="C0", label="with posterior variances")
    panel.bar(place, of_means[order], color="C0", alpha=0.6, label="of posterior means")
    panel.set_xticks(place, [str(label) for label in labels])
    panel.set(
        xlabel=str(matrices[0].dims[1]),
        ylabel="root mean square in predictors",
        title=f"factors of {names[0]} and {names[1]}",
    )
    panel.legend()
    return panel
