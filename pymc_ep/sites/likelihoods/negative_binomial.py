"""Overdispersed counts with a negative binomial distribution of mean exp(eta)."""

from typing import Any

import numpy as np
import pytensor.tensor as pt

from pymc_ep.numerics.backend.namespace import namespace
from pymc_ep.sites.base import Site, register_site
from pymc_ep.sites.likelihoods.log_gamma import log_gamma
from pymc_ep.sites.likelihoods.logistic import log_logistic_powers, logistic_bound
from pymc_ep.sites.responses import positive

__all__ = ["NEGATIVE_BINOMIAL"]


def logp(y: Any, eta: Any, alpha: Any) -> Any:
    """Return log NegativeBinomial(y; mean exp(eta), dispersion alpha), of variance ``mean + mean**2 / alpha``.

    For y > 0 it is its maximum, where the mean is y, plus the log ratio to that, see `log_logistic_powers`. For y = 0
    it is ``-alpha log(1 + exp(eta) / alpha)``.
    """
    count = pt.switch(y > 0, y, 1.0)
    total = count + alpha
    top = log_gamma(total) - log_gamma(alpha) - pt.gammaln(count + 1) - alpha * pt.log1p(count / alpha)
    top = top - count * pt.log1p(alpha / count)
    some = log_logistic_powers(eta - pt.log(count), count, alpha) + top
    return pt.switch(y > 0, some, -alpha * pt.softplus(eta - pt.log(alpha)))


def knots(y: Any, alpha: Any) -> tuple[Any, ...]:
    """Knots around log alpha, where log t bends between two asymptotes, and around its maximum at log y."""
    xp = namespace(alpha)
    corner, peak = xp.log(alpha), xp.log(xp.maximum(y, 1.0))
    return (
        *(corner + knot for knot in (-36.0, -12.0, 0.0, 12.0, 36.0)),
        *(peak + knot for knot in (-8.0, -2.0, 2.0)),
    )


NEGATIVE_BINOMIAL = register_site(
    Site(
        name="negative_binomial",
        parameters=("alpha",),
        domain="count",
        # The variance is m + m^2 / alpha.
        response=positive(lambda mean, alpha: 1.0 / (1.0 / mean + 1.0 / alpha)),
        log_concave=True,
        additive=(),
        takes_averages=True,
        typical=lambda y, alpha: (np.log(y + 0.5), 1.0 / (y + 0.5) + 1.0 / alpha),
        logp=logp,
        knots=knots,
        knots_beyond=20.0,
        super_gaussian=logistic_bound(
            left=lambda y, alpha: y,
            right=lambda y, alpha: alpha,
            centre=lambda y, alpha: pt.log(alpha),
            log_constant=lambda y, alpha: log_gamma(y + alpha) - log_gamma(alpha) - pt.gammaln(y + 1),
        ),
    )
)
