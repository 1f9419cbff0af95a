"""Poisson distributions with a predictor: their Op, and graphs of log density and distribution function."""

from typing import Any

import numpy as np
import pytensor.tensor as pt
from pymc.distributions.distribution import Discrete, SymbolicRandomVariable
from pymc.distributions.moments.means import _mean
from pymc.distributions.shape_utils import maybe_resize, rv_size_is_none
from pymc.pytensorf import normalize_rng_param
from pytensor import config
from pytensor.graph.basic import Variable
from pytensor.scalar import upcast
from pytensor.tensor.random.utils import normalize_size_param

from pymc_ep.compat import random_draw
from pymc_ep.distributions.shapes import require_shape
from pymc_ep.exceptions import InvalidDataError, at_index, first_index

__all__ = [
    "MOST",
    "STIRLING_FROM",
    "CountDistribution",
    "PoissonLinkRV",
    "as_real",
    "log_poisson_at_mean",
    "poisson_logcdf",
    "poisson_logp",
    "poisson_support_point",
    "stirling_remainder",
    "whole_observations",
]

MOST = 2.0**53
"""Largest count: from here on doubles, in which sites compute, skip whole numbers."""
STIRLING_FROM = 16
"""Least argument of `stirling_remainder`."""


def as_real(x: Any) -> Any:
    """Return `x` as a graph of at least floatX: PyTensor makes float32 of a short constant such as 0.5."""
    x = pt.as_tensor_variable(x)
    return pt.cast(x, upcast(x.dtype, config.floatX))


class PoissonLinkRV(SymbolicRandomVariable):
    """Op of a Poisson distribution whose rate is a function of a real predictor.

    Draws come from PyTensor's own Poisson Op, so that every backend has them. Subclasses define `rate`;
    recognisers identify them by their type.
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


# PyMC's dispatcher of `pymc.distributions.moments.mean` has no public name, but a mean can be added in no other way.
@_mean.register(PoissonLinkRV)
def _poisson_link_mean(op: PoissonLinkRV, rv: Any, rng: Any, size: Any, eta: Any) -> Any:
    return maybe_resize(op.rate(eta), size)


class CountDistribution(Discrete):
    """A discrete distribution of a predictor eta, its first parameter, that checks its observations.

    It raises for observations that PyMC would change, see `whole_observations`, and where eta cannot be broadcast to
    the shape of the observations.
    Missing values (NaN or masked) are left to PyMC's imputation. Of symbolic observations only the shape is checked.
    """

    def __new__(cls, name: str, *args: Any, observed: Any = None, **kwargs: Any) -> Any:
        """Check the observations, then add the variable to the model as PyMC does."""
        eta = args[0] if args else kwargs.get("eta")
        if observed is not None and eta is not None:
            shape = observed.type.shape if isinstance(observed, Variable) else np.shape(observed)
            require_shape(name, shape, pt.as_tensor_variable(eta).type.shape)
        return super().__new__(cls, name, *args, observed=whole_observations(name, observed), **kwargs)


def whole_observations(name: str, observed: Any) -> Any:
    """Return observations as doubles, masked where missing; symbolic ones and None as they are.

    PyMC stores integers in 32 bits and truncates fractions, both silently. It leaves doubles as they are.

    Raises
    ------
    InvalidDataError
        For observations that are no whole numbers, or so large that a double does not hold them exactly.
    """
    if observed is None or isinstance(observed, Variable):
        return observed
    if hasattr(observed, "isnull") and hasattr(observed, "to_numpy"):  # pandas
        observed = np.ma.masked_array(observed.to_numpy(), np.asarray(observed.isnull()))
    given = np.ma.asarray(observed)
    try:
        values = np.where(np.ma.getmaskarray(given), np.nan, given.data).astype(float)
    except (TypeError, ValueError):
        raise InvalidDataError(
            f"{name!r} has observations of type {given.dtype}, but counts are whole numbers; give an array of them."
        ) from None
    missing, fractional, large = np.isnan(values), values != np.floor(values), np.abs(values) > MOST
    if (wrong := ~missing & (fractional | large)).any():
        index = first_index(wrong)
        wanted = "whole numbers of at most 2**53, where doubles end to be exact" if large[index] else "whole numbers"
        raise InvalidDataError(
            f"{name!r} has the observation {given.data[index]}{at_index(index)}, but counts are {wanted}; correct or "
            f"remove that observation."
        )
    # Not NaN, which PyMC masks in turn but casts to an integer first, with a warning.
    return np.ma.masked_array(np.nan_to_num(values), missing) if missing.any() else values


def poisson_support_point(size: Any, rate: Any) -> Any:
    """Return the graph of a typical count: the largest integer that is not above the rate."""
    point = pt.floor(rate)
    return point if rv_size_is_none(size) else pt.full(size, point)


def poisson_logp(value: Any, rate: Any, log_rate: Any) -> Any:
    """Return the graph of the Poisson log density, accurate for large counts and with finite gradients.

    In the textbook form ``y log(rate)``, the rate and ``log y!`` cancel each other (at y = 1e8 they are 2e9
    each, and ten is left), so the saddle-point form is used [1]_::

        log Poisson(y; y) - deviance,   deviance = y log(y / rate) + rate - y

    With d = (rate - y) / y the deviance is ``y (d - log1p(d))``, whose rounding error is of the order of
    ``eps |rate - y|`` as long as 1 + d keeps the digits of the rate, that is for rate > y / 2.

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
    positive_y = pt.maximum(y, 1)
    # y (d - log(1 + d)) for rate > y / 2, else y log(y / rate) + rate - y.
    near = pt.gt(rate, positive_y / 2)
    d = pt.switch(near, (rate - positive_y) / positive_y, 0)
    deviance = pt.switch(
        near,
        positive_y * (d - pt.log1p(d)),
        positive_y * (pt.log(positive_y) - log_rate) + rate - positive_y,
    )
    logp = log_poisson_at_mean(y) - pt.switch(pt.gt(y, 0), deviance, rate)
    return pt.switch(valid, logp, -np.inf)


def log_poisson_at_mean(y: Any) -> Any:
    """Return the graph of the log Poisson probability of `y` at the rate `y`, ``y log y - y - log y!``; 0 at y = 0.

    From y = 16 on it is computed as ``-log(2 pi y) / 2`` minus `stirling_remainder`.
    """
    small = pt.clip(y, 1, STIRLING_FROM)
    direct = small * (pt.log(small) - 1) - pt.gammaln(small + 1)
    # log y! = log y + log Gamma(y) = (y + 1/2) log y - y + log(2 pi) / 2 + remainder.
    large = pt.maximum(y, STIRLING_FROM)
    series = -0.5 * pt.log(2 * np.pi * large) - stirling_remainder(large)
    return pt.switch(pt.lt(y, STIRLING_FROM), pt.switch(pt.gt(y, 0), direct, 0), series)


def stirling_remainder(x: Any) -> Any:
    """Return the graph of ``log Gamma(x) - ((x - 1/2) log x - x + log(2 pi) / 2)`` for x >= 16.

    It is ``1 / (12 x) - 1 / (360 x^3) + ...``; the first neglected term is 691 / (360360 x^11), 1e-16 at 16.
    """
    # sum_k B_2k / (2 k (2 k - 1) x^{2 k - 1}), k = 1 to 5, with the Bernoulli numbers B, by Horner's rule.
    r = 1.0 / pt.square(x)
    return (1 / 12 - r * (1 / 360 - r * (1 / 1260 - r * (1 / 1680 - r / 1188)))) / x


def poisson_logcdf(value: Any, rate: Any) -> Any:
    """Return the graph of ``log P(Y <= value)``, with gradient zero where the rate is zero."""
    none = pt.le(rate, 0)
    y = pt.floor(as_real(pt.maximum(value, 0)))
    # P(Y <= y) = Gamma(y + 1, rate) / Gamma(y + 1).
    inside = pt.log(pt.gammaincc(y + 1, pt.switch(none, 1, rate)))
    return pt.switch(pt.lt(value, 0), -np.inf, pt.switch(none, 0, inside))
