"""Checks that the parameters of a distribution broadcast to the shape of its observations."""

import math
from collections.abc import Sequence

from pymc_ep.exceptions import InvalidDataError

__all__ = ["Shape", "require_shape", "shape_error", "written"]

Shape = Sequence[int | None]
"""A shape; a side of unknown length is None."""


def require_shape(name: str, observed: Shape, parameter: Shape, what: str = "predictor") -> None:
    """Raise an InvalidDataError where a parameter cannot be broadcast to the shape of the observations.

    Parameters
    ----------
    name : str
        The observed variable.
    observed, parameter : sequence of int or None
    what : str
        The parameter, for the message.
    """
    sides = list(zip(reversed(parameter), reversed(observed)))
    if len(parameter) > len(observed) or not all(p in (1, None, n) or n is None for p, n in sides):
        raise shape_error(name, observed, parameter, what)


def shape_error(
    name: str, observed: Shape, parameter: Shape, what: str = "predictor", more: str = ""
) -> InvalidDataError:
    """Return the error with an observed variable and both shapes; see `require_shape`. `more` ends the message."""
    # mypy does not narrow the type after `None not in`.
    same = None not in (*observed, *parameter) and math.prod(observed) == math.prod(parameter)  # type: ignore[arg-type]
    cure = (
        "Reshape one of them to the shape of the other (matrices and LinearOperators give flat output)"
        if same
        else "Give both as many values, in the same shape"
    )
    return InvalidDataError(
        f"The observations of {name!r} have shape {written(observed)}, and its {what} has shape "
        f"{written(parameter)}. {cure}.{more}"
    )


def written(shape: Shape) -> str:
    """Return a shape in the words of messages."""
    sides = ", ".join("?" if n is None else str(int(n)) for n in shape)
    return f"({sides},)" if len(shape) == 1 else f"({sides})"
