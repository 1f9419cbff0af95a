"""Evaluate once what a model computes from constants alone, such as the basis of a Hilbert-space process.

PyTensor folds such graphs anew in each function that it compiles, and on its older stack element by element in Python.
"""

from collections.abc import Sequence

import pytensor
import pytensor.tensor as pt
from pytensor.graph.basic import Constant
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import io_toposort
from pytensor.tensor.type import DenseTensorType
from pytensor.tensor.variable import TensorVariable

from pymc_ep.compat import numpy_mode

__all__ = ["evaluate_constants"]

_LARGE = 1000
"""Numbers in an array from which it is worth the trouble; smaller ones stay as the model writes them."""


def evaluate_constants(graphs: Sequence[TensorVariable]) -> list[TensorVariable]:
    """Return the graphs with large arrays in the place of what follows from constants alone."""
    fixed = _largest_fixed(graphs)
    if not fixed:
        return list(graphs)
    mode = numpy_mode().excluding("topo_constant_folding")
    with pytensor.config.change_flags(cxx=""):
        values = pytensor.function([], fixed, mode=mode)()
    found = {v: pt.constant(x, dtype=v.dtype) for v, x in zip(fixed, values) if x.size >= _LARGE}
    return graph_replace(list(graphs), found, strict=False) if found else list(graphs)


def _largest_fixed(graphs: Sequence[TensorVariable]) -> list[TensorVariable]:
    """Return arrays computed from constants alone that something else, or nothing, is computed from."""
    nodes = io_toposort([], list(graphs))
    fixed: set = set()
    for node in nodes:
        if all(isinstance(v, Constant) or v in fixed for v in node.inputs):
            fixed.update(node.outputs)
    ends = {v for node in nodes if node.outputs[0] not in fixed for v in node.inputs} | set(graphs)
    return [v for v in ends if v in fixed and isinstance(v.type, DenseTensorType) and v.ndim]
