"""Questions about a model's graph: what depends on what, and what is affine in what."""

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.compile.ops import ViewOp
from pytensor.graph.basic import Constant
from pytensor.graph.replace import clone_replace, graph_replace
from pytensor.graph.rewriting.utils import rewrite_graph
from pytensor.graph.traversal import ancestors, io_toposort
from pytensor.scalar.basic import Cast
from pytensor.tensor.einsum import Einsum
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.shape import Shape, Shape_i
from pytensor.tensor.subtensor import AdvancedSubtensor
from pytensor.tensor.type import DenseTensorType
from pytensor.tensor.variable import TensorConstant, TensorVariable

from pymc_ep.compat import indices_of, inlined, numpy_mode, quick_mode
from pymc_ep.graphs.jacobian_products import pullback

__all__ = [
    "depends_on",
    "dominators",
    "elementwise",
    "evaluate_constants",
    "evaluated",
    "is_affine_numerically",
    "is_affine_symbolically",
    "made_of",
    "value_dependent",
    "value_depends_on",
    "without_casts",
    "without_views",
]


def depends_on(expressions: Iterable, variables: Iterable, blockers: Iterable | None = None) -> bool:
    """Whether any expression's value depends on any of the variables, looking no further than `blockers`."""
    targets = set(variables)
    return any(
        v in targets for v in ancestors(list(expressions), blockers=None if blockers is None else list(blockers))
    )


def value_depends_on(expression: TensorVariable, variables: Sequence) -> bool:
    """As `depends_on`, but a path through a shape alone does not count."""
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
    """Return all variables behind the expressions whose value depends on any of `variables`, these included."""
    found = set(variables)
    for node in io_toposort([], list(expressions)):
        if not isinstance(node.op, Shape | Shape_i) and not found.isdisjoint(node.inputs):
            found.update(node.outputs)
    return found


def dominators(expressions: Sequence[TensorVariable], variables: Iterable) -> list[TensorVariable]:
    """Return the variables through each of which all values pass on their way to the expressions, the nearest first.

    A front of variables moves from the expressions towards `variables`, replacing what was computed last by what it was
    computed from; whenever a single variable is left, everything passes through it.
    """
    nodes = io_toposort([], list(expressions))
    dependent = value_dependent(expressions, variables)
    computed = {v: place for place, node in enumerate(nodes) for v in node.outputs}
    front = {v for v in expressions if v in dependent}
    found = []
    while front:
        last = max(front, key=lambda v: computed.get(v, -1))
        if len(front) == 1:
            found.append(last)
        if last.owner is None:
            break
        front = (front - {last}) | {v for v in last.owner.inputs if v in dependent}
    return found


def without_casts(variable: TensorVariable) -> TensorVariable:
    """Return what the user gave: PyMC casts shared data to the dtype of their distribution, which hides fractions."""
    while (
        (node := variable.owner) is not None and isinstance(node.op, Elemwise) and isinstance(node.op.scalar_op, Cast)
    ):
        variable = node.inputs[0]
    return variable


def without_views(
    expressions: Sequence[TensorVariable], blockers: Sequence[TensorVariable] = ()
) -> list[TensorVariable]:
    """Return the graphs without views and graphs within an operation, which hide what is behind them.

    PyMC puts views around Deterministics; PyTensor's einsum is an operation that holds products and sums, through
    which no derivative is seen to be constant. What follows from these is made anew, down to `blockers`, which stay who
    they are.
    """
    known: dict = {}
    for node in io_toposort(list(blockers), list(expressions)):
        inputs = [known.get(v, v) for v in node.inputs]
        if isinstance(node.op, ViewOp):
            known[node.outputs[0]] = inputs[0]
        elif isinstance(node.op, Einsum):
            known.update(zip(node.outputs, inlined(node.clone_with_new_inputs(inputs))))
        elif (
            isinstance(node.op, AdvancedSubtensor) and (column := _one_column(inputs[0], indices_of(node))) is not None
        ):
            known[node.outputs[0]] = column
        elif inputs != node.inputs:
            known.update(zip(node.outputs, node.clone_with_new_inputs(inputs).outputs))
    return [known.get(v, v) for v in expressions]


def _one_column(x: TensorVariable, indices: Sequence) -> TensorVariable | None:
    """Return x[:, [k]] as x[:, k] with a new axis, of which PyTensor knows derivatives and shapes; else None."""
    lists = [axis for axis, index in enumerate(indices) if not isinstance(index, slice)]
    # Rows by a list are gathered by an operation that PyTensor knows all about.
    if len(lists) != 1 or not lists[0] or not isinstance(index := indices[lists[0]], TensorConstant):
        return None
    if index.data.shape != (1,) or index.data.dtype.kind not in "iu":
        return None
    plain = [int(index.data[0]) if axis == lists[0] else part for axis, part in enumerate(indices)]
    return pt.expand_dims(x[tuple(plain)], lists[0])


def is_affine_symbolically(expression: TensorVariable, variables: Sequence[TensorVariable]) -> bool:
    """Whether the derivative of `expression` with respect to `variables` is free of them.

    Sound for smooth operations only: a step function has a zero derivative and passes, so that
    `is_affine_numerically` must agree.
    """
    reached = [v for v in variables if depends_on([expression], [v])]
    if not reached:
        return True
    cotangent = expression.type("cotangent")
    slopes = [pullback(expression, v, cotangent) for v in reached]
    if not any(value_depends_on(s, reached) for s in slopes):
        return True
    # Rewriting in place needs fresh inputs: a clone would otherwise hide the dependence that is looked for.
    fresh = [v.type() for v in reached]
    slopes = clone_replace(slopes, dict(zip(reached, fresh)))
    slopes = [rewrite_graph(s, include=("ShapeOpt", "canonicalize", "stabilize"), clone=False) for s in slopes]
    return not any(value_depends_on(s, fresh) for s in slopes)


def is_affine_numerically(
    evaluate: Callable[[Sequence[np.ndarray]], np.ndarray], shapes: Sequence[tuple[int, ...]], rng: np.random.Generator
) -> bool:
    """Whether ``evaluate`` maps midpoints to midpoints at random points of several scales.

    What is not finite at any of them comes from the model's constants, not from the function's shape: NaN in a design.
    """
    for scale in (1e-2, 1.0, 30.0):
        a, b = ([scale * rng.standard_normal(s) for s in shapes] for _ in range(2))
        at_a, at_b = evaluate(a), evaluate(b)
        middle = evaluate([(x + y) / 2 for x, y in zip(a, b)])
        values = np.array([at_a, at_b, middle])
        size = np.max(np.abs(values), where=np.isfinite(values), initial=1e-300)
        lost = ~np.isfinite(values).any(axis=0)
        with np.errstate(invalid="ignore"):
            off = np.abs(middle - (at_a + at_b) / 2)
        if not np.all(lost | (off <= 1e-10 * size)):
            return False
    return True


def elementwise(expressions: Iterable, variable: TensorVariable) -> bool:
    """Whether all that is between a variable and expressions is done to its elements one by one."""
    between = value_dependent(expressions, [variable]) - {variable}
    return all(isinstance(v.owner.op, Elemwise) for v in between)


def made_of(graph: TensorVariable, variable: TensorVariable, blockers: Iterable) -> bool:
    """Whether a graph is a variable, maybe with something done to its elements, looking no further than `blockers`."""
    return depends_on([graph], [variable], blockers) and elementwise([graph], variable)


def evaluated(graphs: Sequence[TensorVariable]) -> list[np.ndarray]:
    """Return the values of graphs that no random variable is in."""
    return pytensor.function([], list(graphs), mode=quick_mode(), on_unused_input="ignore")()


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
