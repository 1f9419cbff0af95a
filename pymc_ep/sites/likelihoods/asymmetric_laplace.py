"""Asymmetric Laplace noise, the likelihood of quantile regression."""

from typing import Any

import pymc as pm
import pytensor.tensor as pt

from pymc_ep.sites.base import Site, Tilted, register_site
from pymc_ep.sites.likelihoods.laplace import two_halves

__all__ = ["ASYMMETRIC_LAPLACE"]


def logp(y: Any, eta: Any, b: Any, kappa: Any) -> Any:
    """Return log of ``b exp(-b |r| kappa**sign(r)) / (kappa + 1 / kappa)`` at r = y - eta."""
    return pm.logp(pm.AsymmetricLaplace.dist(b=b, kappa=kappa, mu=eta), y)


def tilted(y: Any, mean: Any, variance: Any, power: Any, b: Any, kappa: Any) -> Tilted:
    """Return moments of a mixture of two truncated Gaussians; t decays at rates b kappa below y, b / kappa above."""
    halves = two_halves(y, mean, variance, power * b * kappa, power * b / kappa)
    # t is b / (kappa + 1 / kappa) at its maximum, eta = y.
    return halves._replace(log_z=halves.log_z + power * (pt.log(b) - pt.log(kappa + 1 / kappa)))


ASYMMETRIC_LAPLACE = register_site(
    Site(
        name="asymmetric_laplace",
        parameters=("b", "kappa"),
        domain="real",
        located=True,
        log_concave=True,
        kinked=True,
        logp=logp,
        # Var(y - eta) = 1 / (b kappa)^2 + (kappa / b)^2.
        typical=lambda y, b, kappa: (y, (1 + kappa**4) / (b * kappa) ** 2),
        tilted=tilted,
    )
)
