"""Positive observations of mean exp(eta), with an exponential or gamma distribution."""

from typing import Any

import numpy as np
import pytensor.tensor as pt

from pymc_ep.numerics.backend.namespace import namespace
from pymc_ep.sites.base import Site, register_site
from pymc_ep.sites.likelihoods.log_gamma import log_gamma_remainder
from pymc_ep.sites.responses import positive

__all__ = ["EXPONENTIAL", "GAMMA"]


def exponential_logp(y: Any, eta: Any) -> Any:
    """Return the log of the exponential density with mean exp(eta); finite for y = 0."""
    # At y = 0 the term y exp(-eta) would be zero times infinity for eta far below zero.
    rate = pt.exp(pt.switch(y > 0, -eta, 0.0))
    return -eta - y * rate


def gamma_logp(y: Any, eta: Any, alpha: Any) -> Any:
    """Return the log of the gamma density with mean exp(eta) and shape alpha.

    With ``u = eta - log y`` this is ``-alpha (u + expm1(-u)) + log(alpha / (2 pi)) / 2 - r(alpha) - log y``, with r
    from `log_gamma_remainder`: in ``alpha log alpha - alpha - log Gamma(alpha)`` terms near 2e9 would cancel at alpha =
    1e8.
    """
    u = eta - pt.log(y)
    # alpha log alpha - alpha - log Gamma(alpha), the log density of log y at u = 0.
    top = 0.5 * pt.log(alpha / (2 * np.pi)) - log_gamma_remainder(alpha)
    return -alpha * (u + pt.expm1(-u)) + top - pt.log(y)


def knots(y: Any, *_: Any) -> tuple[Any, ...]:
    """Return knots around log y: below, exp(-eta) dominates log t within a few units, for any width of the cavity."""
    xp = namespace(y)
    peak = xp.log(xp.where(y > 0, y, 1.0))
    return tuple(peak + knot for knot in (-2.0, 2.0, 8.0, 24.0))


EXPONENTIAL = register_site(
    Site(
        name="exponential",
        parameters=(),
        domain="non-negative",
        response=positive(lambda mean: 1.0),
        log_concave=True,
        additive=(),
        typical=lambda y: (np.log(np.maximum(y, np.finfo(float).tiny)), np.ones_like(y)),
        analytic=True,
        logp=exponential_logp,
        knots=knots,
        knots_beyond=15.0,
    )
)
GAMMA = register_site(
    Site(
        name="gamma",
        parameters=("alpha",),
        domain="positive",
        response=positive(lambda mean, alpha: alpha),
        log_concave=True,
        additive=(),
        # At the maximum, eta = log y, -d^2 log t / d eta^2 = alpha.
        typical=lambda y, alpha: (np.log(y), 1.0 / alpha),
        analytic=True,
        logp=gamma_logp,
        knots=knots,
        knots_beyond=15.0,
    )
)
