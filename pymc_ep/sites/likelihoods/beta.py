"""Proportions with mean 1 / (1 + exp(-eta)): beta. Not log-concave in eta."""

from typing import Any

import pytensor.tensor as pt
from scipy.special import expit

from pymc_ep.sites.base import Response, Site, register_site

__all__ = ["BETA"]


def logp(y: Any, eta: Any, nu: Any) -> Any:
    """log Beta(y; nu p, nu (1 - p)) with p = 1 / (1 + exp(-eta)).

    ``1 / Gamma(a)`` is written as ``a / Gamma(1 + a)``, with log a from a softplus, so that an a that underflows leaves
    no infinity. Far from y the log density is a line with a convex bend before it: with b = nu (1 - p) small it is
    ``log b`` plus terms in b, which is why t is not log-concave.
    """
    success, failure = pt.sigmoid(eta), pt.sigmoid(-eta)
    log_gamma = (
        pt.softplus(-eta)
        + pt.softplus(eta)
        - 2 * pt.log(nu)
        + pt.gammaln(1 + nu * success)
        + pt.gammaln(1 + nu * failure)
    )
    log_y, log_rest = pt.log(y), pt.log1p(-y)
    return pt.gammaln(nu) - log_gamma + nu * (success * log_y + failure * log_rest) - log_y - log_rest


BETA = register_site(
    Site(
        name="beta",
        parameters=("nu",),
        domain="unit interval",
        response=Response(lambda eta, nu: expit(eta), lambda eta, nu: expit(eta) * expit(-eta) / (1.0 + nu)),
        log_concave=False,
        logp=logp,
    )
)
