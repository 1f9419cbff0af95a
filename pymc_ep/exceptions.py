"""Exceptions and warnings of this package, and helpers for their messages."""

import math
from collections.abc import Iterable, Sequence
from difflib import get_close_matches

import numpy as np

__all__ = [
    "ClusterError",
    "ConvergenceWarning",
    "ImpossibleDensityError",
    "InvalidDataError",
    "NumericalError",
    "UnsupportedModelError",
    "at_index",
    "did_you_mean",
    "first_index",
    "require_instance",
]


class UnsupportedModelError(ValueError):
    """The model, or a part of it, is not of a form that the method accepts.

    The message names the variable, its form in the model, and forms that would be accepted.
    """


class InvalidDataError(ValueError):
    """Observed data or inputs lie outside what the likelihood allows.

    The message names the variable, the first bad index, the value at this index, and the cure.
    """


class NumericalError(ArithmeticError):
    """A computation gave a value that is not finite, or a matrix that is not positive definite.

    The message says where, such as at which site, datum and cavity.
    """


class ImpossibleDensityError(NumericalError):
    """A log density of an observation is impossible: infinite, or above zero for a discrete variable.

    Or it is minus infinity at all predictors: the observation lies outside the support.

    Parameters
    ----------
    observation : str
        The observation in words, for the message.
    index : int
        Index of the observation in the arrays of the call that raises.
    y, eta, value : float
        The observation, its predictor, and the log density.
    """

    def __init__(self, observation: str, index: int, y: float, eta: float, value: float):
        self.index = index
        self._found = observation, y, eta, value
        super().__init__(
            f"No predictor gives a probability to {observation} (y = {y:.6g}): it is outside the support of its "
            f"distribution. Correct or remove it, or where a hyperparameter is the bound, start elsewhere, with "
            f"start={{...}}."
            if value == -math.inf
            else f"The log density of {observation} (y = {y:.6g}) is computed as {value:.3g} at the predictor "
            f"{eta:.4g}, which no distribution has: its digits are lost there. Give the latent variables priors that "
            f"keep the predictor from there, or write the distribution as a pm.CustomDist with a logp that is stable."
        )

    def named(self, observation: str) -> "ImpossibleDensityError":
        """Return the error with another name of the observation."""
        return ImpossibleDensityError(observation, self.index, *self._found[1:])

    def moved(self, first: int) -> "ImpossibleDensityError":
        """Return the error with `first` added to its index, for a call with the observations from `first` on."""
        name, *values = self._found
        return ImpossibleDensityError(name, first + self.index, *values)


class ClusterError(RuntimeError):
    """Raised when a cluster has no workers, or loses them again and again.

    A fit with a checkpoint resumes from its file.
    """


class ConvergenceWarning(UserWarning):
    """A result may be off: an iteration stopped before its tolerance, or the method's own error is large."""


def at_index(index: tuple[int, ...]) -> str:
    """Return the words " at index ..." of a message, for an entry of an array; empty for a scalar."""
    return f" at index {index[0] if len(index) == 1 else index}" if index else ""


def labelled(index: int, labels: Sequence[object] | None) -> str:
    """Return an index along a dim for a message: by its label, where the dim has labels other than numbers."""
    label = None if labels is None or index >= len(labels) else labels[index]
    return str(index) if label is None or label == index else f"{str(label)!r} (index {index})"


def did_you_mean(name: object, available: Iterable[str]) -> str:
    """Return " Did you mean ...?" with the most similar available name, to end a message; empty if none is similar."""
    by_lower = {other.lower(): other for other in available}
    close = get_close_matches(str(name).lower(), by_lower, n=1)
    return f" Did you mean {by_lower[close[0]]!r}?" if close else ""


def require_instance(what: str, value: object, kind: type, cure: str) -> None:
    """Raise a TypeError unless a value, named in words, is an instance of a class."""
    if not isinstance(value, kind):
        raise TypeError(f"{what} is {value!r}, which is no {kind.__name__}; {cure}.")


def first_index(wrong: np.ndarray) -> tuple[int, ...]:
    """Return the index of the first entry that is true, as `at_index` takes it."""
    return tuple(int(i) for i in np.argwhere(wrong)[0])
