"""Factors of precisions A = D^T diag(pi) D of N unknowns: protocols, dense factors, and the choice of a method."""

from functools import cached_property
from typing import Protocol

import numpy as np
import scipy.linalg
import scipy.sparse
from scipy.sparse.linalg import LinearOperator

from pymc_ep.numerics import memory
from pymc_ep.numerics.backend.cholesky import counts, factor_lower, mirror_lower
from pymc_ep.numerics.backend.namespace import Array
from pymc_ep.numerics.memory import CHUNK, chunks
from pymc_ep.numerics.precision.multifrontal import Multifrontal, pivots_vanish, rows_by_length
from pymc_ep.numerics.precision.nested_dissection import dissect, pair_count, pattern

__all__ = [
    "Algebra",
    "Dense",
    "DenseFactor",
    "PrecisionFactor",
    "dense_need",
    "factor_need",
    "plan_algebra",
    "require_memory",
]

_MOST_PAIRS = 2**25
"""Largest number of products of two entries of a row for nested dissection: 2 GB while they are sorted."""
_FULL = 0.5
"""Density of a precision above which it is factored densely: the more fill-in, the less nested dissection saves."""
_DENSE = 0.05
"""Density of a design above which its products are dense, by BLAS: an entry of a sparse product costs some 20
operations of BLAS."""
_GATHER = 8
"""Time of one random access to memory, in multiply-adds of a dense product."""
_GAIN = 2.0
"""Factor by which nested dissection must save operations: its small matrices run at a lower rate than one large one."""
_DENSE_COPIES = 4
"""Number of copies of the dense design, and of the precision, that exist at a time under JAX."""


class PrecisionFactor(Protocol):
    """A factor of a precision A, (N, N)."""

    @property
    def proper(self) -> bool:
        """Whether A is positive definite beyond rounding; the other members are meaningless where it is not."""

    @property
    def log_det(self) -> float:
        """log |A|."""

    def solve(self, b: np.ndarray) -> np.ndarray:
        """Return A^{-1} b, for b of shape (N,) or (N, k)."""

    def variances(self, design: scipy.sparse.csr_array) -> np.ndarray:
        """Return diag(C A^{-1} C^T), (m,), for C = `design`, (m, N)."""

    def predictor_variances(self) -> np.ndarray:
        """Return diag(D A^{-1} D^T), (n,), for the algebra's own D."""

    def draw(self, size: int, rng: np.random.Generator) -> np.ndarray:
        """Return draws of N(0, A^{-1}), (size, N)."""


class Algebra(Protocol):
    """A way to factor D^T diag(pi) D, chosen once for a design D, (n, N)."""

    @property
    def design(self) -> scipy.sparse.csr_array | LinearOperator:
        """D, as a canonical sparse matrix or a LinearOperator."""

    @property
    def row_squares(self) -> np.ndarray:
        """Squared lengths of the rows of D, (n,)."""

    @property
    def flops(self) -> float:
        """Floating-point operations of one factorisation and the variances of all predictors."""

    @property
    def bytes(self) -> int:
        """Most memory that one factorisation and the variances take, in bytes."""

    @property
    def sentence(self) -> str:
        """Description of the algebra, for messages and `explain`."""

    def factor(self, weights: np.ndarray, ridge: np.ndarray | None = None) -> PrecisionFactor:
        """Factor D^T diag(weights) D, with `ridge`, (N,), added to its diagonal where given."""


def plan_algebra(design: Array, shape: tuple[int, ...] | None = None) -> Algebra:
    """Return the algebra that factors D^T diag(pi) D: nested dissection if it saves many operations, else dense.

    Parameters
    ----------
    design : sparse array or ndarray, (n, N)
        D. A csr_array of floats is not copied, but made canonical in place.
    shape : tuple of int, optional
        Shape of the array of unknowns, C-ordered, of N elements.
    """
    if not (isinstance(design, scipy.sparse.csr_array) and design.dtype == float):
        design = scipy.sparse.csr_array(design, dtype=float)
    design.sum_duplicates()
    dense = Dense(design)
    if pair_count(design) > _MOST_PAIRS:
        return dense
    coupled = pattern(design)
    if coupled.nnz > _FULL * coupled.shape[0] ** 2:
        return dense
    local = Multifrontal(design, dissect(coupled, shape))
    return local if _GAIN * local.flops < dense.flops else dense


def factor_need(algebra: Algebra) -> tuple[int, str, str, str]:
    """Return the bytes that a factor needs, and parts of a message, as arguments of `memory.require_memory`."""
    n = algebra.design.shape[1]
    cure = "Use method='dsb' with variance='perturb-and-map', which stores no matrix, or a smaller image."
    return algebra.bytes, f"Exact variances of {n} unknowns need", algebra.sentence, cure


def require_memory(algebra: Algebra) -> None:
    """Raise InvalidDataError if a factor exceeds the free memory of this machine, where that is known."""
    memory.require_memory(*factor_need(algebra))


def dense_need(design: scipy.sparse.csr_array) -> tuple[int, str, str, str]:
    """Return the bytes of dense factors under JAX for a design, (n, N), as arguments of `memory.require_memory`.

    A few copies of the dense design exist at a time, scaled and whitened, and as many (N, N) matrices.
    """
    n_rows, n = design.shape
    cure = "Leave compile_kwargs={'mode': 'JAX'} and device= out: sparse factors are used without it."
    needed = _DENSE_COPIES * 8 * n * (n_rows + n)
    return needed, f"Under JAX {n} unknowns need", f"dense {n_rows} x {n} and {n} x {n} matrices", cure


class Dense:
    """Factors precisions D^T diag(pi) D of one design as dense matrices.

    Parameters
    ----------
    design : csr_array, (n, N)
        D, canonical.
    """

    def __init__(self, design: scipy.sparse.csr_array):
        self.design = design

    @property
    def row_squares(self) -> np.ndarray:
        """Squared lengths of the rows of D, (n,)."""
        return self.design.power(2).sum(axis=1)

    @property
    def flops(self) -> float:
        """Floating-point operations of one factorisation and the variances of all predictors."""
        n_rows, n = self.design.shape
        # n^3 / 3 for the factor, 2 n^3 / 3 for its inverse, and a product each for A and for the variances.
        return float(n) ** 3 + 4.0 * (n_rows * n**2 if self._is_dense else self.design.nnz * n)

    @property
    def bytes(self) -> int:
        """Largest memory of a factor, in bytes: the factor, the inverse, and pieces of products."""
        n_rows, n = self.design.shape
        return 8 * (2 * n**2 + 2 * min(max(CHUNK, n), n_rows * n))

    @property
    def sentence(self) -> str:
        """Description of the algebra, for messages and `explain`."""
        n = self.design.shape[1]
        return (
            f"the {n} x {n} precision is factored exactly as a dense matrix ({self.flops:.2g} operations, "
            f"{self.bytes / 1e6:.0f} MB)"
        )

    @property
    def _is_dense(self) -> bool:
        return self.design.nnz > _DENSE * self.design.shape[0] * self.design.shape[1]

    @cached_property
    def _transposed(self) -> scipy.sparse.csr_array:
        return self.design.T.tocsr()

    def precision(self, weights: np.ndarray) -> np.ndarray:
        """Return D^T diag(weights) D, (N, N), valid in its lower triangle."""
        n_rows, n = self.design.shape
        out = np.zeros((n, n), order="F")
        if self._is_dense:
            # Sum over blocks of rows R of R^T diag(pi_R) R; transposes of C-ordered arrays need no copy.
            for chunk in chunks(n_rows, n):
                rows = self.design[chunk].toarray()
                scaled = rows * weights[chunk, None]
                out = scipy.linalg.blas.dgemm(1.0, rows.T, scaled.T, beta=1.0, c=out, trans_b=1, overwrite_c=1)
            return out
        # Columns b of A from their diagonal down: D_(b:)^T diag(pi) D_b.
        for chunk in chunks(n, max(n_rows, n)):
            scaled = self._transposed[chunk].T.toarray() * weights[:, None]
            out[chunk.start :, chunk] = self._transposed[chunk.start :] @ scaled
        return out

    def factor(self, weights: np.ndarray, ridge: np.ndarray | None = None) -> PrecisionFactor:
        """Factor D^T diag(weights) D, with `ridge`, (N,), added to its diagonal where given."""
        counts["factorizations"] += 1
        matrix = self.precision(weights)
        if ridge is not None:
            matrix.reshape(-1, order="F")[:: len(matrix) + 1] += ridge
        diagonal = matrix.diagonal().copy()
        factor, info = factor_lower(matrix)
        pivots = factor.diagonal()
        if info != 0 or pivots_vanish(pivots, diagonal):
            return DenseFactor(self.design, np.zeros((0, 0)), np.nan, False)
        return DenseFactor(self.design, factor, 2.0 * float(np.log(pivots).sum()), True)


class DenseFactor:
    """A dense factor of A; see `PrecisionFactor`.

    Parameters
    ----------
    design : csr_array, (n, N)
        D.
    factor : ndarray, (N, N), Fortran-ordered
        L with A = L L^T in the lower triangle; the upper is not read.
    log_det : float
    proper : bool
    """

    def __init__(self, design: scipy.sparse.csr_array, factor: np.ndarray, log_det: float, proper: bool):
        self.log_det = log_det
        self.proper = proper
        self._design = design
        self._factor = factor

    def solve(self, b: np.ndarray) -> np.ndarray:
        """Return A^{-1} b, for b of shape (N,) or (N, k)."""
        return scipy.linalg.lapack.dpotrs(self._factor, b, lower=1)[0].reshape(b.shape)

    def draw(self, size: int, rng: np.random.Generator) -> np.ndarray:
        """Return draws of N(0, A^{-1}), (size, N)."""
        noise = np.asfortranarray(rng.standard_normal((size, len(self._factor))).T)
        # L^-T z has the covariance L^-T L^-1 = A^-1.
        return scipy.linalg.blas.dtrsm(1.0, self._factor, noise, lower=1, trans_a=1, overwrite_b=1).T

    def variances(self, design: scipy.sparse.csr_array) -> np.ndarray:
        """Return diag(C A^{-1} C^T), (m,), for C = `design`, (m, N)."""
        design = scipy.sparse.csr_array(design)
        n, out = design.shape[1], np.zeros(design.shape[0])
        covariance = self._covariance
        for rows, columns, values in rows_by_length(design):
            length = columns.shape[1]
            gathered = _GATHER * length < n
            for chunk in chunks(len(rows), length**2 if gathered else n):
                if gathered:
                    pairs = covariance[columns[chunk, :, None], columns[chunk, None, :]]
                    out[rows[chunk]] = np.einsum("ri,rij,rj->r", values[chunk], pairs, values[chunk], optimize=True)
                else:
                    dense = design[rows[chunk]].toarray()
                    out[rows[chunk]] = np.einsum("ij,ij->i", dense @ covariance, dense)
        return out

    def predictor_variances(self) -> np.ndarray:
        """Return diag(D A^{-1} D^T), (n,)."""
        return self.variances(self._design)

    @cached_property
    def _covariance(self) -> np.ndarray:
        """A^{-1}, (N, N): the only array of this size besides the factor."""
        inverse, _ = scipy.linalg.lapack.dpotri(self._factor.copy(order="F"), lower=1, overwrite_c=1)
        return mirror_lower(inverse)
