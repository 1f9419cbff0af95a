"""Small models, fresh and again: fits beside nutpie, Laplace by pymc-extras, lme4, glmmTMB, and another checkout.

    python -m docs.benchmarks small_models [--models NAME ...] [--before CHECKOUT] [--repetitions 3]

Each model runs in a process of its own, with one thread for linear algebra and with PyTensor's and Numba's caches as
they are. A fresh model is built from new data of the same kind, as simulations, bootstraps and cross-validation do, and
compiles its own functions; again is a second fit of one model. NUTS draws until it has 4,000 effective draws of every
variable, by extrapolation from 4 chains of 1,000. Laplace is a Gaussian at the joint mode of all variables,
hyperparameters included, of a fresh model, with 4,000 draws. lme4 and glmmTMB have the same models without priors: they
return a mode, as ``hyper="optimize"`` does without draws; loading R is left out.

Fits again are then measured with two threads, and beside a process that does nothing but compute: on two cores, one is
left. Needs nutpie and pymc-extras, and Rscript with lme4 and glmmTMB for these two; writes
docs/benchmarks/small_models.md. Half an hour.
"""

import argparse
import json
import logging
import os
import shutil
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path

import numpy as np
import pymc as pm

import pymc_ep as pmep
from docs.benchmarks._common import header, markdown_table, write_page
from docs.benchmarks.peers import DRAWS, coal, eight_schools, laplace, seeds
from pymc_ep.compat import group

ROOT = Path(__file__).parents[2]
EFFECTIVE = 4_000
"""Effective draws of the variable that has the fewest."""


def radon(seed: int) -> pm.Model:
    """Simulate 919 houses in 85 counties, with a predictor of each."""
    rng = np.random.default_rng(seed)
    county = np.concatenate([np.arange(85), rng.integers(85, size=834)])
    floor, uranium = rng.integers(2, size=919).astype(float), rng.normal(size=85)
    effect = 0.3 * uranium + 0.3 * rng.normal(size=85)
    observed = 1.3 - 0.6 * floor + effect[county] + 0.7 * rng.normal(size=919)
    with pm.Model() as model:
        level, slope, of_county = (pm.Normal(name, 0, 10) for name in ("level", "slope", "of_county"))
        sd, noise = pm.HalfNormal("sd", 2), pm.HalfNormal("noise", 2)
        counties = pm.Normal("counties", level + of_county * uranium, sd, shape=85)
        pm.Normal("y", counties[county] + slope * floor, noise, observed=observed)
    return model


def sleep(seed: int) -> pm.Model:
    """Simulate 10 days of 18 subjects, with intercepts and slopes that vary."""
    rng = np.random.default_rng(seed)
    subject, day = np.repeat(np.arange(18), 10), np.tile(np.arange(10.0), 18)
    mean = 250 + 10 * day + (25 * rng.normal(size=18))[subject] + (6 * rng.normal(size=18))[subject] * day
    with pm.Model() as model:
        b = pm.Normal("b", 0, 500, shape=2)
        scales = pm.HalfNormal("level_sd", 50), pm.HalfNormal("slope_sd", 20), pm.HalfNormal("noise", 50)
        levels, slopes = (pm.Normal(name, 0, sd, shape=18) for name, sd in zip(("levels", "slopes"), scales))
        eta = b[0] + b[1] * day + levels[subject] + slopes[subject] * day
        pm.Normal("y", eta, scales[2], observed=mean + 25 * rng.normal(size=180))
    return model


def grouped(seed: int, *, binary: bool = False) -> pm.Model:
    """Simulate 400 counts, or 400 binary observations, of 100 groups."""
    rng = np.random.default_rng(seed)
    group = np.concatenate([np.arange(100), rng.integers(100, size=300)])
    eta = (0.0 if binary else 1.0) + (1.5 if binary else 0.5) * rng.normal(size=100)[group]
    observed = rng.binomial(1, 1 / (1 + np.exp(-eta))) if binary else rng.poisson(np.exp(eta))
    with pm.Model() as model:
        level, sd = pm.Normal("level", 0, 5), pm.HalfNormal("sd", 2)
        predictor = level + pm.Normal("groups", 0, sd, shape=100)[group]
        if binary:
            pm.Bernoulli("y", logit_p=predictor, observed=observed)
        else:
            pm.Poisson("y", pm.math.exp(predictor), observed=observed)
    return model


def crossed(seed: int) -> pm.Model:
    """Simulate 300 counts with crossed effects of 20 rows and 15 columns."""
    rng = np.random.default_rng(seed)
    row, column = np.divmod(np.arange(300), 15)
    eta = 1 + 0.4 * rng.normal(size=20)[row] + 0.3 * rng.normal(size=15)[column]
    with pm.Model() as model:
        level, sds = pm.Normal("level", 0, 5), pm.HalfNormal("sds", 1, shape=2)
        rows, columns = (pm.Normal(name, 0, sds[k], shape=n) for k, (name, n) in enumerate([("r", 20), ("c", 15)]))
        pm.Poisson("y", pm.math.exp(level + rows[row] + columns[column]), observed=rng.poisson(np.exp(eta)))
    return model


MODELS: dict[str, Callable[[int], pm.Model]] = {
    "919 normal, 85 counties": radon,
    "180 normal, 18 levels and slopes": sleep,
    "400 counts, 100 groups": grouped,
    "400 binary, 100 groups": lambda seed: grouped(seed, binary=True),
    "300 counts, 20 x 15 crossed": crossed,
    "Seeds, 21 binomial": lambda seed: seeds(),
    "Eight schools": lambda seed: eight_schools(),
    "Coal, Gaussian process of 40": lambda seed: coal(),
}


def seconds(call: Callable[[], object]) -> tuple[float, float]:
    """Return processor and wall seconds of a call."""
    began, clock = time.process_time(), time.perf_counter()
    call()
    return time.process_time() - began, time.perf_counter() - clock


def fits(build: Callable[[int], pm.Model], repetitions: int) -> dict[str, list[float]]:
    """Return medians of processor and wall seconds of fresh fits, of fits again, and of modes alone."""
    fresh, again, mode = [], [], []
    for seed in range(repetitions + 1):
        model = build(seed)
        fit = partial(pmep.fit, model=model, random_seed=0, progressbar=False)
        first, second = (seconds(fit) for _ in range(2))
        third = seconds(partial(fit, hyper="optimize", draws=0))
        # The very first fit of a process also imports and compiles what all models share.
        if seed:
            fresh.append(first)
            again.append(second)
            mode.append(third)
    found = {"fresh": fresh, "again": again, "mode": mode}
    return {name: np.median(spent, axis=0).tolist() for name, spent in found.items()}


def nuts(build: Callable[[int], pm.Model]) -> dict[str, list[float]]:
    """Return processor and wall seconds of nutpie for `EFFECTIVE` draws: compiling included, and without."""
    import arviz as az
    import nutpie

    made, drawn = {}, {}

    def compile_model() -> None:
        made["model"] = nutpie.compile_pymc_model(build(1))

    def sample() -> None:
        drawn["draws"] = nutpie.sample(made["model"], draws=1000, tune=1000, chains=4, seed=1, progress_bar=False)

    compiling, sampling = np.array(seconds(compile_model)), np.array(seconds(sample))
    least = min(float(np.min(values)) for values in az.ess(drawn["draws"]).data_vars.values())
    warm = sampling * EFFECTIVE / least
    return {"cold": (compiling + warm).tolist(), "warm": warm.tolist()}


def joint_laplace(build: Callable[[int], pm.Model], repetitions: int) -> dict[str, list[float]]:
    """Return medians of processor and wall seconds of Laplace's approximation; nothing where it is not finite."""
    spent = []
    for seed in range(repetitions + 1):
        model, drawn = build(seed), []
        try:
            spent.append(seconds(lambda model=model, drawn=drawn: drawn.append(laplace(model, seed=0))))
        except Exception as error:  # pymc-extras promises no class
            print(f"fit_laplace: {error}", file=sys.stderr)
            return {}
        if not all(bool(np.isfinite(values).all()) for values in group(drawn[0], "posterior").data_vars.values()):
            return {}
    return {"laplace": np.median(spent[1:], axis=0).tolist()}


def worker(name: str, repetitions: int, *, with_peers: bool) -> None:
    """Measure one model in this process, and print the result as a line of JSON."""
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    build = MODELS[name]
    found = fits(build, repetitions)
    print(json.dumps(found | (nuts(build) | joint_laplace(build, repetitions) if with_peers else {})))


def mixed_models(repetitions: int) -> tuple[dict[str, list[str]], str]:
    """Return processor seconds of lme4 and glmmTMB by model, as text, and their versions; nothing without R."""
    if (program := shutil.which("Rscript")) is None:
        return {}, ""
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    command = [program, str(Path(__file__).with_name("mixed_models.R")), str(repetitions)]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    *rows, (_, *versions) = (line.split("\t") for line in done.stdout.splitlines())
    return {name: [f"{float(spent):.3f}" for spent in own] for name, *own in rows}, "lme4 {}, glmmTMB {}".format(
        *versions
    )


def beside_r(names: list[str], all_found: list[dict[str, list[float]]], by_r: dict[str, list[str]]) -> str:
    """Return the ranges of the ratios to seconds of lme4 and glmmTMB in words; nothing without them."""
    both = [(found, *map(float, by_r[name])) for name, found in zip(names, all_found) if name in by_r]
    if not both:
        return ""
    modes, fresh = zip(*((own["mode"][0] / lme4, own["fresh"][0] / tmb) for own, lme4, tmb in both))
    return (
        f"A mode again takes {min(modes):.1f} to {max(modes):.1f} times the seconds of lme4, a fresh fit "
        f"{min(fresh):.1f} to {max(fresh):.1f} times those of glmmTMB. "
    )


@contextmanager
def busy_process() -> Iterator[None]:
    """Keep one core busy meanwhile."""
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as process:
        try:
            yield
        finally:
            process.kill()


def measured(
    name: str, repetitions: int, checkout: Path = ROOT, *, threads: int = 1, with_peers: bool = False
) -> dict[str, list[float]]:
    """Run `worker` in a process of its own, with the package of a checkout and so many threads for linear algebra."""
    limits = {f"{library}_NUM_THREADS": str(threads) for library in ("OPENBLAS", "OMP")}
    environment = os.environ | {"PYTHONPATH": str(checkout)} | limits
    call = f"import runpy, sys; sys.argv = {['', '--worker', name, '--repetitions', str(repetitions)]!r}"
    call += " + ['--with-peers']" if with_peers else ""
    call += f"; runpy.run_path({__file__!r}, run_name='__main__')"
    # With -c the current folder comes before all others on the path.
    command = [sys.executable, "-c", call]
    done = subprocess.run(command, cwd=checkout, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def beside_peers(names: list[str], repetitions: int, checkout: Path | None) -> list[str]:
    """Return a paragraph and a table of fits beside NUTS, Laplace and, where one is given, another checkout."""
    load, rows, all_found, all_before = os.getloadavg()[0], [], [], []
    by_r, versions = mixed_models(repetitions)
    for name in names:
        found = measured(name, repetitions, with_peers=True)
        all_found.append(found)
        cells = [f"{found[what][0]:.2f}" for what in ("fresh", "again", "cold", "warm")]
        cells += [f"{found['cold'][0] / found['fresh'][0]:.1f}", f"{found['warm'][0] / found['again'][0]:.1f}"]
        cells.append(f"{found['laplace'][0]:.2f}" if "laplace" in found else "-")
        cells += [f"{found['mode'][0]:.2f}", *by_r.get(name, ["-", "-"])]
        if checkout:
            before = measured(name, repetitions, checkout)
            all_before.append(before)
            cells += [f"{before[what][0]:.2f}" for what in ("fresh", "again")]
        rows.append([name, *cells])
        print(*rows[-1], sep=" | ", flush=True)
    head = ["model", "fresh, s", "again, s", "NUTS cold, s", "NUTS warm, s", "cold / fresh", "warm / again"]
    head += ["Laplace fresh, s", "mode again, s", "lme4, s", "glmmTMB, s"] + (
        ["before: fresh, s", "before: again, s"] if checkout else []
    )

    def ratio(ours: str, theirs: list[dict[str, list[float]]], other: str) -> float:
        return float(np.median([one[other][0] / own[ours][0] for one, own in zip(theirs, all_found)]))

    text = (
        f"Processor seconds, medians of {repetitions}; load average {load:.1f} to {os.getloadavg()[0]:.1f}. "
        f"Median ratios: a fresh fit {ratio('fresh', all_found, 'cold'):.1f} times as fast as NUTS with its "
        f"compilation, a fit again {ratio('again', all_found, 'warm'):.1f} times as fast as NUTS without. Laplace is "
        f"a Gaussian at the joint mode of all variables with {4 * DRAWS} draws; a dash where it is not finite. "
        f"NUTS without compilation takes {ratio('mode', all_found, 'warm'):.1f} times as long as a mode again. "
        f"{beside_r(names, all_found, by_r)}{versions}\n"
    )
    if checkout:
        text += (
            f"\nBeside the checkout before, in the same run: fresh {ratio('fresh', all_before, 'fresh'):.2f} times, "
            f"again {ratio('again', all_before, 'again'):.2f} times as fast (medians).\n"
        )
    return [text, markdown_table(head, rows)]


def on_busy_cores(names: list[str], repetitions: int) -> list[str]:
    """Return a paragraph and a table of fits again, with one and two threads, alone and beside a busy process."""
    rows = []
    for name in names:
        cells = []
        for company in (nullcontext, busy_process):
            for threads in (1, 2):
                with company():
                    processor, wall = measured(name, repetitions, threads=threads)["again"]
                cells += [f"{processor:.2f} / {wall:.2f}"]
        rows.append([name, *cells])
        print(*rows[-1], sep=" | ", flush=True)
    head = ["model", "one thread, s", "two threads, s", "one, busy core, s", "two, busy core, s"]
    text = (
        f"Fits again with one and two threads for linear algebra, alone and beside a process that keeps one core "
        f"busy: processor / wall seconds, medians of {repetitions}.\n"
    )
    return [text, markdown_table(head, rows)]


def main() -> None:
    """Measure all and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="*", choices=list(MODELS), default=list(MODELS), metavar="NAME")
    parser.add_argument("--before", type=Path, help="another checkout, measured in turn with this one")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--worker", choices=list(MODELS), help=argparse.SUPPRESS)
    parser.add_argument("--with-peers", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        return worker(options.worker, options.repetitions, with_peers=options.with_peers)
    title = header("Small models, fresh and again", "docs/benchmarks/small_models.py", "nutpie", "pymc-extras")
    parts = beside_peers(options.models, options.repetitions, options.before)
    print(write_page("small_models", [title, *parts, *on_busy_cores(options.models, options.repetitions)]))
    return None


if __name__ == "__main__":
    main()
