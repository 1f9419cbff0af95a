"""What the benchmarks with matrices of counts share: cells, splits, simple baselines, calibration."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pymc as pm
import scipy.optimize
import scipy.stats

import pymc_ep as pmep
from pymc_ep.datasets import load_gowalla, load_lastfm

__all__ = [
    "BASELINES",
    "BINS",
    "Observed",
    "Split",
    "dataset",
    "histogram",
    "later_visits",
    "log_likelihood",
    "model_of",
    "split_of",
]

BINS = 20
"""Of histograms of probability integral transforms."""
_SHRINKAGE = (0.3, 1.0, 3.0, 10.0, 30.0)
"""Pseudo-counts that pull row and column effects to one."""
_ROUNDS = 20
_OF_NEGATIVE_BINOMIAL = 10.0
"""Weight of a negative binomial law beside the counts of each value, so that none is impossible."""


class Observed(NamedTuple):
    """Counts of at least one, (n,), at rows and columns of an I x J matrix."""

    rows: np.ndarray
    cols: np.ndarray
    y: np.ndarray

    def at(self, places: np.ndarray) -> "Observed":
        """Return some of them."""
        return Observed(*(part[places] for part in self))

    @property
    def shape(self) -> tuple[int, int]:
        """I and J."""
        return int(self.rows.max()) + 1, int(self.cols.max()) + 1


class Split(NamedTuple):
    """Cells to learn from, the part of these that settings are chosen by, the rest of them, and cells to predict."""

    shape: tuple[int, int]
    learned: Observed
    inner: Observed
    chosen_by: Observed
    held_out: Observed


def dataset(name: str) -> Observed:
    """Return all cells; listening counts as floor(sqrt y + 1/2), as Ko and Khan (2014) take them."""
    if name == "LastFM":
        table = load_lastfm()
        rows, cols = table["artist"], table["user"]
        y = np.floor(np.sqrt(table["plays"]) + 0.5).astype(int)
    else:
        table = load_gowalla()
        rows, cols, y = table["place"], table["user"], table["visits"]
    return Observed(*(np.unique(part, return_inverse=True)[1] for part in (rows, cols)), np.asarray(y))


def later_visits() -> Split:
    """Return Gowalla's cells in the order of time: each user's last fifth to predict, the tenth before to choose by.

    A place of the last fifth is one where the user has not been before.
    """
    cells, part = dataset("Gowalla"), load_gowalla()["part"]
    parts = part != "test", part == "train", part == "tune", part == "test"
    return Split(cells.shape, *(cells.at(np.flatnonzero(one)) for one in parts))


def split_of(cells: Observed, seed: int, size: int | None = 8000) -> Split:
    """Return a random split of `size` cells, or of all: a quarter to predict, and of the rest a quarter to choose by.

    Rows and columns without a cell among these are left out.
    """
    places = np.random.default_rng(seed).permutation(len(cells.y))[:size]
    rows, cols = (np.unique(part[places], return_inverse=True)[1] for part in cells[:2])
    some = Observed(rows, cols, cells.y[places])
    order = np.arange(len(some.y))
    end = 3 * len(order) // 4
    middle = 3 * end // 4
    parts = (order[:end], order[:middle], order[middle:end], order[end:])
    return Split(some.shape, *(some.at(part) for part in parts))


# Matrices of bits, or of counts with rates log(1 + e^f)


def model_of(shape: tuple[int, int], cells: Observed, bits: bool, scale: float, rank: int) -> pm.Model:
    """Return a model whose matrices have entries of one prior standard deviation."""
    with pm.Model() as model:
        V, U = (pm.Normal(one, 0, scale, shape=(n, rank)) for one, n in zip("VU", shape))
        if bits:
            pmep.BilinearBernoulli("y", V, U, cells.rows, cells.cols, observed=cells.y)
        else:
            pmep.BilinearPoisson("y", V, U, cells.rows, cells.cols, link="softplus", observed=cells.y)
    return model


def log_likelihood(y: np.ndarray, f: np.ndarray, bits: bool) -> np.ndarray:
    """Return log probabilities of observations, (n,), at predictors, (..., n)."""
    if bits:
        return y * f - np.logaddexp(0.0, f)
    return scipy.stats.poisson(np.logaddexp(0.0, f)).logpmf(y)


# Simple baselines: log probabilities of the cells held out


def _negative_binomial(y: np.ndarray, mean: np.ndarray, alpha: float, truncated: bool) -> np.ndarray:
    law = scipy.stats.nbinom(alpha, alpha / (alpha + mean))
    return law.logpmf(y) - (np.log1p(-law.pmf(0)) if truncated else 0.0)


def _fitted(y: np.ndarray, truncated: bool) -> tuple[float, float]:
    """Return mean and alpha of most likelihood."""
    found = scipy.optimize.minimize(
        lambda at: -_negative_binomial(y, *np.exp(at), truncated).sum(),
        np.array([np.log(y.mean()), 0.0]),
        method="Nelder-Mead",
        options={"maxiter": 2000},
    )
    mean, alpha = np.exp(found.x)
    return float(mean), float(alpha)


def _poisson(split: Split) -> np.ndarray:
    return scipy.stats.poisson(split.learned.y.mean()).logpmf(split.held_out.y)


def _dispersed(split: Split, truncated: bool = False) -> np.ndarray:
    y = split.held_out.y
    return _negative_binomial(y, *_fitted(split.learned.y, truncated), truncated)


def _empirical(split: Split) -> np.ndarray:
    y, new = split.learned.y, split.held_out.y
    counts = np.bincount(y, minlength=new.max() + 1)
    smooth = _OF_NEGATIVE_BINOMIAL * np.exp(_dispersed(split, truncated=True))
    return np.log((counts[new] + smooth) / (len(y) + _OF_NEGATIVE_BINOMIAL))


def _independent(cells: Observed, shape: tuple[int, int], pull: float) -> Callable[[Observed], np.ndarray]:
    """Return the means, of any cells, of a product of a row's and a column's effect that are pulled to one."""
    mean, row, col = cells.y.mean(), np.ones(shape[0]), np.ones(shape[1])
    for _ in range(_ROUNDS):
        for own, effect, others in ((cells.rows, row, col[cells.cols]), (cells.cols, col, row[cells.rows])):
            total = np.bincount(own, cells.y, len(effect)) / mean
            effect[:] = (pull + total) / (pull + np.bincount(own, others, len(effect)))
    return lambda new: mean * row[new.rows] * col[new.cols]


def _chosen(split: Split, score: Callable[[np.ndarray, np.ndarray], tuple[float, Any]]) -> tuple[np.ndarray, Any]:
    """Return the means of the cells held out at the pull that predicts best, with what else it took."""

    def inner(pull: float) -> tuple[float, Any]:
        return score(split.chosen_by.y, _independent(split.inner, split.shape, pull)(split.chosen_by))

    pull = max(_SHRINKAGE, key=lambda pull: inner(pull)[0])
    return _independent(split.learned, split.shape, pull)(split.held_out), inner(pull)[1]


def _independent_poisson(split: Split) -> np.ndarray:
    mean, _ = _chosen(split, lambda y, mean: (float(scipy.stats.poisson(mean).logpmf(y).sum()), None))
    return scipy.stats.poisson(mean).logpmf(split.held_out.y)


def _independent_dispersed(split: Split, truncated: bool = False) -> np.ndarray:
    def score(y: np.ndarray, mean: np.ndarray) -> tuple[float, np.ndarray]:
        found = scipy.optimize.minimize(
            lambda at: -_negative_binomial(y, mean * np.exp(at[0]), np.exp(at[1]), truncated).sum(),
            np.zeros(2),
            method="Nelder-Mead",
        )
        return -float(found.fun), np.exp(found.x)

    mean, (factor, alpha) = _chosen(split, score)
    return _negative_binomial(split.held_out.y, factor * mean, alpha, truncated)


BASELINES: dict[str, Callable[[Split], np.ndarray]] = {
    "global Poisson": _poisson,
    "global negative binomial": _dispersed,
    "global negative binomial, truncated": lambda split: _dispersed(split, truncated=True),
    "global empirical": _empirical,
    "independence, Poisson": _independent_poisson,
    "independence, negative binomial": _independent_dispersed,
    "independence, negative binomial, truncated": lambda split: _independent_dispersed(split, truncated=True),
}


# Calibration


def histogram(below: np.ndarray, up_to: np.ndarray) -> np.ndarray:
    """Return the shares of `BINS` bins of probability integral transforms, spread evenly from P(Y < y) to P(Y <= y).

    Czado, Gneiting and Held (2009): the mean over what randomising would give.
    """
    edges = np.linspace(0.0, 1.0, BINS + 1)
    width = np.maximum(up_to - below, 1e-300)
    shares = np.clip((edges[:, None] - below) / width, 0.0, 1.0)
    return np.diff(shares, axis=0).mean(axis=1)
