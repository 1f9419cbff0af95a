"""Gaussian posteriors in coefficient space where each predictor depends on few coefficients, as in grouped data.

The algebra is that of `coefficient_space`, with R^T in compressed rows. B and its factor stay dense.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import scipy.sparse

from pymc_ep.numerics.backend.cholesky import inverse_factor
from pymc_ep.numerics.backend.namespace import Array
from pymc_ep.numerics.gaussian.coefficient_space import CoefficientPosterior, dependent, shifted_posterior, widened
from pymc_ep.numerics.gaussian.protocol import ROUNDING

__all__ = ["SparseFactorPrior"]

_PART = 2**20
"""Numbers in one block of a dense product with R, 8 MB: bounds the memory."""


class SparseFactorPrior(NamedTuple):
    """`FactorPrior` with the fields of R^T in compressed sparse rows.

    Attributes
    ----------
    values : ndarray, (k,)
    indices : ndarray of int, (k,)
        The coefficient of each value.
    starts : ndarray of int, (n + 1,)
        Where the values of each predictor begin.
    precision : ndarray, (p,)
        1, or 0 where the prior of a coefficient is flat.
    """

    values: np.ndarray
    indices: np.ndarray
    starts: np.ndarray
    precision: np.ndarray

    @property
    def _transposed(self) -> scipy.sparse.csr_array:
        return scipy.sparse.csr_array(
            (self.values, self.indices, self.starts), shape=(len(self.starts) - 1, len(self.precision))
        )

    def variances(self) -> np.ndarray:
        """Return the prior variances, (n,), with a flat coefficient counted as standard normal."""
        return np.bincount(self._predictor, self.values**2, minlength=len(self.starts) - 1)

    def covariance_matrix(self) -> np.ndarray:
        """Return K, (n, n), with flat coefficients counted as standard normal."""
        transposed = self._transposed
        return (transposed @ transposed.T).toarray()

    def is_positive_semidefinite(self) -> bool:
        """Return True: the covariance is a Gram matrix R^T R."""
        return True

    def regular(self) -> "SparseFactorPrior":
        """Return this prior with wide Gaussians in place of flat priors, for a first iterate."""
        if self.precision.all():
            return self
        squares = np.bincount(self.indices, self.values**2, minlength=len(self.precision))
        sd = widened(squares, len(self.starts) - 1, self.precision)
        return self._replace(values=self.values * sd[self.indices], precision=np.ones_like(sd))

    def undetermined(self) -> np.ndarray:
        """Return the flat coefficients whose effects are linear combinations of those of other flat ones."""
        flat = np.flatnonzero(self.precision == 0)
        columns = self._transposed[:, flat]
        return flat[dependent((columns.T @ columns).toarray())]

    def not_finite(self) -> tuple[float, int, int] | None:
        """Return the first number of R that is not finite, its coefficient and its predictor."""
        bad = np.flatnonzero(~np.isfinite(self.values))
        if not bad.size:
            return None
        return float(self.values[bad[0]]), int(self.indices[bad[0]]), int(self._predictor[bad[0]])

    def posterior(
        self, mean: Array, shift: Array, precision: Array, *, log_concave: bool = False
    ) -> CoefficientPosterior:
        """Multiply by Gaussian sites; see `pymc_ep.numerics.gaussian.observation_space.DensePrior.posterior`."""
        transposed = self._transposed
        weighted = transposed.copy()
        weighted.data *= precision[self._predictor]
        gram = (transposed.T @ weighted).toarray()
        # Symmetric to rounding; LAPACK reads one half.
        whitener, log_det, proper = inverse_factor(np.diag(self.precision) + gram)
        variance = np.empty(len(mean))
        for part, half in self._times(whitener.T):
            variance[part] = np.einsum("ij,ij->i", half, half)
        zero = np.zeros_like(variance)
        prior = CoefficientPosterior(
            mean, variance, 1.0 - precision * variance, zero, log_det, proper, np.zeros(len(self.precision)), whitener
        )
        return self.shifted(prior, mean, shift, precision)

    def shifted(
        self, posterior: CoefficientPosterior, mean: Array, shift: Array, precision: Array
    ) -> CoefficientPosterior:
        """Return the posterior for another `shift` of the same `precision`: products with vectors only."""
        return shifted_posterior(self._transposed, self.precision, posterior, mean, shift, precision)

    def rounding(self, posterior: CoefficientPosterior) -> float:
        """Return the rounding of a posterior mean, in standard deviations: under vague priors no digits cancel here."""
        return ROUNDING

    def posterior_rows(self, posterior: CoefficientPosterior) -> Callable[..., np.ndarray]:
        """Return a function of rows, and maybe columns, of R^T B^{-1} R."""
        half = self._transposed @ posterior.whitener.T
        return lambda rows, columns=slice(None): half[rows] @ half[columns].T

    def cotangent(self, posterior: CoefficientPosterior, precision: Array) -> np.ndarray:
        """Return d log Z / d values, (k,): E[v] a^T - B^{-1} R Pi where R may have entries."""
        inverse = posterior.whitener.T @ posterior.whitener
        row, column = self._predictor, self.indices
        out = posterior.coordinates[column] * posterior.weights[row]
        for part, product in self._times(inverse):
            here = slice(self.starts[part.start], self.starts[part.stop])
            out[here] -= product[row[here] - part.start, column[here]] * precision[row[here]]
        return out

    @property
    def _predictor(self) -> np.ndarray:
        """The predictor of each value, (k,)."""
        return np.repeat(np.arange(len(self.starts) - 1), np.diff(self.starts))

    def _times(self, matrix: np.ndarray) -> Iterator[tuple[slice, np.ndarray]]:
        """Yield slices of predictors and their rows of R^T times a dense (p, p) matrix."""
        transposed, n = self._transposed, len(self.starts) - 1
        step = max(1, _PART // max(1, len(self.precision)))
        matrix = np.ascontiguousarray(matrix)
        for start in range(0, n, step):
            part = slice(start, min(start + step, n))
            yield part, transposed[part] @ matrix
