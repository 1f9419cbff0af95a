"""Poisson counts with rate exp(eta)."""

from typing import Any

import pytensor.tensor as pt

from pymc_ep.linalg.namespace import namespace
from pymc_ep.sites.base import Site, register_site
from pymc_ep.sites.counts import log_poisson

__all__ = ["POISSON"]


def logp(y: Any, eta: Any) -> Any:
    """log Poisson(y; exp(eta))."""
    return log_poisson(y, eta, pt.exp(eta))


def knots(y: Any) -> tuple[Any, ...]:
    """Around log y, where exp(eta) takes over within a few units however wide the cavity is."""
    xp = namespace(y)
    peak = xp.log(xp.maximum(y, 1.0))
    return tuple(peak + knot for knot in (-24.0, -8.0, -2.0, 2.0))


POISSON = register_site(
    Site(
        name="poisson",
        parameters=(),
        domain="count",
        log_concave=True,
        logp=logp,
        knots=knots,
        knots_beyond=15.0,
    )
)
