"""How long the first result takes: from `import pymc_ep` to a coal-mining fit, with cold and warm compile caches.

    python -m docs.benchmarks.first_result [--python PYTHON ...] [--repetitions 3]

Runs the quickstart's model in fresh processes, with PyTensor's and Numba's caches in an empty folder (cold) and again
in the same folder (warm), and writes docs/benchmarks/ep_speed.md. Two minutes for each interpreter.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from docs.benchmarks._common import header, markdown_table, write_page

ROOT = Path(__file__).parents[2]
COLD_TARGET, WARM_TARGET = 15.0, 5.0

WORKER = """
import json, time
began = time.perf_counter()
marks = {}

def mark(name):
    marks[name] = time.perf_counter() - began - sum(marks.values())

import pymc as pm
mark("import pymc")
import resource, sys
import pymc_ep as pmep
mark("import pymc_ep")
import numpy as np, pytensor
made = []
function = pytensor.function
def timed(*args, **kwargs):
    start = time.perf_counter()
    out = function(*args, **kwargs)
    made.append(time.perf_counter() - start)
    return out
pytensor.function = timed

dates = pmep.datasets.load_coal()
counts, edges = np.histogram(dates, bins=100)
years = (edges[:-1] + edges[1:]) / 2
with pm.Model(coords={"year": years}) as model:
    ell = pm.InverseGamma("ell", mu=15, sigma=15)
    amp = pm.HalfNormal("amp", 3)
    level = pm.Normal("level", 2, 2)
    gp = pm.gp.Latent(mean_func=pm.gp.mean.Constant(level), cov_func=amp**2 * pm.gp.cov.ExpQuad(1, ell))
    f = gp.prior("f", X=years[:, None], dims="year")
    pmep.RectifiedPoisson("y", f, observed=counts, dims="year")
mark("model")
site = pmep.sites.compile_site("rectified_poisson")
site.moments(counts, np.ones(100), np.ones(100))
mark("site: moments")
site.log_density(counts, np.ones(100))
mark("site: density")
with model:
    idata = pmep.fit(method="ep", random_seed=0)
mark("fit")
attrs = idata["fit"].attrs
marks["recognise, compile"] = attrs["compile_time"]
marks["solve"] = attrs["run_time"]
marks["draws"] = marks.pop("fit") - attrs["compile_time"] - attrs["run_time"]
peak = [resource.getrusage(who).ru_maxrss * (1 if sys.platform == "darwin" else 1024) / 2**20
        for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
print(json.dumps({
    "marks": marks, "total": sum(marks.values()), "peak": peak,
    "functions": len(made), "pytensor.function": sum(made),
    "jax": "jax" in sys.modules, "numba": "numba" in sys.modules,
    "log_evidence": float(idata["fit"]["log_evidence"]),
    "stack": f"Python {sys.version.split()[0]}, PyMC {pm.__version__}",
}))
"""
"""One process: the quickstart's fit, its stages apart. The site is compiled before the fit, which then finds it."""


def measure(python: str, cache: Path) -> dict:
    """Run the worker with both compile caches in the folder `cache`."""
    environment = os.environ | {
        "PYTENSOR_FLAGS": f"base_compiledir={cache / 'pytensor'}",
        "NUMBA_CACHE_DIR": str(cache / "numba"),
        "PYTHONPATH": str(ROOT),
    }
    done = subprocess.run(
        [python, "-W", "ignore", "-c", WORKER], env=environment, stdout=subprocess.PIPE, text=True, check=True
    )
    return json.loads(done.stdout.splitlines()[-1])


def cold_and_warm(python: str, repetitions: int) -> tuple[list[dict], list[dict]]:
    """Return the cold and the warm runs, each cold one in a folder of its own."""
    cold, warm = [], []
    for _ in range(repetitions):
        with tempfile.TemporaryDirectory() as folder:
            cold.append(measure(python, Path(folder)))
            warm.append(measure(python, Path(folder)))
        print(f"{cold[-1]['stack']}: cold {cold[-1]['total']:.1f} s, warm {warm[-1]['total']:.1f} s")
    return cold, warm


def row(runs: list[dict], caches: str, target: float) -> list[str]:
    """Medians over the runs."""
    totals = [r["total"] for r in runs]
    stages = [f"{np.median([r['marks'][name] for r in runs]):.2f}" for name in runs[0]["marks"]]
    peak = np.median([r["peak"] for r in runs], axis=0)
    total = f"{np.median(totals):.1f} ({min(totals):.1f} to {max(totals):.1f})"
    return [runs[0]["stack"], caches, total, f"{target:g}", *stages, f"{peak[0]:.0f}", f"{peak[1]:.0f}"]


def main() -> None:
    """Measure and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", nargs="+", default=[sys.executable], help="interpreters, one for each stack")
    parser.add_argument("--repetitions", type=int, default=3)
    options = parser.parse_args()
    load = os.getloadavg()[0]
    rows, notes = [], []
    for python in options.python:
        cold, warm = cold_and_warm(python, options.repetitions)
        rows += [row(cold, "cold", COLD_TARGET), row(warm, "warm", WARM_TARGET)]
        first, again = cold[0], warm[0]
        notes.append(
            f"- {first['stack']}: {first['functions']} calls of `pytensor.function` take "
            f"{np.median([r['pytensor.function'] for r in cold]):.1f} s cold and "
            f"{np.median([r['pytensor.function'] for r in warm]):.1f} s warm; JAX imported: "
            f"{'yes' if first['jax'] else 'no'}; Numba imported: {'yes' if first['numba'] else 'no'}; log evidence "
            f"{first['log_evidence']:.6f}, warm {again['log_evidence']:.6f}.\n"
        )
    head = ["stack", "caches", "total, s", "target", *cold[0]["marks"], "peak, MiB", "compiler, MiB"]
    introduction = (
        f"The model of the quickstart in fresh processes: coal mining, 100 bins, rectified-linear Poisson, "
        f"hyperparameters optimised, 4000 draws. Times are seconds, medians of {options.repetitions}, with the range "
        f"of the total in parentheses; load average {load:.1f} to {os.getloadavg()[0]:.1f}. Cold: no cache of PyTensor "
        f"or Numba exists.\n"
    )
    title = header("Time to the first result", "docs/benchmarks/first_result.py")
    print(write_page("first_result", [title, introduction, markdown_table(head, rows), *notes]))


if __name__ == "__main__":
    main()
