"""Leading singular vectors of a sparse matrix plus a product of two thin matrices; the sum is never formed."""

from typing import NamedTuple

import numpy as np
import scipy.linalg
import scipy.sparse

__all__ = ["LeadingPairs", "SparsePlusLowRank"]


class LeadingPairs(NamedTuple):
    """Approximate singular values and vectors.

    Attributes
    ----------
    left, right : ndarray, (m, k) and (n, k)
        Orthonormal columns; left.T @ matrix @ right is diagonal.
    values : ndarray, (k,)
        Singular values in decreasing order, each at most the exact value.
    """

    left: np.ndarray
    values: np.ndarray
    right: np.ndarray


class SparsePlusLowRank:
    """The matrix ``sparse + left @ right.T``.

    Parameters
    ----------
    sparse, transposed : sparse array, (m, n) and (n, m)
        The sparse matrix and its transpose, both in compressed rows.
    left, right : ndarray, (m, k) and (n, k)
    """

    def __init__(
        self,
        sparse: scipy.sparse.csr_array,
        transposed: scipy.sparse.csr_array,
        left: np.ndarray,
        right: np.ndarray,
    ):
        self.sparse, self.transposed, self.left, self.right = sparse, transposed, left, right

    def improved(self, basis: np.ndarray) -> LeadingPairs:
        """Return the best pairs whose left vectors lie in the matrix's image of a basis, (n, k).

        This is one step of a subspace iteration. No product L R^T of thin matrices, with the columns of R in the span
        of the basis, approximates the matrix better than these pairs do.
        """
        left = _orthonormal(self.sparse @ basis + self.left @ (self.right.T @ basis))
        # M^T left = Q T, so that left^T M = T^T Q^T; the singular vectors of the small T^T turn both sides.
        image = self.transposed @ left + self.right @ (self.left.T @ left)
        right, triangle = scipy.linalg.qr(image, mode="economic", check_finite=False)
        turn, values, rest = np.linalg.svd(triangle.T)
        return LeadingPairs(left @ turn, values, right @ rest.T)

    def leading(self, basis: np.ndarray, wanted: int, *, tol: float = 1e-6, max_iter: int = 50) -> LeadingPairs:
        """Return pairs, from a start basis, (n, k), whose first `wanted` values have converged.

        Values have converged if none changes in a step by more than `tol`, relative to the largest value. After
        `max_iter` steps the last pairs are returned.
        """
        pairs = self.improved(basis)
        for _ in range(max_iter):
            before, pairs = pairs.values, self.improved(pairs.right)
            if np.abs(pairs.values - before)[:wanted].max() <= tol * pairs.values[0]:
                break
        return pairs


def _orthonormal(columns: np.ndarray) -> np.ndarray:
    return scipy.linalg.qr(columns, mode="economic", check_finite=False)[0]
