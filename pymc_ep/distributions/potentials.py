"""Potentials, the priors of a field's coefficients: distributions that a user gives, as ``pm.Laplace.dist(0, b)``."""

from collections.abc import Sequence
from operator import index
from typing import Any, NamedTuple

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.utils import MissingInputError
from pytensor.tensor.basic import get_underlying_scalar_constant_value
from pytensor.tensor.random.basic import LaplaceRV, NormalRV, StudentTRV
from pytensor.tensor.random.op import RandomVariable

from pymc_ep.compat import random_draw
from pymc_ep.concurrency import compiling
from pymc_ep.exceptions import InvalidDataError, UnsupportedModelError, at_index, first_index
from pymc_ep.modes import quick_mode

__all__ = ["Potential", "known_shape", "length_of", "read_potential", "require_positive", "static_shape"]

_POSITIONS = {LaplaceRV: (0, 1), NormalRV: (0, 1), StudentTRV: (1, 2)}
"""Positions of location and scale among the parameters of each potential's Op."""


class Potential(NamedTuple):
    """The distribution of coefficients: `op` with location zero. Its parameters are the other ones of `op`.

    Attributes
    ----------
    op : RandomVariable
    ndims : tuple of int
        For each parameter, 0 if all coefficients share one value, 1 if each group of coefficients has its own value.
    """

    op: RandomVariable
    ndims: tuple[int, ...]

    @property
    def signature(self) -> list[str]:
        """Signatures of the parameters, for the signature of an Op: "(g)" for a vector, "()" for a scalar."""
        return ["(g)" if ndim else "()" for ndim in self.ndims]

    def scale(self, parameters: Sequence[Any]) -> Any:
        """Return the scale among the parameters."""
        location, scale = _POSITIONS[type(self.op)]
        return parameters[scale - (location < scale)]

    def each(self, parameters: Sequence[Any], groups: np.ndarray | None) -> list[Any]:
        """Return the parameters in double precision; values of groups are repeated for each coefficient by `groups`."""
        # PyTensor keeps a number such as 0.5 in single precision; its logarithm would have single precision too.
        double = [p.astype("float64") for p in parameters]
        # As a variable: PyTensor would convert a plain array used as an index element by element, in Python.
        places = None if groups is None else pt.constant(groups)
        return [p[places] if ndim and places is not None else p for p, ndim in zip(double, self.ndims)]

    def random(self, parameters: Sequence[Any], rng: Any = None) -> tuple[Any, Any]:
        """Return the next generator and a random variable with these parameters."""
        location, _ = _POSITIONS[type(self.op)]
        return random_draw(self.op, *parameters[:location], 0.0, *parameters[location:], size=None, rng=rng)


def read_potential(potential: Any, owner: str, argument: str = "potential") -> tuple[Potential, list[Any]]:
    """Return a potential, and its parameters without the location, which must be zero.

    Parameters
    ----------
    potential : TensorVariable
        The argument that the user gave.
    owner, argument : str
        The distribution that takes it, and the name of its argument, for messages.

    Raises
    ------
    UnsupportedModelError
        For a distribution other than Laplace, normal or Student's t, a variable of the model, a location other than
        zero, and parameters with two axes.
    """
    op: Any = getattr(getattr(potential, "owner", None), "op", None)
    if type(op) not in _POSITIONS:
        raise UnsupportedModelError(
            f"{argument}={potential!r} of a {owner} is none of pm.Laplace.dist(0, b), pm.StudentT.dist(nu, 0, b) "
            f"and pm.Normal.dist(0, b); use one of these."
        )
    if potential.name is not None:
        raise UnsupportedModelError(
            f"{argument}= of a {owner} is {potential.name!r}, a variable of the model; give the distribution alone, by "
            f"its dist, such as pm.Laplace.dist(0, b)."
        )
    parameters = list(op.dist_params(potential.owner))
    location = parameters.pop(_POSITIONS[type(op)][0])
    if get_underlying_scalar_constant_value(location, raise_not_constant=False) != 0:
        raise UnsupportedModelError(
            f"{argument}= of a {owner} has a location that is not the constant 0; the coefficients are sparse about "
            f"zero. Subtract the location from the array instead."
        )
    if any(p.type.ndim > 1 for p in parameters):
        raise UnsupportedModelError(
            f"A parameter of {argument}= of a {owner} has more than one axis; give one value, or one for each group of "
            f"coefficients."
        )
    simplified = [_simplest(p) for p in parameters]
    return Potential(op, tuple(p.type.ndim for p in simplified)), simplified


def require_positive(potential: Potential, parameters: Sequence[Any], owner: str, argument: str = "potential") -> None:
    """Raise for constants among the parameters that are not positive, and for scales that are infinite."""
    scale = potential.scale(parameters)
    for parameter in parameters:
        if not isinstance(parameter, Constant):
            continue
        wrong = ~(parameter.data > 0) | ((parameter is scale) & np.isinf(parameter.data))
        if wrong.any():
            what, plural = ("scale", "scales") if parameter is scale else (("degrees of freedom",) * 2)
            first = first_index(wrong)
            raise InvalidDataError(
                f"{argument}= of a {owner} has the {what} {parameter.data[first]}{at_index(first)}; {plural} must be "
                f"positive{' and finite' if parameter is scale else ''}."
            )


def known_shape(parameter: Any) -> tuple[int | None, ...]:
    """Return the shape of a parameter, computed where it is not static; None for unknown sides."""
    return tuple(
        _length(parameter, axis) if length is None else int(length) for axis, length in enumerate(parameter.type.shape)
    )


def length_of(parameter: Any) -> int | None:
    """Return the length of a vector of parameters; None for a scalar, or if unknown."""
    return known_shape(parameter)[0] if parameter.type.ndim else None


def _length(parameter: Any, axis: int) -> int | None:
    try:
        with compiling():
            return int(parameter.shape[axis].eval(mode=quick_mode()))
    except (MissingInputError, NotImplementedError):
        return None


def static_shape(shape: Any) -> tuple[int, ...]:
    """Return a shape as a tuple of int, from a length or a sequence of lengths, which may be constant graphs.

    Raises
    ------
    InvalidDataError
        For lengths that are not whole numbers.
    """
    with compiling():
        sides = [n.eval() if isinstance(n, Variable) else n for n in np.atleast_1d(np.array(shape, object))]
    try:
        return tuple(index(n) for n in sides)
    except TypeError:
        raise InvalidDataError(f"shape={shape!r} must be whole numbers.") from None


def _simplest(parameter: Any) -> Any:
    """Return a parameter of a single value as a scalar, constant if its value is; any other parameter as it is."""
    if not all(parameter.type.broadcastable):
        return parameter
    value = get_underlying_scalar_constant_value(parameter, raise_not_constant=False)
    return parameter.squeeze() if isinstance(value, Variable) else pt.constant(np.asarray(value, dtype="float64"))
