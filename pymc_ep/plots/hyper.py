"""Marginal posteriors of hyperparameters, and their priors."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pymc as pm
from pytensor.graph.traversal import ancestors

from pymc_ep.compat import Container
from pymc_ep.concurrency import compiled_function, compiling
from pymc_ep.graphs.context import model_of
from pymc_ep.modes import quick_mode
from pymc_ep.plots.axes import axes_for, draw_density
from pymc_ep.plots.marginals import fits_of, hyper_names, marginals_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["plot_hyper"]

_MOST = 12
"""Largest number of elements that are shown, a panel each."""
_POINTS = 200
"""Points of the line of a prior density."""
_CUT_SHARE = 0.002
"""Probability beyond either end of the axis: a long tail would squeeze the bulk."""

_Density = tuple[np.ndarray, np.ndarray]
"""Values of a variable, and the densities at these values."""


def plot_hyper(
    idata: Container | Sequence[Container] | Mapping[str, Container],
    model: pm.Model | None = None,
    var_names: str | Sequence[str] | None = None,
    *,
    filter_vars: str | None = None,
    coords: Mapping[str, Any] | None = None,
    model_names: Sequence[str] | None = None,
    ax: "Axes | Iterable[Axes] | None" = None,
    figsize: Sequence[float] | None = None,
) -> np.ndarray:
    """Plot the marginal posterior density of each hyperparameter, and its prior as a dashed line.

    Parameters
    ----------
    idata : arviz.InferenceData or xarray.DataTree, or a dict or list of them
        Result of `pymc_ep.fit`, with draws, or of `pymc.sample`. Several are drawn over each other.
    model : pymc.Model, optional
        The fitted model, by default the model of the context, for the priors. Without a model no priors are drawn. A
        prior that depends on other random variables, or is joint for a whole vector, is left out.
    var_names : str or sequence of str, optional
        By default all hyperparameters.
    filter_vars, coords, model_names
        As in `plot_forest`.
    ax : sequence of matplotlib.axes.Axes, optional
        One for each element; at most twelve are shown.
    figsize : (float, float), optional
        Of a new figure, in inches.

    Returns
    -------
    ndarray of matplotlib.axes.Axes
        Densities are ArviZ's kernel estimates from the draws; for a latent variable with few draws, the normal with its
        posterior moments.

    Raises
    ------
    ValueError
        Where the fit has no hyperparameters, or no draws of them.
    """
    fits = fits_of(idata, model_names)
    marginals = marginals_of(fits, var_names, filter_vars, coords, default="hyper")
    if not marginals:
        raise ValueError("The fit has no hyperparameters.")
    panels: dict[tuple[str, str, int], dict[str, _Density]] = {}
    for name, by_fit in marginals.items():
        for fit, marginal in by_fit.items():
            if marginal.draws is None and name in hyper_names(fits[fit]):
                raise ValueError(f"The fit has no draws of {name!r}; fit with draws.")
            for label, place, density in zip(marginal.labels, marginal.places, marginal.densities()):
                panels.setdefault((name, label, int(place)), {})[fit] = density
    shown = dict(list(panels.items())[:_MOST])
    axes = axes_for(len(shown), ax, figsize)
    model = pm.Model.get_context(error_if_none=False) if model is None else model_of(model)
    for panel, ((name, label, place), densities) in zip(axes, shown.items()):
        ends = _draw(panel, densities)
        if ends is not None and model is not None:
            at = np.linspace(*ends, _POINTS)
            if (prior := _prior(model, name, place, at)) is not None:
                panel.plot(at, prior, color="black", linestyle="--", label="prior")
        panel.set(xlabel=label, yticks=[])
    axes[0].set_ylabel("density")
    axes[0].legend(loc="best")
    return axes


def _draw(panel: "Axes", densities: Mapping[str, _Density]) -> tuple[float, float] | None:
    """Draw the densities of one element by all fits; return the ends of the axis, None where no fit has a density."""
    ends: list[float] = []
    for k, (fit, (at, density)) in enumerate(densities.items()):
        draw_density(panel, at, density, color=f"C{k}", label=fit or ("posterior" if density.size else "value"))
        if density.size:
            panel.fill_between(at, density, color=f"C{k}", alpha=0.2, linewidth=0)
            share = np.cumsum(density) / density.sum()
            inside = at[(share > _CUT_SHARE) & (share < 1.0 - _CUT_SHARE)]
            ends += [inside[0], inside[-1]]
    if not ends:
        return None
    panel.set(xlim=(min(ends), max(ends)), ylim=(0.0, None))
    return min(ends), max(ends)


def _prior(model: pm.Model, name: str, element: int, at: np.ndarray) -> np.ndarray | None:
    """Return the prior density of one element at the values `at`, (m,).

    Return None for a variable that is not free, and for a prior that is joint or depends on other random variables.
    """
    variable = model[name]
    if variable not in model.free_RVs:
        return None
    others = set(model.basic_RVs) - {variable}
    if variable.owner.op.ndim_supp or others.intersection(ancestors([variable])):
        return None
    value = variable.type()
    with compiling(cxx=""):
        density = compiled_function([value], pm.logp(variable, value), mode=quick_mode(), on_unused_input="ignore")
    shape = tuple(int(n) for n in model.eval_rv_shapes()[name])
    densities = [np.exp(np.broadcast_to(density(np.full(shape, v)), shape).ravel()[element]) for v in at]
    return np.array(densities)
