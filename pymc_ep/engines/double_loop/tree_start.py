"""Where fits start whose coefficients are mixtures on trees: at a fit of these to what the data suggest.

Both states may have the same prior, and then the bound has a saddle where they are the same; and it has several
maxima, so that the start decides among them (Ko and Seeger 2012). Hyperparameters start from a smooth interpolation of
the data, under Gaussian potentials on the coefficients whose scales double from level to level, as those of pictures
do. Its coefficients are given to the states by size, then all that the mixtures depend on is raised to the maximum of
their likelihood and its own prior. EP's search starts from these. In the double loop unknowns and variances start at
the posterior under Gaussians of the variances that the states, given all of this, are expected to have.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from pymc_ep.engines.ascent import lbfgs_steps
from pymc_ep.engines.double_loop.bounded_sites import BoundedSites, FactorSites
from pymc_ep.engines.double_loop.inner_loop import Inner, InnerProblem, minimise
from pymc_ep.engines.double_loop.outer_loop import Start
from pymc_ep.engines.double_loop.precision_solvers import PrecisionSolver
from pymc_ep.engines.double_loop.tree_states import of_states, trees
from pymc_ep.engines.prior import FactorValues
from pymc_ep.sites.bounds import Bounded
from pymc_ep.sites.tree_mixture import CompiledTreeMixture

__all__ = ["first_hyperparameters", "fitted_start"]

_RIDGE = 0.01
"""Precision of the Gaussian potentials on the finest coefficients, relative to that of the data."""
_HIGH = 0.2
"""Part of the coefficients of a level that is given to the high state at first."""
_SPREAD = 0.01
"""Variance of a coefficient, relative to their mean square in the level, at which bounds are evaluated: potentials may
be infinitely sharp."""
_LEAST = 0.1
"""Mean square of a level's coefficients, relative to the variance of the noise, below which it is taken for that:
coefficients may be exactly zero, and scales that start there leave precisions that no algebra can work with."""
_ITERATIONS = 30
"""Iterations of L-BFGS on all that the mixtures depend on."""

Value = Callable[[CompiledTreeMixture, slice, tuple[Any, ...]], tuple[float, Any]]
"""Of a mixture, its place among all sites, and the means, variances and parameters there: a value and its derivatives
in the parameters."""


def first_hyperparameters(sites: FactorSites, theta: np.ndarray) -> np.ndarray:
    """Return hyperparameters at which EP starts its search, (p,).

    Those that are not a compiled sparse linear form's own, as the user gave them, stay. For the interpolation each of
    the other factors stands by the Gaussian that it is roughly like.
    """
    prior = sites.form.prior(theta)
    shift, precision = sites.form.first_sites(prior)
    of_data = _of_data(sites, precision)
    ridge = _ridge(sites, of_data)
    own = ~np.isnan(ridge)
    shift, precision = np.where(own, 0.0, shift), np.where(own, ridge, precision)
    posterior = prior.gaussian.posterior(prior.mean, shift, precision, log_concave=True)
    return _fitted(sites, theta, np.asarray(posterior.mean) - np.asarray(prior.mean), of_data)


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
        Whether the others are fitted, but for those that are not the form's own, as the user gave them.
    """
    prior = sites.prior(theta)
    of_data = _of_data(sites, sites.bounded(prior, prior.mean, np.ones(len(prior.mean))).precision)
    smooth = _under_gaussians(sites, linear, solver, prior, _ridge(sites, of_data))
    if learn:
        theta = _fitted(sites, theta, smooth.fitted, of_data)
        prior = sites.prior(theta)
    found = _under_gaussians(sites, linear, solver, prior, _likely(sites, prior, smooth, solver))
    return Start(theta, found.unknowns, solver.variances(found.bounded.precision).values)


def _under_gaussians(
    sites: BoundedSites, linear: Any, solver: PrecisionSolver, prior: FactorValues, ridge: np.ndarray
) -> Inner:
    """Return the mean of the unknowns, and the Gaussians of all sites there.

    In place of the mixtures are Gaussian potentials of the precisions `ridge`, (n,); NaN where there is no mixture.
    """
    own, z = ~np.isnan(ridge), np.ones(len(ridge))

    def bounded(eta: np.ndarray) -> Bounded:
        found = sites.bounded(prior, eta, z)
        quadratic = (-0.5 * ridge * eta**2, -ridge * eta, ridge, ridge)
        return Bounded(*(np.where(own, one, other) for one, other in zip(quadratic, found)))

    sites.require_determined(solver.proper(bounded(prior.mean).precision))
    problem = InnerProblem(linear.forward, linear.adjoint, prior.mean, bounded)
    return minimise(problem, np.zeros(linear.size), solver, "irls", max_iter=10, tol=1e-6)


def _of_data(sites: FactorSites, precision: np.ndarray) -> float:
    """Return the median precision of what is no mixture, out of those of all sites, (n,)."""
    data = np.ones(len(precision), dtype=bool)
    for _, _, here in trees(sites):
        data[here] = False
    return float(np.median(precision[data]))


def _ridge(sites: FactorSites, of_data: float) -> np.ndarray:
    """Return precisions of Gaussian potentials in place of mixtures, (n,), relative to the data's; NaN elsewhere."""
    ridge = np.full(sites.slices[-1].stop, np.nan)
    for _, tree, here in trees(sites):
        ridge[here] = np.concatenate([np.full(np.prod(s), 0.25**k) for k, s in enumerate(tree.forest.shapes)])
    return _RIDGE * of_data * ridge


def _likely(sites: BoundedSites, prior: FactorValues, smooth: Inner, solver: PrecisionSolver) -> np.ndarray:
    """Return the expected precision of each mixture given the data, (n,); NaN where there is none.

    With s and z the moments of a coefficient in the interpolation and r the precision of its potential there, the data
    say of it exp(s / z eta - lambda eta^2 / 2) with lambda = 1 / z - r. A state of variance V then has the evidence
    (1 + lambda V)^{-1/2} exp((s / z)^2 V / (1 + lambda V) / 2). Without the noise, as at the bound's own x = z + s^2,
    a learned tree would make whole families high for it.
    """
    out = np.full(len(smooth.fitted), np.nan)
    z = solver.variances(smooth.bounded.precision).values
    for i, tree, here in trees(sites):
        y, parameters = sites.observed[i], prior.parameters[i]
        low, high = (
            np.asarray(site.typical(y, *own)[1])
            for site, own in zip((tree.site.low, tree.site.high), of_states(tree, parameters))
        )
        known = np.maximum(1.0 / z[here] - smooth.bounded.precision[here], 0.0)
        pull = (smooth.fitted[here] / z[here]) ** 2
        log_evidence = [0.5 * pull * v / (1.0 + known * v) - 0.5 * np.log1p(known * v) for v in (low, high)]
        states = tree.forest.posterior(log_evidence[1] - log_evidence[0], *parameters[-2:])
        out[here] = (1.0 - states.high) / low + states.high / high
    return out


def _fitted(sites: FactorSites, theta: np.ndarray, fitted: np.ndarray, of_data: float) -> np.ndarray:
    """Return the hyperparameters under which mixtures fit given coefficients best, of data of that precision."""
    spread, high = np.zeros_like(fitted), np.zeros_like(fitted)
    for _, tree, here in trees(sites):
        levels = tree.forest.levels(fitted[here])
        squares = [max(np.mean(level**2), _LEAST / of_data) for level in levels]
        spread[here] = _SPREAD * np.repeat(squares, [level.size for level in levels])
        high[here] = np.concatenate([_largest(level) for level in levels])

    def assigned(tree: CompiledTreeMixture, here: slice, arguments: tuple[Any, ...]) -> tuple[float, Any]:
        return tree.assigned(np.zeros(here.stop - here.start), *arguments[:2], high[here], *arguments[2:])

    def summed(tree: CompiledTreeMixture, here: slice, arguments: tuple[Any, ...]) -> tuple[float, Any]:
        found, gradient = tree.bounded_with_gradient(np.zeros(here.stop - here.start), *arguments)
        return float(found.value.sum()), gradient

    movable = theta == sites.form.start
    for value in (assigned, summed):
        theta, some = _raised(sites, theta, movable, fitted, spread, value)
        if not some:
            # Scales that are all given tell the states apart already. Probabilities fitted under those to an
            # interpolation that has none of the noise led to bounds lower by tens of nats, and to a decibel less.
            break
    return theta


def _largest(level: np.ndarray) -> np.ndarray:
    """Return 1 for the coefficients of a level that are given to the high state, 0 for others, ravelled."""
    size = np.abs(level.ravel())
    return (size >= np.quantile(size, 1.0 - _HIGH)).astype(float)


def _raised(
    sites: FactorSites,
    theta: np.ndarray,
    movable: np.ndarray,
    fitted: np.ndarray,
    spread: np.ndarray,
    value: Value,
) -> tuple[np.ndarray, bool]:
    """Return the hyperparameters that maximise a value of all mixtures and the prior, and whether it moves with any."""

    def evaluate(point: np.ndarray, density: str = "natural") -> tuple[float, np.ndarray]:
        prior = sites.prior(point)
        eta = prior.mean + fitted
        gradients = [tuple(np.zeros(y.size) for _ in own) for y, own in zip(sites.observed, prior.parameters)]
        total = prior.log_prior
        for i, tree, here in trees(sites):
            own, gradients[i] = value(tree, here, (eta[here], spread[here], *prior.parameters[i]))
            total += own
        return total, sites.form.pullback(point, np.zeros(len(eta)), None, gradients, density=density)

    free = (evaluate(theta, "none")[1] != 0.0) & movable

    def of_free(part: np.ndarray) -> tuple[float, np.ndarray]:
        total, gradient = evaluate(_with(theta, free, part))
        return total, gradient[free]

    if not free.any():
        return theta, False
    return _with(theta, free, lbfgs_steps(of_free, theta[free], _ITERATIONS)[0]), True


def _with(theta: np.ndarray, free: np.ndarray, part: np.ndarray) -> np.ndarray:
    out = theta.copy()
    out[free] = part
    return out
