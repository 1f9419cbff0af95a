"""Poisson counts with rate max(0, eta)."""

from typing import Any

import numpy as np
import pytensor.tensor as pt
import scipy.special

from pymc_ep.distributions.rectified_poisson import RectifiedPoisson
from pymc_ep.kernels.rectified_poisson.op import rectified_poisson
from pymc_ep.sites.base import Site, Tilted, register_site
from pymc_ep.sites.responses import counts

__all__ = ["RECTIFIED_POISSON"]


def logp(y: Any, eta: Any, zero_mass: bool) -> Any:
    """Return log t; without `zero_mass` t is zero at eta < 0 (Ko and Seeger 2015, eq. 13).

    y may be an average of counts; a gamma function then replaces the factorial.
    """
    whole = pt.floor(y)
    beyond = y - whole
    dark = eta <= 0
    log_rate = pt.switch(dark, -np.inf, pt.log(pt.switch(dark, 1.0, eta)))
    # y log(rate) - rate - log y!, less the same at the whole part of y.
    added = beyond * log_rate + pt.gammaln(whole + 1) - pt.gammaln(y + 1)
    log_t = RectifiedPoisson.logp(whole, eta) + pt.switch(beyond > 0, added, 0.0)
    return log_t if zero_mass else pt.switch(eta < 0, -np.inf, log_t)


def tilted(y: Any, mean: Any, variance: Any, power: Any, zero_mass: bool) -> Tilted:
    """Return the moments by the closed form of the kernel, for any power."""
    return Tilted(*rectified_poisson(y, mean, variance, power, zero_mass=zero_mass))


def intensity(mean: Any, variance: Any) -> Any:
    """Return E max(0, eta) = mean Phi(z) + sd phi(z), z = mean / sd, for a Gaussian eta."""
    deviation = np.sqrt(variance)
    z = mean / np.where(deviation > 0, deviation, 1.0)
    spread = mean * scipy.special.ndtr(z) + deviation * np.exp(-0.5 * z**2) / np.sqrt(2 * np.pi)
    return np.where(deviation > 0, spread, np.maximum(mean, 0.0))


RECTIFIED_POISSON = register_site(
    Site(
        name="rectified_poisson",
        parameters=(),
        domain="count",
        log_concave=True,
        kinked=True,
        vanishes=True,
        additive=(),
        takes_averages=True,
        logp=logp,
        response=counts(lambda eta: np.maximum(eta, 0.0)),
        typical=lambda y: (y, np.maximum(y, 1.0)),
        tilted=tilted,
        intensity=intensity,
        options={"zero_mass": True},
    )
)
