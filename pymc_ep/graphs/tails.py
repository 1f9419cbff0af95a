"""Graphs of log probabilities of counts and of tails, with all their digits and derivatives.

The difference 1 - P(Y <= y) is zero in doubles where the tail P(Y > y) is 1e-17, and its logarithm infinite.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytensor.tensor as pt
from pymc.distributions.continuous import WeibullBetaRV
from pymc.distributions.discrete import DiscreteWeibull
from pymc.logprob.basic import logcdf
from pytensor.tensor.random.basic import (
    BinomialRV,
    CauchyRV,
    ExponentialRV,
    GammaRV,
    GeometricRV,
    LaplaceRV,
    LogisticRV,
    NegBinomialRV,
    PoissonRV,
    StudentTRV,
)
from pytensor.tensor.variable import TensorVariable

from pymc_ep.graphs.complements import log_of, log_of_complement
from pymc_ep.graphs.random_nodes import parameters_of
from pymc_ep.sites.likelihoods.log_gamma import log_rising

__all__ = ["COUNTS", "discrete_weibull_logp", "log_survival", "negative_binomial_weight"]

_LARGEST_EXPONENT = 700.0
"""Largest argument of an exponential that must not overflow."""


def log_survival(rv: TensorVariable, y: Any) -> TensorVariable | None:
    """Return the graph of log P(Y > y) for a continuous variable; None for a distribution without a formula here."""
    parameters = parameters_of(rv)
    if isinstance(rv.owner.op, _SYMMETRIC):
        # P(Y > y) = P(Y <= 2 mu - y).
        # The location is the last parameter but one.
        return logcdf(rv, 2.0 * parameters[-2] - y, warn_rvs=False)
    function = _LOG_SURVIVAL.get(type(rv.owner.op))
    return None if function is None else function(y, *parameters)


_SYMMETRIC = (CauchyRV, LaplaceRV, StudentTRV)
_LOG_SURVIVAL: dict[type, Callable[..., Any]] = {
    ExponentialRV: lambda y, scale: -pt.maximum(y, 0.0) / scale,
    GammaRV: lambda y, shape, scale: pt.log(pt.gammaincc(shape, pt.maximum(y, 0.0) / scale)),
    LogisticRV: lambda y, mu, scale: -pt.softplus((y - mu) / scale),
    WeibullBetaRV: lambda y, shape, scale: -((pt.maximum(y, 0.0) / scale) ** shape),
}


def _times(count: Any, log_p: Any) -> Any:
    """Return ``count * log_p``, which is zero for a count of zero, even where p = 0."""
    some = pt.gt(count, 0)
    return pt.switch(some, count * pt.switch(some, log_p, 0.0), 0.0)


def _poisson_weight(k: Any, mu: Any) -> Any:
    # log(mu^k / k!).
    return _times(k, pt.log(mu)) - pt.gammaln(k + 1.0)


def negative_binomial_weight(k: Any, n: Any, p: Any) -> Any:
    """Return log P(Y = k) - n log p for a negative binomial variable Y with the parameters n and p."""
    # log[Gamma(n + k) (1 - p)^k / (Gamma(n) k!)].
    return log_rising(n, k) - pt.gammaln(k + 1.0) + _times(k, log_of_complement(p))


def _binomial_weight(k: Any, n: Any, p: Any) -> Any:
    # log[p^k (1 - p)^{n - k} / (k! (n - k)!)].
    rest = pt.maximum(n - k, 0.0)
    weight = _times(k, log_of(p)) + _times(rest, log_of_complement(p)) - pt.gammaln(k + 1.0) - pt.gammaln(rest + 1.0)
    return pt.switch(pt.gt(k, n), -np.inf, weight)


def discrete_weibull_logp(k: Any, q: Any, beta: Any) -> Any:
    """Return log P(Y = k) of a discrete Weibull, without cancellation.

    This is the log of ``q**(k**beta) - q**((k + 1)**beta)``.
    """
    some = pt.gt(k, 0)
    count = pt.switch(some, k, 1).astype("float64")
    log_q, power = log_of(q), count**beta
    # q^{k^beta} (1 - q^step), with step = (k + 1)^beta - k^beta = k^beta ((1 + 1 / k)^beta - 1), and 1 at k = 0.
    # Its exponential must not overflow, or it has no derivative; the second power is zero long before.
    step = pt.switch(some, power * pt.expm1(pt.minimum(beta * pt.log1p(1.0 / count), _LARGEST_EXPONENT)), 1.0)
    return pt.switch(some, power * log_q, 0.0) + pt.log1mexp(step * log_q)


class Counts(NamedTuple):
    """Graphs of log probabilities of a count Y, as functions of k and of the distribution's parameters.

    Attributes
    ----------
    log_zero : callable
        ``log_zero(*parameters)``: log P(Y = 0).
    log_to, log_from : callable
        ``log_to(k, *parameters)`` and ``log_from(k, *parameters)``: log P(Y <= k) and log P(Y >= k), for k > 0.
    log_weight : callable
        ``log_weight(k, *parameters)``: log P(Y = k), up to terms that do not depend on k.
    """

    log_zero: Callable[..., Any]
    log_to: Callable[..., Any]
    log_from: Callable[..., Any]
    log_weight: Callable[..., Any]


COUNTS: dict[type, Counts] = {
    # P(Y <= k) = Q(k + 1, mu) and P(Y >= k) = P(k, mu), by regularised incomplete gamma functions.
    PoissonRV: Counts(
        lambda mu: -mu,
        lambda k, mu: pt.log(pt.gammaincc(k + 1.0, mu)),
        lambda k, mu: pt.log(pt.gammainc(k, mu)),
        _poisson_weight,
    ),
    # P(Y <= k) = I_p(n, k + 1) and P(Y >= k) = I_{1 - p}(k, n), by the regularised incomplete beta function.
    NegBinomialRV: Counts(
        lambda n, p: n * log_of(p),
        lambda k, n, p: pt.log(pt.betainc(n, k + 1.0, p)),
        lambda k, n, p: pt.log(pt.betainc(k, n, 1.0 - p)),
        negative_binomial_weight,
    ),
    # P(Y <= k) = I_{1 - p}(n - k, k + 1) and P(Y >= k) = I_p(k, n - k + 1).
    BinomialRV: Counts(
        lambda n, p: n * log_of_complement(p),
        lambda k, n, p: pt.log(pt.switch(k < n, pt.betainc(pt.maximum(n - k, 1.0), k + 1.0, 1.0 - p), 1.0)),
        lambda k, n, p: pt.log(pt.switch(k <= n, pt.betainc(k, pt.maximum(n - k, 0.0) + 1.0, p), 0.0)),
        _binomial_weight,
    ),
    # P(Y >= k) = (1 - p)^{k - 1}, for k from 1.
    GeometricRV: Counts(
        lambda p: pt.full_like(p, -np.inf),
        lambda k, p: pt.log1mexp(k * log_of_complement(p)),
        lambda k, p: (k - 1.0) * log_of_complement(p),
        lambda k, p: (k - 1.0) * log_of_complement(p),
    ),
    # P(Y >= k) = q^{k^beta}.
    DiscreteWeibull.rv_type: Counts(
        lambda q, beta: pt.log1p(-q),
        lambda k, q, beta: pt.log1mexp((k + 1.0) ** beta * log_of(q)),
        lambda k, q, beta: k**beta * log_of(q),
        discrete_weibull_logp,
    ),
}
