"""Several observations of one predictor as one site.

Where log t is affine in y but for a term free of eta, k observations enter by their number and average alone:

    sum_i log t(eta; y_i) = k log t(eta; mean y) + c,

with a c free of eta. In expectation propagation one site of all k observations replaces their product by a Gaussian at
once. Each of k separate sites would treat the other k - 1 as Gaussian.
"""

from functools import lru_cache
from typing import Any

import pytensor.tensor as pt

from pymc_ep.numerics.backend.namespace import namespace
from pymc_ep.sites.base import Site, SuperGaussian, Tilted

__all__ = ["is_additive", "repeated"]

_WHOLE = ("binary", "count", "positive count")
"""Domains of whole numbers, which do not contain averages of these numbers."""


def is_additive(site: Site) -> bool:
    """Return whether several observations of one predictor can be one site of their number and average, see `repeated`.

    A site with parameters, for observations that are whole numbers, must also accept averages as observations.
    """
    if site.gaussian or site.located or site.coupled or not site.log_concave:
        return False
    if site.parameters and site.domain in _WHOLE and not site.takes_averages:
        return False
    return site.additive is not None or site.domain == "binary"


@lru_cache(maxsize=64)
def repeated(site: Site) -> Site:
    """Return the site of k observations of one predictor, for an additive site.

    Its observation is the average. Its parameters are ``count``, k, and ``log_constant``, c, then the parameters of
    `site`.
    """
    interpolated = site.domain in _WHOLE and not site.takes_averages
    closed = site.tilted is not None and site.any_power and not interpolated

    def log_t(y: Any, eta: Any, *parameters: Any, **options: Any) -> Any:
        if not interpolated:
            return site.logp(y, eta, *parameters, **options)
        # It is affine in y also between whole numbers, where the site need not define it.
        low = pt.floor(y)
        share = y - low
        between = share > 0
        below = site.logp(low, eta, *parameters, **options)
        above = site.logp(low + between, eta, *parameters, **options)
        return pt.switch(between, (1 - share) * below + share * above, below)

    def logp(y: Any, eta: Any, count: Any, log_constant: Any, *parameters: Any, **options: Any) -> Any:
        return count * log_t(y, eta, *parameters, **options) + log_constant

    def tilted(
        y: Any, mean: Any, variance: Any, power: Any, count: Any, log_constant: Any, *rest: Any, **options: Any
    ) -> Tilted:
        assert site.tilted is not None, "called for closed forms only"
        # prod_i t(eta; y_i)^power = e^(power c) t(eta; mean y)^(power k).
        moments = site.tilted(y, mean, variance, power * count, *rest, **options)
        return moments._replace(log_z=moments.log_z + power * log_constant)

    def knots(y: Any, count: Any, log_constant: Any, *parameters: Any) -> tuple[Any, ...]:
        assert site.knots is not None, "called where there are knots"
        # All failures, or all successes, of k trials: t falls, or rises, where they become likely.
        shift = namespace(y, count).log(count)
        return (*site.knots(y, *parameters), *(s * shift + step for s in (-1.0, 1.0) for step in (-2.0, 2.0)))

    bound, curvature = site.super_gaussian, site.curvature_bound

    def curvature_bound(y: Any, count: Any, log_constant: Any, *parameters: Any) -> Any:
        assert curvature is not None, "called where there is a bound"
        return count * curvature(y, *parameters)

    return Site(
        name=site.name,
        parameters=("count", "log_constant", *site.parameters),
        domain=site.domain,
        log_concave=True,
        logp=logp,
        tilted=tilted if closed else None,
        knots=None if site.knots is None else knots,
        knots_beyond=site.knots_beyond,
        nodes=site.nodes,
        interpreted=site.interpreted,
        analytic=site.analytic,
        kinked=site.kinked,
        vanishes=site.vanishes,
        super_gaussian=None if bound is None else _repeated_bound(bound),
        curvature_bound=None if curvature is None else curvature_bound,
        options=site.options,
    )


def _repeated_bound(bound: SuperGaussian) -> SuperGaussian:
    """Return the bound on the site of k observations: the sum of k bounds that touch at the same distance."""
    return SuperGaussian(
        centre=lambda y, count, log_constant, *rest: bound.centre(y, *rest),
        slope=lambda y, count, log_constant, *rest: count * bound.slope(y, *rest),
        log_at=lambda y, x, count, log_constant, *rest: count * bound.log_at(y, x, *rest) + log_constant,
        precision=lambda y, x, count, log_constant, *rest: count * bound.precision(y, x, *rest),
    )
