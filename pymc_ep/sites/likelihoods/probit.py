"""Binary observations with the probit link."""

from typing import Any

import pytensor.tensor as pt

from pymc_ep.kernels.truncated_normal.op import truncated_normal
from pymc_ep.sites.base import Site, Tilted, register_site
from pymc_ep.sites.responses import successes

__all__ = ["PROBIT"]


def logp(y: Any, eta: Any) -> Any:
    """Return log Phi(eta) for y = 1, log Phi(-eta) for y = 0."""
    # The first output of truncated_normal(k) is log Phi(-k).
    return truncated_normal((1 - 2 * y) * eta)[0]


def tilted(y: Any, mean: Any, variance: Any, power: Any) -> Tilted:
    """Return the moments for power one (Rasmussen and Williams 2006, section 3.9).

    These are moments of f given the sign of f plus standard normal noise. With ``z = sign * m / sqrt(1 + v)``,
    ``k = -z``, and h, r, V the hazard, mean and variance of N(z, 1) truncated to x > 0, the variance is
    ``v (1 + v V) / (1 + v)``. As ``1 - V = h r``, the site precision is ``h r / (1 + v V)``, without a difference. For
    z < 0 the mean is ``m / (1 + v) + sign * v r / sqrt(1 + v)``, since ``m + v * gradient`` would cancel.
    """
    sign = 2 * y - 1
    total = 1 + variance
    scale = pt.sqrt(total)
    k = -sign * mean / scale
    log_z, hazard, cut_mean, cut_variance = truncated_normal(k)
    gradient = sign * hazard / scale
    left = mean / total + sign * variance * cut_mean / scale
    tilted_mean = pt.switch(k > 0, left, mean + variance * gradient)
    spread = 1 + variance * cut_variance
    return Tilted(log_z, tilted_mean, variance * spread / total, gradient, hazard * cut_mean / spread)


def knots(y: Any) -> tuple[Any, ...]:
    """Return knots around 0, where log t bends from a quadratic tail to a flat one within a few units."""
    return tuple(0.0 * y + knot for knot in (-12.0, -4.0, 0.0, 4.0, 12.0))


PROBIT = register_site(
    Site(
        name="probit",
        parameters=(),
        domain="binary",
        response=successes("probit"),
        log_concave=True,
        analytic=True,
        logp=logp,
        tilted=tilted,
        any_power=False,
        knots=knots,
        knots_beyond=10.0,
    )
)
