"""Graphs of 1 - p for probabilities p, without the cancellation where p is almost one.

These forms of p are known:

    p                 1 - p
    1 / (1 + exp(-x)) 1 / (1 + exp(x))
    a / (a + b)       b / (a + b)
    exp(x)            -expm1(x)
    a**b              -expm1(b log a)

From x = 37 on, p = 1 / (1 + exp(-x)) rounds to one, so that 1 - p is zero in doubles, but log(1 - p) is -37 and goes on
falling.
"""

from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Constant, Variable, equal_computations
from pytensor.scalar.basic import Add, Exp, Pow, Second, Sub, TrueDiv
from pytensor.scalar.math import Sigmoid
from pytensor.tensor.basic import Alloc
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.variable import TensorVariable

from pymc_ep.graphs.queries import applies, rebuilt

__all__ = ["log_of", "log_of_complement", "with_complements"]


def with_complements(graph: TensorVariable) -> TensorVariable:
    """Return a graph in which each ``1 - p``, with p of a known form, is replaced by a form without cancellation."""

    def complement(node: Apply, inputs: list[Any]) -> TensorVariable | None:
        if not (applies(node, Sub) and _is_one(inputs[0])):
            return None
        replacement = _complement(inputs[1])
        return None if replacement is None else pt.second(inputs[0], replacement)

    return rebuilt([graph], complement)[0]


def log_of(p: TensorVariable) -> TensorVariable:
    """Return the graph of log p, with all digits for a p of a known form that is almost one."""
    node = p.owner
    if (place := _broadcast_input(node)) is not None:
        return _broadcast_of(node, place, log_of(node.inputs[place]))
    if applies(node, Sigmoid):
        # log(1 / (1 + e^-x)) = -log(1 + e^-x).
        return -pt.softplus(-node.inputs[0])
    # log(a / (a + b)) = -log(1 + b / a).
    rest = _rest_of_share(node)
    return pt.log(p) if rest is None else -pt.log1p(rest / node.inputs[0])


def log_of_complement(p: TensorVariable) -> TensorVariable:
    """Return the graph of log(1 - p): for p of a known form, with all digits and a gradient where p rounds to one."""
    node = p.owner
    if (place := _broadcast_input(node)) is not None:
        return _broadcast_of(node, place, log_of_complement(node.inputs[place]))
    if applies(node, Sigmoid):
        # log(1 - 1 / (1 + e^-x)) = -log(1 + e^x).
        return -pt.softplus(node.inputs[0])
    rest, small = _complement(p), pt.lt(p, 0.5)
    if rest is None:
        return pt.log1p(-p)
    # Both branches are differentiated, each at a safe value where it is not taken.
    return pt.switch(small, pt.log1p(-pt.switch(small, p, 0.0)), pt.log(pt.switch(small, 1.0, rest)))


def _complement(p: Variable) -> Variable | None:
    """Return the graph of 1 - p, or None where the form of p is not known."""
    node = p.owner
    if node is None:
        return None
    inputs = node.inputs
    if (place := _broadcast_input(node)) is not None:
        inner = _complement(inputs[place])
        return None if inner is None else _broadcast_of(node, place, inner)
    if applies(node, Sigmoid):
        return pt.sigmoid(-inputs[0])
    if applies(node, Exp):
        return -pt.expm1(inputs[0])
    if applies(node, Pow) and not isinstance(inputs[1], Constant):
        # A negative base has no logarithm.
        positive = pt.gt(inputs[0], 0)
        by_log = -pt.expm1(inputs[1] * pt.log(pt.switch(positive, inputs[0], 1.0)))
        return pt.switch(positive, by_log, 1.0 - p)
    rest = _rest_of_share(node)
    return None if rest is None else rest / inputs[1]


def _broadcast_input(node: Apply | None) -> int | None:
    """Return the position of the input that a node broadcasts; None for a node that does anything else."""
    if node is None or not (isinstance(node.op, DimShuffle | Alloc) or applies(node, Second)):
        return None
    return 1 if isinstance(node.op, Elemwise) else 0


def _broadcast_of(node: Apply, place: int, inner: Variable) -> Variable:
    """Return a node's broadcast with `inner` in place of input `place`; elementwise functions commute with it."""
    return node.op(*(inner if k == place else v for k, v in enumerate(node.inputs)))


def _rest_of_share(node: Apply | None) -> Variable | None:
    """Return b where a node computes a / (a + b), else None."""
    if not applies(node, TrueDiv) or not applies(node.inputs[1].owner, Add):
        return None
    terms = node.inputs[1].owner.inputs
    others = [v for v in terms if not _equal(v, node.inputs[0])]
    return others[0] if len(others) == 1 and len(terms) == 2 else None


def _is_one(variable: Variable) -> bool:
    variable = _without_axes(variable)
    return isinstance(variable, Constant) and bool(np.all(variable.data == 1))


def _equal(first: Variable, second: Variable) -> bool:
    """Whether two graphs compute the same, up to axes of length one."""
    return equal_computations([_without_axes(first)], [_without_axes(second)])


def _without_axes(variable: Variable) -> Variable:
    while variable.owner is not None and isinstance(variable.owner.op, DimShuffle):
        variable = variable.owner.inputs[0]
    return variable
