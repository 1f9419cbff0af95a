"""Parameters of priors, checked by the conditions that PyMC's log densities have."""

from collections.abc import Iterator

import numpy as np
import pytensor.tensor as pt
from pymc import Model, logp
from pymc.distributions.multivariate import LKJCorrRV, _LKJCholeskyCovRV
from pymc.logprob.utils import CheckParameterValue
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.rewriting.utils import rewrite_graph
from pytensor.graph.traversal import ancestors
from pytensor.scalar.basic import GE, GT, LE, LT
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.variable import TensorVariable

from pymc_ep.exceptions import InvalidDataError, at_index, first_index
from pymc_ep.graphs.gaussian_variables import gaussian_of
from pymc_ep.graphs.hyperparameters import kind_of
from pymc_ep.graphs.queries import evaluated
from pymc_ep.graphs.random_nodes import parameter_positions

__all__ = ["require_parameters"]


def require_parameters(model: Model) -> None:
    """Raise for a free variable with constant parameters outside their range."""
    for rv in model.free_RVs:
        for condition, conditions in _checks(rv):
            holds = rewrite_graph(pt.all([pt.all(one) for one in conditions]), clone=True)
            if isinstance(holds, Constant) and not np.all(holds.data):
                raise InvalidDataError(
                    f"The prior of {rv.name!r}, {kind_of(rv)}, has parameters outside their range: {condition} does "
                    f"not hold{_failing(conditions)}. Correct them."
                )


def _checks(rv: TensorVariable) -> Iterator[tuple[str, list[Variable]]]:
    """Yield the checks of the parameters in PyMC's log density of a variable: in words, and as conditions.

    Covariances are checked where they are factorised, and name the element. A variable without a density has none.
    PyMC checks no eta of a Cholesky factor.
    """
    node = rv.owner
    if isinstance(node.op, LKJCorrRV | _LKJCholeskyCovRV):
        yield "eta > 0", [node.inputs[parameter_positions(node)[1]] > 0]
        return
    if node.op.ndim_supp and gaussian_of(rv):
        return
    try:
        density = logp(rv, rv.type())
    except (NotImplementedError, TypeError, ValueError):
        return
    for v in ancestors([density]):
        if v.owner is not None and isinstance(v.owner.op, CheckParameterValue):
            yield v.owner.op.msg, v.owner.inputs[1:]


def _failing(conditions: list[Variable]) -> str:
    """Return the words ", for ..." with the first constant that fails a comparison, and its index."""
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
        computed, limit = (part.owner is not None and not _is_view(part.owner) for part in node.inputs)
        of = f"{first} and {second}" if limit or second else f"{first}"
        from_others = ", which follows from other arguments, such as tau, or mu and sigma" if computed else ""
        return f" for {of}{at_index(index)}{from_others}"
    return ""


def _is_view(node: Apply) -> bool:
    """Whether an operation only adds axes to a constant."""
    return all(v.owner is None for v in node.inputs) and not isinstance(node.op, Elemwise)
