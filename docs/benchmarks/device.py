"""Fits of each engine by NumPy, C, Numba and JAX, on the processor and on a GPU where JAX has one.

    python -m docs.benchmarks device [--models NAME ...] [--seconds 600]

Each model runs in a process of its own, with one thread. Of each size all bodies make a first fit, which compiles, and
then fits again. Hyperparameters are fixed, and the steps are few and the same for all bodies. Sizes that no longer fit
into the seconds are left out. Writes docs/benchmarks/device.md. Needs JAX (the extra ``jax``) and a C compiler.
"""

import argparse
import json
import os
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pymc as pm

import pymc_ep as pmep
from docs.benchmarks._common import header, markdown_table, result_apart, write_page
from pymc_ep.compat import c_mode, group

NAME = "docs/benchmarks/device.py"
BODIES: dict[str, dict[str, Any]] = {
    "default": {},
    "C": {"compile_kwargs": {"mode": c_mode()}},
    "Numba": {"compile_kwargs": {"mode": "NUMBA"}},
    "JAX, CPU": {"device": "cpu"},
    "JAX, GPU": {"device": "gpu"},
}
"""Arguments of `fit`."""
CELLS_FACTORS = 10
"""Columns of the matrices of the bilinear model."""
REPEATS, LONG = 2, 15.0
"""Fits again of each body, and seconds after which none is made."""
ONE_THREAD = {
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
    "NUMBA_NUM_THREADS": "1",
}


def classification(n: int) -> pm.Model:
    """Simulate n bits under a Gaussian process of two inputs."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-2, 2, (n, 2))
    y = rng.random(n) < 1 / (1 + np.exp(-3 * np.sin(2 * x[:, 0]) * np.cos(x[:, 1])))
    with pm.Model() as model:
        f = pm.gp.Latent(cov_func=4.0 * pm.gp.cov.ExpQuad(2, ls=0.7)).prior("f", X=x)
        pm.Bernoulli("y", logit_p=f, observed=y.astype(int))
    return model


def image(side: int) -> pm.Model:
    """Simulate a noisy picture of side x side pixels, under total variation."""
    rng, half = np.random.default_rng(0), np.arange(side) < side // 2
    clean = half[:, None] ^ half[None, :]
    with pm.Model() as model:
        operator = pmep.operators.Gradient2D((side, side))
        u = pmep.SparseField("u", operator=operator, potential=pm.Laplace.dist(0, 0.2))
        pm.Normal("y", u, 0.3, observed=clean + 0.3 * rng.normal(size=(side, side)))
    return model


def matrix(n: int) -> pm.Model:
    """Simulate n counts of a matrix with a tenth of its cells observed."""
    rng, side = np.random.default_rng(0), int(np.sqrt(10 * n))
    rows, columns = np.divmod(rng.choice(side**2, n, replace=False), side)
    taste = [0.5 * rng.normal(size=(side, CELLS_FACTORS)) for _ in range(2)]
    rate = np.logaddexp(0.0, (taste[0][rows] * taste[1][columns]).sum(axis=1))
    with pm.Model() as model:
        V, U = (pm.Normal(name, 0, 0.5, shape=(side, CELLS_FACTORS)) for name in "VU")
        pmep.BilinearPoisson("y", V, U, rows, columns, link="softplus", observed=rng.poisson(rate))
    return model


def preferences(n_users: int) -> pm.Model:
    """Simulate 20 comparisons by each of some users, among 40 items."""
    rng, x = np.random.default_rng(0), np.linspace(0, 1, 40)
    utility = np.sin(6 * (x + rng.uniform(size=(n_users, 1))))
    users = np.repeat(np.arange(n_users), 20)
    one = rng.integers(40, size=len(users))
    other = (one + rng.integers(1, 40, len(users))) % 40
    won = rng.random(len(users)) < 1 / (1 + np.exp(utility[users, other] - utility[users, one]))
    with pm.Model(coords={"user": range(n_users), "item": range(40), "factor": range(2)}) as model:
        f = pmep.PreferenceUtility(
            "f",
            V=pm.Normal("V", 0, 1, dims=("item", "factor")),
            b=pm.Normal("b", 0, 1, dims="item"),
            kernel=np.exp(-0.5 * ((x[:, None] - x) / 0.2) ** 2) + 0.1 * np.eye(40),
            sigma=1.0,
            dims=("user", "item"),
        )
        winners, losers = np.where(won, one, other), np.where(won, other, one)
        pmep.PairwiseLogit("prefers", f, users=users, winners=winners, losers=losers)
    return model


def pairs(n: int) -> pm.Model:
    """Simulate n pairs of users and items, a tenth as many of both."""
    rng, side = np.random.default_rng(0), n // 20
    users, items = rng.integers(side, size=n), (rng.pareto(1.0, n) * side / 20).astype(int) % side
    with pm.Model() as model:
        U, V = (pm.Normal(name, 0, 1, shape=(side, 8)) for name in "UV")
        bias = pm.Normal("bias", 0, 1, shape=side)
        pmep.PairedSymbols("views", U, V, bias, 0, observed=np.stack([users, items], axis=1))
    return model


def network(n_users: int) -> pm.Model:
    """Simulate 60 events of each of some users, who go round 200 items."""
    rng = np.random.default_rng(0)
    steps = np.cumsum(rng.choice([1, 3], size=(n_users, 60), p=[0.9, 0.1]), axis=1)
    with pm.Model() as model:
        events = list((rng.integers(200, size=(n_users, 1)) + steps) % 200)
        pmep.CollaborativeRNN("visits", hidden=16, cell="gru", n_items=200, observed=events)
    return model


class Case(NamedTuple):
    """A model, how it is fitted, its sizes, and those for a GPU alone."""

    write: Callable[[int], pm.Model]
    method: str
    options: dict[str, Any]
    sizes: tuple[int, ...]
    unit: str
    large: tuple[int, ...] = ()


CASES = {
    "EP, Gaussian process": Case(classification, "ep", {"max_iter": 12}, (100, 500, 2_000), "bits", (8_000,)),
    "double loop, image": Case(image, "dsb", {"outer": 2, "inner_max_iter": 3}, (16, 32, 48), "squared pixels", (128,)),
    "`vg`, matrix": Case(matrix, "vg", {"max_iter": 5}, (2_000, 20_000, 100_000), "cells", (1_000_000,)),
    "EP, preferences": Case(preferences, "ep", {"max_iter": 5}, (20, 200, 1_000), "people"),
    "`paired_vb`, pairs": Case(pairs, "paired_vb", {"max_iter": 10}, (2_000, 20_000, 100_000), "pairs"),
    "`ml`, network": Case(network, "ml", {"epochs": 2, "held_out": 0.0}, (32, 256, 1_024), "people"),
}


def devices() -> list[str]:
    """Return the kinds of devices that JAX has, "cpu" first."""
    import jax

    return ["cpu", *(["gpu"] if jax.default_backend() == "gpu" else [])]


def fitted(case: Case, model: pm.Model, arguments: dict[str, Any]) -> tuple[float, float]:
    """Return seconds of a fit, and its log evidence or objective; a GPU's are those of the clock."""
    clock = time.perf_counter if arguments.get("device") == "gpu" else time.process_time
    began = clock()
    with warnings.catch_warnings():
        # Steps are few, so that no fit converges.
        warnings.simplefilter("ignore")
        found = pmep.fit(
            case.method,
            model=model,
            hyper="fixed",
            draws=0,
            random_seed=1,
            progressbar=False,
            **case.options,
            **arguments,
        )
    fit = group(found, "fit")
    value = fit["log_evidence"] if "log_evidence" in fit else fit["objective"]
    return clock() - began, float(np.ravel(value)[-1])


def measured(case: Case, size: int) -> dict[str, Any]:
    """Return seconds of the first fit, the least of those again, and the value that was reached, by body."""
    model, there = case.write(size), devices()
    bodies = {body: given for body, given in BODIES.items() if given.get("device", "cpu") in there}
    if size in case.large:
        bodies = {body: given for body, given in bodies.items() if given.get("device") == "gpu"}
    row: dict[str, Any] = {"first": {}, "again": {}, "value": {}}
    for body, given in bodies.items():
        try:
            row["first"][body], row["value"][body] = fitted(case, model, given)
        except pmep.UnsupportedModelError:
            # The network has no body there.
            continue
        row["again"][body] = row["first"][body]
    for body in row["first"]:
        spent = row["first"][body]
        for _ in range(REPEATS):
            if spent < LONG:
                seconds, _value = fitted(case, model, bodies[body])
                spent += seconds
                row["again"][body] = min(row["again"][body], seconds)
    return row


def rows_of(name: str, seconds: float) -> dict[str, Any]:
    """Return what was measured, by size, of those sizes that begin within so many seconds."""
    case, ends, found = CASES[name], time.monotonic() + seconds, {}
    for size in case.sizes + (case.large if "gpu" in devices() else ()):
        if time.monotonic() < ends:
            found[str(size)] = measured(case, size)
    return found


def cells(row: dict[str, Any], bodies: list[str]) -> list[str]:
    """Return seconds again, those of other bodies with the ratio to the default, and the spread of the values."""
    again = row["again"]
    found = []
    for body in bodies:
        if body not in again:
            found.append("-")
        elif body == "default" or "default" not in again:
            found.append(f"{again[body]:.3g}")
        else:
            found.append(f"{again[body]:.3g} ({again[body] / again['default']:.2g})")
    values = np.array(list(row["value"].values()))
    compiled = max(row["first"][body] - again[body] for body in again)
    return [*found, f"{compiled:.2g}", f"{np.ptp(values) / np.abs(values).max():.0e}" if len(values) > 1 else "-"]


def main() -> None:
    """Measure and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="*", default=list(CASES), choices=list(CASES))
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--rows")
    parser.add_argument("--child", type=Path)
    given = parser.parse_args()
    if given.child is not None:
        given.child.write_text(json.dumps(rows_of(given.rows, given.seconds)))
        return
    os.environ |= ONE_THREAD
    ends, lines, late = time.monotonic() + given.seconds, [], []
    bodies = [body for body, how in BODIES.items() if how.get("device", "cpu") in devices()]
    for k, name in enumerate(given.models):
        case, left = CASES[name], max(1.0, ends - time.monotonic())
        share = left / (len(given.models) - k)
        options = ["--rows", name, "--seconds", str(0.7 * share)]
        found = result_apart("docs.benchmarks.device", options, left, cold=False)
        print(name, found, flush=True)
        for size in case.sizes + (case.large if "JAX, GPU" in bodies else ()):
            what = f"{size:,} {case.unit}"
            if str(size) in found:
                lines.append([name, what, *cells(found[str(size)], bodies)])
            else:
                late.append(f"{name}, {what}")
    table = markdown_table(["engine", "size", *(f"{body}, s" for body in bodies), "first fit, s more", "apart"], lines)
    left_out = [f"Left out for want of time: {'; '.join(late)}.\n"] if late else []
    parts = [header("Bodies and devices", NAME, "numba", "jax"), introduction(bodies), table, *left_out]
    print(write_page("device", parts))


def introduction(bodies: list[str]) -> str:
    """Return what the columns are."""
    clocks = "; those of the GPU are the clock's" if "JAX, GPU" in bodies else ""
    return f"""\
Processor seconds of a fit again with one thread, the least of {REPEATS}{clocks}, and in brackets how many times those
of the default; a dash where the engine has no such body. A fit of over {LONG:.0f} s is not made again. A first fit
takes up to so many seconds more, as it compiles. Apart: the largest relative difference between the bodies' results.
"""


if __name__ == "__main__":
    main()
