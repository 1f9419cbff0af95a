"""Dispatch of moments of inner products of Gaussian rows: the NumPy body for small problems, the Numba body for others.

The Numba body takes some seconds to compile at first, and a tenth of the time of the NumPy body or less to run.
"""

from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np

from pymc_ep.models.bilinear.kernel import body, full_body
from pymc_ep.models.bilinear.kernel.body import Pairs, Rows
from pymc_ep.models.bilinear.kernel.full_body import FactoredRows, FullRows

__all__ = ["log_mean_exp", "log_mean_exp_pullback", "variance", "variance_pullback"]

OwnRows = Rows | FactoredRows
"""Rows whose derivatives are wanted."""
OtherRows = Rows | FullRows
"""Rows that they are multiplied by."""

_FEW = 30_000
"""Largest size for the NumPy body: pairs times columns, or with covariances ten times pairs times squared columns. A
call of that size takes milliseconds, and a fit seconds."""


def log_mean_exp(pairs: Pairs, own: OwnRows, other: OtherRows) -> tuple[np.ndarray, np.ndarray]:
    """Return E f and log E e^f of each pair, (n,) each; the latter is infinite where it does not exist.

    Parameters
    ----------
    pairs : Pairs
        n pairs of rows.
    own, other : Rows, or FactoredRows and FullRows
        Moments of all own and all other rows.
    """
    return _statistics("log_mean_exp", pairs, own, other)


def variance(pairs: Pairs, own: OwnRows, other: OtherRows) -> tuple[np.ndarray, np.ndarray]:
    """Return E f and Var f of each pair, (n,) each; arguments are those of `log_mean_exp`."""
    return _statistics("variance", pairs, own, other)


def log_mean_exp_pullback(
    pairs: Pairs, own: OwnRows, other: OtherRows, of_mean: np.ndarray, of_log: np.ndarray
) -> Rows | FullRows:
    """Return the derivatives in the own moments of the sum of E f and log E e^f with weights, (n,) each.

    Parameters
    ----------
    pairs, own, other
        As in `log_mean_exp`.
    of_mean, of_log : ndarray, (n,)
        Weights of the pairs.

    Returns
    -------
    Rows or FullRows
        (I, K) each, or (I, K) and (I, K, K) for rows with covariances.
    """
    return _derivatives("log_mean_exp_pullback", pairs, own, other, of_mean, of_log)


def variance_pullback(
    pairs: Pairs, own: OwnRows, other: OtherRows, of_mean: np.ndarray, of_variance: np.ndarray
) -> Rows | FullRows:
    """Return the derivatives of sum(of_mean * E f + of_variance * Var f), as `log_mean_exp_pullback` does."""
    return _derivatives("variance_pullback", pairs, own, other, of_mean, of_variance)


def _chosen(name: str, pairs: Pairs, own: OwnRows) -> tuple[bool, Callable[..., Any]]:
    """Return True for the NumPy body or False for the Numba body, and the function of that body."""
    full, width = isinstance(own, FactoredRows), own.mean.shape[1]
    if len(pairs.others) * (10 * width**2 if full else width) <= _FEW:
        return True, getattr(full_body if full else body, name)
    return False, getattr(import_module("pymc_ep.models.bilinear.kernel.numba"), f"full_{name}" if full else name)


def _statistics(name: str, pairs: Pairs, own: OwnRows, other: OtherRows) -> tuple[np.ndarray, np.ndarray]:
    few, run = _chosen(name, pairs, own)
    if few:
        return run(pairs, own, other)
    out = np.empty(len(pairs.others)), np.empty(len(pairs.others))
    run(pairs.ends, pairs.others, *own, *other, *out)
    return out


def _derivatives(
    name: str, pairs: Pairs, own: OwnRows, other: OtherRows, first: np.ndarray, second: np.ndarray
) -> Rows | FullRows:
    few, run = _chosen(name, pairs, own)
    if few:
        return run(pairs, own, other, first, second)
    kind = FullRows if isinstance(own, FactoredRows) else Rows
    out = kind(*(np.empty(part.shape) for part in own))
    run(pairs.ends, pairs.others, *own, *other, first, second, *out)
    return out
