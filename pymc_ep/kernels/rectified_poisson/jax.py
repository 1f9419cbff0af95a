"""JAX body of `rectified_poisson`; body.py has the notation and the derivation of every regime.

The saddle-point series is evaluated for all elements. Each other regime is evaluated only if an element needs it, and
then for all elements; arguments outside its domain are replaced by ones inside.
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jax.scipy.special import gammaln
from pytensor.link.jax.dispatch import jax_funcify

from pymc_ep.kernels.rectified_poisson.body import HALF_LOG_TWO_PI, LOG_MASS, MEAN, SADDLE_FROM, VARIANCE
from pymc_ep.kernels.rectified_poisson.coefficients import SADDLE_TERMS
from pymc_ep.kernels.rectified_poisson.op import RectifiedPoisson
from pymc_ep.kernels.truncated_normal.jax import truncated_normal
from pymc_ep.numerics.backend.namespace_jax import require_float64

__all__ = ["rectified_poisson"]

Moments = tuple[jax.Array, jax.Array, jax.Array, jax.Array, jax.Array]

BACKWARD_STEPS = 100
"""Largest number of steps of `backward`, from a = 0 to `SADDLE_FROM`."""
SERIES_PAIRS = 130
"""Number of pairs of terms k of `power_series`, k < 260: the largest terms are at k near |kappa| x0 <= 100, in a peak
about 15 wide at most."""


def saddle_sums(p: jax.Array, size: jax.Array) -> tuple[jax.Array, ...]:
    """Return the corrections of log mass, mean and variance, from p = a / N and `size`, N, always with 8 terms."""
    inverse = 1.0 / size
    sums = []
    for table in (LOG_MASS.tolist(), MEAN.tolist(), VARIANCE.tolist()):
        total = jnp.zeros_like(p)
        # sum_k N^-k sum_(j=1)^(2k) c_kj p^j by Horner's scheme; the 2 k coefficients of order k begin at k (k - 1).
        for order in range(SADDLE_TERMS, 0, -1):
            start = order * (order - 1)
            term = jnp.zeros_like(p)
            for coefficient in table[start : start + 2 * order]:
                term = term * p + coefficient
            total = (total + term * p) * inverse
        sums.append(total)
    return tuple(sums)


def negative_log_site(y: jax.Array, f: jax.Array, difference: jax.Array) -> jax.Array:
    """Return -log t_y(f) for f > 0, given difference = y - f; by Loader's form for y >= 16."""
    small = y < 16.0
    plain_y = jnp.where(small, y, 1.0)
    plain = f - plain_y * jnp.log(f) + gammaln(plain_y + 1.0)

    y = jnp.where(small, 16.0, y)
    difference = jnp.where(small, 16.0 - f, difference)
    ratio = difference / (y + f)
    near = jnp.abs(ratio) < 0.1
    series_ratio = jnp.where(near, ratio, 0.0)
    # y log(y / f) - (y - f) = (y - f) q + 2 y (q^3 / 3 + q^5 / 5 + ...) for q = (y - f) / (y + f).
    square = series_ratio * series_ratio
    series = jnp.zeros_like(square)
    for j in range(8, 0, -1):
        series = (series + 1.0 / (2 * j + 1)) * square
    close = difference * series_ratio + 2.0 * y * series_ratio * series
    deviance = jnp.where(near, close, y * jnp.log(y / f) - difference)
    # Stirling: log y! = (y + 1/2) log y - y + log(2 pi) / 2 + 1 / (12 y) - 1 / (360 y^3) + 1 / (1260 y^5) - ...
    inverse = 1.0 / (y * y)
    tail = 1.0 / 1260.0 + inverse * (-1.0 / 1680.0 + inverse / 1188.0)
    stirling = (1.0 / 12.0 + inverse * (-1.0 / 360.0 + inverse * tail)) / y
    return jnp.where(small, plain, deviance + stirling + HALF_LOG_TWO_PI + 0.5 * jnp.log(y))


def saddle(
    y: jax.Array,
    mean: jax.Array,
    variance: jax.Array,
    power: jax.Array,
    root: jax.Array,
    mode: jax.Array,
    size: jax.Array,
    sums: tuple[jax.Array, ...],
) -> Moments:
    """Return the moments by the saddle-point series about the mode, for N >= 100; `sums` is from `saddle_sums`."""
    sd = jnp.sqrt(variance)
    a = power * y
    centre = mode * sd
    log_sum, mean_sum, variance_sum = sums
    # u = s slope solves u^2 + (mu / s + eta s) u = eta (y - mu); the discriminant is kappa^2 + 4 a.
    total = mean / sd + power * sd
    positive = total >= 0.0
    slope = jnp.where(
        positive,
        2.0 * power * (y - mean) / (sd * (jnp.where(positive, total, 0.0) + root)),
        0.5 * (root - total) / sd,
    )
    # log Z = eta log t(f0) - (f0 - mu)^2 / (2 s^2) + log(x0^2 / N) / 2 + log_sum, with y - f0 = slope f0 / eta.
    log_z = (
        -power * negative_log_site(y, centre, slope * centre / power)
        - 0.5 * slope * slope * variance
        + 0.5 * jnp.log(mode * mode / size)
        + log_sum
    )
    return (
        log_z,
        centre * (1.0 + mean_sum),
        centre * centre / size * (1.0 + variance_sum),
        slope + mode * mean_sum / sd,
        (a - mode * mode * variance_sum) / (centre * centre * (1.0 + variance_sum)),
    )


def log_prefactor(y: jax.Array, mean: jax.Array, variance: jax.Array, power: jax.Array) -> jax.Array:
    """Return log Z - log J_a."""
    constant = HALF_LOG_TWO_PI + power * gammaln(y + 1.0)
    return -0.5 * mean * (mean / variance) + 0.5 * power * y * jnp.log(variance) - constant


def backward(
    y: jax.Array,
    mean: jax.Array,
    variance: jax.Array,
    power: jax.Array,
    kappa: jax.Array,
    steps: jax.Array,
    mode: jax.Array,
    size: jax.Array,
    sums: tuple[jax.Array, ...],
) -> Moments:
    """Return the moments by the backward recursion, for N < 100 and kappa >= 0.

    The recursion starts at the order a + `steps`; `mode`, `size` and `sums` are x0, N and the saddle-point corrections
    at that order.
    """
    sd = jnp.sqrt(variance)
    order = power * y + steps
    log_sum, mean_sum, _ = sums
    # log J_b - log_sum, b = a + n: b log x0 - x0^2 / 2 - kappa x0 + log(2 pi x0^2 / N) / 2, with kappa x0 = b - x0^2.
    log_j = order * jnp.log(mode) - order + 0.5 * mode * mode + log_sum
    log_j = log_j + jnp.log(mode) + HALF_LOG_TWO_PI - 0.5 * jnp.log(size)
    ratio = mode * (1.0 + mean_sum)
    chunk = 10  # Ratios multiplied before a logarithm is taken.

    def body(block: jax.Array, state: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        ratio, following, log_j = state
        product = jnp.ones_like(ratio)
        for j in range(chunk):
            i = block * chunk + j
            active = i < steps
            following = jnp.where(active, ratio, following)
            ratio = jnp.where(active, jnp.where(active, order - i, 1.0) / (kappa + ratio), ratio)
            product = product * jnp.where(active, ratio, 1.0)
        return ratio, following, log_j - jnp.log(product)

    ratio, following, log_j = lax.fori_loop(0, BACKWARD_STEPS // chunk, body, (ratio, ratio, log_j))
    # Var x = E x^2 - r_a^2 = r_a (r_(a+1) - r_a); elements of other regimes have any value.
    scaled = jnp.where(steps > 0, ratio * (following - ratio), 0.5)
    return (
        log_prefactor(y, mean, variance, power) + log_j,
        sd * ratio,
        variance * scaled,
        (ratio - mean / sd) / sd,
        (1.0 - scaled) / (variance * scaled),
    )


def power_series(y: jax.Array, mean: jax.Array, variance: jax.Array, power: jax.Array, kappa: jax.Array) -> Moments:
    """Return the moments by the power series of J_a and a J_(a-1) in |kappa|, for N < 100 and kappa < 0."""
    sd = jnp.sqrt(variance)
    a = power * y
    drift = -kappa
    square = kappa * kappa
    half = gammaln(0.5 * (a + 1.0))
    gamma_ratio = jnp.sqrt(2.0) * jnp.exp(gammaln(0.5 * a + 1.0) - half)
    even, odd = jnp.ones_like(a), drift * gamma_ratio
    lower_even, lower_odd = gamma_ratio, drift * a

    def body(pair: jax.Array, state: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        even, odd, lower_even, lower_odd, total, lower_total = state
        k = 2.0 * pair
        # Term k + 2 over term k of J_b: kappa^2 (b + k + 1) / ((k + 1) (k + 2)), for b = a and for b = a - 1.
        to_even = square / ((k + 1.0) * (k + 2.0))
        to_odd = square / ((k + 2.0) * (k + 3.0))
        even = even * (to_even * (a + k + 1.0))
        odd = odd * (to_odd * (a + k + 2.0))
        lower_even = lower_even * (to_even * (a + k))
        lower_odd = lower_odd * (to_odd * (a + k + 1.0))
        return even, odd, lower_even, lower_odd, total + (even + odd), lower_total + (lower_even + lower_odd)

    state = (even, odd, lower_even, lower_odd, even + odd, lower_even + lower_odd)
    *_, total, lower_total = lax.fori_loop(0, SERIES_PAIRS, body, state)
    inverse = lower_total / total
    ratio = drift + inverse
    reduction = ratio * inverse - a
    # The sums are relative to the term k = 0 of J_a, 2^((a-1)/2) Gamma((a+1)/2).
    log_j = jnp.log(total) + half + 0.5 * (a - 1.0) * jnp.log(2.0)
    return (
        log_prefactor(y, mean, variance, power) + log_j,
        sd * ratio,
        variance * (1.0 - reduction),
        inverse / sd - power,
        reduction / (variance * (1.0 - reduction)),
    )


def flat_zero(mean: jax.Array, variance: jax.Array, power: jax.Array, kappa: jax.Array) -> Moments:
    """Return the moments for y = 0 with t = 1 on f <= 0."""
    sd = jnp.sqrt(variance)
    k = mean / sd
    log_below, hazard_below, mean_below, variance_below = truncated_normal(k)
    log_above, hazard_above, mean_above, variance_above = truncated_normal(kappa)
    above = hazard_below / (hazard_below + hazard_above)
    below = hazard_above / (hazard_below + hazard_above)
    gap = mean_above + mean_below
    # Variance of a mixture of means r(kappa) and -r(k), in units of s: sum_j w_j V_j + w_1 w_2 gap^2.
    scaled = below * variance_below + above * variance_above + below * above * gap * gap
    low, both = k <= 0.0, kappa >= 0.0
    safe_above = jnp.where(both, hazard_above, 1.0)
    safe_below = jnp.where(low, 1.0, hazard_below)
    # Z = Phi(-k) + Phi(-kappa) phi(k) / phi(kappa) = phi(k) (1 / h(k) + 1 / h(kappa)), in three forms.
    log_low = log_below + jnp.log1p(hazard_below / safe_above)
    log_both = -0.5 * k * k - HALF_LOG_TWO_PI + jnp.log(1.0 / safe_below + 1.0 / safe_above)
    log_high = -power * (mean - 0.5 * power * variance) + log_above + jnp.log1p(hazard_above / safe_below)
    return (
        jnp.where(low, log_low, jnp.where(both, log_both, log_high)),
        sd * (above * mean_above - below * mean_below),
        variance * scaled,
        -power * above,
        power * below * above * gap / (sd * scaled),
    )


def cut_zero(mean: jax.Array, variance: jax.Array, power: jax.Array, kappa: jax.Array) -> Moments:
    """Return the moments for y = 0 with t = 0 on f <= 0."""
    sd = jnp.sqrt(variance)
    k = mean / sd
    log_mass, hazard, ratio, scaled = truncated_normal(kappa)
    both = kappa >= 0.0
    # Z = Phi(-kappa) phi(k) / phi(kappa) = phi(k) / h(kappa), with phi(k) / phi(kappa) = exp(eta^2 s^2 / 2 - eta mu).
    log_both = -0.5 * k * k - HALF_LOG_TWO_PI - jnp.log(jnp.where(both, hazard, 1.0))
    log_high = -power * (mean - 0.5 * power * variance) + log_mass
    return (
        jnp.where(both, log_both, log_high),
        sd * ratio,
        variance * scaled,
        jnp.where(both, (ratio - k) / sd, hazard / sd - power),
        # 1 / (s^2 V) - 1 / s^2 = (1 - V) / (s^2 V), with 1 - V = h r.
        hazard * ratio / (variance * scaled),
    )


def _where_needed(regime: Callable[..., Moments], mask: jax.Array, result: Moments, *arguments: jax.Array) -> Moments:
    """Return `result` with the moments ``regime(*arguments)`` put in where `mask` is True.

    If `mask` is False everywhere the regime is not evaluated.
    """

    def replaced(operands: tuple[Moments, tuple[jax.Array, ...]]) -> tuple[jax.Array, ...]:
        result, arguments = operands
        new = regime(*arguments)
        return tuple(jnp.where(mask, n, old) for n, old in zip(new, result, strict=True))

    return lax.cond(jnp.any(mask), replaced, lambda operands: operands[0], (result, arguments))


def rectified_poisson(y: jax.Array, mean: jax.Array, variance: jax.Array, power: jax.Array, zero_mass: bool) -> Moments:
    """Return log Z, mean, variance, gradient and precision, of the broadcast shape; JAX can trace this function."""
    y, mean, variance, power = jnp.broadcast_arrays(
        *(jnp.asarray(value, dtype=jnp.float64) for value in (y, mean, variance, power))
    )
    valid = (y >= 0.0) & (variance > 0.0) & (power > 0.0) & jnp.isfinite(y + mean + variance + power)
    zero = valid & (y == 0.0)
    y = jnp.where(valid & ~zero, y, 1.0)
    mean, variance, power = (jnp.where(valid, value, 1.0) for value in (mean, variance, power))

    sd = jnp.sqrt(variance)
    kappa = power * sd - mean / sd
    a = power * y
    root = jnp.sqrt(kappa * kappa + 4.0 * a)
    positive = kappa > 0.0
    # x0 = 2 a / (kappa + root) = (root - kappa) / 2, in the form without a difference.
    mode = jnp.where(positive, 2.0 * a / (jnp.where(positive, kappa, 0.0) + root), 0.5 * (root - kappa))
    size = a + mode * mode
    low = (size < SADDLE_FROM) & valid & ~zero
    recursive, series = low & (kappa >= 0.0), low & (kappa < 0.0)

    # The saddle-point series is evaluated once: at N for N >= 100, at order a + steps for the recursion.
    steps = jnp.where(recursive, jnp.ceil(SADDLE_FROM - a), 0.0)
    order = a + steps
    start_kappa = jnp.where(recursive, kappa, 0.0)
    start_mode = 2.0 * order / (start_kappa + jnp.sqrt(start_kappa * start_kappa + 4.0 * order))
    start_mode = jnp.where(recursive, start_mode, mode)
    start_size = jnp.where(low & ~recursive, 2.0 * SADDLE_FROM, order + start_mode * start_mode)
    sums = saddle_sums(order / start_size, start_size)

    result = saddle(y, mean, variance, power, root, mode, jnp.where(low, start_size, size), sums)
    result = _where_needed(
        backward, recursive, result, y, mean, variance, power, start_kappa, steps, start_mode, start_size, sums
    )
    safe_kappa, safe_y = jnp.where(series, kappa, -1.0), jnp.where(series, y, 1.0)
    result = _where_needed(
        power_series, series, result, safe_y, mean, variance, jnp.where(series, power, 1.0), safe_kappa
    )
    result = _where_needed(flat_zero if zero_mass else cut_zero, zero, result, mean, variance, power, kappa)
    return tuple(jnp.where(valid, value, jnp.nan) for value in result)


@jax_funcify.register(RectifiedPoisson)
def jax_funcify_rectified_poisson(op: RectifiedPoisson, **kwargs: object) -> Callable[..., tuple[jax.Array, ...]]:
    require_float64()
    return partial(rectified_poisson, zero_mass=op.zero_mass)
