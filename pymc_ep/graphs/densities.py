"""Log densities of distributions: PyMC's, or replacements where PyMC's lose digits.

A zero-truncated count has the log density log p(y) - log(1 - p(0)). Where its rate mu is small, p(0) rounds to one.
Both terms are near log mu at y = 1, so that their difference is lost, and for mu of 1e-16 or less PyMC's is infinite.
Here log(1 - p(0)) is computed from log p(0), -mu for a Poisson count, with all digits. A count truncated on both sides
is normalised by the sum over its values. Other densities of PyMC lose digits as well, and are replaced here:

- log Gamma(x + k) - log Gamma(x), of a beta-binomial and of Student's t, cancels for large x;
- q**a - q**b, of a discrete Weibull, cancels for q near one;
- log(1 - P(Y < k)), of a censored count, cancels where Y < k is nearly certain;
- 1 - p cancels for every probability p near one, see `complements`.

Some of PyMC's densities have all digits, but not their slopes. For a truncated Normal far from its bounds the slope is
0 times infinity; for a beta with a shape of exactly one a term is left out.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pymc.distributions.censored import CensoredRV
from pymc.distributions.continuous import HalfStudentT, TruncatedNormalRV
from pymc.distributions.discrete import DiscreteWeibull
from pymc.distributions.mixture import MixtureRV, _HurdleRV
from pymc.distributions.truncated import TruncatedRV
from pymc.logprob.abstract import _logprob
from pymc.logprob.basic import logp as pymc_logp
from pymc.logprob.utils import CheckParameterValue
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.traversal import ancestors
from pytensor.tensor.basic import get_underlying_scalar_constant_value
from pytensor.tensor.exceptions import NotScalarConstantError
from pytensor.tensor.random.basic import BetaBinomialRV, BetaRV, NegBinomialRV, StudentTRV
from pytensor.tensor.variable import TensorVariable

from pymc_ep.graphs.complements import log_of, with_complements
from pymc_ep.graphs.queries import rebuilt, stacked_column
from pymc_ep.graphs.random_nodes import parameters_of, without_size
from pymc_ep.graphs.tails import COUNTS, discrete_weibull_logp, log_survival, negative_binomial_weight
from pymc_ep.sites.likelihoods.log_gamma import log_rising
from pymc_ep.sites.likelihoods.student_t import logp as student_t_logp

__all__ = ["log_density", "outside_support", "parameter_checks"]

_MOST_COUNTS = 1000
"""Largest number of counts between two bounds for which probabilities are summed. A difference of distribution
functions loses its digits where both bounds are in one tail; the log of the sum does not."""


def log_density(rv: TensorVariable, y: Any) -> TensorVariable:
    """Return the graph of the log density of a univariate random variable at y."""
    return with_complements(_log_density(rv, y))


def parameter_checks(density: TensorVariable) -> Iterator[tuple[str, list[Variable]]]:
    """Yield PyMC's checks of the parameters in a log density: the message of each, and the graphs of its conditions."""
    for v in ancestors([density]):
        if v.owner is not None and isinstance(v.owner.op, CheckParameterValue):
            yield v.owner.op.msg, v.owner.inputs[1:]


def outside_support(densities: Sequence[TensorVariable]) -> list[TensorVariable]:
    """Return log densities that are -inf where PyMC's check of a parameter fails, such as an unknown scale's.

    Each row of a batch has its own condition. PyMC has a rewrite with the same purpose, but it joins the rows'
    conditions.
    """

    def ninf(node: Apply, inputs: list[Any]) -> TensorVariable | None:
        if not isinstance(node.op, CheckParameterValue) or not node.op.can_be_replaced_by_ninf:
            return None
        return pt.switch(pt.all([pt.all(condition) for condition in inputs[1:]]), inputs[0], -np.inf)

    return rebuilt(densities, ninf)


def _log_density(rv: TensorVariable, y: Any) -> TensorVariable:
    function = next((_OWN[t] for t in type(rv.owner.op).__mro__ if t in _OWN), None)
    log_p = None if function is None else function(rv.owner, y)
    return pymc_logp(rv, y, warn_rvs=False) if log_p is None else log_p


def _truncated(node: Apply, y: Any) -> TensorVariable:
    """Return the log density of a truncated count, or of another variable that is truncated from below.

    PyMC's log density is returned for counts with an upper bound, if the two bounds are far apart or not constant. It
    is also returned for other variables with an upper bound, or without a formula for their tails.
    """
    *inputs, lower, upper = without_size(node, node.inputs)
    base = node.op.base_rv_op.make_node(*inputs).default_output()
    # log p(y) - log P(lower <= Y <= upper), the latter by a tail, by 1 - p(0), or by a sum over counts.
    first, last = _constant(lower), _constant(upper)
    counts_of, parameters = COUNTS.get(type(base.owner.op)), parameters_of(base)
    if counts_of is None:
        log_norm = log_survival(base, lower) if last == np.inf else None
        if log_norm is None:
            return _logprob(node.op, (y,), *inputs, lower, upper)
    elif last == np.inf and first == 1:
        log_norm = pt.log1mexp(counts_of.log_zero(*parameters))
    elif last == np.inf:
        log_norm = counts_of.log_from(pt.ceil(lower), *parameters)
    elif first is None or last is None or last - max(first, 0) >= _MOST_COUNTS:
        return _logprob(node.op, (y,), *inputs, lower, upper)
    else:
        counts = np.arange(max(np.ceil(first), 0.0), np.floor(last) + 1.0)
        # Terms of log p(k) without k cancel in log p(y) - log sum_k p(k).
        outside = pt.lt(y, counts[0]) | pt.gt(y, last)
        log_norm = pt.logsumexp(counts_of.log_weight(counts, *(pt.expand_dims(p, -1) for p in parameters)), axis=-1)
        log_weight = counts_of.log_weight(pt.switch(outside, counts[0], y), *parameters)
        return pt.switch(outside, -np.inf, log_weight - log_norm)
    return pt.switch(pt.lt(y, lower), -np.inf, _log_density(base, y) - log_norm)


def _constant(bound: Any) -> float | None:
    try:
        return float(get_underlying_scalar_constant_value(bound))
    except NotScalarConstantError:
        return None


def _censored(node: Apply, y: Any) -> TensorVariable:
    """Return the log density of observations that are censored at `lower` from below and at `upper` from above."""
    base, lower, upper = node.inputs
    counts_of, parameters = COUNTS.get(type(base.owner.op)), parameters_of(base)
    # All branches are differentiated: where a bound is not reached, the tail of another value has a slope.
    above, below = pt.eq(y, upper), pt.eq(y, lower)
    if counts_of is None:
        log_tail = log_survival(base, pt.switch(above, y, 1.0))
        log_p = pymc_logp(node.default_output(), y, warn_rvs=False)
        return log_p if log_tail is None else pt.switch(above, log_tail, log_p)
    # log p(y) within, log P(Y >= upper) at the upper bound and log P(Y <= lower) at the lower one.
    log_p = pt.switch(pt.lt(y, lower) | pt.gt(y, upper), -np.inf, _log_density(base, y))
    log_p = pt.switch(above, counts_of.log_from(pt.switch(above, y, 1), *parameters), log_p)
    log_p = pt.switch(below, counts_of.log_to(pt.switch(below & pt.gt(y, 0), y, 1), *parameters), log_p)
    return pt.switch(below & pt.eq(y, 0), counts_of.log_zero(*parameters), log_p)


_INFINITE = 40.0
"""Standard deviations from the mean, or from the other bound if that lies farther out, at which a finite bound stands
for an infinite one: exp(-40**2 / 2) is zero in double precision."""


def _truncated_normal(node: Apply, y: Any) -> TensorVariable:
    """Return the log density of a normal truncated to lower <= y <= upper; either bound may be infinite.

    In standard deviations from the mean, the interval is [a, b], and y is x. It is reflected where a + b < 0, so that
    b >= |a|. With h(k) = phi(k) / Phi(-k) = sqrt(2 / pi) / erfcx(k / sqrt 2), and d = log[Phi(-b) / Phi(-a)], the
    density times sigma is

        h(a) exp((a - x) (a + x) / 2) / (1 - exp(d))    for a > 0,
        phi(x) / (Phi(b) - Phi(a))                      otherwise.
    """
    mu, sigma, lower, upper = parameters_of(node.default_output())
    low = pt.switch(pt.eq(lower, -np.inf), pt.minimum(mu, upper) - _INFINITE * sigma, lower)
    high = pt.switch(pt.eq(upper, np.inf), pt.maximum(mu, lower) + _INFINITE * sigma, upper)
    turned = pt.lt(low + high, 2.0 * mu)
    x = (y - mu) / sigma * pt.switch(turned, -1.0, 1.0)
    a = pt.switch(turned, mu - high, low - mu) / sigma
    b = pt.switch(turned, mu - low, high - mu) / sigma
    outside = pt.gt(a, 0.0)
    # Both branches are differentiated.
    near = pt.switch(outside, a, 0.0)
    log_hazard, log_hazard_beyond = (0.5 * np.log(2.0 / np.pi) - pt.log(pt.erfcx(k / np.sqrt(2.0))) for k in (near, b))
    # d = log[Phi(-b) / Phi(-a)] = log[phi(b) h(a) / (phi(a) h(b))] = (a - b) (a + b) / 2 + log h(a) - log h(b).
    log_ratio = (near - b) * (near + b) / 2.0 + log_hazard - log_hazard_beyond
    from_bound = log_hazard + (near - x) * (near + x) / 2.0 - pt.log1mexp(log_ratio)
    # Phi(b) - Phi(a).
    share = (pt.erf(b / np.sqrt(2.0)) - pt.erf(pt.switch(outside, 0.0, a) / np.sqrt(2.0))) / 2.0
    from_mean = -0.5 * (x**2 + np.log(2.0 * np.pi)) - pt.log(share)
    log_p = pt.switch(outside, from_bound, from_mean) - pt.log(sigma)
    return pt.switch(pt.lt(y, lower) | pt.gt(y, upper), -np.inf, log_p)


def _hurdle(node: Apply, y: Any) -> TensorVariable | None:
    _, weights, _, some = node.inputs
    columns = _log_columns(weights)
    if columns is None:
        return None
    # log w_0 at zero, else log w_1 + log p(y | y > 0).
    zero = pt.eq(y, 0)
    # Both branches are differentiated, and the second one has no derivative at zero.
    return pt.switch(zero, columns[0], columns[1] + _log_density(some, pt.switch(zero, pt.ones_like(y), y)))


def _mixture(node: Apply, y: Any) -> TensorVariable | None:
    _, weights, *components = node.inputs
    columns = _log_columns(weights)
    if columns is None or len(components) != len(columns):
        return None
    # log sum_k w_k p_k(y).
    terms = [column + _log_density(component, y) for column, component in zip(columns, components)]
    return pt.logsumexp(pt.stack(pt.broadcast_arrays(*terms), axis=-1), axis=-1)


def _log_columns(weights: TensorVariable) -> list[TensorVariable] | None:
    """Return the log of each weight of a mixture, as separate graphs; None where their number is not known."""
    count = weights.type.shape[-1]
    if count is None:
        return None
    columns = [stacked_column(weights, k) for k in range(count)]
    return [pt.log(weights[..., k] if column is None else column) for k, column in enumerate(columns)]


def _negative_binomial(node: Apply, y: Any) -> TensorVariable:
    n, p = parameters_of(node.default_output())
    inside = pt.ge(y, 0)
    count = pt.switch(inside, y, 0).astype("float64")
    return pt.switch(inside, negative_binomial_weight(count, n, p) + n * log_of(p), -np.inf)


def _beta_binomial(node: Apply, y: Any) -> TensorVariable:
    n, a, b = parameters_of(node.default_output())
    inside = pt.ge(y, 0) & pt.le(y, n)
    count = pt.switch(inside, y, 0).astype("float64")
    # log[n! / (y! (n - y)!) B(a + y, b + n - y) / B(a, b)].
    ways = pt.gammaln(n + 1.0) - pt.gammaln(count + 1.0) - pt.gammaln(n - count + 1.0)
    return pt.switch(inside, ways + log_rising(a, count) + log_rising(b, n - count) - log_rising(a + b, n), -np.inf)


def _beta(node: Apply, y: Any) -> TensorVariable:
    rv = node.default_output()
    a, b = parameters_of(rv)
    inside = pt.gt(y, 0) & pt.lt(y, 1)
    share = pt.switch(inside, y, 0.5)
    # log[y^{a - 1} (1 - y)^{b - 1} / B(a, b)].
    constant = pt.gammaln(a + b) - pt.gammaln(a) - pt.gammaln(b)
    log_p = (a - 1.0) * pt.log(share) + (b - 1.0) * pt.log1p(-share) + constant
    return pt.switch(inside, log_p, pymc_logp(rv, y, warn_rvs=False))


def _student_t(node: Apply, y: Any) -> TensorVariable:
    nu, mu, sigma = parameters_of(node.default_output())
    return student_t_logp(y, mu, nu, sigma)


def _half_student_t(node: Apply, y: Any) -> TensorVariable:
    nu, sigma = parameters_of(node.default_output())
    return pt.switch(pt.lt(y, 0), -np.inf, np.log(2.0) + student_t_logp(y, 0.0, nu, sigma))


def _discrete_weibull(node: Apply, y: Any) -> TensorVariable:
    return pt.switch(pt.lt(y, 0), -np.inf, discrete_weibull_logp(y, *parameters_of(node.default_output())))


_OWN: dict[type, Callable[[Apply, Any], TensorVariable | None]] = {
    TruncatedRV: _truncated,
    TruncatedNormalRV: _truncated_normal,
    CensoredRV: _censored,
    BetaRV: _beta,
    _HurdleRV: _hurdle,
    MixtureRV: _mixture,
    NegBinomialRV: _negative_binomial,
    BetaBinomialRV: _beta_binomial,
    StudentTRV: _student_t,
    HalfStudentT.rv_type: _half_student_t,
    DiscreteWeibull.rv_type: _discrete_weibull,
}
"""Functions from a node and y to a log density, by type of Op; where one returns None, PyMC's density is used."""
