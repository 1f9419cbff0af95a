"""Penalised complexity priors of scales and ranges (Simpson et al. 2017, Fuglstad et al. 2019)."""

from typing import Any

import numpy as np
import pymc as pm

from pymc_ep.exceptions import InvalidDataError

__all__ = ["pc_range", "pc_sigma"]


class pc_sigma(pm.Exponential):
    r"""Prior of a standard deviation, with P(sigma > u) = alpha: the penalised complexity prior [1]_.

    .. math:: p(\sigma) = \lambda e^{-\lambda \sigma}, \qquad \lambda = -\log(\alpha) / u

    It shrinks sigma to zero, at which there is no field, at a constant rate.

    Parameters
    ----------
    name : str
    u : float
        A large value of sigma.
    alpha : float
        Probability that sigma is larger than u.

    References
    ----------
    .. [1] D. Simpson, H. Rue, A. Riebler, T. G. Martins and S. H. Sorbye (2017), Penalising model component
       complexity, Statistical Science 32.

    Examples
    --------
    >>> with pm.Model():
    ...     sigma = pmep.priors.pc_sigma("sigma", u=1, alpha=0.01)
    """

    rv_op = pm.Exponential.rv_op

    @classmethod
    def dist(cls, u: float, alpha: float, **kwargs: Any) -> Any:
        """Return a variable of this distribution outside of any model."""
        # P(sigma > u) = exp(-lambda u) = alpha.
        return super().dist(lam=_rate("u", u, alpha) / u, **kwargs)


class pc_range(pm.InverseGamma):
    r"""Prior of the range of a field in the plane, with P(range < r0) = alpha: the penalised complexity prior [1]_.

    .. math:: p(r) = \lambda r^{-2} e^{-\lambda / r}, \qquad \lambda = -\log(\alpha) r_0

    It shrinks the field to one with an infinite range. Range and sigma have the joint prior ``pc_range`` times
    ``pc_sigma``.

    Parameters
    ----------
    name : str
    r0 : float
        A short range, in units of the coordinates.
    alpha : float
        Probability that the range is shorter than r0.

    References
    ----------
    .. [1] G.-A. Fuglstad, D. Simpson, F. Lindgren and H. Rue (2019), Constructing priors that penalize the complexity
       of Gaussian random fields, JASA 114.

    Examples
    --------
    >>> with pm.Model():
    ...     range_ = pmep.priors.pc_range("range", r0=10, alpha=0.05)
    """

    rv_op = pm.InverseGamma.rv_op

    @classmethod
    def dist(cls, r0: float, alpha: float, **kwargs: Any) -> Any:
        """Return a variable of this distribution outside of any model."""
        # P(range < r0) = exp(-lambda / r0) = alpha.
        return super().dist(alpha=1.0, beta=_rate("r0", r0, alpha) * r0, **kwargs)


def _rate(name: str, value: float, alpha: float) -> float:
    """Return -log(alpha); raise InvalidDataError unless the value is positive and alpha between 0 and 1."""
    for what, given, most in ((name, value, np.inf), ("alpha", alpha, 1.0)):
        if not 0.0 < given < most:
            raise InvalidDataError(
                f"A penalised complexity prior has {what} = {given:.6g}; {name} is positive and finite, and alpha a "
                f"probability between 0 and 1, such as 0.05."
            )
    return -np.log(alpha)
