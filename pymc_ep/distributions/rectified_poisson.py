"""Poisson counts whose rate is the positive part of a real predictor."""

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

__all__ = ["RectifiedPoisson", "RectifiedPoissonRV"]


class RectifiedPoissonRV(PoissonLinkRV):
    """Op of `RectifiedPoisson`; `zero_mass` distinguishes its two variants."""

    name = "rectified_poisson"
    _print_name = ("RectifiedPoisson", "\\operatorname{RectifiedPoisson}")
    zero_mass = True

    @staticmethod
    def rate(eta: Any) -> Any:
        """Return max(0, eta), with gradient zero at zero and NaN kept."""
        return pt.switch(pt.le(eta, 0), 0, eta)


class _PositiveRectifiedPoissonRV(RectifiedPoissonRV):
    """The variant in which no count is possible at a negative predictor."""

    zero_mass = False


class RectifiedPoisson(CountDistribution):
    r"""Poisson distribution with rate max(0, eta).

    .. math:: p(y \mid \eta) = \frac{\max(0, \eta)^y\, e^{-\max(0, \eta)}}{y!}, \qquad 0^0 = 1

    The log density is concave in eta, zero for y = 0 and eta <= 0 (with gradient zero), and -inf for
    y > 0 and eta <= 0. Where the model starts at eta = 0, NUTS therefore needs positive initial values: give
    them as `pymc.sample(initvals=...)` (after an `initval` in the model PyMC refuses to compute log-likelihoods).

    Parameters
    ----------
    eta : tensor_like of float
        Predictor, any real number.
    zero_mass : bool, default True
        Whether a zero count is possible, with probability one, at a negative predictor. False cuts the
        density to eta >= 0 for y = 0 too ([1]_, eq. 13): a zero count then pushes the predictor up to where
        an intensity has a meaning. As a density of y it is proper only for eta >= 0; draws at a negative
        predictor are zero.

    References
    ----------
    .. [1] Y.-J. Ko and M. Seeger, Expectation propagation for rectified linear Poisson regression.

    Examples
    --------
    >>> with pm.Model(coords={"bin": range(5)}):
    ...     f = pm.Normal("f", 2.0, 1.0, dims="bin")
    ...     y = RectifiedPoisson("y", f, observed=[1, 0, 3, 2, 4], dims="bin")
    """

    rv_type = RectifiedPoissonRV
    rv_op = RectifiedPoissonRV.rv_op

    @classmethod
    def dist(cls, eta: Any, *, zero_mass: bool = True, **kwargs: Any) -> Any:
        """Return a variable of this distribution outside of any model."""
        if not zero_mass:
            return _PositiveRectifiedPoisson.dist([eta], **kwargs)
        return super().dist([eta], **kwargs)

    def support_point(rv: Any, size: Any, eta: Any) -> Any:
        """Return the graph of the initial value: the largest integer that is not above the rate."""
        return poisson_support_point(size, RectifiedPoissonRV.rate(eta))

    def logp(value: Any, eta: Any) -> Any:
        """Return the graph of the log density of counts `value`."""
        none = pt.le(eta, 0)
        # At rate zero the branch not taken gets the rate one, so that its gradient is finite.
        safe = pt.switch(none, 1, eta)
        empty = pt.switch(pt.eq(value, 0), 0.0, -np.inf)
        return pt.switch(none, empty, poisson_logp(value, safe, pt.log(safe)))

    def logcdf(value: Any, eta: Any) -> Any:
        """Return the graph of ``log P(y <= value)``."""
        return poisson_logcdf(value, RectifiedPoissonRV.rate(eta))


class _PositiveRectifiedPoisson(CountDistribution):
    """`RectifiedPoisson` with ``zero_mass=False``: the same density, cut to eta >= 0."""

    rv_type = _PositiveRectifiedPoissonRV
    rv_op = _PositiveRectifiedPoissonRV.rv_op

    def logp(value: Any, eta: Any) -> Any:
        """Return the graph of the log density of counts `value`."""
        return pt.switch(pt.lt(eta, 0), -np.inf, RectifiedPoisson.logp(value, eta))

    def logcdf(value: Any, eta: Any) -> Any:
        """Return the graph of ``log P(y <= value)``."""
        return pt.switch(pt.lt(eta, 0), -np.inf, RectifiedPoisson.logcdf(value, eta))
