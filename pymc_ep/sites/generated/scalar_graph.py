"""The log density of a site as a graph of scalar Ops, cut where it starts to depend on the predictor."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pytensor
import pytensor.scalar as ps
import pytensor.tensor as pt
from pytensor.compile.mode import get_mode
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.replace import clone_replace
from pytensor.raise_op import CheckAndRaise
from pytensor.scalar.basic import Composite, ScalarOp
from pytensor.scalar.math import Sigmoid, Softplus
from pytensor.tensor.basic import Alloc, ScalarFromTensor, TensorFromScalar
from pytensor.tensor.elemwise import CAReduce, DimShuffle, Elemwise
from pytensor.tensor.shape import Reshape, SpecifyShape

from pymc_ep.compat import c_mode
from pymc_ep.sites.base import Site

__all__ = ["NoScalarGraphError", "ScalarDensity", "scalar_density"]

_TRANSPARENT = (
    Alloc,
    CAReduce,
    CheckAndRaise,
    DimShuffle,
    Reshape,
    ScalarFromTensor,
    SpecifyShape,
    TensorFromScalar,
)
"""Ops that return a single number as it is."""


class NoScalarGraphError(Exception):
    """A log density has a part that is no function of numbers, or has no body in the loop; the argument names it."""


class ScalarDensity(NamedTuple):
    """Log t and its derivatives, as two graphs of scalars.

    Compilers do not move what is free of the predictor, such as log y!, out of a loop over nodes.

    Attributes
    ----------
    fixed : Composite, optional
        ``fixed(y, *parameters)``: doubles that are free of the predictor. None if nothing is.
    density : Composite
        ``density(eta, *outputs of fixed)``: log t, its slope, and the derivatives in parameters.
    """

    fixed: Composite | None
    density: Composite


def scalar_density(site: Site, options: dict[str, Any]) -> ScalarDensity:
    """Return the log density of a site, its slope, and its derivatives in all parameters.

    Raises
    ------
    NoScalarGraphError
        If the density, or its derivative, is not made of functions of numbers.
    """
    y, eta, *parameters = (pt.scalar(name, dtype="float64") for name in ("y", "eta", *site.parameters))
    log_t = site.logp(y, eta, *parameters, **options)
    slopes = pytensor.grad(log_t, [eta, *parameters], disconnected_inputs="ignore")
    inputs, outputs = _as_scalars([y, eta, *parameters], [log_t, *slopes])
    return _split(inputs, outputs, moving=inputs[1])


def _as_scalars(inputs: Sequence[Variable], outputs: Sequence[Variable]) -> tuple[list[Any], list[Any]]:
    """Return the graph in scalar variables, after PyTensor's rewrites without fusion."""
    # This rewrite raises, and logs, on the product of a negative and a bool in derivatives of derivatives.
    mode = get_mode(c_mode()).excluding("fusion", "inplace", "local_greedy_distributor")
    graph = FunctionGraph(list(inputs), list(outputs), clone=True)
    mode.including("local_remove_check_parameter").optimizer.rewrite(graph)
    made = _Made({v: ps.ScalarType(str(v.dtype))(name=v.name) for v in graph.inputs})
    for node in graph.toposort():
        if any(not all(out.type.broadcastable) for out in node.outputs if getattr(out.type, "ndim", 0)):
            raise NoScalarGraphError(str(node.op))
        if isinstance(node.op, _TRANSPARENT):
            made.known[node.outputs[0]] = made.of(node.inputs[0])
            continue
        op = node.op.scalar_op if isinstance(node.op, Elemwise) else node.op
        if not isinstance(op, ScalarOp):
            raise NoScalarGraphError(str(op))
        made.known.update(zip(node.outputs, made.lowered(op, [made.of(v) for v in node.inputs])))
    return [made.of(v) for v in graph.inputs], [made.of(v) for v in graph.outputs]


class _Made:
    """Scalar variables by the tensor variables that they stand for; equal nodes are made once."""

    def __init__(self, known: dict[Variable, Any]) -> None:
        self.known = known
        self._nodes: dict[tuple, list[Any]] = {}

    def of(self, v: Variable) -> Any:
        if v in self.known:
            return self.known[v]
        if not isinstance(v, Constant) or np.size(v.data) != 1:
            raise NoScalarGraphError(str(v))
        return ps.ScalarConstant(ps.ScalarType(str(v.dtype)), np.asarray(v.data).reshape(())[()])

    def once(self, op: ScalarOp, *inputs: Any) -> Any:
        """Return the outputs of an Op on scalars."""
        key = op, *((v.type, v.data.tobytes()) if isinstance(v, Constant) else v for v in inputs)
        if key not in self._nodes:
            self._nodes[key] = op.make_node(*inputs).outputs
        return self._nodes[key]

    def lowered(self, op: ScalarOp, inputs: list[Any]) -> list[Any]:
        """Return the outputs of an Op; softplus and sigmoid share ``e = exp(-|x|)`` and have no branches."""
        if not isinstance(op, Softplus | Sigmoid) or inputs[0].dtype != "float64":
            return self.once(op, *inputs)
        (x,), zero, one = inputs, ps.constant(0.0, dtype="float64"), ps.constant(1.0, dtype="float64")
        (size,) = self.once(ps.abs, x)
        (e,) = self.once(ps.exp, *self.once(ps.neg, size))
        if isinstance(op, Softplus):
            return self.once(ps.add, *self.once(ps.maximum, x, zero), *self.once(ps.log1p, e))
        (top,) = self.once(ps.switch, *self.once(ps.ge, x, zero), one, e)
        return self.once(ps.true_div, top, *self.once(ps.add, one, e))


def _split(inputs: Sequence[Any], outputs: Sequence[Any], moving: Any) -> ScalarDensity:
    """Cut the graph at the variables that do not depend on `moving` and are used by some that do."""
    order: dict[Any, None] = {}

    def visit(v: Any) -> None:
        if v not in order and v.owner is not None:
            for one in v.owner.inputs:
                visit(one)
            order[v] = None

    for v in outputs:
        visit(v)
    dependent = {moving}
    for v in order:
        if not dependent.isdisjoint(v.owner.inputs):
            dependent.add(v)
    used = [one for v in order if v in dependent for one in v.owner.inputs]
    edge = list(dict.fromkeys(v for v in [*used, *outputs] if v not in dependent and not isinstance(v, Constant)))
    others = [v for v in inputs if v is not moving]
    fixed = Composite(others, [_float64(v) for v in edge]) if edge else None
    fresh = [ps.float64() for _ in edge]
    held = {v: x if v.dtype == "float64" else _as(x, v.dtype) for v, x in zip(edge, fresh)}
    new = clone_replace([_float64(v) for v in outputs], held, rebuild_strict=False)
    return ScalarDensity(fixed, Composite([moving, *fresh], new))


def _as(x: Any, dtype: str) -> Any:
    return ps.neq(x, ps.constant(0.0, dtype="float64")) if dtype == "bool" else ps.cast(x, dtype)


def _float64(v: Any) -> Any:
    """Return the variable as a double that is the result of an Op, as those of a Composite must be."""
    if v.dtype != "float64":
        return ps.cast(v, "float64")
    return ps.identity(v) if v.owner is None else v
