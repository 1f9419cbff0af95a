"""Poisson and negative binomial counts truncated to y > 0, with draws that need no rejection.

PyMC rejects draws until no count is zero. At small rates, as in data that list the few cells with an event, that takes
more steps than PyMC allows. Densities and recognition are those of `pymc.Truncated`.
"""

from typing import Any

import pymc as pm
import pytensor.tensor as pt
from pymc.distributions.shape_utils import _change_dist_size, change_dist_size, rv_size_is_none, to_tuple
from pymc.distributions.truncated import TruncatedRV
from pymc.pytensorf import normalize_rng_param

from pymc_ep.compat import random_draw

__all__ = ["PositiveCounts", "PositiveCountsRV"]

_TINY = 1e-300
"""Least rate and number of remaining trials, in place of zero in doubles."""


class PositiveCountsRV(TruncatedRV):
    """Op of counts of at least one, with the inputs of PyMC's `TruncatedRV`, of which it is a subclass.

    A Poisson count of rate mu is the number of arrivals at unit rate up to the time mu. Given at least one, the first
    arrives at a time tau with an exponential distribution truncated to tau < mu, and the number of later ones is a
    Poisson count of rate mu - tau. A negative binomial count (n, p) is a sum over clusters of logarithmic size, which
    arrive in the same way up to the time t = -n log p. The clusters after the first sum to a negative binomial count
    (n (1 - tau / t), p).
    """

    @classmethod
    def rv_op(cls, dist: Any, lower: Any, upper: Any, max_n_steps: int, *, size: Any = None) -> Any:
        """Return the variable for a Poisson or negative binomial `dist` of PyMC, truncated to y > 0."""
        size = size if size is None else pt.as_tensor(size, dtype="int64", ndim=1)
        size = tuple(dist.shape) if rv_size_is_none(size) else size
        op, (_, *given) = dist.owner.op, change_dist_size(dist, new_size=size).owner.inputs
        inputs = [normalize_rng_param(None), *given, pt.constant(1.0), pt.constant(float("inf"))]
        rng, *others = inputs
        inner = [rng, *(part.type() for part in others)]
        _, shape, *parameters = inner[:-2]
        draw = _poisson if len(parameters) == 1 else _negative_binomial
        next_rng, value = draw(rng, shape, *parameters)
        outputs = [pt.cast(value, dist.dtype), next_rng]
        return cls(base_rv_op=op, inputs=inner, outputs=outputs, ndim_supp=0, max_n_steps=max_n_steps)(*inputs)


@_change_dist_size.register(PositiveCountsRV)
def _resized(op: PositiveCountsRV, rv: Any, new_size: Any, expand: bool) -> Any:
    *given, lower, upper = rv.owner.inputs
    if expand:
        new_size = (*to_tuple(new_size), *rv.shape)
    dist = op.base_rv_op.make_node(*given).default_output()
    return PositiveCountsRV.rv_op(dist, lower, upper, op.max_n_steps, size=new_size)


class PositiveCounts(pm.Truncated):
    """`pymc.Truncated` with ``lower=1`` for ``pymc.Poisson.dist(...)`` and ``pymc.NegativeBinomial.dist(...)``."""

    rv_op = PositiveCountsRV.rv_op

    @classmethod
    def dist(cls, dist: Any, **kwargs: Any) -> Any:
        """Return a variable outside of any model."""
        return super().dist(dist, lower=1, **kwargs)


def _first(rng: Any, shape: Any, end: Any) -> tuple[Any, Any]:
    """Return the next generator and the time of the first arrival, given at least one before `end`."""
    rng, u = random_draw(pt.random.uniform, 0.0, 1.0, size=shape, rng=rng)
    return rng, -pt.log1p(u * pt.expm1(-end))


def _poisson(rng: Any, shape: Any, mu: Any) -> tuple[Any, Any]:
    mu = pt.maximum(mu, _TINY)
    rng, tau = _first(rng, shape, mu)
    rng, later = random_draw(pt.random.poisson, pt.maximum(mu - tau, 0.0), size=shape, rng=rng)
    return rng, 1 + later


def _negative_binomial(rng: Any, shape: Any, n: Any, p: Any) -> tuple[Any, Any]:
    end = pt.maximum(-n * pt.log(p), _TINY)
    rng, tau = _first(rng, shape, end)
    # A logarithmic size (Kemp 1981): geometric with the success probability p^u, u uniform.
    rng, u = random_draw(pt.random.uniform, 0.0, 1.0, size=shape, rng=rng)
    rng, v = random_draw(pt.random.uniform, 0.0, 1.0, size=shape, rng=rng)
    size = 1 + pt.floor(pt.log1p(-v) / pt.log(-pt.expm1(u * pt.log(p))))
    rng, later = random_draw(pt.random.nbinom, pt.maximum(n * (1 - tau / end), _TINY), p, size=shape, rng=rng)
    return rng, size + later
