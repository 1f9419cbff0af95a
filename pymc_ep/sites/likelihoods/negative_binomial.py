"""Overdispersed counts with a negative binomial distribution of mean exp(eta)."""

from typing import Any

import numpy as np
import pytensor.tensor as pt

from pymc_ep.numerics.backend.namespace import namespace
from pymc_ep.sites.base import Site, register_site
from pymc_ep.sites.likelihoods.log_gamma import log_gamma
from pymc_ep.sites.likelihoods.logistic import log_beta_of_logit, logistic_bound
from pymc_ep.sites.responses import positive

__all__ = ["NEGATIVE_BINOMIAL"]


def logp(y: Any, eta: Any, alpha: Any) -> Any:
    """Return log NegativeBinomial(y; mean exp(eta), dispersion alpha), of variance ``mean + mean**2 / alpha``.

    For y > 0 the probability is ``p**y (1 - p)**alpha / (y B(y, alpha))`` with ``logit p = eta - log alpha``, see
    `log_beta_of_logit`. For y = 0 its log is ``-alpha log(1 + exp(eta) / alpha)``.
    """
    log_count = pt.log(pt.switch(y > 0, y, 1.0))
    # u = eta - log y: the density of logit p has its maximum at log(y / alpha).
    some = log_beta_of_logit(eta - log_count, pt.switch(y > 0, y, 1.0), alpha) - log_count
    return pt.switch(y > 0, some, -alpha * pt.softplus(eta - pt.log(alpha)))


def knots(y: Any, alpha: Any) -> tuple[Any, ...]:
    """Return knots around log alpha, where log t bends between two asymptotes, and around its maximum at log y."""
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
        # At the maximum, eta = log y, -d^2 log t / d eta^2 = 1 / (1 / y + 1 / alpha); 1/2 makes y = 0 finite.
        typical=lambda y, alpha: (np.log(y + 0.5), 1.0 / (y + 0.5) + 1.0 / alpha),
        analytic=True,
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
