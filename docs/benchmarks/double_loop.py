"""The double loop: its bound against an independent optimiser, its time, and its variances.

    python -m docs.benchmarks.double_loop [--quick] [--parts bound time variances]

Total variation with Gaussian noise on a 1-D signal and a small picture. Needs the folder ``faces32`` under
``PYMC_EP_DATA``. Parts that are done are kept in ``docs/benchmarks/rows``. Writes docs/benchmarks/double_loop.md.
"""

import argparse
import time
import warnings
from typing import Any, NamedTuple

import numpy as np
import pymc as pm
import scipy.linalg
import scipy.optimize
import scipy.sparse

import pymc_ep as pmep
from docs.benchmarks._common import header, markdown_table, write_page
from docs.benchmarks._images import BLUR, Store, blur, load, shortfall

NAME = "docs/benchmarks/double_loop.py"
SD = 0.1
"""Of the noise; pictures go from 0 to 1."""
TAU = {"1-D": 8.0, "32 x 32": 4.0}
SECONDS, BOUND_ERROR = 10.0, 1e-8
ESTIMATORS: dict[str, dict[str, Any]] = {
    "exact": {"variance": "exact"},
    "30 samples": {"variance": "perturb-and-map", "n_samples": 30},
    "300 samples": {"variance": "perturb-and-map", "n_samples": 300},
    "Lanczos, 50": {"variance": "lanczos", "lanczos_steps": 50},
    "Lanczos, 200": {"variance": "lanczos", "lanczos_steps": 200},
}


class Problem(NamedTuple):
    """y = X u + N(0, SD^2), a Laplace potential of scale 1 / tau on every entry of B u."""

    truth: np.ndarray
    y: np.ndarray
    tau: float
    operator: Any
    blurring: Any
    rank: int


def signal() -> Problem:
    """Return a piecewise constant signal of 64 values, smoothed by three weights."""
    n = 64
    truth = np.repeat([0.2, 0.9, 0.5, 0.1, 0.7], [14, 10, 16, 12, 12])
    differences = scipy.sparse.diags_array([-np.ones(n - 1), np.ones(n - 1)], offsets=[0, 1], shape=(n - 1, n))
    weights = [np.full(n - 1, 0.2), np.full(n, 0.6), np.full(n - 1, 0.2)]
    smooth = scipy.sparse.diags_array(weights, offsets=[-1, 0, 1], shape=(n, n)).tocsr()
    y = smooth @ truth + np.random.default_rng(0).normal(0, SD, n)
    return Problem(truth, y, TAU["1-D"], differences.tocsr(), smooth, n - 1)


def picture() -> Problem:
    """Return the astronaut's face, blurred."""
    image = load("face_astronaut") / 255
    y = blur(image) + np.random.default_rng(0).normal(0, SD, image.shape)
    gradient = pmep.operators.Gradient2D(image.shape, boundary="periodic")
    blurring = pmep.operators.Convolution2D(image.shape, BLUR)
    return Problem(image, y, TAU["32 x 32"], gradient, blurring, image.size - 1)


def problem(name: str) -> Problem:
    """Return a problem by its name."""
    return signal() if name == "1-D" else picture()


def build(case: Problem, learn: bool = False) -> pm.Model:
    """Build the model, tau known or learned."""
    with pm.Model() as model:
        tau = pm.HalfNormal("tau", 50) if learn else case.tau
        u = pmep.SparseField("u", operator=case.operator, potential=pm.Laplace.dist(0, 1 / tau), shape=case.truth.shape)
        pm.Normal("y", pmep.apply_operator(case.blurring, u), SD, observed=case.y)
    return model


def moments(found: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return means and standard deviations of the pixels."""
    return np.asarray(found["posterior_mean"]["u"]), np.asarray(found["posterior_sd"]["u"])


# The bound, by an optimiser that knows nothing of the double loop


def dense_bound(case: Problem) -> dict[str, Any]:
    """Maximise the bound over log gamma by L-BFGS, with dense matrices that are built here by differences.

    With t(s) = exp(-s^2 / 2 gamma - tau^2 gamma / 2) maximised over gamma, the evidence is at least
    -M/2 log 2 pi sd^2 + N/2 log 2 pi - 1/2 log|A| - ||y - X u||^2 / 2 sd^2 - 1/2 sum (s^2 / gamma + tau^2 gamma)
    plus the potential's constants, J log 1/2 + rank(B) log tau, where A = X'X / sd^2 + B' diag(1 / gamma) B.
    """
    design, operator = dense_matrices(case)
    y = case.y.ravel()
    (m, n), j = design.shape, len(operator)
    data, shift = design.T @ design / SD**2, design.T @ y / SD**2
    constant = -0.5 * m * np.log(2 * np.pi * SD**2) + 0.5 * n * np.log(2 * np.pi)
    constant += j * np.log(0.5) + case.rank * np.log(case.tau)

    def negative(log_gamma: np.ndarray) -> tuple[float, np.ndarray]:
        gamma = np.exp(log_gamma)
        factor = scipy.linalg.cholesky(data + operator.T @ (operator / gamma[:, None]), lower=True)
        u = scipy.linalg.cho_solve((factor, True), shift)
        s = operator @ u
        variance = np.sum(scipy.linalg.solve_triangular(factor, operator.T, lower=True) ** 2, axis=0)
        residual = y - design @ u
        bound = constant - np.log(factor.diagonal()).sum() - residual @ residual / (2 * SD**2)
        bound -= 0.5 * np.sum(s**2 / gamma + case.tau**2 * gamma)
        return -bound, -0.5 * ((variance + s**2) / gamma - case.tau**2 * gamma)

    began = time.perf_counter()
    found = scipy.optimize.minimize(
        negative,
        np.full(j, -2 * np.log(case.tau)),
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": 5000, "maxfun": 5000, "ftol": 0, "gtol": 1e-7, "maxcor": 30},
    )
    slope = float(np.abs(found.jac).max())
    return {
        "bound": -float(found.fun),
        "slope": slope,
        "evaluations": found.nfev,
        "seconds": time.perf_counter() - began,
    }


def dense_matrices(case: Problem) -> tuple[np.ndarray, np.ndarray]:
    """Return X and B; for pictures by shifting unit pictures, apart from the package's operators."""
    if case.truth.ndim == 1:
        return case.blurring.toarray(), case.operator.toarray()
    shape = case.truth.shape
    units = np.eye(case.truth.size).reshape(-1, *shape)
    design = np.stack([blur(one).ravel() for one in units], axis=1)
    shifted = [np.roll(units, -1, axis=axis) - units for axis in (1, 2)]
    return design, np.concatenate([one.reshape(len(units), -1).T for one in shifted])


def measure_bound(name: str) -> dict[str, Any]:
    """Compare the double loop's bound with the optimiser's, and look at its trace."""
    case = problem(name)
    reference = dense_bound(case)
    began = time.perf_counter()
    found = pmep.fit("dsb", model=build(case), variance="exact", outer=500, tol=1e-9, draws=0, progressbar=False)
    seconds = time.perf_counter() - began
    trace = np.asarray(found["fit"]["objective"])
    return {
        "reference": reference,
        "bound": float(found["fit"]["log_evidence"]),
        "trace": trace.tolist(),
        "worst_step": float(np.diff(trace).min()),
        "seconds": seconds,
        "status": str(found["fit"].attrs["status"]),
    }


# Time and variances


def measure_time(name: str) -> dict[str, Any]:
    """Time 15 outer loops with exact variances, tau known and learned; EP beside."""
    case = problem(name)
    out: dict[str, Any] = {}
    for what, method, learn in (
        ("double loop, tau known", "dsb", False),
        ("double loop, tau learned", "dsb", True),
        ("EP, tau known", "ep", False),
        ("EP, tau learned", "ep", True),
    ):
        options = {"variance": "exact", "outer": 15} if method == "dsb" else {}
        with warnings.catch_warnings():
            # Fifteen loops may not be enough to converge, and the status says so.
            warnings.simplefilter("ignore", pmep.ConvergenceWarning)
            began = time.perf_counter()
            found = pmep.fit(method, model=build(case, learn), draws=0, progressbar=False, **options)
        fit = found["fit"]
        out[what] = {
            "seconds": time.perf_counter() - began,
            "run_seconds": float(fit.attrs["run_time"]),
            "tau": float(fit["hyper_mode_tau"]) if learn else case.tau,
            "log_evidence": float(fit["log_evidence"]),
            "status": str(fit.attrs["status"]),
        }
    return out


def measure_variances(name: str) -> dict[str, Any]:
    """Fit with every estimator of variances, and compare means and standard deviations with those of the exact ones."""
    model = build(problem(name))
    # What the first fit compiles and loads is no estimator's cost.
    pmep.fit("dsb", model=model, variance="exact", draws=0, progressbar=False)
    out: dict[str, Any] = {}
    exact: tuple[np.ndarray, np.ndarray] | None = None
    for what, options in ESTIMATORS.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", pmep.ConvergenceWarning)
            found = pmep.fit("dsb", model=model, outer=15, draws=0, random_seed=1, progressbar=False, **options)
        mean, sd = moments(found)
        exact = (mean, sd) if exact is None else exact
        ratio = (sd / exact[1]) ** 2
        out[what] = {
            "bias": float(ratio.mean() - 1),
            "spread": float(ratio.std()),
            "worst": float(np.abs(ratio - 1).max()),
            "mean_error": float(np.sqrt(np.mean(((mean - exact[0]) / exact[1]) ** 2))),
            "seconds": float(found["fit"].attrs["run_time"]),
            "status": str(found["fit"].attrs["status"]),
        }
    return out


# The page


def bound_part(results: dict[str, Any]) -> list[str]:
    rows, lines = [], []
    for name in ("1-D", "32 x 32"):
        r = results.get(f"bound/{name}")
        if r is None:
            continue
        apart = abs(r["bound"] - r["reference"]["bound"])
        rows.append(
            [
                name,
                f"{r['bound']:.9f}",
                f"{r['reference']['bound']:.9f} ({r['reference']['slope']:.0e})",
                f"{r['bound'] - r['reference']['bound']:+.1e}",
                str(len(r["trace"])),
                f"{r['worst_step']:.1e}",
                f"{r['seconds']:.3g} / {r['reference']['seconds']:.3g}",
            ]
        )
        relative = apart / abs(r["reference"]["bound"])
        verdict = "met" if relative <= BOUND_ERROR else "missed"
        lines.append(f"- {name}: relative difference {relative:.1e} against {BOUND_ERROR:.0e}, {verdict}.")
        falls = "never falls" if r["worst_step"] >= -1e-9 * abs(r["bound"]) else f"falls by {-r['worst_step']:.1e}"
        lines.append(f"- {name}: the bound {falls} from one outer loop to the next.")
    head = ["problem", "double loop", "L-BFGS (greatest slope)", "difference", "outer loops", "least step"]
    table = markdown_table([*head, "seconds, both"], rows)
    return [BOUND, table, "\n".join(lines) + "\n"] if rows else []


def time_part(r: dict[str, Any]) -> list[str]:
    rows = [
        [what, f"{one['seconds']:.3g}", f"{one['run_seconds']:.3g}", f"{one['tau']:.4g}", f"{one['log_evidence']:.3f}"]
        for what, one in r.items()
    ]
    verdict = shortfall(
        "Total variation with exact variances, compilation included",
        r["double loop, tau known"]["seconds"],
        SECONDS,
        1,
        " s",
    )
    head = ["fit", "seconds", "without compilation", "tau", "log evidence or bound"]
    return [TIME, markdown_table(head, rows), verdict + "\n"]


def variances_part(r: dict[str, Any]) -> list[str]:
    rows = [
        [
            what,
            f"{one['bias']:+.3f}",
            f"{one['spread']:.3f}",
            f"{one['worst']:.3f}",
            f"{one['mean_error']:.3f}",
            f"{one['seconds']:.3g}",
        ]
        for what, one in r.items()
    ]
    head = ["variances", "bias", "spread", "worst", "error of means, sd", "seconds"]
    return [VARIANCES, markdown_table(head, rows)]


def page(store: Store) -> list[str]:
    """Return the parts of the page."""
    results = store.rows
    parts = [header("The double loop", NAME), INTRODUCTION, *bound_part(results)]
    for what, write in (("time", time_part), ("variances", variances_part)):
        if f"{what}/32 x 32" in results:
            parts += write(results[f"{what}/32 x 32"])
    return parts


INTRODUCTION = f"""\
Total variation with Gaussian noise of sd {SD}, known: a Laplace potential of scale 1 / tau on every difference,
periodic for pictures.

- 1-D: 64 values, piecewise constant, smoothed by (0.2, 0.6, 0.2), tau {TAU["1-D"]:g}.
- Pictures: the face of an astronaut from 0 to 1, blurred by a Gaussian of sd 0.3 pixels, periodic, tau
  {TAU["32 x 32"]:g}, near what evidence finds.
- Seed 0, one thread of BLAS.
"""
BOUND = """## The bound

The double loop has exact variances. L-BFGS finds the maximum of the same bound over all widths at once, with dense
matrices of its own. In parentheses is the greatest slope where L-BFGS stopped. The least step is the smallest change
of the bound from one outer loop to the next.
"""
TIME = """## Time at 32 x 32

The double loop has up to fifteen outer loops with exact variances, fewer where it converges. EP stops at its own
tolerance. Seconds are with compilation, and without.
"""
VARIANCES = """## Variances by sampling

Up to fifteen outer loops at 32 x 32, with one estimator throughout. The ratio is that of the pixels' variances to
those with exact ones: its mean less one (bias), its standard deviation (spread), and its worst distance from one. The
error of means is the root mean square difference, in standard deviations. Lanczos' method finds variances that are
too small (Schneider and Willsky 2001), at any number of steps short of the number of unknowns.
"""
PARTS = ("bound", "time", "variances")


def main() -> None:
    """Measure and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="*", default=list(PARTS), choices=PARTS)
    parser.add_argument("--quick", action="store_true", help="the 1-D bound alone; nothing is written")
    options = parser.parse_args()
    if options.quick:
        print(measure_bound("1-D"))
        return
    store = Store("double_loop")
    if "bound" in options.parts:
        for name in ("1-D", "32 x 32"):
            store.get(f"bound/{name}", lambda n=name: measure_bound(n))
    if "time" in options.parts:
        store.get("time/32 x 32", lambda: measure_time("32 x 32"))
    if "variances" in options.parts:
        store.get("variances/32 x 32", lambda: measure_variances("32 x 32"))
    print(write_page("double_loop", page(store)))


if __name__ == "__main__":
    main()
