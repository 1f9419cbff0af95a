"""Observed Gaussian vectors, such as a marginal Gaussian process, as latent noise with independent Gaussian sites.

y ~ N(m, S) is y_i ~ N(m_i + w_i, s^2) with w ~ N(0, S - s^2 I), for any s^2 below the least eigenvalue of S. Evidence,
posterior of the variables behind m, and the density of one value given the others do not depend on s^2.
"""

from collections.abc import Sequence

import pytensor.tensor as pt
from pytensor.compile.builders import infer_shape
from pytensor.gradient import disconnected_grad
from pytensor.tensor.variable import TensorVariable

from pymc_ep.distributions.shapes import require_shape
from pymc_ep.graphs.gaussian_variables import Gaussian, gaussian_of
from pymc_ep.models.latent_gaussian.form import NoiseBlock, SiteGroup
from pymc_ep.sites.base import get_site

__all__ = ["correlated_gaussian", "correlated_group", "correlated_parameters"]

_NOISE_FRACTION = 1e-3
"""s^2 as a fraction of the least innovation variance, the variance of a value given all values before it.

The least eigenvalue of S must exceed s^2; a covariance for which it does not is refused. This eigenvalue is smaller
than the least innovation variance: by a factor of 4 for a random walk, (1 + sum |rho|)^2 for an autoregression. A
smaller fraction would admit more covariances, but lose digits to sites of larger precision."""


def correlated_gaussian(rv: TensorVariable) -> Gaussian | None:
    """Return the `Gaussian` of a variable of vectors that has a normalised density; None for any other variable."""
    gaussian = gaussian_of(rv) if rv.owner.op.ndim_supp else None
    if gaussian is None or gaussian.flat or gaussian.degenerate or gaussian.log_excess is not None:
        return None
    return gaussian


def correlated_parameters(rv: TensorVariable, gaussian: Gaussian) -> list[TensorVariable]:
    """Return graphs of the mean, in the variable's shape, and of the covariance, (n, n), of its n ravelled values."""
    (shape,) = infer_shape([rv], (), ())
    mean = pt.zeros(()) if gaussian.mean is None else gaussian.mean(shape)
    return [pt.broadcast_to(mean, shape).astype("float64"), gaussian.covariance(shape).astype("float64")]


def correlated_group(
    name: str, observed: TensorVariable, parameters: Sequence[TensorVariable]
) -> tuple[NoiseBlock, SiteGroup]:
    """Return the block of the noise w, and the sites with predictor m + w.

    Parameters
    ----------
    name : str
        Name of the observed variable.
    observed : TensorVariable
    parameters : sequence of TensorVariable
        Result of `correlated_parameters`, as graphs of hyperparameters and noise.
    """
    mean, covariance = parameters
    require_shape(name, observed.type.shape, mean.type.shape)
    # With S = L L^T, L_ii^2 is the variance of y_i given y_1, ..., y_{i-1}.
    least = (pt.diagonal(pt.linalg.cholesky(covariance)) ** 2).min()
    # A singular matrix has no Cholesky factor; it is refused later, at any variance.
    least = pt.switch(pt.isnan(least), pt.diagonal(covariance).min(), least)
    # The evidence does not depend on s^2: its derivatives cancel, and would only add rounding errors.
    variance = disconnected_grad(_NOISE_FRACTION * least)
    rest = covariance - variance * pt.eye(observed.size)
    noise = mean.type(f"{name}_noise")
    # S - s^2 I = L L^T = R^T R with R = L^T.
    root = pt.linalg.cholesky(rest).T
    block = NoiseBlock(name, noise, tuple(observed.shape), rest, root, pt.zeros(()), observation_noise=True)
    sd = pt.broadcast_to(pt.sqrt(variance), observed.shape).ravel()
    group = SiteGroup(name, get_site("normal"), {}, observed, mean + noise, (sd,), "identity", correlated=True)
    return block, group
