"""Simulation-based calibration of the default fit on small models: likelihood families, fields, several predictors.

    python -m docs.benchmarks.calibration [--families NAME ...] [--replications 200] [--hyper default] [--page-only]

A replication draws all variables from the prior and data given them, fits, and ranks the true values among independent
draws of the fit; the ranks are uniform if the fit is the posterior. The total log likelihood is ranked too: it shows
errors of the joint distribution that no single variable does (Modrák et al. 2023). Rows are stored as they are made in
``docs/benchmarks/rows/calibration.json``; a second call makes what is missing.
"""

import argparse
import json
import logging
import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pymc as pm
from scipy import stats

import pymc_ep as pmep
from docs.benchmarks._common import PAGES, header, markdown_table, write_page

ROWS = PAGES / "rows" / "calibration.json"
PICTURE = PAGES / "calibration.png"
GROUPS, DRAWS, BINS = 8, 99, 20
"""Groups of each model; draws among which a true value is ranked (ranks 0 to 99); bins of the chi-square test."""
STREAM = 1000
"""Replications that are drawn from the prior at once, so that a longer run begins with those of a shorter one."""
SIMULATED = 4000
"""Uniform sets of ranks that calibrate the band of an ECDF."""
LEVEL = 0.05
"""Of the p values that are counted."""
TRIALS = (30, 40, 50, 60, 80, 100, 120, 150, 200, 300)
"""Patients in each of the two arms of a trial."""


def _effects(size: int, mean: float = 0.0, spread: float = 1.0, scale: float = 1.0) -> Any:
    """Group effects around a common mean with a learned scale, as one predictor a datum."""
    mu, tau = pm.Normal("mu", mean, spread), pm.HalfNormal("tau", scale)
    return pm.Normal("a", mu, tau, shape=GROUPS)[np.repeat(np.arange(GROUPS), size)]


def normal(y: np.ndarray | None) -> Any:
    return pm.Normal("y", _effects(5), pm.HalfNormal("sigma", 1), observed=y, shape=40)


def poisson(y: np.ndarray | None) -> Any:
    return pm.Poisson("y", pm.math.exp(_effects(4, 0.5)), observed=y, shape=32)


def binomial(y: np.ndarray | None) -> Any:
    return pm.Binomial("y", n=10, logit_p=_effects(2), observed=y, shape=16)


def bernoulli(y: np.ndarray | None) -> Any:
    return pm.Bernoulli("y", logit_p=_effects(10), observed=y, shape=80)


def negative_binomial(y: np.ndarray | None) -> Any:
    alpha = pm.Gamma("alpha", 3, 1)
    return pm.NegativeBinomial("y", mu=pm.math.exp(_effects(6, 1.0)), alpha=alpha, observed=y, shape=48)


def gamma(y: np.ndarray | None) -> Any:
    shape = pm.Gamma("shape", 4, 1)
    return pm.Gamma("y", alpha=shape, beta=shape / pm.math.exp(_effects(5)), observed=y, shape=40)


def student_t(y: np.ndarray | None) -> Any:
    eta, sigma = _effects(6), pm.HalfNormal("sigma", 1)
    return pm.StudentT("y", nu=4, mu=eta, sigma=sigma, observed=y, shape=48)


def beta(y: np.ndarray | None) -> Any:
    mean, phi = pm.math.sigmoid(_effects(5, scale=0.7)), pm.Gamma("phi", 6, 0.5)
    return pm.Beta("y", alpha=mean * phi, beta=(1 - mean) * phi, observed=y, shape=40)


def few_bits(y: Any) -> Any:
    """Patients with three visits each, as in studies of toenail infections."""
    visit, slope = np.tile([-1.0, 0.0, 1.0], 20), pm.Normal("slope", 0, 1)
    mu, tau = pm.Normal("mu", 0, 1), pm.HalfNormal("tau", 1.5)
    own = pm.Normal("a", mu, tau, shape=20)[np.repeat(np.arange(20), 3)]
    return pm.Bernoulli("y", logit_p=own + slope * visit, observed=y, shape=60)


def meta_analysis(y: Any) -> Any:
    """Two arms of ten trials, of which a fifth have no event."""
    size, arm, trial = np.repeat(TRIALS, 2), np.tile([0.0, 1.0], len(TRIALS)), np.repeat(np.arange(len(TRIALS)), 2)
    base = pm.Normal("baseline", -3.5, 1, shape=len(TRIALS))
    mu, tau = pm.Normal("mu", 0, 1), pm.HalfNormal("tau", 0.7)
    effect = pm.Normal("a", mu, tau, shape=len(TRIALS))
    return pm.Binomial("y", n=size, logit_p=base[trial] + effect[trial] * arm, observed=y, shape=len(size))


def few_counts(y: Any) -> Any:
    """Twelve groups of two counts, of which half are zero."""
    mu, tau = pm.Normal("mu", -0.5, 1), pm.HalfNormal("tau", 1)
    own = pm.Normal("a", mu, tau, shape=12)[np.repeat(np.arange(12), 2)]
    return pm.Poisson("y", pm.math.exp(own), observed=y, shape=24)


def areas(y: Any) -> Any:
    """Cases in 25 areas of a square and on an island, by `BYM2`."""
    line = np.eye(5, k=1) + np.eye(5, k=-1)
    neighbours = np.zeros((26, 26))
    neighbours[:25, :25] = np.kron(line, np.eye(5)) + np.kron(np.eye(5), line)
    sigma, rho, level = pm.HalfNormal("sigma", 0.7), pm.Beta("rho", 1, 1), pm.Normal("level", 1, 0.7)
    effect = pmep.BYM2("effect", W=neighbours, sigma=sigma, rho=rho)
    return pm.Poisson("y", pm.math.exp(level + effect), observed=y, shape=26)


def surface(y: Any) -> Any:
    """Counts at 60 places of a square, by `SPDE`."""
    places = np.random.default_rng(6).uniform(0, 1, (60, 2))
    mesh = pmep.meshes.around(places, longest=0.12)
    length, sigma = pm.LogNormal("range", np.log(0.5), 0.4), pm.HalfNormal("sigma", 1)
    field = pmep.SPDE("f", mesh=mesh, range=length, sigma=sigma)
    return pm.Poisson("y", pm.math.exp(pm.Normal("level", 1, 0.7) + field.at(places)), observed=y, shape=60)


def noise_of_groups(y: Any) -> Any:
    """Groups of six measurements with a mean and a noise of their own."""
    level, spread = pm.Normal("log_sigma", 0, 0.5), pm.HalfNormal("spread", 0.5)
    log_sigma = pm.Normal("s", level, spread, shape=GROUPS)[np.repeat(np.arange(GROUPS), 6)]
    return pm.Normal("y", _effects(6), pm.math.exp(log_sigma), observed=y, shape=48)


def zeros_by_covariate(y: Any) -> Any:
    """Counts of groups with more zeros, by a covariate."""
    x, b = np.linspace(-1, 1, 64), pm.Normal("b", 0, 1, shape=2)
    present = pm.math.sigmoid(b[0] + b[1] * x)
    return pm.ZeroInflatedPoisson("y", present, pm.math.exp(_effects(8, 1.0, scale=0.7)), observed=y, shape=64)


def dispersion_by_covariate(y: Any) -> Any:
    """Counts of groups whose dispersion depends on a covariate."""
    x, b = np.linspace(-1, 1, 64), pm.Normal("b", [1.0, 0.0], 0.5, shape=2)
    alpha = pm.math.exp(b[0] + b[1] * x)
    return pm.NegativeBinomial("y", mu=pm.math.exp(_effects(8, 1.0, scale=0.7)), alpha=alpha, observed=y, shape=64)


def choices(y: Any) -> Any:
    """Choices among four categories, by a covariate."""
    x, b, c = np.linspace(-1, 1, 80), pm.Normal("b", 0, 1, shape=3), pm.Normal("c", 0, 1, shape=3)
    eta = pm.math.concatenate([np.zeros((80, 1)), b + c * x[:, None]], axis=1)
    return pm.Categorical("y", logit_p=eta, observed=y, shape=80)


SKEWED = {f.__name__: f for f in (few_bits, meta_analysis, few_counts)}
FAMILIES: dict[str, Callable[[Any], Any]] = {
    f.__name__: f
    for f in (
        normal, poisson, binomial, bernoulli, negative_binomial, gamma, student_t, beta,
        areas, surface, noise_of_groups, zeros_by_covariate, dispersion_by_covariate, choices,
    )
} | SKEWED  # fmt: skip


def prior_draws(family: str, replications: int) -> dict[str, np.ndarray]:
    """Return true values of all variables, data, and the data's log likelihood, one row a replication."""
    with pm.Model() as model:
        y = FAMILIES[family](None)
    names = [v.name for v in model.free_RVs]
    drawn = pm.draw([*model.free_RVs, pm.logp(y, y).sum()], draws=replications, random_seed=20)
    return dict(zip([*names, "log likelihood"], drawn, strict=True))


@cache
def _model(family: str) -> pm.Model:
    """Return the model of a family, whose data are then set: its functions are compiled once."""
    data = prior_draws(family, 2)["y"][0]
    with pm.Model() as model:
        FAMILIES[family](pm.Data("observed", data))
    return model


def replicate(family: str, truth: dict[str, np.ndarray], index: int, hyper: str) -> dict[str, Any]:
    """Fit one data set and rank its true values among the draws."""
    y = truth["y"][index]
    # A proportion that rounds to its bound has no density.
    observed = np.clip(y, 1e-12, 1 - 1e-12) if family == "beta" else y
    model = _model(family)
    pm.set_data({"observed": observed}, model=model)
    options = {} if hyper == "default" else {"hyper": hyper}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            layout = {"draws": DRAWS, "chains": 1, "log_likelihood": True, "random_seed": 1000 + index}
            fit = pmep.fit(model=model, progressbar=False, **layout, **options)
        except pmep.NumericalError as error:
            return {"failed": str(error)}
    warned = any(issubclass(w.category, pmep.ConvergenceWarning) for w in caught) or not bool(fit["fit"]["converged"])
    ranks = {"log likelihood": _rank(fit["log_likelihood"]["y"].values[0].sum(axis=1), truth["log likelihood"][index])}
    for name, values in truth.items():
        if name in ("y", "log likelihood"):
            continue
        drawn = fit["posterior"][name].values[0].reshape(DRAWS, -1)
        # Groups are exchangeable: the first two stand for all.
        for k, true in enumerate(np.ravel(values[index])[:2]):
            ranks[f"{name}[{k}]" if values.ndim > 1 else name] = _rank(drawn[:, k], true)
    return {"ranks": ranks, "warned": warned}


def _rank(drawn: np.ndarray, true: float) -> int:
    return int(np.sum(drawn < true))


def tightness(ranks: np.ndarray) -> np.ndarray:
    """Return for sets of ranks, (set, replication), the least two-sided binomial tail along their ECDFs.

    Simultaneous bands of Säilynoja, Bürkner & Vehtari (2022): the ECDF is compared at every rank.
    """
    n = ranks.shape[1]
    points = np.arange(DRAWS)
    counts = np.stack([(ranks <= z).sum(axis=1) for z in points], axis=1)
    chance = (points + 1) / (DRAWS + 1)
    tails = np.minimum(stats.binom.cdf(counts, n, chance), stats.binom.sf(counts - 1, n, chance))
    return 2 * tails.min(axis=1)


def band(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the distribution of `tightness` for uniform ranks, and the 95% band of the ECDF, (2, rank)."""
    uniform = np.random.default_rng(95).integers(0, DRAWS + 1, (SIMULATED, n))
    simulated = tightness(uniform)
    level = np.quantile(simulated, 0.05)
    chance = (np.arange(DRAWS) + 1) / (DRAWS + 1)
    return simulated, np.stack([stats.binom.ppf(q, n, chance) / n for q in (level / 2, 1 - level / 2)])


def tests(ranks: np.ndarray, simulated: np.ndarray) -> tuple[float, float]:
    """Return p values of uniform ranks: chi-square of the bins, and the ECDF's band."""
    counts = np.histogram(ranks, bins=np.linspace(-0.5, DRAWS + 0.5, BINS + 1))[0]
    return float(stats.chisquare(counts).pvalue), float(np.mean(simulated <= tightness(ranks[None])[0] + 1e-12))


def exact_normal(truth: dict[str, np.ndarray], replications: int) -> dict[str, np.ndarray]:
    """Return the posterior probabilities that tau and sigma of the normal family are below their true values.

    By quadrature: given both, group means are Gaussian about mu, squares within groups a multiple of chi-square.
    """
    log_tau, log_sigma = np.linspace(-9, 2.5, 400), np.linspace(-9, 2.5, 500)
    tau2, sigma2 = np.exp(2 * log_tau)[:, None], np.exp(2 * log_sigma)
    found: dict[str, list[float]] = {"tau": [], "sigma": []}
    for index in range(replications):
        y = truth["y"][index].reshape(GROUPS, -1)
        means, size = y.mean(axis=1), y.shape[1]
        of_mean = tau2 + sigma2 / size
        of_total = of_mean / GROUPS + 1.0
        log_density = (
            -0.5 * (tau2 + sigma2) + log_tau[:, None] + log_sigma
            - (GROUPS - 1) / 2 * np.log(of_mean) - means.var() * GROUPS / 2 / of_mean
            - np.log(of_total) / 2 - means.mean() ** 2 / 2 / of_total
            - GROUPS * (size - 1) / 2 * np.log(sigma2) - y.var(axis=1).sum() * size / 2 / sigma2
        )  # fmt: skip
        weight = np.exp(log_density - log_density.max())
        for name, grid, marginal in (("tau", log_tau, weight.sum(axis=1)), ("sigma", log_sigma, weight.sum(axis=0))):
            below = (np.cumsum(marginal) - marginal / 2) / marginal.sum()
            found[name].append(np.interp(np.log(truth[name][index]), grid, below))
    return {name: np.array(p) for name, p in found.items()}


def against_exact(rows: list[dict[str, Any]]) -> str:
    """Return a table of the normal family's ranks beside what its exact posterior predicts of them."""
    truth, ranks, cells = prior_draws("normal", STREAM), by_quantity(rows), []
    simulated, _ = band(len(rows))
    for name, p in exact_normal(truth, len(rows)).items():
        excess = ranks[name] / DRAWS - p
        own = tests(np.floor(p * (DRAWS + 1)).astype(int), simulated)
        mean = f"{excess.mean():+.4f} +- {excess.std() / np.sqrt(len(p)):.4f}"
        sds = [f"{excess.std():.4f}", f"{np.sqrt(np.mean(p * (1 - p)) / DRAWS):.4f}"]
        cells.append([name, mean, *sds, f"{own[0]:.3f}", f"{own[1]:.3f}"])
    head = ["quantity", "rank / 99 less exact, mean", "sd", "sd of 99 exact draws", "p of the exact, chi-square"]
    return markdown_table([*head, "p of the exact, ECDF band"], cells)


def histograms(stored: dict[str, list[dict[str, Any]]]) -> str:
    """Return a table of how many ranks of the skewed families are in each of ten bins."""
    edges = np.linspace(-0.5, DRAWS + 0.5, 11)
    cells = [
        [family, name, *map(str, np.histogram(ranks, bins=edges)[0])]
        for family in SKEWED
        for name, ranks in by_quantity(stored.get(family, [])).items()
    ]
    return markdown_table(["family", "quantity", *(f"{10 * k} to {10 * k + 9}" for k in range(10))], cells)


def by_quantity(rows: list[dict[str, Any]]) -> dict[str, np.ndarray]:
    """Return the ranks of each quantity over the replications that were fitted."""
    fitted = [row["ranks"] for row in rows if "ranks" in row]
    return {name: np.array([r[name] for r in fitted]) for name in (fitted[0] if fitted else {})}


def report(stored: dict[str, list[dict[str, Any]]], hyper: str) -> list[str]:
    """Return the parts of the page and draw its picture."""
    cells, skewed, low = [], [], []
    bands: dict[int, Any] = {}
    for family, rows in stored.items():
        for name, ranks in by_quantity(rows).items():
            simulated, _ = bands.setdefault(len(ranks), band(len(ranks)))
            chi, ecdf = tests(ranks, simulated)
            low.append([chi < LEVEL, ecdf < LEVEL])
            skewed.append(family in SKEWED)
            cells.append([family, name, f"{len(ranks)}", f"{ranks.mean() / DRAWS:.3f}", f"{chi:.3f}", f"{ecdf:.3f}"])
    draw(stored, bands)
    failed = {f: sum("failed" in r for r in rows) for f, rows in stored.items()}
    warned = {f: sum(r.get("warned", False) for r in rows) for f, rows in stored.items()}
    counts = [[f, f"{len(rows)}", f"{failed[f]}", f"{warned[f]}"] for f, rows in stored.items()]
    (chi, ecdf), (of_skewed, by_band) = np.sum(low, axis=0), np.array(low)[skewed].sum(axis=0)
    told = (
        f"Of {len(low)} quantities, {chi} have p < {LEVEL} by chi-square and {ecdf} by the band, of {sum(skewed)} "
        f"skewed ones {of_skewed} and {by_band}. Were all fits exact, {LEVEL * len(low):.0f} would by chance.\n"
    )
    head = ["family", "quantity", "replications", "mean rank / 99", "p, chi-square", "p, ECDF band"]
    return [
        header("Simulation-based calibration", "docs/benchmarks/calibration.py"),
        INTRODUCTION.format(hyper="the default" if hyper == "default" else f'`hyper="{hyper}"`'),
        told,
        "![ECDF of ranks less the uniform one](calibration.png)\n",
        markdown_table(head, cells),
        *([HISTOGRAM, histograms(stored)] if SKEWED.keys() & stored.keys() else []),
        *([EXACT, against_exact(stored["normal"])] if "normal" in stored else []),
        "## Replications\n",
        markdown_table(["family", "replications", "failed", "warned"], counts),
    ]


def draw(stored: dict[str, list[dict[str, Any]]], bands: dict[int, Any]) -> None:
    """Draw the ECDFs of ranks less the uniform one, with the simultaneous band."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(5, 4, figsize=(11, 12), sharex=True, sharey=True, layout="constrained")
    x = (np.arange(DRAWS) + 1) / (DRAWS + 1)
    for axis in axes.flat[len(stored) :]:
        axis.remove()
    for axis, (family, rows) in zip(axes.flat, stored.items(), strict=False):
        quantities = by_quantity(rows)
        for name, ranks in quantities.items():
            ecdf = np.array([np.mean(ranks <= z) for z in range(DRAWS)])
            axis.step(x, ecdf - x, where="post", lw=1, label=name)
        if quantities:
            low, high = bands[len(next(iter(quantities.values())))][1]
            axis.fill_between(x, low - x, high - x, step="post", color="0.88", lw=0)
        axis.set_title(family.replace("_", " "), fontsize=10)
        axis.legend(fontsize=6, ncols=2, frameon=False)
    figure.supxlabel("rank / 100")
    figure.supylabel("ECDF less uniform")
    figure.savefig(PICTURE, dpi=90)
    plt.close(figure)


def load() -> dict[str, dict[str, list[dict[str, Any]]]]:
    """Return the stored replications by treatment of the hyperparameters, then by family."""
    return json.loads(ROWS.read_text()) if ROWS.exists() else {}


def store(stored: dict[str, dict[str, list[dict[str, Any]]]]) -> None:
    """Write all replications, one family a line."""
    parts = []
    for hyper, families in stored.items():
        lines = [f"{json.dumps(f)}: {json.dumps(rows, separators=(',', ':'))}" for f, rows in families.items()]
        parts.append(f"{json.dumps(hyper)}: {{\n" + ",\n".join(lines) + "\n}")
    ROWS.write_text("{" + ",\n".join(parts) + "}\n")


def main() -> None:
    """Make the missing replications and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--families", nargs="*", choices=list(FAMILIES), default=list(FAMILIES), metavar="NAME")
    parser.add_argument("--replications", type=int, default=200)
    parser.add_argument("--hyper", default="default")
    parser.add_argument("--page-only", action="store_true", help="write the page from the stored rows")
    arguments = parser.parse_args()
    logging.disable(logging.INFO)
    stored = load()
    families = stored.setdefault(arguments.hyper, {})
    for family in [] if arguments.page_only else arguments.families:
        rows = families.setdefault(family, [])
        truth = prior_draws(family, STREAM)
        for index in range(len(rows), arguments.replications):
            rows.append(replicate(family, truth, index, arguments.hyper))
            store(stored)
        print(f"{family}: {len(rows)} replications", flush=True)
    print(write_page("calibration", report(families, arguments.hyper)))


INTRODUCTION = """\
A replication draws true values from the prior and data from them, and fits them by {hyper}. The rank of a true value is
that among 99 independent draws. Most models have eight groups with a learned mean and scale.

- Areas: cases on a map of 26 areas, one an island, by `BYM2`. Surface: counts at 60 places, by `SPDE`.
- Two predictors: groups with a noise of their own, counts with more zeros or dispersion by a covariate. Choices: four
  categories by a covariate.
- Skewed posteriors, of which few observations tell: bits of 20 patients with three visits, two arms of 10 trials, of
  which a fifth have no event, and 12 groups of two counts, of which half are zero.

Of groups with a noise of their own 42 fits warned that standard deviations may be a tenth too small; eight of them were
sampled, and had 0.91 to 1.08 of those of NUTS where its chains did not diverge. Of counts with more zeros 19 did not
settle, before such fits were repeated with half a power.

Two p values test that ranks are uniform: a chi-square test of 20 bins, and the simultaneous band around the ECDF of
Säilynoja, Bürkner and Vehtari (2022). The picture shades that band at 95%.
"""

HISTOGRAM = """## Ranks of skewed posteriors

How many ranks are in each of ten bins; a tenth would be by chance.
"""

EXACT = """## The normal family against its exact posterior

Ranks move with the few hundred true values that were drawn. In this family quadrature gives the exact posterior, and
with it the exact probability of a smaller value. A rank less that probability is due to the fit and its 99 draws
alone. The exact probabilities, tested like ranks, show what is due to the true values.
"""

if __name__ == "__main__":
    main()
