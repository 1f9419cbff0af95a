"""Comparisons of films from MovieLens: the model, fits, curves of the learning, and probabilistic PCA of full rank."""

import time
import warnings
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pymc as pm
from scipy.spatial.distance import cdist

import pymc_ep as pmep
from pymc_ep.compat import group
from pymc_ep.datasets import load_movielens_pairs
from pymc_ep.engines.base import Report
from pymc_ep.engines.partitions import LocalPartitions
from pymc_ep.forms.cache import compiled_form
from pymc_ep.models.preferences.engine.approximations import EXPECTATION
from pymc_ep.models.preferences.engine.em import PreferenceEM
from pymc_ep.models.preferences.engine.evidence import ComparisonEvidence, State
from pymc_ep.models.preferences.engine.evidence_search import maximise
from pymc_ep.models.preferences.engine.kernels import UtilityCovariance
from pymc_ep.models.preferences.engine.users import Effort, ObservedComparisons, UserFactors, expect
from pymc_ep.models.preferences.engine.values import ComparedUsers, Learned
from pymc_ep.sites.base import get_site

__all__ = ["FLAT", "PROPER", "Films", "bits_of", "curve", "fitted", "loaded", "npca"]

PSI = 1.0
"""Of the kernel exp(-|x - x'|^2 / psi) of genres x, as in the paper's figure 3.5."""
JITTER = 0.1
FIRST_SCALE = 0.1
"""Standard deviation of the first factors of a search, as in a fit."""
EFFORT = Effort(1e-8, 200)
FLAT = pm.Flat, pm.HalfFlat, pm.Flat
"""Priors of b, sigma and V."""
PROPER = partial(pm.Normal, sigma=2.0), partial(pm.HalfNormal, sigma=2.0), partial(pm.Normal, sigma=1.0)
"""The same, which hold the scale of utilities."""


class Films(NamedTuple):
    """Positions of the comparisons, (users, winners, losers), of all users and films, and genres of the films."""

    train: tuple[np.ndarray, ...]
    test: tuple[np.ndarray, ...]
    genres: np.ndarray
    n_users: int

    @property
    def kernel(self) -> np.ndarray:
        """Covariance of the genres, (I, I), without the jitter."""
        return np.exp(-cdist(self.genres, self.genres, "sqeuclidean") / PSI)


def loaded(size: str, max_pairs: int | None, *, unseen: bool, seed: int) -> Films:
    """Return a draw of the comparisons."""
    train, test, features = load_movielens_pairs(size, max_pairs=max_pairs, unseen=unseen, seed=seed)
    users = np.union1d(train["user"], test["user"])
    rows = [
        (np.searchsorted(users, part["user"]), *(features.index.get_indexer(part[k]) for k in ("winner", "loser")))
        for part in (train, test)
    ]
    return Films(*rows, features.to_numpy(), len(users))


def model_of(films: Films, kind: str, n_factors: int, rows: tuple[np.ndarray, ...]) -> pm.Model:
    """Return the model of given comparisons: factors if `kind` has VU, genres if GP, proper priors if it says so."""
    coords = {"user": range(films.n_users), "film": range(len(films.genres)), "factor": range(n_factors)}
    with pm.Model(coords=coords) as model:
        b, sigma, V = PROPER if "proper" in kind else FLAT
        terms: dict[str, Any] = {"b": b("b", dims="film"), "sigma": sigma("sigma")}
        if "VU" in kind:
            terms["V"] = V("V", dims=("film", "factor"))
        if "GP" in kind:
            terms |= {"kernel": films.kernel, "jitter": JITTER}
        f = pmep.PreferenceUtility("f", dims=("user", "film"), **terms)
        pmep.PairwiseProbit("prefers", f, **dict(zip(("users", "winners", "losers"), rows)))
    return model


def bits_of(log_p: np.ndarray) -> float:
    """Return the mean of negative logarithms, in bits."""
    return -float(np.mean(log_p)) / np.log(2)


def fitted(films: Films, kind: str, n_factors: int, **options: Any) -> dict[str, Any]:
    """Return bits a test comparison, with the standard error within this draw, seconds and what was learned."""
    model = model_of(films, kind, n_factors, films.train)
    began = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pmep.ConvergenceWarning)
        idata = pmep.fit(model=model, draws=0, progressbar=False, **options)
    seconds = time.perf_counter() - began
    log_p = pmep.log_predictive(idata, model, {"prefers": films.test})["prefers"].to_numpy()
    mean, fit = group(idata, "posterior_mean"), group(idata, "fit")
    return {
        "bits": bits_of(log_p),
        "error": float(log_p.std() / np.sqrt(len(log_p)) / np.log(2)),
        "seconds": seconds,
        "n_train": len(films.train[0]),
        "evaluations": int(fit["n_iter"]),
        "sigma": float(mean["sigma"]),
        "spread": float(mean["f"].to_numpy().std()),
        "status": fit.attrs["status"],
    }


def placed(films: Films) -> tuple[ComparedUsers, ObservedComparisons]:
    """Return all comparisons, of which those of the test are not observed."""
    users, winners, losers = map(np.concatenate, zip(films.train, films.test))
    compared = ComparedUsers.of(users, winners, losers, len(films.genres))
    observed = (compared.order < len(films.train[0])).astype(float)
    return compared, ObservedComparisons(compared.comparisons, observed)


def curve(films: Films, n_factors: int, learn: str, steps: int) -> dict[str, Any]:
    """Return bits a test comparison and seconds after each pass over the data, by EM or by L-BFGS to its end."""
    compared, data = placed(films)
    every = tuple(map(np.concatenate, zip(films.train, films.test)))
    form = compiled_form(model_of(films, "GPVU", n_factors, every))
    evidence = ComparisonEvidence(
        LocalPartitions([data]), len(compared.users), len(films.train[0]), get_site("probit"), EFFORT
    )
    prior, _ = form.prior(form.start)
    draws = np.random.default_rng(0).standard_normal(prior.factors.shape)
    theta = form.theta_of(form.start, prior._replace(factors=FIRST_SCALE * draws))
    bits: list[float] = []
    seconds: list[float] = []
    began, highest = time.perf_counter(), -np.inf

    def record(state: State) -> None:
        """Add a pass; one that lowers the evidence, as some steps of a line search, has the bits of the one before."""
        nonlocal highest
        taken = state.objective > highest
        highest = max(highest, state.objective)
        bits.append(-state.totals.held_log_p / len(films.test[0]) / np.log(2) if taken else bits[-1])
        seconds.append(time.perf_counter() - began)

    state = evidence.at(form, theta, evidence.partitions.place([UserFactors.first(compared.comparisons)]))
    record(state)
    if learn == "em":
        engine = PreferenceEM(evidence, Learned(True, True, True), tol=1e-9)
        for _ in range(steps):
            state = engine.step(form, state)
            record(state)
    else:
        maximise(evidence, form, state.theta, state.users, tol=1e-5, max_iter=steps, report=Report(), save=record)
    return {"bits": bits, "seconds": seconds, "n_train": len(films.train[0])}


def npca(films: Films, steps: int) -> dict[str, Any]:
    """Return bits after each pass of probabilistic PCA of full rank (Yu et al. 2009), which starts at the kernel.

    The mean is b + S s, and the covariance S - S (T + s s^T) S, with means over users s of the weights and T of the
    curvatures: EM without a structure of the prior.
    """
    compared, data = placed(films)
    users, n = UserFactors.first(compared.comparisons), len(compared.users)
    mean, covariance = np.zeros(len(films.genres)), films.kernel + JITTER * np.eye(len(films.genres))
    none, bits, seconds, began = np.zeros((len(mean), 0)), [], [], time.perf_counter()
    for _ in range(steps):
        prior = UtilityCovariance(none, covariance, 1.0)
        users, totals = expect(data, users, mean, prior, get_site("probit"), EXPECTATION, EFFORT)
        bits.append(-totals.held_log_p / len(films.test[0]) / np.log(2))
        seconds.append(time.perf_counter() - began)
        slope, curvature = totals.slope / n, totals.curvature / n
        curvature = curvature + np.outer(slope, slope)
        mean = mean + covariance @ slope
        covariance = covariance - covariance @ curvature @ covariance
        covariance = 0.5 * (covariance + covariance.T)
    return {"bits": bits, "seconds": seconds, "n_train": len(films.train[0])}
