"""Poisson counts with rate log(1 + exp(eta))."""

from typing import Any

import numpy as np

from pymc_ep.distributions.softplus_poisson import SoftplusPoisson
from pymc_ep.sites.base import Site, register_site
from pymc_ep.sites.responses import counts

__all__ = ["SOFTPLUS_POISSON"]


_LOG_RATE_CURVATURE = 0.16709557267062662
"""Maximum of ``-d^2 log(log(1 + e^eta)) / d eta^2``, at eta = 0.495, rounded up."""


def knots(y: Any) -> tuple[Any, ...]:
    """Return knots around 0, where the rate turns from exponential to linear, for any width of the cavity."""
    return tuple(0.0 * y + knot for knot in (-36.0, -12.0, -4.0, 4.0, 16.0, 64.0))


SOFTPLUS_POISSON = register_site(
    Site(
        name="softplus_poisson",
        parameters=(),
        domain="count",
        log_concave=True,
        additive=(),
        logp=SoftplusPoisson.logp,
        response=counts(lambda eta: np.logaddexp(0.0, eta)),
        typical=lambda y: (y, np.maximum(y, 1.0)),
        knots=knots,
        knots_beyond=20.0,
        # 1/4 bounds the curvature of the rate. The maxima are not at one eta: the sum is at most 2 % above the maximum.
        curvature_bound=lambda y: 0.25 + _LOG_RATE_CURVATURE * y,
    )
)
