"""Pictures of preferences for sushi: calibration, a person who likes one group of kinds, a map, and ranks.

    python -m docs.benchmarks preferences_figures

Takes some minutes on one core; needs sushi3 in PYMC_EP_DATA. Writes its section of docs/benchmarks/preferences.md.
"""

from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import pymc as pm
from scipy.stats import binomtest

import pymc_ep as pmep
from docs.benchmarks._common import PAGES, header, markdown_table, write_page
from docs.benchmarks._films import PROPER
from docs.benchmarks.preferences import PROTOCOLS, drawn, model_of
from pymc_ep.compat import group
from pymc_ep.datasets import load_sushi, pairs_from_rankings

NAME = "docs/benchmarks/preferences_figures.py"
SEEDS = range(3)
EDGES = np.linspace(0.5, 1.0, 11)
TRAINED = (1, 2, 5, 10, 20, 50, 100, 200, 500)
N_NEWCOMERS, N_HELD_OUT = 40, 100
GROUP, GROUP_NAME = "group_7", "roe"
"""A group of kinds of sushi, with its name in the publisher's notes."""
ENGLISH = "shrimp/sea eel/tuna/squid/sea urchin/salmon roe/egg/fatty tuna/tuna roll/cucumber roll"
"""Names of the ten kinds of Sushi-A, in their order."""
ARROWS = {"heaviness": "less oily", "price": "price", "frequency_eaten": "eaten often"}
"""Meaning of larger values of the features."""
DPI = 110
HEAD = ["Probability said", "Comparisons", "Mean said", "Share that came true", "95% interval"]
CALIBRATION = """\
Sushi-B, GPVU, proper priors: three draws of 5,000 people with ten comparisons each, and one more to predict.
Of each held-out comparison this counts the kind that is said to win with more than 1/2. Intervals are Wilson's.
"""
PICTURES = f"""\
Left: shares of the table with their intervals. Right: {N_NEWCOMERS} newcomers who prefer {GROUP_NAME} to any other
kind, by the number of such comparisons learned from. One line has the mean probability of {N_HELD_OUT} more of these;
the other that of {N_HELD_OUT} comparisons of two other kinds, in favour of what people like better on average. Bands
have 90% of the newcomers.

![Shares of held-out comparisons that came true against probabilities, and probabilities for newcomers against numbers
of comparisons](preferences.png)

The map of the ten kinds of Sushi-A, from ten comparisons of each of 2,000 people, by `pymc_ep.plots.plot_item_map`,
and the ranks of one of them by `plot_item_ranks`. Features are the publisher's.

![Kinds of sushi in two principal directions with arrows of features, and probabilities of their ranks for one
person](preferences_map.png)
"""


def fitted(seed: int) -> tuple[Any, pm.Model, np.ndarray, np.ndarray]:
    """Fit Sushi-B; return the result, the model, features and probabilities of the held-out winners."""
    x, train, held_out = drawn(PROTOCOLS["B"], seed)
    model = model_of("GPVU", PROTOCOLS["B"], x, train, priors=PROPER)
    idata = pmep.fit(model=model, draws=0, progressbar=False)
    return idata, model, x, np.exp(pmep.log_predictive(idata, model, {"prefers": held_out})["prefers"].to_numpy())


def reliability(p: np.ndarray) -> list[tuple[float, int, float, Any]]:
    """Return each bin of the larger probability: lower edge, count, mean, and test of the share that came true."""
    said, came = np.maximum(p, 1.0 - p), p > 0.5
    which = np.clip(np.digitize(said, EDGES) - 1, 0, len(EDGES) - 2)
    rows = []
    for k in range(len(EDGES) - 1):
        here = which == k
        rows.append((EDGES[k], int(here.sum()), float(said[here].mean()), binomtest(int(came[here].sum()), here.sum())))
    return rows


def interval(test: Any) -> tuple[float, float]:
    """Return the ends of an interval of a share."""
    low, high = test.proportion_ci(method="wilson")
    return float(low), float(high)


def for_newcomers(idata: Any, x: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Return each newcomer's mean probabilities of held-out comparisons of the group, and of other kinds."""
    rng, features = np.random.default_rng(n), load_sushi("b").features
    own = np.flatnonzero(features[GROUP].to_numpy() > 0)
    others = np.setdiff1d(np.arange(len(features)), own)
    means = group(idata, "posterior_mean")
    users = np.repeat(np.arange(N_NEWCOMERS), n + N_HELD_OUT)
    every = np.array([rng.permutation(len(own) * len(others))[: n + N_HELD_OUT] for _ in range(N_NEWCOMERS)])
    winners, losers = own[every // len(others)].ravel(), others[every % len(others)].ravel()
    train = np.tile(np.arange(n + N_HELD_OUT) < n, N_NEWCOMERS)
    protocol = PROTOCOLS["B"]._replace(n_users=N_NEWCOMERS)
    rows = {"users": users[train], "winners": winners[train], "losers": losers[train]}
    model = model_of("GPVU", protocol, x, rows)
    start = {name: means[name].to_numpy() for name in ("V", "b", "sigma")}
    found = pmep.fit(model=model, hyper="fixed", start=start, draws=0, progressbar=False)
    pairs = np.array([rng.choice(others, 2, replace=False) for _ in range(N_NEWCOMERS * N_HELD_OUT)])
    order = np.argsort(-start["b"][pairs], axis=1)
    first, second = np.take_along_axis(pairs, order, axis=1).T
    who = np.repeat(np.arange(N_NEWCOMERS), N_HELD_OUT)
    given = (users[~train], winners[~train], losers[~train]), (who, first, second)
    each = (pmep.log_predictive(found, model, {"prefers": one})["prefers"].to_numpy() for one in given)
    related, unrelated = (np.exp(log_p).reshape(N_NEWCOMERS, -1).mean(axis=1) for log_p in each)
    return related, unrelated


def draw_probabilities(rows: list[tuple[float, int, float, Any]], curves: np.ndarray) -> None:
    """Draw reliability and the probabilities for newcomers, (numbers, 2, newcomers)."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.0, 3.6), layout="constrained")
    left.plot([0.5, 1], [0.5, 1], color="gray", linestyle="--", label="calibrated")
    said = [mean for _, _, mean, _ in rows]
    shares = np.array([test.statistic for *_, test in rows])
    ends = np.array([interval(test) for *_, test in rows]).T
    left.errorbar(said, shares, np.abs(ends - shares), fmt="o", markersize=4, capsize=2, label="held out, with 95%")
    left.set(xlabel="probability said", ylabel="share that came true")
    left.legend(frameon=False)
    for which, name in enumerate((f"{GROUP_NAME} over another kind", "two other kinds")):
        low, middle, high = (f(curves[:, which], axis=1) for f in (_low, np.mean, _high))
        right.plot(TRAINED, middle, "o-", markersize=4, label=name)
        right.fill_between(TRAINED, low, high, alpha=0.2, linewidth=0)
    right.set(xscale="log", xlabel="comparisons learned from", ylabel="mean probability, held out", ylim=(0.3, 1.02))
    right.legend(frameon=False, title="held-out comparisons of")
    figure.savefig(PAGES / "preferences.png", dpi=DPI)
    plt.close(figure)


def _low(values: np.ndarray, axis: int) -> np.ndarray:
    return np.quantile(values, 0.05, axis=axis)


def _high(values: np.ndarray, axis: int) -> np.ndarray:
    return np.quantile(values, 0.95, axis=axis)


def draw_map() -> None:
    """Draw the map of Sushi-A and the ranks of one person."""
    rankings, features = load_sushi("a")
    rankings = rankings.sample(2000, random_state=0).reset_index(drop=True)
    pairs = pairs_from_rankings(rankings, n=10, seed=0)
    number = {name: k for k, name in enumerate(features.index)}
    coords = {"person": rankings.index, "kind": ENGLISH.split("/"), "factor": range(3)}
    with pm.Model(coords=coords):
        b, sigma, V = PROPER
        terms = {"b": b("b", dims="kind"), "sigma": sigma("sigma"), "V": V("V", dims=("kind", "factor"))}
        f = pmep.PreferenceUtility("f", dims=("person", "kind"), **terms)
        winners, losers = (pairs[which].map(number).to_numpy() for which in ("winner", "loser"))
        pmep.PairwiseProbit("prefers", f, users=pairs["user"].to_numpy(), winners=winners, losers=losers)
        idata = pmep.fit(draws=0, progressbar=False)
        ranks = pmep.rank_items(idata, person=[0])
    figure, axes = plt.subplots(1, 2, figsize=(10.0, 4.4), layout="constrained", width_ratios=(1.1, 1.0))
    pmep.plots.plot_item_map(idata, "V", features=features[list(ARROWS)].rename(columns=ARROWS), ax=axes[0])
    pmep.plots.plot_item_ranks(ranks, ax=axes[1])
    figure.savefig(PAGES / "preferences_map.png", dpi=DPI)
    plt.close(figure)


def main() -> None:
    """Fit, draw, and write the section."""
    draw_map()
    fits = [fitted(seed) for seed in SEEDS]
    rows = reliability(np.concatenate([p for *_, p in fits]))
    idata, _, x, _ = fits[0]
    draw_probabilities(rows, np.array([for_newcomers(idata, x, n) for n in TRAINED]))
    lines = []
    for low, count, said, test in rows:
        ends = " to ".join(f"{end:.3f}" for end in interval(test))
        lines.append([f"{low:.2f} to {low + 0.05:.2f}", f"{count}", f"{said:.3f}", f"{test.statistic:.3f}", ends])
    parts = [CALIBRATION, markdown_table(HEAD, lines), PICTURES]
    write_page("preferences_figures", [header("Calibration and pictures", NAME), *parts])


if __name__ == "__main__":
    main()
