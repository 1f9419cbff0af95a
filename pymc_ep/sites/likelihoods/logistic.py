"""Powers of logistic functions: densities and bounds of the Bernoulli, binomial and negative binomial sites."""

from collections.abc import Callable
from typing import Any

import pytensor.tensor as pt

from pymc_ep.sites.base import SuperGaussian

__all__ = ["log_logistic_powers", "logistic_bound"]


def log_logistic_powers(u: Any, left: Any, right: Any) -> Any:
    """Return the log ratio of ``p**left * (1 - p)**right`` to its maximum over p.

    The maximum is at ``logit p = log(left / right)``, from which logit p differs by u. With ``q = left / (left +
    right)`` the log ratio is ``left u - (left + right) log(1 + q (e^u - 1))``. For u > 0, e^u is factored out. With
    c = left for u < 0 and c = right for u > 0 the log ratio is thus

        -c |u| - (left + right) log1p(c / (left + right) expm1(-|u|)).

    Nothing overflows, and the terms cancel only where the result is small.

    Parameters
    ----------
    u : TensorVariable
        Distance from the maximum on the logit scale.
    left, right : TensorVariable
        Positive powers.
    """
    total = left + right
    power = pt.switch(u > 0, right, left)
    away = pt.abs(u)
    return -power * away - total * pt.log1p(power / total * pt.expm1(-away))


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
        Graphs of ``(y, *parameters)``.
    """

    def slope(y: Any, *parameters: Any) -> Any:
        return 0.5 * (left(y, *parameters) - right(y, *parameters))

    def log_at(y: Any, x: Any, *parameters: Any) -> Any:
        total = left(y, *parameters) + right(y, *parameters)
        distance = pt.sqrt(x)
        constant = log_constant(y, *parameters) - slope(y, *parameters) * centre(y, *parameters)
        return constant - total * (0.5 * distance + pt.log1p(pt.exp(-distance)))

    def precision(y: Any, x: Any, *parameters: Any) -> Any:
        distance = pt.sqrt(x)
        return (left(y, *parameters) + right(y, *parameters)) * pt.tanh(0.5 * distance) / (2 * distance)

    return SuperGaussian(centre, slope, log_at, precision)
