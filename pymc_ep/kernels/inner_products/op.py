"""Which body of the inner products of Gaussian rows runs: NumPy's for a few numbers, else Numba's.

Numba takes some seconds to compile on a new machine, and then a tenth of the time or less.
"""

from importlib import import_module
from typing import Any

import numpy as np

from pymc_ep.kernels.inner_products import body
from pymc_ep.kernels.inner_products.body import Pairs, Rows

__all__ = ["log_mean_exp", "log_mean_exp_pullback", "variance", "variance_pullback"]

_FEW = 30_000
"""Pairs times columns up to which NumPy takes less than some milliseconds, and a fit some seconds."""


def log_mean_exp(pairs: Pairs, own: Rows, other: Rows) -> tuple[np.ndarray, np.ndarray]:
    """Return E f and log E e^f of each pair, (n,) each; the latter is infinite where it does not exist."""
    return _statistics("log_mean_exp", pairs, own, other)


def variance(pairs: Pairs, own: Rows, other: Rows) -> tuple[np.ndarray, np.ndarray]:
    """Return E f and Var f of each pair, (n,) each."""
    return _statistics("variance", pairs, own, other)


def log_mean_exp_pullback(pairs: Pairs, own: Rows, other: Rows, of_mean: np.ndarray, of_log: np.ndarray) -> Rows:
    """Return the derivatives in the own moments, (I, K), of the sum of E f and log E e^f with weights, (n,) each."""
    return _derivatives("log_mean_exp_pullback", pairs, own, other, of_mean, of_log)


def variance_pullback(pairs: Pairs, own: Rows, other: Rows, of_mean: np.ndarray, of_variance: np.ndarray) -> Rows:
    """Return the derivatives in the own moments, (I, K), of the sum of E f and Var f with weights, (n,) each."""
    return _derivatives("variance_pullback", pairs, own, other, of_mean, of_variance)


def _few(pairs: Pairs, own: Rows) -> bool:
    return len(pairs.others) * own.mean.shape[1] <= _FEW


def _compiled(name: str) -> Any:
    return getattr(import_module("pymc_ep.kernels.inner_products.numba"), name)


def _statistics(name: str, pairs: Pairs, own: Rows, other: Rows) -> tuple[np.ndarray, np.ndarray]:
    if _few(pairs, own):
        return getattr(body, name)(pairs, own, other)
    out = np.empty(len(pairs.others)), np.empty(len(pairs.others))
    _compiled(name)(pairs.ends, pairs.others, *own, *other, *out)
    return out


def _derivatives(name: str, pairs: Pairs, own: Rows, other: Rows, first: np.ndarray, second: np.ndarray) -> Rows:
    if _few(pairs, own):
        return getattr(body, name)(pairs, own, other, first, second)
    out = Rows(np.empty(own.mean.shape), np.empty(own.mean.shape))
    _compiled(name)(pairs.ends, pairs.others, *own, *other, first, second, *out)
    return out
