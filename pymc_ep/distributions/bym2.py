"""Areas with a structured and an independent part: the model of Besag, York and Mollie, scaled."""

from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import scipy.sparse
from pymc.model import modelcontext
from scipy.sparse.csgraph import connected_components

from pymc_ep.distributions.gaussian_markov import GaussianMarkov, require_between
from pymc_ep.exceptions import InvalidDataError, labelled
from pymc_ep.numerics.sparse.matrix_sum import MatrixSum

__all__ = ["BYM2", "require_weights", "scaled_intrinsic"]


class BYM2:
    r"""Effects of areas, with a share rho of their variance structured by neighbours [1]_.

    .. math:: x = \sigma \bigl(\sqrt{\rho}\, u + \sqrt{1 - \rho}\, v\bigr), \qquad v \sim N(0, I)

    u is the intrinsic autoregression: differences of neighbours are normal, and the values of each connected group sum
    to zero. It is scaled, in each group, to a generalised variance (the geometric mean of the variances) of one, so
    that sigma is the typical standard deviation of x for any map. An island, an area without neighbours, has an
    independent standard normal for u [2]_.

    Parameters
    ----------
    name : str
        Name of x; u and v are called ``<name>_structured`` and ``<name>_unstructured``.
    W : sparse matrix or array, (n, n)
        Symmetric weights of neighbours, such as ones; zero for others. `libpysal` has it as ``w.sparse``.
    sigma : tensor_like, ()
        Typical standard deviation, positive, such as ``pmep.priors.pc_sigma("sigma", u=1, alpha=0.01)``.
    rho : tensor_like, ()
        Share of the variance that is structured, between 0 and 1, such as ``pm.Beta("rho", 1, 1)``.
    dims : str, optional

    Returns
    -------
    TensorVariable, (n,)
        x, a Deterministic.

    Raises
    ------
    InvalidDataError
        For weights that are not symmetric, negative, not finite or of an area to itself, and for constants sigma and
        rho out of their range; the message names the areas.

    References
    ----------
    .. [1] A. Riebler, S. H. Sorbye, D. Simpson and H. Rue (2016), An intuitive Bayesian spatial model for disease
       mapping that accounts for scaling, Statistical Methods in Medical Research 25.
    .. [2] A. Freni-Sterrantino, M. Ventrucci and H. Rue (2018), A note on intrinsic conditional autoregressive models
       for disconnected graphs, Spatial and Spatio-temporal Epidemiology 26.

    Examples
    --------
    >>> with pm.Model(coords={"area": names}):
    ...     sigma, rho = pmep.priors.pc_sigma("sigma", u=1, alpha=0.01), pm.Beta("rho", 1, 1)
    ...     risk = pmep.BYM2("risk", W=W, sigma=sigma, rho=rho, dims="area")
    """

    def __new__(cls, name: str, W: Any, sigma: Any, rho: Any, dims: Any = None) -> Any:
        """Add the three variables to the model."""
        labels = None if dims is None else modelcontext(None).coords.get(dims if isinstance(dims, str) else dims[-1])
        weights = scipy.sparse.csr_array(W, dtype=float)
        require_weights("BYM2", name, weights, labels)
        sigma, rho = (pt.as_tensor_variable(parameter) for parameter in (sigma, rho))
        require_between(name, "sigma", sigma, np.inf, "Give it a prior, such as pmep.priors.pc_sigma.")
        require_between(
            name,
            "rho",
            rho,
            1.0,
            "Give it a prior, such as pm.Beta. Without neighbours it is pm.Normal, and with nothing else "
            "pmep.BYM2 at a rho near 1.",
        )
        precision, null_space = scaled_intrinsic(weights)
        u = GaussianMarkov(f"{name}_structured", precision, null_space=null_space, dims=dims)
        keywords = {"shape": weights.shape[0]} if dims is None else {"dims": dims}
        v = pm.Normal(f"{name}_unstructured", 0.0, 1.0, **keywords)
        return pm.Deterministic(name, sigma * (pt.sqrt(rho) * u + pt.sqrt(1.0 - rho) * v), dims=dims)


def scaled_intrinsic(weights: scipy.sparse.csr_array) -> tuple[scipy.sparse.csr_array, np.ndarray | None]:
    """Return the scaled precision of the structured part, (n, n), and its null space, (n, k).

    There are k connected groups of two or more areas; without any, the null space is None. The geometric mean of the
    variances of each group is one. An island has a precision of one.
    """
    laplacian = scipy.sparse.diags_array(weights.sum(axis=1)) - weights
    _, group = connected_components(weights, directed=False)
    island = np.bincount(group)[group] == 1
    # R = D - W, plus one for each island.
    unscaled = laplacian + scipy.sparse.diags_array(island.astype(float))
    joined = np.unique(group[~island])
    if not len(joined):
        return scipy.sparse.csr_array(unscaled), None
    null_space = (group[:, None] == joined).astype(float)
    # g R has variances of geometric mean one, with g the geometric mean of the diagonal of R^+, in each group.
    logs = np.log(MatrixSum([unscaled], null_space).variances(np.ones(1)))
    means = np.bincount(group, logs) / np.bincount(group)
    # A symmetric matrix of one block a group has rows and columns of one scale.
    root = scipy.sparse.diags_array(np.exp(0.5 * np.where(island, 0.0, means[group])))
    return scipy.sparse.csr_array(root @ unscaled @ root), null_space


def require_weights(
    prior: str, name: str, weights: scipy.sparse.csr_array, labels: Any, *, of_itself: bool = False
) -> None:
    """Raise InvalidDataError for weights that are not square, not finite, negative, or not symmetric by PyMC's test.

    Weights of an area to itself are allowed if `of_itself`.
    """
    if weights.shape[0] != weights.shape[1]:
        raise InvalidDataError(
            f"The {prior} prior of {name!r} has W of shape {weights.shape}; give a row and a column of each area."
        )
    entries = weights.tocoo()
    wrong = np.flatnonzero(~(np.isfinite(entries.data) & (entries.data >= 0.0)))
    if wrong.size:
        i, j = int(entries.row[wrong[0]]), int(entries.col[wrong[0]])
        raise InvalidDataError(
            f"The {prior} prior of {name!r} has the weight {entries.data[wrong[0]]:.6g} in W between areas "
            f"{labelled(i, labels)} and {labelled(j, labels)}. Weights of neighbours are zero or positive: correct "
            f"it."
        )
    # As np.isclose, which has no form for sparse arrays.
    row, column = ((abs(weights - weights.T) - 1e-5 * abs(weights.T)) > 1e-8).nonzero()
    if len(row):
        i, j = min(zip(row.tolist(), column.tolist()))
        cure = "Give the adjacency matrix, in which areas i and j are neighbours of each other, or (W + W.T) / 2."
        if np.allclose(weights.sum(axis=1), 1.0):
            cure = (
                "Its rows sum to one, as row-standardised weights do: give the adjacency matrix of zeros and ones, of "
                "libpysal by w.transform = 'b' before w.full()."
            )
        raise InvalidDataError(
            f"The {prior} prior of {name!r} needs a symmetric W, but W is {weights[i, j]:.6g} at index ({i}, {j}) and "
            f"{weights[j, i]:.6g} at ({j}, {i}), areas {labelled(i, labels)} and {labelled(j, labels)}. {cure}"
        )
    if not of_itself and (loops := np.flatnonzero(weights.diagonal())).size:
        raise InvalidDataError(
            f"The {prior} prior of {name!r} has area {labelled(int(loops[0]), labels)} as its own neighbour in W; set "
            f"the diagonal to zero."
        )
