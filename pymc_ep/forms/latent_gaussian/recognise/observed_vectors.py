"""Observed Gaussian vectors, such as a marginal Gaussian process: a part of their noise is left to independent sites.

y ~ N(m, S) is y_i ~ N(m_i + w_i, s^2) with w ~ N(0, S - s^2 I), for any s^2 below the least eigenvalue of S: the
evidence, the posterior of all that m depends on, and the density of one value given the others do not depend on it.
"""

from collections.abc import Sequence

import pytensor.tensor as pt
from pytensor.compile.builders import infer_shape
from pytensor.gradient import disconnected_grad
from pytensor.tensor.variable import TensorVariable

from pymc_ep.distributions.shapes import require_shape
from pymc_ep.forms.latent_gaussian.form import NoiseBlock, SiteGroup
from pymc_ep.graphs.gaussian_variables import Gaussian, gaussian_of
from pymc_ep.sites.base import get_site

__all__ = ["correlated_gaussian", "correlated_group", "correlated_parameters"]

_SHARE = 1e-3
"""s^2 over the least variance of a value given those before it. The least eigenvalue may be smaller than that variance,
a quarter of it in a random walk, 1 / (1 + sum |rho|)^2 in an autoregression; what is smaller than s^2 is refused."""


def correlated_gaussian(rv: TensorVariable) -> Gaussian | None:
    """Return how a variable whose values depend on each other is a proper Gaussian, or None where it is not."""
    gaussian = gaussian_of(rv) if rv.owner.op.ndim_supp else None
    if gaussian is None or gaussian.flat or gaussian.degenerate or gaussian.check is not None:
        return None
    return gaussian


def correlated_parameters(rv: TensorVariable, gaussian: Gaussian) -> list[TensorVariable]:
    """Return mean and covariance, (n,) and (n, n) of the ravelled values, as graphs of the model's variables."""
    (shape,) = infer_shape([rv], (), ())
    mean = pt.zeros(()) if gaussian.mean is None else gaussian.mean(shape)
    return [pt.broadcast_to(mean, shape).astype("float64"), gaussian.covariance(shape).astype("float64")]


def correlated_group(
    name: str, observed: TensorVariable, parameters: Sequence[TensorVariable]
) -> tuple[NoiseBlock, SiteGroup]:
    """Return correlated noise, and sites about the mean with it.

    Parameters
    ----------
    name : str
        The observed variable.
    observed : TensorVariable
    parameters : sequence of TensorVariable
        What `correlated_parameters` returned, in terms of hyperparameters and noise.
    """
    mean, covariance = parameters
    require_shape(name, observed.type.shape, mean.type.shape)
    least = (pt.diagonal(pt.linalg.cholesky(covariance)) ** 2).min()
    # Of a singular matrix there is none: any variance leads to its refusal.
    least = pt.switch(pt.isnan(least), pt.diagonal(covariance).min(), least)
    # The evidence does not depend on it, and derivatives that cancel cost digits.
    variance = disconnected_grad(_SHARE * least)
    rest = covariance - variance * pt.eye(observed.size)
    noise = mean.type(f"{name}_noise")
    root = pt.linalg.cholesky(rest).T
    block = NoiseBlock(name, noise, tuple(observed.shape), rest, root, pt.zeros(()), of_observed=True)
    sd = pt.broadcast_to(pt.sqrt(variance), observed.shape).ravel()
    group = SiteGroup(name, get_site("normal"), {}, observed, mean + noise, (sd,), "identity", correlated=True)
    return block, group
