"""Successes among n trials, with the logistic, the probit or the complementary log-log link."""

from collections.abc import Callable
from typing import Any

import pytensor.tensor as pt

from pymc_ep.kernels.truncated_normal.op import truncated_normal
from pymc_ep.numerics.backend.namespace import namespace
from pymc_ep.sites.base import Relation, Site, SuperGaussian, register_site
from pymc_ep.sites.likelihoods.cloglog import knots as cloglog_knots
from pymc_ep.sites.likelihoods.cloglog import log_success
from pymc_ep.sites.likelihoods.logistic import log_beta_of_logit, logistic_bound
from pymc_ep.sites.likelihoods.logit import knots as binary_logit_knots
from pymc_ep.sites.likelihoods.probit import knots as probit_knots
from pymc_ep.sites.responses import successes

__all__ = ["BINOMIAL_CLOGLOG", "BINOMIAL_LOGIT", "BINOMIAL_PROBIT"]


def log_combinations(n: Any, y: Any) -> Any:
    """Return the log of the binomial coefficient n! / (y! (n - y)!)."""
    return pt.gammaln(n + 1) - pt.gammaln(y + 1) - pt.gammaln(n - y + 1)


def logit_logp(y: Any, eta: Any, n: Any) -> Any:
    """Return log Binomial(y; n, 1 / (1 + exp(-eta))).

    For 0 < y < n the probability is ``p**y (1 - p)**(n - y) / B(y, n - y)``, see `log_beta_of_logit`, times
    ``n / (y (n - y))``. For y = 0 its log is ``-n softplus(eta)``, for y = n ``-n softplus(-eta)``.
    """
    inside = (y > 0) & (y < n)
    successes = pt.switch(inside, y, 0.5 * n)
    failures = n - successes
    # The density of logit p has its maximum at log(y / (n - y)), see `log_beta_of_logit`.
    some = log_beta_of_logit(eta - pt.log(successes / failures), successes, failures)
    some = some - pt.log(successes / n * failures)
    return pt.switch(inside, some, -n * pt.softplus(pt.switch(y > 0, -eta, eta)))


def probit_logp(y: Any, eta: Any, n: Any) -> Any:
    """Return log Binomial(y; n, Phi(eta))."""
    # The first output of truncated_normal(k) is log Phi(-k).
    return log_combinations(n, y) + y * truncated_normal(-eta)[0] + (n - y) * truncated_normal(eta)[0]


def cloglog_logp(y: Any, eta: Any, n: Any) -> Any:
    """Return log Binomial(y; n, 1 - exp(-exp(eta)))."""
    failures = n - y
    # Without failures the term would be zero times infinity at large eta.
    rate = pt.exp(pt.switch(failures > 0, eta, 0.0))
    return log_combinations(n, y) + y * log_success(eta) - failures * rate


def logit_knots(y: Any, n: Any) -> tuple[Any, ...]:
    """Return knots around 0, as the logistic function has poles at +-i pi, and around the maximum of t.

    For y = 0, or y = n, t has no maximum; it then falls within a few units of eta = -log n, or log n.
    """
    xp = namespace(y)
    # logit((y + 1/2) / (n + 1)), near the maximum of t and finite for y = 0 and y = n.
    peak = xp.log((y + 0.5) / (n - y + 0.5))
    return (*binary_logit_knots(y), *(peak + knot for knot in (-6.0, -2.0, 2.0, 6.0)))


def _with_trials(knots: Callable[..., tuple[Any, ...]]) -> Callable[..., tuple[Any, ...]]:
    return lambda y, n: knots(y)


def _binomial(
    name: str,
    logp: Callable[..., Any],
    knots: Callable[..., tuple[Any, ...]],
    knots_beyond: float,
    super_gaussian: SuperGaussian | None = None,
) -> Site:
    return register_site(
        Site(
            name=name,
            parameters=("n",),
            parameter_domains=("count",),
            relation=Relation(lambda y, n: y <= n, "no more successes than trials"),
            domain="count",
            response=successes(name.removeprefix("binomial_")),
            log_concave=True,
            additive=("n",),
            takes_averages=True,
            analytic=True,
            logp=logp,
            knots=knots,
            knots_beyond=knots_beyond,
            super_gaussian=super_gaussian,
        )
    )


BINOMIAL_LOGIT = _binomial(
    "binomial_logit",
    logit_logp,
    logit_knots,
    15.0,
    logistic_bound(
        left=lambda y, n: y,
        right=lambda y, n: n - y,
        centre=lambda y, n: pt.zeros_like(y),
        log_constant=lambda y, n: log_combinations(n, y),
    ),
)
BINOMIAL_PROBIT = _binomial("binomial_probit", probit_logp, _with_trials(probit_knots), 10.0)
BINOMIAL_CLOGLOG = _binomial("binomial_cloglog", cloglog_logp, _with_trials(cloglog_knots), 2.0)
