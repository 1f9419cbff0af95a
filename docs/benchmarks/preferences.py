"""Preferences from comparisons of sushi: held-out comparisons beside the published figures, five draws of the data.

    python -m docs.benchmarks.preferences

Takes an hour on one core. Writes docs/benchmarks/preferences.md; needs sushi3 in PYMC_EP_DATA.
"""

import time
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pymc as pm

import pymc_ep as pmep
from docs.benchmarks._common import header, markdown_table, mean_se, write_page
from docs.benchmarks._films import FLAT, PROPER
from pymc_ep.compat import group
from pymc_ep.datasets import load_sushi, pairs_from_rankings

NAME = "docs/benchmarks/preferences.py"
SEEDS = range(5)
HELD_OUT = {"held_out": 0.1}
"""Comparisons that are held out while b and V are learned."""
EM = {"learn": "em", "max_iter": 50, "held_out": 0}
"""The paper's algorithm, capped."""
LEARNED: dict[str, tuple[tuple, dict[str, Any]]] = {
    "proper priors": (PROPER, {}),
    "flat, a tenth held out": (FLAT, HELD_OUT),
    "flat, to the end": (FLAT, {"held_out": 0}),
    "flat, EM, 50 iterations": (FLAT, EM),
}
"""Priors of b, sigma and V, and options of the fit."""
PUBLISHED = {
    ("A", "GPitem"): "0.875",
    ("A", "VU"): "0.856",
    ("A", "GPVU"): "0.798",
    ("B", "VU"): "0.730",
    ("B", "GPVU"): "0.690",
}
"""Bits a comparison, by EP (Khan, Ko and Seeger 2014)."""


class Protocol(NamedTuple):
    """A set of items, people drawn, their comparisons learned from (one more is held out), and factors."""

    items: str
    n_users: int
    n_train: int
    n_factors: int


PROTOCOLS = {"A": Protocol("a", 200, 3, 2), "B": Protocol("b", 5000, 10, 6)}


def model_of(
    kind: str,
    protocol: Protocol,
    x: np.ndarray,
    rows: dict[str, np.ndarray],
    compare: Callable[..., Any] = pmep.PairwiseProbit,
    priors: tuple = FLAT,
) -> pm.Model:
    """Return a model of comparisons, (users, winners, losers), of items with features `x`, (I, F)."""
    b, sigma, V = priors
    coords = {"user": range(protocol.n_users), "item": range(len(x)), "factor": range(protocol.n_factors)}
    with pm.Model(coords=coords) as model:
        terms: dict[str, Any] = {"b": b("b", dims="item"), "sigma": sigma("sigma")}
        if "VU" in kind:
            terms["V"] = V("V", dims=("item", "factor"))
        if "GP" in kind:
            # The paper's kernel, exp(-|x - x'|^2 / psi), with psi the number of features.
            terms |= {"kernel": pm.gp.cov.ExpQuad(x.shape[1], ls=np.sqrt(x.shape[1] / 2.0)), "X": x, "jitter": 0.1}
        f = pmep.PreferenceUtility("f", dims=("user", "item"), **terms)
        compare("prefers", f, **rows)
    return model


def drawn(protocol: Protocol, seed: int) -> tuple[np.ndarray, dict[str, np.ndarray], tuple[np.ndarray, ...]]:
    """Return features, comparisons to learn from, and those that are held out."""
    rankings, features = load_sushi(protocol.items)
    features = features.loc[:, features.std() > 0]
    some = rankings.sample(protocol.n_users, random_state=seed).reset_index(drop=True)
    pairs = pairs_from_rankings(some, n=protocol.n_train + 1, seed=seed)
    number = {name: k for k, name in enumerate(features.index)}
    rows = [pairs["user"].to_numpy(), *(pairs[which].map(number).to_numpy() for which in ("winner", "loser"))]
    last = pairs.groupby("user").cumcount().to_numpy() == protocol.n_train
    train = dict(zip(("users", "winners", "losers"), (part[~last] for part in rows)))
    x = ((features - features.mean()) / features.std()).to_numpy()
    return x, train, tuple(part[last] for part in rows)


def measured(
    kind: str,
    protocol: Protocol,
    options: dict[str, Any],
    compare: Callable[..., Any] = pmep.PairwiseProbit,
    priors: tuple = FLAT,
) -> tuple[list[float], list[float], list[float]]:
    """Return bits a held-out comparison, seconds and scales of utilities, for each seed."""
    bits, seconds, scales = [], [], []
    for seed in SEEDS:
        x, train, held_out = drawn(protocol, seed)
        model = model_of(kind, protocol, x, train, compare, priors)
        began = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", pmep.ConvergenceWarning)
            idata = pmep.fit(model=model, draws=0, progressbar=False, **options)
        seconds.append(time.perf_counter() - began)
        log_p = pmep.log_predictive(idata, model, {"prefers": held_out})["prefers"].to_numpy()
        bits.append(-float(log_p.mean()) / np.log(2))
        scales.append(float(group(idata, "posterior_mean")["f"].to_numpy().std()))
    return bits, seconds, scales


def section(name: str, protocol: Protocol, report: Callable[[str], None]) -> list[str]:
    """Return heading and table of a protocol."""
    rows = []
    for kind in ("mean alone", "GPitem", "VU", "GPVU"):
        for label, (priors, options) in LEARNED.items():
            bits, seconds, scales = measured(kind, protocol, options, priors=priors)
            rows.append(
                [
                    kind,
                    label,
                    mean_se(float(np.mean(bits)), float(np.std(bits, ddof=1) / np.sqrt(len(bits))), 3),
                    PUBLISHED.get((name, kind), "-"),
                    f"{np.median(seconds):.1f}",
                    f"{np.mean(scales):.2f}",
                ]
            )
            report(f"{name}: {rows[-1]}")
    head = ["Prior", "Learned", "Bits (standard error)", "Published", "Seconds", "Spread of utilities"]
    about = (
        f"{protocol.n_users} people, {protocol.n_train} comparisons of each to learn from and one held out, "
        f"{protocol.n_factors} factors.\n"
    )
    return [f"## Sushi-{name}\n", about, markdown_table(head, rows)]


def main() -> None:
    """Measure both protocols, and write the page."""
    about = (
        'Bits a held-out comparison: one is chance. Mean over five draws of people and comparisons. "Mean alone" has '
        "independent items around b, VU has factors, GPitem the kernel of features, GPVU both. Proper priors are "
        "Normal(0, 2) of b, Normal(0, 1) of V and HalfNormal(2) of sigma, and the fit has no option. The others are "
        'flat, as those of the paper: "a tenth held out" ends where these are most probable, "to the end" maximises '
        "the evidence, and EM is the paper's algorithm. Published are figures of the paper, by EM. Seconds are "
        "medians, compilation included, beside other work.\n"
    )
    parts = [header("Held-out comparisons of sushi", NAME), about]
    for name, protocol in PROTOCOLS.items():
        parts += section(name, protocol, lambda line: print(line, flush=True))
    write_page("preferences", parts)


if __name__ == "__main__":
    main()
