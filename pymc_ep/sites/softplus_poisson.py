"""Poisson counts with rate log(1 + exp(eta))."""

from typing import Any

import pytensor.tensor as pt

from pymc_ep.sites.base import Site, register_site
from pymc_ep.sites.counts import log_poisson

__all__ = ["SOFTPLUS_POISSON"]


def logp(y: Any, eta: Any) -> Any:
    """log Poisson(y; log(1 + exp(eta))).

    Below -37 the rate is exp(eta) to rounding, so its log is eta and the slope of that is 1; the log of the
    softplus itself is -inf from -745 down.
    """
    tail = eta < -37
    log_rate = pt.switch(tail, eta, pt.log(pt.softplus(pt.switch(tail, -37.0, eta))))
    return log_poisson(y, log_rate, pt.softplus(eta))


def knots(y: Any) -> tuple[Any, ...]:
    """Around 0, where the rate turns from exponential to linear over a few units however wide the cavity is."""
    return tuple(0.0 * y + knot for knot in (-36.0, -12.0, -4.0, 4.0, 16.0, 64.0))


SOFTPLUS_POISSON = register_site(
    Site(
        name="softplus_poisson",
        parameters=(),
        domain="count",
        log_concave=True,
        logp=logp,
        knots=knots,
        knots_beyond=20.0,
    )
)
