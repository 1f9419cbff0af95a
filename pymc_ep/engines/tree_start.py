"""Where a double loop starts whose coefficients are mixtures on trees: at a fit of these to what the data suggest.

Both states may have the same prior, and then the bound has a saddle where they are the same; and it has several
maxima, so that the start decides among them (Ko and Seeger 2012). The unknowns start at a smooth interpolation of the
data, under Gaussian potentials on the coefficients whose scales double from level to level, as those of pictures do.
Its coefficients are given to the states by size, then all that the mixtures depend on is raised to the maximum of
their likelihood and its own prior.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.optimize

from pymc_ep.engines.bounded_sites import BoundedSites
from pymc_ep.engines.dsb import Start, variances_alone
from pymc_ep.engines.inner_loop import InnerProblem, minimise
from pymc_ep.engines.precision_solvers import PrecisionSolver
from pymc_ep.sites.bounds import Bounded
from pymc_ep.sites.tree_mixture import CompiledTreeMixture

__all__ = ["fitted_start", "has_trees"]

_RIDGE = 0.01
"""Precision of the Gaussian potentials on the finest coefficients, relative to that of the data."""
_HIGH = 0.2
"""Part of the coefficients of a level that is given to the high state at first."""
_SPREAD = 0.01
"""Variance of a coefficient, relative to their mean square in the level, at which bounds are evaluated: potentials may
be infinitely sharp, and coefficients exactly zero."""
_ITERATIONS = 30
"""Iterations of L-BFGS on all that the mixtures depend on."""

Value = Callable[[CompiledTreeMixture, slice, tuple[Any, ...]], tuple[float, Any]]
"""Of a mixture, its place among all sites, and the means, variances and parameters there: a value and its derivatives
in the parameters."""


def has_trees(sites: BoundedSites) -> bool:
    """Whether some coefficients are mixtures on trees."""
    return bool(_trees(sites))


def fitted_start(sites: BoundedSites, linear: Any, solver: PrecisionSolver, theta: np.ndarray, *, learn: bool) -> Start:
    """Return hyperparameters, unknowns and variances to start from.

    Parameters
    ----------
    sites : BoundedSites
    linear : linear part of the compiled form
    solver : PrecisionSolver
    theta : ndarray, (p,)
        Unconstrained hyperparameters; those that no mixture depends on stay there.
    learn : bool
        Whether the others are fitted.
    """
    unknowns = _interpolation(sites, linear, solver, theta)
    fitted = linear.forward(unknowns)
    spread, high = np.zeros_like(fitted), np.zeros_like(fitted)
    for tree, here in _trees(sites):
        levels = tree.forest.levels(fitted[here])
        spread[here] = np.concatenate([np.full(level.size, _SPREAD * np.mean(level**2)) for level in levels])
        high[here] = np.concatenate([_largest(level) for level in levels])
    least = np.finfo(float).eps * max(float(np.max(spread)), np.finfo(float).tiny)
    for _, here in _trees(sites):
        spread[here] = np.maximum(spread[here], least)

    def assigned(tree: CompiledTreeMixture, here: slice, arguments: tuple[Any, ...]) -> tuple[float, Any]:
        return tree.assigned(np.zeros(here.stop - here.start), *arguments[:2], high[here], *arguments[2:])

    def summed(tree: CompiledTreeMixture, here: slice, arguments: tuple[Any, ...]) -> tuple[float, Any]:
        found, gradient = tree.bounded_with_gradient(np.zeros(here.stop - here.start), *arguments)
        return float(found.value.sum()), gradient

    for value in (assigned, summed) if learn else ():
        theta = _raised(sites, theta, fitted, spread, value)
    prior = sites.prior(theta)
    alone = variances_alone(sites, prior, prior.mean + fitted)
    return Start(theta, unknowns, np.where(spread > 0.0, spread, alone))


def _trees(sites: BoundedSites) -> list[tuple[CompiledTreeMixture, slice]]:
    pairs = zip(sites.sites, sites.slices)
    return [(site, here) for site, here in pairs if isinstance(site, CompiledTreeMixture)]


def _interpolation(sites: BoundedSites, linear: Any, solver: PrecisionSolver, theta: np.ndarray) -> np.ndarray:
    """Return the unknowns, (N,), that fit the data under Gaussian potentials in place of the mixtures."""
    prior = sites.prior(theta)
    z = np.ones(len(prior.mean))
    first = sites.bounded(prior, prior.mean, z)
    own = np.zeros(len(z), dtype=bool)
    ridge = np.zeros(len(z))
    for tree, here in _trees(sites):
        own[here] = True
        parts = [np.full(level.size, 0.25**k) for k, level in enumerate(tree.forest.levels(ridge[here]))]
        ridge[here] = np.concatenate(parts)
    ridge *= _RIDGE * float(np.median(first.precision[~own]))

    def bounded(eta: np.ndarray) -> Bounded:
        found = sites.bounded(prior, eta, z)
        quadratic = (-0.5 * ridge * eta**2, -ridge * eta, ridge, ridge)
        return Bounded(*(np.where(own, one, other) for one, other in zip(quadratic, found)))

    problem = InnerProblem(linear.forward, linear.adjoint, prior.mean, bounded)
    return minimise(problem, np.zeros(linear.size), solver, "irls", max_iter=10, tol=1e-6).unknowns


def _largest(level: np.ndarray) -> np.ndarray:
    """Return 1 for the coefficients of a level that are given to the high state, 0 for others, ravelled."""
    size = np.abs(level.ravel())
    return (size >= np.quantile(size, 1.0 - _HIGH)).astype(float)


def _raised(sites: BoundedSites, theta: np.ndarray, fitted: np.ndarray, spread: np.ndarray, value: Value) -> np.ndarray:
    """Return the hyperparameters that maximise a value of all mixtures and the prior, where mixtures depend on them."""

    def evaluate(point: np.ndarray, density: str = "natural") -> tuple[float, np.ndarray]:
        prior = sites.prior(point)
        eta = prior.mean + fitted
        gradients = [tuple(np.zeros(y.size) for _ in own) for y, own in zip(sites.observed, prior.parameters)]
        total = prior.log_prior
        for i, (tree, here) in enumerate(zip(sites.sites, sites.slices)):
            if isinstance(tree, CompiledTreeMixture):
                own, gradients[i] = value(tree, here, (eta[here], spread[here], *prior.parameters[i]))
                total += own
        return total, sites.form.pullback(point, np.zeros(len(eta)), None, gradients, density=density)

    free = evaluate(theta, "none")[1] != 0.0

    def negative(part: np.ndarray) -> tuple[float, np.ndarray]:
        total, gradient = evaluate(_with(theta, free, part))
        return -total, -gradient[free]

    if not free.any():
        return theta
    options = {"maxiter": _ITERATIONS}
    found = scipy.optimize.minimize(negative, theta[free], jac=True, method="L-BFGS-B", options=options)
    return _with(theta, free, found.x)


def _with(theta: np.ndarray, free: np.ndarray, part: np.ndarray) -> np.ndarray:
    out = theta.copy()
    out[free] = part
    return out
