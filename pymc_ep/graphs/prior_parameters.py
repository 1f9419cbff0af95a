"""Checks of the parameters of priors: the conditions in PyMC's log densities, and matrices of Gaussians."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytensor.tensor as pt
from pymc import Model, logp
from pymc.distributions.multivariate import ICARRV, LKJCorrRV, _LKJCholeskyCovRV
from pymc.distributions.timeseries import AutoRegressiveRV, RandomWalkRV
from pytensor.compile.builders import infer_shape
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.traversal import ancestors
from pytensor.scalar.basic import GE, GT, LE, LT
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.variable import TensorVariable

from pymc_ep.concurrency import compiled_function
from pymc_ep.engines.prior import perturbed
from pymc_ep.exceptions import InvalidDataError, at_index, first_index
from pymc_ep.graphs.densities import parameter_checks
from pymc_ep.graphs.gaussian_variables import gaussian_of
from pymc_ep.graphs.hyperparameters import initial_values, kind_of
from pymc_ep.graphs.matrix_parameters import InitialValue
from pymc_ep.graphs.queries import evaluated
from pymc_ep.graphs.random_nodes import parameter_positions, parameters_of
from pymc_ep.modes import quick_mode, rewritten

__all__ = ["require_matrices", "require_parameters"]

_MOST_ELEMENTS = 4_000_000
"""Largest number of elements of a computed matrix that is checked, 32 MB. A model with larger ones may not fit into
memory, for which there is another check before the fit."""


def require_parameters(model: Model) -> None:
    """Raise for a free variable with constant parameters outside their range, and where `require_matrices` does."""
    require_matrices(model)
    for rv in model.free_RVs:
        for condition, conditions in _checks(rv):
            holds = rewritten(pt.all([pt.all(graph) for graph in conditions]), "canonicalize", clone=True)
            if isinstance(holds, Constant) and not np.all(holds.data):
                raise InvalidDataError(
                    f"The prior of {rv.name!r}, {kind_of(rv)}, has parameters outside their range: {condition} does "
                    f"not hold{_failing(conditions)}. Correct them."
                )


def require_matrices(model: Model) -> None:
    """Raise for parameters that make no Gaussian distribution, such as a covariance that is not symmetric.

    Parameters that depend on hyperparameters are evaluated at the initial values.
    """
    value = _initial_value_in(model)
    for rv in model.basic_RVs:
        gaussian = gaussian_of(rv)
        if gaussian is not None and gaussian.check is not None:
            dims = model.named_vars_to_dims.get(rv.name)
            gaussian.check(rv.name, value, model.coords.get(dims[0]) if dims else None)


def _checks(rv: TensorVariable) -> Iterator[tuple[str, list[Variable]]]:
    """Yield the checks of parameters in PyMC's log density of a variable: the message of each, and its conditions.

    A variable without a density has none. Covariances are left out: they are checked where they are factorised, with
    the index of the element. PyMC does not check eta of a Cholesky factor, so that this check is added.
    """
    node = rv.owner
    if isinstance(node.op, LKJCorrRV | _LKJCholeskyCovRV):
        yield "eta > 0", [node.inputs[parameter_positions(node)[1]] > 0]
        return
    if node.op.ndim_supp and gaussian_of(rv):
        yield from _checks_of_scales(node)
        return
    try:
        density = logp(rv, rv.type())
    except (NotImplementedError, TypeError, ValueError):
        return
    yield from parameter_checks(density)


def _checks_of_scales(node: Apply) -> Iterator[tuple[str, list[Variable]]]:
    """Yield the checks of the scales of a walk's or autoregression's first values and steps, or of an ICAR prior."""
    if isinstance(node.op, RandomWalkRV):
        for inner, words in zip(node.inputs, ("of its first value", "of its steps")):
            yield from ((f"{condition} {words}", conditions) for condition, conditions in _checks(inner))
    elif isinstance(node.op, AutoRegressiveRV):
        _, sigma, first, *_ = parameters_of(node.outputs[1])
        yield "sigma > 0 of its steps", [sigma > 0]
        yield from ((f"{condition} of its first values", conditions) for condition, conditions in _checks(first))
    elif isinstance(node.op, ICARRV):
        _, sigma, zero_sum_sd = parameters_of(node.outputs[1])
        yield "sigma > 0", [sigma > 0]
        yield "zero_sum_stdev > 0", [zero_sum_sd > 0]


def _initial_value_in(model: Model) -> InitialValue:
    """Return the `InitialValue` of a model, which maps the graph of a parameter to its initial value.

    Only the variables that the parameter depends on are evaluated. Values next to the initial ones show which
    properties hold by the structure of the model: at an initial correlation of zero, even a Cholesky factor is
    symmetric. The value is None for a matrix that is too large, or whose computation fails.
    """

    def value(graph: TensorVariable, near: bool) -> np.ndarray | None:
        if isinstance(graph, Constant):
            return np.asarray(graph.data)
        reached = set(ancestors([graph]))
        values = [model.rvs_to_values[rv] for rv in model.free_RVs if rv in reached]
        try:
            at = initial_values(model, values, random_seed=0) if values else []
            if near:
                at = [perturbed(x) if x.dtype.kind == "f" else x for x in at]
            (by_values,) = model.replace_rvs_by_values([graph])
            (shape,) = infer_shape([by_values], (), ())
            size = pt.prod(pt.stack([*shape, 1]))
            if _function(values, size)(*at) > _MOST_ELEMENTS:
                return None
            return np.asarray(_function(values, by_values)(*at))
        except np.linalg.LinAlgError:
            # A singular matrix is named where the fit factorises it.
            return None

    return value


def _function(inputs: Sequence[Variable], output: TensorVariable) -> Callable[..., np.ndarray]:
    return compiled_function(inputs, output, mode=quick_mode(), on_unused_input="ignore")


def _failing(conditions: list[Variable]) -> str:
    """Return the words " for ..." with the first constant that fails a comparison, and its index; empty without one."""
    for v in ancestors(conditions):
        node: Apply | None = v.owner
        if node is None or not isinstance(node.op, Elemwise) or not isinstance(node.op.scalar_op, GT | GE | LT | LE):
            continue
        if not all(isinstance(leaf, Constant) for leaf in ancestors([v]) if leaf.owner is None):
            continue
        holds, *values = evaluated([v, *node.inputs])
        if holds.all():
            continue
        index = first_index(~holds)
        first, second = (np.broadcast_to(value, holds.shape)[index] for value in values)
        computed, limit = (side.owner is not None and not _is_view(side.owner) for side in node.inputs)
        compared = f"{first} and {second}" if limit or second else f"{first}"
        from_others = ", which follows from other arguments, such as tau, or mu and sigma" if computed else ""
        return f" for {compared}{at_index(index)}{from_others}"
    return ""


def _is_view(node: Apply) -> bool:
    """Whether an operation only adds axes to a constant."""
    return all(v.owner is None for v in node.inputs) and not isinstance(node.op, Elemwise)
