"""Rows of a sparse linear form's map that belong to one factor: products, and entries if these are not too many."""

from collections.abc import Callable
from functools import cached_property

import numpy as np
import scipy.sparse

__all__ = ["AddProduct", "FactorRows", "Product"]

Product = Callable[[np.ndarray], np.ndarray]
"""Function that returns the product of a linear map with a vector."""
AddProduct = Callable[[np.ndarray, np.ndarray], None]
"""Function of v and out, (N,) each, that adds the product of a linear map with v to out."""


class FactorRows:
    """Rows D_f, (n_f, N), of the linear map D that belong to one factor of n_f sites.

    Attributes
    ----------
    entries : csr_array, (n_f, N), or None
        None if there are too many.
    forward, adjoint : callable
        (N,) -> (n_f,) and (n_f,) -> (N,).
    quick_squares : callable, optional
        (n_f,) -> (N,): the adjoint with squared entries, if there is a faster way than by the entries.
    quick_normal : callable, optional
        Replaces `normal` where there is a faster way than a product with D_f and one with D_f^T.
    """

    def __init__(
        self,
        entries: scipy.sparse.csr_array | None,
        forward: Product,
        adjoint: Product,
        quick_squares: Product | None = None,
        quick_normal: Callable[[np.ndarray], AddProduct] | None = None,
    ):
        self.entries, self.forward, self.adjoint = entries, forward, adjoint
        self.quick_squares, self.quick_normal = quick_squares, quick_normal

    @classmethod
    def held(cls, entries: scipy.sparse.csr_array) -> "FactorRows":
        """Return rows whose products are computed from their entries."""
        transposed = entries.T.tocsr()
        return cls(entries, entries.__matmul__, transposed.__matmul__)

    @cached_property
    def squares(self) -> scipy.sparse.csr_array | None:
        """Squared entries, transposed, (N, n_f)."""
        return None if self.entries is None else self.entries.power(2).T.tocsr()

    @cached_property
    def single(self) -> bool:
        """Whether each site depends on one unknown at most, so that the factor's precision is diagonal."""
        return self.entries is not None and np.diff(self.entries.indptr).max(initial=0) <= 1

    def normal(self, weights: np.ndarray) -> AddProduct:
        """Return a function of v and out, (N,), that adds D_f^T diag(weights) D_f v to out, for weights (n_f,)."""
        if self.quick_normal is not None:
            return self.quick_normal(weights)

        def add(v: np.ndarray, out: np.ndarray) -> None:
            out += self.adjoint(weights * self.forward(v))

        return add

    @property
    def squared_adjoint(self) -> Product | None:
        """The adjoint with squared entries, (n_f,) -> (N,); None if `entries` and `quick_squares` are None."""
        if self.quick_squares is not None or self.squares is None:
            return self.quick_squares
        return self.squares.__matmul__
