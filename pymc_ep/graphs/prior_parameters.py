"""Parameters of priors, checked by the conditions that PyMC's log densities have."""

from collections.abc import Iterator

import numpy as np
import pytensor.tensor as pt
from pymc import Model, logp
from pymc.logprob.utils import CheckParameterValue
from pytensor.graph.basic import Apply
from pytensor.graph.traversal import ancestors
from pytensor.tensor.variable import TensorVariable

from pymc_ep.exceptions import InvalidDataError
from pymc_ep.graphs.hyperparameters import kind_of
from pymc_ep.graphs.queries import depends_on, evaluated

__all__ = ["require_parameters"]


def require_parameters(model: Model) -> None:
    """Raise for a free variable with parameters outside their range that depend on no other variable."""
    checks = [(rv, node) for rv in model.free_RVs for node in _checks(rv)]
    checks = [(rv, node) for rv, node in checks if not depends_on(node.inputs[1:], model.basic_RVs)]
    held = evaluated([pt.all([pt.all(condition) for condition in node.inputs[1:]]) for _, node in checks])
    for (rv, node), holds in zip(checks, held):
        if not np.all(holds):
            raise InvalidDataError(
                f"The prior of {rv.name!r}, {kind_of(rv)}, has parameters outside their range: {node.op.msg} does not "
                f"hold. Correct them."
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
