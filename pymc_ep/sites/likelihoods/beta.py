"""Proportions with a beta distribution of mean 1 / (1 + exp(-eta)). Not log-concave in eta."""

from typing import Any

import pytensor.tensor as pt
from scipy.special import expit

from pymc_ep.sites.base import Response, Site, register_site

__all__ = ["BETA"]


def logp(y: Any, eta: Any, nu: Any) -> Any:
    """Return log Beta(y; nu p, nu (1 - p)) with p = 1 / (1 + exp(-eta)).

    With ``a = nu p`` and ``b = nu (1 - p)``, ``1 / Gamma(a)`` is written as ``a / Gamma(1 + a)``, where log a is from a
    softplus and finite even if a underflows.

    t is not log-concave. As b vanishes, the log density is ``log b + c b`` plus a constant, with
    ``c = digamma(nu) - digamma(1) + log((1 - y) / y)``, and is convex in eta if c > 1 / nu.
    """
    success, failure = pt.sigmoid(eta), pt.sigmoid(-eta)
    # log(Gamma(a) Gamma(b)), a = nu p, b = nu (1 - p): log a = log nu - softplus(-eta), log b = log nu - softplus(eta).
    log_gamma = (
        pt.softplus(-eta)
        + pt.softplus(eta)
        - 2 * pt.log(nu)
        + pt.gammaln(1 + nu * success)
        + pt.gammaln(1 + nu * failure)
    )
    log_y, log_rest = pt.log(y), pt.log1p(-y)
    # log Gamma(nu) - log(Gamma(a) Gamma(b)) + (a - 1) log y + (b - 1) log(1 - y).
    return pt.gammaln(nu) - log_gamma + nu * (success * log_y + failure * log_rest) - log_y - log_rest


BETA = register_site(
    Site(
        name="beta",
        parameters=("nu",),
        domain="unit interval",
        # Var y = p (1 - p) / (1 + nu).
        response=Response(lambda eta, nu: expit(eta), lambda eta, nu: expit(eta) * expit(-eta) / (1.0 + nu)),
        log_concave=False,
        analytic=True,
        logp=logp,
    )
)
