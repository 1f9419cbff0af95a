"""Log gamma function with a derivative of error 2e-13, its differences, and the remainder of Stirling's formula."""

from functools import reduce
from operator import mul
from typing import Any

import numpy as np
import pytensor.tensor as pt

from pymc_ep.distributions.counts import STIRLING_FROM, stirling_remainder

__all__ = ["log_gamma", "log_gamma_remainder", "log_rising"]

_SHIFT = 20
"""Least argument of the asymptotic series, and number of steps of the recurrence."""
_LARGE = 50.0
"""Argument above which `log_rising` is a difference of two asymptotic series; below it, the difference of two log gamma
functions loses no digits."""


def log_gamma(x: Any) -> Any:
    """Return log Gamma(x) for x > 0, with a more accurate derivative than PyTensor's C code.

    For x >= 8.5 the C code has an asymptotic series of three terms, with an error up to ``1 / (240 x**8)``, 1e-10. For
    x < 20 the recurrence ``Gamma(x + 20) = Gamma(x) x (x + 1) ... (x + 19)`` reduces this to 2e-13.
    """
    small = x < _SHIFT
    safe = pt.switch(small, x, 1.0)
    factor = reduce(mul, (safe + k for k in range(_SHIFT)))
    return pt.gammaln(pt.switch(small, x + _SHIFT, x)) - pt.switch(small, pt.log(factor), 0.0)


def log_rising(x: Any, k: Any) -> Any:
    """Return log Gamma(x + k) - log Gamma(x) for x > 0, k >= 0, without the cancellation of the two where x is large.

    For Stirling's series (x - 1/2) log x - x + log(2 pi) / 2 + r(x) the difference is

        k log(x + k) + (x - 1/2) log(1 + k / x) - k + r(x + k) - r(x).
    """
    large = x > _LARGE
    safe, small = pt.switch(large, x, _LARGE), pt.switch(large, 1.0, x)
    # For x far above k the second term is k - k (k + 1) / (2 x), right to its last digit.
    by_series = k * pt.log(safe + k) + (safe - 0.5) * pt.log1p(k / safe) - k + stirling_remainder(safe + k)
    by_series = by_series - stirling_remainder(safe)
    by_difference = pt.gammaln(small + k) - pt.gammaln(small)
    # Zero at k = 0. PyTensor may sum x + (n - y) as (x + n) - y, which loses a small x.
    return pt.switch(pt.gt(k, 0), pt.switch(large, by_series, by_difference), 0.0)


def log_gamma_remainder(x: Any) -> Any:
    """Return log Gamma(x) - ((x - 1/2) log x - x + log(2 pi) / 2) for x > 0.

    In a log density whose other terms cancel Stirling's formula, only this remainder is left (Loader 2000).
    """
    large = x > STIRLING_FROM
    small = pt.switch(large, 1.0, x)
    direct = log_gamma(small) - (small - 0.5) * pt.log(small) + small - 0.5 * np.log(2 * np.pi)
    return pt.switch(large, stirling_remainder(pt.switch(large, x, STIRLING_FROM)), direct)
