"""Write rectified_poisson.csv: tilted moments of the rectified-linear Poisson site to 17 digits.

    python tests/reference/make_rectified_poisson.py

Needs mpmath; takes some minutes. For y > 0 the integrals are trapezoidal sums in log f, which converge
geometrically for integrands analytic in a strip; 100 digits leave more than 50 after every subtraction here. They are
checked against the parabolic cylinder function and against a finer rule. For y = 0 they are closed forms in erfc.
Columns `<output>_scale` hold what an error is measured against where that is not the value itself.
"""

import csv
import itertools
import random
from collections.abc import Iterator
from pathlib import Path

import mpmath as mp

DIGITS = 100
POWERS = [0.01, 0.1, 0.25, 0.37, 0.5, 0.75, 0.99]
COLUMNS = ("y", "mean", "variance", "power", "zero_mass")
OUTPUTS = ("log_z", "tilted_mean", "tilted_variance", "gradient", "precision", "d_log_z_d_variance")
SCALES = ("log_z_scale", "tilted_mean_scale", "d_log_z_d_variance_scale")


def power_moments(a: mp.mpf, kappa: mp.mpf, finer: int = 1) -> tuple[mp.mpf, mp.mpf, mp.mpf]:
    """Return log J, mean and variance of the density x^a exp(-x^2/2 - kappa x) / J on x > 0.

    The trapezoidal rule in t = log x has an error of about exp(-2 pi w / h), with w < pi / 4 the half width of the
    strip of decay, and of exp(-2 pi^2 sigma^2 / h^2) for a narrow peak of width sigma = N^(-1/2).
    """
    order = a + 1
    mode = 2 * order / (kappa + mp.sqrt(kappa**2 + 4 * order))
    size = order + mode**2
    drop = DIGITS * mp.log(10)
    step = mp.pi / mp.sqrt(2 * size * drop) if size > 400 else mp.mpf(1) / 60
    step = min(step, mp.mpf(1) / 60) / finer

    def exponent(t: mp.mpf) -> mp.mpf:
        x = mp.expm1(t)
        return order * t - mode**2 * (x + x**2 / 2) - kappa * mode * x

    mass = first = second = mp.mpf(0)
    for sign in (1, -1):
        for j in itertools.count(0 if sign > 0 else 1):
            t = sign * j * step
            value = exponent(t)
            if value < -drop:
                break
            weight, x = mp.exp(value), mp.expm1(t)
            mass += weight
            first += weight * x
            second += weight * x * x
    first, second = first / mass, second / mass
    log_j = mp.log(mass * step) + order * mp.log(mode) - mode**2 / 2 - kappa * mode
    return log_j, mode * (1 + first), mode**2 * (second - first**2)


def truncated(k: mp.mpf) -> tuple[mp.mpf, mp.mpf, mp.mpf, mp.mpf]:
    """log mass, hazard, mean and variance of N(-k, 1) on x > 0."""
    with mp.workdps(3 * DIGITS):
        mass = mp.erfc(k / mp.sqrt(2)) / 2
        hazard = mp.npdf(k) / mass
        mean = hazard - k
        return mp.log(mass), hazard, mean, 1 - hazard * mean


def reference(y, mean, variance, power, zero_mass):
    y, mean, variance, power = mp.mpf(y), mp.mpf(mean), mp.mpf(variance), mp.mpf(power)
    sd = mp.sqrt(variance)
    kappa = power * sd - mean / sd
    if y > 0:
        a = power * y
        log_j, x_mean, x_variance = power_moments(a, kappa)
        log_z = log_j - mean**2 / (2 * variance) + a * mp.log(sd) - mp.log(2 * mp.pi) / 2 - power * mp.loggamma(y + 1)
        tilted_mean, tilted_variance = sd * x_mean, variance * x_variance
    else:
        log_above, _, mean_above, variance_above = truncated(kappa)
        log_above += power**2 * variance / 2 - power * mean
        if zero_mass:
            log_below, _, mean_below, variance_below = truncated(mean / sd)
            log_z = max(log_above, log_below) + mp.log1p(mp.exp(-abs(log_above - log_below)))
            above = 1 / (1 + mp.exp(log_below - log_above))
            below = 1 / (1 + mp.exp(log_above - log_below))
            tilted_mean = sd * (above * mean_above - below * mean_below)
            within = above * variance_above + below * variance_below
            tilted_variance = variance * (within + above * below * (mean_above + mean_below) ** 2)
            # differences of the moments would lose what is below 1e-100 of them
            gradient = -power * above
            precision = power * sd * above * below * (mean_above + mean_below) / tilted_variance
            return log_z, tilted_mean, tilted_variance, gradient, precision
        log_z, tilted_mean, tilted_variance = log_above, sd * mean_above, variance * variance_above
    gradient = (tilted_mean - mean) / variance
    return log_z, tilted_mean, tilted_variance, gradient, 1 / tilted_variance - 1 / variance


def check_reference() -> None:
    """The trapezoidal sums against a finer rule and, by an independent route, the parabolic cylinder function."""
    for a, kappa in ((mp.mpf("0.01"), mp.mpf(5)), (mp.mpf(1), mp.mpf(-9)), (mp.mpf("37.5"), mp.mpf(2)),
                     (mp.mpf(99), mp.mpf(300)), (mp.mpf(1000), mp.mpf(-20))):  # fmt: skip
        log_j, mean, variance = power_moments(a, kappa)
        finer = power_moments(a, kappa, finer=2)
        for coarse, fine in zip((log_j, mean, variance), finer, strict=True):
            assert abs(coarse - fine) < mp.mpf(10) ** -60 * max(1, abs(fine)), (a, kappa)

        def closed(b, kappa=kappa):
            return mp.gamma(b + 1) * mp.exp(kappa**2 / 4) * mp.pcfd(-b - 1, kappa)

        assert abs(mp.exp(log_j) / closed(a) - 1) < mp.mpf(10) ** -50, (a, kappa)
        assert abs(mean * closed(a) / closed(a + 1) - 1) < mp.mpf(10) ** -50, (a, kappa)


def at_kappa(variance, power, kappa):
    """The cavity mean that gives this kappa."""
    return power * variance - kappa * variance**0.5


Case = tuple[float, float, float, float, int]


def box(draw: random.Random) -> Iterator[Case]:
    """Draw from the whole range of arguments."""
    variances = [10.0**k for k in range(-8, 7)]
    means = [-1e3, -100.0, -10.0, -1.0, 0.0, 0.3, 1.0, 5.0, 30.0, 100.0, 1e3, 1e4, 1e5, 1e6]
    for y in (1, 2, 5, 10, 50, 100, 500, 1e3, 1e4, 1e5, 1e6):
        for _ in range(11):
            mean = draw.choice([*means, y / 2, y - y**0.5, y, y + y**0.5, 2 * y])
            yield y, mean, draw.choice(variances), 1.0, 1
        for _ in range(4):
            yield y, draw.choice([*means, y]), draw.choice(variances), draw.choice(POWERS), 1


def crossovers(draw: random.Random) -> Iterator[Case]:
    """Stay near where an algorithm may change: in N, the squared distance of the mode from 0, and in kappa."""
    for size in (60.0, 90.0, 99.9, 100.1, 110.0, 199.0, 201.0, 990.0, 1010.0, 9900.0, 10100.0):
        for share in (0.02, 0.3, 0.7, 0.97):
            power = draw.choice([1.0, 1.0, *POWERS])
            y = max(1.0, round(share * size / power))
            if power * y < size:
                mode = (size - power * y) ** 0.5
                variance = draw.choice([1e-6, 1e-2, 0.3, 5.0, 100.0, 1e4])
                yield y, at_kappa(variance, power, power * y / mode - mode), variance, power, 1
    for kappa in (0.0, 5.0, -5.0, 10.0, -10.0, 38.0, 300.0, 1e-3, -1e-3):
        for y in (1, 3, 10, 60, 99):
            power = draw.choice([1.0, *POWERS])
            variance = draw.choice([1e-8, 1e-4, 0.1, 1.0, 10.0, 1e3])
            yield y, at_kappa(variance, power, kappa), variance, power, 1


def coincidences(draw: random.Random) -> Iterator[Case]:
    """Let cavity mean, mode and count agree, so that the gradient nearly vanishes."""
    for y in (1, 7, 100, 1e6):
        for variance in (1e-8, 1e-4, 1.0, 1e6):
            yield y, y, variance, draw.choice([1.0, 0.5]), 1


def zero_counts(draw: random.Random) -> Iterator[Case]:
    """Both variants of the site of a zero count."""
    for zero_mass in (1, 0):
        for mean in (-1e3, -30.0, -3.0, -0.5, 0.0, 0.2, 1.0, 6.0, 50.0, 1e3, 1e5, 1e6):
            for variance in draw.sample([1e-8, 1e-4, 1e-2, 0.3, 1.0, 10.0, 1e2, 1e4, 1e6], 5):
                yield 0, mean, variance, draw.choice([1.0, 1.0, 0.5, 0.01]), zero_mass
    for y in (3, 200):  # the option changes nothing where y > 0
        yield y, 1.5, 2.0, 1.0, 0


def cases() -> list[Case]:
    """All rows, inside the range for which the kernel is meant."""
    draw = random.Random(20240611)
    rows = [*box(draw), *crossovers(draw), *coincidences(draw), *zero_counts(draw)]
    unique = dict.fromkeys((float(y), float(m), float(v), float(p), z) for y, m, v, p, z in rows)
    return [row for row in unique if -1e3 <= row[1] <= 1e6]


def main() -> None:
    mp.mp.dps = DIGITS
    check_reference()
    path = Path(__file__).with_name("rectified_poisson.csv")
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([*COLUMNS, *OUTPUTS, *SCALES])
        for case in cases():
            values = reference(*case)
            variance = mp.mpf(case[2])
            beta = values[4] / (1 + variance * values[4])
            slope = (values[3] ** 2 - beta) / 2
            if case[0] > 0:
                # the same by differentiating the Gaussian under the integral
                square = values[2] + (values[1] - case[1]) ** 2
                assert abs(slope - (square / variance - 1) / (2 * variance)) < mp.mpf(10) ** -50 * (slope + beta)
            values = (*values, slope)
            deviation = mp.sqrt(values[2])
            scales = (
                max(1, abs(values[0])),
                abs(values[1]) if case[0] > 0 else max(abs(values[1]), deviation),
                # the sum of the sizes of its two terms, which may cancel
                (values[3] ** 2 + beta) / 2,
            )
            writer.writerow([*map(repr, case), *(repr(float(v)) for v in (*values, *scales))])


if __name__ == "__main__":
    main()
