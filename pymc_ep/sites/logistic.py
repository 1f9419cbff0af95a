"""The log likelihood that binomial and negative binomial counts share: a logistic function to two powers."""

from typing import Any

import pytensor.tensor as pt

__all__ = ["log_logistic_powers"]


def log_logistic_powers(u: Any, left: Any, right: Any) -> Any:
    """log of ``p(u)**left * (1 - p(u))**right`` over its maximum, where ``logit p(u) = u + log(left / right)``.

    The maximum is at u = 0. With ``q = left / (left + right)`` the log is ``left u - (left + right) log(1 + q (e^u -
    1))``; drawing ``e^u`` out where u > 0 leaves, with c = left for u < 0 and c = right for u > 0,

        -c |u| - (left + right) log1p(c / (left + right) expm1(-|u|)),

    in which nothing overflows, and terms in the counts cancel only where the result itself is small.

    Parameters
    ----------
    u : TensorVariable
        Distance from the maximum on the logit scale.
    left, right : TensorVariable
        Positive powers.
    """
    total = left + right
    power = pt.switch(u > 0, right, left)
    away = pt.abs(u)
    return -power * away - total * pt.log1p(power / total * pt.expm1(-away))
