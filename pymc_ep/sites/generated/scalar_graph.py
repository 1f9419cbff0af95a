"""The log density of a site as a graph of scalar Ops, cut where it starts to depend on the predictor."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import pytensor
import pytensor.scalar as ps
import pytensor.tensor as pt
from pytensor.graph.basic import Constant
from pytensor.graph.replace import clone_replace
from pytensor.scalar.basic import Composite

from pymc_ep.sites.base import Site
from pymc_ep.sites.generated.unrolled import as_scalars

__all__ = ["ScalarDensity", "scalar_density"]


class ScalarDensity(NamedTuple):
    """Log t and its derivatives, as two graphs of scalars.

    Compilers do not move terms that are free of the predictor, such as log y!, out of a loop over nodes.

    Attributes
    ----------
    fixed : Composite, optional
        ``fixed(y, *parameters)``: doubles that are free of the predictor. None without any.
    density : Composite
        ``density(eta, *outputs of fixed)``: log t, its slope, and the derivatives in parameters. For a site of two
        predictors both are arguments, and there are two slopes.
    """

    fixed: Composite | None
    density: Composite


def scalar_density(site: Site, options: dict[str, Any]) -> ScalarDensity:
    """Return the log density of a site, its slope, and its derivatives in all parameters.

    Raises
    ------
    NoScalarGraphError
        If the density, or its derivative, is not made of scalar functions.
    """
    names = ("y", *("eta", "second")[: site.predictors], *site.parameters)
    y, *others = (pt.scalar(name, dtype="float64") for name in names)
    log_t = site.logp(y, *others, **options)
    slopes = pytensor.grad(log_t, others, disconnected_inputs="ignore")
    inputs, outputs = as_scalars([y, *others], [log_t, *slopes])
    return _split(inputs, outputs, moving=inputs[1 : 1 + site.predictors])


def _split(inputs: Sequence[Any], outputs: Sequence[Any], moving: Sequence[Any]) -> ScalarDensity:
    """Cut the graph at the variables that do not depend on `moving` and are inputs of nodes that do."""
    order: dict[Any, None] = {}

    def visit(v: Any) -> None:
        if v not in order and v.owner is not None:
            for source in v.owner.inputs:
                visit(source)
            order[v] = None

    for v in outputs:
        visit(v)
    dependent = set(moving)
    for v in order:
        if not dependent.isdisjoint(v.owner.inputs):
            dependent.add(v)
    used = [source for v in order if v in dependent for source in v.owner.inputs]
    edge = list(dict.fromkeys(v for v in [*used, *outputs] if v not in dependent and not isinstance(v, Constant)))
    others = [v for v in inputs if v not in moving]
    fixed = Composite(others, [_float64(v) for v in edge]) if edge else None
    fresh = [ps.float64() for _ in edge]
    held = {v: x if v.dtype == "float64" else _as(x, v.dtype) for v, x in zip(edge, fresh)}
    new = clone_replace([_float64(v) for v in outputs], held, rebuild_strict=False)
    return ScalarDensity(fixed, Composite([*moving, *fresh], new))


def _as(x: Any, dtype: str) -> Any:
    return ps.neq(x, ps.constant(0.0, dtype="float64")) if dtype == "bool" else ps.cast(x, dtype)


def _float64(v: Any) -> Any:
    """Return the variable as a double that is the result of an Op, as outputs of a Composite must be."""
    if v.dtype != "float64":
        return ps.cast(v, "float64")
    return ps.identity(v) if v.owner is None else v
