"""Parameters of distributions, checked by the conditions that PyMC's log densities have."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytensor.tensor as pt
from pymc import Model, logp
from pymc.logprob.utils import CheckParameterValue
from pytensor.compile.builders import infer_shape
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.rewriting.utils import rewrite_graph
from pytensor.graph.traversal import ancestors
from pytensor.tensor.variable import TensorVariable

from pymc_ep.compat import quick_mode
from pymc_ep.concurrency import compiled_function
from pymc_ep.engines.prior import perturbed
from pymc_ep.exceptions import InvalidDataError
from pymc_ep.graphs.gaussian_variables import gaussian_of
from pymc_ep.graphs.hyperparameters import initial_values, kind_of
from pymc_ep.graphs.matrix_parameters import InitialValue

__all__ = ["require_matrices", "require_parameters"]

_MOST_ELEMENTS = 4_000_000
"""Most elements of a computed matrix that is checked, 32 MB: a model of larger ones may not fit into memory, which is
told before the fit."""


def require_parameters(model: Model) -> None:
    """Raise for a free variable with constant parameters outside their range, and as `require_matrices` does."""
    require_matrices(model)
    for rv in model.free_RVs:
        for node in _checks(rv):
            holds = pt.all([pt.all(condition) for condition in node.inputs[1:]])
            found = rewrite_graph(holds)
            if isinstance(found, Constant) and not np.all(found.data):
                raise InvalidDataError(
                    f"The prior of {rv.name!r}, {kind_of(rv)}, has parameters outside their range: {node.op.msg} does "
                    f"not hold. Correct them."
                )


def require_matrices(model: Model) -> None:
    """Raise for parameters that make no Gaussian, as a covariance that is not symmetric.

    Those that depend on hyperparameters are taken at the initial values. Nothing is drawn before.
    """
    value = _initial_value_in(model)
    for rv in model.basic_RVs:
        gaussian = gaussian_of(rv)
        if gaussian is not None and gaussian.check is not None:
            gaussian.check(rv.name, value)


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


def _initial_value_in(model: Model) -> InitialValue:
    """Return the function from a parameter of one of the model's variables to its initial value.

    Only the variables that the parameter depends on are formed. Values next to the initial ones show what holds by the
    structure of the model: under an initial correlation of zero, a Cholesky factor is symmetric.
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
