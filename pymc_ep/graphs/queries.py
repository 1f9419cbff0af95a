"""Queries on a model's graph: dependence, affineness, elementwise structure and constants."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeGuard

import numpy as np
import pytensor.tensor as pt
from pytensor.compile.ops import ViewOp
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.op import Op
from pytensor.graph.replace import clone_replace, graph_replace
from pytensor.graph.traversal import ancestors, io_toposort
from pytensor.scalar.basic import Cast
from pytensor.tensor.basic import Join, MakeVector
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.einsum import Einsum
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.shape import Shape, Shape_i
from pytensor.tensor.subtensor import AdvancedSubtensor
from pytensor.tensor.type import DenseTensorType
from pytensor.tensor.variable import TensorConstant, TensorVariable

from pymc_ep.compat import indices_of, inlined
from pymc_ep.concurrency import compiled_function, compiling
from pymc_ep.graphs.jacobian_products import pullback
from pymc_ep.graphs.random_nodes import is_random
from pymc_ep.modes import numpy_mode, quick_mode, rewritten

__all__ = [
    "applies",
    "apply_path",
    "core_op",
    "depends_on",
    "dominators",
    "elementwise",
    "elementwise_function_of",
    "evaluate_constants",
    "evaluated",
    "has_slopes_free_of",
    "is_affine_numerically",
    "is_affine_symbolically",
    "rebuilt",
    "stacked_column",
    "value_dependent",
    "value_depends_on",
    "without_casts",
    "without_views",
]


def apply_path(path: Iterable[Apply], graph: TensorVariable) -> TensorVariable:
    """Return `graph` after the operations of the nodes in `path`, in turn.

    In each node the graph stands for the first input; the other inputs are kept.
    """
    for node in path:
        graph = node.op.make_node(graph, *node.inputs[1:]).outputs[0]
    return graph


def depends_on(expressions: Iterable, variables: Iterable, blockers: Iterable | None = None) -> bool:
    """Whether any expression depends on any of the variables, along paths that stop at `blockers`."""
    targets = set(variables)
    return any(
        v in targets for v in ancestors(list(expressions), blockers=None if blockers is None else list(blockers))
    )


def value_depends_on(expression: TensorVariable, variables: Sequence) -> bool:
    """Whether an expression's value depends on any of the variables; dependence through shapes is ignored."""
    targets, seen, stack = set(variables), set(), [expression]
    while stack:
        v = stack.pop()
        if v in targets:
            return True
        if v in seen or v.owner is None or isinstance(v.owner.op, Shape | Shape_i):
            continue
        seen.add(v)
        stack.extend(v.owner.inputs)
    return False


def value_dependent(expressions: Iterable, variables: Iterable) -> set:
    """Return `variables`, and the ancestors of `expressions` whose values depend on any of them."""
    dependent = set(variables)
    for node in io_toposort([], list(expressions)):
        if not isinstance(node.op, Shape | Shape_i) and not dependent.isdisjoint(node.inputs):
            dependent.update(node.outputs)
    return dependent


def dominators(expressions: Sequence[TensorVariable], variables: Iterable) -> list[TensorVariable]:
    """Return the dominators: graphs on every path from `variables` to the expressions, nearest to expressions first.

    The search has a set of variables, at first the expressions. In each step the variable that is computed last is
    replaced by its inputs. Whenever the set has a single variable, all paths pass through it.
    """
    nodes = io_toposort([], list(expressions))
    dependent = value_dependent(expressions, variables)
    computed = {v: place for place, node in enumerate(nodes) for v in node.outputs}
    front = {v for v in expressions if v in dependent}
    bottlenecks = []
    while front:
        last = max(front, key=lambda v: computed.get(v, -1))
        if len(front) == 1:
            bottlenecks.append(last)
        if last.owner is None:
            break
        front = (front - {last}) | {v for v in last.owner.inputs if v in dependent}
    return bottlenecks


def without_casts(variable: TensorVariable) -> TensorVariable:
    """Return the variable under all casts.

    PyMC casts shared data to the dtype of their distribution, which would hide fractional counts.
    """
    while (
        (node := variable.owner) is not None and isinstance(node.op, Elemwise) and isinstance(node.op.scalar_op, Cast)
    ):
        variable = node.inputs[0]
    return variable


def without_views(
    expressions: Sequence[TensorVariable], blockers: Sequence[TensorVariable] = ()
) -> list[TensorVariable]:
    """Return graphs with views removed and einsums inlined, so that derivatives can be seen to be constant.

    PyMC wraps Deterministics in views; PyTensor's einsum is one operation with an inner graph of products and sums. An
    index x[:, [k]] becomes x[:, k] with a new axis. Nodes that depend on a replaced one are rebuilt. Nodes from which
    `blockers` are computed are left as they are.
    """
    replacements: dict = {}
    for node in io_toposort(list(blockers), list(expressions)):
        inputs = [replacements.get(v, v) for v in node.inputs]
        if isinstance(node.op, ViewOp):
            replacements[node.outputs[0]] = inputs[0]
        elif isinstance(node.op, Einsum):
            replacements.update(zip(node.outputs, inlined(node.clone_with_new_inputs(inputs))))
        elif (
            isinstance(node.op, AdvancedSubtensor)
            and (column := _as_basic_index(inputs[0], indices_of(node))) is not None
        ):
            replacements[node.outputs[0]] = column
        elif inputs != node.inputs:
            replacements.update(zip(node.outputs, node.clone_with_new_inputs(inputs).outputs))
    return [replacements.get(v, v) for v in expressions]


def _as_basic_index(x: TensorVariable, indices: Sequence) -> TensorVariable | None:
    """Return x[:, [k]] as x[:, k] with a new axis, or None for any other index.

    PyTensor infers derivatives and shapes of x[:, k], but not of x[:, [k]].
    """
    lists = [axis for axis, index in enumerate(indices) if not isinstance(index, slice)]
    # A list on the first axis needs no replacement: PyTensor infers derivatives and shapes of it.
    if len(lists) != 1 or not lists[0] or not isinstance(index := indices[lists[0]], TensorConstant):
        return None
    if index.data.shape != (1,) or index.data.dtype.kind not in "iu":
        return None
    plain = [int(index.data[0]) if axis == lists[0] else other for axis, other in enumerate(indices)]
    return pt.expand_dims(x[tuple(plain)], lists[0])


def is_affine_symbolically(expression: TensorVariable, variables: Sequence[TensorVariable]) -> bool:
    """Whether the derivative of `expression` with respect to `variables` is free of them.

    Sufficient for smooth operations only: a step function has derivative zero and passes, so that
    `is_affine_numerically` is needed as well.
    """
    return has_slopes_free_of(expression, variables, variables)


def has_slopes_free_of(
    expression: TensorVariable, variables: Sequence[TensorVariable], others: Sequence[TensorVariable]
) -> bool:
    """Whether the derivative of `expression` with respect to `variables` does not depend on `others`."""
    reached = [v for v in variables if depends_on([expression], [v])]
    cotangent = expression.type("cotangent")
    slopes = [pullback(expression, v, cotangent) for v in reached]
    if not any(value_depends_on(s, others) for s in slopes):
        return True
    # Rewriting is in place, on a copy with fresh inputs, so that dependence can be tested on these afterwards.
    fresh = [v.type() for v in others]
    slopes = clone_replace(slopes, dict(zip(others, fresh)))
    slopes = [rewritten(s, "ShapeOpt", "canonicalize", "stabilize") for s in slopes]
    return not any(value_depends_on(s, fresh) for s in slopes)


def is_affine_numerically(
    evaluate: Callable[[Sequence[np.ndarray]], np.ndarray], shapes: Sequence[tuple[int, ...]], rng: np.random.Generator
) -> bool:
    """Whether ``evaluate`` maps midpoints to midpoints, at random points of scale 0.01, 1 and 30.

    A point has an array of each of `shapes`. The smallest scale shows curvature at the origin, the largest an
    exponential's or a cut-off far from it. The tolerance, 1e-10 of the largest value, leaves room for rounding in long
    sums. Elements of the result that are finite at none of the points are ignored: these come from constants of the
    model, such as NaN in a design.
    """
    for scale in (1e-2, 1.0, 30.0):
        a, b = ([scale * rng.standard_normal(s) for s in shapes] for _ in range(2))
        at_a, at_b = evaluate(a), evaluate(b)
        middle = evaluate([(x + y) / 2 for x, y in zip(a, b)])
        values = np.array([at_a, at_b, middle])
        size = np.max(np.abs(values), where=np.isfinite(values), initial=1e-300)
        lost = ~np.isfinite(values).any(axis=0)
        with np.errstate(invalid="ignore"):
            # |f((a + b) / 2) - (f(a) + f(b)) / 2|.
            off = np.abs(middle - (at_a + at_b) / 2)
        if not np.all(lost | (off <= 1e-10 * size)):
            return False
    return True


def core_op(op: Op) -> Op:
    """Return the Op that is applied to each element of a stack, or the Op itself where there is no stack."""
    return op.core_op if isinstance(op, Blockwise) else op


def applies(node: Apply | None, scalar_op: type) -> TypeGuard[Apply]:
    """Whether a node applies a scalar operation to each element."""
    return node is not None and isinstance(node.op, Elemwise) and isinstance(node.op.scalar_op, scalar_op)


def elementwise(expressions: Iterable, variable: TensorVariable) -> bool:
    """Whether all operations between a variable and expressions are elementwise."""
    between = value_dependent(expressions, [variable]) - {variable}
    return all(isinstance(v.owner.op, Elemwise) for v in between)


def elementwise_function_of(graph: TensorVariable, variable: TensorVariable, blockers: Iterable) -> bool:
    """Whether a graph is a variable, or an elementwise function of it, along paths that stop at `blockers`."""
    return depends_on([graph], [variable], blockers) and elementwise([graph], variable)


def stacked_column(graph: TensorVariable, k: int) -> TensorVariable | None:
    """Return column k of a graph that stacks columns along a last axis of known length; None for any other graph."""
    node = graph.owner
    if node is None:
        return None
    if isinstance(node.op, MakeVector):
        return node.inputs[k]
    # The axis is an input of the operation, or one of its properties.
    stacked = node.inputs[-graph.type.shape[-1] :] if isinstance(node.op, Join) else [graph] * (k + 1)
    column = stacked[k] if len(stacked) > k else graph
    expanded = column.owner
    if expanded is None or not isinstance(expanded.op, DimShuffle) or expanded.op.new_order[-1:] != ("x",):
        return None
    return expanded.inputs[0]


def rebuilt(
    graphs: Sequence[TensorVariable], replace: Callable[[Apply, list[Any]], TensorVariable | None]
) -> list[TensorVariable]:
    """Return graphs in which the output of each node is replaced by ``replace(node, inputs)``, unless this is None.

    `inputs` are the node's inputs, with replacements already made.
    """
    replacements: dict[Variable, Variable] = {}
    for node in io_toposort([], list(graphs)):
        inputs = [replacements.get(v, v) for v in node.inputs]
        if (replacement := replace(node, inputs)) is not None:
            out = node.outputs[0]
            replacements[out] = out.type.filter_variable(replacement.astype(out.dtype), allow_convert=True)
        elif inputs != node.inputs:
            replacements.update(zip(node.outputs, node.clone_with_new_inputs(inputs).outputs))
    return [replacements.get(graph, graph) for graph in graphs]


def evaluated(graphs: Sequence[TensorVariable]) -> list[np.ndarray]:
    """Return the values of graphs that contain no random variables."""
    return compiled_function([], graphs, mode=quick_mode(), on_unused_input="ignore")()


_MOST_SIZE = 2**25
"""Largest size of a constant array that is evaluated, 256 MiB. A larger one stays a graph, as the fit may yet be
refused for its memory."""
_MIN_SIZE = 1000
"""Least size of a constant array that is evaluated here, once for all functions of a form.

PyTensor folds constants again in each function, element by element, which takes minutes for the basis of a
Hilbert-space process at 5000 points. Below 1000 elements that is cheap, and the graph keeps the model's structure."""


def evaluate_constants(graphs: Sequence[TensorVariable]) -> list[TensorVariable]:
    """Return graphs in which large arrays that depend on constants alone are replaced by their values."""
    fixed = [v for v in _maximal_constants(graphs) if None in v.type.shape or math.prod(v.type.shape) <= _MOST_SIZE]
    if not fixed:
        return list(graphs)
    mode = numpy_mode("topo_constant_folding")
    with compiling(cxx=""):
        values = compiled_function([], fixed, mode=mode)()
    constants = {v: pt.constant(x, dtype=v.dtype) for v, x in zip(fixed, values) if x.size >= _MIN_SIZE}
    return graph_replace(list(graphs), constants, strict=False) if constants else list(graphs)


def _maximal_constants(graphs: Sequence[TensorVariable]) -> list[TensorVariable]:
    """Return computed arrays that depend on constants alone, where they enter an operation with other inputs.

    Such arrays among the graphs themselves are returned as well. A random variable does not count, not even a mixture's
    component with all of its mass at a constant.
    """
    nodes = io_toposort([], list(graphs))
    fixed: set = set()
    for node in nodes:
        if all(isinstance(v, Constant) or v in fixed for v in node.inputs) and not is_random(node.outputs[0]):
            fixed.update(node.outputs)
    # In an order that the graphs decide, as their functions do.
    ends = dict.fromkeys([*(v for node in nodes if node.outputs[0] not in fixed for v in node.inputs), *graphs])
    return [v for v in ends if v in fixed and isinstance(v.type, DenseTensorType) and v.ndim]
