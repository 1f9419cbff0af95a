"""Predictions of observations by draws, for likelihoods whose site has no response function."""

from collections.abc import Sequence

import numpy as np
import pymc as pm
import xarray as xr
from pymc.distributions.moments import mean as mean_of
from pymc.model.fgraph import clone_model

from pymc_ep import compat
from pymc_ep.compat import Container
from pymc_ep.concurrency import compiling
from pymc_ep.contracts.form import Likelihood
from pymc_ep.exceptions import UnsupportedModelError

__all__ = ["drawn_response"]

_SEED = 0
"""Seed of the draws of new observations, so that predictions are reproducible."""


def drawn_response(
    idata: Container, model: pm.Model, group: Likelihood, kind: str, quantiles: Sequence[float]
) -> xr.Dataset:
    """Return mean, sd and quantiles, over the draws of a fit, of a likelihood's mean in PyMC or of draws from it.

    Raises
    ------
    UnsupportedModelError
        For ordered categories, where the fit has no draws, and for distributions without a mean in PyMC.
    """
    name = group.name
    if group.site.domain == "ordinal":
        raise UnsupportedModelError(
            f"{name!r} has ordered categories, whose numbers have no mean; predict its affine predictor, or count "
            f"categories in pm.sample_posterior_predictive(idata, var_names=[{name!r}])."
        )
    if not compat.has_group(idata, "posterior"):
        raise UnsupportedModelError(
            f"{name!r} has no registered site, so that its response is predicted by draws, and the fit has none. Fit "
            f"with draws."
        )
    wanted, own = name, model
    if kind == "expectation":
        own, wanted = clone_model(model), f"{name}_expected"
        try:
            expected = mean_of(own[name])
        except NotImplementedError as error:
            raise UnsupportedModelError(
                f"PyMC knows no mean of the distribution of {name!r}; use kind='observation', which draws from it."
            ) from error
        with own:
            pm.Deterministic(wanted, expected, dims=model.named_vars_to_dims.get(name))
    with compiling():
        drawn = pm.sample_posterior_predictive(idata, own, var_names=[wanted], random_seed=_SEED, progressbar=False)
    draws = compat.group(drawn, "posterior_predictive")[wanted]
    axes, rest = ("chain", "draw"), [dim for dim in draws.dims if dim not in ("chain", "draw")]
    values = draws.transpose(*axes, *rest).to_numpy()
    levels = np.quantile(values, quantiles, axis=(0, 1))
    coords = {dim: draws[dim].to_numpy() for dim in rest} | {"quantile": list(quantiles)}
    named = {dim: dim.replace(wanted, name) for dim in map(str, rest)}
    found = {
        f"{name}_mean": (rest, values.mean(axis=(0, 1))),
        f"{name}_sd": (rest, values.std(axis=(0, 1))),
        f"{name}_quantile": (["quantile", *rest], levels),
    }
    return xr.Dataset(found, coords=coords).rename({old: new for old, new in named.items() if old != new})
