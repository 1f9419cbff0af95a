"""Preferences at scale: seconds of a pass over MovieLens, their growth with comparisons and items, memory, block EM.

    python -m docs.benchmarks preferences_scaling

Takes some ten minutes on a busy core. Writes docs/benchmarks/preferences_scaling.md; needs ml-100k, ml-1m and sushi3 in
PYMC_EP_DATA.
"""

import re
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
import pymc as pm

import pymc_ep as pmep
from docs.benchmarks._common import header, markdown_table, write_page
from docs.benchmarks.preferences import PROTOCOLS, drawn, model_of
from pymc_ep.datasets import load_movielens
from pymc_ep.engines.base import Report
from pymc_ep.forms.cache import compiled_form
from pymc_ep.models.preferences.engine.approximations import EXPECTATION
from pymc_ep.models.preferences.engine.divided import divided
from pymc_ep.models.preferences.engine.evidence import ComparisonEvidence, State
from pymc_ep.models.preferences.engine.evidence_search import maximise
from pymc_ep.models.preferences.engine.kernels import DenseKernel
from pymc_ep.models.preferences.engine.maximisation import Statistics, maximised
from pymc_ep.models.preferences.engine.users import Effort, ObservedComparisons, UserFactors, expect
from pymc_ep.models.preferences.engine.values import ComparedUsers, Learned, UtilityPrior

NAME = "docs/benchmarks/preferences_scaling.py"
EVERY = Learned(mean=True, factors=True, scale=True)
LEAST = 20
"""Number of comparisons below which a user is left out."""
WIDTH = 30
"""Number of factors, as in the paper."""
PASSES = 4
"""Number of EM iterations that are timed; the first one is apart."""
CASES = (
    ("100k", 28, "17k: 1 s"),
    ("100k", 62, "33k: 7 s"),
    ("100k", 88, "43k: 27 s"),
    ("100k", 900, "-"),
    ("1m", 31, "147k: 9 s"),
    ("1m", 90, "349k: 60 s"),
    ("1m", 166, "534k: 900 s"),
)
"""Data, largest number of comparisons of a user, and the published pairs and seconds of E on four cores."""
PER_USER = (25, 100, 400, 1600)
ITEMS = (100, 300, 1000, 3000, 10_000)
BLOCKS = 10
BUDGET = 5.0
"""CPU seconds of each way to learn."""


class Case(NamedTuple):
    """A problem with the prior that a fit starts from."""

    form: Any
    compared: ComparedUsers
    theta: np.ndarray


def movielens(size: str, most: int, n_users: int | None = None) -> Case:
    """Return highest-rated against lowest-rated films of each user, at most so many pairs of one, drawn evenly."""
    rng, rows = np.random.default_rng(0), []
    ratings = load_movielens(size)
    for user, own in ratings.groupby("user"):
        rating, item = own["rating"].to_numpy(), own["item"].to_numpy()
        best, worst = item[rating == rating.max()], item[rating == rating.min()]
        n = len(best) * len(worst)
        if rating.max() > rating.min() and n >= (most if n_users else LEAST):
            k = rng.choice(n, min(most, n), replace=False)
            rows.append((np.full(len(k), user), best[k // len(worst)], worst[k % len(worst)]))
    users, winners, losers = (np.concatenate(part) for part in zip(*rows[:n_users]))
    distinct, users = np.unique(users, return_inverse=True)
    items, places = np.unique(np.concatenate([winners, losers]), return_inverse=True)
    titles = ratings.drop_duplicates("item").set_index("item")["title"].loc[items]
    return case_of(len(distinct), _years(titles), (users, *places.reshape(2, -1)))


def _years(titles: Any) -> np.ndarray:
    """Return the decades of films, by their titles, as features (I, 1)."""
    years = [int(found[-1]) if (found := re.findall(r"\((\d{4})", title)) else 1990 for title in titles]
    return np.array(years)[:, None] / 10.0


def case_of(n_users: int, x: np.ndarray, rows: tuple[np.ndarray, ...]) -> Case:
    """Return the problem of comparisons of items with features `x`, with small random factors."""
    with pm.Model(coords={"user": range(n_users), "item": range(len(x)), "factor": range(WIDTH)}) as model:
        V, b, sigma = pm.Flat("V", dims=("item", "factor")), pm.Flat("b", dims="item"), pm.HalfFlat("sigma")
        kernel = pm.gp.cov.ExpQuad(x.shape[1], ls=1.0)
        f = pmep.PreferenceUtility("f", V=V, b=b, kernel=kernel, X=x, sigma=sigma, jitter=0.1, dims=("user", "item"))
        pmep.PairwiseProbit("prefers", f, **dict(zip(("users", "winners", "losers"), rows)))
    return started(model)


def started(model: pm.Model) -> Case:
    """Return a model's problem, with small random factors."""
    form = compiled_form(model, None)
    prior, _ = form.prior(form.start)
    factors = 0.1 * np.random.default_rng(0).standard_normal(prior.factors.shape)
    return Case(form, form.compared(), form.theta_of(form.start, prior._replace(factors=factors)))


def timed(run: Callable[..., Any], *given: Any) -> tuple[Any, float, float]:
    """Return a result, seconds and CPU seconds of all threads."""
    wall, cpu = time.perf_counter(), time.process_time()
    found = run(*given)
    return found, time.perf_counter() - wall, time.process_time() - cpu


def passes(case: Case, n: int) -> Iterator[dict[str, tuple[float, float]]]:
    """Yield seconds and CPU seconds of E, gradient and M of EM iterations."""
    comparisons, form = case.compared.comparisons, case.form
    data, own = ObservedComparisons(comparisons, np.ones(len(comparisons.firsts))), UserFactors.first(comparisons)
    (prior, kernel), theta, site = form.prior(case.theta), case.theta, form.form.comparisons.site
    for _ in range(n):
        shared = prior.mean, kernel.covariance(prior), site, EXPECTATION, Effort(1e-8, 200)
        (own, totals), *of_e = timed(expect, data, own, *shared)
        _, *of_gradient = timed(form.gradient, theta, totals.slope, totals.curvature)
        mean = Statistics(totals.slope / comparisons.n_users, totals.curvature / comparisons.n_users)
        prior, *of_m = timed(maximised, prior, kernel, mean, EVERY)
        theta = form.theta_of(theta, prior)
        yield {"e": tuple(of_e), "gradient": tuple(of_gradient), "m": tuple(of_m)}


def median(found: list[dict[str, tuple[float, float]]], what: str) -> list[str]:
    """Return medians of seconds and CPU seconds, formatted."""
    return [f"{np.median([one[what][k] for one in found]):.2f}" for k in (0, 1)]


def time_table(report: Callable[[str], None]) -> list[str]:
    """Return the table of MovieLens."""
    list(passes(movielens("100k", 25), 2))  # compiles
    rows = []
    for size, most, published in CASES:
        case = movielens(size, most)
        first, *rest = passes(case, PASSES)
        counts = case.compared.comparisons
        rows.append([f"{size}, {most}", str(counts.n_users), str(case.form.n_items), f"{len(counts.firsts):,}"])
        rows[-1] += [f"{first['e'][1]:.2f}", *median(rest, "e"), published, median(rest, "gradient")[1]]
        rows[-1] += [median(rest, "m")[1]]
        report(str(rows[-1]))
    head = ["Data, most pairs of a user", "Users", "Items", "Pairs", "First E, CPU s", "E, s", "E, CPU s"]
    head += ["Published E", "Gradient, CPU s", "M, CPU s"]
    about = (
        f"{WIDTH} factors, kernel of the films' decades. E settles the factors of all users to 1e-8; gradient and M "
        f"take its sums. Medians of {PASSES - 1} iterations of EM, after a first one from nothing. "
        "Seconds on two cores, CPU seconds of all threads.\n"
    )
    return ["## MovieLens\n", about, markdown_table(head, rows)]


def growth_tables(report: Callable[[str], None]) -> list[str]:
    """Return the tables of growth with comparisons of a user, and with items."""
    rows = []
    for most in PER_USER:
        case = movielens("1m", most, n_users=50)
        _, *rest = passes(case, 3)
        n = float(np.diff(case.compared.comparisons.item_ends).mean())
        rows.append([f"{most:,}", f"{n:.0f}", f"{1e3 * float(median(rest, 'e')[1]) / 50:.1f}"])
        report(str(rows[-1]))
    found = ["## Comparisons of a user\n", "50 users of MovieLens-1M.\n"]
    found.append(markdown_table(["Pairs of a user", "Items of a user", "E, CPU ms a user"], rows))
    rows = []
    for n in ITEMS:
        seconds = _of_items(n)
        rows.append([f"{n:,}", *(f"{one:.2f}" for one in seconds)])
        report(str(rows[-1]))
    found += ["## Items\n", f"{WIDTH} factors. The Cholesky factor of K is computed once a fit.\n"]
    return [*found, markdown_table(["Items", "Factor of K, CPU s", "M, CPU s"], rows)]


def _of_items(n: int) -> list[float]:
    """Return CPU seconds of the Cholesky factor of K, and of M."""
    rng = np.random.default_rng(0)
    x = rng.random(n)
    kernel = DenseKernel(np.exp(-np.abs(x[:, None] - x)) + 0.1 * np.eye(n))
    factors = rng.normal(size=(n, 100))
    statistics = Statistics(rng.normal(size=n), factors @ factors.T / 1e5)
    prior = UtilityPrior(np.zeros(n), 0.1 * rng.normal(size=(n, WIDTH)), 1.0)
    _, _, of_root = timed(kernel.solve, np.zeros(n))
    _, _, of_m = timed(maximised, prior, kernel, statistics, EVERY)
    return [of_root, of_m]


def memory_line() -> str:
    """Return the peak memory of a search."""
    case = movielens("1m", 31)
    form, comparisons = case.form, case.compared.comparisons
    form.gradient(case.theta, np.zeros(form.n_items), np.zeros((form.n_items,) * 2))
    tracemalloc.start()
    search(case, max_iter=4)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    square = 8 * form.n_items**2
    return (
        f"## Memory\n\nA search over {len(comparisons.firsts):,} pairs of {form.n_items} items takes "
        f"{peak / 2**20:.0f} MiB at its peak, beside K: {peak / square:.1f} matrices of all items, of "
        f"{square / 2**20:.0f} MiB each. Blocks of users, of 32 MiB for each of several arrays, are part of it.\n"
    )


def search(case: Case, *, max_iter: int, save: Callable[[State], None] = lambda state: None) -> None:
    """Maximise the evidence by L-BFGS."""
    comparisons, form = case.compared.comparisons, case.form
    n_pairs = len(comparisons.firsts)
    with divided(comparisons, np.ones(n_pairs)) as users:
        evidence = ComparisonEvidence(
            users.partitions, comparisons.n_users, n_pairs, form.form.comparisons.site, Effort(1e-8, 200)
        )
        first = users.place(UserFactors.first(comparisons))
        maximise(evidence, form, case.theta, first, tol=1e-12, max_iter=max_iter, report=Report(), save=save)


class _OutOfTime(Exception):
    """Ends a search."""


def by_lbfgs(case: Case) -> float:
    """Return the log evidence that L-BFGS reaches in the time given."""
    best, began = [-np.inf], time.process_time()

    def save(state: State) -> None:
        best.append(state.totals.log_z)
        if time.process_time() - began > BUDGET:
            raise _OutOfTime

    with suppress(_OutOfTime):
        search(case, max_iter=10_000, save=save)
    return max(best)


def by_blocks(case: Case, n_blocks: int, *, decreasing: bool) -> float:
    """Return the log evidence that EM over blocks of users reaches in the time given; factors of users are kept.

    Sums of a block replace its earlier ones, or are averaged with decreasing weights.
    """
    form, comparisons = case.form, case.compared.comparisons
    site, effort, n_users = form.form.comparisons.site, Effort(1e-8, 200), comparisons.n_users
    mixed = np.random.default_rng(0).permutation(n_users)
    blocks = [comparisons.some(np.sort(part))[0] for part in np.array_split(mixed, n_blocks)]
    data = [ObservedComparisons(one, np.ones(len(one.firsts))) for one in blocks]
    own, sums = [UserFactors.first(one) for one in blocks], [None] * n_blocks
    (prior, kernel), average, t, began = form.prior(case.theta), None, 0, time.process_time()
    while time.process_time() - began < BUDGET:
        k = t % n_blocks
        own[k], totals = expect(data[k], own[k], prior.mean, kernel.covariance(prior), site, EXPECTATION, effort)
        share = blocks[k].n_users
        if decreasing:
            new, rate = (totals.slope / share, totals.curvature / share), (t + 2.0) ** -0.6
            average = new if average is None else [(1.0 - rate) * a + rate * b for a, b in zip(average, new)]
            slope, curvature = average
        else:
            sums[k] = (totals.slope, totals.curvature, share)
            known = [one for one in sums if one is not None]
            seen = sum(one[2] for one in known)
            slope, curvature = (sum(one[j] for one in known) / seen for j in (0, 1))
        prior = maximised(prior, kernel, Statistics(slope, curvature), EVERY)
        t += 1
    shared = prior.mean, kernel.covariance(prior), site, EXPECTATION, effort
    return sum(expect(one, mine, *shared)[1].log_z for one, mine in zip(data, own))


def block_table(report: Callable[[str], None]) -> list[str]:
    """Return the table of ways to learn."""
    protocol = PROTOCOLS["B"]
    x, train, _ = drawn(protocol, 0)
    rows = []
    for name, case in (
        ("Sushi-B", started(model_of("GPVU", protocol, x, train))),
        ("MovieLens-100k, 28", movielens("100k", 28)),
    ):
        n_pairs = len(case.compared.order)
        found = [by_lbfgs(case), by_blocks(case, 1, decreasing=False), by_blocks(case, BLOCKS, decreasing=False)]
        found.append(by_blocks(case, BLOCKS, decreasing=True))
        rows.append([name, *(f"{one / n_pairs:.4f}" for one in found)])
        report(str(rows[-1]))
    head = ["Data", "L-BFGS", "EM", f"EM, {BLOCKS} blocks, sums replaced", f"EM, {BLOCKS} blocks, averaged sums"]
    about = f"Log evidence a comparison, in nats, after {BUDGET:.0f} CPU seconds from the same start.\n"
    return ["## Blocks of users\n", about, markdown_table(head, rows)]


def main() -> None:
    """Measure, and write the page."""

    def report(line: str) -> None:
        print(line, flush=True)

    parts = [header("Preferences at scale", NAME)]
    parts += time_table(report) + growth_tables(report) + [memory_line()] + block_table(report)
    write_page("preferences_scaling", parts)


if __name__ == "__main__":
    main()
