"""Dispatch of the row updates: NumPy's body for small problems, Numba's for large ones, C and JAX only if named."""

from collections.abc import Sequence
from importlib import import_module
from types import ModuleType

import numpy as np

from pymc_ep.kernels.array_op import compiled_in_c
from pymc_ep.models.paired_symbols.kernel.body import Cells, Censored, Priors, Statistics, Symbols, curvature

__all__ = ["pair_sums", "row_backend", "row_statistics", "solve_rows", "update_in_turn", "update_rows"]

_FEW = 200_000
"""Largest problem for NumPy, as the number of cells times the squared number of factors. A sweep of that size takes
some milliseconds, and Numba's body some seconds to compile on a new machine."""
_FEW_ROWS = 50
"""Largest number of rows that NumPy updates in turn. NumPy takes 0.8 ms a row, and Numba's body 3 us, after some
seconds of compilation on a new machine."""


def row_backend(backend: str, n_cells: int, width: int) -> str:
    """Return the given backend, or for ``"auto"`` the one that suits `n_cells` cells and `width` factors."""
    if backend != "auto":
        return backend
    return "numpy" if n_cells * width**2 <= _FEW else "numba"


def pair_sums(cells: Cells, own: Symbols, other: Symbols, weights: np.ndarray, *, backend: str = "auto") -> np.ndarray:
    """Return sums over the cells of each own symbol, (I, 4); see the NumPy body."""
    chosen = row_backend(backend, len(cells.others), own.mean.shape[1])
    if chosen == "c":
        return compiled_in_c(_ops().PairSums())(*cells, *_doubles(own), *_doubles(other), weights)
    if chosen != "numba":
        return _body(chosen).pair_sums(cells, own, other, weights)
    out = np.empty((len(cells.ends) - 1, 4))
    _body(chosen).pair_sums(*cells, *own, *other, weights, out)
    return out


def row_statistics(
    cells: Cells, own: Symbols, other: Symbols, censored: Censored, *, backend: str = "auto"
) -> Statistics:
    """Return the sums over the cells of each own symbol from which `solve_rows` updates it; see the NumPy body."""
    chosen = row_backend(backend, len(cells.others), own.mean.shape[1])
    weights = censored.own, censored.other
    if chosen == "c":
        arrays = (*cells, *_doubles(own), *_doubles(other), *weights)
        return Statistics(*compiled_in_c(_ops().RowStatistics())(*arrays, censored.number, censored.xi))
    if chosen != "numba":
        return _body(chosen).row_statistics(cells, own, other, censored)
    n_own, width = own.mean.shape
    out = Statistics(*(np.empty((n_own, n)) for n in Statistics.widths(width)))
    _body(chosen).row_statistics(*cells, *own, *other, *weights, censored.number, _lam(censored), *out)
    return out


def solve_rows(
    statistics: Statistics,
    own: Symbols,
    priors: Priors,
    censored: Censored,
    *,
    sequential: bool = False,
    backend: str = "auto",
) -> Symbols:
    """Return the own symbols after an update, given the sums over their cells; see the NumPy body."""
    chosen = backend if backend != "auto" else "numpy" if statistics.precision.size <= _FEW else "numba"
    arrays = (*priors, censored.own, *censored.background[:4], censored.number)
    if chosen == "c":
        solve = compiled_in_c(_ops().SolveRows(sequential))
        return _as_stored(own, solve(*statistics, np.asarray(own.mean, dtype=float), *arrays, censored.xi))
    if chosen != "numba":
        return _body(chosen).solve_rows(statistics, own, priors, censored, sequential)
    out = Symbols(*(np.empty_like(array) for array in own))
    _body(chosen).solve_rows(*statistics, own.mean, *arrays, _lam(censored), sequential, *out)
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
    """Return the own symbols after updates of bounds, biases and factors; see the NumPy body."""
    chosen = row_backend(backend, len(cells.others), own.mean.shape[1])
    arrays = (*priors, censored.own, censored.other, *censored.background[:4], censored.number)
    if chosen == "c":
        update = compiled_in_c(_ops().UpdateRows(sequential))
        return _as_stored(own, update(*cells, *_doubles(own), *_doubles(other), *arrays, censored.xi))
    if chosen != "numba":
        return _body(chosen).update_rows(cells, own, other, priors, censored, sequential)
    out = Symbols(*(np.empty_like(array) for array in own))
    _body(chosen).update_rows(*cells, *own, *other, *arrays, _lam(censored), sequential, *out)
    return out


def update_in_turn(
    cells: Cells,
    own: Symbols,
    priors: Priors,
    censored: Censored,
    *,
    sequential: bool = False,
    points: tuple[bool, bool] = (False, False),
    backend: str = "auto",
) -> Symbols:
    """Return symbols, paired with each other, after an update of each in turn; see the NumPy body."""
    chosen = backend if backend != "auto" else "numpy" if len(own.bias) <= _FEW_ROWS else "numba"
    arrays = (*priors, censored.own, *censored.background[:4], censored.number)
    if chosen == "c":
        update = compiled_in_c(_ops().UpdateInTurn(sequential, *points))
        return _as_stored(own, update(*cells, *_doubles(own), *arrays, censored.xi))
    if chosen != "numba":
        return _body(chosen).update_in_turn(cells, own, priors, censored, sequential, points)
    out = Symbols(*(np.array(array, order="C") for array in own))
    in_turn = import_module("pymc_ep.models.paired_symbols.kernel.in_turn_numba")
    in_turn.update_in_turn(*cells, *arrays, _lam(censored), sequential, *points, *out)
    return out


def _lam(censored: Censored) -> float:
    return float(curvature(censored.xi))


def _as_stored(own: Symbols, updated: Sequence[np.ndarray]) -> Symbols:
    """Return the updated symbols in the dtype of the own symbols."""
    return Symbols(*(array.astype(own.mean.dtype, copy=False) for array in updated))


def _body(chosen: str) -> ModuleType:
    return import_module(f"pymc_ep.models.paired_symbols.kernel.{'body' if chosen == 'numpy' else chosen}")


def _ops() -> ModuleType:
    return import_module("pymc_ep.models.paired_symbols.kernel.op")


def _doubles(symbols: Symbols) -> Symbols:
    return Symbols(*(np.asarray(array, dtype=float) for array in symbols))
