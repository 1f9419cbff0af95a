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
    """Return the log of the Laplace density ``exp(-|y - eta| / b) / (2 b)``."""
    return pm.logp(pm.Laplace.dist(eta, b), y)


def tilted(y: Any, mean: Any, variance: Any, power: Any, b: Any) -> Tilted:
    """Return the moments of a mixture of two truncated Gaussians, one on each side of y."""
    halves = two_halves(y, mean, variance, power / b, power / b)
    return halves._replace(log_z=halves.log_z - power * pt.log(2 * b))


def two_halves(y: Any, mean: Any, variance: Any, rate_left: Any, rate_right: Any) -> Tilted:
    """Return the moments for ``t(f) = exp(-a |f - y|)``, with one rate a on each side of y.

    With ``c = (m - y) / s``, ``s = sqrt(v)``, each half is a Gaussian of variance v truncated at y. Before truncation
    the right one has the mean ``y + s (c - a s)``, and the left one ``y + s (c + a s)``. From either mean, y is
    ``k = a s - c`` and ``k = a s + c`` standard deviations towards the half, see `truncated_normal`. The mass of either
    is ``exp(-c**2 / 2) / (sqrt(2 pi) h(k))`` with the hazard h. The weights are therefore ratios of hazards, in which
    nothing overflows or cancels. The site precision follows from
    ``Cov(f, -d log t / d f) = (a_right + a_left) p_right p_left s (r_right + r_left)`` with the weights p and the
    truncated means r, and is positive.
    """
    deviation = pt.sqrt(variance)
    step_right, step_left = rate_right * deviation, rate_left * deviation
    c = (mean - y) / deviation
    _, hazard_right, mean_right, variance_right = truncated_normal(step_right - c)
    _, hazard_left, mean_left, variance_left = truncated_normal(step_left + c)
    right = hazard_left / (hazard_left + hazard_right)
    left = hazard_right / (hazard_left + hazard_right)
    gap = right * left * (mean_right + mean_left)
    # V / v: variances of the halves, and p_right p_left (r_right + r_left)^2 between their means.
    spread = right * variance_right + left * variance_left + gap * (mean_right + mean_left)
    # Mirrored if c < 0, with both rates exchanged, as `_log_z` takes c >= 0.
    above = c >= 0
    near, far = pt.switch(above, step_right, step_left), pt.switch(above, step_left, step_right)
    return Tilted(
        log_z=_log_z(near, far, pt.abs(c)),
        mean=y + deviation * (right * mean_right - left * mean_left),
        variance=variance * spread,
        gradient=rate_left * left - rate_right * right,
        # 1 / V - 1 / v = Cov(f, -d log t / d f) / V.
        precision=(rate_right + rate_left) * gap / (deviation * spread),
    )


def _log_z(step_near: Any, step_far: Any, c: Any) -> Any:
    """Return the log integral of N(x; c, 1) times exp(-step_near x) on x > 0 and exp(step_far x) on x < 0, for c >= 0.

    The half x > 0 has the log mass ``step**2 / 2 - step c + log Phi(c - step)``. Where c <= step these terms cancel,
    and the log mass is computed as ``-c**2 / 2 - log(sqrt(2 pi) h_near)``. The other half adds
    ``log(1 + h_near / h_far)``.
    """
    log_mass, near, _, _ = truncated_normal(step_near - c)
    _, far, _, _ = truncated_normal(step_far + c)
    inside = c > step_near
    # The branch not taken must be finite, or the derivative is nan.
    safe = pt.switch(inside, 1.0, near)
    exact = step_near * (0.5 * step_near - c) + log_mass
    above = pt.switch(inside, exact, -0.5 * c**2 - pt.log(safe) - 0.5 * np.log(2 * np.pi))
    return above + pt.log1p(near / far)


LAPLACE = register_site(
    Site(
        name="laplace",
        parameters=("b",),
        domain="real",
        located=True,
        response=located(lambda b: 2.0 * b**2),
        log_concave=True,
        kinked=True,
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
