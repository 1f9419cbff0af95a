"""The application of a linear map to a variable, as a PyTensor Op whose gradient applies the adjoint."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.op import Op
from pytensor.tensor.variable import TensorVariable

from pymc_ep.exceptions import InvalidDataError
from pymc_ep.kernels import register_bodies
from pymc_ep.operators.adapters import as_linear_map, columns_of
from pymc_ep.operators.base import LinearMap

__all__ = ["ApplyLinearMap", "apply_operator"]

register_bodies("jax", "pymc_ep.operators.jax")
register_bodies("numba", "pymc_ep.operators.numba")


class ApplyLinearMap(Op):
    """Op that returns A x, in float64, for one linear map A.

    Two such Ops are equal if they hold the same map object. The contents of maps are not compared: a comparison can be
    costly, and a map that is applied to several variables is mostly one object.

    Parameters
    ----------
    linear_map : LinearMap
    """

    def __init__(self, linear_map: LinearMap) -> None:
        self.linear_map = linear_map
        sides = (
            ",".join(f"{letter}{i}" for i in range(len(shape)))
            for letter, shape in (("i", linear_map.input_shape), ("o", linear_map.output_shape))
        )
        self.gufunc_signature = "({})->({})".format(*sides)

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.linear_map is other.linear_map

    def __hash__(self) -> int:
        return hash((type(self), id(self.linear_map)))

    def __str__(self) -> str:
        return f"ApplyLinearMap{{{self.linear_map}}}"

    def make_node(self, x: Any) -> Apply:
        """Return the node for `x`; raise InvalidDataError if its static shape excludes the map's input shape."""
        x = pt.as_tensor_variable(x)
        check_static_shape(x, self.linear_map)
        return Apply(self, [x.astype("float64")], [pt.tensor(shape=self.linear_map.output_shape, dtype="float64")])

    def infer_shape(self, *args: Any) -> list[tuple[Any, ...]]:
        """Return the output's shape, which does not depend on the inputs."""
        return [tuple(pt.constant(side, dtype="int64") for side in self.linear_map.output_shape)]

    def perform(self, node: Apply, inputs: Sequence[Any], output_storage: Sequence[list[Any]]) -> None:
        """Write A x to the output storage; raise InvalidDataError unless x has the map's input shape."""
        output_storage[0][0] = self.linear_map.forward(inputs[0])

    def pullback(self, inputs: Sequence[Any], outputs: Sequence[Any], cotangents: Sequence[Any]) -> list[Any]:
        """Return the cotangent of x: the adjoint A' applied to the cotangent of A x."""
        return [ApplyLinearMap(self.linear_map.T)(cotangents[0])]

    L_op = pullback


def check_static_shape(x: TensorVariable, linear_map: LinearMap) -> None:
    """Raise an InvalidDataError unless the static shape of `x` allows the map's input shape."""
    shape = x.type.shape
    takes = linear_map.input_shape
    if len(shape) != len(takes) or any(static not in (None, side) for static, side in zip(shape, takes)):
        static = tuple("?" if side is None else side for side in shape)
        raise InvalidDataError(
            f"{linear_map} takes arrays of shape {takes}, and {x} has shape {str(static).replace(chr(39), '')}."
        )


def apply_operator(A: Any, x: Any) -> TensorVariable:
    """Return A x for a constant linear operator A, with the gradient through the operator's adjoint.

    Parameters
    ----------
    A : ndarray, SciPy sparse matrix, LinearOperator, PyLops operator, or one of `pymc_ep.operators`
        Operators of this package take arrays of their input shape and return arrays of their output shape. Matrices
        and operators of other packages act on `x` ravelled in C order and return a flat array. A matrix is not copied:
        do not change it afterwards.
    x : tensor_like
        Real numbers, of the input shape of `A`.

    Returns
    -------
    TensorVariable
        A x, of float64.

    Raises
    ------
    UnsupportedModelError
        `A` is not a linear map, or lacks a correct adjoint.
    InvalidDataError
        The shapes do not fit, an entry of the operator is not finite, or `x` is no tensor of real numbers. Shapes that
        are not known when the graph is built are checked when it is evaluated.
    """
    x = _real_tensor(x)
    if isinstance(A, LinearMap):
        linear_map = A
    elif None in x.type.shape and x.type.ndim != 1:
        # The sides are not known, but their product is the number of columns.
        columns = columns_of(A)
        linear_map, x = as_linear_map(A, (columns,)), x.ravel()
    else:
        input_shape = None if None in x.type.shape else x.type.shape
        linear_map = as_linear_map(A, input_shape)
    return ApplyLinearMap(linear_map)(x)


def _real_tensor(x: Any) -> TensorVariable:
    if isinstance(x, LinearMap):
        raise InvalidDataError(f"apply_operator: the second argument is {x}; the operator comes first, then x.")
    try:
        tensor = pt.as_tensor_variable(x)
    except (TypeError, ValueError, NotImplementedError) as error:
        kind = x.type if isinstance(x, Variable) else type(x).__name__
        raise InvalidDataError(f"apply_operator: x must be a tensor of real numbers, not {kind}.") from error
    if tensor.type.ndim == 0:
        raise InvalidDataError(f"apply_operator: x must be an array of at least one side, not the scalar {tensor}.")
    if np.dtype(tensor.dtype).kind not in "biuf":
        raise InvalidDataError(f"apply_operator: x must be a tensor of real numbers, not of type {tensor.dtype}.")
    return tensor
