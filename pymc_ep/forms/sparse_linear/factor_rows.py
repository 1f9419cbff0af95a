"""The rows of a sparse linear form's map that belong to one factor, as products and as far as possible by entries."""

from collections.abc import Callable
from functools import cached_property

import numpy as np
import scipy.sparse

__all__ = ["FactorRows", "Product"]

Product = Callable[[np.ndarray], np.ndarray]


class FactorRows:
    """The rows of D that belong to one factor.

    Attributes
    ----------
    entries : csr_array, (n of the factor, N), or None
        None where there are too many to hold.
    forward, adjoint : callable
        (N,) -> (n of the factor,) and back.
    quick_squares : callable, optional
        (n of the factor,) -> (N,): the adjoint with all entries squared, where there is a quicker way than by these.
    """

    def __init__(
        self,
        entries: scipy.sparse.csr_array | None,
        forward: Product,
        adjoint: Product,
        quick_squares: Product | None = None,
    ):
        self.entries, self.forward, self.adjoint, self.quick_squares = entries, forward, adjoint, quick_squares

    @classmethod
    def held(cls, entries: scipy.sparse.csr_array) -> "FactorRows":
        """Return rows whose products are those of their entries."""
        transposed = entries.T.tocsr()
        return cls(entries, entries.__matmul__, transposed.__matmul__)

    @cached_property
    def squares(self) -> scipy.sparse.csr_array | None:
        """The squared entries, (N, n of the factor)."""
        return None if self.entries is None else self.entries.power(2).T.tocsr()

    @property
    def squared_adjoint(self) -> Product | None:
        """(n of the factor,) -> (N,): the adjoint with all entries squared; None where there is no quick way to it."""
        if self.quick_squares is not None or self.squares is None:
            return self.quick_squares
        return self.squares.__matmul__
