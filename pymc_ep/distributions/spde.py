"""Matern fields on a mesh of triangles: solutions of a stochastic partial differential equation."""

import warnings
from functools import partial
from typing import Any

import numpy as np
import pytensor.tensor as pt
import scipy.sparse

from pymc_ep.distributions.gaussian_markov import GaussianMarkov, require_between
from pymc_ep.distributions.log_determinant import LogDeterminant
from pymc_ep.exceptions import InvalidDataError
from pymc_ep.numerics.meshes import Mesh
from pymc_ep.numerics.sparse.matrix_sum import MatrixSum

__all__ = ["SPDE"]

_FINEST = 1.0
"""Least range without a warning, in median lengths of the mesh's edges. At this range the variance is 14% too small at
nodes, and 63% too small between nodes."""
_WIDEST = 10.0
"""Largest range without a warning, in extents of the mesh. At a larger one the field is nearly constant, or range and
coordinates are in different units."""


class SPDE:
    r"""Matern field in the plane, by its values at the nodes of a mesh [1]_.

    .. math:: (\kappa^2 - \Delta)\, \tau f = \mathcal{W}, \qquad \kappa = \sqrt{8} / \text{range}, \qquad
              \sigma^2 = 1 / (4 \pi \kappa^2 \tau^2)

    with white noise W. Its covariance is the Matern one of smoothness 1: at a distance of the range the correlation is
    0.14. With C the diagonal matrix of the nodes' areas and G the mesh's `stiffness`, the precision of the values is
    ``tau^2 (kappa^4 C + 2 kappa^2 G + G C^-1 G)``. Between nodes the field is linear.

    Parameters
    ----------
    name : str
    mesh : pymc_ep.meshes.Mesh
    range : tensor_like, ()
        Range in units of the coordinates, such as ``pmep.priors.pc_range("range", r0=10, alpha=0.05)``. At a range of
        4, 8 and 16 edges of the mesh the variance at nodes is 15, 6 and 2% too large, and in the centres of triangles
        12, 4 and 1% too small. The rim of the mesh, beyond the data, should be as wide as the range.
    sigma : tensor_like, ()
        Standard deviation of the field.
    dims : str, optional
        Dim of the nodes.

    Returns
    -------
    TensorVariable, (n,)
        Values at the nodes, a `GaussianMarkov`. Its method ``at(points)`` gives values at points, (m, 2), of the mesh.

    Raises
    ------
    InvalidDataError
        Where `mesh` is no `Mesh`, and by ``at`` for a point outside of the mesh; the message names the point.

    References
    ----------
    .. [1] F. Lindgren, H. Rue and J. Lindstrom (2011), An explicit link between Gaussian fields and Gaussian Markov
       random fields: the stochastic partial differential equation approach, JRSS B 73.

    Examples
    --------
    >>> mesh = pmep.meshes.around(points, longest=0.05)
    >>> with pm.Model():
    ...     range_ = pmep.priors.pc_range("range", r0=0.1, alpha=0.05)
    ...     sigma = pmep.priors.pc_sigma("sigma", u=1, alpha=0.05)
    ...     f = pmep.SPDE("f", mesh=mesh, range=range_, sigma=sigma)
    ...     pm.Poisson("y", pm.math.exp(f.at(points)), observed=counts)
    """

    def __new__(cls, name: str, mesh: Mesh, range: Any, sigma: Any, dims: Any = None) -> Any:
        """Add the values at the nodes to the model."""
        if not isinstance(mesh, Mesh):
            raise InvalidDataError(
                f"mesh= of {name!r} is {type(mesh).__name__}; give pymc_ep.meshes.around(points, longest=...), or "
                f"pymc_ep.meshes.Mesh(vertices, triangles)."
            )
        range, sigma = (pt.as_tensor_variable(parameter) for parameter in (range, sigma))
        for what, parameter in (("range", range), ("sigma", sigma)):
            require_between(name, what, parameter, np.inf, f"Give it a prior, such as pmep.priors.pc_{what}.")
        range, sigma = range.astype("float64"), sigma.astype("float64")
        areas, g = mesh.areas, mesh.stiffness
        c = scipy.sparse.diags_array(areas)
        kappa2 = 8.0 / range**2
        tau2 = 1.0 / (4.0 * np.pi * kappa2 * sigma**2)
        # |Q| = tau^2n |K|^2 / |C| with K = kappa^2 C + G, whose factor is smaller, and exact where Q's is not.
        log_det_k, _ = LogDeterminant(MatrixSum([c, g]))(pt.stack([kappa2, 1.0]))
        log_det = len(mesh) * pt.log(tau2) + 2.0 * log_det_k - np.log(areas).sum()
        terms = [(tau2 * kappa2**2, c), (2.0 * tau2 * kappa2, g), (tau2, g @ scipy.sparse.diags_array(1.0 / areas) @ g)]
        field = GaussianMarkov(name, terms, log_det=log_det, dims=dims, check=partial(_check_range, mesh))
        field.at = partial(_at, field, mesh)
        return field


def _check_range(mesh: Mesh, name: str, coefficients: np.ndarray) -> None:
    """Warn of a range at the start of a fit that is shorter than the mesh's edges, or far longer than its extent."""
    # range = sqrt(8) / kappa, from c = (tau^2 kappa^4, 2 tau^2 kappa^2, tau^2).
    length = np.sqrt(8.0) * (coefficients[2] / coefficients[0]) ** 0.25
    if length < _FINEST * mesh.edge:
        what, cure = f"is below the edges of its mesh, {mesh.edge:.4g}", "Make the mesh finer, by longest="
    elif length > _WIDEST * mesh.extent:
        what = f"is over {_WIDEST:g} times the extent of its mesh, {mesh.extent:.4g}"
        cure = "Give range and coordinates in one unit of length: project degrees first"
    else:
        return
    warnings.warn(
        f"The range of {name!r} starts at {length:.4g}, which {what}. {cure}, or give the range another prior.",
        stacklevel=2,
    )


def _at(field: Any, mesh: Mesh, points: Any) -> Any:
    """Return the graph of a field's values, (m,), at points, (m, 2): linear in each triangle of the mesh."""
    try:
        nodes, weights = mesh.locate(points)
    except InvalidDataError as error:
        raise InvalidDataError(f"{field.name!r}: {error}") from None
    # f(x) = sum_i w_i(x) f_i over the corners of a triangle, with barycentric coordinates w.
    return (weights * field[pt.constant(nodes)]).sum(axis=1)
