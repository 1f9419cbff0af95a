"""Start of fits whose coefficients are tree mixtures.

The bound has several maxima, and the start decides among them (Ko and Seeger 2012). If both states have the same prior
it also has a saddle where they are equal. The start is found in three steps:

1. Interpolation. Gaussian potentials of fixed precision replace the mixtures. Their scales double from each level to
   the next coarser one, as in pictures.
2. Hyperparameters. The largest coefficients of each level are assigned to the high state, and the hyperparameters of
   the mixtures maximise likelihood times prior, first of this assignment, then of the mixtures. These are the start of
   EP's search.
3. Unknowns and variances, for the double loop: the posterior under Gaussian potentials with the expected precisions of
   the states.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from pymc_ep.engines.ascent import lbfgs_steps
from pymc_ep.engines.prior import FactorValues
from pymc_ep.models.sparse_linear.engine.bounded_sites import BoundedSites, FactorSites
from pymc_ep.models.sparse_linear.engine.inner_loop import Inner, InnerProblem, minimise
from pymc_ep.models.sparse_linear.engine.outer_loop import Start
from pymc_ep.models.sparse_linear.engine.precision_solvers import LinearPart, PrecisionSolver
from pymc_ep.models.sparse_linear.engine.tree_states import state_parameters, trees
from pymc_ep.sites.bounds import Bounded
from pymc_ep.sites.tree_mixture import CompiledTreeMixture

__all__ = ["first_hyperparameters", "fitted_start"]

_RIDGE = 0.01
"""Precision of the Gaussian potentials on the finest coefficients, relative to the precision of the data: a compromise
between noise in the coefficients, to which the states are fitted, and their shrinkage."""
_HIGH_SHARE = 0.2
"""Share of a level's coefficients that is first assigned to the high state: few, as large coefficients are sparse."""
_SPREAD = 0.01
"""Variance of a coefficient, relative to the level's mean square, at which bounds are evaluated. Not zero, as
potentials may have an infinitely sharp peak."""
_LEAST_SQUARE = 0.1
"""Least mean square of a level's coefficients, relative to the noise variance. Coefficients may be exactly zero, and
scales that start there give precisions too large to factorise."""
_ITERATIONS = 30
"""Largest number of L-BFGS iterations on the hyperparameters of the mixtures. A start need not be at the maximum."""

Value = Callable[[CompiledTreeMixture, slice, tuple[Any, ...]], tuple[float, Any]]
"""Function of a mixture, its slice among all sites, and the means, variances and parameters of its sites. It returns an
objective and the derivatives in the parameters."""


def first_hyperparameters(sites: FactorSites, theta: np.ndarray) -> np.ndarray:
    """Return the hyperparameters, (p,), at which EP starts its search.

    Values other than the form's initial ones were given by the user and are kept. In the interpolation the
    factors that are no mixtures are replaced by rough Gaussian approximations.
    """
    prior = sites.form.prior(theta)
    shift, precision = sites.form.first_sites(prior)
    data_precision = _data_precision(sites, precision)
    ridge = _ridge(sites, data_precision)
    in_tree = ~np.isnan(ridge)
    # exp(-r eta^2 / 2) in place of mixtures, exp(b eta - pi eta^2 / 2) with typical moments elsewhere.
    shift, precision = np.where(in_tree, 0.0, shift), np.where(in_tree, ridge, precision)
    posterior = prior.gaussian.posterior(prior.mean, shift, precision, log_concave=True)
    return _fitted_theta(sites, theta, np.asarray(posterior.mean) - np.asarray(prior.mean), data_precision)


def fitted_start(
    sites: BoundedSites, linear: LinearPart, solver: PrecisionSolver, theta: np.ndarray, *, learn: bool
) -> Start:
    """Return hyperparameters, unknowns and variances at which the double loop starts.

    Parameters
    ----------
    sites : BoundedSites
    linear : LinearPart
    solver : PrecisionSolver
    theta : ndarray, (p,)
        Unconstrained hyperparameters.
    learn : bool
        Whether hyperparameters of the mixtures are fitted. Those that differ from the form's initial values were given
        by the user and are kept.
    """
    prior = sites.prior(theta)
    data_precision = _data_precision(sites, sites.form.first_sites(prior)[1])
    smooth = _posterior_under_gaussians(sites, linear, solver, prior, _ridge(sites, data_precision))
    if learn:
        theta = _fitted_theta(sites, theta, smooth.fitted, data_precision)
        prior = sites.prior(theta)
    posterior = _posterior_under_gaussians(
        sites, linear, solver, prior, _expected_precision(sites, prior, smooth, solver)
    )
    return Start(theta, posterior.unknowns, solver.variances(posterior.bounded.precision).values)


def _posterior_under_gaussians(
    sites: BoundedSites, linear: LinearPart, solver: PrecisionSolver, prior: FactorValues, ridge: np.ndarray
) -> Inner:
    """Return the inner loop's result with Gaussian potentials of precision `ridge` in place of the mixtures.

    `ridge`, (n,), is NaN for sites that are no mixture.
    """
    in_tree, z = ~np.isnan(ridge), 1.0 / sites.form.first_sites(prior)[1]

    def bounded(eta: np.ndarray) -> Bounded:
        bounds = sites.bounded(prior, eta, z)
        # For log t = -r eta^2 / 2, up to a constant: value, d value / d eta, pi and -d^2 value / d eta^2.
        quadratic = (-0.5 * ridge * eta**2, -ridge * eta, ridge, ridge)
        return Bounded(*(np.where(in_tree, gaussian, bound) for gaussian, bound in zip(quadratic, bounds)))

    sites.require_determined(solver.proper(bounded(prior.mean).precision))
    problem = InnerProblem(linear.forward, linear.adjoint, prior.mean, bounded)
    return minimise(problem, np.zeros(linear.size), solver, "irls", max_iter=10, tol=1e-6)


def _data_precision(sites: FactorSites, precision: np.ndarray) -> float:
    """Return the median precision of the sites that are no mixture, from the precisions of all, (n,)."""
    data = np.ones(len(precision), dtype=bool)
    for _, _, places in trees(sites):
        data[places] = False
    return float(np.median(precision[data]))


def _ridge(sites: FactorSites, data_precision: float) -> np.ndarray:
    """Return precisions, (n,), of the Gaussian potentials in place of mixtures; NaN for other sites.

    Each level has a quarter of the precision of the next finer one.
    """
    ridge = np.full(sites.slices[-1].stop, np.nan)
    for _, tree, places in trees(sites):
        ridge[places] = np.concatenate([np.full(np.prod(s), 0.25**k) for k, s in enumerate(tree.forest.shapes)])
    return _RIDGE * data_precision * ridge


def _expected_precision(sites: BoundedSites, prior: FactorValues, smooth: Inner, solver: PrecisionSolver) -> np.ndarray:
    """Return E[1 / V | data], (n,), where V is the variance of a mixture in its state; NaN for other sites.

    Let s and z be mean and variance of a coefficient eta in the interpolation, and r the precision of its potential.
    The likelihood of eta is then exp(s eta / z - lambda eta^2 / 2), lambda = 1 / z - r, and a state of variance V has
    the evidence (1 + lambda V)^{-1/2} exp((s / z)^2 V / (1 + lambda V) / 2). This evidence accounts for the noise in s.
    The states' densities at x = z + s^2, as in the bound, do not: with them a learned tree would assign nodes of noise,
    together with their children, to the high state.
    """
    out = np.full(len(smooth.fitted), np.nan)
    z = solver.variances(smooth.bounded.precision).values
    for i, tree, places in trees(sites):
        y, parameters = sites.observed[i], prior.parameters[i]
        low, high = (
            np.asarray(site.typical(y, *state_values)[1])
            for site, state_values in zip((tree.site.low, tree.site.high), state_parameters(tree, parameters))
        )
        lam = np.maximum(1.0 / z[places] - smooth.bounded.precision[places], 0.0)
        pull = (smooth.fitted[places] / z[places]) ** 2
        log_evidence = [0.5 * pull * v / (1.0 + lam * v) - 0.5 * np.log1p(lam * v) for v in (low, high)]
        states = tree.forest.posterior(log_evidence[1] - log_evidence[0], *parameters[-2:])
        # E[1 / V] = (1 - q) / V_low + q / V_high, with q = P(high | data).
        out[places] = (1.0 - states.high) / low + states.high / high
    return out


def _fitted_theta(sites: FactorSites, theta: np.ndarray, fitted: np.ndarray, data_precision: float) -> np.ndarray:
    """Return the hyperparameters, (p,), at which the mixtures best fit the coefficients `fitted`, (n,)."""
    spread, high = np.zeros_like(fitted), np.zeros_like(fitted)
    for _, tree, places in trees(sites):
        levels = tree.forest.levels(fitted[places])
        squares = [max(np.mean(level**2), _LEAST_SQUARE / data_precision) for level in levels]
        # z of each coefficient in x = z + s^2.
        spread[places] = _SPREAD * np.repeat(squares, [level.size for level in levels])
        high[places] = np.concatenate([_largest(level) for level in levels])

    def assigned(tree: CompiledTreeMixture, places: slice, arguments: tuple[Any, ...]) -> tuple[float, Any]:
        return tree.assigned(np.zeros(places.stop - places.start), *arguments[:2], high[places], *arguments[2:])

    def summed(tree: CompiledTreeMixture, places: slice, arguments: tuple[Any, ...]) -> tuple[float, Any]:
        bounds, gradient = tree.bounded_with_gradient(np.zeros(places.stop - places.start), *arguments)
        return float(bounds.value.sum()), gradient

    movable = theta == sites.form.start
    for value in (assigned, summed):
        theta, any_free = _maximised(sites, theta, movable, fitted, spread, value)
        if not any_free:
            # All scales are given, and tell the states apart. Fitting the probabilities as well, to an interpolation
            # free of noise, led to bounds lower by tens of nats, and to errors larger by a decibel.
            break
    return theta


def _largest(level: np.ndarray) -> np.ndarray:
    """Return 1 for the coefficients of a level that are assigned to the high state, else 0, ravelled."""
    size = np.abs(level.ravel())
    return (size >= np.quantile(size, 1.0 - _HIGH_SHARE)).astype(float)


def _maximised(
    sites: FactorSites,
    theta: np.ndarray,
    movable: np.ndarray,
    fitted: np.ndarray,
    spread: np.ndarray,
    value: Value,
) -> tuple[np.ndarray, bool]:
    """Return theta at the maximum of log prior plus `value` summed over mixtures, and whether any entry was free.

    Free are the entries of theta where `movable`, (p,), is true and on which the values of the mixtures depend.
    """

    def evaluate(point: np.ndarray, density: str = "natural") -> tuple[float, np.ndarray]:
        prior = sites.prior(point)
        eta = prior.mean + fitted
        gradients = [tuple(np.zeros(y.size) for _ in of_group) for y, of_group in zip(sites.observed, prior.parameters)]
        total = prior.log_prior
        for i, tree, places in trees(sites):
            of_group, gradients[i] = value(tree, places, (eta[places], spread[places], *prior.parameters[i]))
            total += of_group
        return total, sites.form.pullback(point, np.zeros(len(eta)), None, gradients, density=density)

    free = (evaluate(theta, "none")[1] != 0.0) & movable

    def evaluate_free(free_values: np.ndarray) -> tuple[float, np.ndarray]:
        total, gradient = evaluate(_replaced(theta, free, free_values))
        return total, gradient[free]

    if not free.any():
        return theta, False
    return _replaced(theta, free, lbfgs_steps(evaluate_free, theta[free], _ITERATIONS)[0]), True


def _replaced(theta: np.ndarray, free: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return theta, (p,), with new values of its free entries."""
    out = theta.copy()
    out[free] = values
    return out
