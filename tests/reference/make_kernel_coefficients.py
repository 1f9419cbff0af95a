"""Generate the coefficients of the kernels, exactly or with 60 digits, and write them as Python modules.

    python tests/reference/make_kernel_coefficients.py

Needs mpmath. Takes about ten seconds. Every body of a kernel (Python and Numba, C, JAX) reads the one module.
"""

from collections import defaultdict
from fractions import Fraction
from pathlib import Path

import mpmath as mp

KERNELS = Path(__file__).parents[2] / "pymc_ep" / "kernels"
TERMS = 8
SCALE = 4
DEGREE = 31

Polynomial = dict[tuple[int, int], Fraction]  # {(power of p, power of z): coefficient}


# --- the saddle expansion of rectified_poisson -------------------------------------------------------------


def exponential_series(order: int) -> list[Polynomial]:
    """Coefficients E_n of t^n in exp(sum_j c_j t^j), with c_j = p (-1)^(j+1) z^(j+2) / (j+2).

    Differentiating the exponential gives n E_n = sum_j j c_j E_(n-j).
    """
    series: list[Polynomial] = [{(0, 0): Fraction(1)}]
    for n in range(1, order + 1):
        total: Polynomial = defaultdict(Fraction)
        for j in range(1, n + 1):
            c = Fraction((-1) ** (j + 1) * j, (j + 2) * n)
            for (i, k), value in series[n - j].items():
                total[i + 1, k + j + 2] += c * value
        series.append(dict(total))
    return series


def gaussian_moment(polynomial: Polynomial, extra: int) -> list[Fraction]:
    """Return E[z^extra polynomial] for z ~ N(0, 1), as the coefficients of ascending powers of p."""
    result: dict[int, Fraction] = defaultdict(Fraction)
    for (i, k), value in polynomial.items():
        power = k + extra
        if power % 2 == 0:
            result[i] += value * int(mp.fac2(power - 1))
    return [result[i] for i in range(max(result, default=0) + 1)]


def multiply(a: list[Fraction], b: list[Fraction]) -> list[Fraction]:
    out = [Fraction(0)] * (len(a) + len(b) - 1)
    for i, u in enumerate(a):
        for j, v in enumerate(b):
            out[i + j] += u * v
    return out


def add(a: list[Fraction], b: list[Fraction], factor: Fraction = Fraction(1)) -> list[Fraction]:
    size = max(len(a), len(b))
    return [(a[i] if i < len(a) else 0) + factor * (b[i] if i < len(b) else 0) for i in range(size)]


def divide(numerator: list[list[Fraction]], denominator: list[list[Fraction]]) -> list[list[Fraction]]:
    """Quotient of two power series in e = 1 / N whose coefficients are polynomials in p; denominator[0] = 1."""
    quotient: list[list[Fraction]] = []
    for n, term in enumerate(numerator):
        value = term
        for k in range(1, n + 1):
            value = add(value, multiply(denominator[k], quotient[n - k]), Fraction(-1))
        quotient.append(value)
    return quotient


def logarithm(series: list[list[Fraction]]) -> list[list[Fraction]]:
    """Logarithm of a power series that starts with 1."""
    log: list[list[Fraction]] = [[Fraction(0)]]
    for n in range(1, len(series)):
        value = series[n]
        for k in range(1, n):
            value = add(value, multiply(log[k], series[n - k]), Fraction(-k, n))
        log.append(value)
    return log


def saddle_polynomials() -> tuple[list[list[Fraction]], list[list[Fraction]], list[list[Fraction]]]:
    """Polynomials A_k, M_k, V_k in p, k = 1..TERMS, of log mass, mean and variance about the mode."""
    series = exponential_series(2 * TERMS + 2)
    mass = [gaussian_moment(series[2 * k], 0) for k in range(TERMS + 2)]
    first = [[Fraction(0)]] + [gaussian_moment(series[2 * k - 1], 1) for k in range(1, TERMS + 2)]
    second = [gaussian_moment(series[2 * k], 2) for k in range(TERMS + 2)]
    mean = divide(first, mass)
    square = divide(second, mass)
    variance = []
    for k in range(1, TERMS + 1):
        value = square[k]
        # <x^2> carries one more power of e than <z^2>, hence the order k + 1 of the square of the mean.
        for i in range(1, k + 1):
            value = add(value, multiply(mean[i], mean[k + 1 - i]), Fraction(-1))
        variance.append(value)
    return logarithm(mass[: TERMS + 1])[1:], mean[1 : TERMS + 1], variance


def check_saddle(log: list, mean: list, variance: list) -> None:
    """Compare with terms worked out by hand, and with Stirling's series at p = 1."""
    assert log[0] == [0, Fraction(-3, 4), Fraction(5, 6)]
    assert mean[1][:4] == [0, 3, -8, 5]
    assert variance[0][:3] == [0, -3, 4] and not any(variance[0][3:])
    stirling = [Fraction(1, 12), 0, Fraction(-1, 360), 0, Fraction(1, 1260)]
    assert [sum(polynomial) for polynomial in log[:5]] == stirling


def flat(polynomials: list[list[Fraction]]) -> list[float]:
    """Descending powers, 2 k of them for order k; the constant term is 0 in all and left out."""
    out: list[float] = []
    for k, polynomial in enumerate(polynomials, start=1):
        assert polynomial[0] == 0 and not any(polynomial[2 * k + 1 :])
        padded = polynomial[1:] + [Fraction(0)] * (2 * k + 1 - len(polynomial))
        out.extend(float(value) for value in reversed(padded[: 2 * k]))
    return out


# --- the Chebyshev expansions of truncated_normal ----------------------------------------------------------


def truncated_mean(k: mp.mpf) -> mp.mpf:
    return mp.sqrt(2 / mp.pi) / (mp.exp(k * k / 2) * mp.erfc(k / mp.sqrt(2))) - k


def chebyshev_to_powers(function) -> list[mp.mpf]:
    """Interpolate at 96 Chebyshev points, truncate at DEGREE, return descending powers of t."""
    points = 96
    angles = [mp.pi * (j + mp.mpf(1) / 2) / points for j in range(points)]
    values = [function(mp.cos(angle)) for angle in angles]
    powers = [mp.mpf(0)] * (DEGREE + 1)
    previous, current = [mp.mpf(1)], [mp.mpf(0), mp.mpf(1)]
    for n in range(DEGREE + 1):
        basis = previous
        coefficient = mp.fsum(v * mp.cos(n * angle) for v, angle in zip(values, angles, strict=True))
        coefficient *= (2 if n else 1) / mp.mpf(points)
        for i, b in enumerate(basis):
            powers[i] += coefficient * b
        following = [mp.mpf(0)] + [2 * c for c in current]
        for i, b in enumerate(previous):
            following[i] -= b
        previous, current = current, following
    return powers[::-1]


def truncated_coefficients() -> tuple[list[float], list[float]]:
    """Expansions of (1 + k) r(k) and (1 + k)^2 V(k) in t = (k - SCALE) / (k + SCALE), for k >= 0."""

    def k_of(t: mp.mpf) -> mp.mpf:
        return SCALE * (1 + t) / (1 - t)

    def scaled_mean(t: mp.mpf) -> mp.mpf:
        k = k_of(t)
        return (1 + k) * truncated_mean(k)

    def scaled_variance(t: mp.mpf) -> mp.mpf:
        k = k_of(t)
        r = truncated_mean(k)
        return (1 + k) ** 2 * (1 - (k + r) * r)

    mean, variance = chebyshev_to_powers(scaled_mean), chebyshev_to_powers(scaled_variance)
    return [float(c) for c in mean], [float(c) for c in variance]


# --- writing -----------------------------------------------------------------------------------------------


def write(name: str, heading: str, tables: dict[str, list[float] | int]) -> None:
    lines = [f'"""{heading}', "", "Generated by tests/reference/make_kernel_coefficients.py.", '"""', ""]
    for key, value in tables.items():
        if isinstance(value, int):
            lines += [f"{key} = {value}", ""]
        else:
            lines += [f"{key} = (", *(f"    {number!r}," for number in value), ")", ""]
    (KERNELS / name / "coefficients.py").write_text("\n".join(lines[:-1]) + "\n")


def main() -> None:
    mp.mp.dps = 60
    log, mean, variance = saddle_polynomials()
    check_saddle(log, mean, variance)
    write(
        "rectified_poisson",
        "Polynomials in p of the saddle-point series: for order k = 1, 2, ... the coefficients of p^(2 k) down to p.",
        {
            "SADDLE_TERMS": TERMS,
            "SADDLE_LOG_MASS": flat(log),
            "SADDLE_MEAN": flat(mean),
            "SADDLE_VARIANCE": flat(variance),
        },
    )
    scaled_mean, scaled_variance = truncated_coefficients()
    write(
        "truncated_normal",
        "(1 + k) r and (1 + k)^2 V of body.py as polynomials in (k - SCALE) / (k + SCALE), highest power first.",
        {"SCALE": SCALE, "SCALED_MEAN": scaled_mean, "SCALED_VARIANCE": scaled_variance},
    )


if __name__ == "__main__":
    main()
