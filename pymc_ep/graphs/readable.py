"""What no recogniser reads, refused before any of them looks at a model."""

from pymc import Model
from pymc.variational.minibatch_rv import MinibatchRandomVariable
from pytensor.graph.traversal import ancestors
from pytensor.tensor.type import TensorType

from pymc_ep.exceptions import UnsupportedModelError
from pymc_ep.graphs.random_nodes import is_random

__all__ = ["require_readable"]


def require_readable(model: Model) -> None:
    """Raise for variables in single precision or with named axes, and for observations in batches."""
    for rv in model.basic_RVs:
        if not isinstance(rv.type, TensorType):
            raise UnsupportedModelError(
                f"{rv.name!r} is a variable of pymc.dims, whose axes have names within the graph; write it as "
                f"pm.Normal({rv.name!r}, ..., dims=(...)), and the rest of the model in the same way."
            )
    if single := [rv.name for rv in model.free_RVs if rv.dtype == "float32"]:
        raise UnsupportedModelError(
            f"{single[0]!r} is in single precision, and what is fitted here needs double: build the model under "
            f"pytensor.config.floatX = 'float64'."
        )
    for rv in model.observed_RVs:
        drawn = any(is_random(v) for v in ancestors([model.rvs_to_values[rv]]))
        if drawn or isinstance(rv.owner.op, MinibatchRandomVariable):
            raise UnsupportedModelError(
                f"{rv.name!r} is observed in batches (pm.Minibatch, total_size=), and a fit takes all observations at "
                f"once: give it the whole data, and no total_size."
            )
