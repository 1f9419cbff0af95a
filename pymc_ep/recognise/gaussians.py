"""Which PyMC distributions are Gaussian, with what mean and covariance."""

from collections.abc import Callable, Sequence

import pytensor.tensor as pt
from pymc.distributions.multivariate import MvNormal
from pytensor.tensor.random.basic import NormalRV
from pytensor.tensor.variable import TensorVariable

__all__ = ["CovarianceMaker", "gaussian_moments"]

CovarianceMaker = Callable[[Sequence], TensorVariable]
"""Takes the shape of a random variable, returns the covariance of the ravelled variable."""


def gaussian_moments(rv: TensorVariable) -> tuple[TensorVariable, CovarianceMaker] | None:
    """Return the conditional mean of a Gaussian random variable and a maker of its covariance.

    The maker takes the shape of `rv` and returns the (d, d) covariance of the ravelled variable. None where the
    distribution is not Gaussian, or batched over matrices.
    """
    op = rv.owner.op
    if isinstance(op, NormalRV):
        mean, sigma = op.dist_params(rv.owner)
        return mean, lambda shape: pt.diag(pt.broadcast_to(sigma**2, shape).ravel().astype(rv.dtype))
    if isinstance(op, MvNormal.rv_type) and rv.ndim == 1:
        mean, covariance = op.dist_params(rv.owner)
        return mean, lambda shape: covariance
    return None
