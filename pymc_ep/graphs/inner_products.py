"""Pattern matching of inner products of rows of two matrices, in the usual PyMC spellings."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pytensor.tensor as pt
from pytensor.compile.builders import infer_shape
from pytensor.graph.basic import Apply, Constant
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import ancestors
from pytensor.scalar.basic import Add, Mul
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.math import Dot, Sum
from pytensor.tensor.subtensor import AdvancedSubtensor
from pytensor.tensor.variable import TensorVariable

from pymc_ep.compat import indexed_first
from pymc_ep.graphs.queries import core_op, without_casts

__all__ = [
    "SPELLINGS",
    "InnerProducts",
    "broadcast_vector",
    "indexed_rows",
    "inner_products",
    "is_sum",
    "push_selections_inward",
    "row_counts",
    "same_index",
    "summands",
]

SPELLINGS = "(V[rows] * U[cols]).sum(-1), (V @ U.T)[rows, cols], (V @ U.T)[mask] and V @ U.T"
"""Spellings of inner products that are recognised, as error messages list them."""


class InnerProducts(NamedTuple):
    """Inner products <v_i, u_j> of rows of two matrices.

    Attributes
    ----------
    graph : TensorVariable
        Inner products: a vector over cells (i, j), or the matrix V U^T.
    matrices : (TensorVariable, TensorVariable)
        V and U.
    indices : (TensorVariable, TensorVariable)
        Indices i of rows of V and j of rows of U, (cells,) each, for all cells in C order of the graph.
    shape : tuple of TensorVariable
        Shape of the graph.
    """

    graph: TensorVariable
    matrices: tuple[TensorVariable, TensorVariable]
    indices: tuple[TensorVariable, TensorVariable]
    shape: tuple[TensorVariable, ...]


def inner_products(graph: TensorVariable) -> InnerProducts | None:
    """Return the inner products of rows of two matrices that a graph computes; None for any other graph."""
    if (whole := _match_product(graph)) is not None:
        n_rows, n_cols = row_counts(*whole)
        grid = pt.arange(n_rows)[:, None], pt.arange(n_cols)
        rows, cols = (pt.broadcast_to(index, (n_rows, n_cols)).ravel() for index in grid)
        return InnerProducts(graph, whole, (rows, cols), (n_rows, n_cols))
    match = _match_sum_of_products(graph) or _match_selected_product(graph)
    if match is None:
        return None
    (v, i), (u, j) = match
    rows, cols = _broadcast(without_casts(i), without_casts(j))
    return InnerProducts(graph, (v, u), (rows, cols), (pt.as_tensor(rows).shape[0],))


def row_counts(*variables: TensorVariable) -> list[TensorVariable]:
    """Return the number of rows of each variable, from shapes alone: random variables are not drawn."""
    return [pt.as_tensor(shape[0]) for shape in infer_shape(variables, (), ())]


def _match_sum_of_products(graph: TensorVariable) -> list[tuple[TensorVariable, TensorVariable]] | None:
    """Return (V, rows) and (U, cols) for ``(V[rows] * U[cols]).sum(-1)``, else None."""
    node = graph.owner
    if node is None or not isinstance(node.op, Sum) or node.inputs[0].ndim != 2 or node.op.axis != (1,):
        return None
    product = without_casts(node.inputs[0])
    if not _is(product, Mul) or len(product.owner.inputs) != 2:
        return None
    matches = [match for factor in product.owner.inputs if (match := indexed_rows(factor)) is not None]
    return matches if len(matches) == 2 else None


def _match_selected_product(graph: TensorVariable) -> list[tuple[TensorVariable, TensorVariable]] | None:
    """Return (V, rows) and (U, cols) for ``(V @ U.T)[rows, cols]`` or ``(V @ U.T)[mask]``, else None."""
    node = graph.owner
    if node is None or not isinstance(node.op, AdvancedSubtensor):
        return None
    factors, indices = _match_product(without_casts(node.inputs[0])), _rows_and_columns(node)
    return None if factors is None or indices is None else list(zip(factors, indices))


def _rows_and_columns(node: Apply) -> list[TensorVariable] | None:
    """Return row and column indices of a selection of elements of a matrix; None for any other indexing."""
    indices = indexed_first(node)
    if indices is None:
        return None
    if len(indices) == 1 and indices[0].dtype == "bool" and indices[0].ndim == 2:
        (mask,) = indices
        indices = [pt.constant(k) for k in np.nonzero(mask.data)] if isinstance(mask, Constant) else mask.nonzero()
    return indices if len(indices) == 2 and all(_is_vector_of_integers(index) for index in indices) else None


def push_selections_inward(graphs: Sequence[TensorVariable]) -> list[TensorVariable]:
    """Return graphs with selections of matrix elements moved inside elementwise operations.

    For example ``(V @ U.T + b[:, None])[rows, cols]`` becomes ``(V @ U.T)[rows, cols] + b[rows]``.
    """
    replacements = {}
    for graph in ancestors(graphs):
        node = graph.owner
        if node is None or not isinstance(node.op, AdvancedSubtensor) or not _is_elementwise(node.inputs[0]):
            continue
        if (indices := _rows_and_columns(node)) is not None and node.inputs[0].ndim == 2:
            replacements[graph] = _select_inside(node.inputs[0], indices)
    return graph_replace(list(graphs), replacements, strict=False) if replacements else list(graphs)


def _select_inside(matrix: TensorVariable, indices: Sequence[TensorVariable]) -> TensorVariable:
    """Return the elements of a matrix at row and column indices, with the selection applied to its operands."""
    if _is_elementwise(matrix):
        return matrix.owner.op(*(_select_inside(operand, indices) for operand in matrix.owner.inputs))
    if (repeated := broadcast_vector(matrix)) is not None:
        vector, axis = repeated
        return vector[indices[axis]]
    axes = [k for k, alike in enumerate(matrix.type.broadcastable) if not alike]
    return matrix.dimshuffle(axes)[tuple(indices[k] for k in axes)] if axes else matrix.dimshuffle()


def _is_elementwise(graph: TensorVariable) -> bool:
    return graph.owner is not None and isinstance(graph.owner.op, Elemwise)


def _match_product(product: TensorVariable) -> tuple[TensorVariable, TensorVariable] | None:
    """Return V and U for ``V @ U.T``, else None."""
    node = product.owner
    if node is None or not isinstance(core_op(node.op), Dot) or product.ndim != 2:
        return None
    v, transposed = (without_casts(factor) for factor in node.inputs)
    turned = transposed.owner
    if turned is None or not isinstance(turned.op, DimShuffle) or tuple(turned.op.new_order) != (1, 0):
        return None
    return v, without_casts(turned.inputs[0])


def indexed_rows(graph: TensorVariable) -> tuple[TensorVariable, TensorVariable] | None:
    """Return V and the index vector for ``V[rows]``, else None."""
    graph = without_casts(graph)
    node = graph.owner
    if node is None or not isinstance(node.op, AdvancedSubtensor):
        return None
    indices = indexed_first(node)
    if indices is None or len(indices) != 1 or not _is_vector_of_integers(indices[0]):
        return None
    return node.inputs[0], indices[0]


def broadcast_vector(graph: TensorVariable) -> tuple[TensorVariable, int] | None:
    """Return b and its axis, 0 or 1, for ``b[:, None]`` or ``b[None, :]``, else None."""
    node = graph.owner
    if node is None or not isinstance(node.op, DimShuffle) or graph.ndim != 2 or node.inputs[0].ndim != 1:
        return None
    return node.inputs[0], node.op.new_order.index(0)


def _is_vector_of_integers(index: TensorVariable) -> bool:
    return index.dtype.startswith(("int", "uint")) and index.ndim == 1


def _broadcast(i: TensorVariable, j: TensorVariable) -> tuple[TensorVariable, TensorVariable]:
    """Return two index vectors of equal length; a vector of length one is broadcast to the other."""
    if i.type.broadcastable == j.type.broadcastable:
        return i, j
    return (pt.broadcast_to(i, j.shape), j) if i.type.broadcastable[0] else (i, pt.broadcast_to(j, i.shape))


def same_index(index: TensorVariable, other: TensorVariable) -> bool:
    """Whether two index vectors are the same variable, or constants of equal values."""
    both = isinstance(index, Constant) and isinstance(other, Constant)
    return index is other or (both and np.array_equal(index.data, other.data))


def summands(graph: TensorVariable) -> list[TensorVariable]:
    """Return the terms of a sum, nested sums included."""
    return [t for term in graph.owner.inputs for t in summands(term)] if is_sum(graph) else [graph]


def is_sum(graph: TensorVariable) -> bool:
    """Whether a graph is an elementwise sum."""
    return _is(graph, Add)


def _is(graph: TensorVariable, scalar_op: type) -> bool:
    node = graph.owner
    return node is not None and isinstance(node.op, Elemwise) and isinstance(node.op.scalar_op, scalar_op)
