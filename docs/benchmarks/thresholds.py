"""What the constants of the search for hyperparameters do, and what the quadrature rules beside the general one gain.

    python -m docs.benchmarks thresholds

Writes docs/benchmarks/thresholds.md. Needs no data beyond the package's own.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any
from unittest import mock

import numpy as np
import pymc as pm

import pymc_ep as pmep
from docs.benchmarks._common import header, markdown_table, write_page
from pymc_ep.contracts import CompiledSiteForm
from pymc_ep.evidence import lbfgs_search
from pymc_ep.evidence.ep.evidence import Evidence, evidence_of
from pymc_ep.evidence.mode import maximise
from pymc_ep.exceptions import NumericalError
from pymc_ep.forms import compiled_form
from pymc_ep.models.latent_gaussian.methods.ep import OPTIONS
from pymc_ep.numerics.quadrature.gauss_hermite import Smooth
from pymc_ep.numerics.quadrature.peak_search import surveyed
from pymc_ep.sites import Site, compile_site, compiled, get_site

CONSTANTS = (
    "_ROUND",
    "_EVALUATIONS",
    "_REACH",
    "_RETRIES",
    "_UPHILL_DISTANCES",
    "_STEEP_SLOPE",
    "_FARTHEST",
    "_NEGLIGIBLE_GAIN",
    "FAR",
    "WIDEST",
)
STARTS = (0.0, 4.0, -4.0)
"""Distances of the starts from the initial point, along a random direction of length one a coordinate."""
LOST = 0.01
"""Nats below the best of all searches from a model's starts, at which a search counts as lost."""
CAVITIES = {"narrow": 0.01, "as wide as the prior": 1.0, "wide": 25.0}
SITES = 2_000
OTHERS = {
    "Gumbel": (pm.Gumbel, {"beta": 0.7}),
    "SkewNormal": (pm.SkewNormal, {"alpha": 4.0, "sigma": 0.7}),
    "Logistic": (pm.Logistic, {"s": 0.7}),
    "Moyal": (pm.Moyal, {"sigma": 0.7}),
}
"""Densities of which nothing is known, and their parameters."""


def main() -> None:
    """Measure both parts, and write the page."""
    search = _search_rows()
    rules = [row for name, site in _sites() for row in _rule_rows(name, site)]
    first = (
        f"{len(_models())} models, three starts each: the initial point, and unconstrained hyperparameters\n"
        "moved by 4 in a random direction and against it. Each constant is halved and doubled in turn (a\n"
        "tuple all of it). Fits: those of all searches, relative to the constants as they are. Lost: searches\n"
        "that end more than 0.01 nats below the best of any.\n"
    )
    second = (
        f"Tilted moments of {SITES} sites whose cavity means and observations are drawn at random, one thread,\n"
        "medians of 5 calls. The error is the largest of log Z, against the trapezoidal rule on 40,001 points\n"
        "for 100 of the sites. The general rule is that of Gauss-Legendre panels. The special one is Gauss-\n"
        "Hermite's, about the cavity or about the peak, where it is seen to be exact; the general rule does\n"
        "the rest.\n"
    )
    third = "A density of which nothing is known is looked at on a grid first, for its peaks and their widths.\n"
    write_page(
        "thresholds",
        [
            header("Thresholds of search and quadrature", "docs/benchmarks/thresholds.py"),
            "## The search\n\n" + first,
            markdown_table(("constant", "value", "halved: fits", "lost", "doubled: fits", "lost"), search),
            "## Quadrature\n\n" + second + third,
            markdown_table(("site", "cavity", "both rules, ms", "error", "general rule, ms", "error"), rules),
        ],
    )


def _search_rows() -> list[tuple[str, ...]]:
    models = [compiled_form(model) for model in _models()]
    best = [-np.inf] * len(models)

    def run(**constants: Any) -> tuple[int, list[list[float]]]:
        with ExitStack() as stack:
            for name, value in constants.items():
                stack.enter_context(mock.patch.object(lbfgs_search, name, value))
            found = [_searches(form) for form in models]
        return sum(fits for fits, _ in found), [values for _, values in found]

    known = lbfgs_search.__dict__
    runs = {(): run()}
    for name in CONSTANTS:
        for factor in (0.5, 2.0):
            runs[name, factor] = run(**{name: _scaled(known[name], factor)})
    for _, values in runs.values():
        best = [max(b, *own) for b, own in zip(best, values)]

    def lost(values: Sequence[Sequence[float]]) -> int:
        return sum(v < b - LOST for b, own in zip(best, values) for v in own)

    fits, values = runs[()]
    rows = [("as they are", "", f"{fits} fits", str(lost(values)), "", "")]
    for name in CONSTANTS:
        cells = []
        for factor in (0.5, 2.0):
            count, values = runs[name, factor]
            cells += [f"{count / fits:.2f}", str(lost(values))]
        rows.append((f"`{name.lstrip('_')}`", str(known[name]), *cells))
    return rows


def _scaled(value: Any, factor: float) -> Any:
    if isinstance(value, tuple):
        return tuple(factor * part for part in value)
    return max(1, int(factor * value)) if isinstance(value, int) else factor * value


def _searches(form: CompiledSiteForm) -> tuple[int, list[float]]:
    """Return fits, and the values at which searches from all starts end."""
    fits, values = 0, []
    direction = np.random.default_rng(0).standard_normal(form.start.size)
    direction *= np.sqrt(direction.size) / np.linalg.norm(direction)
    for distance in STARTS:
        evidence = evidence_of(form, dict(OPTIONS))
        with mock.patch.object(Evidence, "at", autospec=True, side_effect=Evidence.at) as counted:
            try:
                values.append(maximise(evidence, form.start + distance * direction, spread=False).at.value)
            except NumericalError:
                values.append(-np.inf)
        fits += counted.call_count
    return fits, values


def _models() -> list[pm.Model]:
    return [
        build(np.random.default_rng(0)) for build in (_coal, _schools, _groups, _crossed, _dispersed, _robust, _slopes)
    ]


def _coal(rng: np.random.Generator) -> pm.Model:
    counts = np.histogram(pmep.datasets.load_coal(), bins=np.arange(1851, 1964))[0]
    years = np.linspace(0.0, 1.0, len(counts))[:, None]
    with pm.Model() as model:
        scale, sd, level = pm.InverseGamma("scale", 3.0, 1.0), pm.HalfNormal("sd", 1.0), pm.Normal("level", 0.0, 2.0)
        f = pm.gp.Latent(cov_func=sd**2 * pm.gp.cov.Matern52(1, scale)).prior("f", years)
        pm.Poisson("y", pm.math.exp(level + f), observed=counts)
    return model


def _schools(rng: np.random.Generator) -> pm.Model:
    y, sigma = np.array([28, 8, -3, 7, -1, 1, 18, 12.0]), np.array([15, 10, 16, 11, 9, 11, 10, 18.0])
    with pm.Model() as model:
        effects = pm.Normal("theta", pm.Normal("mu", 0.0, 5.0), pm.HalfCauchy("tau", 5.0), shape=8)
        pm.Normal("y", effects, sigma, observed=y)
    return model


def _groups(rng: np.random.Generator) -> pm.Model:
    group = np.repeat(np.arange(10), 8)
    y = rng.poisson(np.exp(1.0 + 0.6 * rng.standard_normal(10))[group])
    with pm.Model() as model:
        effects = pm.Normal("a", 0.0, pm.HalfCauchy("sd", 1.0), shape=10)
        pm.Poisson("y", pm.math.exp(pm.Normal("level", 0.0, 3.0) + effects[group]), observed=y)
    return model


def _crossed(rng: np.random.Generator) -> pm.Model:
    row, column = rng.integers(0, 15, 300), rng.integers(0, 12, 300)
    logit = rng.standard_normal(15)[row] + 0.5 * rng.standard_normal(12)[column]
    with pm.Model() as model:
        a = pm.Normal("a", 0.0, pm.HalfNormal("sd_a", 1.0), shape=15)
        b = pm.Normal("b", 0.0, pm.Exponential("sd_b", 1.0), shape=12)
        observed = rng.random(300) < 1 / (1 + np.exp(-logit))
        pm.Bernoulli("y", logit_p=a[row] + b[column], observed=observed.astype(int))
    return model


def _dispersed(rng: np.random.Generator) -> pm.Model:
    x = rng.standard_normal(120)
    y = rng.negative_binomial(1.5, 1.5 / (1.5 + np.exp(1.0 + 0.5 * x)))
    with pm.Model() as model:
        mean = pm.math.exp(pm.Normal("b0", 0.0, 2.0) + pm.Normal("b1", 0.0, 2.0) * x)
        pm.NegativeBinomial("y", mu=mean, alpha=pm.HalfCauchy("alpha", 2.0), observed=y)
    return model


def _robust(rng: np.random.Generator) -> pm.Model:
    x = np.linspace(0.0, 1.0, 60)[:, None]
    y = np.sin(6 * x[:, 0]) + 0.2 * rng.standard_t(3, 60)
    with pm.Model() as model:
        f = pm.gp.Latent(
            cov_func=pm.HalfNormal("sd", 2.0) ** 2 * pm.gp.cov.ExpQuad(1, pm.InverseGamma("scale", 3, 1))
        ).prior("f", x)
        pm.StudentT("y", nu=4, mu=f, sigma=pm.HalfCauchy("sigma", 1.0), observed=y)
    return model


def _slopes(rng: np.random.Generator) -> pm.Model:
    """Scales that differ by orders: a design in grams beside one in tons."""
    X = rng.standard_normal((100, 2)) * np.array([1e-3, 1e3])
    y = X @ np.array([800.0, 0.002]) + 0.5 * rng.standard_normal(100)
    with pm.Model() as model:
        small, large = pm.HalfCauchy("sd_small", 1e3), pm.HalfCauchy("sd_large", 1.0)
        b = pm.Normal("b", 0.0, pm.math.stack([small, large]), shape=2)
        pm.Normal("y", X @ b, pm.HalfCauchy("sigma", 1.0), observed=y)
    return model


def _sites() -> Iterator[tuple[str, Site]]:
    for name in ("poisson", "logit", "negative_binomial", "student_t"):
        yield name, get_site(name)
    for name, (distribution, beyond) in OTHERS.items():
        density = partial(_density, distribution, beyond)
        yield f"any density: {name}", Site(name=name, parameters=(), domain="real", log_concave=False, logp=density)


def _density(distribution: Any, beyond: dict[str, float], y: Any, eta: Any) -> Any:
    return pm.logp(distribution.dist(mu=eta, **beyond), y)


def _rule_rows(name: str, site: Site) -> Iterator[tuple[str, ...]]:
    for cavity, variance in CAVITIES.items():
        rng = np.random.default_rng(0)
        mean = rng.standard_normal(SITES)
        y = {"poisson": rng.poisson(3.0, SITES), "negative_binomial": rng.poisson(3.0, SITES)}.get(name)
        if y is None:
            y = rng.integers(0, 2, SITES) if site.domain == "binary" else mean + 2 * rng.standard_normal(SITES)
        parameters = {"negative_binomial": (2.0,), "student_t": (3.0, 0.5)}.get(name, ())
        arrays = [np.asarray(y, dtype=float), mean, np.full(SITES, variance)]
        columns = [np.full(SITES, value) for value in parameters]
        exact = _log_z(site, *(array[:100] for array in (*arrays, *columns)))
        cells = []
        for general in (False, True):
            with _general_rule() if general else ExitStack():
                own = compile_site(site)
                seconds, found = _timed(partial(own.moments, *arrays, 1.0, *columns))
            error = np.max(np.abs(np.asarray(found.log_z)[:100] - exact))
            cells += [f"{1e3 * seconds:.1f}", f"{error:.0e}"]
        yield name, cavity, *cells


def _general_rule() -> ExitStack:
    """Leave all sites to the general rule."""

    def none_known(log_density: Any, y: np.ndarray, *_: Any) -> Smooth:
        return Smooth([], np.arange(len(y)))

    def none_seen(log_density: Any, *arrays: np.ndarray) -> Smooth:
        with np.errstate(all="ignore"):
            return Smooth([], np.arange(len(arrays[0])), surveyed(log_density, *arrays, also=np.zeros(0))[0])

    stack = ExitStack()
    stack.enter_context(mock.patch.object(compiled, "known_smooth_nodes", none_known))
    stack.enter_context(mock.patch.object(compiled, "seen_smooth_nodes", none_seen))
    return stack


def _timed(call: Callable[[], Any]) -> tuple[float, Any]:
    found, seconds = call(), []
    for _ in range(5):
        began = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - began)
    return float(np.median(seconds)), found


def _log_z(site: Site, y: np.ndarray, mean: np.ndarray, variance: np.ndarray, *parameters: np.ndarray) -> np.ndarray:
    """Return log Z by the trapezoidal rule, (n,)."""
    sd = np.sqrt(variance)
    x = np.linspace(-80.0, 80.0, 40_001)[:, None]
    density = compile_site(site).log_density(y, mean + sd * x, *parameters)
    terms = np.asarray(density) - 0.5 * x**2 - 0.5 * np.log(2 * np.pi)
    highest = terms.max(axis=0)
    return highest + np.log(np.exp(terms - highest).sum(axis=0) * (x[1, 0] - x[0, 0]))


if __name__ == "__main__":
    main()
