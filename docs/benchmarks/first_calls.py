"""What fits of Bambi's formulas give, of all families and terms of its documentation, without an option.

    python -m docs.benchmarks first_calls [--formulas NAME ...]

Each is fitted in a process of its own with a time limit, and empty compile caches. Writes
docs/benchmarks/first_calls.md; needs bambi. Ten minutes.
"""

import argparse
import json
import logging
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import pymc_ep as pmep
from docs.benchmarks._answers import answer_to_call
from docs.benchmarks._common import header, markdown_table, result_apart, write_page

N, LIMIT = 60, 400.0
"""Rows, and seconds of a fit."""
FORMULAS: dict[str, tuple[str | tuple[str, ...], dict[str, Any]]] = {
    "gaussian": ("y ~ x", {}),
    "group-specific slopes": ("y ~ x + (x|g)", {}),
    "crossed groups": ("y ~ x + (1|g) + (1|h)", {}),
    "centred groups": ("y ~ x + (1|g)", {"noncentered": False}),
    "categorical predictor, no intercept": ("y ~ 0 + x + h", {}),
    "interaction and polynomial": ("y ~ poly(x, 2) + h:x", {}),
    "B-spline": ("y ~ bs(t, df=6)", {}),
    "HSGP": ("y ~ hsgp(t, m=10, c=1.5)", {}),
    "offset": ("c ~ x + offset(np.log(exposure))", {"family": "poisson"}),
    "model of the noise": (("y ~ x", "sigma ~ x"), {}),
    "groups in the noise": (("y ~ x + (1|g)", "sigma ~ (1|g)"), {}),
    "model of the dispersion": (("c ~ x", "alpha ~ x"), {"family": "negativebinomial"}),
    "t": ("y ~ x + (1|g)", {"family": "t"}),
    "asymmetriclaplace": ("y ~ x", {"family": "asymmetriclaplace"}),
    "bernoulli": ("b ~ x + (1|g)", {"family": "bernoulli"}),
    "bernoulli, probit": ("b ~ x", {"family": "bernoulli", "link": "probit"}),
    "bernoulli, cloglog": ("b ~ x", {"family": "bernoulli", "link": "cloglog"}),
    "binomial": ("p(k, m) ~ x + (1|g)", {"family": "binomial"}),
    "beta_binomial": ("p(k, m) ~ x", {"family": "beta_binomial"}),
    "poisson": ("c ~ x + (1|g)", {"family": "poisson"}),
    "negativebinomial": ("c ~ x + (1|g)", {"family": "negativebinomial"}),
    "hurdle_poisson": ("z ~ x", {"family": "hurdle_poisson"}),
    "hurdle_negativebinomial": ("z ~ x", {"family": "hurdle_negativebinomial"}),
    "hurdle_gamma": ("zp ~ x", {"family": "hurdle_gamma"}),
    "hurdle_lognormal": ("zp ~ x", {"family": "hurdle_lognormal"}),
    "zero_inflated_poisson": ("z ~ x + (1|g)", {"family": "zero_inflated_poisson"}),
    "zero_inflated_negativebinomial": ("z ~ x", {"family": "zero_inflated_negativebinomial"}),
    "zero_inflated_binomial": ("p(kz, m) ~ x", {"family": "zero_inflated_binomial"}),
    "gamma": ("pos ~ x", {"family": "gamma", "link": "log"}),
    "wald": ("pos ~ x", {"family": "wald", "link": "log"}),
    "exponential": ("pos ~ x", {"family": "exponential", "link": "log"}),
    "weibull": ("pos ~ x", {"family": "weibull", "link": "log"}),
    "beta": ("share ~ x", {"family": "beta"}),
    "vonmises": ("angle ~ x", {"family": "vonmises"}),
    "cumulative": ("o ~ x + (1|g)", {"family": "cumulative"}),
    "sratio": ("o ~ x", {"family": "sratio"}),
    "categorical": ("kind ~ x", {"family": "categorical"}),
    "multinomial": ("c(m1, m2, m3) ~ x", {"family": "multinomial"}),
    "dirichlet_multinomial": ("c(m1, m2, m3) ~ x", {"family": "dirichlet_multinomial"}),
    "censored": ("censored(ycut, cut) ~ x + (1|g)", {}),
    "censored weibull": ("censored(poscut, poscut_side) ~ x", {"family": "weibull", "link": "log"}),
    "truncated": ("truncated(above, lb=0) ~ x", {}),
    "weighted": ("weighted(y, w) ~ x", {}),
    "weighted poisson": ("weighted(c, w) ~ x + (1|g)", {"family": "poisson"}),
}
"""Formulas, several for models of further parameters, and arguments of ``bambi.Model``, by name."""


def table() -> pd.DataFrame:
    """Simulate N rows: responses of all kinds with one covariate, and groups of ten."""
    rng = np.random.default_rng(0)
    x, groups = rng.normal(size=N), np.arange(N) // 10
    eta = 0.3 + 0.5 * x + 0.5 * rng.normal(size=N // 10)[groups]
    share, seldom = 1 / (1 + np.exp(-eta)), rng.random(N) < 0.3
    y, c, pos = eta + 0.5 * rng.normal(size=N), rng.poisson(np.exp(eta)), rng.gamma(2, np.exp(eta) / 2)
    k = rng.binomial(10, share)
    return pd.DataFrame(
        {
            "x": x,
            "t": np.linspace(0, 1, N),
            "g": [f"g{i}" for i in groups],
            "h": np.tile(["u", "v", "w"], N // 3),
            "exposure": rng.uniform(1, 2, N),
            "w": rng.uniform(0.5, 2, N),
            "m": 10,
            "y": y,
            "above": np.abs(y),
            "c": c,
            "k": k,
            "kz": np.where(seldom, 0, k),
            "pos": pos,
            "z": np.where(seldom, 0, c),
            "zp": np.where(seldom, 0, pos),
            "b": (rng.random(N) < share).astype(int),
            "share": rng.beta(3, 3, N),
            "angle": rng.vonmises(0, 2, N),
            "o": pd.Categorical(np.digitize(eta + rng.logistic(size=N), [-0.5, 0.5]), ordered=True),
            "kind": pd.Categorical(rng.integers(0, 3, N)),
            "ycut": np.minimum(y, 1.0),
            "cut": np.where(y > 1, "right", "none"),
            "poscut": np.minimum(pos, 3.0),
            "poscut_side": np.where(pos > 3, "right", "none"),
        }
        | dict(zip(("m1", "m2", "m3"), rng.multinomial(8, [0.2, 0.3, 0.5], size=N).T))
    )


def first_call(name: str) -> dict[str, Any]:
    """Build and fit a formula, and return what it gave, in what time."""
    import bambi

    formula, options = FORMULAS[name]
    model = bambi.Model(formula if isinstance(formula, str) else bambi.Formula(*formula), table(), **options)
    began = time.perf_counter()
    gives, says = answer_to_call(lambda: pmep.fit(model=model, progressbar=False, random_seed=1))
    seconds = {"seconds": float(f"{time.perf_counter() - began:.2g}")} if gives in ("fits", "warned") else {}
    return {"gives": gives, "says": says} | seconds


def apart(name: str) -> dict[str, Any]:
    """Return `first_call` of a process of its own."""
    found = result_apart("docs.benchmarks.first_calls", ["--formulas", name], LIMIT)
    return {"gives": "raw", "says": found["failed"]} if "failed" in found else found


def main() -> None:
    """Fit all and write the page, or in a child process one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--formulas", nargs="*", choices=list(FORMULAS), default=list(FORMULAS), metavar="NAME")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        logging.disable(logging.WARNING)
        options.child.write_text(json.dumps(first_call(options.formulas[0])))
        return
    rows, total = [], Counter()
    for name in options.formulas:
        found = apart(name)
        total[found["gives"]] += 1
        formula = FORMULAS[name][0]
        shown = formula if isinstance(formula, str) else ", ".join(formula)
        said = " ".join(found["says"].split()).replace("|", "\\|")
        rows.append([name, f"`{shown}`".replace("|", "\\|"), found["gives"], str(found.get("seconds", "-")), said])
        print(*rows[-1], sep=" ; ", flush=True)
    counts = [[gives, str(total[gives])] for gives in ("fits", "warned", "refused", "raw")]
    parts = [
        header("First calls", __file__, "bambi"),
        f"Fits of {N} rows without an option, and seconds of the first one in a process.\n",
        markdown_table(["gives", f"of {total.total()} formulas"], counts),
        markdown_table(["", "formula", "gives", "seconds", "and says"], rows),
    ]
    if options.formulas == list(FORMULAS):
        print(write_page("first_calls", parts))


if __name__ == "__main__":
    main()
