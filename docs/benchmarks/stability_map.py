"""Where three ways to the tilted moments of a rectified-linear Poisson site fail, and what a site costs.

    python -m docs.benchmarks.stability_map

Compares the published forward recursion, adaptive quadrature and the kernel with 100-digit references on a grid of
counts, cavity variances and cavity means, times them, and writes docs/benchmarks/stability_map.md and .png. Takes a
few minutes. Needs numba, jax, mpmath and matplotlib.
"""

import importlib.util
import math
import time
import warnings
from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt
import mpmath
import numba
import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from scipy import integrate, special

from docs.benchmarks._common import header, markdown_table, write_page
from pymc_ep.kernels import rectified_poisson

ROOT = Path(__file__).parents[2]
TARGET = ROOT / "docs" / "benchmarks" / "stability_map"
COUNTS = [0, 1, 2, 5, 10, 20, 50, 100, 1000, 10_000, 100_000, 1_000_000]
VARIANCES = [10.0**k for k in range(-6, 7, 2)]
TIMED_COUNTS = [0, 1, 3, 10, 30, 100, 300, 1000, 10_000, 100_000, 1_000_000]
TARGETS = np.array([1e-10, 1e-10, 1e-8])
"""Largest errors of log Z, mean and variance that the project accepts."""
SITES = 20_000
C_MODE = "CVM" if int(pm.__version__.split(".")[0]) >= 6 else "FAST_RUN"


def cavity_means(y: float, variance: float) -> list[float]:
    """Means that a sweep meets: at the count, off it by factors of two, at zero and below."""
    return [float(y), y / 2 + 1.0, 2.0 * y + 3.0, 0.0, -1.0, -3.0 * math.sqrt(variance)]


@numba.njit
def forward_recursion(y, mean, variance, start):
    """Ko and Seeger (2015): L_r = r / (m + v L_(r-1)); start is L_0 = phi / (s (1 - Phi)) at -m / s. For y > 0."""
    m = mean - variance
    total = 0.0
    previous = start
    current = start
    for r in range(1, y + 1):
        previous, current = current, r / (m + variance * current)
        total += math.log(current) if current > 0.0 else math.nan
    alpha = current - 1.0
    beta = current * (current - previous)
    return total, mean + variance * alpha, variance - variance * variance * beta


def by_recursion(y: int, mean: float, variance: float) -> tuple[float, float, float]:
    sd = math.sqrt(variance)
    kappa = (variance - mean) / sd
    start = math.sqrt(2 / math.pi) / (sd * special.erfcx(kappa / math.sqrt(2)))
    log_above = special.log_ndtr(-kappa) + variance / 2 - mean
    if y > 0:
        total, tilted_mean, tilted_variance = forward_recursion(y, mean, variance, start)
        return log_above - total, tilted_mean, tilted_variance
    log_below = special.log_ndtr(-mean / sd)
    below_slope = -math.sqrt(2 / math.pi) / (sd * special.erfcx(mean / sd / math.sqrt(2)))
    log_z = np.logaddexp(log_above, log_below)
    above, below = math.exp(log_above - log_z), math.exp(log_below - log_z)
    above_slope = start - 1.0
    above_beta = start * (start + (mean - variance) / variance)
    below_beta = below_slope**2 + mean / sd * below_slope / sd
    alpha = above * above_slope + below * below_slope
    beta = alpha**2 + above * (above_beta - above_slope**2) + below * (below_beta - below_slope**2)
    return log_z, mean + variance * alpha, variance - variance**2 * beta


def by_quadrature(y: int, mean: float, variance: float) -> tuple[float, float, float]:
    """Three adaptive quadratures of f^k N(f; mean, variance) t(f), k = 0, 1, 2, as one would write them down."""
    sd = math.sqrt(variance)

    def integrand(f: float, k: int) -> float:
        site = math.exp(special.xlogy(y, max(f, 0.0)) - max(f, 0.0) - special.gammaln(y + 1.0))
        return f**k * site * math.exp(-0.5 * ((f - mean) / sd) ** 2) / (sd * math.sqrt(2 * math.pi))

    lower = -np.inf if y == 0 else 0.0
    zeroth, first, second = (integrate.quad(integrand, lower, np.inf, args=(k,))[0] for k in range(3))
    if zeroth <= 0:
        return math.nan, math.nan, math.nan
    return math.log(zeroth), first / zeroth, second / zeroth - (first / zeroth) ** 2


def compile_kernel(mode: str):
    inputs = [pt.dvector(name) for name in ("y", "mean", "variance", "power")]
    return pytensor.function(inputs, rectified_poisson(*inputs), mode=mode)


def load_reference():
    """The script that writes the reference table also computes a single reference."""
    path = ROOT / "tests" / "reference" / "make_rectified_poisson.py"
    spec = importlib.util.spec_from_file_location("make_rectified_poisson", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    mpmath.mp.dps = module.DIGITS
    return module.reference


def error_map() -> dict[str, np.ndarray]:
    """Errors, in units of the target, with axes count, variance, mean and (log Z, mean, variance)."""
    reference, kernel = load_reference(), compile_kernel(C_MODE)

    def by_kernel(y, mean, variance):
        return [float(value[0]) for value in kernel(*(np.array([v], dtype=float) for v in (y, mean, variance, 1)))[:3]]

    methods = {"forward recursion": by_recursion, "adaptive quadrature": by_quadrature, "kernel": by_kernel}
    shape = (len(COUNTS), len(VARIANCES), len(cavity_means(0, 1.0)), 3)
    errors = {name: np.empty(shape) for name in methods}
    for i, y in enumerate(COUNTS):
        for j, variance in enumerate(VARIANCES):
            for k, mean in enumerate(cavity_means(y, variance)):
                expected = np.array([float(v) for v in reference(y, mean, variance, 1.0, True)[:3]])
                spread = 0.0 if y > 0 else math.sqrt(expected[2])
                scale = np.array([max(1.0, abs(expected[0])), max(abs(expected[1]), spread), expected[2]])
                for name, method in methods.items():
                    try:
                        error = abs(np.array(method(y, mean, variance)) - expected) / scale
                    except (OverflowError, ZeroDivisionError):
                        error = np.full(3, np.inf)
                    errors[name][i, j, k] = np.where(np.isfinite(error), error, np.inf)
    return errors


def median_time(call, repeats: int = 7) -> float:
    call()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return float(np.median(times))


@numba.njit
def _recursion_over(y, mean, variance, start):
    total = 0.0
    for mean_i in mean:
        total += forward_recursion(y, mean_i, variance, start)[1]
    return total


def timings() -> dict[str, list[float]]:
    """Nanoseconds a site by count, for cavities at the count with variance y / 2 + 1/2."""
    modes = {"C": compile_kernel(C_MODE), "Numba": compile_kernel("NUMBA"), "JAX": compile_kernel("JAX")}
    result: dict[str, list[float]] = {name: [] for name in (*modes, "forward recursion", "3 adaptive quadratures")}
    draw = np.random.default_rng(1)
    for y in TIMED_COUNTS:
        variance = y / 2 + 0.5
        mean = y + 0.1 * draw.standard_normal(SITES)
        arguments = [np.full(SITES, float(y)), mean, np.full(SITES, variance), np.ones(SITES)]
        for name, function in modes.items():
            # JAX returns before it has computed; taking the first element waits
            seconds = median_time(lambda f=function, a=arguments: float(f(*a)[0][0]))
            result[name].append(1e9 * seconds / SITES)
        few = mean[: max(3, min(SITES, 2_000_000 // max(y, 1)))]
        seconds = median_time(lambda y=y, m=few, v=variance: _recursion_over(y, m, v, 1.0))
        result["forward recursion"].append(1e9 * seconds / len(few) if y > 0 else math.nan)
        seconds = median_time(lambda y=y, v=variance: by_quadrature(y, float(y), v), repeats=5)
        result["3 adaptive quadratures"].append(1e9 * seconds)
    return result


def draw_picture(errors: dict[str, np.ndarray], times: dict[str, list[float]]) -> None:
    figure, axes = plt.subplots(2, 2, figsize=(11, 8), layout="constrained")
    for axis, (name, error) in zip(axes.flat, errors.items(), strict=False):
        digits = -np.log10(np.clip(error[..., :].max(axis=(2, 3)), 1e-16, 1.0))
        image = axis.imshow(digits.T, origin="lower", aspect="auto", vmin=0, vmax=16, cmap="viridis")
        axis.set_xticks(range(len(COUNTS)), [f"{y:g}" for y in COUNTS], rotation=45)
        axis.set_yticks(range(len(VARIANCES)), [f"{v:g}" for v in VARIANCES])
        axis.set(xlabel="count", ylabel="cavity variance", title=f"{name}: correct digits, worst cavity mean")
    figure.colorbar(image, ax=axes.flat[:3], shrink=0.6)
    axis = axes.flat[3]
    for name, values in times.items():
        axis.plot(TIMED_COUNTS, values, marker="o", label=name)
    axis.set_xscale("symlog", linthresh=1)
    axis.set(yscale="log", xlabel="count", ylabel="ns a site", title="time")
    axis.legend(loc=(0.02, 0.48), fontsize="small")
    figure.savefig(TARGET.with_suffix(".png"), dpi=110)


INTRODUCTION = """\
![Digits by count and cavity variance, and time by count](stability_map.png)

There are {cases} cavities: counts {counts}; variances 1e-6 to 1e6; means y, y/2 + 1, 2y + 3, 0, -1 and -3 s. The
reference has 100 digits. A cavity fails when one of its errors is larger than these:

- log Z: 1e-10 of max(1, abs(log Z)).
- Mean: 1e-10 relative; of a zero count, relative to the larger of its size and the standard deviation.
- Variance: 1e-8 relative.

It is useless when any error is larger than 1e-2.
"""
TIMING = """\
Nanoseconds a site by count. The cavity is at the count, with variance (y + 1) / 2. Figures are medians of 7 on two
shared cores: differences below a factor of two mean nothing.
"""
NOTES = """\
- The forward recursion starts with the scaled complementary error function; with 1 - Phi it fails more often. Its
  time is without that start, and its zero count, a closed form, is not timed.
- Quadrature is adaptive Gauss-Kronrod on (0, inf), once for each moment, in interpreted Python.
"""


def report(errors: dict[str, np.ndarray], times: dict[str, list[float]]) -> list[str]:
    """Return the parts of the page."""
    introduction = INTRODUCTION.format(
        cases=next(iter(errors.values()))[..., 0].size,
        counts=", ".join(f"{y:g}" for y in COUNTS),
    )
    summary, by_count = [], []
    for name, error in errors.items():
        fails = (error > TARGETS).any(axis=-1)
        useless = (error > 1e-2).any(axis=-1).mean()
        worst = [f"{w:.0e}" if np.isfinite(w) else "nan" for w in error.max(axis=(0, 1, 2))]
        summary.append([name, f"{fails.mean():.0%}", f"{useless:.0%}", *worst])
        by_count.append([name, *(f"{share:.0%}" for share in fails.mean(axis=(1, 2)))])
    cost = [[name, *("-" if math.isnan(v) else f"{v:,.0f}" for v in values)] for name, values in times.items()]
    return [
        header(
            "Tilted moments of the rectified-linear Poisson site", "docs/benchmarks/stability_map.py", "numba", "jax"
        ),
        introduction,
        markdown_table(["method", "fails", "useless", "worst log Z", "worst mean", "worst variance"], summary),
        "Share of failing cavities by count:\n",
        markdown_table(["method", *(f"{y:g}" for y in COUNTS)], by_count),
        TIMING,
        markdown_table(["method", *(f"{y:g}" for y in TIMED_COUNTS)], cost),
        NOTES,
    ]


def main() -> None:
    matplotlib.use("Agg")
    warnings.filterwarnings("ignore", category=integrate.IntegrationWarning)
    np.seterr(all="ignore")
    errors, times = error_map(), timings()
    draw_picture(errors, times)
    print(write_page("stability_map", report(errors, times)))


if __name__ == "__main__":
    main()
