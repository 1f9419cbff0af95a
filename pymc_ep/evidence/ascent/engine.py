"""Sites at the maximum of a function of the posterior: Laplace's approximation and two variational bounds.

As in EP, sites exp(b f - pi f^2 / 2) replace the factors t(f), and the posterior is the prior times them. Each
approximation has the fixed point

    pi = c,    b - pi m = g,

where m is the posterior mean, and g and c are the slope and the negative curvature of one of three functions: of log t
at m; of the expected log t, in m, under the marginal N(m, V); or of the log of the best Gaussian lower bound on t under
N(m, V). In this order they maximise

    Laplace:               sum log t(m) - (m - m0)^T K^{-1} (m - m0) / 2,
    variational Gaussian:  sum E log t - KL(posterior || prior)  (Opper and Archambeau 2009),
    local bounds:          sum E log bound - KL(posterior || prior)  (Seeger and Nickisch 2011).

A step goes from the present sites towards the sites of g and c. A full step is Newton's for Laplace, a natural gradient
step (Khan and Lin 2017) for the variational Gaussian, and one of expectation maximisation for local bounds. The
function rises along it at first: its derivative is a quadratic form in the posterior covariance, or in the inverse of
Fisher's information. The step is halved until the function does not fall. The steps of the two bounds converge
linearly. For these an extrapolation of the last steps is tried first, and accepted if the bound does not fall.
"""

from collections.abc import Callable, Sequence
from copy import copy
from typing import Any, NamedTuple, cast

import numpy as np

from pymc_ep.engines.base import Status
from pymc_ep.evidence.ep.engine import settled_status, with_slopes
from pymc_ep.evidence.ep.sweep import KNOWN, Problem, Sweep, group_slices
from pymc_ep.exceptions import NumericalError
from pymc_ep.numerics.gaussian.protocol import ROUNDING
from pymc_ep.numerics.optimise.anderson import anderson
from pymc_ep.sites.base import Site, Tilted
from pymc_ep.sites.compiled import CompiledSite
from pymc_ep.sites.expectations import Expected

__all__ = ["EXPECTED", "LAPLACE", "LOCAL", "Ascent", "Rule", "State"]

_DEPTH = 5
"""Most steps in the Anderson extrapolation, as in EP."""
_LEAST_STEP = 2.0**-30
"""Fraction of a full step below which the ascent gives up: the function then changes by no more than its rounding."""


class Rule(NamedTuple):
    """The function that is maximised, by its terms for single sites.

    Attributes
    ----------
    expected : callable
        ``expected(site, y, mean, variance, *parameters)`` returns log t, its expectation, or the expected log of the
        bound, (n,), with slope g and negative curvature c, at marginals of the given moments, (n,) each.
    slopes : callable
        ``slopes(site, y, mean, variance, moved, *parameters)`` returns the derivatives of the log evidence in the
        parameters of sites, (n,) each. `moved` is K u of `pymc_ep.evidence.ascent.evidence`, (n,), zero for bounds.
    of_variance : bool
        Whether the function depends on the variances of the posterior, as the two bounds do, whose maximum is the log
        evidence.
    lacks : callable
        ``lacks(site)`` returns the reason why the function is not defined for a site; empty where it is.
    """

    expected: Callable[..., Expected]
    slopes: Callable[..., tuple[np.ndarray, ...]]
    of_variance: bool
    lacks: Callable[[Site], str]

    def refusal(self, site: Site) -> str:
        """Return the reason why the rule does not apply to a likelihood with this site; empty where it does."""
        return f"a site is a {site.name}, known to EP alone" if site.predictors > 1 else self.lacks(site)


def _at_mean(
    site: CompiledSite, y: np.ndarray, mean: np.ndarray, variance: np.ndarray, *values: np.ndarray
) -> Expected:
    return site.at_point(y, mean, *values)


def _below(site: CompiledSite, y: np.ndarray, mean: np.ndarray, variance: np.ndarray, *values: np.ndarray) -> Expected:
    # A predictor that is known has no variance, and a Laplace site at its peak no bound then.
    bound = site.bounded(y, mean, np.where(variance > 0.0, variance, KNOWN), *values)
    return Expected(bound.value, bound.gradient, bound.precision)


def _slopes_at_mean(site: CompiledSite, y: Any, mean: Any, variance: Any, moved: Any, *values: Any) -> tuple[Any, ...]:
    # Of log t + moved (log t)' + V (log t)'' / 2: the last is from -log|I + K Pi| / 2, with Pi = -(log t)''.
    return site.point_parameter_gradient(y, mean, moved, 0.5 * variance, *values)


def _expected_slopes(site: CompiledSite, y: Any, mean: Any, variance: Any, moved: Any, *values: Any) -> tuple[Any, ...]:
    return site.expected_parameter_gradient(y, mean, variance, *values)


def _slopes_below(site: CompiledSite, y: Any, mean: Any, variance: Any, moved: Any, *values: Any) -> tuple[Any, ...]:
    return site.bounded_parameter_gradient(y, mean, np.where(variance > 0.0, variance, KNOWN), *values)


def _no_curvature(site: Site) -> str:
    return f"the log density of a {site.name} site has a kink, where a mode has no curvature" if site.kinked else ""


def _no_expectation(site: Site) -> str:
    vanishes = f"a {site.name} site vanishes at some predictors, so that its expected log is minus infinity"
    return vanishes if site.vanishes else ""


def _no_bound(site: Site) -> str:
    return "" if site.has_bound else f"no Gaussian lower bound on a {site.name} site is known"


LAPLACE = Rule(_at_mean, _slopes_at_mean, False, _no_curvature)
EXPECTED = Rule(CompiledSite.expected, _expected_slopes, True, _no_expectation)
LOCAL = Rule(_below, _slopes_below, True, _no_bound)


class State(NamedTuple):
    """Sites and the posterior under them.

    Attributes
    ----------
    shift, precision : ndarray, (n,)
    sweep : Sweep
        Its sites are the ones to which a full step leads. Its ``tilted`` has the values and derivatives of
        `Rule.expected`, its cavities are the posterior's own marginals, and ``log_z`` is Laplace's log evidence or the
        bound.
    objective : float
        The value that is maximised.
    damping : float
        Length of the last step, as a fraction of a full one; zero where steps of any length lower the objective.
    points, residuals : ndarray, (k, 2 n)
        The last k sites and their full steps, for the extrapolation of a bound; k = 1 for Laplace.
    """

    shift: np.ndarray
    precision: np.ndarray
    sweep: Sweep
    objective: float
    damping: float
    points: np.ndarray
    residuals: np.ndarray


class Packed(NamedTuple):
    """Values from which a `State` is rebuilt; `points` and `residuals` are without their last row."""

    shift: np.ndarray
    precision: np.ndarray
    damping: float
    points: np.ndarray
    residuals: np.ndarray


class Ascent:
    """Ascent to the sites of a `Rule`, on NumPy.

    Parameters
    ----------
    rule : Rule
    sites : sequence of CompiledSite
        One for each group of observations.
    tol : float
        Largest change of a site at which the iteration ends, as in EP.
    """

    power, schedule = 0.0, "parallel"
    """As the attributes of EP: no share of a site is removed, and all are updated at once."""

    def __init__(self, rule: Rule, sites: Sequence[CompiledSite], *, tol: float):
        self.rule = rule
        self.sites = list(sites)
        self.tol = tol
        self.log_concave = all(s.site.log_concave for s in self.sites)
        self.one_fixed_point = self.log_concave
        """Whether a fit is the same from any start, as with log-concave sites alone."""

    def with_sites(self, sites: Sequence[CompiledSite]) -> "Ascent":
        """Return the engine with the same options and other sites."""
        out = copy(self)
        out.sites = list(sites)
        return out

    def rough(self, n: int, effective: float) -> "Ascent":
        """Return the engine as it is: Laplace's evidence, not stationary in the sites, needs the full tolerance."""
        return self

    def init(self, problem: Problem, start: tuple[np.ndarray, np.ndarray] | None = None) -> State:
        """Return the state at sites `start`, (shift, precision), (n,) each, or at the prior.

        Raises
        ------
        NumericalError
            Where the posterior is improper there, or the function not finite.
        """
        shift, precision = (np.array(p) for p in start or np.zeros((2, len(problem.mean))))
        state = self._evaluated(problem, shift, precision, 1.0)
        if state is None:
            raise NumericalError(
                "The sites that the fit starts from have no proper posterior, or the log density of some observation "
                "is not finite there; fit with method='ep', or give the latent variables narrower priors."
            )
        return state

    def step(self, problem: Problem, state: State) -> State:
        """Return the state after an extrapolation or, if that lowers the function, a step to the sites of g and c.

        The step is the longest of a full one, a half, a quarter, ... that does not lower the function beyond rounding.
        Without any, return `state` with damping zero.
        """
        least = state.objective - _rounding(problem, state)
        if len(state.points) > 1:
            shift, precision = np.split(self._extrapolated(state), 2)
            trial = self._evaluated(problem, shift, precision, 1.0, state)
            if trial is not None and trial.objective >= least:
                return trial
        damping = 1.0
        while damping >= _LEAST_STEP:
            ends = ((state.shift, state.sweep.shift), (state.precision, state.sweep.precision))
            shift, precision = ((1.0 - damping) * old + damping * new for old, new in ends)
            trial = self._evaluated(problem, shift, precision, damping, state)
            if trial is not None and trial.objective >= least:
                return trial
            damping /= 2.0
        return state._replace(damping=0.0)

    def _extrapolated(self, state: State) -> np.ndarray:
        """Return sites, (2 n,), by Anderson extrapolation of the last full steps, in slopes b - pi m and precisions."""
        posterior = state.sweep.posterior
        # Slopes times V^1/2, and precisions times V, are free of the predictors' units.
        weights = np.concatenate([np.sqrt(posterior.variance), posterior.variance])
        points, residuals = (with_slopes(x, posterior.mean, -1.0) for x in (state.points, state.residuals))
        return with_slopes(anderson(points, residuals, weights)[None], posterior.mean, 1.0)[0]

    def _evaluated(
        self,
        problem: Problem,
        shift: np.ndarray,
        precision: np.ndarray,
        damping: float,
        before: State | None = None,
    ) -> State | None:
        """Return the state after `before`, at given sites; None for an improper posterior or an infinite function."""
        log_concave = self.log_concave and bool((precision >= 0.0).all())
        posterior = problem.prior.posterior(problem.mean, shift, precision, log_concave=log_concave)
        variance = posterior.variance
        if not bool(posterior.proper) or not np.all(variance >= 0.0):
            return None
        expectations = [
            self.rule.expected(site, y, posterior.mean[rows], variance[rows], *values)
            for site, y, values, rows in zip(
                self.sites, problem.observed, problem.parameters, group_slices(problem.observed)
            )
        ]
        value, gradient, target = (np.concatenate(field) for field in zip(*expectations))
        if not np.isfinite([value.sum(), gradient.sum(), target.sum()]).all():
            return None
        if self.log_concave:
            target = np.maximum(target, 0.0)
        # KL(posterior || prior) = (energy - tr(Pi V) + log|I + K Pi|) / 2, as K^-1 V = I - Pi V.
        # Laplace's log Z = density - log|I + K Pi| / 2 has no tr(Pi V).
        density = float(value.sum() - 0.5 * problem.prior.energy(posterior, problem.mean))
        spread = 0.5 * float(precision @ variance) if self.rule.of_variance else 0.0
        log_z = density + spread - 0.5 * float(posterior.log_det)
        change = np.maximum(
            np.abs(target - precision) * variance, np.abs(gradient - posterior.weights) * np.sqrt(variance)
        )
        tilted = Tilted(value, posterior.mean, variance, gradient, target)
        # A full step leads to pi = c and b = g + c m.
        sweep = Sweep(
            gradient + target * posterior.mean,
            target,
            posterior,
            posterior.mean,
            variance,
            tilted,
            log_z,
            change.max(),
            True,
            problem.prior.rounding(posterior),
        )
        objective = log_z if self.rule.of_variance else density
        point = np.concatenate([shift, precision])[None]
        residual = np.concatenate([sweep.shift, sweep.precision])[None] - point
        if before is not None and self.rule.of_variance:
            point = np.concatenate([before.points, point])[-_DEPTH:]
            residual = np.concatenate([before.residuals, residual])[-_DEPTH:]
        return State(shift, precision, sweep, objective, damping, point, residual)

    def objective(self, state: State) -> float:
        """Return Laplace's log evidence, or the bound."""
        return float(state.sweep.log_z)

    def change(self, state: State) -> float:
        """Return the largest change of a site in a full step."""
        return float(state.sweep.change)

    def rounding(self, state: State) -> float:
        """Return the rounding error of posterior means, in standard deviations, and the relative one of variances."""
        return max(float(state.sweep.rounding), ROUNDING * self.change(state))

    def exhausted(self, state: State, iterations: int) -> str:
        """Return the sentence for a fit that is not finished at the largest number of iterations."""
        return f"stopped after {iterations} iterations with a change of {self.change(state):.2g}; raise max_iter"

    def finished(self, state: State) -> Status | None:
        """Return how the iteration ended, by its change and the tolerance, or None while it goes on."""
        settled, stuck = self.change(state) <= self.tol, state.damping == 0.0
        status = settled_status(self.change(state), self.rounding(state), settled=settled, ended=settled or stuck)
        if status is None and stuck:
            return Status(
                False,
                f"stalled with a change of {self.change(state):.2g}: no step raises the objective, as where a log "
                f"density has a kink at the mode, or sites that are not log-concave meet at a saddle; use method='ep'",
            )
        return status

    def packed(self, state: State) -> Packed:
        """Return the values from which a state is rebuilt."""
        return Packed(state.shift, state.precision, state.damping, state.points[:-1], state.residuals[:-1])

    def unpacked(self, problem: Problem, packed: Packed) -> State:
        """Return the state that was packed, by one evaluation at its sites."""
        state = cast(State, self._evaluated(problem, packed.shift, packed.precision, packed.damping))
        points = np.concatenate([packed.points, state.points])
        return state._replace(points=points, residuals=np.concatenate([packed.residuals, state.residuals]))


def _rounding(problem: Problem, state: State) -> float:
    """Return the rounding error, in nats, of the maximised function, a difference of large sums.

    The relative error of each sum is the posterior's. Without this error a fit of 234 bits under a smooth process
    stalled 7e-6 from its mode.
    """
    at = state.sweep
    energy, log_det = problem.prior.energy(at.posterior, problem.mean), at.posterior.log_det
    size = np.abs(at.tilted.log_z).sum() + abs(energy) + abs(log_det) + 1.0
    return max(4.0 * ROUNDING, float(at.rounding)) * float(size)
