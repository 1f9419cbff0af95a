"""Dispatch of the row updates: NumPy's body for small problems, Numba's for large ones, JAX's where it is asked for."""

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
    if chosen != "numba":
        return _body(chosen).update_rows(cells, own, other, priors, censored, sequential)
    out = Symbols(*(np.empty_like(part) for part in own))
    moments, lam = censored.background[:4], float(curvature(censored.xi))
    weights = censored.own, censored.other
    _body(chosen).update_rows(*cells, *own, *other, *priors, *weights, *moments, censored.number, lam, sequential, *out)
    return out


def _chosen(backend: str, cells: Cells, own: Symbols) -> str:
    if backend != "auto":
        return backend
    return "numpy" if len(cells.others) * own.mean.shape[1] ** 2 <= _FEW else "numba"


def _body(chosen: str) -> ModuleType:
    return import_module(f"pymc_ep.kernels.paired_symbols.{'body' if chosen == 'numpy' else chosen}")
