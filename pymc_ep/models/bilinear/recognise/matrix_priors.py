"""Priors of the matrices and biases of bilinear models."""

from collections.abc import Sequence

import pytensor.tensor as pt
from pymc import Model
from pymc.distributions.continuous import FlatRV
from pytensor.compile.builders import infer_shape
from pytensor.tensor.random.basic import MvNormalRV, NormalRV
from pytensor.tensor.variable import TensorVariable

from pymc_ep.graphs.random_nodes import parameters_of
from pymc_ep.models.bilinear.form import Entries

__all__ = ["all_latent", "entries_of", "is_gaussian"]


def all_latent(variables: Sequence[TensorVariable], latent: Sequence[str] | None) -> bool:
    """Return whether `latent` names all of these variables, or is None."""
    return latent is None or all(v.name in ([latent] if isinstance(latent, str) else latent) for v in variables)


def is_gaussian(model: Model, rv: TensorVariable, ndim: int) -> bool:
    """Return whether a variable of `ndim` axes has a flat prior, or independent Gaussian entries or rows."""
    op = None if rv.owner is None else rv.owner.op
    supported = isinstance(op, NormalRV | FlatRV) or (ndim == 2 and _covariance(rv) is not None)
    return supported and rv.ndim == ndim and model.rvs_to_transforms.get(rv) is None


def _covariance(rv: TensorVariable) -> TensorVariable | None:
    """Return the common covariance of all rows of a multivariate normal variable; None without one."""
    if rv.owner is None or not isinstance(rv.owner.op, MvNormalRV):
        return None
    graph = parameters_of(rv)[1]
    while graph.ndim > 2 and graph.type.broadcastable[0]:
        graph = graph[0]
    return graph if graph.ndim == 2 else None


def entries_of(model: Model, rv: TensorVariable, stand_in: TensorVariable) -> Entries:
    """Return the prior of a matrix or bias."""
    shape = infer_shape([rv], (), ())[0]
    moments = []
    if not isinstance(rv.owner.op, FlatRV):
        mu, scale = parameters_of(rv)
        covariance = _covariance(rv)
        # Keeps the sign of a negative standard deviation, so that checks of the variance detect it.
        variance = scale * pt.abs(scale) if covariance is None else pt.diagonal(covariance)
        moments = [pt.broadcast_to(p, shape) for p in (mu, variance)]
        moments += [] if covariance is None else [covariance]
    return Entries(
        rv.name, stand_in, tuple(shape), *(model.replace_rvs_by_values(moments) if moments else (None, None))
    )
