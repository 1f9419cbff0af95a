"""Precisions D^T diag(pi) D as dense matrices on a device of JAX."""

from functools import cached_property

import jax
import jax.numpy as jnp
import jax.scipy.linalg as jsl
import numpy as np
import scipy.sparse

from pymc_ep.numerics.backend.cholesky import counts
from pymc_ep.numerics.backend.device_jax import current_device
from pymc_ep.numerics.backend.namespace_jax import require_float64
from pymc_ep.numerics.memory import require_memory
from pymc_ep.numerics.precision.multifrontal import pivots_vanish
from pymc_ep.numerics.precision.plan import Dense, dense_need

__all__ = ["DenseOnDevice", "dense_on_device"]

_ROWS = 2**14
"""Number of rows of C for which diag(C A^{-1} C^T) is computed at a time: it bounds the memory."""


class DenseOnDevice(Dense):
    """Factors precisions of one design on the device on which JAX computes.

    The design, precisions and factors stay on the device; vectors are moved there and back.
    """

    @property
    def bytes(self) -> int:
        """Largest memory of the arrays that exist at a time, in bytes."""
        return dense_need(self.design)[0]

    @property
    def sentence(self) -> str:
        """Description of the algebra, for messages and `explain`."""
        return f"{super().sentence[:-1]}, by JAX on {current_device().device_kind})"

    @cached_property
    def rows(self) -> jax.Array:
        """D, (n, N), dense."""
        return jnp.asarray(self.design.toarray())

    def factor(self, weights: np.ndarray, ridge: np.ndarray | None = None) -> "DeviceFactor":
        """Factor D^T diag(weights) D, with `ridge`, (N,), added to its diagonal where given."""
        counts["factorizations"] += 1
        added = np.zeros(self.design.shape[1]) if ridge is None else ridge
        factor, diagonal = _factored(self.rows, weights, added)
        return DeviceFactor(self.rows, factor, np.asarray(jnp.diagonal(factor)), np.asarray(diagonal))


class DeviceFactor:
    """A dense factor of A; see `PrecisionFactor`.

    Parameters
    ----------
    rows : jax.Array, (n, N)
        D.
    factor : jax.Array, (N, N)
        L with A = L L^T, NaN where there is none.
    pivots, diagonal : ndarray, (N,)
        Diagonals of L and of A.
    """

    def __init__(self, rows: jax.Array, factor: jax.Array, pivots: np.ndarray, diagonal: np.ndarray):
        self._rows, self._factor = rows, factor
        self.proper = not pivots_vanish(pivots, diagonal)
        self.log_det = 2.0 * float(np.log(pivots).sum()) if self.proper else np.nan

    def solve(self, b: np.ndarray) -> np.ndarray:
        """Return A^{-1} b, for b of shape (N,) or (N, k)."""
        return np.asarray(_solved(self._factor, b))

    def draw(self, size: int, rng: np.random.Generator) -> np.ndarray:
        """Return draws of N(0, A^{-1}), (size, N)."""
        return np.asarray(_unwhitened(self._factor, rng.standard_normal((size, len(self._factor)))))

    def variances(self, design: scipy.sparse.csr_array) -> np.ndarray:
        """Return diag(C A^{-1} C^T), (m,), for C = `design`, (m, N)."""
        design = scipy.sparse.csr_array(design)
        chunks = [design[begin : begin + _ROWS].toarray() for begin in range(0, design.shape[0], _ROWS)]
        return np.concatenate([np.zeros(0), *(np.asarray(_row_variances(self._factor, chunk)) for chunk in chunks)])

    def predictor_variances(self) -> np.ndarray:
        """Return diag(D A^{-1} D^T), (n,)."""
        return np.asarray(_row_variances(self._factor, self._rows))


@jax.jit
def _factored(rows: jax.Array, weights: jax.Array, added: jax.Array) -> tuple[jax.Array, jax.Array]:
    precision = rows.T @ (weights[:, None] * rows) + jnp.diag(added)
    return jnp.linalg.cholesky(precision), jnp.diagonal(precision)


@jax.jit
def _solved(factor: jax.Array, b: jax.Array) -> jax.Array:
    return jsl.cho_solve((factor, True), b)


@jax.jit
def _unwhitened(factor: jax.Array, noise: jax.Array) -> jax.Array:
    """Return rows x, (size, N), with L^T x = z for the rows z of `noise`."""
    return jsl.solve_triangular(factor, noise.T, lower=True, trans=1).T


@jax.jit
def _row_variances(factor: jax.Array, rows: jax.Array) -> jax.Array:
    """Return diag(C A^{-1} C^T), (m,), for C = `rows`: the squared lengths of the rows of C L^{-T}."""
    return (jsl.solve_triangular(factor, rows.T, lower=True) ** 2).sum(axis=0)


def dense_on_device(design: scipy.sparse.csr_array) -> DenseOnDevice:
    """Return the algebra of dense factors under JAX for a design, (n, N); nested dissection does not run there.

    Raises an InvalidDataError if the memory does not suffice.
    """
    require_float64()
    require_memory(*dense_need(design), on_jax=True)
    return DenseOnDevice(design)
