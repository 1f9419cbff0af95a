"""Binary observations with the complementary log-log link: success has the probability 1 - exp(-exp(eta))."""

from typing import Any

import pytensor.tensor as pt

from pymc_ep.sites.base import Site, register_site
from pymc_ep.sites.responses import successes

__all__ = ["CLOGLOG", "log_success"]


def log_success(eta: Any) -> Any:
    """Return log of ``1 - exp(-exp(eta))``.

    Below eta = -40 this equals eta in double precision: the next term is ``-exp(eta) / 2``. Above 7 the probability is
    one; eta is clipped there, since an infinite rate would make the derivative nan.
    """
    rate = pt.exp(pt.clip(eta, -40.0, 7.0))
    return pt.switch(eta < -40.0, eta, pt.log(-pt.expm1(-rate)))


def logp(y: Any, eta: Any) -> Any:
    """Return log Bernoulli(y; 1 - exp(-exp(eta)))."""
    # The exponent of the branch not taken is zero: zero times an infinite slope is nan.
    return pt.switch(y > 0, log_success(eta), -pt.exp(pt.switch(y > 0, 0.0, eta)))


def knots(y: Any) -> tuple[Any, ...]:
    """Return knots around 0: above, exp(eta) dominates log t within a few units; below, log t is nearly linear.

    The probability of n successes in n trials rises from 0 to 1 near exp(eta) = log n: for n = 1e6, at eta from 2 to 4.
    """
    return tuple(0.0 * y + knot for knot in (-36.0, -12.0, -3.0, 0.0, 1.0, 2.0, 3.0, 5.0))


CLOGLOG = register_site(
    Site(
        name="cloglog",
        parameters=(),
        domain="binary",
        response=successes("cloglog"),
        log_concave=True,
        analytic=True,
        logp=logp,
        knots=knots,
        knots_beyond=2.0,
    )
)
