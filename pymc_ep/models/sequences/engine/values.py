"""Values of the training of a recurrent network: weights with the moments of their gradients, priors, the problem."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from pymc_ep.models.sequences.kernel import Sequences, Weights
from pymc_ep.numerics.backend.namespace import Array

__all__ = ["Learned", "Moments", "Prior", "Priors", "Problem", "Rows", "Visited", "converted", "first_learned"]

Rows = np.ndarray | slice
"""Some rows of a table."""


class Prior(NamedTuple):
    """Independent Gaussians of the entries of weights; both arrays broadcast to these, with as many dimensions.

    Attributes
    ----------
    mean, precision : ndarray
        Where the precision is zero there is no prior.
    """

    mean: np.ndarray
    precision: np.ndarray

    def with_ridge(self, precision: float) -> "Prior":
        """Return the product with a Gaussian about zero."""
        # N(w; m, 1 / p) N(w; 0, 1 / r) is proportional to N(w; p m / (p + r), 1 / (p + r)).
        total = self.precision + precision
        return Prior(self.precision * self.mean / np.where(total > 0, total, 1.0), total)

    def rows(self, rows: Rows) -> "Prior":
        """Return the prior of some rows."""
        mean, precision = (array if len(array) == 1 else array[rows] for array in self)
        return Prior(mean, precision)

    def pull(self, weights: Array, share: Array) -> Array:
        """Return a share, a number for each row, of the gradient of the log density."""
        # d log N(w; m, 1 / p) / dw = p (m - w).
        return (self.mean - weights) * (self.precision * share.reshape(-1, *[1] * (weights.ndim - 1)))


Priors = tuple[Prior, ...]
"""Priors of the tables of `Weights`, in their order."""


class Problem(NamedTuple):
    """Sequences, where their held-out tails begin, and priors.

    Attributes
    ----------
    sequences : Sequences
    lengths : ndarray of int, (U,)
        Number of each user's events that are trained on; those that follow are held out.
    item_counts : ndarray of int, (I,)
        Number of each item's events that are trained on, at least one.
    initial : float
        Entries of the states before all events.
    priors : tuple of Prior
        Of the tables of weights.
    of_shared : Prior, optional
        Prior of the matrices, (G, D, D), about which users' matrices lie, with the precision of ``priors[0]``. None
        where the mean of users' matrices is known.
    """

    sequences: Sequences
    lengths: np.ndarray
    item_counts: np.ndarray
    initial: float
    priors: Priors
    of_shared: Prior | None = None

    @property
    def n_trained(self) -> int:
        """Number of events that are trained on."""
        return int(self.lengths.sum())

    @property
    def held_out(self) -> np.ndarray:
        """Number of each user's events that are held out, (U,)."""
        return self.sequences.lengths - self.lengths


class Moments(NamedTuple):
    """Moving averages of gradients of a table of weights.

    Attributes
    ----------
    first, second : ndarray
        Of the gradient and of its square. The first is empty where the rule needs none.
    count : ndarray of int, (rows,)
        Number of updates of each row.
    """

    first: Array
    second: Array
    count: Array

    @classmethod
    def zero(cls, weights: np.ndarray, *, with_first: bool) -> "Moments":
        """Return the moments before any update."""
        count = np.zeros(len(weights), dtype=np.int64)
        return cls(np.zeros_like(weights if with_first else weights[:0]), np.zeros_like(weights), count)

    def rows(self, rows: Rows) -> "Moments":
        """Return the moments of some rows."""
        return Moments(self.first[rows] if len(self.first) else self.first, self.second[rows], self.count[rows])


class Learned(NamedTuple):
    """Weights and the moments of each table of them."""

    weights: Weights
    moments: tuple[Moments, ...]

    def rows(self, users: Rows) -> "Learned":
        """Return copies, with the recurrent matrices of some users."""
        weights, (recurrent, *others) = self
        some = Learned(weights._replace(recurrent=weights.recurrent[users]), (recurrent.rows(users), *others))
        return converted(lambda array: array.copy(), some)


class Visited(NamedTuple):
    """Recurrent matrices of some users after their events of an epoch, and their moments.

    Attributes
    ----------
    users : ndarray of int, (P,)
    recurrent : ndarray, (P, G, D, D)
    moments : Moments
    """

    users: np.ndarray
    recurrent: Array
    moments: Moments


def first_learned(weights: Weights, *, with_first: bool) -> Learned:
    """Return weights without any update."""
    return Learned(weights, tuple(Moments.zero(table, with_first=with_first) for table in weights))


def converted(convert: Callable[[Array], Array], value: Any) -> Any:
    """Return nested tuples with each array converted, and all else as it is."""
    if isinstance(value, tuple):
        entries = (converted(convert, entry) for entry in value)
        return type(value)(*entries) if hasattr(value, "_fields") else tuple(entries)
    return convert(value) if hasattr(value, "dtype") else value
