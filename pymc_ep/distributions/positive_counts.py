"""Zero-truncated Poisson and negative binomial counts, drawn without rejection.

`pymc.Truncated` redraws zeros until none is left. At small rates, as in data that list only the cells with an event,
this takes more steps than PyMC allows. Log densities are `pymc.Truncated`'s.
"""

from typing import Any

import pymc as pm
import pytensor.tensor as pt
from pymc.distributions.shape_utils import _change_dist_size, change_dist_size, rv_size_is_none, to_tuple
from pymc.distributions.truncated import TruncatedRV
from pymc.pytensorf import normalize_rng_param
from pytensor.tensor.random.basic import NegBinomialRV, PoissonRV

from pymc_ep.compat import random_draw
from pymc_ep.distributions.counts import whole_observations
from pymc_ep.exceptions import UnsupportedModelError

__all__ = ["PositiveCounts", "PositiveCountsRV"]

_TINY = 1e-300
"""Lower limit of Poisson rates, and of n in negative binomial draws, so that they are not zero."""


class PositiveCountsRV(TruncatedRV):
    """Op of zero-truncated Poisson and negative binomial counts: a `TruncatedRV` of PyMC with direct draws.

    A Poisson count of rate mu is the number of events of a unit-rate Poisson process up to the time mu. Given at least
    one, the first event is at a time tau with the exponential distribution truncated to tau < mu, and the number of
    later events is Poisson with the rate mu - tau.

    A negative binomial count (n, p) is a compound Poisson count: the sum of cluster sizes of logarithmic distribution
    with the parameter 1 - p, over a Poisson count of clusters with the rate t = -n log p. Given the first cluster at a
    time tau < t, the sizes of later clusters sum to a negative binomial count (n (1 - tau / t), p).
    """

    @classmethod
    def rv_op(cls, dist: Any, lower: Any, upper: Any, max_n_steps: int, *, size: Any = None) -> Any:
        """Return the random variable for a distribution truncated to y > 0.

        Parameters
        ----------
        dist : TensorVariable
            ``pymc.Poisson.dist(...)`` or ``pymc.NegativeBinomial.dist(...)``.
        lower, upper : tensor_like
            Not used: the bounds are one and infinity.
        max_n_steps : int
            Attribute of `TruncatedRV`; no draw is rejected.
        size : tuple of int or TensorVariable, optional
            By default the shape of `dist`.
        """
        size = size if size is None else pt.as_tensor(size, dtype="int64", ndim=1)
        size = tuple(dist.shape) if rv_size_is_none(size) else size
        op, (_, *given) = dist.owner.op, change_dist_size(dist, new_size=size).owner.inputs
        inputs = [normalize_rng_param(None), *given, pt.constant(1.0), pt.constant(float("inf"))]
        rng, *others = inputs
        inner = [rng, *(variable.type() for variable in others)]
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
    """Zero-truncated counts: `pymc.Truncated` with ``lower=1``, drawn without rejection.

    Parameters
    ----------
    name : str
        Name of the variable.
    dist : TensorVariable
        ``pymc.Poisson.dist(...)`` or ``pymc.NegativeBinomial.dist(...)``.
    **kwargs
        Keywords of `pymc.Truncated`, except the bounds.
    """

    rv_op = PositiveCountsRV.rv_op

    def __new__(cls, name: str, *args: Any, observed: Any = None, **kwargs: Any) -> Any:
        """Check the observations, then add the variable to the model as PyMC does."""
        return super().__new__(cls, name, *args, observed=whole_observations(name, observed), **kwargs)

    @classmethod
    def dist(cls, dist: Any, **kwargs: Any) -> Any:
        """Return an unnamed variable, as ``pymc.Truncated.dist(dist, lower=1)`` does.

        Raises
        ------
        UnsupportedModelError
            For distributions other than Poisson and negative binomial, and for bounds.
        """
        if not isinstance(dist.owner.op, PoissonRV | NegBinomialRV):
            raise UnsupportedModelError(
                f"PositiveCounts takes a Poisson or NegativeBinomial distribution, and got a "
                f"{type(dist.owner.op).__name__.removesuffix('RV')}; use pm.Truncated for others."
            )
        if bounds := sorted({"lower", "upper"} & set(kwargs)):
            raise UnsupportedModelError(
                f"PositiveCounts has {bounds[0]}={kwargs[bounds[0]]!r}, and it truncates zeros alone; use pm.Truncated "
                f"for other bounds."
            )
        return super().dist(dist, lower=1, **kwargs)


def _first_arrival(rng: Any, shape: Any, end: Any) -> tuple[Any, Any]:
    """Return the next generator and exponential times truncated to (0, end), by inversion: the first events."""
    # u = (1 - e^-tau) / (1 - e^-end), solved for tau.
    rng, u = random_draw(pt.random.uniform, 0.0, 1.0, size=shape, rng=rng)
    return rng, -pt.log1p(u * pt.expm1(-end))


def _poisson(rng: Any, shape: Any, mu: Any) -> tuple[Any, Any]:
    mu = pt.maximum(mu, _TINY)
    rng, tau = _first_arrival(rng, shape, mu)
    rng, later = random_draw(pt.random.poisson, pt.maximum(mu - tau, 0.0), size=shape, rng=rng)
    return rng, 1 + later


def _negative_binomial(rng: Any, shape: Any, n: Any, p: Any) -> tuple[Any, Any]:
    end = pt.maximum(-n * pt.log(p), _TINY)
    rng, tau = _first_arrival(rng, shape, end)
    # Logarithmic distribution (Kemp 1981): geometric with the success probability p^u, u uniform.
    rng, u = random_draw(pt.random.uniform, 0.0, 1.0, size=shape, rng=rng)
    rng, v = random_draw(pt.random.uniform, 0.0, 1.0, size=shape, rng=rng)
    # P(size > s) = (1 - p^u)^s, inverted at 1 - v.
    size = 1 + pt.floor(pt.log1p(-v) / pt.log(-pt.expm1(u * pt.log(p))))
    rng, later = random_draw(pt.random.nbinom, pt.maximum(n * (1 - tau / end), _TINY), p, size=shape, rng=rng)
    return rng, size + later
