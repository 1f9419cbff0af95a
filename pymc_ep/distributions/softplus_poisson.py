"""Poisson counts whose rate is the softplus of a real predictor."""

from typing import Any

import numpy as np
import pytensor.tensor as pt

from pymc_ep.distributions.counts import (
    CountDistribution,
    PoissonLinkRV,
    poisson_logcdf,
    poisson_logp,
    poisson_support_point,
)

__all__ = ["SoftplusPoisson", "SoftplusPoissonRV"]

# Predictor below which log(1 + e^eta) = e^eta (1 - e^eta / 2 + ...) equals e^eta in double precision.
_EXPONENTIAL_BELOW = -37.0


class SoftplusPoissonRV(PoissonLinkRV):
    """Op of `SoftplusPoisson`."""

    name = "softplus_poisson"
    _print_name = ("SoftplusPoisson", "\\operatorname{SoftplusPoisson}")

    @staticmethod
    def rate(eta: Any) -> Any:
        """Return log(1 + e^eta)."""
        return pt.softplus(eta)


class SoftplusPoisson(CountDistribution):
    r"""Poisson distribution with rate log(1 + e^eta).

    .. math:: p(y \mid \eta) = \frac{\lambda^y e^{-\lambda}}{y!}, \qquad \lambda = \log(1 + e^\eta)

    A smooth link that is exponential at negative predictors and the identity at large ones, so that large
    counts do not need a predictor on the log scale. The log density is concave in eta.

    Parameters
    ----------
    eta : tensor_like of float
        Predictor, any real number.

    Examples
    --------
    >>> with pm.Model(coords={"bin": range(5)}):
    ...     f = pm.Normal("f", 0.0, 1.0, dims="bin")
    ...     y = SoftplusPoisson("y", f, observed=[1, 0, 3, 2, 4], dims="bin")
    """

    rv_type = SoftplusPoissonRV
    rv_op = SoftplusPoissonRV.rv_op

    @classmethod
    def dist(cls, eta: Any, **kwargs: Any) -> Any:
        """Return a variable of this distribution outside of any model."""
        return super().dist([eta], **kwargs)

    def support_point(rv: Any, size: Any, eta: Any) -> Any:
        """Return the graph of the initial value: the largest integer that is not above the rate."""
        return poisson_support_point(size, SoftplusPoissonRV.rate(eta))

    def logp(value: Any, eta: Any) -> Any:
        """Return the graph of the log density of counts `value`."""
        rate = SoftplusPoissonRV.rate(eta)
        # The rate underflows below eta = -745, so its logarithm is taken as eta in the tail.
        log_rate = pt.switch(pt.lt(eta, _EXPONENTIAL_BELOW), eta, pt.log(pt.maximum(rate, np.exp(_EXPONENTIAL_BELOW))))
        return poisson_logp(value, rate, log_rate)

    def logcdf(value: Any, eta: Any) -> Any:
        """Return the graph of ``log P(y <= value)``."""
        return poisson_logcdf(value, SoftplusPoissonRV.rate(eta))
