"""Nodes of random variables in a graph: their parameters, and the same distributions with other parameters."""

from collections.abc import Sequence
from typing import Any

import pytensor.tensor as pt
from pymc.distributions.custom import CustomDistRV
from pymc.distributions.distribution import PartialObservedRV, SymbolicRandomVariable
from pymc.distributions.truncated import TruncatedRV
from pymc.logprob.abstract import _logprob
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.type import DenseTensorType, TensorType
from pytensor.tensor.type_other import NoneConst
from pytensor.tensor.variable import TensorVariable

__all__ = [
    "density_of",
    "distribution_name",
    "is_random",
    "parameter_positions",
    "parameters_of",
    "rebuilds",
    "separated",
    "with_parameters",
    "without_size",
]


def parameters_of(rv: TensorVariable) -> list[TensorVariable]:
    """Return the parameters of a random variable's distribution, in double precision.

    PyTensor stores the constant 16 as int8, in which its square overflows to 0, and 0.5 in single precision.
    """
    return [_in_double(rv.owner.inputs[i]) for i in parameter_positions(rv.owner)]


def _in_double(parameter: Variable) -> Variable:
    """Return a parameter in double precision.

    An unnamed inner distribution, such as a mixture's component, is given parameters in double precision instead.
    """
    if is_random(parameter):
        return parameter if parameter.name else _with_double_parameters(parameter)
    if not isinstance(parameter.type, DenseTensorType) or parameter.dtype == "float64":
        return parameter
    if isinstance(parameter, Constant):
        return pt.constant(parameter.data, dtype="float64")
    return parameter.astype("float64")


def _with_double_parameters(inner: TensorVariable) -> TensorVariable:
    """Return an inner distribution, such as a mixture's component, with parameters in double precision."""
    node = inner.owner
    inputs = _with_replaced_parameters(node, parameters_of(inner))
    if inputs == node.inputs or not isinstance(node.op, RandomVariable):
        return inner
    return node.op.make_node(*inputs).default_output()


def parameter_positions(node: Apply) -> list[int]:
    """Return the positions of a distribution's parameters among the inputs of its node."""
    op = node.op
    if isinstance(op, SymbolicRandomVariable) and op.extended_signature is not None:
        return list(op.get_input_output_type_idxs(op.extended_signature)[0][2])
    if isinstance(op, RandomVariable):
        return list(range(2, len(node.inputs)))
    # A truncated distribution: inputs of the underlying one, then the bounds.
    tensors = [i for i, v in enumerate(node.inputs) if isinstance(v.type, TensorType)]
    return [i for i in tensors if i != _size_position(node)]


def _size_position(node: Apply) -> int | None:
    op = getattr(node.op, "base_rv_op", node.op)
    if isinstance(op, RandomVariable):
        return 1
    if isinstance(op, SymbolicRandomVariable) and op.extended_signature is not None:
        return op.get_input_output_type_idxs(op.extended_signature)[0][1]
    return None


def with_parameters(node: Apply, parameters: Sequence[Variable]) -> TensorVariable:
    """Return a random variable of the node's distribution with other parameters, of any shapes.

    An Op with an inner graph is rebuilt, so that this graph matches the parameters: PyMC infers shapes from it, and for
    some distributions the density.
    """
    op = node.op
    if isinstance(op, TruncatedRV):
        *of_base, lower, upper = parameters
        base = with_parameters(op.base_rv_op.make_node(*node.inputs[:-2]), of_base)
        return TruncatedRV.rv_op(base, lower, upper, op.max_n_steps)
    if isinstance(op, SymbolicRandomVariable):
        return type(op).rv_op(*parameters)
    inputs = _with_replaced_parameters(node, parameters)
    return op.make_node(*without_size(node, inputs)).default_output()


def rebuilds(node: Apply) -> bool:
    """Whether `with_parameters` can rebuild a distribution.

    It cannot where a custom density may hold arrays, such as weights of observations, or where an Op has no
    constructor.
    """
    if isinstance(node.op, CustomDistRV):
        return not _holds_arrays(node)
    return not isinstance(node.op, SymbolicRandomVariable) or hasattr(type(node.op), "rv_op")


def _holds_arrays(node: Apply) -> bool:
    """Whether the density of a pm.CustomDist without dist= holds arrays, such as weights of observations.

    At a scalar value and scalar parameters such a density is an array, or fails.
    """
    if node.op.ndim_supp or any(node.op.ndims_params):
        return False
    numbers = [pt.scalar(dtype=node.inputs[i].dtype) for i in parameter_positions(node)]
    try:
        density = density_of(node, numbers, pt.scalar(dtype=node.default_output().dtype))
    except (TypeError, ValueError, IndexError):  # It needs arrays.
        return True
    return density is not None and density.ndim > 0


def density_of(node: Apply, parameters: Sequence[Variable], y: Any) -> TensorVariable | None:
    """Return the graph of the log density at y of the node's distribution with other parameters, of the same shapes.

    None where PyMC has no density of the distribution.
    """
    try:
        return _logprob(node.op, (y,), *_with_replaced_parameters(node, parameters))
    except NotImplementedError:
        return None


def separated(rv: TensorVariable) -> TensorVariable:
    """Return the observed values of a variable with missing values, as a random variable of their own.

    PyMC itself separates them for some distributions. A variable without missing values is returned as it is, and so is
    one whose values are vectors.
    """
    if not isinstance(rv.owner.op, PartialObservedRV) or rv.owner.op.ndim_supp:
        return rv
    whole, missing = rv.owner.inputs
    observed = _selected(whole, ~missing, missing.shape)
    observed.name = rv.name
    return observed


def _selected(rv: TensorVariable, mask: TensorVariable, shape: TensorVariable) -> TensorVariable:
    """Return the random variable of the values of `rv` at which `mask` is true; its parameters broadcast to `shape`."""
    node = rv.owner
    inputs = [node.inputs[i] for i in parameter_positions(node)]
    ndims = getattr(node.op, "ndims_params", None) or [0] * len(inputs)
    # The components of a mixture may have an axis of their own.
    trailing = [rv.shape[axis] for axis in range(mask.ndim, rv.ndim)]
    parameters = []
    for v, ndim in zip(inputs, ndims, strict=True):
        if is_random(v):
            parameters.append(_selected(v, mask, shape))
        elif v.ndim <= ndim + len(trailing):
            parameters.append(v)
        else:
            core = [v.shape[axis] for axis in range(v.ndim - ndim, v.ndim)]
            parameters.append(pt.broadcast_to(v, (*shape, *trailing, *core))[mask])
    return with_parameters(node, parameters)


def without_size(node: Apply, inputs: Sequence[Variable]) -> list[Variable]:
    """Return the inputs of a node without its size, so that a draw has the shape of the parameters.

    An Op with an inner graph keeps its size.
    """
    base, size = getattr(node.op, "base_rv_op", node.op), _size_position(node)
    return [NoneConst if k == size and isinstance(base, RandomVariable) else v for k, v in enumerate(inputs)]


def _with_replaced_parameters(node: Apply, parameters: Sequence[Variable]) -> list[Variable]:
    """Return the inputs of a node with its parameters replaced."""
    inputs = list(node.inputs)
    for position, parameter in zip(parameter_positions(node), parameters, strict=True):
        inputs[position] = parameter
    return inputs


def distribution_name(node: Apply) -> str:
    """Return the name of a distribution and, after " of ", the name of an unnamed one that it truncates or censors."""
    op = node.op
    names = getattr(op, "_print_name", None) or (getattr(op, "name", None) or type(op).__name__,)
    inner = [v.owner for v in node.inputs if is_random(v) and v.name is None]
    return " of ".join([names[0], *(distribution_name(other) for other in inner)])


def is_random(variable: Variable) -> bool:
    """Whether a variable is a random variable."""
    return variable.owner is not None and isinstance(variable.owner.op, RandomVariable | SymbolicRandomVariable)
