"""Poisson counts with rate exp(eta)."""

from typing import Any

import numpy as np
import pytensor.tensor as pt

from pymc_ep.sites.base import Site, register_site
from pymc_ep.sites.counts import log_poisson_at_mean

__all__ = ["POISSON"]


def logp(y: Any, eta: Any) -> Any:
    """log Poisson(y; exp(eta)).

    As ``y (u - (e^u - 1)) + log Poisson(y; y)`` with ``u = eta - log y``: in ``y eta - e^eta - log y!`` terms
    near 1e7 cancel at a million counts.
    """
    u = eta - pt.log(pt.maximum(y, 1.0))
    return pt.switch(y > 0, y * (u - pt.expm1(u)) + log_poisson_at_mean(y), -pt.exp(u))


def knots(y: Any) -> tuple[Any, ...]:
    """Where the wall exp(-exp(eta)) begins and ends."""
    return (0.0 * y - 3.0, 0.0 * y)


POISSON = register_site(
    Site(name="poisson", parameters=(), domain="count", log_concave=True, logp=logp, knots=knots)
)
