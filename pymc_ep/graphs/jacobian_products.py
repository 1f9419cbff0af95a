"""Jacobian products of graphs, and the linear part of an affine graph as a map on batches of vectors."""

from collections.abc import Callable

import pytensor
import pytensor.tensor as pt
from pytensor.graph.replace import graph_replace, vectorize_graph
from pytensor.graph.traversal import ancestors
from pytensor.tensor.variable import TensorVariable

__all__ = ["BatchMap", "batch", "linear_map", "pullback", "pushforward"]

BatchMap = Callable[[TensorVariable], TensorVariable]
"""Function from the graph of a batch of inputs, (b, *input shape), to the batch of outputs, (b, *output shape)."""


def pullback(output: TensorVariable, wrt: TensorVariable, cotangent: TensorVariable) -> TensorVariable:
    """Return `cotangent` times the Jacobian of `output` in `wrt`; zero where these are not connected."""
    return pytensor.grad(
        None,
        wrt=wrt,
        known_grads={output: cotangent},
        disconnected_inputs="ignore",
        return_disconnected="zero",
    )


def pushforward(output: TensorVariable, variable: TensorVariable, tangent: TensorVariable) -> TensorVariable:
    """Return the linear part of an affine `output` with respect to `variable`, applied to `tangent`.

    The linear part is computed as the pullback of the pullback, so that the operations of `output` itself are reused:
    an identity costs nothing, and indexing stays indexing.
    """
    if variable not in ancestors([output]):
        return pt.zeros_like(output)
    # J^T c is linear in c, and its own pullback of u is J u.
    cotangent = output.type("cotangent")
    pushed = pullback(pullback(output, variable, cotangent), cotangent, tangent)
    # The result does not depend on the cotangent's value; the graph may still contain it, for its shape.
    return graph_replace([pushed], {cotangent: pt.zeros_like(output)}, strict=False)[0]


def linear_map(output: TensorVariable, variable: TensorVariable) -> BatchMap:
    """Return the linear part of an affine `output` with respect to `variable`, as a function of batches."""
    if variable not in ancestors([output]):
        return lambda rows: pt.zeros((rows.shape[0], *output.shape), dtype=output.dtype)
    tangent = variable.type("tangent")
    pushed = pushforward(output, variable, tangent)

    def apply(rows: TensorVariable) -> TensorVariable:
        if pushed is tangent:
            return rows
        return batch(pushed, {tangent: rows})

    return apply


def batch(expression: TensorVariable, inputs: dict) -> TensorVariable:
    """Return `expression` for each row of its inputs, (rows, *shape).

    `inputs` has the rows of each variable, (rows, *its shape), by variable. An expression without these variables is
    repeated.
    """
    try:
        out = vectorize_graph(expression, inputs)
    except NotImplementedError:
        # Some releases of PyTensor cannot vectorize the gradient of columns selected by a list, x[:, [0]].
        return _one_by_one(expression, inputs)
    if out.ndim == expression.ndim:
        rows = next(iter(inputs.values())).shape[0]
        out = pt.broadcast_to(out, (rows, *expression.shape))
    return out


def _one_by_one(expression: TensorVariable, inputs: dict) -> TensorVariable:
    """Return the result of `batch`, computed in a loop over the rows."""

    def of_row(*rows: TensorVariable) -> TensorVariable:
        typed = [pt.specify_shape(row, variable.type.shape) for row, variable in zip(rows, inputs)]
        return graph_replace([expression], dict(zip(inputs, typed)), strict=False)[0]

    return pytensor.map(of_row, list(inputs.values()), return_updates=False)
