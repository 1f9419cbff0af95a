"""Dispatch of the row updates: NumPy's body for small problems, Numba's for large ones, C and JAX where asked for."""

from importlib import import_module
from types import ModuleType

import numpy as np

from pymc_ep.kernels.paired_symbols.body import Cells, Censored, Priors, Symbols, curvature

__all__ = ["pair_sums", "update_rows"]

_FEW = 200_000
"""Largest size for NumPy, cells times squared factors. A sweep takes some milliseconds there, and Numba's body some
seconds to compile on a new machine."""


def pair_sums(cells: Cells, own: Symbols, other: Symbols, weights: np.ndarray, *, backend: str = "auto") -> np.ndarray:
    """Return sums over the cells of each own symbol, (I, 4); see the NumPy body."""
    chosen = _chosen(backend, cells, own)
    if chosen == "c":
        return _ops().compiled_in_c(_ops().PairSums())(*cells, *_doubles(own), *_doubles(other), weights)
    if chosen != "numba":
        return _body(chosen).pair_sums(cells, own, other, weights)
    out = np.empty((len(cells.ends) - 1, 4))
    _body(chosen).pair_sums(*cells, *own, *other, weights, out)
    return out


def update_rows(
    cells: Cells,
    own: Symbols,
    other: Symbols,
    priors: Priors,
    censored: Censored,
    *,
    sequential: bool = False,
    backend: str = "auto",
) -> Symbols:
    """Return the own symbols after an update; see the NumPy body."""
    chosen = _chosen(backend, cells, own)
    moments, weights = censored.background[:4], (censored.own, censored.other)
    if chosen == "c":
        arrays = (*cells, *_doubles(own), *_doubles(other), *priors, *weights, *moments)
        found = _ops().compiled_in_c(_ops().UpdateRows(sequential))(*arrays, censored.number, censored.xi)
        return Symbols(*(part.astype(own.mean.dtype, copy=False) for part in found))
    if chosen != "numba":
        return _body(chosen).update_rows(cells, own, other, priors, censored, sequential)
    out = Symbols(*(np.empty_like(part) for part in own))
    lam = float(curvature(censored.xi))
    _body(chosen).update_rows(*cells, *own, *other, *priors, *weights, *moments, censored.number, lam, sequential, *out)
    return out


def _chosen(backend: str, cells: Cells, own: Symbols) -> str:
    if backend != "auto":
        return backend
    return "numpy" if len(cells.others) * own.mean.shape[1] ** 2 <= _FEW else "numba"


def _body(chosen: str) -> ModuleType:
    return import_module(f"pymc_ep.kernels.paired_symbols.{'body' if chosen == 'numpy' else chosen}")


def _ops() -> ModuleType:
    return import_module("pymc_ep.kernels.paired_symbols.op")


def _doubles(symbols: Symbols) -> Symbols:
    return Symbols(*(np.asarray(part, dtype=float) for part in symbols))
