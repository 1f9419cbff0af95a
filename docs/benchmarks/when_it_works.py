"""Where EP works well, adequately, or not: every likelihood in several settings, against long runs of NUTS.

    python -m docs.benchmarks.when_it_works [--only TEXT] [--again]

Simulated data, hyperparameters fixed at the values that made them, so that what is measured is EP's own error. The
reference is nutpie on the same model. Each setting is stored as soon as it is measured, and
docs/benchmarks/when_it_works.md is written from what there is; about a quarter of an hour.
"""

import argparse
import json
import logging
import warnings
from collections.abc import Callable
from itertools import product
from typing import Any, NamedTuple

import arviz as az
import numpy as np
import pymc as pm
import xarray as xr

import pymc_ep as pmep
from docs.benchmarks._common import PAGES, header, markdown_table, write_page
from pymc_ep.compat import group

NAME = "docs/benchmarks/when_it_works.py"
STORE = PAGES.parents[1] / "build" / "when_it_works.json"
SEED = 20
CHAINS, TUNE, DRAWS = 4, 1000, 5000
WELL, ADEQUATE = (0.1, 0.05), (0.3, 0.2)
"""Largest errors of a mean, in posterior sds, and of an sd, relative, for the first two verdicts."""
TRUSTED = 1.02
"""R-hat above which the chains are no reference."""
MOST_DIVERGENT = 0.25
"""Share of divergent transitions above which they are none: where PyMC's gradient of a probit is NaN, half diverge."""


# Likelihoods


class Family(NamedTuple):
    """A likelihood of one predictor.

    Attributes
    ----------
    name : str
    distribution : type
        Of PyMC, or made like one.
    arguments : callable
        Of a predictor, NumPy or PyTensor, to keyword arguments.
    centre : float
        About which the predictors lie: their level's prior mean.
    log_concave : bool
    """

    name: str
    distribution: Any
    arguments: Callable[[Any], dict[str, Any]]
    centre: float = 0.0
    log_concave: bool = True

    def draw(self, predictor: np.ndarray, seed: int) -> np.ndarray:
        """Simulate observations, (n,)."""
        return np.asarray(pm.draw(self.distribution.dist(**self.arguments(predictor)), random_seed=seed))

    def observe(self, predictor: Any, y: np.ndarray) -> None:
        """Add the observations to the model of the context."""
        self.distribution("y", **self.arguments(predictor), observed=y)


def cloglog(eta: Any) -> Any:
    """Return 1 - exp(-exp(eta))."""
    return 1 - pm.math.exp(-pm.math.exp(eta))


def rate(link: Callable[[Any], Any]) -> Callable[[Any], dict[str, Any]]:
    """Return the arguments of a Poisson likelihood."""
    return lambda eta: {"mu": link(eta)}


CUTS = np.array([-1.0, 0.0, 1.0])
FAMILIES = [
    Family("Poisson, exp", pm.Poisson, rate(pm.math.exp), 0.5),
    Family("Poisson, softplus", pmep.SoftplusPoisson, lambda eta: {"eta": eta}, 1.5),
    Family("Poisson, rectified linear", pmep.RectifiedPoisson, lambda eta: {"eta": eta}, 3.0),
    Family("NegativeBinomial, exp", pm.NegativeBinomial, lambda eta: {"mu": pm.math.exp(eta), "alpha": 2.0}, 1.0),
    Family("Bernoulli, logit", pm.Bernoulli, lambda eta: {"logit_p": eta}),
    Family("Bernoulli, probit", pm.Bernoulli, lambda eta: {"p": pm.math.invprobit(eta)}),
    Family("Bernoulli, cloglog", pm.Bernoulli, lambda eta: {"p": cloglog(eta)}, -0.5),
    Family("Binomial of 10, logit", pm.Binomial, lambda eta: {"n": 10, "logit_p": eta}),
    Family("Binomial of 10, probit", pm.Binomial, lambda eta: {"n": 10, "p": pm.math.invprobit(eta)}),
    Family("Binomial of 10, cloglog", pm.Binomial, lambda eta: {"n": 10, "p": cloglog(eta)}, -0.5),
    Family("Normal", pm.Normal, lambda eta: {"mu": eta, "sigma": 1.0}),
    Family("StudentT, 4 degrees", pm.StudentT, lambda eta: {"nu": 4.0, "mu": eta, "sigma": 1.0}, log_concave=False),
    Family("Laplace", pm.Laplace, lambda eta: {"mu": eta, "b": 1.0}),
    Family("Exponential, exp", pm.Exponential, lambda eta: {"lam": pm.math.exp(-eta)}),
    Family("Gamma of shape 3, exp", pm.Gamma, lambda eta: {"alpha": 3.0, "beta": 3.0 * pm.math.exp(-eta)}),
    Family(
        "Beta, logit",
        pm.Beta,
        lambda eta: {"alpha": 5 * pm.math.sigmoid(eta), "beta": 5 * pm.math.sigmoid(-eta)},
        log_concave=False,
    ),
    Family("ordered logit, 4 classes", pm.OrderedLogistic, lambda eta: {"eta": eta, "cutpoints": CUTS}),
    Family("ordered probit, 4 classes", pm.OrderedProbit, lambda eta: {"eta": eta, "cutpoints": CUTS}),
    Family(
        "Normal censored at 0 (quadrature)",
        pm.Censored,
        lambda eta: {"dist": pm.Normal.dist(eta, 1.0), "lower": 0.0, "upper": None},
        0.5,
    ),
    Family(
        "zero-inflated Poisson, exp (quadrature)",
        pm.ZeroInflatedPoisson,
        lambda eta: {"psi": 0.7, "mu": pm.math.exp(eta)},
        1.0,
        log_concave=False,
    ),
]
BY_NAME = {family.name: family for family in FAMILIES}


# Settings


class Case(NamedTuple):
    """A model and the names of what is compared."""

    model: pm.Model
    names: tuple[str, ...]


def groups(
    family: Family, seed: int, *, n: int = 25, each: int = 2, sd: float = 1.0, simulate: Family | None = None
) -> Case:
    """Random intercepts with few observations each; `simulate` made the data where that is another likelihood."""
    rng = np.random.default_rng(seed)
    group = np.repeat(np.arange(n), each)
    y = (simulate or family).draw(family.centre + rng.normal(0, sd, n)[group], seed)
    with pm.Model() as model:
        level, effect = pm.Normal("level", family.centre, 1), pm.Normal("effect", 0, sd, shape=n)
        family.observe(level + effect[group], y)
    return Case(model, ("level", "effect"))


def regression(family: Family, seed: int, *, n: int = 300, p: int = 6) -> Case:
    """Weights with many observations each."""
    rng = np.random.default_rng(seed)
    design = rng.normal(size=(n, p))
    y = family.draw(family.centre + design @ rng.normal(0, 0.3, p), seed)
    with pm.Model() as model:
        level, weights = pm.Normal("level", family.centre, 1), pm.Normal("weights", 0, 1, shape=p)
        family.observe(level + design @ weights, y)
    return Case(model, ("level", "weights"))


def smooth(family: Family, seed: int, *, n: int = 50, outliers: float = 0.0) -> Case:
    """Gaussian process over 50 points, about seven length scales; every tenth observation is moved by `outliers`."""
    rng = np.random.default_rng(seed)
    at = np.linspace(0, 1, n)
    covariance = np.exp(-0.5 * (np.subtract.outer(at, at) / 0.15) ** 2) + 1e-8 * np.eye(n)
    y = family.draw(family.centre + np.linalg.cholesky(covariance) @ rng.normal(size=n), seed)
    if outliers:
        y = y + outliers * (np.arange(n) % 10 == 5)
    with pm.Model() as model:
        gp = pm.gp.Latent(mean_func=pm.gp.mean.Constant(family.centre), cov_func=pm.gp.cov.ExpQuad(1, 0.15))
        family.observe(gp.prior("f", X=at[:, None]), y)
    return Case(model, ("f",))


def separated(family: Family, seed: int, *, sd: float, n: int = 20, p: int = 2) -> Case:
    """Weights of wide priors, where a plane separates zeros from ones."""
    rng = np.random.default_rng(seed)
    design = rng.normal(size=(n, p))
    y = (design.sum(axis=1) > 0).astype(int)
    with pm.Model() as model:
        level, weights = pm.Normal("level", 0, sd), pm.Normal("weights", 0, sd, shape=p)
        family.observe(level + design @ weights, y)
    return Case(model, ("level", "weights"))


def disagreeing(family: Family, seed: int, *, apart: float, n: int = 12) -> Case:
    """Two observations to an effect, `apart` from each other, so that its posterior may have two modes."""
    rng = np.random.default_rng(seed)
    y = np.repeat(rng.normal(size=n), 2) + np.tile([0.0, apart], n) + rng.normal(0, 0.3, 2 * n)
    with pm.Model() as model:
        effect = pm.Normal("effect", 0, 5, shape=n)
        family.observe(effect[np.repeat(np.arange(n), 2)], y)
    return Case(model, ("effect",))


STUDENT = Family("StudentT, 3 degrees", pm.StudentT, lambda eta: {"nu": 3.0, "mu": eta, "sigma": 0.5}, 0.0, False)
RARE = BY_NAME["Poisson, exp"]._replace(name="Poisson, exp", centre=-2.0)
Build = Callable[[Family, int], Case]
COMMON: dict[str, Build] = {
    "few observations a latent: 25 effects, 2 each": groups,
    "many observations a latent: 7 weights, 300": regression,
    "smooth: Gaussian process, 50 points": smooth,
}


class Setting(NamedTuple):
    """A likelihood, a setting's name, what builds it, and EP's power."""

    family: Family
    name: str
    build: Build
    power: float = 1.0

    @property
    def key(self) -> str:
        """Name of the result."""
        return f"{self.family.name}; {self.name}"


SPECIAL = [
    Setting(
        BY_NAME["Bernoulli, logit"], "25 effects of sd 3, 1 observation each", lambda f, s: groups(f, s, each=1, sd=3.0)
    ),
    Setting(BY_NAME["Bernoulli, logit"], "separation, weights of sd 2.5", lambda f, s: separated(f, s, sd=2.5)),
    Setting(BY_NAME["Bernoulli, logit"], "separation, weights of sd 10", lambda f, s: separated(f, s, sd=10.0)),
    Setting(BY_NAME["Bernoulli, probit"], "separation, weights of sd 10", lambda f, s: separated(f, s, sd=10.0)),
    Setting(RARE, "rare events: 25 effects of sd 2, 2 each, mostly zeros", lambda f, s: groups(f, s, sd=2.0)),
    Setting(STUDENT, "Gaussian process, every tenth observation 8 off", lambda f, s: smooth(f, s, outliers=8.0)),
    Setting(STUDENT, "12 effects, 2 observations each, 2 apart", lambda f, s: disagreeing(f, s, apart=2.0)),
    Setting(STUDENT, "12 effects, 2 observations each, 6 apart: two modes", lambda f, s: disagreeing(f, s, apart=6.0)),
    Setting(BY_NAME["Laplace"], "12 effects, 2 observations each, 6 apart", lambda f, s: disagreeing(f, s, apart=6.0)),
    Setting(STUDENT, "the same 2 apart, power=0.5", lambda f, s: disagreeing(f, s, apart=2.0), 0.5),
    Setting(STUDENT, "the same 6 apart, power=0.5", lambda f, s: disagreeing(f, s, apart=6.0), 0.5),
]
KINDS = {
    "Poisson, exp",
    "Poisson, rectified linear",
    "NegativeBinomial, exp",
    "Bernoulli, logit",
    "StudentT, 4 degrees",
    "Laplace",
    "Gamma of shape 3, exp",
    "Beta, logit",
    "ordered logit, 4 classes",
    "zero-inflated Poisson, exp (quadrature)",
}
"""One likelihood of each kind: where observations are many, the others tell nothing new."""
HARDEST = next(iter(COMMON))
SETTINGS = [
    Setting(family, name, build)
    for (name, build), family in product(COMMON.items(), FAMILIES)
    if name == HARDEST or family.name in KINDS
]
SETTINGS += SPECIAL


# Measured


def measure(setting: Setting) -> dict[str, Any]:
    """Compare a fit with nutpie's chains."""
    case = setting.build(setting.family, SEED)
    try:
        found = pmep.fit(model=case.model, random_seed=SEED, progressbar=False, power=setting.power)
    except (pmep.UnsupportedModelError, pmep.InvalidDataError, pmep.NumericalError) as error:
        return {"failed": f"{type(error).__name__}: {error}"}
    diagnosed = pmep.diagnose(found, case.model)
    chains = sample(case.model, found)
    names = list(case.names)
    posterior = group(chains, "posterior")[names]
    mean, sd = flat(posterior.mean(("chain", "draw"))), flat(posterior.std(("chain", "draw"), ddof=1))
    own_mean, own_sd = (flat(group(found, f"posterior_{what}")[names]) for what in ("mean", "sd"))
    error, ratio = np.abs(own_mean - mean) / sd, own_sd / sd
    return {
        "n": len(mean),
        "converged": bool(found["fit"]["converged"]),
        "error": (float(np.median(error)), float(error.max())),
        "ratio": (float(ratio.min()), float(np.median(ratio)), float(ratio.max())),
        "noise": float((flat(az.mcse(posterior)) / sd).max()),
        # Of a Gaussian's standard deviation.
        "sd_noise": float((0.5 / flat(az.ess(posterior, method="sd")).min()) ** 0.5),
        "r_hat": float(flat(az.rhat(posterior)).max()),
        "divergences": int(chains["sample_stats"]["diverging"].sum()),
        "pareto_k": float(diagnosed["pareto_k"]) if "pareto_k" in diagnosed else None,
    }


def sample(model: pm.Model, found: Any) -> Any:
    """Run nutpie from next to the fit's means: most other points have probability zero under a rectified likelihood.

    Not from the means themselves, where the gradient of a Gaussian posterior is zero, and nutpie scales by it. Where
    densities there underflow, as of a probit far out, from a tenth of them.
    """
    import nutpie

    means = pmep.start_point(found)
    options = {"draws": DRAWS, "tune": TUNE, "chains": CHAINS, "cores": 1, "seed": SEED, "progress_bar": False}

    def chains(share: float) -> Any:
        start = {name: share * np.asarray(value) + 0.1 for name, value in means.items()}
        return nutpie.sample(nutpie.compile_pymc_model(model, initial_points=start, jitter_rvs=set()), **options)

    try:
        return chains(1.0)
    except RuntimeError:
        return chains(0.1)


def flat(values: xr.Dataset) -> np.ndarray:
    """Return all numbers of all variables."""
    return np.concatenate([np.ravel(v.values) for v in values.data_vars.values()])


def verdict(found: dict[str, Any]) -> str:
    """Apply the stated rule."""
    if "failed" in found:
        return "refused"
    if found["r_hat"] > TRUSTED:
        return "not known: the chains disagree"
    if found["divergences"] > MOST_DIVERGENT * CHAINS * DRAWS:
        return "not known: the chains diverge"
    if not found["converged"]:
        return "**not appropriate**: no convergence"
    error, off = found["error"][1], max(abs(found["ratio"][0] - 1), abs(found["ratio"][2] - 1))
    for (mean, sd), word in ((WELL, "well"), (ADEQUATE, "adequately")):
        if error < mean and off < sd:
            return word
    return "**not appropriate**"


# The page


def row(first: str, found: dict[str, Any]) -> list[str]:
    """Return a row of a table."""
    if "failed" in found:
        return [first, "", "", "", "", "", "", f"refused: {found['failed']}"]
    k = found["pareto_k"]
    return [
        first,
        str(found["n"]),
        f"{found['error'][0]:.3f} / {found['error'][1]:.3f}",
        " / ".join(f"{r:.3f}" for r in found["ratio"]),
        f"{found['noise']:.3f} / {found['sd_noise']:.3f}",
        f"{found['r_hat']:.3f}, {found['divergences']}",
        "" if k is None else f"{k:.2f}",
        verdict(found),
    ]


def summary(results: dict[str, Any]) -> str:
    """Return the table of verdicts, likelihood by common setting."""
    rows = []
    for family in FAMILIES:
        cells = [results.get(f"{family.name}; {name}") for name in COMMON]
        if any(cells):
            rows.append([family.name, *("-" if c is None else verdict(c) for c in cells)])
    return markdown_table(["likelihood", *(name.partition(":")[0] for name in COMMON)], rows)


def page(results: dict[str, Any]) -> list[str]:
    """Return the parts of the page."""
    parts = [header("Every likelihood in several settings", NAME, "nutpie"), INTRODUCTION, summary(results), COLUMNS]
    head = ["likelihood", "latents", "error of means, sd: median / worst", "sd ratio: least / median / greatest"]
    head += ["Monte Carlo error of mean / sd, sd", "R-hat, divergences", "Pareto k", "verdict"]
    for name in COMMON:
        rows = [row(f.name, results[key]) for f in FAMILIES if (key := f"{f.name}; {name}") in results]
        if rows:
            parts += [f"## {name[0].upper()}{name[1:]}\n", markdown_table(head, rows)]
    rows = [row(s.key, results[s.key]) for s in SPECIAL if s.key in results]
    if rows:
        parts += ["## Made to be hard\n", markdown_table(["likelihood; setting", *head[1:]], rows)]
    return parts


INTRODUCTION = f"""\
Data are simulated (seed {SEED}). Hyperparameters are fixed at the values that made them, so that EP's own error is
left. Reference: nutpie, {CHAINS} chains of {DRAWS} draws after {TUNE}. The verdict is by the worst of all latent
variables of a setting, Monte Carlo error included:

- **well**: means within {WELL[0]:g} posterior standard deviations, standard deviations within {100 * WELL[1]:.0f}%;
- **adequately**: within {ADEQUATE[0]:g} and {100 * ADEQUATE[1]:.0f}%;
- **not appropriate**: neither, or EP did not converge.

Where R-hat of the reference exceeds {TRUSTED:g}, or over {MOST_DIVERGENT:.0%} of its transitions diverge, there is no
verdict. A dash: not measured. Settings with more
observations for a latent variable than the first have one likelihood of each kind.
"""
COLUMNS = """\
Below, errors are in standard deviations of the reference. Pareto k is that of `pymc_ep.diagnose`, which sees no
chains: above 0.7 it doubts the fit, and where weights are nearly equal there is none. It is about draws that
miss a part of the posterior. A fit that is too wide passes it, as that of two heavy-tailed observations that
contradict each other.
"""


def main() -> None:
    """Measure and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="settings whose name holds this text")
    parser.add_argument("--most", type=int, default=len(SETTINGS), help="settings to measure in this run")
    parser.add_argument("--again", action="store_true", help="measure what is stored, too")
    options = parser.parse_args()
    logging.disable(logging.INFO)
    results = json.loads(STORE.read_text()) if STORE.exists() else {}
    wanted = [s for s in SETTINGS if options.only in s.key and (options.again or s.key not in results)]
    for setting in wanted[: options.most]:
        key = setting.key
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            results[key] = measure(setting)
        STORE.parent.mkdir(exist_ok=True)
        STORE.write_text(json.dumps(results))
        print(key, verdict(results[key]), results[key], flush=True)
    print(write_page("when_it_works", page(results)))


if __name__ == "__main__":
    main()
