"""Checks of adjacency matrices: conditions under which the precision matrix of an areal prior is nonsingular."""

import numpy as np
from pytensor.graph.traversal import explicit_graph_inputs
from pytensor.tensor.variable import TensorVariable
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

from pymc_ep.concurrency import compiled_function
from pymc_ep.exceptions import UnsupportedModelError

__all__ = ["require_connected", "require_neighbours"]


def require_neighbours(adjacency: TensorVariable, name: str) -> None:
    """Raise for an area without neighbours: its row of the precision matrix of a CAR prior is zero."""
    weights = _value(adjacency)
    if weights is None:
        return
    alone = np.flatnonzero(weights.sum(axis=0) == 0)
    if alone.size:
        raise UnsupportedModelError(
            f"{name!r} has a CAR prior in which area {alone[0]} has no neighbour (of {alone.size} such areas), so that "
            f"its value has no proper distribution. Join it to its nearest area in W, or give such areas a pm.Normal "
            f"effect of their own."
        )


def require_connected(adjacency: TensorVariable, name: str) -> None:
    """Raise for a graph of several components: differences of neighbours do not determine the level of each."""
    weights = _value(adjacency)
    if weights is None:
        return
    count, component = connected_components(csr_array(weights), directed=False)
    if count > 1:
        other = int(np.flatnonzero(component != component[0])[0])
        raise UnsupportedModelError(
            f"{name!r} has an ICAR prior on {count} unconnected groups of areas (area {other} is not connected to area "
            f"0), so that only the sum of their levels is determined. Join them in W, or use a CAR prior with "
            f"alpha < 1 within each."
        )


def _value(adjacency: TensorVariable) -> np.ndarray | None:
    """Evaluate an adjacency matrix; None where it depends on other variables of the model."""
    if set(explicit_graph_inputs([adjacency])):
        return None
    return np.asarray(compiled_function([], adjacency, mode="FAST_COMPILE")())
