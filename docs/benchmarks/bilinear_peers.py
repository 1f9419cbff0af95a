"""Bilinear Poisson models beside hpfrec and poismf where zeros are data, which these take all other cells for.

    python -m docs.benchmarks.bilinear_peers [--peers PYTHON] [--splits 3] [--page]

Needs the folder ``hetrec2011-lastfm-2k`` under ``PYMC_EP_DATA``, and for the peers an interpreter that has hpfrec and
poismf. Rows that are done are kept in ``docs/benchmarks/rows``. Writes docs/benchmarks/bilinear_peers.md.
"""

import argparse
import subprocess
import tempfile
import time
import warnings
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pymc as pm
import scipy.optimize
import scipy.stats
from scipy.special import digamma

import pymc_ep as pmep
from docs.benchmarks._cells import dataset
from docs.benchmarks._common import header, markdown_table, mean_se, write_page
from docs.benchmarks._images import Store

NAME = "docs/benchmarks/bilinear_peers.py"
SIDE = 300
"""Artists with the most listeners, and users with the most of these."""
NEW = 60
"""Users that are not learned from."""
FACTORS = (2, 5, 10)
DRAWS = 100


class Law(NamedTuple):
    """A model of ours."""

    biases: bool = True
    dispersed: bool = False


OURS = {
    "vg": Law(biases=False),
    "vg, biases": Law(),
    "vg, biases, negative binomial": Law(dispersed=True),
}
PEER_FITS = {"hpfrec": 0.0} | {f"poismf, penalty {penalty:g}": penalty for penalty in (1e3, 1e1, 1e-1)}
"""With penalties of poismf, the first of which is its own."""
SHAPE, ACTIVITY = 0.3, 0.3
"""Defaults of hpfrec: shapes of the gamma priors of a user's factors and of their rate, whose mean is one."""
PEER = """
import sys, time
import numpy as np, pandas as pd
given = np.load(sys.argv[1])
y, k, kind, penalty = given["y"], int(given["k"]), str(given["kind"]), float(given["penalty"])
i, j = np.nonzero(y)
cells = pd.DataFrame({"UserId": i, "ItemId": j, "Count": y[i, j].astype(float)})
began = time.perf_counter()
if kind == "hpfrec":
    from hpfrec import HPF
    found = HPF(k=k, random_seed=1, verbose=False, reindex=False, ncores=1, maxiter=1000, stop_crit="train-llk",
                stop_thr=1e-5, check_every=10)
    items = found.fit(cells).Beta
else:
    from poismf import PoisMF
    found = PoisMF(k=k, l2_reg=penalty, random_state=1, reindex=False, nthreads=1)
    items = found.fit(cells).B
seconds = time.perf_counter() - began
np.savez(sys.argv[2], items=items, seconds=seconds)
"""


class Parts(NamedTuple):
    """Counts of users by artists, zeros included.

    Attributes
    ----------
    learned : ndarray, (users, artists)
    new : ndarray, (NEW, artists)
        Of other users.
    seen : ndarray of bool, (NEW, artists)
        Which cells of new users their rows are found from; the others are predicted.
    """

    learned: np.ndarray
    new: np.ndarray
    seen: np.ndarray


def parts_of(seed: int) -> Parts:
    """Return the counts of random new users, half of which are seen, and those of all others."""
    cells, rng = dataset("LastFM"), np.random.default_rng(seed)
    artists = np.argsort(-np.bincount(cells.rows), kind="stable")[:SIDE]
    some = np.isin(cells.rows, artists)
    users = np.argsort(-np.bincount(cells.cols[some]), kind="stable")[:SIDE]
    whole = np.zeros(cells.shape, dtype=int)
    whole[cells.rows, cells.cols] = cells.y
    block = whole[np.ix_(artists, users)].T
    new = rng.permutation(SIDE)[:NEW]
    return Parts(np.delete(block, new, axis=0), block[new], rng.random((NEW, SIDE)) < 0.5)


def scored(parts: Parts, rates: np.ndarray, seconds: float, alpha: float | None = None) -> dict[str, Any]:
    """Return mean negative log probabilities of what was not seen, averaged over rates, (s, NEW, artists)."""
    y = parts.new[~parts.seen]
    rates = rates[:, ~parts.seen]
    if alpha is None:
        logs = scipy.stats.poisson.logpmf(y, rates)
    else:
        logs = scipy.stats.nbinom.logpmf(y, alpha, alpha / (alpha + rates))
    score = -(np.logaddexp.reduce(logs, axis=0) - np.log(len(logs)))
    return {"nats": float(score.mean()), "of_some": float(score[y > 0].mean()), "seconds": seconds}


def ours(parts: Parts, factors: int, law: Law) -> dict[str, Any]:
    """Fit all cells by a variational Gaussian, all scales of which are learned, and fold new users in."""
    users, artists = (place.ravel() for place in np.indices(parts.learned.shape))
    coords = {"user": range(SIDE - NEW), "artist": range(SIDE), "factor": range(factors)}
    with pm.Model(coords=coords) as model, warnings.catch_warnings():
        # Rows say what did not converge.
        warnings.simplefilter("ignore", pmep.ConvergenceWarning)
        V = pm.Normal("V", 0, pm.HalfNormal("s", 1), dims=("artist", "factor"))
        U = pm.Normal("U", 0, 1, dims=("user", "factor"))
        offset = pm.Normal("mu", 0, 5) + np.zeros(len(users))
        if law.biases:
            b = pm.Normal("b", 0, pm.HalfNormal("sb", 1), dims="artist")
            c = pm.Normal("c", 0, pm.HalfNormal("sc", 1), dims="user")
            offset = offset + b[artists] + c[users]
        alpha = pm.HalfNormal("alpha", 5) if law.dispersed else None
        pmep.BilinearPoisson("y", V, U, artists, users, offset=offset, alpha=alpha, observed=parts.learned.ravel())
        began = time.perf_counter()
        idata = pmep.fit("vg", draws=0, progressbar=False, random_seed=0)
        seconds = time.perf_counter() - began
        who, what = np.nonzero(parts.seen)
        new = pmep.fold_in(idata, model, {"user": {"rows": what, "cols": who, "observed": parts.new[parts.seen]}})
    fit, rng = idata["fit"], np.random.default_rng(0)

    def drawn(found: Any, name: str) -> np.ndarray:
        mean, sd = (found[f"{name}_{moment}"].to_numpy() for moment in ("mean", "sd"))
        return mean + sd * rng.standard_normal((DRAWS, *mean.shape))

    f = np.einsum("sud,sad->sua", drawn(new, "U"), drawn(fit, "V")) + float(fit["hyper_mode_mu"])
    if law.biases:
        f += drawn(fit, "b")[:, None] + drawn(new, "c")[:, :, None]
    alpha = float(fit["hyper_mode_alpha"]) if law.dispersed else None
    return scored(parts, np.exp(f), seconds, alpha) | {"converged": bool(fit["converged"])}


def peer(parts: Parts, factors: int, kind: str, penalty: float, python: str) -> dict[str, Any]:
    """Fit what is not zero by a peer, and find rows of new users by its own objective."""
    with tempfile.TemporaryDirectory() as folder:
        given, found = Path(folder, "given.npz"), Path(folder, "found.npz")
        np.savez(given, y=parts.learned, k=factors, kind=kind, penalty=penalty)
        subprocess.run([python, "-c", PEER, str(given), str(found)], check=True, stdout=subprocess.DEVNULL)
        with np.load(found) as result:
            items, seconds = result["items"].astype(float), float(result["seconds"])
    row = gamma_row if kind == "hpfrec" else partial(penalised_row, penalty=penalty)
    rows = np.array([row(y[seen], items[seen]) for y, seen in zip(parts.new, parts.seen)])
    return scored(parts, (rows @ items.T)[None], seconds)


def gamma_row(y: np.ndarray, items: np.ndarray) -> np.ndarray:
    """Return the mean of a user's factors by the updates of Gopalan, Hofman and Blei (2015), given those of items."""
    n_factors = items.shape[1]
    rows, rate = np.ones(n_factors), 1.0
    log_rows = np.zeros(n_factors)
    for _ in range(500):
        share = np.exp(log_rows) * items
        share /= np.maximum(share.sum(axis=1, keepdims=True), np.finfo(float).tiny)
        shape, total = SHAPE + y @ share, rate + items.sum(axis=0)
        rows, log_rows = shape / total, digamma(shape) - np.log(total)
        rate = (ACTIVITY + n_factors * SHAPE) / (ACTIVITY + rows.sum())
    return rows


def penalised_row(y: np.ndarray, items: np.ndarray, penalty: float) -> np.ndarray:
    """Return the positive factors of a user that are best up to a penalty of their squares."""
    some = y > 0

    def fall(row: np.ndarray) -> tuple[float, np.ndarray]:
        rates = np.maximum(items[some] @ row, np.finfo(float).tiny)
        value = items.sum(axis=0) @ row - y[some] @ np.log(rates) + penalty * row @ row
        return value, items.sum(axis=0) - (y[some] / rates) @ items[some] + 2 * penalty * row

    first = np.full(items.shape[1], max(y.sum(), 1.0) / max(items.sum(), 1.0))
    return scipy.optimize.minimize(fall, first, jac=True, method="L-BFGS-B", bounds=[(1e-10, None)] * len(first)).x


def independence(parts: Parts) -> dict[str, Any]:
    """Score the product of an artist's share and what a user's seen cells tell of the user."""
    share = parts.learned.sum(axis=0) / parts.learned.sum()
    seen = np.where(parts.seen, parts.new, 0).sum(axis=1) / (parts.seen @ share)
    return scored(parts, (seen[:, None] * share)[None], 0.0)


def measure(store: Store, splits: int, python: str | None) -> None:
    """Fill in rows that are missing."""
    for seed in range(splits):
        parts = parts_of(seed)
        store.get(f"{seed}/0/independence", lambda parts=parts: independence(parts))
        for factors in FACTORS:
            for name, penalty in PEER_FITS.items() if python else ():
                kind = name.split(",")[0]
                store.get(f"{seed}/{factors}/{name}", lambda how=(parts, factors, kind, penalty): peer(*how, python))
            for name, law in OURS.items():
                store.get(f"{seed}/{factors}/{name}", lambda how=(parts, factors, law): ours(*how))


def averaged(scores: list[float]) -> str:
    """Format the mean of several splits with its standard deviation, and say of how many it is infinite."""
    known = [score for score in scores if np.isfinite(score)]
    mean = f"{known[0]:.4f}" if len(known) == 1 else mean_se(np.mean(known), np.std(known, ddof=1), 4)
    return mean if len(known) == len(scores) else f"{mean}, infinite in {len(scores) - len(known)}"


def lines(store: Store) -> list[list[str]]:
    """Return the lines of the table."""
    out = []
    for factors in (0, *FACTORS):
        for name in ("independence", *PEER_FITS, *OURS):
            rows = [row for key, row in store.rows.items() if key.split("/")[1:] == [str(factors), name]]
            if not rows:
                continue
            scores = [averaged([row[what] for row in rows]) for what in ("nats", "of_some")]
            seconds = f"{np.median([row['seconds'] for row in rows]):.3g}" if factors else "-"
            out.append([name, str(factors or "-"), *scores, seconds, str(len(rows))])
    return out


def stopped(store: Store) -> str:
    """Say which fits of ours ended at the greatest number of steps."""
    keys = [key.split("/") for key, row in store.rows.items() if not row.get("converged", True)]
    known = [f"{name} with {factors} factors, split {seed}" for seed, factors, name in keys]
    return f"Stopped at 200 steps before they had converged: {'; '.join(known) or 'none'}.\n"


def page(store: Store) -> list[str]:
    """Return the parts of the page."""
    head = ["method", "factors", "nats a cell (sd)", "of counts above zero (sd)", "seconds", "splits"]
    share = float(np.mean(parts_of(0).learned > 0))
    return [
        header("Bilinear models where zeros are data", NAME, "numba"),
        INTRODUCTION,
        f"Of the cells {share:.1%} are not zero.\n",
        markdown_table(head, lines(store)),
        stopped(store),
        store.measured(),
    ]


INTRODUCTION = f"""\
The {SIDE} artists of LastFM with the most listeners, and the {SIDE} users with the most of these. All cells count,
zeros included: hpfrec and poismf take a cell that is not listed for zero, so that none can be hidden from them.
Counts are floor(sqrt plays + 1/2).

- Models learn from all counts of {SIDE - NEW} users.
- Of {NEW} new users a random half of the artists is seen, zeros too. The other half is predicted.
- Rates of hpfrec and poismf are inner products of positive rows. Those of `method="vg"` are exp(v^T u + level).
- All counts are Poisson, but for the last model, which is overdispersed.
- The row of a new user is found by each model's own objective, given its rows of artists: by the updates of hpfrec's
  paper, by poismf's penalised likelihood, and by `fold_in`.
- Scores are mean negative log probabilities of what was not seen. Ours are averaged over {DRAWS} draws.
- A score is infinite where a user has no count among the cells that are seen, but has others.
- The peers have their own settings, but for iterations of hpfrec (up to 1,000) and further penalties of poismf. Ours
  learn their scales.
- Seconds are those of the fit, with one thread, beside other work.
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
