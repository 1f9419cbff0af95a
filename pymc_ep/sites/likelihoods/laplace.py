"""Laplace noise, or a Laplace potential on a coefficient (y = 0)."""

from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from pymc_ep.kernels.truncated_normal.op import truncated_normal
from pymc_ep.sites.base import Site, SuperGaussian, Tilted, register_site
from pymc_ep.sites.responses import located

__all__ = ["LAPLACE", "two_halves"]


def logp(y: Any, eta: Any, b: Any) -> Any:
    """log of the Laplace density ``exp(-|y - eta| / b) / (2 b)``."""
    return pm.logp(pm.Laplace.dist(eta, b), y)


def tilted(y: Any, mean: Any, variance: Any, power: Any, b: Any) -> Tilted:
    """Mixture of two truncated Gaussians, one on each side of y."""
    halves = two_halves(y, mean, variance, power / b, power / b)
    return halves._replace(log_z=halves.log_z - power * pt.log(2 * b))


def two_halves(y: Any, mean: Any, variance: Any, rate_left: Any, rate_right: Any) -> Tilted:
    """Moments under ``t(f) = exp(-rate |f - y|)``, with one rate on each side of y.

    With ``c = (m - y) / s``, ``s = sqrt(v)`` and rate a the halves are Gaussians of variance v with means
    ``y + s (c -+ a s)``, cut at y, so that ``k = a s -+ c`` for the right and the left one. Both masses have the factor
    ``exp(-c**2 / 2) / sqrt(2 pi)``; what remains is one over the hazard h(k). The weights are therefore ratios of
    hazards, in which nothing overflows or cancels, and moments of the mixture are sums of positive terms. With
    x = f - y the site precision follows from
    ``Cov(x, -d log t / d f) = (a_right + a_left) p_right p_left (E|x| right + E|x| left)``.
    """
    deviation = pt.sqrt(variance)
    step_right, step_left = rate_right * deviation, rate_left * deviation
    c = (mean - y) / deviation
    _, hazard_right, mean_right, variance_right = truncated_normal(step_right - c)
    _, hazard_left, mean_left, variance_left = truncated_normal(step_left + c)
    right = hazard_left / (hazard_left + hazard_right)
    left = hazard_right / (hazard_left + hazard_right)
    gap = right * left * (mean_right + mean_left)
    spread = right * variance_right + left * variance_left + gap * (mean_right + mean_left)
    above = c >= 0
    near, far = pt.switch(above, step_right, step_left), pt.switch(above, step_left, step_right)
    return Tilted(
        log_z=_log_z(near, far, pt.abs(c)),
        mean=y + deviation * (right * mean_right - left * mean_left),
        variance=variance * spread,
        gradient=rate_left * left - rate_right * right,
        precision=(rate_right + rate_left) * gap / (deviation * spread),
    )


def _log_z(step_near: Any, step_far: Any, c: Any) -> Any:
    """log of the integral of N(x; c, 1) with c >= 0 times exp(-step_near x) above zero and exp(step_far x) below it.

    The half above is exact as ``step**2 / 2 - step c + log Phi(c - step)`` where ``c > step``, and otherwise, where
    those terms cancel, as ``-c**2 / 2 - log(sqrt(2 pi) h)``; the other half adds ``log(1 + h_near / h_far)``.
    """
    log_mass, near, _, _ = truncated_normal(step_near - c)
    _, far, _, _ = truncated_normal(step_far + c)
    inside = c > step_near
    # Guarded, so that the branch not taken gives no infinity to the derivative.
    safe = pt.switch(inside, 1.0, near)
    exact = step_near * (0.5 * step_near - c) + log_mass
    above = pt.switch(inside, exact, -0.5 * c**2 - pt.log(safe) - 0.5 * np.log(2 * np.pi))
    return above + pt.log1p(near / far)


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
