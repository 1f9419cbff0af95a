"""Peers that rank items: popularity, EASE, iALS and packages of other interpreters, with probabilities for scores."""

import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.optimize
from scipy import sparse
from scipy.linalg.lapack import dposv

from docs.benchmarks._pairs import Split

__all__ = ["Ranker", "alternating_least_squares", "ease", "elsewhere", "exponents", "ials", "popularity", "tempered"]

SWEEPS = 16
"""Of iALS."""
CALIBRATION_USERS = 1000
"""Largest number of users from which exponents are found."""
PEER = """
import json, sys, time
from importlib.metadata import version
import numpy as np
from scipy import sparse
given = np.load(sys.argv[1])
i, j, shape, kind = given["users"], given["items"], tuple(map(int, given["shape"])), str(given["kind"])
settings, seed = json.loads(str(given["settings"])), int(given["seed"])
bias = np.zeros(shape[1])
if kind == "cornac BPR":
    from cornac.data import Dataset
    from cornac.models import BPR
    # All items, so that those without a pair are drawn as negatives too.
    maps = [{k: k for k in range(n)} for n in shape]
    data = Dataset(*shape, *maps, (i, j, np.ones(len(i))), seed=seed)
    model = BPR(seed=seed, verbose=False, **settings)
    began = time.perf_counter()
    model.fit(data)
    seconds = time.perf_counter() - began
    users, items, bias = model.u_factors, model.i_factors, model.i_biases
else:
    from implicit.als import AlternatingLeastSquares
    from implicit.bpr import BayesianPersonalizedRanking
    kinds = {"implicit ALS": AlternatingLeastSquares, "implicit BPR": BayesianPersonalizedRanking}
    model = kinds[kind](random_state=seed, num_threads=1, **settings)
    counts = sparse.csr_matrix((np.ones(len(i), dtype=np.float32), (i, j)), shape=shape)
    began = time.perf_counter()
    model.fit(counts, show_progress=False)
    seconds = time.perf_counter() - began
    users, items = model.user_factors, model.item_factors
package = kind.split()[0]
package += " " + version(package)
np.savez(sys.argv[2], users=users, items=items, bias=bias, seconds=seconds, package=package)
"""
"""Fits factors of users and items, and biases of items; the seconds are those of the fit alone."""


class Ranker(NamedTuple):
    """Scores of all items.

    Attributes
    ----------
    scores : callable
        From k users to (k, items).
    seconds : float
        Of the fit.
    package : str
        With its version, if the fit was another's.
    """

    scores: Callable[[np.ndarray], np.ndarray]
    seconds: float
    package: str = ""


def popularity(split: Split, smoothing: float) -> Ranker:
    """Return log probabilities by counts and a constant."""
    counts = split.learned.sum(axis=0) + smoothing
    log_p = np.log(counts / counts.sum())
    return Ranker(lambda users: np.tile(log_p, (len(users), 1)), 0.0)


def ease(split: Split, penalty: float) -> Ranker:
    """Return the scores X B of Steck (2019), with B the ridge regression of items on all others.

    With P = (X^T X + penalty I)^-1 and M = (X X^T + penalty I)^-1, X P = M X and diag P = (1 - diag X^T M X) / penalty,
    so that users by users are inverted, and no matrix of items by items is made.
    """
    began = time.perf_counter()
    X = split.learned.astype(np.float32)
    gram = (X @ X.T).toarray()
    gram[np.diag_indices_from(gram)] += penalty
    M = np.linalg.inv(gram)
    regressed = np.ascontiguousarray((X.T @ M).T)
    rows = np.repeat(np.arange(X.shape[0]), np.diff(X.indptr))
    own = np.bincount(X.indices, weights=regressed[rows, X.indices].astype(float), minlength=X.shape[1])
    diagonal = ((1.0 - own) / penalty).astype(np.float32)
    return Ranker(lambda users: X[users].toarray() - regressed[users] / diagonal, time.perf_counter() - began)


def ials(split: Split, factors: int, penalty: float, weight: float, seed: int) -> Ranker:
    """Return factors by alternating least squares as Rendle et al. (2021) have it.

    They minimise sum over pairs (1 - s)^2 + weight * sum over all cells s^2 + penalties of squared rows. That of a row
    is `penalty` times its number of pairs and `weight` times the number of rows of the other side.
    """
    began = time.perf_counter()
    users, items = alternating_least_squares(split.learned, factors, penalty, weight, seed, SWEEPS)
    return Ranker(lambda who: users[who] @ items.T, time.perf_counter() - began)


def alternating_least_squares(
    values: sparse.csr_array, factors: int, penalty: float, weight: float, seed: int, sweeps: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the factors of `ials` for entries that need not be ones."""
    rng = np.random.default_rng(seed)
    both = [values, sparse.csr_array(values.T)]
    sides = [0.1 / np.sqrt(factors) * rng.standard_normal((n, factors)) for n in values.shape]
    for _ in range(sweeps):
        for side in (0, 1):
            sides[side] = least_squares(both[side], sides[1 - side], penalty, weight)
    users, items = sides
    return users, items


def least_squares(values: sparse.csr_array, other: np.ndarray, penalty: float, weight: float) -> np.ndarray:
    """Return the rows of one side of iALS, given those of the other."""
    n_factors = other.shape[1]
    gram, diagonal = weight * other.T @ other, np.diag_indices(n_factors)
    rows = np.zeros((values.shape[0], n_factors))
    for i, (begin, end) in enumerate(zip(values.indptr[:-1], values.indptr[1:])):
        if begin == end:
            continue
        own = other[values.indices[begin:end]]
        curvature = gram + own.T @ own
        curvature[diagonal] += penalty * (end - begin + weight * len(other))
        _, rows[i], failed = dposv(curvature, values.data[begin:end] @ own, lower=True)
        assert not failed
    return rows


def elsewhere(split: Split, python: str, kind: str, seed: int, settings: str) -> Ranker:
    """Fit a peer under its own interpreter; `settings` are JSON."""
    pairs = split.learned.tocoo()
    with tempfile.TemporaryDirectory() as folder:
        given, found = Path(folder, "given.npz"), Path(folder, "found.npz")
        parts: dict[str, Any] = {"users": pairs.row, "items": pairs.col, "shape": pairs.shape}
        np.savez(given, kind=kind, settings=settings, seed=seed, **parts)
        command = [python, "-W", "ignore", "-c", PEER, str(given), str(found)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        with np.load(found) as result:
            users, items, bias = (result[name].astype(float) for name in ("users", "items", "bias"))
            seconds, package = float(result["seconds"]), str(result["package"])
    return Ranker(lambda who: users[who] @ items.T + bias, seconds, package)


def exponents(split: Split, ranker: Ranker, log_popularity: np.ndarray) -> tuple[float, float]:
    """Return the a, b with the best mean log p of held-out items, p proportional to popularity^a exp(b score).

    The items of a user are those without a learned pair, and users an even choice of all.
    """
    some = np.linspace(0, len(split.users) - 1, min(CALIBRATION_USERS, len(split.users))).astype(int)
    users, items = split.users[some], split.items[some]
    scores = ranker.scores(users)
    scale = max(float(scores.std()), 1e-12)
    scores = (scores / scale).astype(np.float32)
    seen, own = split.learned[users].tocoo(), scores[np.arange(len(users)), items].astype(float)
    log_popularity = log_popularity.astype(np.float32)
    held = np.array([log_popularity[items].mean(), own.mean()])

    def fall(x: np.ndarray) -> tuple[float, np.ndarray]:
        log_p = np.float32(x[0]) * log_popularity + np.float32(x[1]) * scores
        log_p[seen.row, seen.col] = -np.inf
        top = log_p.max(axis=1, keepdims=True)
        p = np.exp(log_p - top, out=log_p)
        total = p.sum(axis=1, keepdims=True)
        p /= total
        means = np.array([(p @ log_popularity).mean(), np.einsum("ij,ij->i", p, scores).mean()], dtype=float)
        return float((top + np.log(total)).mean() - x @ held), means - held

    a, b = scipy.optimize.minimize(fall, [0.5, 0.5], jac=True, method="L-BFGS-B", bounds=[(-2, 3), (0, 30)]).x
    return float(a), float(b) / scale


def tempered(ranker: Ranker, log_popularity: np.ndarray, powers: tuple[float, float]) -> Ranker:
    """Return log p of all items, p proportional to popularity^a exp(b score)."""

    def log_p(users: np.ndarray) -> np.ndarray:
        found = powers[0] * log_popularity + powers[1] * ranker.scores(users)
        return found - np.logaddexp.reduce(found, axis=1)[:, None]

    return ranker._replace(scores=log_p)
