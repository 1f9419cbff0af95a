"""Real observations with Student-t noise: robust to outliers, and not log-concave in eta."""

from typing import Any

import numpy as np
import pytensor.tensor as pt

from pymc_ep.numerics.backend.namespace import namespace
from pymc_ep.sites.base import Site, SuperGaussian, register_site
from pymc_ep.sites.likelihoods.log_gamma import log_rising
from pymc_ep.sites.responses import located

__all__ = ["STUDENT_T", "log_constant", "logp"]

_KNOTS = 17
"""Number of knots on either side of the observation, at 1, 3, 9, ... units: the last is at 3**16 = 4e7."""


def logp(y: Any, eta: Any, nu: Any, sigma: Any) -> Any:
    """Return the log of the Student-t density of location eta, scale sigma and nu degrees of freedom."""
    return log_at(y, (y - eta) ** 2, nu, sigma)


def log_constant(nu: Any) -> Any:
    """Return the log of the density of scale one at its location."""
    return log_rising(0.5 * nu, 0.5) - 0.5 * pt.log(np.pi * nu)


def knots(y: Any, nu: Any, sigma: Any) -> tuple[Any, ...]:
    """Knots at the observation and at 1, 3, 9, ... units from it.

    The unit is ``sqrt(nu) sigma``, the distance of the poles of t, but at most ``3 sigma``: for large nu, t is nearly
    Gaussian well beyond that, and the tilted density may be narrow there.
    """
    xp = namespace(nu)
    unit = xp.minimum(xp.sqrt(nu), 3.0) * sigma
    steps = [unit * 3.0**grade for grade in range(_KNOTS)]
    return (y, *(y - step for step in steps), *(y + step for step in steps))


def log_at(y: Any, x: Any, nu: Any, sigma: Any) -> Any:
    """Return the log density at the squared distance x from the observation."""
    return log_constant(nu) - pt.log(sigma) - 0.5 * (nu + 1) * pt.log1p(x / (nu * sigma**2))


def _variance(nu: Any, sigma: Any) -> Any:
    return np.where(nu > 2, sigma**2 * nu / np.where(nu > 2, nu - 2.0, 1.0), np.inf)


STUDENT_T = register_site(
    Site(
        name="student_t",
        parameters=("nu", "sigma"),
        domain="real",
        located=True,
        response=located(_variance),
        log_concave=False,
        logp=logp,
        typical=lambda y, nu, sigma: (y, sigma**2),
        knots=knots,
        nodes=20,
        super_gaussian=SuperGaussian(
            centre=lambda y, nu, sigma: y,
            slope=lambda y, nu, sigma: pt.zeros_like(y),
            log_at=log_at,
            precision=lambda y, x, nu, sigma: (nu + 1) / (nu * sigma**2 + x),
        ),
    )
)
