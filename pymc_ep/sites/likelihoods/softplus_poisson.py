"""Poisson counts with rate log(1 + exp(eta))."""

from typing import Any

import numpy as np

from pymc_ep.distributions.softplus_poisson import SoftplusPoisson
from pymc_ep.sites.base import Site, register_site
from pymc_ep.sites.responses import counts

__all__ = ["SOFTPLUS_POISSON"]


_STEEPEST = 0.16709557267062662
"""Maximum of ``-d^2 log(log(1 + e^eta)) / d eta^2``, at eta = 0.495, rounded upwards."""


def knots(y: Any) -> tuple[Any, ...]:
    """Around 0, where the rate turns from exponential to linear over a few units however wide the cavity is."""
    return tuple(0.0 * y + knot for knot in (-36.0, -12.0, -4.0, 4.0, 16.0, 64.0))


SOFTPLUS_POISSON = register_site(
    Site(
        name="softplus_poisson",
        parameters=(),
        domain="count",
        log_concave=True,
        logp=SoftplusPoisson.logp,
        response=counts(lambda eta: np.logaddexp(0.0, eta)),
        typical=lambda y: (y, np.maximum(y, 1.0)),
        knots=knots,
        knots_beyond=20.0,
        # The sum of the maxima of both terms, 1/4 for the rate: at most 2 % above the maximum of the sum.
        curvature_bound=lambda y: 0.25 + _STEEPEST * y,
    )
)
