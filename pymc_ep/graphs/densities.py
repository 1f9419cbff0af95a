"""Log densities of distributions: PyMC's, or own ones where PyMC's loses its digits.

A zero-truncated count has the log density log p(y) - log(1 - p(0)). Where its rate mu is small, p(0) is one but for
rounding: at y = 1 the difference of two numbers near log mu is then lost, and from mu = 1e-16 on PyMC's is infinite. It
is computed from log p(0) = -mu, which keeps all digits; one truncated on both sides from the sum over its counts. The
other densities of this file differ in the same way:

- log Gamma(x + k) - log Gamma(x), of a beta-binomial and of Student's t, cancels for large x;
- q**a - q**b, of a discrete Weibull, does for q near one;
- 1 - p does for every probability near one, see `complements`.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pymc.distributions.continuous import HalfStudentT
from pymc.distributions.discrete import DiscreteWeibull
from pymc.distributions.mixture import MixtureRV, _HurdleRV
from pymc.distributions.truncated import TruncatedRV
from pymc.logprob.basic import logp as pymc_logp
from pytensor.graph.basic import Apply
from pytensor.tensor.basic import get_underlying_scalar_constant_value
from pytensor.tensor.exceptions import NotScalarConstantError
from pytensor.tensor.random.basic import BetaBinomialRV, BinomialRV, NegBinomialRV, PoissonRV, StudentTRV
from pytensor.tensor.variable import TensorVariable

from pymc_ep.graphs.complements import log_of, with_complements
from pymc_ep.graphs.queries import stacked_column
from pymc_ep.graphs.random_nodes import parameters_of
from pymc_ep.sites.likelihoods.log_gamma import log_rising
from pymc_ep.sites.likelihoods.student_t import logp as student_t_logp

__all__ = ["log_density"]

_MOST_COUNTS = 1000
"""Most counts between two bounds over which probabilities are summed. A difference of distribution functions loses its
digits where both bounds are in one tail; a sum of logarithms does not."""


def log_density(rv: TensorVariable, y: Any) -> TensorVariable:
    """Return the graph of the log density of a univariate random variable at y."""
    return with_complements(_log_density(rv, y))


def _log_density(rv: TensorVariable, y: Any) -> TensorVariable:
    own = next((_OWN[t] for t in type(rv.owner.op).__mro__ if t in _OWN), None)
    found = None if own is None else own(rv.owner, y)
    return pymc_logp(rv, y, warn_rvs=False) if found is None else found


def _truncated(node: Apply, y: Any) -> TensorVariable | None:
    """Density of counts with lower <= y <= upper; None for others, and for a range that is wide or no constant."""
    *inputs, lower, upper = node.inputs
    base = node.op.base_rv_op.make_node(*inputs).default_output()
    tail = _TAILS.get(type(base.owner.op))
    if tail is None:
        return None
    log_zero, share_from, log_weight = tail
    parameters = parameters_of(base)
    first, last = _constant(lower), _constant(upper)
    if last == np.inf and first == 1:
        log_norm = pt.log1mexp(log_zero(*parameters))
    elif last == np.inf:
        log_norm = pt.log(share_from(pt.ceil(lower), *parameters))
    elif first is None or last is None or last - max(first, 0) >= _MOST_COUNTS:
        return None
    else:
        counts = np.arange(max(np.ceil(first), 0.0), np.floor(last) + 1.0)
        outside = pt.lt(y, counts[0]) | pt.gt(y, last)
        log_norm = pt.logsumexp(log_weight(counts, *(pt.expand_dims(p, -1) for p in parameters)), axis=-1)
        return pt.switch(outside, -np.inf, log_weight(pt.switch(outside, counts[0], y), *parameters) - log_norm)
    return pt.switch(pt.lt(y, lower), -np.inf, _log_density(base, y) - log_norm)


def _constant(bound: Any) -> float | None:
    try:
        return float(get_underlying_scalar_constant_value(bound))
    except NotScalarConstantError:
        return None


def _times(count: Any, log_p: Any) -> Any:
    """Return count log p; zero where the count is, for p = 0 too."""
    some = pt.gt(count, 0)
    return pt.switch(some, count * pt.switch(some, log_p, 0.0), 0.0)


def _poisson_weight(k: Any, mu: Any) -> Any:
    return _times(k, pt.log(mu)) - pt.gammaln(k + 1.0)


def _negative_binomial_weight(k: Any, n: Any, p: Any) -> Any:
    return log_rising(n, k) - pt.gammaln(k + 1.0) + _times(k, pt.log(1.0 - p))


def _binomial_weight(k: Any, n: Any, p: Any) -> Any:
    rest = pt.maximum(n - k, 0.0)
    found = _times(k, log_of(p)) + _times(rest, pt.log1p(-p)) - pt.gammaln(k + 1.0) - pt.gammaln(rest + 1.0)
    return pt.switch(pt.gt(k, n), -np.inf, found)


def _discrete_weibull_logp(k: Any, q: Any, beta: Any) -> Any:
    """Return the log of ``q**(k**beta) - q**((k + 1)**beta)``, where the first power is factored out."""
    some = pt.gt(k, 0)
    count = pt.switch(some, k, 1).astype("float64")
    log_q, power = pt.log(q), count**beta
    step = pt.switch(some, power * pt.expm1(beta * pt.log1p(1.0 / count)), 1.0)
    return pt.switch(some, power * log_q, 0.0) + pt.log1mexp(step * log_q)


_TAILS: dict[type, tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]]] = {
    PoissonRV: (lambda mu: -mu, lambda k, mu: pt.gammainc(k, mu), _poisson_weight),
    NegBinomialRV: (
        lambda n, p: n * log_of(p),
        lambda k, n, p: pt.betainc(k, n, 1.0 - p),
        _negative_binomial_weight,
    ),
    BinomialRV: (
        lambda n, p: n * pt.log1p(-p),
        lambda k, n, p: pt.betainc(k, n - k + 1.0, p),
        _binomial_weight,
    ),
    DiscreteWeibull.rv_type: (
        lambda q, beta: pt.log1p(-q),
        lambda k, q, beta: q ** (k**beta),
        _discrete_weibull_logp,
    ),
}
"""log P(Y = 0), P(Y >= k), and log P(Y = k) but for terms without k, by type of Op, as functions of the parameters."""


def _hurdle(node: Apply, y: Any) -> TensorVariable | None:
    _, weights, _, some = node.inputs
    columns = _log_columns(weights)
    if columns is None:
        return None
    zero = pt.eq(y, 0)
    # Both branches are differentiated, and the second one has no derivative at zero.
    return pt.switch(zero, columns[0], columns[1] + _log_density(some, pt.switch(zero, pt.ones_like(y), y)))


def _mixture(node: Apply, y: Any) -> TensorVariable | None:
    _, weights, *components = node.inputs
    columns = _log_columns(weights)
    if columns is None or len(components) != len(columns):
        return None
    parts = [column + _log_density(part, y) for column, part in zip(columns, components)]
    return pt.logsumexp(pt.stack(pt.broadcast_arrays(*parts), axis=-1), axis=-1)


def _log_columns(weights: TensorVariable) -> list[TensorVariable] | None:
    """Return the logs of a mixture's weights, apart from each other; None where their number is not known."""
    count = weights.type.shape[-1]
    if count is None:
        return None
    columns = [stacked_column(weights, k) for k in range(count)]
    return [pt.log(weights[..., k] if column is None else column) for k, column in enumerate(columns)]


def _negative_binomial(node: Apply, y: Any) -> TensorVariable:
    n, p = parameters_of(node.default_output())
    inside = pt.ge(y, 0)
    count = pt.switch(inside, y, 0).astype("float64")
    return pt.switch(inside, _negative_binomial_weight(count, n, p) + n * log_of(p), -np.inf)


def _beta_binomial(node: Apply, y: Any) -> TensorVariable:
    n, a, b = parameters_of(node.default_output())
    inside = pt.ge(y, 0) & pt.le(y, n)
    count = pt.switch(inside, y, 0).astype("float64")
    ways = pt.gammaln(n + 1.0) - pt.gammaln(count + 1.0) - pt.gammaln(n - count + 1.0)
    return pt.switch(inside, ways + log_rising(a, count) + log_rising(b, n - count) - log_rising(a + b, n), -np.inf)


def _student_t(node: Apply, y: Any) -> TensorVariable:
    nu, mu, sigma = parameters_of(node.default_output())
    return student_t_logp(y, mu, nu, sigma)


def _half_student_t(node: Apply, y: Any) -> TensorVariable:
    nu, sigma = parameters_of(node.default_output())
    return pt.switch(pt.lt(y, 0), -np.inf, np.log(2.0) + student_t_logp(y, 0.0, nu, sigma))


def _discrete_weibull(node: Apply, y: Any) -> TensorVariable:
    return pt.switch(pt.lt(y, 0), -np.inf, _discrete_weibull_logp(y, *parameters_of(node.default_output())))


_OWN: dict[type, Callable[[Apply, Any], TensorVariable | None]] = {
    TruncatedRV: _truncated,
    _HurdleRV: _hurdle,
    MixtureRV: _mixture,
    NegBinomialRV: _negative_binomial,
    BetaBinomialRV: _beta_binomial,
    StudentTRV: _student_t,
    HalfStudentT.rv_type: _half_student_t,
    DiscreteWeibull.rv_type: _discrete_weibull,
}
"""Own log densities by type of Op; None from one of them where PyMC's is taken."""
