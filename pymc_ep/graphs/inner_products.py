"""Find inner products of rows of two matrices in a graph, in the spellings that users of PyMC write."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pytensor.tensor as pt
from pytensor.compile.builders import infer_shape
from pytensor.graph.basic import Apply, Constant
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import ancestors
from pytensor.scalar.basic import Add, Mul
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.math import Dot, Sum
from pytensor.tensor.subtensor import AdvancedSubtensor
from pytensor.tensor.variable import TensorVariable

from pymc_ep.compat import indexed_first
from pymc_ep.graphs.queries import without_casts

__all__ = [
    "SPELLINGS",
    "InnerProducts",
    "inner_products",
    "is_sum",
    "repeated",
    "row_counts",
    "same_index",
    "selected_early",
    "taken",
    "terms",
]

SPELLINGS = "(V[rows] * U[cols]).sum(-1), (V @ U.T)[rows, cols], (V @ U.T)[mask] and V @ U.T"
"""What is read, for messages."""


class InnerProducts(NamedTuple):
    """Sums of products of rows of two matrices: the graph, the matrices, and the rows of these.

    Attributes
    ----------
    graph : TensorVariable
        Vector, one element for each cell, or matrix of all rows of one with all rows of the other.
    matrices : (TensorVariable, TensorVariable)
    indices : (TensorVariable, TensorVariable)
        Vectors of integers, of the cells in the order of the memory.
    shape : tuple of TensorVariable
        Of the graph.
    """

    graph: TensorVariable
    matrices: tuple[TensorVariable, TensorVariable]
    indices: tuple[TensorVariable, TensorVariable]
    shape: tuple[TensorVariable, ...]


def inner_products(graph: TensorVariable) -> InnerProducts | None:
    """Return what a graph multiplies and adds up, whatever that is; None where these are no inner products."""
    if (whole := _factors(graph)) is not None:
        n_rows, n_cols = row_counts(*whole)
        grid = pt.arange(n_rows)[:, None], pt.arange(n_cols)
        rows, cols = (pt.broadcast_to(one, (n_rows, n_cols)).ravel() for one in grid)
        return InnerProducts(graph, whole, (rows, cols), (n_rows, n_cols))
    found = _summed(graph) or _selected(graph)
    if found is None:
        return None
    (v, i), (u, j) = found
    rows, cols = _broadcast(without_casts(i), without_casts(j))
    return InnerProducts(graph, (v, u), (rows, cols), (pt.as_tensor(rows).shape[0],))


def row_counts(*variables: TensorVariable) -> list[TensorVariable]:
    """Return the numbers of rows of variables, random ones of which are not drawn for that."""
    return [pt.as_tensor(shape[0]) for shape in infer_shape(variables, (), ())]


def _summed(graph: TensorVariable) -> list[tuple[TensorVariable, TensorVariable]] | None:
    """Read ``(V[rows] * U[cols]).sum(-1)``."""
    node = graph.owner
    if node is None or not isinstance(node.op, Sum) or node.inputs[0].ndim != 2 or node.op.axis != (1,):
        return None
    product = without_casts(node.inputs[0])
    if not _is(product, Mul) or len(product.owner.inputs) != 2:
        return None
    parts = [found for part in product.owner.inputs if (found := taken(part)) is not None]
    return parts if len(parts) == 2 else None


def _selected(graph: TensorVariable) -> list[tuple[TensorVariable, TensorVariable]] | None:
    """Read ``(V @ U.T)[rows, cols]`` and ``(V @ U.T)[mask]``, the product of which is never formed."""
    node = graph.owner
    if node is None or not isinstance(node.op, AdvancedSubtensor):
        return None
    factors, indices = _factors(without_casts(node.inputs[0])), _rows_and_columns(node)
    return None if factors is None or indices is None else list(zip(factors, indices))


def _rows_and_columns(node: Apply) -> list[TensorVariable] | None:
    """Return the vectors of integers at which elements of a matrix are selected; None where it is not so."""
    indices = indexed_first(node)
    if indices is None:
        return None
    if len(indices) == 1 and indices[0].dtype == "bool" and indices[0].ndim == 2:
        (mask,) = indices
        indices = [pt.constant(k) for k in np.nonzero(mask.data)] if isinstance(mask, Constant) else mask.nonzero()
    return indices if len(indices) == 2 and all(_is_vector_of_integers(index) for index in indices) else None


def selected_early(graphs: Sequence[TensorVariable]) -> list[TensorVariable]:
    """Return graphs that select elements of a matrix before anything is done to these one by one.

    With it ``(V @ U.T + b[:, None])[rows, cols]`` is ``(V @ U.T)[rows, cols] + b[rows]``.
    """
    found = {}
    for graph in ancestors(graphs):
        node = graph.owner
        if node is None or not isinstance(node.op, AdvancedSubtensor) or not _is_elementwise(node.inputs[0]):
            continue
        if (indices := _rows_and_columns(node)) is not None and node.inputs[0].ndim == 2:
            found[graph] = _selected_inside(node.inputs[0], indices)
    return graph_replace(list(graphs), found, strict=False) if found else list(graphs)


def _selected_inside(matrix: TensorVariable, indices: Sequence[TensorVariable]) -> TensorVariable:
    """Return the elements of a matrix at rows and columns, selected from what it is made of."""
    if _is_elementwise(matrix):
        return matrix.owner.op(*(_selected_inside(part, indices) for part in matrix.owner.inputs))
    if (of := repeated(matrix)) is not None:
        return of[0][indices[of[1]]]
    axes = [k for k, alike in enumerate(matrix.type.broadcastable) if not alike]
    return matrix.dimshuffle(axes)[tuple(indices[k] for k in axes)] if axes else matrix.dimshuffle()


def _is_elementwise(graph: TensorVariable) -> bool:
    return graph.owner is not None and isinstance(graph.owner.op, Elemwise)


def _factors(product: TensorVariable) -> tuple[TensorVariable, TensorVariable] | None:
    """Return V and U, where a matrix is ``V @ U.T``."""
    node = product.owner
    op = None if node is None else node.op.core_op if isinstance(node.op, Blockwise) else node.op
    if not isinstance(op, Dot) or product.ndim != 2:
        return None
    v, transposed = (without_casts(part) for part in node.inputs)
    turned = transposed.owner
    if turned is None or not isinstance(turned.op, DimShuffle) or tuple(turned.op.new_order) != (1, 0):
        return None
    return v, without_casts(turned.inputs[0])


def taken(graph: TensorVariable) -> tuple[TensorVariable, TensorVariable] | None:
    """Return a variable and an index vector, where a graph is the variable's rows at these."""
    graph = without_casts(graph)
    node = graph.owner
    if node is None or not isinstance(node.op, AdvancedSubtensor):
        return None
    indices = indexed_first(node)
    if indices is None or len(indices) != 1 or not _is_vector_of_integers(indices[0]):
        return None
    return node.inputs[0], indices[0]


def repeated(graph: TensorVariable) -> tuple[TensorVariable, int] | None:
    """Return a vector and the axis along which it lies, where a graph is a matrix that repeats it along the other."""
    node = graph.owner
    if node is None or not isinstance(node.op, DimShuffle) or graph.ndim != 2 or node.inputs[0].ndim != 1:
        return None
    return node.inputs[0], node.op.new_order.index(0)


def _is_vector_of_integers(index: TensorVariable) -> bool:
    return index.dtype.startswith(("int", "uint")) and index.ndim == 1


def _broadcast(i: TensorVariable, j: TensorVariable) -> tuple[TensorVariable, TensorVariable]:
    """Return two index vectors of one length, where one of them may be a single row for all cells."""
    if i.type.broadcastable == j.type.broadcastable:
        return i, j
    return (pt.broadcast_to(i, j.shape), j) if i.type.broadcastable[0] else (i, pt.broadcast_to(j, i.shape))


def same_index(one: TensorVariable, other: TensorVariable) -> bool:
    """Whether two index vectors are one variable, or constants of the same values."""
    both = isinstance(one, Constant) and isinstance(other, Constant)
    return one is other or (both and np.array_equal(one.data, other.data))


def terms(graph: TensorVariable) -> list[TensorVariable]:
    """Return what a sum adds up."""
    return [t for part in graph.owner.inputs for t in terms(part)] if is_sum(graph) else [graph]


def is_sum(graph: TensorVariable) -> bool:
    """Whether a graph adds up others."""
    return _is(graph, Add)


def _is(graph: TensorVariable, scalar_op: type) -> bool:
    node = graph.owner
    return node is not None and isinstance(node.op, Elemwise) and isinstance(node.op.scalar_op, scalar_op)
