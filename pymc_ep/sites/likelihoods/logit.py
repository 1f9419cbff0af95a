"""Binary observations with the logistic link."""

from typing import Any

import pytensor.tensor as pt

from pymc_ep.sites.base import Site, register_site
from pymc_ep.sites.likelihoods.logistic import logistic_bound
from pymc_ep.sites.responses import successes

__all__ = ["LOGIT"]


def logp(y: Any, eta: Any) -> Any:
    """Return log Bernoulli(y; 1 / (1 + exp(-eta))) as one softplus, accurate in both tails."""
    return -pt.softplus((1 - 2 * y) * eta)


def knots(y: Any) -> tuple[Any, ...]:
    """Return knots around 0: t has poles at +-i pi, a scale that does not depend on the width of the cavity."""
    return tuple(0.0 * y + knot for knot in (-36.0, -12.0, 0.0, 12.0, 36.0))


LOGIT = register_site(
    Site(
        name="logit",
        parameters=(),
        domain="binary",
        response=successes("logit"),
        log_concave=True,
        analytic=True,
        logp=logp,
        knots=knots,
        knots_beyond=20.0,
        super_gaussian=logistic_bound(
            left=lambda y: y, right=lambda y: 1 - y, centre=pt.zeros_like, log_constant=pt.zeros_like
        ),
    )
)
