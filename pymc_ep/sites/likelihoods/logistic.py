"""Powers of logistic functions: densities and bounds of the Bernoulli, binomial and negative binomial sites."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytensor.tensor as pt

from pymc_ep.sites.base import SuperGaussian
from pymc_ep.sites.likelihoods.log_gamma import log_gamma_remainder

__all__ = ["log_beta_of_logit", "logistic_bound"]

_LARGEST_EXPONENT = 700.0
"""Largest exponent of which exp is computed: exp overflows at 709.8."""


def log_beta_of_logit(u: Any, left: Any, right: Any) -> Any:
    """Return the log density of logit p, where p has the distribution Beta(left, right).

    The density ``p**left (1 - p)**right / B(left, right)`` has its maximum at ``logit p = log(left / right)``, from
    which logit p differs by u. With n = left + right, the log of the maximum is, by Stirling's formula,

        log(left right / (2 pi n)) / 2 + r(n) - r(left) - r(right),

    r as in `log_gamma_remainder` (Loader 2000). The log ratio to the maximum is ``left u - n log(1 + left / n (e^u -
    1))``, and the same with right and -u. It is computed with the smaller power c, and v = u or -u accordingly, as

        c v - n log1p(c / n expm1(v)).

    Since c <= n / 2 the argument of log1p is at least -1/2, and the terms are of the size of the result. With the
    larger power, terms near n v would cancel to one near c v, as for a large count with little dispersion.

    Parameters
    ----------
    u : TensorVariable
        Distance from the maximum on the logit scale.
    left, right : TensorVariable
        Positive powers.
    """
    total = left + right
    rarer = left < right
    less, v = pt.switch(rarer, left, right), pt.switch(rarer, u, -u)
    # Beyond, log(1 + c / n (e^v - 1)) is a line of slope one.
    beyond = pt.maximum(v - _LARGEST_EXPONENT, 0.0)
    ratio = less * v - total * (pt.log1p(less / total * pt.expm1(pt.minimum(v, _LARGEST_EXPONENT))) + beyond)
    top = 0.5 * pt.log(left / total * right / (2 * np.pi))
    return ratio + top + log_gamma_remainder(total) - log_gamma_remainder(left) - log_gamma_remainder(right)


def logistic_bound(
    left: Callable[..., Any],
    right: Callable[..., Any],
    centre: Callable[..., Any],
    log_constant: Callable[..., Any],
) -> SuperGaussian:
    """Return the super-Gaussian form of ``exp(log_constant) * p**left * (1 - p)**right``, ``logit p = eta - centre``.

    As ``p = exp(u / 2) / (2 cosh(u / 2))`` in u = eta - centre, and 1 - p likewise with -u, the log is
    ``log_constant + (left - right) u / 2 - (left + right) log(2 cosh(u / 2))``, whose last term is convex in u**2
    (Jaakkola and Jordan 2000).

    Parameters
    ----------
    left, right, centre, log_constant : callable
        Functions of ``(y, *parameters)`` that return graphs.
    """

    def slope(y: Any, *parameters: Any) -> Any:
        return 0.5 * (left(y, *parameters) - right(y, *parameters))

    def log_at(y: Any, x: Any, *parameters: Any) -> Any:
        total = left(y, *parameters) + right(y, *parameters)
        distance = pt.sqrt(x)
        # slope u = slope eta - slope centre, and log(2 cosh(d / 2)) = d / 2 + log(1 + e^-d) with d = |u|.
        constant = log_constant(y, *parameters) - slope(y, *parameters) * centre(y, *parameters)
        return constant - total * (0.5 * distance + pt.log1p(pt.exp(-distance)))

    def precision(y: Any, x: Any, *parameters: Any) -> Any:
        distance = pt.sqrt(x)
        # -2 g'(x) for g(x) = -(left + right) log(2 cosh(d / 2)) + const, d = sqrt(x).
        return (left(y, *parameters) + right(y, *parameters)) * pt.tanh(0.5 * distance) / (2 * distance)

    return SuperGaussian(centre, slope, log_at, precision)
