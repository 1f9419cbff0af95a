"""What the log evidence with its gradient costs, against one EP fit, and how exact the gradient is.

    python -m docs.benchmarks.evidence_gradient [--sizes 100 500 1000 2000] [--threads 1]

Times `Evidence.at` and `Evidence.gradient` from a cold and from a warm start on Poisson counts, and compares the
gradient with finite differences for every likelihood and hyperparameter. Writes docs/benchmarks/ep_speed.md.
Three minutes with the defaults.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable

# BLAS reads the number of threads when it is loaded: before NumPy.
_THREADS = sys.argv[sys.argv.index("--threads") + 1] if "--threads" in sys.argv[:-1] else "1"
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = _THREADS

import numpy as np  # noqa: E402
import pymc as pm  # noqa: E402
import pytensor.tensor as pt  # noqa: E402

import pymc_ep as pmep  # noqa: E402
from docs.benchmarks._common import header, markdown_table, write_page  # noqa: E402
from pymc_ep.engines.loop import run  # noqa: E402
from pymc_ep.evidence.ep.engine import EP  # noqa: E402
from pymc_ep.evidence.ep.evidence import Evidence  # noqa: E402
from pymc_ep.forms import compiled_form  # noqa: E402

TARGET, TOLERANCE = 2.0, 1e-8
STEP = 2e-3
"""Half-width of the finite differences, on PyMC's unconstrained scale."""
FLOOR = 1e-3
"""Gradients smaller than this are compared absolutely, in this unit."""

LIKELIHOODS: dict[str, tuple[Callable, Callable]] = {
    "rectified_poisson": (
        lambda rng, f: rng.poisson(np.maximum(f, 0)),
        lambda f, y: pmep.RectifiedPoisson("y", f, observed=y),
    ),
    "softplus_poisson": (
        lambda rng, f: rng.poisson(np.logaddexp(0, f)),
        lambda f, y: pmep.SoftplusPoisson("y", f, observed=y),
    ),
    "poisson": (lambda rng, f: rng.poisson(np.exp(f)), lambda f, y: pm.Poisson("y", pt.exp(f), observed=y)),
    "probit": (
        lambda rng, f: (rng.standard_normal(len(f)) < f).astype(int),
        lambda f, y: pm.Bernoulli("y", p=pm.math.invprobit(f), observed=y),
    ),
    "logit": (
        lambda rng, f: (rng.logistic(size=len(f)) < f).astype(int),
        lambda f, y: pm.Bernoulli("y", logit_p=f, observed=y),
    ),
    "normal": (
        lambda rng, f: rng.normal(f, 0.5),
        lambda f, y: pm.Normal("y", f, pm.HalfNormal("sigma", 1.0, initval=0.4), observed=y),
    ),
    "laplace": (
        lambda rng, f: rng.laplace(f, 0.5),
        lambda f, y: pm.Laplace("y", f, pm.HalfNormal("b", 1.0, initval=0.4), observed=y),
    ),
    "student_t": (
        lambda rng, f: f + 0.3 * rng.standard_t(4, len(f)),
        lambda f, y: pm.StudentT(
            "y",
            nu=pm.Gamma("nu", 2.0, 0.2, initval=5.0),
            mu=f,
            sigma=pm.HalfNormal("sigma", 1.0, initval=0.3),
            observed=y,
        ),
    ),
}
"""Draw observations given a predictor; add the likelihood to a model."""


def make_evidence(name: str, n: int, tol: float) -> Evidence:
    """Build a Gaussian-process model with this likelihood, level and kernel as hyperparameters."""
    rng = np.random.default_rng(n)
    x = np.sort(rng.uniform(0.0, 10.0, n))
    draw, likelihood = LIKELIHOODS[name]
    y = draw(rng, 1.5 + np.sin(x) + 0.3 * np.cos(3 * x))
    with pm.Model() as model:
        ell = pm.InverseGamma("ell", mu=2.0, sigma=1.0)
        amp = pm.HalfNormal("amp", 2.0)
        level = pm.Normal("level", 1.0, 1.0)
        gp = pm.gp.Latent(mean_func=pm.gp.mean.Constant(level), cov_func=amp**2 * pm.gp.cov.ExpQuad(1, ell))
        likelihood(gp.prior("f", X=x[:, None]), y)
    form = compiled_form(model, ["f"])
    return Evidence(form, EP(form.sites, tol=tol), 500)


# Cost


def clock(function: Callable[[], object]) -> float:
    """Return the seconds of one call."""
    began = time.perf_counter()
    function()
    return time.perf_counter() - began


def time_gradient(n: int, repetitions: int) -> tuple[np.ndarray, tuple[int, int]]:
    """Return medians of seconds (fit, prior, gradient, cold, warm) and the cold and warm numbers of sweeps.

    The warm start comes from hyperparameters a little off, as an optimiser's last steps do.
    """
    evidence = make_evidence("poisson", n, TOLERANCE)
    theta = evidence.form.start
    moved = theta + 0.02
    at = evidence.at(theta)
    evidence.gradient(at)
    warm_at = evidence.at(moved, at.sites)
    timed = (
        lambda: run(evidence.engine, at.problem, max_iter=500),
        lambda: evidence.form.prior(theta),
        lambda: evidence.gradient(at),
        lambda: evidence.gradient(evidence.at(theta)),
        lambda: evidence.gradient(evidence.at(moved, at.sites)),
    )
    seconds = [[clock(function) for function in timed] for _ in range(repetitions)]
    return np.median(seconds, axis=0), (len(at.run.objective), len(warm_at.run.objective))


def cost_table(sizes: list[int], repetitions: int) -> str:
    """One row for each n."""
    rows = []
    for n in sizes:
        (fit, prior, gradient, cold, warm), (cold_sweeps, warm_sweeps) = time_gradient(
            n, repetitions if n < 1000 else 3 if n < 2000 else 2
        )
        rows.append(
            [
                str(n),
                *(f"{1e3 * v:.3g}" for v in (fit, prior, gradient, cold, warm)),
                f"{cold / fit:.2f}",
                f"{warm / fit:.2f}",
                f"{cold_sweeps}, {warm_sweeps}",
            ]
        )
        print(*rows[-1])
    head = ["n", "EP fit, ms", "K, ms", "gradient, ms", "cold, ms", "warm, ms", "cold / fit", "warm / fit", "sweeps"]
    return markdown_table(head, rows)


# Accuracy


def difference(evidence: Evidence, theta: np.ndarray, i: int, sites: tuple) -> float:
    """Return the derivative of log evidence plus log prior by central differences of fourth order, twice refined."""

    def value(step: float) -> float:
        moved = theta.copy()
        moved[i] += step
        return evidence.at(moved, sites).value

    def central(h: float) -> float:
        return (8 * (value(h) - value(-h)) - (value(2 * h) - value(-2 * h))) / (12 * h)

    return (16 * central(STEP) - central(2 * STEP)) / 15


def accuracy_table() -> str:
    """One row for each likelihood and hyperparameter."""
    rows = []
    for name in LIKELIHOODS:
        evidence = make_evidence(name, 40, 1e-11)
        theta = evidence.form.start
        at = evidence.at(theta)
        gradient = evidence.gradient(at)
        for i, hyper in enumerate(evidence.form.form.hyper_names):
            found = difference(evidence, theta, i, at.sites)
            error = abs(gradient[i] - found) / max(abs(found), FLOOR)
            rows.append([name, hyper, f"{gradient[i]:.10g}", f"{found:.10g}", f"{error:.1e}"])
            print(*rows[-1])
    return markdown_table(["site", "hyperparameter", "gradient", "finite difference", "relative error"], rows)


def main() -> None:
    """Measure and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[100, 500, 1000, 2000])
    parser.add_argument("--repetitions", type=int, default=9, help="below n = 1000; larger ones take 2 or 3")
    parser.add_argument("--threads", type=int, default=1, help="of BLAS")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    costs = cost_table(options.sizes, options.repetitions)
    parts = [
        header("Log evidence and its gradient", "docs/benchmarks/evidence_gradient.py"),
        COST.format(threads=options.threads, load=f"{load:.1f} to {os.getloadavg()[0]:.1f}", target=TARGET),
        costs,
        ACCURACY.format(step=STEP, floor=FLOOR),
        accuracy_table(),
    ]
    print(write_page("evidence_gradient", parts))


COST = """A Gaussian process with Poisson counts (exp link). Length scale, amplitude and level are hyperparameters.

- EP fit: the yardstick, at tolerance 1e-8, with the prior's moments at hand.
- K: the evaluation of the prior's moments.
- Cold: K, fit and gradient, from no sites.
- Warm: the same from the sites at hyperparameters that differ by 0.02 on the unconstrained scale.
- Times are milliseconds, medians of interleaved repetitions. BLAS uses {threads} thread(s), load average {load}.

Target: cold at most {target:g} fits.
"""
ACCURACY = """## Against finite differences

n = 40, EP to 1e-11. The differences are central, with steps {step:g} and twice that on the unconstrained scale, and
Richardson's extrapolation. Errors are relative to the derivative, or to {floor:g} where that is larger. Target: 1e-6.
"""

if __name__ == "__main__":
    main()
