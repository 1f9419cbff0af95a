"""Choice of the body for posteriors of compared utilities: NumPy for few users, Numba for many, C or JAX on request."""

from importlib import import_module
from types import ModuleType

import numpy as np

from pymc_ep.kernels.array_op import compiled_in_c
from pymc_ep.models.preferences.kernel import body
from pymc_ep.models.preferences.kernel.body import Comparisons, Differences

__all__ = ["add_losses", "difference_means", "difference_moments", "precision_losses", "prior_factors"]

_FEW = 30
"""Largest number of users for NumPy, which takes some 50 microseconds for each; Numba's bodies take some seconds to
compile on a new machine."""


def _chosen(backend: str, comparisons: Comparisons) -> str:
    """Return the name of the bodies to run: `backend`, or for "auto" the faster ones for the number of users."""
    if backend != "auto":
        return backend
    return "numpy" if comparisons.n_users <= _FEW else "numba"


def prior_factors(
    comparisons: Comparisons, factors: np.ndarray, kernel: np.ndarray, scale: float, *, backend: str = "auto"
) -> tuple[np.ndarray, int]:
    """Return the Cholesky factors of the users' prior covariances; see the NumPy body."""
    chosen = _chosen(backend, comparisons)
    if chosen == "c":
        lower, first = compiled_in_c(_ops().PriorFactors())(*comparisons, factors, kernel, scale)
        return lower, int(first)
    if chosen != "numba":
        return _body(chosen).prior_factors(comparisons, factors, kernel, scale)
    squares = comparisons.square_ends
    out, failed = np.empty(squares[-1]), np.zeros(comparisons.n_users, dtype=bool)
    ends, items = comparisons.item_ends, comparisons.items
    _body(chosen).prior_factors(ends, items, squares, factors, kernel, float(scale), out, failed)
    return out, int(np.argmax(failed)) if failed.any() else -1


def difference_moments(
    comparisons: Comparisons,
    lower: np.ndarray,
    mean: np.ndarray,
    shift: np.ndarray,
    precision: np.ndarray,
    *,
    backend: str = "auto",
) -> Differences:
    """Return the posterior of the differences; see the NumPy body."""
    chosen = _chosen(backend, comparisons)
    if chosen == "c":
        return Differences(*compiled_in_c(_ops().DifferenceMoments())(*comparisons, lower, mean, shift, precision))
    if chosen != "numba":
        return _body(chosen).difference_moments(comparisons, lower, mean, shift, precision)
    out = Differences.empty(comparisons)
    arrays = comparisons.square_ends, lower, mean, shift, precision
    _body(chosen).difference_moments(*_ends(comparisons), *arrays, *out)
    return out


def difference_means(
    comparisons: Comparisons,
    whitened: np.ndarray,
    mean: np.ndarray,
    shift: np.ndarray,
    precision: np.ndarray,
    *,
    backend: str = "auto",
) -> np.ndarray:
    """Return the posterior means of the differences for any shifts; see the NumPy body."""
    chosen = _chosen(backend, comparisons)
    if chosen == "c":
        return compiled_in_c(_ops().DifferenceMeans())(*comparisons, whitened, mean, shift, precision)
    if chosen != "numba":
        return _body(chosen).difference_means(comparisons, whitened, mean, shift, precision)
    out = np.zeros(len(mean))
    arrays = comparisons.square_ends, whitened, mean, shift, precision
    _body(chosen).difference_means(*_ends(comparisons), *arrays, out)
    return out


def precision_losses(
    comparisons: Comparisons, whitened: np.ndarray, precision: np.ndarray, *, backend: str = "auto"
) -> np.ndarray:
    """Return H - H cov(f | factors) H of each user; see the NumPy body."""
    chosen = _chosen(backend, comparisons)
    if chosen == "c":
        return compiled_in_c(_ops().PrecisionLosses())(*comparisons, whitened, precision)
    if chosen != "numba":
        return _body(chosen).precision_losses(comparisons, whitened, precision)
    squares = comparisons.square_ends
    out = np.empty(squares[-1])
    _body(chosen).precision_losses(*_ends(comparisons), squares, whitened, precision, out)
    return out


def add_losses(
    comparisons: Comparisons, losses: np.ndarray, weights: np.ndarray, total: np.ndarray, *, backend: str = "auto"
) -> None:
    """Add Q - w w^T of each user to a matrix of all items; see the NumPy body, which runs for C and JAX too."""
    if _chosen(backend, comparisons) != "numba":
        body.add_losses(comparisons, losses, weights, total)
        return
    _body("numba").add_losses(comparisons.item_ends, comparisons.items, losses, weights, total)


def _ends(comparisons: Comparisons) -> tuple[np.ndarray, ...]:
    return comparisons.item_ends, comparisons.pair_ends, comparisons.firsts, comparisons.seconds


def _body(chosen: str) -> ModuleType:
    return import_module(f"pymc_ep.models.preferences.kernel.{'body' if chosen == 'numpy' else chosen}")


def _ops() -> ModuleType:
    return import_module("pymc_ep.models.preferences.kernel.op")
