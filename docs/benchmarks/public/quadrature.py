"""The posterior of a model of one or two unknowns by quadrature, as draws from its grid."""

import itertools
from collections.abc import Callable

import numpy as np
import pymc as pm
import xarray as xr
from pytensor.tensor import TensorVariable
from scipy.optimize import minimize

__all__ = ["quadrature_posterior"]

REACH = 17.0
"""Range of u in theta = centre + scale sinh(u): 1e7 scales, beyond which a Cauchy tail has a ten-millionth."""
STEPS = 601
"""Points of u in each direction, 0.06 apart."""
FAR = -25.0
"""Log prior density over that at the initial point below which PyMC's likelihoods may lose their digits."""
DRAWS, CHAINS = 40_000, 4


def quadrature_posterior(model: pm.Model) -> xr.Dataset:
    """Return draws of all free variables: systematic ones among the cells of a grid, uniform in u within each.

    The density of PyMC's unconstrained theta, times the Jacobian scale cosh(u) of each theta = centre + scale sinh(u),
    is summed over a grid of u. Far out u is the logarithm of theta, in which a power of theta falls exponentially.
    """
    values = model.value_vars
    point = model.initial_point()
    size = sum(np.size(point[v.name]) for v in values)
    if size > 2 or any(np.ndim(point[v.name]) for v in values):
        raise ValueError("Quadrature is for one or two single unknowns.")
    log_prior, log_likelihood = (model.compile_logp(vars=of) for of in (model.free_RVs, model.observed_RVs))
    constrained = model.compile_fn(model.replace_rvs_by_values(model.free_RVs), inputs=values, point_fn=True)

    least = log_prior(point) + FAR

    def log_p(theta: np.ndarray) -> np.ndarray:
        found = np.array([float(log_prior(_point(values, row))) for row in theta])
        near = found > least
        found[near] += [float(log_likelihood(_point(values, row))) for row in theta[near]]
        return np.where(near & np.isfinite(found), found, -np.inf)

    centre, scale = _centre_and_scale(log_p, size)
    u, step = np.linspace(-REACH, REACH, STEPS, retstep=True)
    grid = np.array(list(itertools.product(u, repeat=size)))
    weight = log_p(centre + scale * np.sinh(grid)) + np.log(np.cosh(grid)).sum(axis=1)
    weight = np.exp(weight - weight.max())
    rng = np.random.default_rng(0)
    cell = np.searchsorted(np.cumsum(weight) / weight.sum(), (np.arange(DRAWS) + rng.uniform()) / DRAWS)
    drawn = grid[rng.permutation(cell)] + step * rng.uniform(-0.5, 0.5, (DRAWS, size))
    found = np.array([constrained(_point(values, row)) for row in centre + scale * np.sinh(drawn)]).T
    return xr.Dataset(
        {v.name: (("chain", "draw"), f.reshape(CHAINS, -1)) for v, f in zip(model.free_RVs, found, strict=True)}
    )


def _point(values: list[TensorVariable], theta: np.ndarray) -> dict[str, np.ndarray]:
    return {v.name: np.array(x) for v, x in zip(values, theta, strict=True)}


def _centre_and_scale(log_p: Callable[[np.ndarray], np.ndarray], size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the mode, and sds of the curvature there along each axis."""
    mode = minimize(lambda x: -log_p(x[None, :])[0], np.zeros(size), method="Nelder-Mead").x
    steps = 1e-2 * np.eye(size)
    bend = [2 * log_p(mode[None])[0] - log_p((mode + d)[None])[0] - log_p((mode - d)[None])[0] for d in steps]
    return mode, 1e-2 / np.sqrt(np.maximum(bend, 1e-6))
