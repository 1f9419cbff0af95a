"""Marginal posteriors of hyperparameters, and their priors."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pymc as pm
from pytensor.graph.traversal import ancestors

from pymc_ep.compat import Container, group, has_group
from pymc_ep.concurrency import compiled_function, compiling
from pymc_ep.diagnostics.agreement import flat_draws
from pymc_ep.graphs.context import model_of
from pymc_ep.modes import quick_mode
from pymc_ep.plots.axes import axes_for
from pymc_ep.plots.intervals import hyper_names, labels_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["plot_hyper"]

_MOST = 12
"""Elements that have a panel each."""
_BINS = 40
"""Bins of a histogram of draws."""
_POINTS = 200
"""Points of the line of a prior density."""
_CUT_SHARE = 0.002
"""Share of the draws beyond either end of the axis: a long tail would squeeze the bulk."""


def plot_hyper(
    idata: Container,
    model: pm.Model | None = None,
    var_names: str | Sequence[str] | None = None,
    *,
    ax: "Axes | Iterable[Axes] | None" = None,
    figsize: Sequence[float] | None = None,
) -> np.ndarray:
    """Plot the marginal posterior of each hyperparameter as a histogram of its draws, and its prior as a line.

    Parameters
    ----------
    idata : arviz.InferenceData or xarray.DataTree
        Result of `pymc_ep.fit`, with draws.
    model : pymc.Model, optional
        The fitted model, or that of the context, for the priors. Those that depend on other random variables, or are
        of whole vectors, are left out, and so are all without a model.
    var_names : str or sequence of str, optional
        By default all hyperparameters.
    ax : sequence of matplotlib.axes.Axes, optional
        One for each element; at most twelve are shown.
    figsize : (float, float), optional
        Of a new figure, in inches.

    Returns
    -------
    ndarray of matplotlib.axes.Axes

    Raises
    ------
    ValueError
        Without hyperparameters or draws of these.
    """
    names = hyper_names(idata) if var_names is None else [var_names] if isinstance(var_names, str) else list(var_names)
    posterior = group(idata, "posterior") if has_group(idata, "posterior") else {}
    if not names or (missing := [name for name in names if name not in posterior]):
        what = f"no draws of {missing[0]!r}; fit with draws" if names else "no hyperparameters"
        raise ValueError(f"The fit has {what}.")
    elements = [
        (label, name, k, draws)
        for name in names
        for k, (label, draws) in enumerate(
            zip(labels_of(posterior[name].isel(chain=0, draw=0), name), flat_draws(posterior[name]))
        )
    ][:_MOST]
    axes = axes_for(len(elements), ax, figsize)
    model = pm.Model.get_context(error_if_none=False) if model is None else model_of(model)
    for panel, (label, name, k, draws) in zip(axes, elements):
        low, high = np.quantile(draws, [_CUT_SHARE, 1.0 - _CUT_SHARE])
        if low == high:
            panel.axvline(low, color="C0", label="value")
        else:
            panel.hist(draws, bins=_BINS, range=(low, high), density=True, color="C0", alpha=0.5, label="posterior")
            if model is not None and (prior := _prior(model, name, k, np.linspace(low, high, _POINTS))) is not None:
                panel.plot(np.linspace(low, high, _POINTS), prior, color="black", linestyle="--", label="prior")
        panel.set(xlabel=label, yticks=[])
    axes[0].set_ylabel("density")
    axes[0].legend(loc="best")
    return axes


def _prior(model: pm.Model, name: str, element: int, at: np.ndarray) -> np.ndarray | None:
    """Return the prior density of one element of a variable at some values, where it depends on nothing random."""
    variable = model[name]
    others = set(model.basic_RVs) - {variable}
    if variable.owner.op.ndim_supp or others.intersection(ancestors([variable])):
        return None
    value = variable.type()
    with compiling(cxx=""):
        density = compiled_function([value], pm.logp(variable, value), mode=quick_mode(), on_unused_input="ignore")
    shape = tuple(int(n) for n in model.eval_rv_shapes()[name])
    found = [np.exp(np.broadcast_to(density(np.full(shape, v)), shape).ravel()[element]) for v in at]
    return np.array(found)
