"""What one EP fit costs at fixed hyperparameters, in units of one Cholesky factorisation plus inverse.

    python -m docs.benchmarks.ep_speed [--gpy PYTHON] [--sizes 100 500 1000 2000 4000] [--threads 1]

Fits four likelihoods on four Gaussian processes each, to a tolerance of 1e-8, counts factorisations, and compares log Z
with a plain textbook EP, with the same fit under JAX and, where an interpreter that has GPy is given, with GPy. Writes
docs/benchmarks/ep_speed.md. About fifteen minutes with the defaults, of which n = 4000 takes ten.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

# BLAS reads the number of threads when it is loaded: before NumPy.
_THREADS = sys.argv[sys.argv.index("--threads") + 1] if "--threads" in sys.argv[:-1] else "1"
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = _THREADS
if _THREADS == "1":
    os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")

import numpy as np  # noqa: E402
import scipy.linalg  # noqa: E402
import scipy.special  # noqa: E402

from docs.benchmarks._common import GPY, header, markdown_table, run_elsewhere, write_page  # noqa: E402
from pymc_ep.engines.loop import Run, run  # noqa: E402
from pymc_ep.evidence.ep.engine import EP  # noqa: E402
from pymc_ep.evidence.ep.sweep import Problem  # noqa: E402
from pymc_ep.numerics import cholesky  # noqa: E402
from pymc_ep.numerics.gaussian.observation_space import DensePrior  # noqa: E402
from pymc_ep.sites import compile_site  # noqa: E402

TOLERANCE = 1e-8
MAX_SWEEPS = 200
LINKS = {
    "poisson": "Poisson, exp",
    "rectified_poisson": "Poisson, rectified",
    "softplus_poisson": "Poisson, softplus",
    "probit": "probit",
}
PUBLISHED = {"GPML 4.2": (0.36, 2.0, 23.0, 203.0), "GPstuff": (0.80, 3.2, 7.2, 32.0)}
"""Seconds of one fit with the Poisson-exp likelihood at n = 100, 500, 1000, 2000, measured elsewhere on two cores."""


class Kernel(NamedTuple):
    """A prior of the benchmark; `surprise` moves the truth that many prior deviations off at one end."""

    length: float
    rough: bool
    spread: float
    surprise: float


KERNELS = {
    "smooth": Kernel(20.0, False, 0.5, 0.0),
    "strong": Kernel(10.0, False, 1.5, 0.0),
    "rough": Kernel(3.0, True, 1.0, 0.0),
    "misfit": Kernel(20.0, False, 0.5, 4.0),
}
SCALES = {"poisson": (2.0, 1.0), "rectified_poisson": (6.0, 4.0), "softplus_poisson": (4.0, 4.0), "probit": (0.0, 2.0)}
"""Level, and factor on the kernel's spread, of each link."""


class Case(NamedTuple):
    """One problem of the benchmark."""

    link: str
    kernel: str
    n: int
    problem: Problem


class Timing(NamedTuple):
    """What one fit took: seconds and units are medians over the repetitions."""

    case: Case
    found: Run
    factorizations: int
    unit: float
    seconds: float
    units: float

    @property
    def per_sweep(self) -> float:
        """Units of the whole fit for each of its factorisations."""
        return self.units / self.factorizations


def make_case(link: str, name: str, n: int, seed: int = 0) -> Case:
    """Draw a problem: n inputs on (0, 100), a Gaussian process, observations."""
    kernel, (level, scale) = KERNELS[name], SCALES[link]
    rng = np.random.default_rng([seed, n, list(KERNELS).index(name), list(LINKS).index(link)])
    x = np.sort(rng.uniform(0.0, 100.0, n))
    distance = np.abs(x[:, None] - x) / kernel.length
    shape = (1 + np.sqrt(3) * distance) * np.exp(-np.sqrt(3) * distance) if kernel.rough else np.exp(-(distance**2) / 2)
    spread = scale * kernel.spread
    covariance = spread**2 * (shape + 1e-8 * np.eye(n))
    truth = level + np.linalg.cholesky(covariance) @ rng.standard_normal(n)
    truth += spread * kernel.surprise * np.exp(-(((x - 20.0) / 5.0) ** 2))
    y = observe(link, truth, rng)
    return Case(link, name, n, Problem(np.full(n, level), DensePrior(covariance), (y,), ((),)))


def observe(link: str, truth: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Draw observations given the predictor."""
    if link == "probit":
        return (rng.standard_normal(len(truth)) < truth).astype(float)
    rate = {"poisson": np.exp, "rectified_poisson": lambda f: np.maximum(f, 0), "softplus_poisson": softplus}[link](
        truth
    )
    return rng.poisson(rate).astype(float)


def softplus(f: np.ndarray) -> np.ndarray:
    """log(1 + exp(f))."""
    return np.logaddexp(0.0, f)


# Timing


def clock(function: Callable[[], object]) -> float:
    """Return the seconds of one call."""
    began = time.perf_counter()
    function()
    return time.perf_counter() - began


def unit_seconds(matrix: np.ndarray) -> float:
    """Return the seconds of one Cholesky factorisation and inverse by LAPACK, in place, without the copy."""
    work = np.array(matrix.T, order="F")
    began = time.perf_counter()
    factor, _ = scipy.linalg.lapack.dpotrf(work, lower=1, overwrite_a=1, clean=0)
    scipy.linalg.lapack.dpotri(factor, lower=1, overwrite_c=1)
    return time.perf_counter() - began


def whitened(problem: Problem, precision: np.ndarray) -> np.ndarray:
    """Return B = I + s K s, the matrix that every sweep factorises."""
    root = np.sqrt(np.maximum(precision, 0.0))
    return np.eye(len(root)) + root[:, None] * np.asarray(problem.prior.covariance) * root


def time_fit(case: Case, repetitions: int) -> Timing:
    """Fit, with the unit measured before and after each fit so that both see the same load."""
    engine = EP([compile_site(case.link)], tol=TOLERANCE)
    cholesky.counts["factorizations"] = 0
    found = run(engine, case.problem, max_iter=MAX_SWEEPS)
    factorizations = cholesky.counts["factorizations"]
    matrix = whitened(case.problem, found.state.precision)
    units, seconds, ratios = [unit_seconds(matrix)], [], []
    for _ in range(repetitions):
        seconds.append(clock(lambda: run(engine, case.problem, max_iter=MAX_SWEEPS)))
        units.append(unit_seconds(matrix))
        ratios.append(seconds[-1] / np.mean(units[-2:]))
    return Timing(case, found, factorizations, *(float(np.median(v)) for v in (units, seconds, ratios)))


def time_jax(timing: Timing) -> dict[str, float]:
    """Repeat a fit with JAX arrays; the first call compiles."""
    import jax

    jax.config.update("jax_enable_x64", True)
    problem = jax.tree.map(jax.numpy.asarray, timing.case.problem)
    engine = EP([compile_site(timing.case.link, "JAX")], tol=TOLERANCE)
    first = clock(lambda: run(engine, problem, max_iter=MAX_SWEEPS))
    found = run(engine, problem, max_iter=MAX_SWEEPS)
    seconds = min(clock(lambda: run(engine, problem, max_iter=MAX_SWEEPS)) for _ in range(2))
    return {
        "first": first,
        "seconds": seconds,
        "sweeps": len(found.objective),
        "difference": abs(found.objective[-1] - timing.found.objective[-1]),
    }


# An independent EP, for log Z


def log_likelihood(link: str, y: np.ndarray, f: np.ndarray) -> np.ndarray:
    """Return log p(y | f)."""
    if link == "probit":
        return scipy.special.log_ndtr(np.where(y > 0, f, -f))
    rate = {"poisson": np.exp, "rectified_poisson": lambda x: np.maximum(x, 0), "softplus_poisson": softplus}[link](f)
    return scipy.special.xlogy(y, rate) - rate - scipy.special.gammaln(y + 1)


def brute_moments(link: str, y: np.ndarray, mean: np.ndarray, variance: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return log Z, mean and variance by 300 Gauss-Legendre nodes on either side of zero, a kink for one link."""
    node, weight = np.polynomial.legendre.leggauss(300)
    sd = np.sqrt(variance)
    low, high = mean - 12 * sd, mean + 12 * sd
    middle = np.clip(0.0, low, high)
    pieces = [(low, middle), (middle, high)]
    f = np.concatenate([a + (b - a) * (node[:, None] + 1) / 2 for a, b in pieces])
    w = np.concatenate([weight[:, None] * (b - a) / 2 for a, b in pieces])
    with np.errstate(divide="ignore"):
        log_p = log_likelihood(link, y, f) - (f - mean) ** 2 / (2 * variance) - np.log(2 * np.pi * variance) / 2
    top = log_p.max(axis=0)
    p = w * np.exp(log_p - top)
    total = p.sum(axis=0)
    centre = (p * f).sum(axis=0) / total
    return np.log(total) + top, centre, (p * (f - centre) ** 2).sum(axis=0) / total


def plain_log_evidence(case: Case) -> tuple[float, float]:
    """Return log Z and the last change of textbook parallel EP, damped by one half.

    log Z is the integral of prior times scaled sites, each scaled so that it gives its cavity the tilted normaliser.
    """
    mean, (covariance,), (y,), _ = case.problem
    shift, precision = np.zeros(case.n), np.full(case.n, 1e-3)
    change = np.inf
    for _ in range(2000):
        root = np.sqrt(precision)
        b = np.eye(case.n) + root[:, None] * covariance * root
        posterior = covariance - covariance @ (root[:, None] * np.linalg.solve(b, root[:, None] * covariance))
        gain = shift - precision * mean
        variance, centre = np.diag(posterior), mean + posterior @ gain
        cavity = 1 / (1 / variance - precision)
        cavity_mean = cavity * (centre / variance - shift)
        log_z, tilted_mean, tilted_variance = brute_moments(case.link, y, cavity_mean, cavity)
        new_precision = 1 / tilted_variance - 1 / cavity
        new_shift = tilted_mean / tilted_variance - cavity_mean / cavity
        change = max(
            np.abs((new_precision - precision) * variance).max(),
            np.abs((new_shift - shift - (new_precision - precision) * centre) * np.sqrt(variance)).max(),
        )
        if change < 1e-9:
            break
        shift, precision = (shift + new_shift) / 2, np.maximum((precision + new_precision) / 2, 1e-12)
    scale = log_z - 0.5 * (
        (cavity_mean / cavity + shift) ** 2 / (1 / cavity + precision)
        - cavity_mean**2 / cavity
        - np.log1p(cavity * precision)
    )
    joint = 0.5 * gain @ posterior @ gain + shift @ mean - 0.5 * precision @ mean**2 - np.linalg.slogdet(b)[1] / 2
    return float(scale.sum() + joint), float(change)


# The page


def summary_table(timings: list[Timing]) -> str:
    """One row for each n: medians and worst over the cases."""
    rows = []
    for n in sorted({t.case.n for t in timings}):
        here = [t for t in timings if t.case.n == n]
        factorizations, units, per_sweep, seconds = (
            np.array([getattr(t, name) for t in here]) for name in ("factorizations", "units", "per_sweep", "seconds")
        )
        rows.append(
            [
                str(n),
                f"{1e3 * np.median([t.unit for t in here]):.3g}",
                f"{1e3 * np.median(seconds):.3g}",
                f"{np.median(factorizations):.0f} ({factorizations.max()})",
                f"{np.median(per_sweep):.2f} ({per_sweep.max():.2f})",
                f"{np.median(units):.1f} ({units.max():.1f})",
                f"{sum(t.found.status.converged for t in here)} of {len(here)}",
            ]
        )
    head = ["n", "unit, ms", "fit, ms", "factorisations", "units a sweep", "units a fit", "converged"]
    return markdown_table(head, rows)


def case_table(timings: list[Timing]) -> str:
    """One row for each link and kernel, columns by n: factorisations and units of a fit."""
    sizes = sorted({t.case.n for t in timings})
    rows = []
    for link, title in LINKS.items():
        for kernel in KERNELS:
            cells = {t.case.n: t for t in timings if (t.case.link, t.case.kernel) == (link, kernel)}
            rows.append([title, kernel, *(f"{cells[n].factorizations}: {cells[n].units:.1f}" for n in sizes)])
    return markdown_table(["likelihood", "prior", *(f"n = {n}" for n in sizes)], rows)


def plain_table(timings: list[Timing]) -> str:
    """Difference of log Z from the independent EP at the smallest size."""
    rows = []
    for t in timings:
        log_z, change = plain_log_evidence(t.case)
        ours = t.found.objective[-1]
        rows.append(
            [
                LINKS[t.case.link],
                t.case.kernel,
                f"{ours:.8f}",
                f"{log_z:.8f}",
                f"{abs(ours - log_z):.1e}",
                f"{change:.0e}",
            ]
        )
    return markdown_table(["likelihood", "prior", "log Z", "textbook EP", "difference", "its last change"], rows)


def jax_table(timings: list[Timing]) -> str:
    """The same fits under JAX."""
    rows = []
    for t in timings:
        j = time_jax(t)
        rows.append(
            [
                LINKS[t.case.link],
                t.case.kernel,
                str(t.case.n),
                f"{1e3 * t.seconds / len(t.found.objective):.3g}",
                f"{1e3 * j['seconds'] / j['sweeps']:.3g}",
                f"{t.seconds:.3g}",
                f"{j['seconds']:.3g}",
                f"{j['first']:.3g}",
                f"{j['difference']:.0e}",
            ]
        )
    head = [
        "likelihood",
        "prior",
        "n",
        "sweep, ms",
        "sweep JAX, ms",
        "fit, s",
        "fit JAX, s",
        "first JAX, s",
        "log Z apart",
    ]
    return markdown_table(head, rows)


def gpy_table(timings: list[Timing], answers: list[list[float]]) -> str:
    """Time and log Z of both on the probit problems."""
    rows = [
        [
            t.case.kernel,
            str(t.case.n),
            f"{t.seconds:.3g}",
            f"{seconds:.3g}",
            f"{seconds / t.seconds:.0f}",
            f"{t.found.objective[-1]:.6f}",
            f"{log_z:.6f}",
        ]
        for t, (seconds, log_z) in zip(timings, answers)
    ]
    return markdown_table(["prior", "n", "fit, s", "GPy, s", "ratio", "log Z", "log Z of GPy"], rows)


def published_table(timings: list[Timing]) -> str:
    """Published seconds beside the median of the Poisson-exp fits."""
    sizes = (100, 500, 1000, 2000)
    ours = []
    for n in sizes:
        seconds = [t.seconds for t in timings if (t.case.link, t.case.n) == ("poisson", n)]
        ours.append(f"{np.median(seconds):.2g}" if seconds else "-")
    rows = [["here", *ours], *([name, *(f"{v:g}" for v in values)] for name, values in PUBLISHED.items())]
    return markdown_table(["", *(f"n = {n}" for n in sizes)], rows)


def main() -> None:
    """Measure and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[100, 500, 1000, 2000, 4000])
    parser.add_argument("--repetitions", type=int, default=5, help="of fits below n = 1000; larger ones take 1 or 2")
    parser.add_argument("--threads", type=int, default=1, help="of BLAS")
    parser.add_argument("--gpy", metavar="PYTHON", help="interpreter that has GPy")
    parser.add_argument("--gpy-limit", type=float, default=200.0, help="seconds for all fits by GPy")
    parser.add_argument("--no-jax", action="store_true")
    options = parser.parse_args()
    timings, load = [], os.getloadavg()[0]
    for n in options.sizes:
        repetitions = options.repetitions if n < 1000 else 2 if n < 2000 else 1
        for link in LINKS:
            for kernel in KERNELS:
                t = time_fit(make_case(link, kernel, n), repetitions)
                timings.append(t)
                print(
                    n, link, kernel, t.factorizations, f"{t.per_sweep:.2f} {t.units:.1f} units", t.found.status.sentence
                )
    least = min(options.sizes)
    parts = [
        header("One fit at fixed hyperparameters", "docs/benchmarks/ep_speed.py", "jax"),
        INTRODUCTION.format(threads=options.threads, load=f"{load:.1f} to {os.getloadavg()[0]:.1f}"),
        summary_table(timings),
        "Each likelihood and prior, factorisations: units of the whole fit.\n",
        case_table(timings),
        PLAIN.format(n=least),
        plain_table([t for t in timings if t.case.n == least]),
        PUBLISHED_TEXT,
        published_table(timings),
    ]
    probit = [
        t for t in timings if t.case.link == "probit" and t.case.kernel in ("smooth", "strong") and t.case.n <= 2000
    ]
    fitted = ({"covariance": t.case.problem.prior.covariance, "y": t.case.problem.observed[0]} for t in probit)
    answers = run_elsewhere(options.gpy, GPY, fitted, options.gpy_limit) if options.gpy else []
    if answers:
        parts += [GPY_TEXT, gpy_table(probit, answers)]
    if not options.no_jax:
        chosen = [t for t in timings if t.case.kernel == "strong" and t.case.link in ("poisson", "probit")]
        parts += [JAX_TEXT, jax_table(chosen)]
    print(write_page("ep_speed", parts))


INTRODUCTION = """\
A unit is one Cholesky factorisation plus inverse (LAPACK's dpotrf and dpotri, in place). Its matrix is the B that the
last sweep of the same fit factorises. It is timed before and after each fit.

- Inputs are n uniform points on (0, 100).
- Priors: a smooth, a strong and a rough (Matern 3/2) Gaussian process, and one that the data contradict (misfit).
- Tolerance 1e-8, cold start.
- BLAS uses {threads} thread(s). The machine's load average was {load}.
- A sweep is what lies between two factorisations. Everything else that the fit does is shared out among the sweeps.

Medians over the 16 problems, with the worst in parentheses. Targets: 1.3 units a sweep, 10 units a fit (median), 20
(worst).
"""
PLAIN = """## Is it right?

log Z at n = {n} against textbook parallel EP, damped by one half. It is written for this purpose with other formulas:
moments by 600-node quadrature, log Z from the scaled sites.
"""
PUBLISHED_TEXT = """## Against published figures

Seconds of one Poisson-exp fit. The other programs ran elsewhere, on two cores: only the order of magnitude compares.
"""
GPY_TEXT = """## Against GPy

The same probit problems. GPy has its own settings, sequential updates to 1e-6.
"""
JAX_TEXT = """## Under JAX on the CPU

The same engine with JAX arrays, where the sweep is jitted. The first fit includes that compilation.
"""

if __name__ == "__main__":
    main()
