"""Predictions of observations by draws, for likelihoods whose site has no response function."""

from collections.abc import Sequence

import numpy as np
import pymc as pm
import xarray as xr
from pymc.distributions.censored import CensoredRV
from pymc.distributions.moments import mean as mean_of
from pymc.model.fgraph import clone_model
from pytensor.tensor.random.basic import CategoricalRV
from pytensor.tensor.variable import TensorVariable

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
    """Return mean, sd and quantiles, over the draws of a fit, of expected or new observations of a likelihood.

    With `kind` "expectation" each draw of the fit gives PyMC's mean of the distribution, and with "observation" a draw
    from it. For categories the expectation is the probability of each category, along a last dim ``<name>_category``.

    Raises
    ------
    UnsupportedModelError
        For new observations of categories, where the fit has no draws, and for distributions without a mean in
        PyMC.
    """
    name = group.name
    if not compat.has_group(idata, "posterior"):
        raise UnsupportedModelError(
            f"The response of {name!r} is predicted by draws, and the fit has none. Fit with draws."
        )
    clone, wanted = clone_model(model), f"{name}_{kind}"
    variable, dims = clone[name], model.named_vars_to_dims.get(name)
    # A bound hides an observation; what it hides is predicted.
    latent = variable.owner.inputs[0] if isinstance(variable.owner.op, CensoredRV) else variable
    categories = isinstance(variable.owner.op, CategoricalRV)
    if categories and kind == "observation":
        raise UnsupportedModelError(
            f"{name!r} has categories, whose numbers have no mean; use kind='expectation', the probabilities "
            f"of categories, or pm.sample_posterior_predictive(idata, var_names=[{name!r}])."
        )
    with clone:
        if categories:
            (probabilities,) = variable.owner.op.dist_params(variable.owner)
            pm.Deterministic(wanted, probabilities, dims=None if dims is None else (*dims, None))
        else:
            pm.Deterministic(wanted, latent if kind == "observation" else _mean(name, latent), dims=dims)
    with compiling():
        drawn = pm.sample_posterior_predictive(idata, clone, var_names=[wanted], random_seed=_SEED, progressbar=False)
    draws = compat.group(drawn, "posterior_predictive")[wanted]
    rest = [dim for dim in map(str, draws.dims) if dim not in ("chain", "draw")]
    values = draws.transpose("chain", "draw", *rest).to_numpy()
    coords = {dim: draws[dim].to_numpy() for dim in rest} | {"quantile": list(quantiles)}
    named = {dim: dim.replace(wanted, name) for dim in rest}
    if categories:
        named[rest[-1]] = f"{name}_category"
    variables = {
        f"{name}_mean": (rest, values.mean(axis=(0, 1))),
        f"{name}_sd": (rest, values.std(axis=(0, 1))),
        f"{name}_quantile": (["quantile", *rest], np.quantile(values, quantiles, axis=(0, 1))),
    }
    return xr.Dataset(variables, coords=coords).rename({old: new for old, new in named.items() if old != new})


def _mean(name: str, variable: TensorVariable) -> TensorVariable:
    """Return PyMC's mean of a distribution; raise UnsupportedModelError where PyMC has none."""
    try:
        return mean_of(variable)
    except NotImplementedError as error:
        raise UnsupportedModelError(
            f"PyMC knows no mean of the distribution of {name!r}; use kind='observation', which draws from it."
        ) from error
