"""Conversion of a graph of small tensors to a graph of scalar Ops, with an array of scalar variables for each tensor.

Densities of mixtures and zero-inflated distributions are such graphs, with the maximum and the sum of a vector over
components.
"""

import math
from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np
import pytensor.scalar as ps
from pytensor.compile.builders import OpFromGraph
from pytensor.compile.mode import get_mode
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.raise_op import CheckAndRaise
from pytensor.scalar.basic import ScalarOp
from pytensor.scalar.math import Sigmoid, Softplus
from pytensor.tensor.basic import Alloc, Join, MakeVector, ScalarFromTensor, TensorFromScalar
from pytensor.tensor.elemwise import CAReduce, DimShuffle, Elemwise
from pytensor.tensor.shape import Reshape, SpecifyShape
from pytensor.tensor.special import Softmax
from pytensor.tensor.subtensor import Subtensor

from pymc_ep.compat import c_mode

__all__ = ["NoScalarGraphError", "as_scalars"]

_MOST_ENTRIES = 64
"""Largest number of entries of a tensor: each entry has a statement of its own for every Op."""
_TRANSPARENT = (CheckAndRaise, ScalarFromTensor, SpecifyShape, TensorFromScalar)
"""Ops whose output has the entries of their first input, unchanged."""
_MOVING = {
    Alloc: slice(1),
    DimShuffle: slice(1),
    Join: slice(1, None),
    Reshape: slice(1),
    Subtensor: slice(1),
}
"""Ops that only move entries, and the inputs that hold these entries; the other inputs are constants."""


class NoScalarGraphError(Exception):
    """A part of a log density is no scalar function, or cannot be compiled in the loop; the message names this part."""


def as_scalars(inputs: Sequence[Variable], outputs: Sequence[Variable]) -> tuple[list[Any], list[Any]]:
    """Return scalar inputs and outputs that replace the given ones, after PyTensor's rewrites without fusion.

    Raises
    ------
    NoScalarGraphError
        If an intermediate tensor has no fixed shape or too many entries, or an Op cannot be converted.
    """
    # This rewrite raises, and logs, on the product of a negative and a bool in derivatives of derivatives.
    mode = get_mode(c_mode()).excluding("fusion", "inplace", "local_greedy_distributor")
    graph = FunctionGraph(list(inputs), list(outputs), clone=True)
    mode.including("local_remove_check_parameter").optimizer.rewrite(graph)
    scalars = [ps.ScalarType(str(v.dtype))(name=v.name) for v in graph.inputs]
    unrolled = _Unrolled({v: _array([x], ()) for v, x in zip(graph.inputs, scalars)})
    unrolled.add(graph)
    return scalars, [unrolled.of(v).item() for v in graph.outputs]


class _Unrolled:
    """Arrays of scalar variables by the tensors that they stand for; equal nodes are made once."""

    def __init__(self, known: dict[Variable, np.ndarray]) -> None:
        self._known = known
        self._nodes: dict[tuple, list[Any]] = {}

    def add(self, graph: FunctionGraph) -> None:
        """Add all variables of a graph whose inputs are known."""
        for node in graph.toposort():
            if not all(_is_small(v) for v in node.outputs):
                raise NoScalarGraphError(str(node.op))
            self._known.update(zip(node.outputs, self._outputs(node)))

    def of(self, v: Variable) -> np.ndarray:
        """Return the scalar variables that stand for a tensor."""
        if v in self._known:
            return self._known[v]
        if not isinstance(v, Constant) or not _is_small(v):
            raise NoScalarGraphError(str(v))
        kind, data = ps.ScalarType(str(v.dtype)), np.asarray(v.data)
        return _array([ps.ScalarConstant(kind, entry) for entry in data.reshape(-1)], data.shape)

    def _outputs(self, node: Apply) -> list[np.ndarray]:
        op = node.op
        if isinstance(op, _TRANSPARENT):
            return [self.of(node.inputs[0])]
        if isinstance(op, OpFromGraph):
            self._known.update((v, self.of(given)) for v, given in zip(op.fgraph.inputs, node.inputs))
            self.add(op.fgraph)
            return [self.of(v) for v in op.fgraph.outputs]
        for kind, moved in _MOVING.items():
            if isinstance(op, kind):
                return self._moved(node, moved)
        inputs = [self.of(v) for v in node.inputs]
        if isinstance(op, MakeVector):
            return [_array([x.item() for x in inputs], (len(inputs),))]
        if isinstance(op, Softmax):
            return [self._softmax(inputs[0], op.axis)]
        if isinstance(op, CAReduce):
            result = self._reduced(op.scalar_op, inputs[0], op.axis, str(node.outputs[0].dtype))
            return [result.reshape(node.outputs[0].type.shape)]
        scalar_op = op.scalar_op if isinstance(op, Elemwise) else op
        if not isinstance(scalar_op, ScalarOp):
            raise NoScalarGraphError(str(op))
        return self._elementwise(scalar_op, *inputs)

    def _moved(self, node: Apply, moved: slice) -> list[np.ndarray]:
        """Return the output of an Op that only moves entries, as scalar variables: the Op is run on their indices."""
        entries: list[Any] = []
        given: list[Any] = [v.data if isinstance(v, Constant) else None for v in node.inputs]
        for k in range(len(node.inputs))[moved]:
            array = self.of(node.inputs[k])
            given[k] = np.arange(len(entries), len(entries) + array.size, dtype=float).reshape(array.shape)
            entries += array.reshape(-1).tolist()
        if any(array is None for array in given) or any(v.dtype != node.outputs[0].dtype for v in entries):
            raise NoScalarGraphError(str(node.op))
        (output,) = storage = [[None]]
        node.op.perform(node, given, storage)
        places = np.asarray(output[0])
        return [_array([entries[int(place)] for place in places.reshape(-1)], places.shape)]

    def _elementwise(self, op: ScalarOp, *inputs: np.ndarray) -> list[np.ndarray]:
        arrays = np.broadcast_arrays(*inputs)
        results = [self._lowered(op, list(entries)) for entries in zip(*(array.reshape(-1) for array in arrays))]
        return [_array(list(entries), arrays[0].shape) for entries in zip(*results)]

    def _reduced(self, op: ScalarOp, x: np.ndarray, axis: int | Sequence[int] | None, dtype: str) -> np.ndarray:
        """Return a reduction over some axes, which keep the length one."""
        axes = tuple(range(x.ndim)) if axis is None else tuple(np.atleast_1d(axis))
        rows = np.moveaxis(x, axes, range(x.ndim - len(axes), x.ndim))
        kept = rows.shape[: x.ndim - len(axes)]
        rows = rows.reshape(int(np.prod(kept)), -1)
        if rows.shape[1] > 1 and any(v.dtype != dtype for v in rows.flat):
            raise NoScalarGraphError(str(op))
        entries = [reduce(lambda a, b: self._once(op, a, b)[0], row) for row in rows]
        return np.expand_dims(_array(entries, kept), axes)

    def _softmax(self, x: np.ndarray, axis: int | None) -> np.ndarray:
        (shifted,) = self._elementwise(ps.sub, x, self._reduced(ps.scalar_maximum, x, axis, "float64"))
        (e,) = self._elementwise(ps.exp, shifted)
        return self._elementwise(ps.true_div, e, self._reduced(ps.add, e, axis, "float64"))[0]

    def _once(self, op: ScalarOp, *inputs: Any) -> list[Any]:
        """Return the outputs of an Op on scalars; calls with equal arguments share one node."""
        key = op, *((v.type, v.data.tobytes()) if isinstance(v, Constant) else v for v in inputs)
        if key not in self._nodes:
            self._nodes[key] = op.make_node(*inputs).outputs
        return self._nodes[key]

    def _lowered(self, op: ScalarOp, inputs: list[Any]) -> list[Any]:
        """Return the outputs of an Op on scalars; softplus and sigmoid become branch-free terms of ``exp(-|x|)``."""
        if not isinstance(op, Softplus | Sigmoid) or inputs[0].dtype != "float64":
            return self._once(op, *inputs)
        (x,), zero, one = inputs, ps.constant(0.0, dtype="float64"), ps.constant(1.0, dtype="float64")
        (size,) = self._once(ps.abs, x)
        (e,) = self._once(ps.exp, *self._once(ps.neg, size))
        # softplus(x) = max(x, 0) + log(1 + e); sigmoid(x) = 1 / (1 + e) for x >= 0, and e / (1 + e) below.
        if isinstance(op, Softplus):
            return self._once(ps.add, *self._once(ps.maximum, x, zero), *self._once(ps.log1p, e))
        (top,) = self._once(ps.switch, *self._once(ps.ge, x, zero), one, e)
        return self._once(ps.true_div, top, *self._once(ps.add, one, e))


def _is_small(v: Any) -> bool:
    """Whether a variable is a scalar, or a tensor of fixed shape and few entries."""
    shape = getattr(v.type, "shape", ())
    return None not in shape and math.prod(shape) <= _MOST_ENTRIES


def _array(entries: list[Any], shape: tuple[int, ...]) -> np.ndarray:
    """Return an array of variables, which NumPy must not take for sequences."""
    array = np.empty(len(entries), dtype=object)
    for k, entry in enumerate(entries):
        array[k] = entry
    return array.reshape(shape)
