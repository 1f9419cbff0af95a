"""Square roots that have a slope of zero where what they are taken of is zero.

A spectral density underflows at long lengthscales: exp(-w^2 l^2 / 2) is 0, and so is its slope. That of its root comes
out as infinity times zero.
"""

from collections.abc import Sequence

import pytensor.tensor as pt
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import io_toposort
from pytensor.scalar.basic import Sqrt
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.variable import TensorVariable

__all__ = ["with_slopes_at_zero"]


def with_slopes_at_zero(graphs: Sequence[TensorVariable]) -> list[TensorVariable]:
    """Return graphs with the same values whose square roots have a slope of zero at zero."""
    copies: dict[Variable, Variable] = {}
    for node in io_toposort([], list(graphs)):
        inputs = [copies.get(v, v) for v in node.inputs]
        if isinstance(node.op, Elemwise) and isinstance(node.op.scalar_op, Sqrt):
            zero = pt.eq(inputs[0], 0.0)
            root = pt.switch(zero, 0.0, pt.sqrt(pt.switch(zero, 1.0, inputs[0])))
            copies[node.outputs[0]] = root.astype(node.outputs[0].dtype)
        elif any(new is not old for new, old in zip(inputs, node.inputs)):
            copies |= zip(node.outputs, node.clone_with_new_inputs(inputs).outputs)
    return [copies.get(graph, graph) for graph in graphs]
