"""Precisions that are diagonal in an orthonormal basis: denoising under independent wavelet coefficients.

Let D = [X; W] where each row of X has a single entry and the J rows of W are orthonormal, and let the precisions pi of
the observations be such that X^T diag(pi_x) X = c I: all unknowns are observed with the same precision c. Then

    A = D^T diag(pi) D = c (I - W^T W) + W^T diag(t) W,        t_j = c + pi_j,

so that log|A| = sum_j log t_j + (N - J) log c, coefficient j has the variance 1 / t_j, and a function of A is
f(A) = f(c) (I - W^T W) + W^T diag(f(t)) W, one transform each by W and W^T. The variances of the unknowns are

    diag(A^-1)_i = sum_j W_ji^2 / t_j + (1 - sum_j W_ji^2) / c,

where no digits cancel, however large some of the t_j are. The squares of W are all that is needed besides W.
"""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
import scipy.sparse
from scipy.sparse.linalg import LinearOperator

from pymc_ep.numerics.precision.plan import Algebra, PrecisionFactor

__all__ = ["Basis", "Orthonormal", "OrthonormalFactor", "joined"]

Product = Callable[[np.ndarray], np.ndarray]
"""Product of a matrix with a vector, or a function of each element."""

_EQUAL = 1e-12
"""Relative difference of the unknowns' precisions that counts as rounding: their mean replaces them all."""
_ORTHOGONAL = 1e-9
"""Largest product of two bases with a random vector of order 1 that counts as zero: a smaller limit takes rounding of
transforms for an overlap, a larger one misses small overlaps."""
_VANISHES = 1e-14
"""Largest sum of two precisions, relative to the sum of their moduli, that counts as rounding: 45 units."""
_OPERATIONS = 2.0**9
"""Operations of one factorisation and all variances, for each unknown, by order of magnitude: some transforms by W, and
as many by its squares."""
_ARRAYS = 16
"""Number of arrays of N elements that exist at a time, for the estimate of memory."""


class Basis(NamedTuple):
    """A matrix W, (J, N), of orthonormal rows, known by its products.

    Attributes
    ----------
    size : int
        J.
    forward, adjoint : callable
        Products with W, (N,) -> (J,), and with W^T, (J,) -> (N,).
    squared_adjoint : callable, optional
        The map from v, (J,), to sum_j W_ji^2 v_j, (N,); None if no fast transform computes it.
    """

    size: int
    forward: Product
    adjoint: Product
    squared_adjoint: Product | None


def joined(bases: Sequence[Basis]) -> Basis | None:
    """Return several bases as one, or None if their rows are not orthonormal together."""
    if len(bases) == 1:
        return bases[0]
    for basis, others in ((basis, bases[:k]) for k, basis in enumerate(bases)):
        # W_k W_j^T = 0, tested by the product with a random vector.
        probe = basis.adjoint(np.random.default_rng(0).standard_normal(basis.size))
        if any(np.abs(other.forward(probe)).max() > _ORTHOGONAL for other in others):
            return None
    ends = np.cumsum([basis.size for basis in bases])

    def forward(x: np.ndarray) -> np.ndarray:
        return np.concatenate([basis.forward(x) for basis in bases])

    def adjoint(v: np.ndarray) -> np.ndarray:
        return sum(
            (basis.adjoint(coefficients) for basis, coefficients in zip(bases, np.split(v, ends[:-1]))),
            start=np.zeros(()),
        )

    squared = [basis.squared_adjoint for basis in bases if basis.squared_adjoint is not None]

    def squared_adjoint(v: np.ndarray) -> np.ndarray:
        return sum(
            (part_adjoint(coefficients) for part_adjoint, coefficients in zip(squared, np.split(v, ends[:-1]))),
            start=np.zeros(()),
        )

    return Basis(int(ends[-1]), forward, adjoint, squared_adjoint if len(squared) == len(bases) else None)


class Orthonormal:
    """Factors precisions D^T diag(pi) D of D = [X; W] by transforms, where X^T diag(pi_x) X = c I.

    Parameters
    ----------
    observed : csr_array, (m, N)
        X, with one entry in each row.
    basis : Basis
        W.
    otherwise : callable
        Returns an algebra of D for weights without a common c. It may raise if there is no such algebra.
    """

    def __init__(self, observed: scipy.sparse.csr_array, basis: Basis, otherwise: Callable[[], Algebra]):
        self.observed = observed
        self.basis = basis
        self._otherwise = otherwise
        self._squares = observed.power(2).T.tocsr()

    @cached_property
    def design(self) -> LinearOperator:
        """D, by its products."""
        observed, transposed, basis = self.observed, self.observed.T.tocsr(), self.basis
        m, n = observed.shape

        def forward(x: np.ndarray) -> np.ndarray:
            x = np.ravel(x)
            return np.concatenate([observed @ x, basis.forward(x)])

        def adjoint(v: np.ndarray) -> np.ndarray:
            v = np.ravel(v)
            return transposed @ v[:m] + basis.adjoint(v[m:])

        return LinearOperator((m + basis.size, n), matvec=forward, rmatvec=adjoint, dtype=float)

    @property
    def row_squares(self) -> np.ndarray:
        """Squared lengths of the rows of D, (n,)."""
        return np.concatenate([self.observed.power(2).sum(axis=1), np.ones(self.basis.size)])

    @property
    def flops(self) -> float:
        """Floating-point operations of one factorisation and the variances of all predictors, by order of magnitude."""
        return _OPERATIONS * self.observed.shape[1]

    @property
    def bytes(self) -> int:
        """Most memory that one factorisation and the variances take, in bytes."""
        return 8 * _ARRAYS * self.observed.shape[1]

    @property
    def sentence(self) -> str:
        """Description of the algebra, for messages and `explain`."""
        n = self.observed.shape[1]
        return (
            f"the {n} x {n} precision is diagonal in {self.basis.size} orthonormal coefficients, as all unknowns are "
            f"observed with one precision: exact, by transforms alone"
        )

    def common_precision(self, weights: np.ndarray, ridge: np.ndarray | None = None) -> float | None:
        """Return c with X^T diag(weights) X + ridge = c I, from the first m weights; None if there is no such c."""
        diagonal = self._squares @ weights[: self.observed.shape[0]]
        diagonal = diagonal if ridge is None else diagonal + ridge
        common = float(diagonal.mean())
        return common if np.isfinite(common) and np.ptp(diagonal) <= _EQUAL * abs(common) else None

    def factor(self, weights: np.ndarray, ridge: np.ndarray | None = None) -> PrecisionFactor:
        """Factor D^T diag(weights) D, with `ridge`, (N,), added to its diagonal where given."""
        common = self.common_precision(weights, ridge)
        if common is None:
            return self._otherwise().factor(weights, ridge)
        return OrthonormalFactor(self, common, weights[self.observed.shape[0] :])


class OrthonormalFactor:
    """A = c I + W^T diag(pi) W; see `pymc_ep.numerics.precision.plan.PrecisionFactor`.

    Parameters
    ----------
    algebra : Orthonormal
    common : float
        c.
    weights : ndarray, (J,)
        pi.
    """

    def __init__(self, algebra: Orthonormal, common: float, weights: np.ndarray):
        self._observed, self._basis = algebra.observed, algebra.basis
        self._common, self._totals = common, common + weights
        self._complement = self._observed.shape[1] - self._basis.size
        rounding = _VANISHES * (abs(common) + np.abs(weights))
        self.proper = bool((self._totals > rounding).all()) and (not self._complement or common > 0.0)

    @property
    def log_det(self) -> float:
        """log |A|."""
        complement = self._complement * float(np.log(self._common)) if self._complement else 0.0
        return float(np.log(self._totals).sum()) + complement

    def solve(self, b: np.ndarray) -> np.ndarray:
        """Return A^{-1} b, for b of shape (N,) or (N, k)."""
        b = np.asarray(b, dtype=float)
        if b.ndim == 1:
            return self._function(np.reciprocal, b)
        return np.column_stack([self._function(np.reciprocal, column) for column in b.T])

    def draw(self, size: int, rng: np.random.Generator) -> np.ndarray:
        """Return draws of N(0, A^{-1}), (size, N): A^{-1/2} z, with the symmetric root, for standard normal z."""
        noise = rng.standard_normal((size, self._observed.shape[1]))
        return np.array([self._function(_inverse_root, z) for z in noise]).reshape(noise.shape)

    def predictor_variances(self) -> np.ndarray:
        """Return diag(D A^{-1} D^T), (n,)."""
        return np.concatenate([self.variances(self._observed), 1.0 / self._totals])

    def variances(self, design: scipy.sparse.csr_array) -> np.ndarray:
        """Return diag(C A^{-1} C^T), (m,), for C = `design`, (m, N).

        A row of one entry needs the variance of its unknown only; any other row needs a transform.
        """
        design = scipy.sparse.csr_array(design, copy=True)
        design.sum_duplicates()
        out, row = design.power(2) @ self._unknown_variances, np.zeros(design.shape[1])
        for i in np.flatnonzero(np.diff(design.indptr) > 1):
            entries = slice(design.indptr[i], design.indptr[i + 1])
            row[design.indices[entries]] = design.data[entries]
            # r^T A^-1 r = sum_j (W r)_j^2 / t_j + (|r|^2 - |W r|^2) / c for a row r.
            squares = self._basis.forward(row) ** 2
            outside = max(float(row @ row - squares.sum()), 0.0) / self._common if self._complement else 0.0
            out[i] = float((squares / self._totals).sum()) + outside
            row[design.indices[entries]] = 0.0
        return out

    @cached_property
    def _unknown_variances(self) -> np.ndarray:
        squared_adjoint = self._basis.squared_adjoint
        assert squared_adjoint is not None, "this algebra is planned for bases that have it"
        inside = squared_adjoint(1.0 / self._totals)
        if not self._complement:
            return inside
        # A column of W is longer than 1 by rounding only.
        left = np.maximum(1.0 - squared_adjoint(np.ones(self._basis.size)), 0.0)
        return inside + left / self._common

    def _function(self, function: Product, x: np.ndarray) -> np.ndarray:
        """Return f(A) x, (N,), for f = `function`, which is applied to eigenvalues elementwise."""
        coefficients = self._basis.forward(x)
        if not self._complement:
            return self._basis.adjoint(function(self._totals) * coefficients)
        # f(A) x = f(c) (x - W^T W x) + W^T f(t) W x.
        outside = float(function(np.asarray(self._common)))
        return outside * x + self._basis.adjoint((function(self._totals) - outside) * coefficients)


def _inverse_root(precision: np.ndarray) -> np.ndarray:
    return 1.0 / np.sqrt(precision)
