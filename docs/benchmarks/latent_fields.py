"""Latent fields of thousands to a million values: default fits, and the factor of their precision beside SuperLU.

    python -m docs.benchmarks latent_fields [--models NAME ...]

Each model is simulated from its own prior, and fitted in a process of its own with one thread of BLAS, without draws:
the first fit of a process whose functions are compiled, and a second one.
"""

import json
import logging
import os
import resource
import time
import warnings
from collections.abc import Callable
from functools import partial

import numpy as np
import pymc as pm
import scipy.sparse
from scipy.sparse.linalg import splu

import pymc_ep as pmep
from docs.benchmarks._common import chosen_models, header, markdown_table, printed_apart, write_page
from docs.benchmarks.small_models import seconds
from pymc_ep.compat import group
from pymc_ep.numerics.sparse.factor import Analysis

REPEATS = 3


def lattice(side: int) -> scipy.sparse.csr_matrix:
    """Return which areas of a square are neighbours."""
    line = scipy.sparse.diags_array([np.ones(side - 1)] * 2, offsets=[-1, 1])
    eye = scipy.sparse.eye_array(side)
    return scipy.sparse.csr_matrix(scipy.sparse.kron(line, eye) + scipy.sparse.kron(eye, line))


def walk(n: int) -> pm.Model:
    """Simulate counts whose log rate is a random walk, with a range that does not depend on its length."""
    rng = np.random.default_rng(n)
    level = np.cumsum(rng.normal(0, 5.0 / np.sqrt(n), n))
    counts = rng.poisson(np.exp(1.0 + level - level.mean()))
    with pm.Model() as model:
        step, start = pm.HalfNormal("step", 0.2, initval=0.1), pm.Normal.dist(0, 3)
        found = pm.GaussianRandomWalk("level", sigma=step, init_dist=start, steps=n - 1)
        pm.Poisson("y", pm.math.exp(found), observed=counts)
    return model


def autoregression(n: int) -> pm.Model:
    """Simulate counts whose log rate is an autoregression of second order."""
    rng = np.random.default_rng(n)
    own = np.zeros(n)
    for t in range(2, n):
        own[t] = 0.5 * own[t - 1] + 0.3 * own[t - 2] + rng.normal(0, 0.4)
    with pm.Model() as model:
        rho, sd = pm.math.stack([0.5, pm.Uniform("rho", 0, 0.5, initval=0.2)]), pm.HalfNormal("sd", 1, initval=0.5)
        found = pm.AR("level", rho, sigma=sd, init_dist=pm.Normal.dist(0, 1), shape=n)
        pm.Poisson("y", pm.math.exp(1.0 + found), observed=rng.poisson(np.exp(1.0 + own)))
    return model


def areas(side: int) -> pm.Model:
    """Simulate cases in the areas of a square."""
    rng, w = np.random.default_rng(side), lattice(side)
    degrees = np.asarray(w.sum(axis=0)).ravel()
    below = scipy.sparse.tril(w).tocoo()
    rows = np.concatenate([np.arange(side**2), below.row]).astype(np.int64)
    columns = np.concatenate([np.arange(side**2), below.col]).astype(np.int64)
    factor = Analysis(rows, columns, side**2).factor(2.0 * np.concatenate([degrees, -0.95 * below.data]))
    risk = factor.draw(1, rng)[0]
    with pm.Model() as model:
        alpha, tau = pm.Beta("alpha", 10, 1), pm.Gamma("tau", 2, 1)
        found = pm.CAR("risk", mu=np.zeros(side**2), W=w, alpha=alpha, tau=tau)
        pm.Poisson("y", pm.math.exp(1.0 + found), observed=rng.poisson(np.exp(1.0 + risk)))
    return model


def mesh_field(edge: float, rows: int) -> pm.Model:
    """Simulate counts at places of a square of side 10, and write their field on a mesh."""
    rng = np.random.default_rng(rows)
    places = rng.uniform(0, 10, (rows, 2))
    log_rate = 1.0 + 1.2 * np.sin(places[:, 0]) * np.cos(0.7 * places[:, 1])
    with pm.Model() as model:
        length = pmep.priors.pc_range("range", r0=1, alpha=0.05)
        sigma, level = pmep.priors.pc_sigma("sigma", u=3, alpha=0.05), pm.Normal("level", 0, 2)
        field = pmep.SPDE("f", mesh=pmep.meshes.around(places, longest=edge), range=length, sigma=sigma)
        pm.Poisson("y", pm.math.exp(level + field.at(places)), observed=rng.poisson(np.exp(log_rate)))
    return model


def crossed(rows: int, users: int, items: int) -> pm.Model:
    """Simulate bits of users and items."""
    rng = np.random.default_rng(rows)
    user, item = rng.integers(users, size=rows), rng.integers(items, size=rows)
    eta = 0.7 * rng.normal(size=users)[user] + 0.5 * rng.normal(size=items)[item]
    with pm.Model() as model:
        u = pm.Normal("user", 0, pm.HalfNormal("user_sd", 1), shape=users)
        v = pm.Normal("item", 0, pm.HalfNormal("item_sd", 1), shape=items)
        level = pm.Normal("level", 0, 2)
        pm.Bernoulli("y", logit_p=level + u[user] + v[item], observed=rng.random(rows) < 1 / (1 + np.exp(-eta)))
    return model


def nested(rows: int, schools: int, districts: int) -> pm.Model:
    """Simulate bits of pupils of schools in districts."""
    rng = np.random.default_rng(rows)
    district, school = rng.integers(districts, size=schools), rng.integers(schools, size=rows)
    eta = (0.6 * rng.normal(size=districts)[district] + 0.8 * rng.normal(size=schools))[school]
    with pm.Model() as model:
        of_district = pm.Normal("district", pm.Normal("level", 0, 2), pm.HalfNormal("district_sd", 1), shape=districts)
        of_school = pm.Normal("school", of_district[district], pm.HalfNormal("school_sd", 1), shape=schools)
        pm.Bernoulli("y", logit_p=of_school[school], observed=rng.random(rows) < 1 / (1 + np.exp(-eta)))
    return model


MODELS: dict[str, tuple[str, Callable[[], pm.Model]]] = {
    "walk, 10,000": ("integrate", partial(walk, 10_000)),
    "walk, 100,000, fixed": ("fixed", partial(walk, 100_000)),
    "walk, 100,000": ("integrate", partial(walk, 100_000)),
    "AR(2), 10,000": ("integrate", partial(autoregression, 10_000)),
    "AR(2), 100,000, fixed": ("fixed", partial(autoregression, 100_000)),
    "CAR, 10,000": ("integrate", partial(areas, 100)),
    "CAR, 100,000, fixed": ("fixed", partial(areas, 316)),
    "CAR, 100,000": ("integrate", partial(areas, 316)),
    "CAR, 1,000,000, fixed": ("fixed", partial(areas, 1000)),
    "SPDE, 10,000 nodes": ("integrate", partial(mesh_field, 0.12, 20_000)),
    "SPDE, 100,000 nodes, fixed": ("fixed", partial(mesh_field, 0.035, 200_000)),
    "SPDE, 100,000 nodes": ("integrate", partial(mesh_field, 0.035, 200_000)),
    "SPDE, 1,000,000 nodes, fixed": ("fixed", partial(mesh_field, 0.011, 2_000_000)),
    "10,000 bits, 1,000 x 50": ("integrate", partial(crossed, 10_000, 1_000, 50)),
    "100,000 bits, 10,000 x 1,000, fixed": ("fixed", partial(crossed, 100_000, 10_000, 1_000)),
    "100,000 bits, 10,000 in 100, fixed": ("fixed", partial(nested, 100_000, 10_000, 100)),
    "100,000 bits, 10,000 in 100": ("integrate", partial(nested, 100_000, 10_000, 100)),
    "1,000,000 bits, 6,040 x 3,706, fixed": ("fixed", partial(crossed, 1_000_000, 6_040, 3_706)),
    "1,000,000 bits, 100,000 x 1,000, fixed": ("fixed", partial(crossed, 1_000_000, 100_000, 1_000)),
}
FACTORED = {"lattice, 10,000": 100, "lattice, 100,000": 316, "lattice, 1,000,000": 1000}
"""Sides of lattices whose precision is factored."""


def worker(name: str) -> None:
    """Measure one model in this process, and print the result as a line of JSON."""
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    hyper, build = MODELS[name]
    # What is compiled on a new machine is compiled before.
    pmep.fit(model=walk(1_000), hyper="fixed", draws=0, progressbar=False)
    model, fits = build(), []
    fit = partial(pmep.fit, model=model, hyper=hyper, draws=0, random_seed=0, progressbar=False)
    spent = [seconds(lambda: fits.append(fit())) for _ in range(2)]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    found = group(fits[-1], "fit")
    status = found.attrs["status"]
    count = status.partition("integrated over by ")[2].partition(" fits")[0] or "1"
    result = {"first": spent[0][0], "again": spent[1][0], "peak": peak, "fits": count}
    print(json.dumps(result | {"converged": bool(found["converged"])}))


def factors() -> list[list[str]]:
    """Return rows of seconds of an order with its analysis, a factor, the selected inverse, a solution, and SuperLU."""
    rows = []
    for name, side in FACTORED.items():
        w = lattice(side)
        precision = scipy.sparse.csc_matrix(scipy.sparse.diags_array(np.asarray(w.sum(axis=0)).ravel() + 0.1) - w)
        lower = scipy.sparse.tril(precision).tocoo()
        began = time.process_time()
        analysis = Analysis(lower.row.astype(np.int64), lower.col.astype(np.int64), side**2)
        spent = [time.process_time() - began]
        factor = analysis.factor(lower.data)
        right = np.ones(side**2)
        calls = partial(analysis.factor, lower.data), factor.inverse_entries, partial(factor.solve, right)
        for call in calls:
            call()
            spent.append(min(seconds(call)[0] for _ in range(REPEATS)))
        options = {"permc_spec": "MMD_AT_PLUS_A", "diag_pivot_thresh": 0.0, "options": {"SymmetricMode": True}}
        theirs = min(seconds(partial(splu, precision, **options))[0] for _ in range(2 if side > 500 else REPEATS))
        rows.append([name, *(f"{took:.3g}" for took in (*spent, theirs)), f"{analysis.bytes / 1e6:.0f}"])
        print(*rows[-1], sep=" | ", flush=True)
    return rows


def main() -> None:
    """Measure all and write the page."""
    models = chosen_models(__doc__, MODELS, worker)
    load, rows = os.getloadavg()[0], []
    for name in models:
        found = printed_apart(__file__, name)
        cells = [f"{found['first']:.1f}", f"{found['again']:.1f}", found["fits"], f"{found['peak']:.1f}"]
        rows.append([name, *cells, "yes" if found["converged"] else "no"])
        print(*rows[-1], sep=" | ", flush=True)
    head = ["model", "first fit, s", "again, s", "fits", "peak, GB", "converged"]
    steps = ("order and analysis", "factor", "selected inverse", "solution", "SuperLU")
    factored = ["precision", *(f"{step}, s" for step in steps), "MB"]
    text = f"Processor seconds; load average {load:.1f} to {os.getloadavg()[0]:.1f}. Without draws.\n"
    about = "SuperLU is `scipy.sparse.linalg.splu` by minimum degree: order, analysis and factor.\n"
    title = header("Latent fields", "docs/benchmarks/latent_fields.py")
    parts = [title, text, markdown_table(head, rows), about, markdown_table(factored, factors())]
    print(write_page("latent_fields", parts))


if __name__ == "__main__":
    main()
