"""Checks that areal priors, CAR and ICAR, have a Gaussian's precision matrix, and quantities of graphs of areas."""

import numpy as np
from pytensor.sparse.type import SparseTensorType
from pytensor.tensor.variable import TensorVariable
from scipy.sparse import csr_array, diags_array, tril
from scipy.sparse.csgraph import connected_components
from scipy.sparse.linalg import splu

from pymc_ep.distributions.bym2 import require_weights
from pymc_ep.exceptions import InvalidDataError, UnsupportedModelError, labelled
from pymc_ep.graphs.matrix_parameters import InitialValue, Labels, constant_value, depends_on_unknowns

__all__ = ["laplacian_of", "log_pseudo_determinant", "require_car", "require_connected", "sparse_value"]


def require_car(
    name: str,
    adjacency: TensorVariable,
    alpha: TensorVariable,
    tau: TensorVariable,
    value: InitialValue,
    labels: Labels = None,
) -> None:
    """Raise where tau (D - alpha W) is no precision matrix; D is the diagonal of the column sums of W, the adjacency.

    W, (n, n), must be symmetric with weights that are not negative, and each area must have a neighbour. alpha must lie
    between -1 and 1, and tau above 0.
    """
    weights = sparse_value(adjacency, value)
    if weights is not None:
        _require_weights(name, weights, labels)
    for parameter, symbol, low, high in ((alpha, "alpha", -1.0, 1.0), (tau, "tau", 0.0, np.inf)):
        number = value(parameter, False)
        if number is None or low < number.item() < high:
            continue
        start = " at the initial values" if depends_on_unknowns(parameter) else ""
        cure = "Give it a value there, or a prior of such values."
        if symbol == "alpha" and number.item() == 1.0:
            cure = "That limit is pm.ICAR, whose level is fixed by a sum of zero; or give alpha a prior, as pm.Beta."
        raise InvalidDataError(
            f"The CAR prior of {name!r} has {symbol} = {number.item():.6g}{start}, where it must be above {low:g}"
            f"{'' if high == np.inf else f' and below {high:g}'}. {cure}"
        )


def sparse_value(adjacency: TensorVariable, value: InitialValue = constant_value) -> csr_array | None:
    """Return the value of an adjacency matrix, dense or sparse in its graph, as a sparse array, (n, n).

    None where `value` returns None for the graph.
    """
    matrix = value(adjacency, False)
    if matrix is None:
        return None
    if isinstance(adjacency.type, SparseTensorType):
        return csr_array(matrix.item() if isinstance(matrix, np.ndarray) else matrix, dtype=float)
    return csr_array(matrix.reshape(matrix.shape[-2:]).astype(float))


def _require_weights(name: str, weights: csr_array, labels: Labels) -> None:
    """Raise for weights that are not symmetric, or negative, and for an area without neighbours.

    For all other weights D - alpha W is diagonally dominant, and so positive definite.
    """
    require_weights("CAR", name, weights, labels, of_itself=True)
    alone = np.flatnonzero(weights.sum(axis=0) == 0)
    if alone.size:
        named = labelled(int(alone[0]), labels)
        raise UnsupportedModelError(
            f"{name!r} has a CAR prior in which area {named} has no neighbour (of {alone.size} such areas), so that "
            f"its value has no proper distribution. Join it to its nearest area in W, or give such areas a pm.Normal "
            f"effect of their own."
        )


def require_connected(name: str, adjacency: TensorVariable, value: InitialValue, labels: Labels = None) -> None:
    """Raise where areas form unconnected groups: differences of neighbours do not determine the level of each group."""
    weights = sparse_value(adjacency, value)
    if weights is None:
        return
    # PyMC reads the ones of the lower triangle alone.
    count, component = connected_components(tril(weights == 1.0), directed=False)
    if count > 1:
        # The smallest group is named: of an island and a mainland, the island.
        sizes = np.bincount(component)
        apart = labelled(int(np.flatnonzero(component == sizes.argmin())[0]), labels)
        most = labelled(int(np.flatnonzero(component == sizes.argmax())[0]), labels)
        raise UnsupportedModelError(
            f"{name!r} has an ICAR prior on {count} unconnected groups of areas (area {apart} is not connected to area "
            f"{most}), so that only the sum of their levels is determined. Join them in W, or use a CAR prior with "
            f"alpha < 1 within each."
        )


def laplacian_of(weights: csr_array) -> csr_array:
    """Return the Laplacian R, (n, n), of a graph of areas.

    Its edges are the entries equal to 1 in the lower triangle of `weights`, as PyMC reads them for an ICAR prior.
    """
    below = tril(weights == 1.0, -1).astype(float)
    edges = (below + below.T).tocsr()
    return (diags_array(edges.sum(axis=0)) - edges).tocsc()


def log_pseudo_determinant(laplacian: csr_array) -> float:
    """Return the log of the product of the nonzero eigenvalues of a Laplacian, (n, n), of a connected graph.

    The product is n times any principal minor of n - 1 rows (Kirchhoff 1847).
    """
    n = laplacian.shape[0]
    if n == 1:
        return 0.0
    # log n + log |R_11|, and |R_11| = prod_i |U_ii| of R_11 = L U with unit L and permutations.
    factor = splu(laplacian[1:, 1:].tocsc(), permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0.0)
    return float(np.log(n) + np.log(np.abs(factor.U.diagonal())).sum())
