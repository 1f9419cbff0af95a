"""Poisson counts with rate max(0, eta)."""

from typing import Any

import numpy as np
import pytensor.tensor as pt

from pymc_ep.kernels.rectified_poisson.op import rectified_poisson
from pymc_ep.sites.base import Site, Tilted, register_site
from pymc_ep.sites.counts import log_poisson

__all__ = ["RECTIFIED_POISSON"]


def logp(y: Any, eta: Any, zero_mass: bool) -> Any:
    """log Poisson(y; max(0, eta)).

    A negative eta is impossible for y > 0 and, unless `zero_mass`, for y = 0 too (Ko and Seeger, eq. 13).
    """
    positive = eta > 0
    rate = pt.switch(positive, eta, 1.0)
    log_t = log_poisson(y, pt.log(rate), rate)
    at_zero = pt.switch(y > 0, -np.inf, 0.0)
    return pt.switch(positive, log_t, at_zero if zero_mass else pt.switch(eta < 0, -np.inf, at_zero))


def tilted(y: Any, mean: Any, variance: Any, power: Any, zero_mass: bool) -> Tilted:
    """The closed form of the kernel, for every power."""
    return Tilted(*rectified_poisson(y, mean, variance, power, zero_mass=zero_mass))


RECTIFIED_POISSON = register_site(
    Site(
        name="rectified_poisson",
        parameters=(),
        domain="count",
        log_concave=True,
        logp=logp,
        tilted=tilted,
        options={"zero_mass": True},
    )
)
