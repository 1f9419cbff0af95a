"""Write sites.csv: tilted moments of the sites to 50 digits, by adaptive quadrature in mpmath.

Run as ``python tests/reference/make_sites.py``; it takes some minutes. Names of sites as arguments renew their rows
and keep the others'. The rectified Poisson site has its own table.

The integral is independent of the package in every step: the log density is written out again, the mode found by
ternary search (or, for several modes, a wide fixed grid), and each panel halved until two Gauss-Legendre rules agree.
"""

import csv
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
from mpmath import mp, mpf

DIGITS = 50
WORKING_DIGITS = 80
TOLERANCE = mpf(10) ** -(DIGITS + 8)
DROP = 160
NODES = 40
FIELDS = ("site", "parameters", "y", "mean", "variance", "power")
MOMENTS = ("log_z", "tilted_mean", "tilted_variance", "gradient", "precision")

mp.dps = WORKING_DIGITS


def log_factorial(y: mpf) -> mpf:
    return mp.loggamma(y + 1)


def softplus(x: mpf) -> mpf:
    return mp.log1p(mp.exp(x)) if x < 200 else x + mp.log1p(mp.exp(-x))


def poisson(f: mpf, y: mpf) -> mpf:
    return y * f - mp.exp(f) - log_factorial(y)


def softplus_poisson(f: mpf, y: mpf) -> mpf:
    rate = softplus(f)
    return (y * mp.log(rate) if y else 0) - rate - log_factorial(y)


def logit(f: mpf, y: mpf) -> mpf:
    return -softplus(f if y == 0 else -f)


def probit(f: mpf, y: mpf) -> mpf:
    x = -f if y == 0 else f
    return mp.log(mp.erfc(-x / mp.sqrt(2)) / 2)


def normal(f: mpf, y: mpf, sigma: mpf) -> mpf:
    return -(((y - f) / sigma) ** 2) / 2 - mp.log(2 * mp.pi * sigma**2) / 2


def laplace(f: mpf, y: mpf, b: mpf) -> mpf:
    return -abs(y - f) / b - mp.log(2 * b)


def asymmetric_laplace(f: mpf, y: mpf, b: mpf, kappa: mpf) -> mpf:
    rate = kappa if y > f else 1 / kappa
    return mp.log(b) - mp.log(kappa + 1 / kappa) - b * rate * abs(y - f)


def student_t(f: mpf, y: mpf, nu: mpf, sigma: mpf) -> mpf:
    constant = mp.loggamma((nu + 1) / 2) - mp.loggamma(nu / 2) - mp.log(nu * mp.pi * sigma**2) / 2
    return constant - (nu + 1) / 2 * mp.log1p(((y - f) / sigma) ** 2 / nu)


def log_binomial(n: mpf, y: mpf) -> mpf:
    return mp.loggamma(n + 1) - mp.loggamma(y + 1) - mp.loggamma(n - y + 1)


def negative_binomial(f: mpf, y: mpf, alpha: mpf) -> mpf:
    constant = mp.loggamma(y + alpha) - mp.loggamma(alpha) - mp.loggamma(y + 1) + alpha * mp.log(alpha)
    return constant + y * f - (y + alpha) * (mp.log(alpha) + softplus(f - mp.log(alpha)))


def binomial_logit(f: mpf, y: mpf, n: mpf) -> mpf:
    return log_binomial(n, y) - y * softplus(-f) - (n - y) * softplus(f)


def binomial_probit(f: mpf, y: mpf, n: mpf) -> mpf:
    return log_binomial(n, y) + y * probit(f, mpf(1)) + (n - y) * probit(f, mpf(0))


def binomial_cloglog(f: mpf, y: mpf, n: mpf) -> mpf:
    rate = mp.exp(f)
    return log_binomial(n, y) + (y * mp.log(-mp.expm1(-rate)) if y else 0) - (n - y) * rate


def cloglog(f: mpf, y: mpf) -> mpf:
    return binomial_cloglog(f, y, mpf(1))


def gamma(f: mpf, y: mpf, alpha: mpf) -> mpf:
    return alpha * (mp.log(alpha) - f) + (alpha - 1) * mp.log(y) - mp.loggamma(alpha) - alpha * y * mp.exp(-f)


def exponential(f: mpf, y: mpf) -> mpf:
    return -f - y * mp.exp(-f)


def beta(f: mpf, y: mpf, nu: mpf) -> mpf:
    a, b = nu / (1 + mp.exp(-f)), nu / (1 + mp.exp(f))
    constant = mp.loggamma(nu) - mp.loggamma(a) - mp.loggamma(b)
    return constant + (a - 1) * mp.log(y) + (b - 1) * mp.log1p(-y)


def ordered_logit(f: mpf, y: mpf, lower: mpf, upper: mpf) -> mpf:
    return (
        mp.log(mp.expm1(upper - lower)) - softplus(f - lower) - softplus(upper - f)
        if mp.isfinite(upper - lower)
        else -softplus(f - upper if mp.isinf(lower) else lower - f)
    )


def ordered_probit(f: mpf, y: mpf, lower: mpf, upper: mpf) -> mpf:
    # On the side where the tails keep their digits.
    a, b = (lower - f, upper - f) if lower + upper <= 2 * f else (f - upper, f - lower)
    return mp.log(mp.erfc(-b / mp.sqrt(2)) / 2 - mp.erfc(-a / mp.sqrt(2)) / 2)


def mode(log_density: Callable[[mpf], mpf], mean: mpf, deviation: mpf) -> mpf:
    """Maximum of a concave function by ternary search, in a bracket that doubles around the mean."""
    reach = deviation
    while max(log_density(mean - reach), log_density(mean + reach)) > log_density(mean):
        reach *= 2
    low, high = mean - 2 * reach, mean + 2 * reach
    while high - low > mpf(10) ** -25 * (1 + abs(low)):
        third = (high - low) / 3
        if log_density(low + third) < log_density(high - third):
            low += third
        else:
            high -= third
    return (low + high) / 2


def edge(log_density: Callable[[mpf], mpf], top: mpf, direction: int) -> mpf:
    """Where a concave function has dropped by DROP from its maximum at `top`, to the nearest doubling by 1.1."""
    reach, level = mpf(10) ** -12, log_density(top) - DROP
    while log_density(top + direction * reach) > level:
        reach *= mpf("1.1")
    return top + direction * reach


def breaks(name: str, log_density: Callable, y: mpf, mean: mpf, deviation: mpf, parameters: tuple) -> list[mpf]:
    if name == "beta":
        # Smooth, but with bends that the cavity may be wide against.
        low, high = min(mean, mp.log(y / (1 - y))) - 20 * deviation, max(mean, mp.log(y / (1 - y))) + 20 * deviation
        centres = [mean + deviation * k for k in range(-20, 21)]
        centres += [mp.log(y / (1 - y)) + side * mpf(2) ** k for k in range(-6, 14) for side in (-1, 1)]
        return sorted({low, high} | {point for point in centres if low < point < high})
    if name != "student_t":
        top = mode(log_density, mean, deviation)
        points = {edge(log_density, top, -1), top, edge(log_density, top, 1)}
        return sorted(points | ({y} if name.endswith("laplace") and min(points) < y < max(points) else set()))
    sigma = parameters[1]
    grid = {mean + deviation * k for k in range(-20, 21)}
    grid |= {y + side * sigma * mpf(2) ** k for k in range(-3, 32) for side in (-1, 1)} | {y}
    low, high = min(y, mean) - 20 * deviation, max(y, mean) + 20 * deviation
    return sorted(point for point in grid if low <= point <= high)


RULE = [(mpf(x), mpf(w)) for x, w in zip(*np.polynomial.legendre.leggauss(NODES), strict=True)]


def refine_rule() -> list[tuple[mpf, mpf]]:
    """Polish the double precision Gauss-Legendre nodes by Newton's method and compute their weights."""
    rule = []
    for x, _ in RULE:
        for _ in range(6):
            previous, value = mpf(1), x
            for k in range(2, NODES + 1):
                previous, value = value, ((2 * k - 1) * x * value - (k - 1) * previous) / k
            slope = NODES * (x * value - previous) / (x * x - 1)
            x -= value / slope
        rule.append((x, 2 / ((1 - x * x) * slope * slope)))
    return rule


RULE = refine_rule()


def panel(integrand: Callable[[mpf], mpf], centre: mpf, low: mpf, high: mpf) -> tuple[mpf, mpf, mpf]:
    """Zeroth to second moment about `centre` over one panel."""
    half, middle = (high - low) / 2, (high + low) / 2
    sums = [mpf(0)] * 3
    for x, w in RULE:
        f = middle + half * x
        value, step = w * half * integrand(f), f - centre
        sums = [sums[0] + value, sums[1] + value * step, sums[2] + value * step * step]
    return tuple(sums)


def adaptive(
    integrand: Callable[[mpf], mpf], centre: mpf, sizes: list, low: mpf, high: mpf, whole: tuple, depth: int = 0
) -> tuple[mpf, mpf, mpf]:
    """Halve a panel until its moments, `whole`, agree with those of its halves to TOLERANCE of `sizes`."""
    middle = (low + high) / 2
    parts = [panel(integrand, centre, low, middle), panel(integrand, centre, middle, high)]
    both = tuple(map(sum, zip(*parts, strict=True)))
    error = max(abs(a - b) / size for a, b, size in zip(whole, both, sizes, strict=True))
    if error < TOLERANCE:
        return both
    if depth > 60:
        raise ArithmeticError("the quadrature does not converge")
    ends = [(low, middle), (middle, high)]
    halves = [
        adaptive(integrand, centre, sizes, a, b, part, depth + 1) for (a, b), part in zip(ends, parts, strict=True)
    ]
    return tuple(map(sum, zip(*halves, strict=True)))


def moments(name: str, y: mpf, mean: mpf, variance: mpf, power: mpf, parameters: tuple) -> list[mpf]:
    log_t = globals()[name]
    deviation = mp.sqrt(variance)

    def log_density(f: mpf) -> mpf:
        return power * log_t(f, y, *parameters) - (f - mean) ** 2 / (2 * variance)

    points = breaks(name, log_density, y, mean, deviation, parameters)
    top = max(points, key=log_density)
    log_top = log_density(top)
    pieces = list(pairwise(points))

    def integrand(f: mpf) -> mpf:
        return mp.exp(log_density(f) - log_top)

    first = [panel(integrand, top, *piece) for piece in pieces]
    total = [sum(column) for column in zip(*first, strict=True)]
    sizes = [total[0], mp.sqrt(total[0] * total[2]), total[2]]
    sums = [
        sum(column)
        for column in zip(
            *(adaptive(integrand, top, sizes, *piece, whole) for piece, whole in zip(pieces, first, strict=True)),
            strict=True,
        )
    ]
    shift = sums[1] / sums[0]
    tilted_variance = sums[2] / sums[0] - shift**2
    tilted_mean = top + shift
    log_z = log_top + mp.log(sums[0]) - mp.log(2 * mp.pi * variance) / 2
    return [log_z, tilted_mean, tilted_variance, (tilted_mean - mean) / variance, 1 / tilted_variance - 1 / variance]


def cases() -> Iterator[tuple[str, tuple[tuple[str, float], ...], float, float, float, float]]:
    """A fixed random choice from a grid of hard cases for each site."""
    rng = np.random.default_rng(20240229)
    variances = (1e-4, 1e-2, 0.3, 1.0, 10.0, 100.0, 1e4, 1e6)
    powers = (0.1, 0.5, 1.0, 1.0)
    counts = (0, 1, 5, 50, 1000, 10**6)

    def choose(values):
        return float(values[rng.integers(len(values))])

    for count in range(14 * len(counts)):
        y = float(counts[count % len(counts)])
        yield "poisson", (), y, choose((-1000, -30, -3, 0, 1, 4, 7, 14, 30)), choose(variances), choose(powers)
        mean = choose((-1000, -30, -3, 0, 1, 4, 30, 1000, y))
        yield "softplus_poisson", (), y, mean, choose(variances), choose(powers)
    for name in ("logit", "probit"):
        for count in range(70):
            mean = choose((-1000, -100, -30, -5, -1, 0, 0.5, 3, 10, 40, 300, 1000))
            yield name, (), float(count % 2), mean, choose(variances), choose(powers)
    for _ in range(70):
        y, b = choose((0, -3, 1.5)), choose((1e-3, 0.1, 1, 30))
        mean = y + choose((-1000, -30, -1, -0.01, 0, 0.3, 5, 1000))
        yield "laplace", (("b", b),), y, mean, choose(variances), choose(powers)
        sigma = choose((1e-3, 0.1, 1, 30))
        yield "normal", (("sigma", sigma),), y, mean, choose(variances), choose(powers)
        parameters = (("nu", choose((1, 2.5, 4, 10, 30))), ("sigma", choose((0.1, 1, 7))))
        yield "student_t", parameters, y, mean, choose(variances), choose(powers)
    for count in range(48):
        means, rest = (-300, -30, -5, -1, 0, 0.5, 3, 10, 40, 300), (choose(variances), choose(powers))
        y = float(counts[count % len(counts)])
        near = float(np.log(max(y, 1)))
        yield "negative_binomial", (("alpha", choose((0.05, 1, 7, 1e4))),), y, near + choose(means), *rest
        n = choose((1, 7, 300, 10**5))
        trials = (("n", n),)
        y = float(np.floor(n * choose((0, 0.01, 0.5, 0.9, 1))))
        mean = choose(means)
        yield "binomial_logit", trials, y, mean, *rest
        yield "binomial_probit", trials, y, mean / 10, *rest
        # Beyond 10 the terms lose more digits than are carried.
        yield "binomial_cloglog", trials, y, min(mean / 4, 10.0), *rest
        yield "cloglog", (), float(count % 2), mean, *rest
        y = choose((1e-3, 0.2, 3, 1e4))
        near = float(np.log(y))
        yield "exponential", (), choose((0, y)), near + mean / 2, *rest
        yield "gamma", (("alpha", choose((0.1, 1, 30, 1e4))),), y, near + mean / 2, *rest
        yield "beta", (("nu", choose((0.3, 4, 50, 1000))),), choose((1e-6, 0.1, 0.5, 0.97)), choose(means[2:8]), *rest
        low, width = choose((-4, -0.5, 2)), choose((1e-3, 0.5, 3, 20, np.inf))
        ends = (-np.inf, low) if count % 3 == 0 else (low, low + width)
        between = (("lower", ends[0]), ("upper", ends[1]))
        yield "ordered_logit", between, float(count % 3), mean, *rest
        yield "ordered_probit", between, float(count % 3), mean / 3, *rest
    for _ in range(60):
        y, parameters = choose((0, -3, 1.5)), (("b", choose((0.03, 1, 10, 1e3))), ("kappa", choose((0.2, 0.9, 1, 3))))
        mean = y + choose((-1000, -30, -1, -0.01, 0, 0.3, 5, 1000))
        yield "asymmetric_laplace", parameters, y, mean, choose(variances), choose(powers)
    yield from far_from_the_data()


def far_from_the_data() -> Iterator[tuple[str, tuple[tuple[str, float], ...], float, float, float, float]]:
    """Narrow cavities many deviations from large data, where terms of a log density are far above their sum."""
    for alpha, y, mean, variance in (
        (0.029, 932189.0, -0.149, 6e-5),
        (0.029, 932189.0, -0.149, 1.0),
        (1e-4, 1e6, -10.0, 1e-4),
        (1e-6, 1e6, 0.0, 1e-4),
        (0.5, 1e9, 3.0, 1e-4),
        (1e8, 1e6, 30.0, 1e-4),
        (1e8, 3.0, -30.0, 1e-4),
    ):
        yield "negative_binomial", (("alpha", alpha),), y, mean, variance, 1.0
    for n, y, mean in ((1e6, 1.0, -0.1), (1e6, 999999.0, -30.0), (1e6, 1.0, 20.0), (1e8, 99999999.0, -30.0)):
        yield "binomial_logit", (("n", n),), y, mean, 1e-4, 1.0
    for alpha, y, mean in ((0.029, 1e6, -10.0), (1e7, 1e-6, 20.0), (1e8, 1.0, 0.5)):
        yield "gamma", (("alpha", alpha),), y, mean, 1e-4, 1.0
    # Student-t densities that are nearly Gaussian: the peak is between cavity and observation, and narrow against both.
    for nu, sigma, mean, variance, power in (
        (1e3, 1.0, 50.0, 1.0, 1.0),
        (1e3, 0.1, -4.0, 1e-3, 0.5),
        (3e3, 1.0, 30.0, 0.1, 1.0),
        (3e3, 1.0, 300.0, 10.0, 1.0),
        (1e4, 1.0, 50.0, 0.01, 1.0),
        (1e4, 7.0, -350.0, 49.0, 0.5),
        (1e4, 1.0, 3e3, 100.0, 1.0),
        (1e6, 1.0, 1e3, 0.1, 1.0),
        (1e6, 0.1, -30.0, 0.01, 0.5),
    ):
        yield "student_t", (("nu", nu), ("sigma", sigma)), 0.0, mean, variance, power
    for name in ("poisson", "softplus_poisson"):
        yield name, (), 1e6, -0.149, 6e-5, 1.0


def main() -> None:
    path = Path(__file__).with_name("sites.csv")
    renewed = set(sys.argv[1:]) or {name for name, *_ in cases()}
    rows = sorted({row for row in cases() if row[0] in renewed})
    with path.open() as file:
        kept = [list(row.values()) for row in csv.DictReader(file) if row["site"] not in renewed]
    computed = []
    for name, parameters, *numbers in rows:
        values = moments(name, *map(mpf, numbers), tuple(mpf(value) for _, value in parameters))
        text = ";".join(f"{key}={value!r}" for key, value in parameters)
        computed.append([name, text, *map(repr, numbers), *(mp.nstr(value, 25) for value in values)])
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([*FIELDS, *MOMENTS])
        writer.writerows(sorted([*kept, *computed], key=lambda row: row[0]))


if __name__ == "__main__":
    main()
