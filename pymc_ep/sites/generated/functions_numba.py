"""Branch-free elementary functions, whose loops become vector instructions.

Relative errors are below 5e-16, and below 1e-14 for log Gamma and its derivative. Numbers below 2e-308 count as 2e-308.
NaN gives NaN. Polynomials are summed in pairs (Estrin), so that chains of dependent instructions are short.
"""

import math
from functools import partial
from typing import Any

import numba
import numpy as np
from numba import types
from numba.extending import intrinsic

__all__ = ["FUNCTIONS", "jit"]

jit = partial(numba.njit, error_model="numpy", fastmath={"contract", "nsz"}, forceinline=True, no_cpython_wrapper=True)
"""Compiler for functions in which sums keep their order, as compensated sums need."""


@intrinsic
def _as_double(context: Any, bits: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], context.get_value_type(types.float64))

    return types.float64(types.uint64), generate


@intrinsic
def _as_bits(context: Any, x: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], context.get_value_type(types.uint64))

    return types.uint64(types.float64), generate


_E2, _E3, _E4, _E5, _E6, _E7, _E8, _E9, _E10, _E11, _E12, _E13 = (1 / math.factorial(k) for k in range(2, 14))
_L1, _L2, _L3, _L4, _L5, _L6, _L7, _L8, _L9 = (1 / (2 * k + 1) for k in range(1, 10))
_L10, _L11, _L12, _L13, _L14, _L15, _L16, _L17 = (1 / (2 * k + 1) for k in range(10, 18))
_LOG2_E = 1.4426950408889634
_LN2_HIGH, _LN2_LOW = 6.93147180369123816490e-01, 1.90821492927058770002e-10
"""ln 2, the first part with 20 trailing zero bits: its product with an exponent is exact."""
_WHOLE = 1.5 * 2.0**52
"""A sum with this constant is rounded to a whole number, which the sum's last bits hold. Some processors have no
instructions that convert vectors of 64-bit integers, but all have the ones used here."""
_TWO_52_BITS, _TWO_52 = np.uint64(0x4330000000000000), 2.0**52
_EXPONENT, _BIAS = np.uint64(52), np.uint64(1023 << 52)
"""Place and bias of the exponent of a double."""
_HALF_SQRT2_BITS = np.uint64(0x3FE6A09E667F3BCD)
_LN_2 = math.log(2.0)


@jit
def _exp_series(r: float) -> float:
    """Return (e^r - 1) / r for |r| <= 0.4."""
    # sum_k r^k / (k + 1)! for k = 0, ..., 12.
    p0_0 = 1.0 + _E2 * r
    p0_1 = _E3 + _E4 * r
    p0_2 = _E5 + _E6 * r
    p0_3 = _E7 + _E8 * r
    p0_4 = _E9 + _E10 * r
    p0_5 = _E11 + _E12 * r
    r2 = r * r
    p1_0 = p0_0 + p0_1 * r2
    p1_1 = p0_2 + p0_3 * r2
    p1_2 = p0_4 + p0_5 * r2
    r4 = r2 * r2
    p2_0 = p1_0 + p1_1 * r4
    p2_1 = p1_2 + _E13 * r4
    r8 = r4 * r4
    p3_0 = p2_0 + p2_1 * r8
    return p3_0


@jit
def exp(x: float) -> float:
    """Return e^x, and 3e-308 below x = -708."""
    inside = -708.0 if x < -708.0 else x
    inside = 709.8 if inside > 709.8 else inside
    # x = k ln 2 + r gives 2^k e^r. The last bits of `shifted` hold k, and are moved to the exponent.
    shifted = inside * _LOG2_E + _WHOLE
    k = shifted - _WHOLE
    r = (inside - k * _LN2_HIGH) - k * _LN2_LOW
    return (_exp_series(r) * r + 1.0) * _as_double((_as_bits(shifted) << _EXPONENT) + _BIAS)


@jit
def expm1(x: float) -> float:
    """Return e^x - 1."""
    r = -0.4 if x < -0.4 else x
    r = 0.4 if r > 0.4 else r
    near = _exp_series(r) * r
    far = exp(x) - 1.0
    return near if (x < 0.35) & (x > -0.35) else far


@jit
def log(x: float) -> float:
    """Return log x.

    With x = 2^k m, m from sqrt(1/2) to sqrt(2), and s = (m - 1) / (m + 1), log x is k ln 2 + 2 artanh s.
    """
    bits = _as_bits(x)
    biased = (bits - _HALF_SQRT2_BITS + _BIAS) >> _EXPONENT
    f = _as_double(bits - (biased << _EXPONENT) + _BIAS) - 1.0
    s = f / (2.0 + f)
    z = s * s
    # artanh(s) / s = sum_k z^k / (2 k + 1), here for k = 0, ..., 11.
    p0_0 = 1.0 + _L1 * z
    p0_1 = _L2 + _L3 * z
    p0_2 = _L4 + _L5 * z
    p0_3 = _L6 + _L7 * z
    p0_4 = _L8 + _L9 * z
    p0_5 = _L10 + _L11 * z
    z2 = z * z
    p1_0 = p0_0 + p0_1 * z2
    p1_1 = p0_2 + p0_3 * z2
    p1_2 = p0_4 + p0_5 * z2
    z4 = z2 * z2
    p2_0 = p1_0 + p1_1 * z4
    z8 = z4 * z4
    p3_0 = p2_0 + p1_2 * z8
    # A double with the bits of 2^52 and of a smaller whole number b is 2^52 + b.
    e = _as_double(biased | _TWO_52_BITS) - (_TWO_52 + 1023.0)
    value = e * _LN2_HIGH + (2.0 * s * p3_0 + e * _LN2_LOW)
    at_most_zero = -np.inf if x == 0.0 else np.nan
    value = value if x > 0.0 else at_most_zero
    return value if x < np.inf else x


@jit
def log1p(x: float) -> float:
    """Return log(1 + x): digits that 1 + x loses are added to first order."""
    u = 1.0 + x
    lost = (x - (u - 1.0)) / u
    defined = (x > -1.0) & (x < np.inf)
    return log(u) + (lost if defined else 0.0)


@jit
def log1p_unit(x: float) -> float:
    """Return log(1 + x) for x from 0 to 1: 2 artanh s with s = x / (2 + x)."""
    s = x / (2.0 + x)
    z = s * s
    # artanh(s) / s = sum_k z^k / (2 k + 1) for k = 0, ..., 17.
    p0_0 = 1.0 + _L1 * z
    p0_1 = _L2 + _L3 * z
    p0_2 = _L4 + _L5 * z
    p0_3 = _L6 + _L7 * z
    p0_4 = _L8 + _L9 * z
    p0_5 = _L10 + _L11 * z
    p0_6 = _L12 + _L13 * z
    p0_7 = _L14 + _L15 * z
    p0_8 = _L16 + _L17 * z
    z2 = z * z
    p1_0 = p0_0 + p0_1 * z2
    p1_1 = p0_2 + p0_3 * z2
    p1_2 = p0_4 + p0_5 * z2
    p1_3 = p0_6 + p0_7 * z2
    z4 = z2 * z2
    p2_0 = p1_0 + p1_1 * z4
    p2_1 = p1_2 + p1_3 * z4
    z8 = z4 * z4
    p3_0 = p2_0 + p2_1 * z8
    z16 = z8 * z8
    p4_0 = p3_0 + p0_8 * z16
    return 2.0 * s * p4_0


@jit
def log1mexp(x: float) -> float:
    """Return log(1 - e^x) for x < 0."""
    near = x > -_LN_2
    e = exp(x)
    return log(-expm1(x) if near else 1.0) if near else log1p(-e)


@jit
def log_gamma(x: float) -> float:
    """Return log Gamma(x) for x > 0: Stirling's series at x, or at x + 7 less log(x (x + 1) ... (x + 6))."""
    small = x < 7.0
    z = x + 7.0 if small else x
    w = 1.0 / z
    w2 = w * w
    product = ((x * (x + 1.0)) * ((x + 2.0) * (x + 3.0))) * (((x + 4.0) * (x + 5.0)) * (x + 6.0))
    # sum_k B_2k / (2 k (2 k - 1) z^(2 k - 1)) with Bernoulli numbers B_2k, k = 1, ..., 7.
    low = 1.0 / 12.0 + w2 * (-1.0 / 360.0 + w2 * (1.0 / 1260.0 - w2 / 1680.0))
    rest = 1.0 / 1188.0 + w2 * (-691.0 / 360360.0 + w2 / 156.0)
    series = w * (low + w2 * w2 * w2 * w2 * rest)
    value = (z - 0.5) * log(z) - z + 0.9189385332046727 + series - log(product if small else 1.0)
    at_most_zero = np.inf if x <= 0.0 else np.nan
    return value if x > 0.0 else at_most_zero


@jit
def digamma(x: float) -> float:
    """Return the derivative of log Gamma(x) for x > 0."""
    small = x < 7.0
    z = x + 7.0 if small else x
    w = 1.0 / z
    w2 = w * w
    # digamma(x) = digamma(x + 7) - sum_k 1 / (x + k) for k = 0, ..., 6.
    total = ((1.0 / x + 1.0 / (x + 1.0)) + (1.0 / (x + 2.0) + 1.0 / (x + 3.0))) + (
        (1.0 / (x + 4.0) + 1.0 / (x + 5.0)) + 1.0 / (x + 6.0)
    )
    # log z - 1 / (2 z) - sum_k B_2k / (2 k z^(2 k)), k = 1, ..., 7.
    low = 1.0 / 12.0 + w2 * (-1.0 / 120.0 + w2 * (1.0 / 252.0 - w2 / 240.0))
    rest = 1.0 / 132.0 + w2 * (-691.0 / 32760.0 + w2 / 12.0)
    value = log(z) - 0.5 * w - w2 * (low + w2 * w2 * w2 * w2 * rest) - (total if small else 0.0)
    return value if x > 0.0 else np.nan


@jit
def truth(x: bool) -> bool:
    """Return x, a truth value, which has a type of its own in C."""
    return x


@jit
def number(x: bool) -> float:
    """Return one for true and zero for false."""
    return 1.0 if x else 0.0


@jit
def select(which: bool, a: float, b: float) -> float:
    """Return a if `which` is true, else b."""
    return a if which else b


@jit
def maximum(a: float, b: float) -> float:
    """Return the larger number; NaN in either gives NaN."""
    return a if (a >= b) | (a != a) else b


@jit
def minimum(a: float, b: float) -> float:
    """Return the smaller number; NaN in either gives NaN."""
    return a if (a <= b) | (a != a) else b


_OWN = exp, expm1, log, log1p, log1p_unit, log1mexp, log_gamma, digamma, select, maximum, minimum, number, truth
FUNCTIONS = {one.__name__: one for one in _OWN} | {
    "fabs": math.fabs,
    "sqrt": math.sqrt,
    "INFINITY": math.inf,
    "NAN": math.nan,
}
"""Functions that `expressions` call."""
