"""Parameters of priors, checked by the conditions that PyMC's log densities have."""

from collections.abc import Iterator

import numpy as np
import pytensor.tensor as pt
from pymc import Model, logp
from pymc.logprob.utils import CheckParameterValue
from pytensor.graph.basic import Apply, Constant
from pytensor.graph.rewriting.utils import rewrite_graph
from pytensor.graph.traversal import ancestors
from pytensor.tensor.variable import TensorVariable

from pymc_ep.exceptions import InvalidDataError
from pymc_ep.graphs.hyperparameters import kind_of

__all__ = ["require_parameters"]


def require_parameters(model: Model) -> None:
    """Raise for a free variable with constant parameters outside their range."""
    for rv in model.free_RVs:
        for node in _checks(rv):
            holds = pt.all([pt.all(condition) for condition in node.inputs[1:]])
            found = rewrite_graph(holds)
            if isinstance(found, Constant) and not np.all(found.data):
                raise InvalidDataError(
                    f"The prior of {rv.name!r}, {kind_of(rv)}, has parameters outside their range: {node.op.msg} does "
                    f"not hold. Correct them."
                )


def _checks(rv: TensorVariable) -> Iterator[Apply]:
    """Yield the nodes of PyMC's log density of a variable that check its parameters.

    Covariances are checked where they are factorised, and name the element. A variable without a density has none.
    """
    if rv.owner.op.ndim_supp:
        return
    try:
        density = logp(rv, rv.type())
    except (NotImplementedError, TypeError, ValueError):
        return
    for v in ancestors([density]):
        if v.owner is not None and isinstance(v.owner.op, CheckParameterValue):
            yield v.owner
