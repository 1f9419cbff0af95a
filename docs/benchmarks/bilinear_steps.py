"""Iterations of L-BFGS on listening counts: time beside another checkout of this package, and an epoch of ALS.

    python -m docs.benchmarks.bilinear_steps --before CHECKOUT [--peers PYTHON]

Needs the folder ``hetrec2011-lastfm-2k`` under ``PYMC_EP_DATA`` and, for ALS, an interpreter with implicit. Writes
docs/benchmarks/bilinear_scaling.md.
"""

import argparse
import json
import time
import warnings

import numpy as np
import pymc as pm

import pymc_ep as pmep
from docs.benchmarks._common import header, markdown_table, run_elsewhere, write_page
from pymc_ep.datasets import load_lastfm

NAME = "docs/benchmarks/bilinear_steps.py"
FACTORS = (10, 20)
SWEEPS, STEPS, ITERATIONS = 3, 4, 10
"""Sweeps that begin a fit, steps after these that are timed, and iterations in a step."""
REPEATS, EPOCHS = 2, 10
ALS = """
import json, sys, time
import numpy as np
from implicit.als import AlternatingLeastSquares
from scipy import sparse
out = []
for path in sys.argv[1:]:
    given = np.load(path)
    counts = sparse.csr_matrix((given["y"].astype(np.float32), (given["rows"], given["cols"])))
    ends = []
    settings = {"factors": int(given["factors"]), "iterations": int(given["epochs"])}
    model = AlternatingLeastSquares(num_threads=1, random_state=0, **settings)
    model.fit(counts, show_progress=False, callback=lambda *_: ends.append(time.process_time()))
    out.append(min(np.diff(ends)))
    print(json.dumps(out), flush=True)
"""


def listened() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return users, artists and rounded square roots of plays."""
    plays = load_lastfm()
    users, artists = (np.unique(plays[name], return_inverse=True)[1] for name in ("user", "artist"))
    return users, artists, np.floor(np.sqrt(plays["plays"].to_numpy()) + 0.5)


def measured(factors: int) -> dict[str, float]:
    """Return the seconds of an iteration after the sweeps, and the bounds after sweeps and after one step more."""
    rows, cols, y = listened()

    def fitted(steps: int) -> tuple[float, np.ndarray]:
        with pm.Model() as model, warnings.catch_warnings():
            warnings.simplefilter("ignore", pmep.ConvergenceWarning)
            V = pm.Normal("V", 0, 0.5, shape=(rows.max() + 1, factors))
            U = pm.Normal("U", 0, 0.5, shape=(cols.max() + 1, factors))
            pmep.BilinearPoisson("y", V, U, rows, cols, observed=y)
            options = {"hyper": "fixed", "draws": 0, "progressbar": False, "random_seed": 0, "tol": 1e-12}
            began = time.process_time()
            found = pmep.fit("vg", model=model, max_iter=steps, **options)
        return time.process_time() - began, np.asarray(found["fit"]["objective"])

    # The first fit compiles.
    fitted(SWEEPS + 1)
    seconds, bounds = fitted(SWEEPS + STEPS)
    less = seconds - fitted(SWEEPS)[0]
    return {"seconds": less / (STEPS * ITERATIONS), "swept": bounds[SWEEPS], "ascended": bounds[SWEEPS + 1]}


def main() -> None:
    """Measure and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", help="the other checkout")
    parser.add_argument("--peers", help="interpreter with implicit")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measured(json.loads(options.one))))
        return
    # Another checkout, which runs the lines above, may be without.
    from docs.benchmarks._checkouts import in_turn

    named = dict(zip(("rows", "cols", "y"), listened())) | {"epochs": np.array(EPOCHS)}
    given = [named | {"factors": np.array(factors)} for factors in FACTORS]
    epochs = run_elsewhere(options.peers, ALS, given, 600.0) if options.peers else [np.nan] * len(FACTORS)
    lines, commit = [], ""
    for factors, epoch in zip(FACTORS, epochs):
        commit, before, after = in_turn(__file__, options.before, factors, REPEATS)
        least = [min(row["seconds"] for row in rows) for rows in (before, after)]
        apart = [abs(after[0][what] / before[0][what] - 1.0) for what in ("swept", "ascended")]
        times = [f"{1e3 * s:.3g}" for s in (*least, epoch)]
        ratios = [f"{least[0] / least[1]:.2f}", f"{least[1] / epoch:.2f}"]
        lines.append([str(factors), *times, *ratios, *(f"{one:.0e}" for one in apart)])
    head = [
        "factors",
        f"ms an iteration, commit {commit}",
        "ms an iteration",
        "ms an epoch of ALS",
        "commit over this",
        "this over ALS",
        "bounds apart after the sweeps, relative",
        "after one step more",
    ]
    print(write_page("bilinear_steps", [header("Iterations of L-BFGS", NAME), TEXT, markdown_table(head, lines)]))


TEXT = f"""\
All plays of LastFM, 92,834 cells of 1,892 x 17,632, as Poisson counts of rate exp(v^T u) with fixed scales: a step of
`method="vg"` is {ITERATIONS} iterations of L-BFGS over both matrices. Beside an earlier commit without Numba bodies of
the recursion and of the rows, and an epoch of implicit's ALS by conjugate gradients, which is in single precision.

- Milliseconds of the processor, one thread: the steps 1 to {STEPS} after the sweeps, and the least epoch of {EPOCHS}.
- The least of {REPEATS} runs of either commit in turn, beside other work.
- L-BFGS amplifies rounding: bounds are equal to it after the sweeps, and drift apart later on.
"""


if __name__ == "__main__":
    main()
