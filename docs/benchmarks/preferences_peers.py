"""Preferences of one person beside choix and BoTorch: rankings of sushi, and matches of players of known strengths.

    python -m docs.benchmarks.preferences_peers --peers PYTHON

PYTHON is an interpreter that has choix and botorch. Takes five minutes on one core; finished rows are
kept. Writes docs/benchmarks/preferences_peers.md; needs sushi3 in PYMC_EP_DATA.
"""

import argparse
import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pymc as pm
from scipy.special import expit

import pymc_ep as pmep
from docs.benchmarks._common import header, markdown_table, mean_se, run_elsewhere, write_page
from docs.benchmarks._images import Store
from pymc_ep.datasets import load_sushi, pairs_from_rankings

NAME = "docs/benchmarks/preferences_peers.py"
N_PEOPLE, N_TRAIN = 20, 30
"""People, and comparisons of each to learn from, of the 45 that a ranking of ten kinds implies."""
N_PLAYERS, N_MATCHES, N_NEW, STRENGTH, N_DRAWS = 100, 600, 400, 1.5, 5
"""Players, matches to learn from and to predict, standard deviation of strengths, and draws of everything."""
WIDEST = 10.0
"""Scale of the prior of sigma: rankings contradict nothing, and their evidence has its maximum at infinity. It is the
largest standard deviation that choix is offered."""
KINDS: tuple[tuple[str, Callable[..., Any], str], ...] = (
    ("ep", pmep.PairwiseProbit, "probit"),
    ("ep", pmep.PairwiseLogit, "logit"),
    ("laplace", pmep.PairwiseProbit, "probit"),
    ("laplace", pmep.PairwiseLogit, "logit"),
    ("jaakkola", pmep.PairwiseLogit, "logit"),
)
"""Method, comparisons and link."""
PEER = """
import json, sys, time
from importlib.metadata import version
import numpy as np
import choix, torch
from scipy.stats import norm
from botorch.fit import fit_gpytorch_mll
from botorch.models.pairwise_gp import PairwiseGP, PairwiseLaplaceMarginalLogLikelihood
from gpytorch.kernels import RBFKernel, ScaleKernel
torch.set_num_threads(1)
torch.set_default_dtype(torch.double)
ALPHAS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)

def optimum(n, pairs, alpha):
    found = choix.opt_pairwise(n, pairs, alpha=alpha)
    return lambda i, j: 1.0 / (1.0 + np.exp(found[j] - found[i]))

def propagated(n, pairs, alpha):
    mean, cov = choix.ep_pairwise(n, pairs, alpha, model="probit")
    def probability(i, j):
        v = cov[i, i] + cov[j, j] - 2.0 * cov[i, j]
        return norm.cdf((mean[i] - mean[j]) / np.sqrt(1.0 + v))
    return probability

def validated(fit, n, pairs):
    # The penalty of the best log score in five folds.
    folds, scores = np.random.default_rng(0).permutation(len(pairs)) % 5, []
    for alpha in ALPHAS:
        score = 0.0
        for k in range(5):
            probability = fit(n, [tuple(p) for p in pairs[folds != k]], alpha)
            held = pairs[folds == k]
            score += np.log(np.maximum(probability(held[:, 0], held[:, 1]), 1e-12)).sum()
        scores.append(score)
    return fit(n, [tuple(p) for p in pairs], ALPHAS[int(np.argmax(scores))])

def gaussian_process(x, pairs):
    covar = ScaleKernel(RBFKernel())
    model = PairwiseGP(torch.tensor(x), torch.tensor(pairs), covar_module=covar)
    fit_gpytorch_mll(PairwiseLaplaceMarginalLogLikelihood(model.likelihood, model))
    model.eval()
    found = model.posterior(torch.tensor(x))
    mean = found.mean.squeeze(-1).detach().numpy()
    cov = found.distribution.covariance_matrix.detach().numpy()
    def probability(i, j):
        v = np.maximum(cov[i, i] + cov[j, j] - 2.0 * cov[i, j], 0.0)
        return norm.cdf((mean[i] - mean[j]) / np.sqrt(2.0 + v))
    return probability

out = []
for path in sys.argv[1:]:
    data = np.load(path)
    x, pairs, test = data["x"], data["train"], data["test"]
    fits = {
        "choix " + version("choix") + ", opt_pairwise": lambda: validated(optimum, len(x), pairs),
        "choix " + version("choix") + ", ep_pairwise": lambda: validated(propagated, len(x), pairs),
        "BoTorch " + version("botorch") + ", PairwiseGP": lambda: gaussian_process(x, pairs),
    }
    answer = {}
    for name, fit in fits.items():
        began = time.perf_counter()
        probability = fit()
        answer[name] = [time.perf_counter() - began, probability(test[:, 0], test[:, 1]).tolist()]
    out.append(answer)
    print(json.dumps(out), flush=True)
"""
"""Probabilities of the comparisons of a test, by each peer. Penalties of choix are chosen by cross-validation."""


class Person(NamedTuple):
    """Features of items, or of players an indicator of each, and pairs of which the first item has won."""

    x: np.ndarray
    train: np.ndarray
    test: np.ndarray


def sushi_people() -> list[Person]:
    """Return comparisons of ten kinds of sushi by some people, each on their own."""
    rankings, features = load_sushi("a")
    features = features.loc[:, features.std() > 0]
    x = ((features - features.mean()) / features.std()).to_numpy()
    some = rankings.sample(N_PEOPLE, random_state=0).reset_index(drop=True)
    pairs = pairs_from_rankings(some, n=45, seed=0)
    number = {name: k for k, name in enumerate(features.index)}
    rows = np.stack([pairs[which].map(number) for which in ("winner", "loser")], axis=1).reshape(N_PEOPLE, 45, 2)
    return [Person(x, own[:N_TRAIN], own[N_TRAIN:]) for own in rows]


def players() -> list[Person]:
    """Return matches of players whose strengths are normal, by the model of Bradley and Terry."""
    out = []
    for seed in range(N_DRAWS):
        rng = np.random.default_rng(seed)
        strength = rng.normal(0.0, STRENGTH, N_PLAYERS)
        one = rng.integers(0, N_PLAYERS, N_MATCHES + N_NEW)
        two = (one + rng.integers(1, N_PLAYERS, len(one))) % N_PLAYERS
        won = rng.random(len(one)) < expit(strength[one] - strength[two])
        pairs = np.stack([np.where(won, one, two), np.where(won, two, one)], axis=1)
        out.append(Person(np.eye(N_PLAYERS), pairs[:N_MATCHES], pairs[N_MATCHES:]))
    return out


def ours(person: Person, method: str, compare: Callable[..., Any], *, by_features: bool) -> tuple[float, np.ndarray]:
    """Return seconds, and the probabilities of the comparisons of the test."""
    began = time.perf_counter()
    with pm.Model(coords={"item": range(len(person.x))}) as model:
        terms: dict[str, Any] = {"sigma": pm.HalfNormal("sigma", WIDEST)}
        if by_features:
            length = pm.InverseGamma("length", 3.0, 2.0 * np.sqrt(person.x.shape[1]))
            kernel = pm.gp.cov.ExpQuad(person.x.shape[1], ls=length)
            terms |= {"kernel": kernel, "X": person.x, "jitter": 0.1}
        else:
            terms["kernel"] = np.eye(len(person.x))
        f = pmep.PreferenceUtility("f", dims="item", **terms)
        compare("prefers", f, winners=person.train[:, 0], losers=person.train[:, 1])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pmep.ConvergenceWarning)
        idata = pmep.fit(method, model=model, draws=0, progressbar=False)
    seconds = time.perf_counter() - began
    log_p = pmep.log_predictive(idata, model, {"prefers": tuple(person.test.T)})["prefers"].to_numpy()
    return seconds, np.exp(log_p)


def scores(answers: list[tuple[float, np.ndarray]]) -> list[str]:
    """Return bits and Brier score with standard errors over people or draws, and median seconds."""
    bits = [-float(np.log2(np.maximum(p, 1e-12)).mean()) for _, p in answers]
    brier = [float(((1.0 - p) ** 2).mean()) for _, p in answers]
    cells = [mean_se(float(np.mean(v)), float(np.std(v, ddof=1) / np.sqrt(len(v))), 3) for v in (bits, brier)]
    return [*cells, f"{np.median([seconds for seconds, _ in answers]):.2f}"]


def section(store: Store, name: str, title: str, people: list[Person], peers: str, *, by_features: bool) -> list[str]:
    """Return heading and table of a set; rows that are not there yet are measured."""
    rows = []
    for features in dict.fromkeys((False, by_features)):
        for method, compare, link in KINDS:
            fit = f'"{method}", {link}, {"kernel of features" if features else "independent items"}'
            fits = partial(ours, method=method, compare=compare, by_features=features)
            kept = store.get(f"{name}/{fit}", lambda: {"cells": scores([fits(person) for person in people])})  # noqa: B023
            assert kept is not None
            rows.append([fit, *kept["cells"]])
    kept = store.get(f"{name}/peers", lambda: {"rows": peer_rows(people, peers)})
    assert kept is not None
    head = ["Fit", "Bits (standard error)", "Brier score", "Seconds"]
    return [f"## {title}\n", markdown_table(head, [*rows, *kept["rows"]])]


def peer_rows(people: list[Person], peers: str) -> list[list[str]]:
    """Return the rows of the peers."""
    answers = run_elsewhere(peers, PEER, [person._asdict() for person in people], 600.0)
    return [[name, *scores([(one[name][0], np.array(one[name][1])) for one in answers])] for name in answers[0]]


def main() -> None:
    """Measure both sets, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", metavar="PYTHON", required=True, help="interpreter that has choix and botorch")
    peers, store = parser.parse_args().peers, Store("preferences_peers")
    about = (
        "Bits and Brier score of held-out comparisons: chance is 1 and 0.25. Seconds are medians of a fit: those of"
        " choix have its cross-validation of the penalty, BoTorch's the search for hyperparameters, and ours the"
        " integration over these.\n"
    )
    parts = [header("Preferences of one person beside other packages", NAME), about]
    sushi = f"Ten kinds of sushi: {N_PEOPLE} people, {N_TRAIN} comparisons of each"
    parts += section(store, "sushi", sushi, sushi_people(), peers, by_features=True)
    matches = f"{N_PLAYERS} players, {N_MATCHES} matches, {N_DRAWS} draws"
    parts += section(store, "players", matches, players(), peers, by_features=False)
    write_page("preferences_peers", [*parts, store.measured()])


if __name__ == "__main__":
    main()
