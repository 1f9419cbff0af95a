"""Laplace noise, or a Laplace potential on a coefficient (y = 0)."""

from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from pymc_ep.kernels.truncated_normal.op import truncated_normal
from pymc_ep.sites.base import Site, SuperGaussian, Tilted, register_site
from pymc_ep.sites.responses import located

__all__ = ["LAPLACE"]


def logp(y: Any, eta: Any, b: Any) -> Any:
    """log of the Laplace density ``exp(-|y - eta| / b) / (2 b)``."""
    return pm.logp(pm.Laplace.dist(eta, b), y)


def tilted(y: Any, mean: Any, variance: Any, power: Any, b: Any) -> Tilted:
    """Mixture of two truncated Gaussians, one on each side of y.

    With rate ``a = power / b``, ``x = f - y``, ``c = (m - y) / s`` and ``s = sqrt(v)`` the halves are Gaussians of
    variance v with means ``s (c -+ a s)``, cut at 0, so that ``k = a s -+ c`` for the right and the left one. Both
    masses have the factor ``exp(-c**2 / 2) / sqrt(2 pi)``; what remains is one over the hazard h(k). The weights
    are therefore ratios of hazards, in which nothing overflows or cancels, and moments of the mixture are sums of
    positive terms. For the site precision: ``power * d log t / d f = -a sign(x)`` and
    ``Cov(x, sign(x)) = 2 p_right p_left (E|x| right + E|x| left)``.
    """
    deviation = pt.sqrt(variance)
    rate = power / b
    step = rate * deviation
    c = (mean - y) / deviation
    _, hazard_right, mean_right, variance_right = truncated_normal(step - c)
    _, hazard_left, mean_left, variance_left = truncated_normal(step + c)
    right = hazard_left / (hazard_left + hazard_right)
    left = hazard_right / (hazard_left + hazard_right)
    gap = right * left * (mean_right + mean_left)
    spread = right * variance_right + left * variance_left + gap * (mean_right + mean_left)
    return Tilted(
        log_z=_log_z(step, pt.abs(c)) - power * pt.log(2 * b),
        mean=y + deviation * (right * mean_right - left * mean_left),
        variance=variance * spread,
        gradient=rate * (left - right),
        precision=2 * rate * gap / (deviation * spread),
    )


def _log_z(step: Any, c: Any) -> Any:
    """log of the integral of ``N(x; c, 1) exp(-step |x|)`` for c >= 0.

    The larger half is exact as ``step**2 / 2 - step c + log Phi(c - step)`` where ``c > step``, and otherwise, where
    those terms cancel, as ``-c**2 / 2 - log(sqrt(2 pi) h)``; the smaller half adds ``log(1 + h_near / h_far)``.
    """
    log_mass, near, _, _ = truncated_normal(step - c)
    _, far, _, _ = truncated_normal(step + c)
    inside = c > step
    # Guarded, so that the branch not taken gives no infinity to the derivative.
    safe = pt.switch(inside, 1.0, near)
    larger = pt.switch(inside, step * (0.5 * step - c) + log_mass, -0.5 * c**2 - pt.log(safe) - 0.5 * np.log(2 * np.pi))
    return larger + pt.log1p(near / far)


LAPLACE = register_site(
    Site(
        name="laplace",
        parameters=("b",),
        domain="real",
        response=located(lambda b: 2.0 * b**2),
        log_concave=True,
        logp=logp,
        typical=lambda y, b: (y, 2 * b**2),
        tilted=tilted,
        super_gaussian=SuperGaussian(
            centre=lambda y, b: y,
            slope=lambda y, b: pt.zeros_like(y),
            log_at=lambda y, x, b: -pt.sqrt(x) / b - pt.log(2 * b),
            precision=lambda y, x, b: 1 / (b * pt.sqrt(x)),
        ),
    )
)
