"""Ordered categories: eta plus logistic or Gaussian noise lies between the two cutpoints of the observed category.

The parameters of the site are these cutpoints. For the lowest category the lower one is minus infinity, for the highest
the upper one is infinity.
"""

from collections.abc import Callable
from typing import Any

import pytensor.tensor as pt

from pymc_ep.kernels.truncated_normal.op import truncated_normal
from pymc_ep.sites.base import Relation, Site, register_site

__all__ = ["ORDERED_LOGIT", "ORDERED_PROBIT"]

_FAR = 1e9
"""Largest size of a cutpoint minus eta with Gaussian noise, so that the hazard at infinite cutpoints is finite."""


def logit_logp(y: Any, eta: Any, lower: Any, upper: Any) -> Any:
    """Return log of ``F(upper - eta) - F(lower - eta)`` with the logistic distribution function F.

    With ``a = lower - eta`` and ``b = upper - eta`` it is the log of ``F(b) (1 - F(a)) (1 - exp(a - b))``, in which no
    difference depends on eta.
    """
    # log F(b) = -softplus(-b), log(1 - F(a)) = -softplus(a), with a = lower - eta and b = upper - eta.
    inside = pt.log(-pt.expm1(lower - upper))
    return inside - pt.softplus(eta - upper) - pt.softplus(lower - eta)


def probit_logp(y: Any, eta: Any, lower: Any, upper: Any) -> Any:
    """Return log of ``Phi(upper - eta) - Phi(lower - eta)``.

    The interval from ``a = lower - eta`` to ``b = upper - eta`` is mirrored if its centre is positive. The log is then
    ``log Phi(b) + log(1 - Phi(a) / Phi(b))`` with the ratio from the difference of two logs, accurate in the tail. For
    narrow intervals the rounding error is of the order ``1e-16 max(1, |eta|) / (upper - lower)``.
    """
    a, b = pt.clip(lower - eta, -_FAR, _FAR), pt.clip(upper - eta, -_FAR, _FAR)
    mirrored = a + b > 0
    a, b = pt.switch(mirrored, -b, a), pt.switch(mirrored, -a, b)
    # log Phi(a) and log Phi(b).
    log_below, log_above = truncated_normal(-a)[0], truncated_normal(-b)[0]
    return log_above + pt.log1mexp(log_below - log_above)


def _knots(steps: tuple[float, ...]) -> Callable[..., tuple[Any, ...]]:
    """Return knots around either cutpoint, where log t bends between a linear or quadratic tail and a flat top."""
    return lambda y, lower, upper: tuple(end + step for end in (lower, upper) for step in steps)


def _ordered(name: str, logp: Callable[..., Any], steps: tuple[float, ...], knots_beyond: float) -> Site:
    return register_site(
        Site(
            name=name,
            parameters=("lower", "upper"),
            parameter_domains=("extended real", "extended real"),
            relation=Relation(lambda y, lower, upper: lower < upper, "a category between two cutpoints that increase"),
            domain="ordinal",
            log_concave=True,
            analytic=True,
            logp=logp,
            knots=_knots(steps),
            knots_beyond=knots_beyond,
        )
    )


ORDERED_LOGIT = _ordered("ordered_logit", logit_logp, (-36.0, -12.0, 0.0, 12.0, 36.0), 20.0)
ORDERED_PROBIT = _ordered("ordered_probit", probit_logp, (-12.0, -4.0, 0.0, 4.0, 12.0), 10.0)
