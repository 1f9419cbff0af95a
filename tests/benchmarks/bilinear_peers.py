"""Bilinear Poisson models beside hpfrec and poismf where zeros are data, which these take all other cells for.

    python -m tests.benchmarks.bilinear_peers [--peers PYTHON] [--splits 3] [--page]

Needs the folder ``hetrec2011-lastfm-2k`` under ``PYMC_EP_DATA``, and for the peers an interpreter that has hpfrec and
poismf. Rows that are done are kept in ``docs/benchmarks/rows``. Writes docs/benchmarks/bilinear_peers.md.
"""

import argparse
import subprocess
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pymc as pm
import scipy.stats

import pymc_ep as pmep
from pymc_ep.compat import group
from tests.benchmarks._cells import dataset
from tests.benchmarks._common import header, markdown_table, mean_se, write_page
from tests.benchmarks._images import Store

NAME = "tests/benchmarks/bilinear_peers.py"
SIDE = 300
"""Artists with the most listeners, and users with the most of these."""
SHARE = 0.75
"""Of each count that is learned from."""
FACTORS = (2, 5, 10, 30)
DRAWS = 100
OURS = {"vg": False, "vg, biases": True}
PEERS = ("hpfrec", "poismf")
PEER = """
import sys, time
import numpy as np, pandas as pd
given = np.load(sys.argv[1])
y, k, kind = given["y"], int(given["k"]), str(given["kind"])
i, j = np.nonzero(y)
cells = pd.DataFrame({"UserId": i, "ItemId": j, "Count": y[i, j].astype(float)})
began = time.perf_counter()
if kind == "hpfrec":
    from hpfrec import HPF
    found = HPF(k=k, random_seed=1, verbose=False, reindex=False, ncores=1, maxiter=1000, stop_crit="train-llk",
                stop_thr=1e-5, check_every=10)
    found.fit(cells)
    left, right = found.Theta, found.Beta
else:
    from poismf import PoisMF
    found = PoisMF(k=k, random_state=1, reindex=False, nthreads=1)
    found.fit(cells)
    left, right = found.A, found.B
seconds = time.perf_counter() - began
np.savez(sys.argv[2], left=left, right=right, seconds=seconds)
"""


class Thinned(NamedTuple):
    """Counts of one matrix, (I, J), whose sums are the data: to learn from, and to predict."""

    learned: np.ndarray
    held_out: np.ndarray


def thinned(seed: int) -> Thinned:
    """Return a random share of the counts of the block, zeros included, and the rest of them."""
    cells = dataset("LastFM")
    artists = np.argsort(-np.bincount(cells.rows), kind="stable")[:SIDE]
    some = np.isin(cells.rows, artists)
    users = np.argsort(-np.bincount(cells.cols[some]), kind="stable")[:SIDE]
    whole = np.zeros(cells.shape, dtype=int)
    whole[cells.rows, cells.cols] = cells.y
    block = whole[np.ix_(artists, users)]
    learned = np.random.default_rng(seed).binomial(block, SHARE)
    return Thinned(learned, block - learned)


def scored(part: Thinned, rates: list[np.ndarray], seconds: float) -> dict[str, Any]:
    """Return the mean negative log probability of what is held out, with rates of what was learned from averaged."""
    ratio = (1 - SHARE) / SHARE
    logs = [scipy.stats.poisson.logpmf(part.held_out, ratio * rate) for rate in rates]
    score = -(np.logaddexp.reduce(logs, axis=0) - np.log(len(logs)))
    impossible = ~np.isfinite(score)
    return {
        "nats": float(score[~impossible].mean()),
        "of_some": float(score[~impossible & (part.held_out > 0)].mean()),
        "impossible": int(impossible.sum()),
        "seconds": seconds,
    }


def ours(part: Thinned, factors: int, biases: bool) -> dict[str, Any]:
    """Fit all cells by a variational Gaussian; all scales are learned."""
    rows, cols = (place.ravel() for place in np.indices(part.learned.shape))
    with pm.Model() as model, warnings.catch_warnings():
        # Rows say what did not converge.
        warnings.simplefilter("ignore", pmep.ConvergenceWarning)
        V = pm.Normal("V", 0, pm.HalfNormal("s", 1), shape=(SIDE, factors))
        U = pm.Normal("U", 0, 1, shape=(SIDE, factors))
        offset = pm.Normal("mu", 0, 5)
        if biases:
            b = pm.Normal("b", 0, pm.HalfNormal("sb", 1), shape=SIDE)
            c = pm.Normal("c", 0, pm.HalfNormal("sc", 1), shape=SIDE)
            offset = offset + b[rows] + c[cols]
        else:
            offset = offset + np.zeros(len(rows))
        pmep.BilinearPoisson("y", V, U, rows, cols, offset=offset, observed=part.learned.ravel())
        began = time.perf_counter()
        idata = pmep.fit("vg", model=model, draws=DRAWS, chains=1, progressbar=False, random_seed=0)
        seconds = time.perf_counter() - began
    draws = {name: value.to_numpy()[0] for name, value in group(idata, "posterior").data_vars.items()}

    def rate(k: int) -> np.ndarray:
        log_rate = draws["V"][k] @ draws["U"][k].T + draws["mu"][k]
        return np.exp(log_rate + draws["b"][k][:, None] + draws["c"][k] if biases else log_rate)

    return scored(part, [rate(k) for k in range(DRAWS)], seconds) | {"converged": bool(idata["fit"]["converged"])}


def peer(part: Thinned, factors: int, kind: str, python: str) -> dict[str, Any]:
    """Fit what is not zero by a peer, at its defaults but for the number of iterations of hpfrec."""
    with tempfile.TemporaryDirectory() as folder:
        given, found = Path(folder, "given.npz"), Path(folder, "found.npz")
        np.savez(given, y=part.learned, k=factors, kind=kind)
        subprocess.run([python, "-c", PEER, str(given), str(found)], check=True, stdout=subprocess.DEVNULL)
        with np.load(found) as result:
            rate = result["left"].astype(float) @ result["right"].T.astype(float)
            return scored(part, [rate], float(result["seconds"]))


def independence(part: Thinned) -> dict[str, Any]:
    """Score the product of a row's and a column's share."""
    y = part.learned
    return scored(part, [y.sum(axis=1)[:, None] * y.sum(axis=0) / y.sum()], 0.0)


def measure(store: Store, splits: int, python: str | None) -> None:
    """Fill in rows that are missing."""
    for seed in range(splits):
        part = thinned(seed)
        store.get(f"{seed}/0/independence", lambda part=part: independence(part))
        for factors in FACTORS:
            for name in PEERS if python else ():
                store.get(f"{seed}/{factors}/{name}", lambda how=(part, factors, name): peer(*how, python))
            for name, biases in OURS.items():
                store.get(f"{seed}/{factors}/{name}", lambda how=(part, factors, biases): ours(*how))


def lines(store: Store) -> list[list[str]]:
    """Return the lines of the table."""
    out = []
    for factors in (0, *FACTORS):
        for name in ("independence", *PEERS, *OURS):
            rows = [row for key, row in store.rows.items() if key.split("/")[1:] == [str(factors), name]]
            if not rows:
                continue
            scores = [
                mean_se(np.mean(known), np.std(known, ddof=1), 4) if len(known) > 1 else f"{known[0]:.4f}"
                for known in ([row[what] for row in rows] for what in ("nats", "of_some"))
            ]
            impossible = f"{np.mean([row['impossible'] for row in rows]):.0f}"
            seconds = f"{np.median([row['seconds'] for row in rows]):.3g}" if factors else "-"
            out.append([name, str(factors or "-"), *scores, impossible, seconds, str(len(rows))])
    return out


def stopped(store: Store) -> str:
    """Say which fits of ours ended at the greatest number of steps."""
    keys = [key.split("/") for key, row in store.rows.items() if not row.get("converged", True)]
    known = [f"{name} with {factors} factors, split {seed}" for seed, factors, name in keys]
    return f"Stopped at 200 steps before they had converged: {'; '.join(known) or 'none'}.\n"


def page(store: Store) -> list[str]:
    """Return the parts of the page."""
    head = ["method", "factors", "nats a cell (sd)", "of counts above zero (sd)", "impossible", "seconds", "splits"]
    block = thinned(0)
    share = float(np.mean(block.learned + block.held_out > 0))
    return [
        header("Bilinear models where zeros are data", NAME, "numba"),
        INTRODUCTION,
        f"Of the cells {share:.1%} are not zero.\n",
        markdown_table(head, lines(store)),
        stopped(store),
        store.measured(),
    ]


INTRODUCTION = f"""The {SIDE} artists of LastFM with the most listeners, and the {SIDE} users with the most of these:
all cells, zeros included. Each count, floor(sqrt plays + 1/2), is thinned at random: its plays are learned from with
probability {SHARE:g} and predicted otherwise. Were counts Poisson, both parts would be independent, with rates in that
ratio; no cell has to be hidden, which hpfrec and poismf could not do: for them a cell that is not listed is zero.

All four models have Poisson counts: hpfrec's and poismf's rates are inner products of positive rows (gamma posteriors,
and a regularised maximum), those of `method="vg"` are exp(v^T u + level), with biases of rows and columns in its last
lines. Scores are mean negative log probabilities of what was held out, at the peers' rates and averaged over {DRAWS}
draws of ours. Cells are counted as impossible, and not scored, where a rate is zero and the count is not. Settings of
the peers are their own, with up to 1,000 iterations of hpfrec; scales of ours are learned. One thread each.
"""


def main() -> None:
    """Measure and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peers", metavar="PYTHON", help="interpreter that has hpfrec and poismf")
    parser.add_argument("--splits", type=int, default=3)
    parser.add_argument("--page", action="store_true", help="write the page from the rows that there are")
    options = parser.parse_args()
    store = Store("bilinear_peers")
    if not options.page:
        measure(store, options.splits, options.peers)
    print(write_page("bilinear_peers", page(store)))


if __name__ == "__main__":
    main()
