"""Real observations with Gaussian noise."""

from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from pymc_ep.sites.base import Site, SuperGaussian, Tilted, register_site
from pymc_ep.sites.responses import located

__all__ = ["NORMAL"]


def logp(y: Any, eta: Any, sigma: Any) -> Any:
    """Return log N(y; eta, sigma**2)."""
    return pm.logp(pm.Normal.dist(eta, sigma), y)


def tilted(y: Any, mean: Any, variance: Any, power: Any, sigma: Any) -> Tilted:
    """Return Gaussian moments: ``N(y; f, sigma**2)**power`` is ``N(y; f, sigma**2 / power)`` times a constant."""
    noise = sigma**2 / power
    total = variance + noise
    residual = y - mean
    # N(y; f, sigma^2)^power = (2 pi sigma^2)^((1 - power) / 2) power^(-1/2) N(y; f, sigma^2 / power).
    constant = 0.5 * (1 - power) * pt.log(2 * np.pi * sigma**2) - 0.5 * pt.log(power)
    log_z = constant - 0.5 * pt.log(2 * np.pi * total) - 0.5 * residual**2 / total
    tilted_mean = (mean * noise + y * variance) / total
    return Tilted(log_z, tilted_mean, variance * (noise / total), residual / total, 1 / noise)


NORMAL = register_site(
    Site(
        name="normal",
        parameters=("sigma",),
        domain="real",
        located=True,
        response=located(lambda sigma: sigma**2),
        log_concave=True,
        gaussian=True,
        analytic=True,
        logp=logp,
        typical=lambda y, sigma: (y, sigma**2),
        tilted=tilted,
        super_gaussian=SuperGaussian(
            centre=lambda y, sigma: y,
            slope=lambda y, sigma: pt.zeros_like(y),
            log_at=lambda y, x, sigma: -0.5 * x / sigma**2 - pt.log(sigma) - 0.5 * np.log(2 * np.pi),
            precision=lambda y, x, sigma: pt.zeros_like(x) + 1 / sigma**2,
        ),
    )
)
