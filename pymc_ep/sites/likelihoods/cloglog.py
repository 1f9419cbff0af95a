"""Binary observations with the complementary log-log link: success has the probability 1 - exp(-exp(eta))."""

from typing import Any

import pytensor.tensor as pt

from pymc_ep.sites.base import Site, register_site
from pymc_ep.sites.responses import successes

__all__ = ["CLOGLOG", "log_success"]


def log_success(eta: Any) -> Any:
    """log of ``1 - exp(-exp(eta))``.

    Below eta = -40 it equals eta in double precision, since the next term ``exp(eta) / 2`` is below the last digit.
    Above 7 the probability is one; eta is cut there so that an infinite rate does not reach the derivative.
    """
    rate = pt.exp(pt.clip(eta, -40.0, 7.0))
    return pt.switch(eta < -40.0, eta, pt.log(-pt.expm1(-rate)))


def logp(y: Any, eta: Any) -> Any:
    """log Bernoulli(y; 1 - exp(-exp(eta)))."""
    return pt.switch(y > 0, log_success(eta), -pt.exp(pt.switch(y > 0, 0.0, eta)))


def knots(y: Any) -> tuple[Any, ...]:
    """Around 0, above which exp(eta) takes over within a few units and below which log t is a line.

    Of a million successes the probability turns from 0 to 1 between 2 and 4, where exp(eta) is about the log of that.
    """
    return tuple(0.0 * y + knot for knot in (-36.0, -12.0, -3.0, 0.0, 1.0, 2.0, 3.0, 5.0))


CLOGLOG = register_site(
    Site(
        name="cloglog",
        parameters=(),
        domain="binary",
        response=successes("cloglog"),
        log_concave=True,
        logp=logp,
        knots=knots,
        knots_beyond=2.0,
    )
)
