"""Rounding errors of squared distances in stationary covariance functions.

PyMC forms |x - x'|^2 as |x|^2 + |x'|^2 - 2 x x', from inputs divided by lengthscales, x = X / l. The rounding error of
this sum is about eps |x|^2, with eps the machine epsilon, whatever the distance: 600 for seconds since 1970 and a
lengthscale of a second.
"""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from pytensor.graph.basic import Constant
from pytensor.graph.traversal import ancestors
from pytensor.scalar.basic import Mul
from pytensor.tensor.basic import get_underlying_scalar_constant_value
from pytensor.tensor.elemwise import DimShuffle
from pytensor.tensor.math import Dot
from pytensor.tensor.variable import TensorVariable

from pymc_ep.exceptions import InvalidDataError
from pymc_ep.graphs.queries import applies, depends_on

__all__ = ["cure_of", "require_distances", "scaled_inputs"]

_MOST_ERROR = 1e-3
"""Largest error of squared distances, in squared lengthscales: a covariance is then off by half of it, relative to the
variance."""
_NOTICED = 1e-9
"""Error of squared distances above which it is mentioned where a covariance is not positive definite: a thousandth of
PyMC's jitter."""
_NEAR = 1e4
"""Distance of inputs from zero, in units of the least difference between inputs, up to which errors are below 2e-8 for
lengthscales above that difference."""
_CURE = (
    "Centre and scale the inputs X of the covariance function, as (X - X.mean(axis=0)) / X.std(axis=0), with "
    "lengthscales in these units"
)


def scaled_inputs(
    named: Mapping[str, Sequence[TensorVariable]], noise: Iterable[TensorVariable]
) -> tuple[tuple[str, TensorVariable], ...]:
    """Return name and graph of the inputs x, (n, k), from which graphs form squared distances.

    The name is the first in `named` whose graphs contain x. Inputs so near zero that rounding is harmless are left out,
    as are inputs that depend on noise.
    """
    names: dict[TensorVariable, str] = {}
    for name, graphs in named.items():
        for v in ancestors(graphs):
            inputs = _inputs_of(v)
            if inputs is not None and not _is_near_zero(inputs) and not depends_on([inputs], noise):
                names.setdefault(inputs, name)
    return tuple((name, inputs) for inputs, name in names.items())


def _inputs_of(variable: TensorVariable) -> TensorVariable | None:
    """Return x where a variable is -2 x x^T and x itself is a product, with inverse lengthscales; else None."""
    if not applies(variable.owner, Mul):
        return None
    *factors, product = sorted(variable.owner.inputs, key=lambda v: v.owner is not None and isinstance(v.owner.op, Dot))
    if product.owner is None or not isinstance(product.owner.op, Dot) or [_constant(v) for v in factors] != [-2.0]:
        return None
    x, transpose = product.owner.inputs
    turned = transpose.owner is not None and isinstance(transpose.owner.op, DimShuffle)
    return x if turned and transpose.owner.inputs[0] is x and applies(x.owner, Mul) else None


def _is_near_zero(inputs: TensorVariable) -> bool:
    """Whether the unscaled inputs X are constant, with |X| at most `_NEAR` times the least difference of two inputs."""
    if np.inf in [_constant(v) for v in inputs.owner.inputs]:
        return False
    for X in (v.data.astype(float) for v in inputs.owner.inputs if isinstance(v, Constant) and v.ndim == 2):
        gaps = np.diff(np.unique(X, axis=0), axis=0)
        return bool(np.abs(X).max(initial=0.0) <= _NEAR * np.abs(gaps[gaps != 0]).min(initial=np.inf))
    return False


def _constant(variable: TensorVariable) -> float | None:
    value = get_underlying_scalar_constant_value(variable, raise_not_constant=False)
    return None if value is variable else float(value)


def _largest(inputs: Sequence[np.ndarray]) -> list[float]:
    """Return, for each array of inputs, (n, k), the largest distance of its rows from zero, in lengthscales."""
    return [float(np.sqrt((np.asarray(x, dtype=float) ** 2).sum(axis=1).max(initial=0.0))) for x in inputs]


def require_distances(names: Sequence[str], inputs: Sequence[np.ndarray], at: str) -> None:
    """Raise where squared distances in a covariance function have large rounding errors.

    The message names the function by `names`, and the hyperparameters by `at`.
    """
    for name, far in zip(names, _largest(inputs)):
        if far == np.inf:
            raise InvalidDataError(
                f"The covariance function of {name!r} has inputs that are infinite in lengthscales, for {at}. Give it "
                f"a lengthscale above zero, and finite inputs."
            )
        if (error := np.finfo(float).eps * far**2) > _MOST_ERROR:
            raise InvalidDataError(
                f"The covariance function of {name!r} has inputs X {far:.2g} lengthscales from zero, for {at}. Squared "
                f"distances, which PyMC forms as |x|^2 + |x'|^2 - 2 x x', then have rounding errors of {error:.2g}. "
                f"{_CURE}."
            )


def cure_of(inputs: Sequence[np.ndarray]) -> str:
    """Return a sentence, to precede others, on how to cure squared distances that lose digits; empty where none do."""
    lost = any(np.finfo(float).eps * far**2 > _NOTICED for far in _largest(inputs))
    return f"{_CURE}: their squared distances lose digits. " if lost else ""
