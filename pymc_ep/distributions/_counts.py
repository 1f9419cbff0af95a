"""What the Poisson distributions with a predictor share: graphs of log density and distribution function, and the Op."""

from typing import Any

import numpy as np
import pytensor.tensor as pt
from pymc.distributions.distribution import SymbolicRandomVariable
from pymc.distributions.moments.means import _mean
from pymc.distributions.shape_utils import maybe_resize, rv_size_is_none
from pymc.pytensorf import normalize_rng_param
from pytensor import config
from pytensor.scalar import upcast
from pytensor.tensor.random.utils import normalize_size_param

from pymc_ep.compat import random_draw

__all__ = ["PoissonLinkRV", "as_real", "poisson_logcdf", "poisson_logp", "poisson_support_point"]

# From this count on log y! comes from Stirling's series: its first neglected term is 691 / (360360 y^11), 1e-16 here.
_STIRLING_FROM = 16


def as_real(x: Any) -> Any:
    """Return `x` as a graph of at least floatX: PyTensor makes float32 of a short constant such as 0.5."""
    x = pt.as_tensor_variable(x)
    return pt.cast(x, upcast(x.dtype, config.floatX))


class PoissonLinkRV(SymbolicRandomVariable):
    """Op of a Poisson distribution whose rate is a function of a real predictor.

    The draws are those of PyTensor's own Poisson Op, so that every backend has them. Subclasses give `rate`;
    their type is what recognisers look for.
    """

    extended_signature = "[rng],[size],()->[rng],()"

    @staticmethod
    def rate(eta: Any) -> Any:
        """Return the graph of the rate at the predictor `eta`."""
        raise NotImplementedError

    @classmethod
    def rv_op(cls, eta: Any, *, size: Any = None, rng: Any = None) -> Any:
        """Return the random variable at the predictor `eta`."""
        eta = as_real(eta)
        rng = normalize_rng_param(rng)
        size = normalize_size_param(size)
        next_rng, draws = random_draw(pt.random.poisson, cls.rate(eta), size=size, rng=rng)
        return cls(inputs=[rng, size, eta], outputs=[next_rng, draws])(rng, size, eta)


@_mean.register(PoissonLinkRV)
def _poisson_link_mean(op: PoissonLinkRV, rv: Any, rng: Any, size: Any, eta: Any) -> Any:
    return maybe_resize(op.rate(eta), size)


def poisson_support_point(size: Any, rate: Any) -> Any:
    """Return the graph of a typical count: the largest integer below the rate."""
    point = pt.floor(rate)
    return point if rv_size_is_none(size) else pt.full(size, point)


def poisson_logp(value: Any, rate: Any, log_rate: Any) -> Any:
    """Return the graph of the Poisson log density, accurate for large counts and with finite gradients.

    Small counts use the textbook form. In large ones ``y log(rate)``, the rate and ``log y!`` cancel each
    other (of 2e9 each at y = 1e8 a few units remain), so the saddle-point form is used [1]_::

        -deviance(y, rate) - correction(y) - log(2 pi y) / 2,   deviance = y log(y / rate) + rate - y

    where `correction` is the remainder of Stirling's formula. With d = (rate - y) / y the deviance is
    ``y (d - log1p(d))``, whose rounding error is of the order of ``eps |rate - y|`` as long as 1 + d keeps the
    digits of the rate, that is for rate > y / 2.

    Parameters
    ----------
    value : tensor_like
        Counts; negative and fractional ones have log density -inf.
    rate, log_rate : tensor_like
        The rate and its logarithm. Where the rate is zero the caller passes a finite `log_rate` and
        takes its own branch for positive counts.

    References
    ----------
    .. [1] C. Loader (2000), Fast and accurate computation of binomial probabilities.
    """
    valid = pt.and_(pt.ge(value, 0), pt.eq(value, pt.floor(value)))
    y = as_real(pt.switch(valid, value, 0))
    small = y * log_rate - rate - pt.gammaln(y + 1)

    large_y = pt.maximum(y, _STIRLING_FROM)
    near = pt.gt(rate, large_y / 2)
    d = pt.switch(near, (rate - large_y) / large_y, 0)
    deviance = pt.switch(
        near,
        large_y * (d - pt.log1p(d)),
        large_y * (pt.log(large_y) - log_rate) + rate - large_y,
    )
    large = -deviance - _stirling_correction(large_y) - 0.5 * pt.log(2 * np.pi * large_y)
    return pt.switch(valid, pt.switch(pt.lt(y, _STIRLING_FROM), small, large), -np.inf)


def _stirling_correction(y: Any) -> Any:
    """Return ``log y! - (y + 1/2) log y + y - log(2 pi) / 2`` by its asymptotic series, for y >= 16."""
    r = 1.0 / pt.square(y)
    return (1 / 12 - r * (1 / 360 - r * (1 / 1260 - r * (1 / 1680 - r / 1188)))) / y


def poisson_logcdf(value: Any, rate: Any) -> Any:
    """Return the graph of ``log P(Y <= value)``, with gradient zero where the rate is zero."""
    none = pt.le(rate, 0)
    y = pt.floor(as_real(pt.maximum(value, 0)))
    inside = pt.log(pt.gammaincc(y + 1, pt.switch(none, 1, rate)))
    return pt.switch(pt.lt(value, 0), -np.inf, pt.switch(none, 0, inside))
