"""Dispatch of moments of inner products: NumPy for small problems, Numba for large ones, C and JAX only if named.

The Numba body takes some seconds to compile at first, and a tenth of the time of the NumPy body or less to run.
"""

from collections.abc import Sequence
from importlib import import_module
from types import ModuleType

import numpy as np

from pymc_ep.kernels.array_op import compiled_in_c
from pymc_ep.models.bilinear.kernel.body import Pairs, Rows
from pymc_ep.models.bilinear.kernel.full_body import FactoredRows, FullRows

__all__ = ["log_mean_exp", "log_mean_exp_pullback", "variance", "variance_pullback"]

OwnRows = Rows | FactoredRows
"""Rows of one matrix; pullbacks return derivatives in their moments."""
OtherRows = Rows | FullRows
"""Rows of the other matrix."""

_FEW = 30_000
"""Largest size for the NumPy body: pairs times columns, or with covariances ten times pairs times squared columns. A
call of that size takes milliseconds, and a fit seconds."""


def log_mean_exp(
    pairs: Pairs, own: OwnRows, other: OtherRows, *, backend: str = "auto"
) -> tuple[np.ndarray, np.ndarray]:
    """Return E f and log E e^f of each pair, (n,) each; the latter is infinite where E e^f does not exist.

    Parameters
    ----------
    pairs : Pairs
        n pairs of rows.
    own, other : Rows, or FactoredRows and FullRows
        Moments of all rows of one matrix, and of all rows of the other.
    backend : {"auto", "numpy", "c", "numba", "jax"}
        Implementation; "auto" chooses by size.
    """
    return _moments("log_mean_exp", pairs, own, other, backend)


def variance(pairs: Pairs, own: OwnRows, other: OtherRows, *, backend: str = "auto") -> tuple[np.ndarray, np.ndarray]:
    """Return E f and Var f of each pair, (n,) each; arguments as in `log_mean_exp`."""
    return _moments("variance", pairs, own, other, backend)


def log_mean_exp_pullback(
    pairs: Pairs,
    own: OwnRows,
    other: OtherRows,
    of_mean: np.ndarray,
    of_log: np.ndarray,
    *,
    backend: str = "auto",
) -> Rows | FullRows:
    """Return the derivatives of sum(of_mean * E f + of_log * log E e^f) in the moments of `own`.

    Parameters
    ----------
    pairs, own, other, backend
        As in `log_mean_exp`.
    of_mean, of_log : ndarray, (n,)
        Weights of the pairs.

    Returns
    -------
    Rows or FullRows
        Derivatives in mean and variance, (I, K) each, or in mean and covariance, (I, K) and (I, K, K).
    """
    return _derivatives("log_mean_exp", pairs, own, other, of_mean, of_log, backend)


def variance_pullback(
    pairs: Pairs,
    own: OwnRows,
    other: OtherRows,
    of_mean: np.ndarray,
    of_variance: np.ndarray,
    *,
    backend: str = "auto",
) -> Rows | FullRows:
    """Return the derivatives of sum(of_mean * E f + of_variance * Var f), as `log_mean_exp_pullback` does."""
    return _derivatives("variance", pairs, own, other, of_mean, of_variance, backend)


def _chosen(backend: str, pairs: Pairs, own: OwnRows) -> str:
    """Return `backend`, or for "auto" the implementation that suits these numbers of pairs and columns."""
    if backend != "auto":
        return backend
    full, width = isinstance(own, FactoredRows), own.mean.shape[1]
    return "numpy" if len(pairs.others) * (10 * width**2 if full else width) <= _FEW else "numba"


def _moments(
    statistic: str, pairs: Pairs, own: OwnRows, other: OtherRows, backend: str
) -> tuple[np.ndarray, np.ndarray]:
    n = len(pairs.others)
    mean, second = _run("ProductMoments", statistic, backend, pairs, own, other, out=((n,), (n,)))
    return mean, second


def _derivatives(
    statistic: str,
    pairs: Pairs,
    own: OwnRows,
    other: OtherRows,
    first: np.ndarray,
    second: np.ndarray,
    backend: str,
) -> Rows | FullRows:
    kind = FullRows if isinstance(own, FactoredRows) else Rows
    shapes = tuple(moment.shape for moment in own)
    return kind(*_run("ProductDerivatives", statistic, backend, pairs, own, other, first, second, out=shapes))


def _run(
    name: str,
    statistic: str,
    backend: str,
    pairs: Pairs,
    own: OwnRows,
    other: OtherRows,
    *weights: np.ndarray,
    out: tuple[tuple[int, ...], ...],
) -> Sequence[np.ndarray]:
    """Return the outputs of an Op, of shapes `out`, by the chosen implementation."""
    chosen = _chosen(backend, pairs, own)
    op = getattr(_module("op"), name)(statistic, isinstance(own, FactoredRows))
    arguments = pairs.ends, pairs.others, *own, *other, *weights
    inputs = [np.asarray(value, dtype=dtype) for value, (dtype, _) in zip(arguments, op.types, strict=True)]
    if chosen == "numpy":
        return op.evaluate(inputs)
    if chosen == "c":
        return compiled_in_c(op)(*inputs)
    if chosen == "jax":
        return _module("jax").on_host(op, *inputs)
    outputs = tuple(np.empty(shape) for shape in out)
    getattr(_module("numba"), op.compiled_function)(*inputs, *outputs)
    return outputs


def _module(name: str) -> ModuleType:
    return import_module(f"pymc_ep.models.bilinear.kernel.{name}")
