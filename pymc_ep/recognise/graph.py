"""Questions about a model's graph: what depends on what, and what is affine in what."""

from collections.abc import Callable, Iterable, Sequence

import numpy as np
from pytensor.graph.replace import clone_replace
from pytensor.graph.rewriting.utils import rewrite_graph
from pytensor.graph.traversal import ancestors
from pytensor.scalar.basic import Cast
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.shape import Shape, Shape_i
from pytensor.tensor.variable import TensorVariable

from pymc_ep.forms.linear_maps import pullback

__all__ = ["depends_on", "is_affine_numerically", "is_affine_symbolically", "value_depends_on", "without_casts"]


def depends_on(expressions: Iterable, variables: Iterable, blockers: Iterable | None = None) -> bool:
    """Whether any expression's value depends on any of the variables, looking no further than `blockers`."""
    targets = set(variables)
    return any(
        v in targets for v in ancestors(list(expressions), blockers=None if blockers is None else list(blockers))
    )


def value_depends_on(expression, variables: Sequence) -> bool:
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


def without_casts(variable: TensorVariable) -> TensorVariable:
    """Return what the user gave: PyMC casts shared data to the dtype of their distribution, which hides fractions."""
    while (
        (node := variable.owner) is not None and isinstance(node.op, Elemwise) and isinstance(node.op.scalar_op, Cast)
    ):
        variable = node.inputs[0]
    return variable


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
    """Whether ``evaluate`` maps midpoints to midpoints at random points of several scales."""
    for scale in (1e-2, 1.0, 30.0):
        a, b = ([scale * rng.standard_normal(s) for s in shapes] for _ in range(2))
        at_a, at_b = evaluate(a), evaluate(b)
        middle = evaluate([(x + y) / 2 for x, y in zip(a, b)])
        size = np.max(np.abs([at_a, at_b, middle]), initial=1e-300)
        if not np.all(np.abs(middle - (at_a + at_b) / 2) <= 1e-10 * size):
            return False
    return True
