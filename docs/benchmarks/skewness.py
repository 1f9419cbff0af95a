"""Quantiles of EP's Gaussians, of those of corrected width, and of draws, against slice sampling and NUTS.

    python -m docs.benchmarks skewness

Writes a section of docs/benchmarks/when_it_works.md. Runs of NUTS, minutes each, are stored as summaries in
``docs/benchmarks/rows/skewness_nuts.json``; the rest takes a minute. The environment variable of Rdatasets in
`docs.benchmarks.public.FOLDERS` names a folder of data.
"""

import json
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import pymc as pm
from scipy.special import log_ndtr, ndtri, xlogy

import pymc_ep as pmep
from docs.benchmarks._common import PAGES, header, markdown_table, write_page
from docs.benchmarks.public import MODELS
from docs.benchmarks.public.base import codes, r_table
from docs.benchmarks.public.references import QUANTILES, summaries
from pymc_ep.compat import group
from pymc_ep.evidence.ep.evidence import Evidence

LEVELS = np.array([0.01, 0.05, 0.5, 0.95, 0.99])
CHAINS, BURN, KEPT, EVERY = 400, 200, 2000, 10
DRAWS = 40_000
BINS = 100
REFERENCES = PAGES / "rows" / "skewness_nuts.json"
TUNE, NUTS_DRAWS = 1500, {"toenail infections": 8000}
"""Tuning steps of each of four chains of NUTS, and draws where they are not 10,000."""
CATHETERS = """
3 117 0 116; 3 35 1 44; 9 195 2 208; 7 136 0 130; 6 157 5 151; 4 139 1 98; 3 177 1 174; 2 39 1 74; 19 103 1 97;
2 122 1 113; 7 64 0 66; 1 58 0 70; 5 175 3 188; 11 180 6 187; 0 105 0 118; 1 262 0 252; 3 362 1 345; 1 69 4 64
"""
"""Infections and patients of 18 trials, with standard and with coated catheters (Niel-Weise et al. 2007)."""


class Case(NamedTuple):
    """A model with a Gaussian vector ``f`` of distinct predictors, its prior, and the log likelihood of f, (s, n)."""

    name: str
    model: pm.Model
    mean: np.ndarray
    covariance: np.ndarray
    log_likelihood: Callable[[np.ndarray], np.ndarray]


def main() -> None:
    """Measure all cases, and write the section."""
    rows = [row for case in _cases() for row in _rows(case)]
    text = (
        "Largest errors over all predictors, at fixed hyperparameters, in posterior standard deviations: of\n"
        f"EP's Gaussians, of those whose width is corrected, and of {DRAWS:,} draws, which are skewed. The truth is\n"
        f"elliptical slice sampling about EP's posterior, {CHAINS} chains of {KEPT:,} iterations. ESS is the relative\n"
        "effective sample size of the importance weights of draws.\n"
    )
    head = ["model", "posterior", *(f"{level:.0%}" for level in LEVELS), "sd", "ESS"]
    title = header("Quantiles of draws", "docs/benchmarks/skewness.py", "nutpie")
    against_nuts = [row for name, build in DEFAULTS.items() for row in _default_rows(name, build())]
    tables = [markdown_table(head, rows), DEFAULT_TEXT, markdown_table(DEFAULT_HEAD, against_nuts)]
    write_page("skewness", [title, text, *tables])


def _cases() -> Iterator[Case]:
    dates = pmep.datasets.load_coal()
    counts, _ = np.histogram(dates, bins=BINS)
    x = np.arange(BINS)[:, None] * 1.0
    for link, level, scale, length in (("exp", 0.4, 0.7, 15.0), ("rectified", 1.9, 1.5, 15.0)):
        covariance = scale**2 * np.exp(-0.5 * ((x - x.T) / length) ** 2)
        with pm.Model() as model:
            f = pm.MvNormal("f", np.full(BINS, level), covariance + 1e-8 * np.eye(BINS))
            if link == "exp":
                pm.Poisson("y", pm.math.exp(f), observed=counts)
            else:
                pmep.RectifiedPoisson("y", f, observed=counts)
        yield Case(f"coal, {link}", model, np.full(BINS, level), covariance, _poisson(counts, link))
    rng = np.random.default_rng(3)
    groups, each = 30, 3
    own, index = 1.5 * rng.standard_normal(groups), np.repeat(np.arange(groups), each)
    prior = 4.0 + 2.25 * np.eye(groups)
    y = rng.poisson(np.exp(own[index] - 0.5))
    with pm.Model() as model:
        f = pm.Deterministic("f", pm.Normal("level", 0.0, 2.0) + pm.Normal("own", 0.0, 1.5, shape=groups))
        pm.Poisson("y", pm.math.exp(f[index]), observed=y)
    yield Case("30 groups of 3 counts", model, np.zeros(groups), prior, _grouped(y, index, "exp"))
    bits = (rng.standard_normal(groups * each) < own[index] + 0.5).astype(int)
    with pm.Model() as model:
        f = pm.Deterministic("f", pm.Normal("level", 0.0, 2.0) + pm.Normal("own", 0.0, 1.5, shape=groups))
        pm.Bernoulli("y", pm.math.invprobit(f[index]), observed=bits)
    yield Case("30 groups of 3 bits", model, np.zeros(groups), prior, _grouped(bits, index, "probit"))
    design = rng.standard_normal((25, 4))
    ones = (design[:, 0] + 0.5 * rng.standard_normal(25) > 0.0).astype(int)
    with pm.Model() as model:
        f = pm.Deterministic("f", design @ pm.Normal("slopes", 0.0, 5.0, shape=4))
        pm.Bernoulli("y", logit_p=f, observed=ones)
    logistic = lambda f: (ones * f - np.logaddexp(0.0, f)).sum(axis=1)  # noqa: E731
    yield Case("25 bits, 4 covariates", model, np.zeros(25), 25.0 * design @ design.T, logistic)


def _poisson(counts: np.ndarray, link: str) -> Callable[[np.ndarray], np.ndarray]:
    def exponential(f: np.ndarray) -> np.ndarray:
        return (counts * f - np.exp(f)).sum(axis=1)

    def rectified(f: np.ndarray) -> np.ndarray:
        rate = np.maximum(f, 0.0)
        with np.errstate(divide="ignore"):
            return (xlogy(counts, rate) - rate).sum(axis=1)

    return exponential if link == "exp" else rectified


def _grouped(y: np.ndarray, index: np.ndarray, link: str) -> Callable[[np.ndarray], np.ndarray]:
    if link == "exp":
        total, size = np.bincount(index, y), np.bincount(index)
        return lambda f: (total * f - size * np.exp(f)).sum(axis=1)
    ones, zeros = np.bincount(index, y), np.bincount(index, 1 - y)
    return lambda f: (ones * log_ndtr(f) + zeros * log_ndtr(-f)).sum(axis=1)


def _rows(case: Case) -> list[list[str]]:
    result = pmep.fit(model=case.model, hyper="fixed", draws=DRAWS, chains=1, random_seed=1, progressbar=False)
    mean, sd = (np.asarray(result[f"posterior_{what}"]["f"]) for what in ("mean", "sd"))
    drawn = np.asarray(group(result, "posterior")["f"])[0]
    middle, root = _by_ep(case, group(result, "fit"))
    true = middle + _slices(case, middle, root, group(result, "fit"))
    by_ep = np.sqrt((root**2).sum(axis=1))
    true_sd, quantiles = true.std(axis=0), np.quantile(true, LEVELS, axis=0)
    known = pmep.diagnose(result, case.model)
    ess = float(known["weights_ess"]) / known["log_weight"].size
    out = []
    for name, own, spread in (
        ("EP", middle + by_ep * ndtri(LEVELS)[:, None], by_ep),
        ("of corrected width", mean + sd * ndtri(LEVELS)[:, None], sd),
        ("draws", np.quantile(drawn, LEVELS, axis=0), drawn.std(axis=0)),
    ):
        errors, ratio = np.abs((own - quantiles) / true_sd).max(axis=1), spread / true_sd - 1.0
        worst = ratio[np.argmax(np.abs(ratio))]
        last = f"{ess:.2f}" if name == "draws" else ""
        out.append([case.name, name, *(f"{error:.3f}" for error in errors), f"{worst:+.1%}", last])
    return out


def _sites(case: Case, fit: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return shifts and precisions of predictors, (n,), from those of their observations, which are consecutive."""
    shift, precision = (np.asarray(fit[f"y_site_{what}"]) for what in ("shift", "precision"))
    return shift.reshape(len(case.mean), -1).sum(axis=1), precision.reshape(len(case.mean), -1).sum(axis=1)


def _by_ep(case: Case, fit: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean, (n,), and a factor, (n, r), of the covariance of the predictors under EP's Gaussian."""
    values, vectors = np.linalg.eigh(case.covariance)
    keep = values > 1e-11 * values.max()
    root = vectors[:, keep] * np.sqrt(values[keep])
    shift, precision = _sites(case, fit)
    inner = np.eye(root.shape[1]) + root.T @ (precision[:, None] * root)
    factor = np.linalg.cholesky(np.linalg.inv(inner))
    middle = case.mean + root @ np.linalg.solve(inner, root.T @ (shift - precision * case.mean))
    return middle, root @ factor


def _slices(case: Case, middle: np.ndarray, root: np.ndarray, fit: Any) -> np.ndarray:
    """Return draws of the exact posterior about its mean by EP, (s, n), by elliptical slices about EP's Gaussian."""
    rng, (shift, precision) = np.random.default_rng(7), _sites(case, fit)

    def log_ratio(offset: np.ndarray) -> np.ndarray:
        f = middle + offset
        return case.log_likelihood(f) - f @ shift + 0.5 * f**2 @ precision

    state = np.zeros((CHAINS, len(middle)))
    level, out = log_ratio(state), []
    for step in range(BURN + KEPT):
        other = rng.standard_normal((CHAINS, root.shape[1])) @ root.T
        least = level + np.log(rng.random(CHAINS))
        angle = 2 * np.pi * rng.random(CHAINS)
        low, high, active = angle - 2 * np.pi, angle.copy(), np.arange(CHAINS)
        new = state.copy()
        while active.size:
            a = angle[active, None]
            proposed = state[active] * np.cos(a) + other[active] * np.sin(a)
            found = log_ratio(proposed)
            good = found > least[active]
            new[active[good]], level[active[good]] = proposed[good], found[good]
            active = active[~good]
            negative = angle[active] < 0
            low[active] = np.where(negative, angle[active], low[active])
            high[active] = np.where(negative, high[active], angle[active])
            angle[active] = low[active] + rng.random(active.size) * (high[active] - low[active])
        state = new
        if step >= BURN and step % EVERY == 0:
            out.append(state)
    return np.concatenate(out)


def _catheters() -> pm.Model:
    control, n_control, treated, n_treated = np.array(CATHETERS.replace(";", " ").split(), dtype=int).reshape(-1, 4).T
    with pm.Model() as model:
        d, tau = pm.Normal("d", 0, 2), pm.HalfNormal("tau", 1)
        baseline = pm.Normal("baseline", -4, 3, shape=len(control))
        delta = pm.Normal("delta", d, tau, shape=len(control))
        pm.Binomial("control", n=n_control, logit_p=baseline, observed=control)
        pm.Binomial("treated", n=n_treated, logit_p=baseline + delta, observed=treated)
    return model


def _tortoises() -> pm.Model:
    table = r_table("lme4/gopherdat2")
    (site, n_sites), (year, _) = codes(table["Site"]), codes(table["year"])
    prevalence = ((table["prev"] - table["prev"].mean()) / table["prev"].std()).to_numpy()
    with pm.Model() as model:
        b0, b_prev, b_year = pm.Normal("b0", 0, 5), pm.Normal("b_prev", 0, 2), pm.Normal("b_year", 0, 2, shape=2)
        sd, u = pm.HalfNormal("sd", 1), pm.Normal("u", 0, 1, shape=n_sites)
        of_year = pm.math.concatenate([np.zeros(1), b_year])[year]
        eta = b0 + b_prev * prevalence + of_year + sd * u[site] + np.log(table["Area"].to_numpy())
        pm.Poisson("shells", pm.math.exp(eta), observed=table["shells"].to_numpy())
    return model


DEFAULTS: dict[str, Callable[[], pm.Model]] = {
    "toenail infections": MODELS["glmm_toenail"].build,
    "salamanders": MODELS["glmm_salamander"].build,
    "catheters": _catheters,
    "tortoise shells": _tortoises,
}
DEFAULT_HEAD = ["model", "unknowns", "posterior", "mean", *(f"{q:.0%}" for q in QUANTILES), "sd ratios", "warned"]
DEFAULT_TEXT = """\
## Default fits beside NUTS

Largest errors over all latent variables and hyperparameters of `pymc_ep.fit`, with 40,000 draws, in standard deviations
of nutpie's 32,000 to 40,000 draws. All data are real: bits of 294 patients and of 360 pairs, 18 trials with 7 arms
without an event, and 30 counts of 10 places. "Gaussian" is the same fit without width and skewness.
"""


def _default_rows(name: str, model: pm.Model) -> list[list[str]]:
    reference, out = _reference(name, model), []
    labels = [variable for variable, kept in reference.items() for _ in kept["values"][0]]
    mean, sd, *quantiles, _, _ = np.concatenate([kept["values"] for kept in reference.values()], axis=1)
    # The package has no switch but power, without which the evidence has no correction either.
    for posterior, given in (("Gaussian", patch.object(Evidence, "_skewness", return_value=None)), ("default", None)):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            options: dict[str, Any] = {"draws": DRAWS // 4, "chains": 4, "random_seed": 1, "progressbar": False}
            if given is None:
                found = group(pmep.fit(model=model, **options), "posterior")
            else:
                with given:
                    found = group(pmep.fit(model=model, **options), "posterior")
        drawn = np.concatenate([np.asarray(found[variable]).reshape(DRAWS, -1) for variable in reference], axis=1)
        own = [drawn.mean(axis=0), *np.quantile(drawn, QUANTILES, axis=0)]
        worst = [(np.abs(x - true) / sd).max() for x, true in zip(own, [mean, *quantiles], strict=True)]
        ratio = drawn.std(axis=0) / sd
        warned = any(issubclass(w.category, pmep.ConvergenceWarning) for w in caught)
        cells = [f"{error:.3f}" for error in worst] + [f"{ratio.min():.3f} to {ratio.max():.3f}"]
        out.append([name, f"{len(labels)}", posterior, *cells, "yes" if warned else "no"])
    return out


def _reference(name: str, model: pm.Model) -> dict[str, Any]:
    """Return summaries of a long run of NUTS, which are stored."""
    stored = json.loads(REFERENCES.read_text()) if REFERENCES.exists() else {}
    if name not in stored:
        import nutpie

        draws, compiled = NUTS_DRAWS.get(name, 10_000), nutpie.compile_pymc_model(model)
        kind = "low_rank" if compiled.n_dim <= 150 else "diag"
        options = {"target_accept": 0.95, "adaptation": kind, "progress_bar": False}
        chains = nutpie.sample(compiled, draws=draws, tune=TUNE, chains=4, cores=1, seed=2, **options)
        stored[name] = summaries(group(chains, "posterior"), [v.name for v in model.free_RVs])
        lines = [f"{json.dumps(k)}: {json.dumps(v, separators=(',', ':'))}" for k, v in stored.items()]
        REFERENCES.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    return stored[name]


if __name__ == "__main__":
    main()
