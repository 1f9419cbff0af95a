"""Real observations with Student-t noise: robust to outliers, and not log-concave in eta."""

from types import ModuleType
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

_RESOLVED = 100.0
"""Degrees of freedom up to which no peak of a tilted density is narrow compared with its distance from the observation:
knots alone give ten digits up to 300."""


def logp(y: Any, eta: Any, nu: Any, sigma: Any) -> Any:
    """Return the log of the Student-t density of location eta, scale sigma and nu degrees of freedom."""
    return log_at(y, (y - eta) ** 2, nu, sigma)


def log_constant(nu: Any) -> Any:
    """Return the log of the density of scale one at its location."""
    # log Gamma((nu + 1) / 2) - log Gamma(nu / 2) - log(pi nu) / 2.
    return log_rising(0.5 * nu, 0.5) - 0.5 * pt.log(np.pi * nu)


def knots(y: Any, nu: Any, sigma: Any) -> tuple[Any, ...]:
    """Return knots at the observation and at 1, 3, 9, ... units from it.

    The unit is ``sqrt(nu) sigma``, the distance of the poles of t, but at most ``3 sigma``: for large nu, t is nearly
    Gaussian well beyond that, and the tilted density may be narrow there.
    """
    xp = namespace(nu)
    unit = xp.minimum(xp.sqrt(nu), 3.0) * sigma
    steps = [unit * 3.0**grade for grade in range(_KNOTS)]
    return (y, *(y - step for step in steps), *(y + step for step in steps))


def peaks(y: Any, mean: Any, variance: Any, power: Any, nu: Any, sigma: Any) -> tuple[tuple[Any, Any], ...]:
    """Return the outermost stationary points of the tilted density, with their widths; none if knots resolve them."""
    if namespace(mean, nu) is np and np.all(nu <= _RESOLVED):
        return ()
    least, largest, width, other, _ = outermost_peaks(y, mean, variance, power, nu, sigma)
    return (least, width), (largest, other)


def outermost_peaks(y: Any, mean: Any, variance: Any, power: Any, nu: Any, sigma: Any) -> tuple[Any, ...]:
    """Return the outermost stationary points of the tilted density, their widths, and the distance of poles.

    With ``x = eta - y``, ``d = mean - y``, power p and variance v, the slope of the log density vanishes at the roots
    of the cubic

        x^3 - d x^2 + (nu sigma^2 + p v (nu + 1)) x - d nu sigma^2 = 0,

    where a middle root is a minimum. The width is ``(-d^2 log density / d x^2)^(-1/2)``, huge where this derivative is
    positive. The poles are at ``x = +-i nu^(1/2) sigma``.
    """
    xp = namespace(mean, nu)
    squared, pull = nu * sigma**2, power * variance * (nu + 1)
    # In units in which no coefficient is above one.
    unit = xp.sqrt(xp.maximum((mean - y) ** 2, squared + pull))
    d = (mean - y) / unit
    roots = [unit * root for root in _outermost_roots(-d, (squared + pull) / unit**2, -d * squared / unit**2, xp)]
    # -d^2 log density / d x^2 = 1 / v + p (nu + 1) (nu sigma^2 - x^2) / (nu sigma^2 + x^2)^2.
    curvatures = [1 / variance + power * (nu + 1) * (squared - x**2) / (squared + x**2) ** 2 for x in roots]
    widths = [xp.where(c > 0, xp.abs(c), np.finfo(float).tiny) ** -0.5 for c in curvatures]
    return *(y + x for x in roots), *widths, xp.sqrt(squared)


def _outermost_roots(a: Any, b: Any, c: Any, xp: ModuleType) -> tuple[Any, Any]:
    """Return the least and the largest real root of ``x^3 + a x^2 + b x + c``, by Viete's and Cardano's formulas."""
    # x = t - a / 3 gives t^3 + p t + q = 0, with three real roots where q^2 / 4 + p^3 / 27 < 0.
    p, q = b - a**2 / 3, 2 * a**3 / 27 - a * b / 3 + c
    radicand = q**2 / 4 + p**3 / 27
    several = radicand < 0
    # Viete: t = 2 size cos(angle + 2 pi k / 3), size = sqrt(-p / 3), cos(3 angle) = -q / (2 size^3).
    size = xp.sqrt(xp.where(several, -p / 3, 1.0))
    angle = xp.arccos(xp.clip(-0.5 * q / size**3, -1.0, 1.0)) / 3
    # The sum of two terms of one sign.
    root = xp.cbrt(0.5 * q + xp.where(q < 0, -1.0, 1.0) * xp.sqrt(xp.maximum(radicand, 0.0)))
    # Cardano: t = p / (3 root) - root.
    single = xp.where(root == 0, 0.0, p / (3 * xp.where(root == 0, 1.0, root)) - root)
    least, largest = (xp.where(several, 2 * size * xp.cos(angle + turn), single) for turn in (2 * np.pi / 3, 0.0))
    return least - a / 3, largest - a / 3


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
        analytic=True,
        logp=logp,
        typical=lambda y, nu, sigma: (y, sigma**2),
        knots=knots,
        peaks=peaks,
        outermost_peaks=outermost_peaks,
        nodes=20,
        super_gaussian=SuperGaussian(
            centre=lambda y, nu, sigma: y,
            slope=lambda y, nu, sigma: pt.zeros_like(y),
            log_at=log_at,
            precision=lambda y, x, nu, sigma: (nu + 1) / (nu * sigma**2 + x),
        ),
    )
)
