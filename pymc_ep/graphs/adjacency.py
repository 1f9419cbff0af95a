"""Checks of areal priors: conditions under which their precision matrix is that of a Gaussian."""

import numpy as np
from pytensor.tensor.variable import TensorVariable
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

from pymc_ep.exceptions import InvalidDataError, UnsupportedModelError
from pymc_ep.graphs.matrix_parameters import InitialValue, depends_on_unknowns

__all__ = ["require_car", "require_connected"]


def require_car(
    name: str, adjacency: TensorVariable, alpha: TensorVariable, tau: TensorVariable, value: InitialValue
) -> None:
    """Raise where tau (D - alpha W) is no precision: W, (n, n), must be symmetric with neighbours for each area."""
    weights = value(adjacency, False)
    if weights is not None:
        _require_weights(name, weights)
    for parameter, symbol, low, high in ((alpha, "alpha", -1.0, 1.0), (tau, "tau", 0.0, np.inf)):
        found = value(parameter, False)
        if found is None or low < found.item() < high:
            continue
        start = " at the initial values" if depends_on_unknowns(parameter) else ""
        cure = "Give it a value there, or a prior of such values."
        if symbol == "alpha" and found.item() == 1.0:
            cure = "That limit is pm.ICAR, whose level is fixed by a sum of zero; or give alpha a prior, as pm.Beta."
        raise InvalidDataError(
            f"The CAR prior of {name!r} has {symbol} = {found.item():.6g}{start}, where it must be above {low:g}"
            f"{'' if high == np.inf else f' and below {high:g}'}. {cure}"
        )


def _require_weights(name: str, weights: np.ndarray) -> None:
    """Raise for weights that are not symmetric by PyMC's test, have a negative sum, or leave an area alone."""
    unequal = np.argwhere(~np.isclose(weights, weights.T))
    if len(unequal):
        i, j = map(int, unequal[0])
        cure = "Give the adjacency matrix, in which areas i and j are neighbours of each other, or (W + W.T) / 2."
        if np.allclose(weights.sum(axis=1), 1.0):
            cure = (
                "Its rows sum to one, as row-standardised weights do: give the adjacency matrix of zeros and ones, of "
                "libpysal by w.transform = 'b' before w.full()."
            )
        raise InvalidDataError(
            f"The CAR prior of {name!r} needs a symmetric W, but W is {weights[i, j]:.6g} at index ({i}, {j}) and "
            f"{weights[j, i]:.6g} at ({j}, {i}). {cure}"
        )
    neighbours = weights.sum(axis=0)
    if (negative := np.flatnonzero(neighbours < 0)).size:
        raise InvalidDataError(
            f"The CAR prior of {name!r} has W with weights of sum {neighbours[negative[0]]:.6g} in row {negative[0]}. "
            f"Weights of neighbours are zero or positive: correct them."
        )
    alone = np.flatnonzero(neighbours == 0)
    if alone.size:
        raise UnsupportedModelError(
            f"{name!r} has a CAR prior in which area {alone[0]} has no neighbour (of {alone.size} such areas), so that "
            f"its value has no proper distribution. Join it to its nearest area in W, or give such areas a pm.Normal "
            f"effect of their own."
        )


def require_connected(name: str, adjacency: TensorVariable, value: InitialValue) -> None:
    """Raise for a graph of several components: differences of neighbours do not determine the level of each."""
    weights = value(adjacency, False)
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
