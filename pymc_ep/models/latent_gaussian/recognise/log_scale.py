"""Log density of likelihoods with a log scale that is affine in the predictor, free of overflow.

With log scale l, residual r = y - mu and g the density of scale 1, the log density of a scale family is
log t = -l + log g(r exp(-l)). It is concave in l if log g(exp(s)) is concave in s (-l is linear, and l only shifts
s = log|r| - l):

    normal       -exp(2 s) / 2                              concave, as exp is convex
    Student's t  -(nu + 1) / 2 log(1 + exp(2 s - log nu))   concave, as log(1 + exp) is convex
    Laplace      -exp(s)                                    concave

and so is log t in a predictor in which l is affine. As functions of s, value and slope are finite where the scale
itself overflows or underflows, as it may at the ends of a wide cavity's quadrature interval.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Apply
from pytensor.tensor.random.basic import LaplaceRV, NormalRV, StudentTRV
from pytensor.tensor.variable import TensorVariable

from pymc_ep.graphs.predictor import AffineTest, as_function_of, at_zero_noise_and_shape
from pymc_ep.graphs.queries import is_affine_numerically
from pymc_ep.graphs.random_nodes import parameters_of
from pymc_ep.sites.likelihoods.student_t import log_constant

__all__ = ["is_log_scale", "log_scale_density"]


def _normal(s: Any) -> Any:
    return -0.5 * pt.exp(2 * s) - 0.5 * np.log(2 * np.pi)


def _student_t(s: Any, nu: Any) -> Any:
    return log_constant(nu) - (nu + 1) / 2 * pt.softplus(2 * s - pt.log(nu))


def _laplace(s: Any) -> Any:
    return -pt.exp(s) - np.log(2)


_FAMILIES: dict[type, Callable[..., Any]] = {NormalRV: _normal, StudentTRV: _student_t, LaplaceRV: _laplace}
"""log g(exp(s)) by type of Op, as a function of s and the shape parameters.

The last two parameters of each distribution are location and scale."""


def is_log_scale(
    node: Apply, parameters: Sequence[TensorVariable], eta: TensorVariable, dependent: set, affine: AffineTest
) -> bool:
    """Whether a distribution is of a scale family, with a log scale affine in eta and other parameters free of eta.

    The log scale is verified by value, at arguments of up to some 100, so that a clipped exponential is refused.
    """
    if type(node.op) not in _FAMILIES or any(p in dependent for p in parameters[:-1]):
        return False
    scale = as_function_of(parameters[-1], eta, affine)
    if scale is None:
        return False

    def log_scale(point: Sequence[np.ndarray]) -> np.ndarray:
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.log(scale(point[0]))

    shape = np.shape(affine.compile(at_zero_noise_and_shape(eta, affine), [])())
    return is_affine_numerically(log_scale, [shape], np.random.default_rng(0))


def log_scale_density(at_zero: TensorVariable, at_one: TensorVariable, y: Any, eta: Any) -> Any:
    """Return the graph of log t, the log density of the observation `y` at the predictor `eta`.

    Parameters
    ----------
    at_zero, at_one : TensorVariable
        The distribution at a predictor of zero and of one. Its log scales there determine the affine function l.
    y, eta : TensorVariable
    """
    *shapes, location, scale = parameters_of(at_zero)
    # The log scale is affine: l(eta) = l(0) + (l(1) - l(0)) eta.
    level = pt.log(scale)
    log_scale = level + (pt.log(parameters_of(at_one)[-1]) - level) * eta
    residual = pt.abs(y - location)
    # At a residual of zero the slope of the logarithm is infinite, that of the density zero.
    zero_residual = pt.eq(residual, 0.0)
    log_residual = pt.log(pt.where(zero_residual, 1.0, residual))
    # log t = log g(exp(s)) - l, with s = log|r| - l, or minus infinity at r = 0.
    log_g = _FAMILIES[type(at_zero.owner.op)]
    centre = log_g(pt.full_like(log_residual, -np.inf), *shapes)
    return pt.where(zero_residual, centre, log_g(log_residual - log_scale, *shapes)) - log_scale
