"""Data of the training of a recurrent network: weights, moving averages of their gradients, priors, the problem."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from pymc_ep.models.sequences.kernel import Sequences, Weights
from pymc_ep.numerics.backend.namespace import Array

__all__ = ["Learned", "Moments", "Prior", "Priors", "Problem", "Rows", "Visited", "converted", "first_learned"]

Rows = np.ndarray | slice
"""Indices of some rows of a table."""


class Prior(NamedTuple):
    """Independent Gaussian priors of the entries of a table of weights.

    Attributes
    ----------
    mean, precision : ndarray
        Arrays that broadcast to the table, with as many axes. The prior is flat where the precision is zero.
    """

    mean: np.ndarray
    precision: np.ndarray

    def with_ridge(self, precision: float) -> "Prior":
        """Return the product of the prior and a Gaussian of mean zero and the given precision, normalised."""
        # N(w; m, 1 / p) N(w; 0, 1 / r) is proportional to N(w; p m / (p + r), 1 / (p + r)).
        total = self.precision + precision
        return Prior(self.precision * self.mean / np.where(total > 0, total, 1.0), total)

    def rows(self, rows: Rows) -> "Prior":
        """Return the prior of some rows of the table."""
        mean, precision = (array if len(array) == 1 else array[rows] for array in self)
        return Prior(mean, precision)

    def pull(self, weights: Array, share: Array) -> Array:
        """Return the gradient of the log density in the weights, times a `share` for each row, (rows,) or (1,)."""
        # d log N(w; m, 1 / p) / dw = p (m - w).
        return (self.mean - weights) * (self.precision * share.reshape(-1, *[1] * (weights.ndim - 1)))


Priors = tuple[Prior, ...]
"""Priors of the tables of `Weights`, in their order."""


class Problem(NamedTuple):
    """Data of a training: sequences, the length of each trained part, and priors.

    Attributes
    ----------
    sequences : Sequences
    lengths : ndarray of int, (U,)
        Number of each user's events that are trained on; those that follow are held out.
    item_counts : ndarray of int, (I,)
        Number of each item's events that are trained on, or one for an item without any.
    initial : float
        Value of all entries of the states before the first events.
    priors : tuple of Prior
        Priors of the tables of weights.
    of_shared : Prior, optional
        Prior of the shared matrices, (G, D, D), which are the mean of users' matrices; the precision of users' matrices
        about this mean is in ``priors[0]``. None where the mean of users' matrices is a constant.
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
    """Moving averages of the gradients of a table of weights.

    Attributes
    ----------
    first, second : ndarray
        Averages of the gradient and of its square. `first` is empty where the rule does not use it.
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
    """Tables of weights, and the moving averages of the gradients of each table."""

    weights: Weights
    moments: tuple[Moments, ...]

    def rows(self, users: Rows) -> "Learned":
        """Return copies of all tables, of which the recurrent matrices have only the rows `users`."""
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
    """Return weights with moments of zero, as before any update."""
    return Learned(weights, tuple(Moments.zero(table, with_first=with_first) for table in weights))


def converted(convert: Callable[[Array], Array], value: Any) -> Any:
    """Return nested tuples with each array converted, and other values unchanged."""
    if isinstance(value, tuple):
        entries = (converted(convert, entry) for entry in value)
        return type(value)(*entries) if hasattr(value, "_fields") else tuple(entries)
    return convert(value) if hasattr(value, "dtype") else value
