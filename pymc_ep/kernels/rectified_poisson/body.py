"""Scalar body of `rectified_poisson` in Python; Numba compiles the same functions.

Notation. The site is t(f) = max(0, f)^y exp(-max(0, f)) / y!, the cavity N(mu, s^2), the power eta. With a = eta y,
kappa = eta s - mu / s and x = f / s the tilted density on f > 0 is proportional to x^a exp(-x^2 / 2 - kappa x), with
the integral J_a. J_(a+1) = a J_(a-1) - kappa J_a, and x has the mean r_a = J_(a+1) / J_a. The mode of x is
x0 = (sqrt(kappa^2 + 4 a) - kappa) / 2, where minus the log density has the second derivative N / x0^2, N = a + x0^2.

Ko and Seeger (2015) run the recursion forward in a, which loses all digits for kappa > 0, where J is the minimal
solution. The four regimes here are free of cancellation:

- a = 0: truncated Gaussians (`flat_zero`, `cut_zero`);
- N >= 100: the saddle-point (Laplace) series in 1 / N, uniform in p = a / N (`saddle`);
- N < 100, kappa >= 0: the backward recursion from a + n >= 100, where the saddle-point series starts it (`backward`);
- N < 100, kappa < 0: the power series of J in |kappa|, all of whose terms are positive (`power_series`).

Gradient and precision are the expectations d log Z / d mu = E[eta d log t / d f] and
1 / var - 1 / s^2 = -Cov(f, eta d log t / d f) / var. Differences of moments, which lose all digits for small s, are
taken for kappa >= 0 only: there mu / s <= eta s, and var / s^2 is at most 1/2 in `backward`.
"""

import math

import numpy as np

from pymc_ep.kernels.rectified_poisson import coefficients
from pymc_ep.kernels.truncated_normal import body as truncated
from pymc_ep.kernels.truncated_normal.body import truncated_normal

__all__ = ["FUNCTIONS", "rectified_poisson"]

LOG_MASS = np.array(coefficients.SADDLE_LOG_MASS)
MEAN = np.array(coefficients.SADDLE_MEAN)
VARIANCE = np.array(coefficients.SADDLE_VARIANCE)
HALF_LOG_TWO_PI = truncated.HALF_LOG_TWO_PI

Moments = tuple[float, float, float, float, float]
"""log Z, mean, variance, gradient and precision."""

SADDLE_FROM = 100.0
"""Least N for the saddle-point series. Errors there, at 8 terms: 4e-13 (log mass, mean) and 7e-12 (variance)."""


def saddle_sums(p: float, size: float) -> tuple[float, float, float]:
    """Return corrections to Laplace's approximation: a term of the log mass, and relative ones of mean and variance.

    Arguments are p = a / N and `size`, N. The number of terms falls with N; the truncation error is largest at N = 100,
    see `SADDLE_FROM`.
    """
    terms = 8 if size < 200.0 else 6 if size < 1e3 else 4 if size < 1e4 else 3 if size < 1e6 else 2
    inverse = 1.0 / size
    log_mass = 0.0
    mean = 0.0
    variance = 0.0
    # sum_k N^-k sum_(j=1)^(2k) c_kj p^j by Horner's scheme; the 2 k coefficients of order k begin at k (k - 1).
    for order in range(terms, 0, -1):
        start = order * (order - 1)
        log_term = 0.0
        mean_term = 0.0
        variance_term = 0.0
        for i in range(start, start + 2 * order):
            log_term = log_term * p + LOG_MASS[i]
            mean_term = mean_term * p + MEAN[i]
            variance_term = variance_term * p + VARIANCE[i]
        log_mass = (log_mass + log_term * p) * inverse
        mean = (mean + mean_term * p) * inverse
        variance = (variance + variance_term * p) * inverse
    return log_mass, mean, variance


def negative_log_site(y: float, f: float, difference: float) -> float:
    """Return -log t_y(f) for f > 0, given difference = y - f to full relative accuracy.

    For y >= 16 it is f - y log f + log y! = bd0(y, f) + stirlerr(y) + log(2 pi y) / 2, the saddle-point form of Loader
    (2000, "Fast and accurate computation of binomial probabilities"), in which no terms of size y cancel.
    """
    if y < 16.0:
        return f - y * math.log(f) + math.lgamma(y + 1.0)
    ratio = difference / (y + f)
    if abs(ratio) < 0.1:
        # y log(y / f) = 2 y artanh(ratio); its first term and f - y = -difference combine.
        square = ratio * ratio
        series = 0.0
        for j in range(8, 0, -1):
            series = (series + 1.0 / (2 * j + 1)) * square
        deviance = difference * ratio + 2.0 * y * ratio * series
    else:
        deviance = y * math.log(y / f) - difference
    # Stirling: log y! = (y + 1/2) log y - y + log(2 pi) / 2 + 1 / (12 y) - 1 / (360 y^3) + 1 / (1260 y^5) - ...
    inverse = 1.0 / (y * y)
    tail = 1.0 / 1260.0 + inverse * (-1.0 / 1680.0 + inverse / 1188.0)
    stirling = (1.0 / 12.0 + inverse * (-1.0 / 360.0 + inverse * tail)) / y
    return deviance + stirling + HALF_LOG_TWO_PI + 0.5 * math.log(y)


def saddle(
    y: float, mean: float, variance: float, power: float, sd: float, root: float, mode: float, size: float
) -> Moments:
    """Return the moments by the saddle-point series about the mode, for N >= 100.

    `root` is sqrt(kappa^2 + 4 a), `mode` is x0 and `size` is N. The mode of f is f0 = s x0. The slope there,
    (f0 - mu) / s^2 = eta (y - f0) / f0, is a root of a quadratic in which y - mu is the only difference. The slope and
    y - f0 thus keep their relative accuracy where f0, y and mu agree to many digits.
    """
    a = power * y
    centre = mode * sd
    fraction = a / size
    log_sum, mean_sum, variance_sum = saddle_sums(fraction, size)
    # u = s slope solves u^2 + (mu / s + eta s) u = eta (y - mu); the discriminant is kappa^2 + 4 a.
    total = mean / sd + power * sd
    if total >= 0.0:
        slope = 2.0 * power * (y - mean) / (sd * (total + root))
    else:
        slope = 0.5 * (root - total) / sd
    # log Z = eta log t(f0) - (f0 - mu)^2 / (2 s^2) + log(x0^2 / N) / 2 + log_sum, with y - f0 = slope f0 / eta.
    log_z = (
        -power * negative_log_site(y, centre, slope * centre / power)
        - 0.5 * slope * slope * variance
        + 0.5 * math.log(mode * mode / size)
        + log_sum
    )
    # var = f0^2 / N (1 + variance_sum); the precision 1 / var - 1 / s^2 with 1 / s^2 = x0^2 / f0^2 and N - x0^2 = a.
    return (
        log_z,
        centre * (1.0 + mean_sum),
        centre * centre / size * (1.0 + variance_sum),
        slope + mode * mean_sum / sd,
        # Every term of variance_sum has the factor p = a / N: both terms are proportional to a as a vanishes.
        (a - mode * mode * variance_sum) / (centre * centre * (1.0 + variance_sum)),
    )


def log_prefactor(y: float, mean: float, power: float, sd: float) -> float:
    """Return log Z - log J_a = -mu^2 / (2 s^2) + a log s - log(2 pi) / 2 - eta log y!.

    The square in J_a is not completed: eta^2 s^2 / 2 - eta mu, which may cancel, would replace the first term.
    """
    standard = mean / sd
    a = power * y
    return -0.5 * standard * standard + a * math.log(sd) - HALF_LOG_TWO_PI - power * math.lgamma(y + 1.0)


def backward(y: float, mean: float, power: float, sd: float, kappa: float) -> Moments:
    """Return the moments for N < 100 and kappa >= 0, by the backward recursion below.

    r_(k-1) = k / (kappa + r_k) and J_(k-1) = J_k / r_(k-1). The order k runs from a + n >= 100, where the saddle-point
    series gives J_k and r_k, down to a + 1.
    """
    a = power * y
    steps = math.ceil(SADDLE_FROM - a)
    order = a + steps
    mode = 2.0 * order / (kappa + math.sqrt(kappa * kappa + 4.0 * order))
    size = order + mode * mode
    log_sum, mean_sum, _ = saddle_sums(order / size, size)
    # log J_b - log_sum, b = a + n: b log x0 - x0^2 / 2 - kappa x0 + log(2 pi x0^2 / N) / 2, with kappa x0 = b - x0^2.
    log_j = order * math.log(mode) - order + 0.5 * mode * mode + log_sum
    log_j += math.log(mode) + HALF_LOG_TWO_PI - 0.5 * math.log(size)
    ratio = mode * (1.0 + mean_sum)
    following = ratio
    product = 1.0
    for i in range(steps):
        following = ratio
        ratio = (order - i) / (kappa + ratio)
        product *= ratio
        if product < 1e-200:
            log_j -= math.log(product)
            product = 1.0
    log_j -= math.log(product)
    # Var x = E x^2 - r_a^2 = r_a (r_(a+1) - r_a).
    scaled_variance = ratio * (following - ratio)
    return (
        log_prefactor(y, mean, power, sd) + log_j,
        sd * ratio,
        sd * sd * scaled_variance,
        (ratio - mean / sd) / sd,
        (1.0 - scaled_variance) / (sd * sd * scaled_variance),
    )


def power_series(y: float, mean: float, power: float, sd: float, kappa: float) -> Moments:
    """Return the moments for N < 100 and kappa < 0, by the power series of J_a and a J_(a-1) in |kappa|.

    J_b = sum_k |kappa|^k / k! 2^((b+k-1)/2) Gamma((b+k+1)/2). Even and odd terms have separate recurrences; all are
    divided by the term k = 0 of J_a. With u = a J_(a-1) / J_a = a E[1 / x] the mean of x is r = |kappa| + u and its
    variance 1 - (r u - a). The difference r u - a = -a Cov(x, 1 / x) magnifies rounding by at most kappa^2 < 100.
    """
    a = power * y
    drift = -kappa
    square = kappa * kappa
    half = math.lgamma(0.5 * (a + 1.0))
    # 2^(a/2) Gamma(a/2 + 1) / (2^((a-1)/2) Gamma((a+1)/2))
    gamma_ratio = math.sqrt(2.0) * math.exp(math.lgamma(0.5 * a + 1.0) - half)
    even = 1.0
    odd = drift * gamma_ratio
    lower_even = gamma_ratio
    lower_odd = drift * a
    total = even + odd
    lower_total = lower_even + lower_odd
    k = 0.0
    while even + odd > 1e-18 * total or lower_even + lower_odd > 1e-18 * lower_total:
        # Term k + 2 over term k of J_b: kappa^2 (b + k + 1) / ((k + 1) (k + 2)), for b = a and for b = a - 1.
        to_even = square / ((k + 1.0) * (k + 2.0))
        to_odd = square / ((k + 2.0) * (k + 3.0))
        even *= to_even * (a + k + 1.0)
        odd *= to_odd * (a + k + 2.0)
        lower_even *= to_even * (a + k)
        lower_odd *= to_odd * (a + k + 1.0)
        total += even + odd
        lower_total += lower_even + lower_odd
        k += 2.0
    inverse = lower_total / total
    ratio = drift + inverse
    reduction = ratio * inverse - a
    # The sums are relative to the term k = 0 of J_a, 2^((a-1)/2) Gamma((a+1)/2).
    log_j = math.log(total) + half + 0.5 * (a - 1.0) * math.log(2.0)
    return (
        log_prefactor(y, mean, power, sd) + log_j,
        sd * ratio,
        sd * sd * (1.0 - reduction),
        # (r - mu / s) / s = u / s - eta, as |kappa| = mu / s - eta s.
        inverse / sd - power,
        reduction / (sd * sd * (1.0 - reduction)),
    )


def flat_zero(mean: float, power: float, sd: float, kappa: float) -> Moments:
    """Return the moments for y = 0 with t = 1 on f <= 0: a mixture of two truncated Gaussians, below and above zero.

    With k = mu / s their weights are Phi(-k) and Phi(-kappa) phi(k) / phi(kappa), in the ratio h(kappa) : h(k) of the
    hazards. As k + kappa = eta s > 0, at most one hazard underflows. d log t / d f is -1 on f > 0 and 0 elsewhere: the
    gradient is -eta P(f > 0), and the precision eta Cov(f, 1(f > 0)) / var, a product of positive numbers.
    """
    k = mean / sd
    log_below, hazard_below, mean_below, variance_below = truncated_normal(k)
    log_above, hazard_above, mean_above, variance_above = truncated_normal(kappa)
    above = hazard_below / (hazard_below + hazard_above)
    below = hazard_above / (hazard_below + hazard_above)
    gap = mean_above + mean_below
    # Variance of a mixture of means r(kappa) and -r(k), in units of s: sum_j w_j V_j + w_1 w_2 gap^2.
    variance = below * variance_below + above * variance_above + below * above * gap * gap
    if k <= 0.0:
        # log(Phi(-k) (1 + h(k) / h(kappa))): Phi(-k) is at least 1/2, and both logarithms may be small.
        log_z = log_below + math.log1p(hazard_below / hazard_above)
    elif kappa >= 0.0:
        # Z = Phi(-k) + Phi(-kappa) phi(k) / phi(kappa) = phi(k) (1 / h(k) + 1 / h(kappa)).
        log_z = -0.5 * k * k - HALF_LOG_TWO_PI + math.log(1.0 / hazard_below + 1.0 / hazard_above)
    else:
        # Phi(-kappa) phi(k) / phi(kappa) (1 + h(kappa) / h(k)), with phi(k) / phi(kappa) = exp(eta^2 s^2 / 2 - eta mu).
        log_z = -power * (mean - 0.5 * power * sd * sd) + log_above + math.log1p(hazard_above / hazard_below)
    return (
        log_z,
        sd * (above * mean_above - below * mean_below),
        sd * sd * variance,
        -power * above,
        power * below * above * gap / (sd * variance),
    )


def cut_zero(mean: float, power: float, sd: float, kappa: float) -> Moments:
    """Return the moments for y = 0 with t = 0 on f <= 0: a truncated Gaussian.

    Its hazard h, mean r and variance V, in units of s, are the results of `truncated_normal` at kappa.
    """
    log_mass, hazard, ratio, scaled_variance = truncated_normal(kappa)
    k = mean / sd
    if kappa >= 0.0:
        # Z = Phi(-kappa) phi(k) / phi(kappa) = phi(k) / h(kappa); the gradient is (E f - mu) / s^2 = (r - k) / s.
        log_z = -0.5 * k * k - HALF_LOG_TWO_PI - math.log(hazard)
        gradient = (ratio - k) / sd
    else:
        log_z = -power * (mean - 0.5 * power * sd * sd) + log_mass
        # (r - k) / s with r = h - kappa and kappa = eta s - k.
        gradient = hazard / sd - power
    return (
        log_z,
        sd * ratio,
        sd * sd * scaled_variance,
        gradient,
        # 1 / (s^2 V) - 1 / s^2 = (1 - V) / (s^2 V), with 1 - V = h r.
        hazard * ratio / (sd * sd * scaled_variance),
    )


def rectified_poisson(y: float, mean: float, variance: float, power: float, zero_mass: bool) -> Moments:
    """Return log Z, mean, variance, gradient and precision; all nan for arguments outside the domain."""
    if not (y >= 0.0 and variance > 0.0 and power > 0.0 and math.isfinite(y + mean + variance + power)):
        return math.nan, math.nan, math.nan, math.nan, math.nan
    sd = math.sqrt(variance)
    kappa = power * sd - mean / sd
    if y == 0.0:
        if zero_mass:
            return flat_zero(mean, power, sd, kappa)
        return cut_zero(mean, power, sd, kappa)
    a = power * y
    root = math.sqrt(kappa * kappa + 4.0 * a)
    # x0 = 2 a / (kappa + root) = (root - kappa) / 2, in the form without a difference.
    mode = 2.0 * a / (kappa + root) if kappa > 0.0 else 0.5 * (root - kappa)
    size = a + mode * mode
    if size >= SADDLE_FROM:
        return saddle(y, mean, variance, power, sd, root, mode, size)
    if kappa >= 0.0:
        return backward(y, mean, power, sd, kappa)
    return power_series(y, mean, power, sd, kappa)


FUNCTIONS = (
    *truncated.FUNCTIONS,
    saddle_sums,
    negative_log_site,
    saddle,
    log_prefactor,
    backward,
    power_series,
    flat_zero,
    cut_zero,
    rectified_poisson,
)
