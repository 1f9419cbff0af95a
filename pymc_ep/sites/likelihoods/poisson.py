"""Poisson counts with rate exp(eta)."""

from typing import Any

import numpy as np
import pytensor.tensor as pt

from pymc_ep.distributions.counts import log_poisson_at_mean
from pymc_ep.numerics.backend.namespace import namespace
from pymc_ep.sites.base import Site, register_site
from pymc_ep.sites.responses import counts

__all__ = ["POISSON"]


def logp(y: Any, eta: Any) -> Any:
    """Return log Poisson(y; exp(eta)), accurate at large counts.

    For y > 0 it is ``y (u - (e^u - 1)) + log Poisson(y; y)`` with ``u = eta - log y`` (Loader, 2000, "Fast and
    accurate computation of binomial probabilities"). In ``y eta - e^eta - log y!`` terms near 1e7 would cancel at a
    count of a million. Density and slope share one exponential.
    """
    u = eta - pt.log(pt.switch(y > 0, y, 1.0))
    return pt.switch(y > 0, y * (u - pt.expm1(u)) + log_poisson_at_mean(y), -pt.exp(eta))


def knots(y: Any) -> tuple[Any, ...]:
    """Return knots around log y: above, exp(eta) dominates log t within a few units, for any width of the cavity."""
    xp = namespace(y)
    peak = xp.log(xp.maximum(y, 1.0))
    return tuple(peak + knot for knot in (-24.0, -8.0, -2.0, 2.0))


POISSON = register_site(
    Site(
        name="poisson",
        parameters=(),
        domain="count",
        log_concave=True,
        additive=(),
        takes_averages=True,
        analytic=True,
        logp=logp,
        response=counts(np.exp),
        # At the maximum, eta = log y, -d^2 log t / d eta^2 = y; with 1/2 mean and variance are finite for y = 0.
        typical=lambda y: (np.log(y + 0.5), 1.0 / (y + 0.5)),
        knots=knots,
        knots_beyond=15.0,
    )
)
