"""Expectation propagation on the latent Gaussian form (Minka 2001; Ko and Seeger 2015).

Sites exp(b f - pi f^2 / 2) replace the likelihood factors t(f) of n predictors f. A sweep updates all n sites. For each
it divides the posterior by the site to the power eta, in (0, 1], which gives the cavity. A Gaussian with the mean and
variance of the cavity times t^eta, divided by the cavity, is the new site to the power eta. `EP` seeks a fixed point of
all n updates. The sweep is a pure function of arrays, run by NumPy or jitted by JAX.
"""

from collections.abc import Sequence
from copy import copy
from typing import cast

import numpy as np

from pymc_ep.engines.base import Status
from pymc_ep.evidence.ep.cavities import without_negative
from pymc_ep.evidence.ep.state import Packed, State
from pymc_ep.evidence.ep.sweep import KNOWN, Kinds, Problem, Sweep, counted_from, group_slices, joined_moments, sweep_of
from pymc_ep.exceptions import NumericalError
from pymc_ep.numerics.backend.namespace import Array, is_jax
from pymc_ep.numerics.gaussian.protocol import ROUNDING, CoordinatePrior, GaussianPosterior, GaussianPrior
from pymc_ep.numerics.gaussian.sparse_coefficient_space import SparseFactorPrior
from pymc_ep.numerics.optimise.anderson import anderson
from pymc_ep.sites.base import Tilted
from pymc_ep.sites.compiled import CompiledSite, check_finite

__all__ = ["EP", "settled_status", "with_slopes"]

_DEPTH = 5
"""Most iterates in the Anderson extrapolation; more gained nothing on the benchmark's problems."""
_NEAR = 1.0
"""Change, in posterior standard deviations, below which steps are extrapolated. Farther away the update is too
nonlinear in the sites."""
_CAREFUL_DAMPING, _CLOSE = 0.5, 0.3
"""Damping of the first steps from given sites where the prior is flat in all coefficients, and the change below which
longer steps follow. Under such a prior all sites move together, and full steps overshoot."""
_GROWTH = 3.0
"""Factor by which the change may grow in one accepted step. EP is not monotone: a lower limit rejects useful steps, a
higher one accepts overshooting."""
_SMALL_CHANGE = 1e-2
"""Change, in posterior standard deviations, below which growth is no sign of overshooting: such short steps cannot lead
far."""
_FIRST_DECREASE = 0.5
"""Largest change after the first plain update, relative to the change before it, with which the update is accepted;
else sites start from the tilted marginals. The plain update is the better start unless it overshoots."""
_DAMPING_FLOOR = 0.1
"""Damping at or below which a growing change causes no further halving; an improper posterior still does. A lower value
makes EP more stable but slower."""
_LEAST_DAMPING = 1e-3
"""Damping below which EP gives up: after ten halvings posteriors are still improper."""
_PATIENCE, _LAST_PATIENCE = 10, 50
"""Numbers of steps without a new least change after which automatic damping halves, and after which EP gives up. The
second allows for four halvings."""
_DIVERGED = 2.0
"""Change above which the iteration counts as divergent, in units of a posterior standard deviation or of the least
change so far, whichever is larger. A lower limit restarts at the mode where EP would have come back; a higher one
wastes sweeps on a diverging iteration."""
_NARROW = 1e-8
"""Cavity variance, relative to the prior variance, at which tilted moments give the site's slope and curvature at a
point: narrow next to any site, and well above rounding."""
_NEWTON_STEPS, _NEWTON_TOL = 20, 0.1
"""Largest number of Newton steps, and the step, in posterior standard deviations, at which they end. The mode is only
a start for EP, so that a tenth is enough."""
_CLOSE_TO_MODE, _MODE_STEPS = 1e-3, 40
"""Cavity variance, relative to the prior variance, at which the first sites of several predictors are computed, and the
largest number of steps that such sites make towards the mode. Many are needed where a location is far from the
observations: the log of a scale rises by one half in each step."""
_OUT_OF_REACH = 1e3
"""Largest absolute prior mean of a predictor from which a fit under a flat prior may start: a hundred standard
deviations of the proper prior that replaces the flat one at first."""
_TOLD_ROUNDING, _MOST_ROUNDING = 1e-5, 1e-2
"""Rounding errors of posterior moments, in standard deviations: above the first the status mentions rounding, and above
the second a fit has not converged. Nobody reads digits as small as the first off a result, and the second is below the
Monte Carlo error of a thousand draws."""
_STILL = 1e-6
"""Change, in posterior standard deviations, at which a fit counts as converged although further steps do not lower it.
The change stays at 3e-8 to 2e-7 where quadrature crosses a kink that the site does not declare, as in a censored
Laplace density."""
_ROUGH_FROM, _ROUGHEST, _ROUGH_ERROR = 10.0, 1e3, 1e-6
"""Limits of the tolerance of rough fits, see `EP.rough`: the number of sites above which the tolerance grows in
proportion to that number, the largest factor by which it grows, and the largest error of log Z that it may cause, in
nats. Fits of few sites cost little at the full tolerance, and two ways of writing a model then agree to 1e-6."""
_INNER = 12
"""Largest number of updates of the means alone in a sweep with automatic damping. They cost matrix-vector products and
save factorisations."""


class EP:
    """Expectation propagation.

    Parameters
    ----------
    sites : sequence of CompiledSite
        One for each group of observations.
    power : float
        Fraction of a site that is removed and matched at a time, in (0, 1]; 1 is plain EP.
    damping : float or "auto"
        Length of a step, as a fraction of the full update. ``"auto"`` starts at 1 and extrapolates near the fixed
        point. It halves the fraction where the change grows or stops falling, and where a posterior is improper.
    tol : float
        Largest change of a site at which the iteration ends.
    schedule : {"parallel", "sequential"}
        Update all sites from one posterior, or one after another with a rank-one update after each.
    """

    def __init__(
        self,
        sites: Sequence[CompiledSite],
        *,
        power: float = 1.0,
        damping: float | str = "auto",
        tol: float = 1e-8,
        schedule: str = "parallel",
    ):
        self.sites = list(sites)
        self.power = float(power)
        self.automatic = damping == "auto"
        self.damping = 1.0 if self.automatic else float(damping)
        self.tol = tol
        self.schedule = schedule
        self.log_concave = all(s.site.log_concave for s in self.sites)
        self.inner = _INNER if self.automatic and schedule == "parallel" else 0
        self.joint = any(s.site.predictors > 1 for s in self.sites)
        self.one_fixed_point = all(s.site.log_concave or s.site.predictors > 1 for s in self.sites)
        """Whether fits from any start agree in practice: each site is log-concave, or has several predictors and so
        starts near the mode."""

    def with_sites(self, sites: Sequence[CompiledSite]) -> "EP":
        """Return the engine with the same options and other sites."""
        out = copy(self)
        out.sites = list(sites)
        return out

    def rough(self, n: int, effective: float) -> "EP":
        """Return the engine with a larger tolerance for n sites, which suffices for log Z and its gradient.

        log Z is stationary in the sites. Let each site err by c posterior standard deviations, and let p directions of
        the posterior be determined by n / p sites each. Each direction is then off by n c / p, and log Z by
        p (n c / p)^2 = (n c)^2 / p. `effective` is p, the number of parameters that the data determine, sum_i pi_i V_i
        (Spiegelhalter et al. 2002).
        """
        out = copy(self)
        # c = (p error)^1/2 / n, from (n c)^2 / p = error.
        largest = min(self.tol * min(n / _ROUGH_FROM, _ROUGHEST), float(np.sqrt(_ROUGH_ERROR * effective)) / n)
        out.tol = max(self.tol, largest)
        return out

    def sweep(self, problem: Problem, shift: Array, precision: Array, inner: int = 0) -> Sweep:
        """Return the sweep at sites `shift` and `precision`, (n,) each, with at most `inner` updates of the means.

        For arrays of JAX it is jitted.
        """
        on_jax = is_jax(problem.mean)
        # Its pattern is the host's: JAX has the arrays of its blocks.
        divided = problem.prior if on_jax and isinstance(problem.prior, SparseFactorPrior) else None
        if divided is not None:
            problem = problem._replace(prior=divided.on_device())
        evaluate = sweep_of(tuple(self.sites), self.power, self.log_concave, inner, on_jax)
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            result = evaluate(problem, shift, precision, self.tol)
        return result if divided is None else result._replace(posterior=divided.posterior_on_host(result.posterior))

    def init(self, problem: Problem, start: tuple[np.ndarray, np.ndarray] | None = None) -> State:
        """Return the first state: at sites `start`, (shift, precision), (n,) each, or after an update from the prior.

        All sites are updated where there is no `start`, or its posterior is improper. Sites with a strong pull (a count
        of zero under a rectified link, say) then overshoot together, as each is updated on its own. If the update does
        not halve the change, each site becomes a Gaussian with the moments of its tilted distribution instead, like an
        independent observation: the posterior under such sites cannot overshoot. Under a flat prior with a mean beyond
        `_OUT_OF_REACH`, the means start from the least-squares fit of the predictors to zero. Sites of several
        predictors start near the posterior mode instead, if there is no `start` and the state there is proper.
        """
        n = problem.mean.shape[0]
        if start is not None:
            shift, precision = (np.array(array) for array in start)
            first = self.sweep(problem, shift, precision, self.inner)
            if (
                bool(first.proper)
                and self.automatic
                and float(first.change) > _CLOSE
                and not _informative(problem.prior)
            ):
                unmatched = self._accept(shift, precision, self.sweep(problem, shift, precision), None, 0)
                return unmatched._replace(damping=_CAREFUL_DAMPING, careful=True)
            if bool(first.proper):
                return self._accept(shift, precision, first, None, self.inner)
        if self.joint and start is None and (near := self._near_mode(problem)) is not None:
            return near
        zero = np.zeros(n)
        regular = problem.prior.regular()
        mean = problem.mean
        if regular is not problem.prior and float(np.abs(mean).max()) > _OUT_OF_REACH:
            mean = problem.prior.posterior(mean, zero, np.ones(n)).mean
        prior = self.sweep(problem._replace(prior=regular, mean=mean), zero, zero)
        self._require_finite(problem, prior)
        state = self._accept(zero, zero, prior, None, 0)
        if self.change(state) <= self.tol:
            return state
        plain = self._trial(problem, np.asarray(prior.shift), np.asarray(prior.precision), state)
        if plain is not None and self.change(plain) < _FIRST_DECREASE * self.change(state):
            return _without_history(plain)
        inverse_variance = 1.0 / np.asarray(prior.tilted.variance)
        observed = self._trial(problem, inverse_variance * np.asarray(prior.tilted.mean), inverse_variance, state)
        if observed is not None:
            return _without_history(observed)
        if regular is problem.prior:
            return state
        if plain is not None:
            return _without_history(plain)
        raise NumericalError(
            "Under a flat prior the predictor of some observation is not determined by the other observations (a "
            "coefficient that one observation alone has, or classes that a predictor separates), so that it has no "
            "proper distribution without it. Give the coefficients proper priors, such as pm.Normal."
        )

    def _trial(self, problem: Problem, shift: np.ndarray, precision: np.ndarray, before: State) -> State | None:
        """Return the state after `before` at new sites, (n,) each; None where their sweep is not `proper`."""
        inner = 0 if before.careful else self.inner
        at = self.sweep(problem, shift, precision, inner)
        if not bool(at.proper):
            return None
        return self._accept(shift, precision, at, before, inner)

    def step(self, problem: Problem, state: State) -> State:
        """Return the state after a damped or extrapolated step, or at the mode if the step diverges.

        If that state is improper or overshoots, `state` with half the damping.
        """
        if self.schedule == "sequential":
            shift, precision = sequential_pass(self, problem, state)
        else:
            shift, precision = self._propose(state)
        trial = self._trial(problem, shift, precision, state)
        if trial is not None and self._diverges(trial):
            trial = self._at_mode(problem)
            if trial is not None:
                # Steps of the same length would diverge from there as well.
                trial = trial._replace(damping=state.damping / 2)
        if trial is not None:
            grown = self.change(trial) > _GROWTH * max(self.change(state), _SMALL_CHANGE)
            if not (self.automatic and grown and state.damping > _DAMPING_FLOOR):
                return trial
        return _without_history(state)._replace(damping=state.damping / 2, stale=state.stale + 1)

    def _diverges(self, trial: State) -> bool:
        """Return whether the change in `trial` exceeds `_DIVERGED`, in a fit that may restart at the mode.

        Such a fit is automatic and parallel, with log-concave sites, for which Newton's method finds the mode.
        """
        runs = self.change(trial) > _DIVERGED * max(1.0, trial.best)
        return self.automatic and self.log_concave and self.schedule == "parallel" and runs

    def _at_mode(self, problem: Problem) -> State | None:
        """Return the state at the posterior mode, found by Newton's method; None if its sweep is not `proper`.

        Sites must be log-concave. Slope and curvature of a site are its tilted gradient and precision under a cavity
        of nearly zero variance.
        """
        eta = problem.mean
        narrow = _NARROW * np.asarray(problem.prior.regular().variances()) + KNOWN
        for _ in range(_NEWTON_STEPS):
            at, _ = joined_moments(self.sites, 1.0, eta, narrow, problem.observed, problem.parameters)
            # Newton's step: sites with the slope b - pi eta = g and the curvature -pi of log t at eta.
            shift, precision = np.asarray(at.gradient + at.precision * eta), np.asarray(at.precision)
            posterior = problem.prior.posterior(problem.mean, shift, precision, log_concave=True)
            moved = posterior.mean - eta
            eta = posterior.mean
            spread = np.sqrt(np.abs(posterior.variance)).max()
            if not bool(posterior.proper) or np.abs(moved).max() <= _NEWTON_TOL * spread:
                break
        first = self.sweep(problem, shift, precision, self.inner)
        return self._accept(shift, precision, first, None, self.inner) if bool(first.proper) else None

    def _near_mode(self, problem: Problem) -> State | None:
        """Return the state near the posterior mode, for sites of several predictors; None without a proper sweep.

        Under wide priors the tilted distributions of such sites have ridges and several peaks. Under narrow cavities at
        the mode they have neither.
        """
        narrow = _CLOSE_TO_MODE * np.asarray(problem.prior.regular().variances()) + KNOWN
        joint = Kinds.of(self.sites).joint(problem.observed)

        def at(sites: np.ndarray) -> tuple[float, GaussianPosterior, np.ndarray]:
            """Return the log joint density at the mean under `sites`, (2, n), the posterior, and the next sites."""
            posterior = problem.prior.posterior(problem.mean, *sites)
            eta = np.asarray(posterior.mean)
            tilted, _ = joined_moments(self.sites, 1.0, eta, narrow, problem.observed, problem.parameters)
            precision = without_negative(np.asarray(tilted.precision), narrow, joint)
            # sum log t(m) - (m - m0)^T K^-1 (m - m0) / 2, with log t(m) = log Z under a narrow cavity.
            value = float(np.sum(tilted.log_z)) - 0.5 * float(problem.prior.energy(posterior, problem.mean))
            return value, posterior, np.array([np.asarray(tilted.gradient) + precision * eta, precision])

        sites = np.zeros((2, len(problem.mean)))
        value, posterior, following = at(sites)
        for _ in range(_MODE_STEPS):
            length = 1.0
            while length > _LEAST_DAMPING:
                trial = sites + length * (following - sites)
                higher, moved, then = at(trial)
                if bool(moved.proper) and higher > value:
                    break
                length /= 4.0
            else:
                break
            change = np.abs(np.asarray(moved.mean) - posterior.mean).max()
            sites, value, posterior, following = trial, higher, moved, then
            if change <= _NEWTON_TOL * np.sqrt(np.abs(posterior.variance)).max():
                break
        first = self.sweep(problem, *sites)
        shift, precision = sites
        return self._accept(shift, precision, first, None, 0) if bool(first.proper) else None

    def objective(self, state: State) -> float:
        """Return EP's log evidence."""
        return float(state.sweep.log_z)

    def change(self, state: State) -> float:
        """Return the largest change of a site in a plain update, as in `Sweep`."""
        return float(state.sweep.change)

    def rounding(self, state: State) -> float:
        """Return the rounding error of posterior means, in standard deviations, and the relative one of variances.

        Far from the fixed point the error of the next posterior counts. Its variances may be smaller by a factor as
        large as the change, and its relative rounding errors larger by that factor.
        """
        return max(float(state.sweep.rounding), ROUNDING * self.change(state))

    def exhausted(self, state: State, iterations: int) -> str:
        """Return the sentence for a fit that is not finished at the largest number of iterations."""
        return (
            f"stopped after {iterations} iterations with a change of {self.change(state):.2g}; raise max_iter or "
            f"lower damping"
        )

    def finished(self, state: State) -> Status | None:
        """Return how the iteration ended, by its change and the tolerance, or None while it goes on."""
        change = self.change(state)
        settled = change <= self.tol
        ended = settled or state.stale >= _PATIENCE or state.damping < _LEAST_DAMPING
        if status := settled_status(change, self.rounding(state), settled=settled, ended=ended):
            return status
        if state.stale >= _LAST_PATIENCE:
            return Status(
                False,
                f"stalled: no improvement on a change of {state.best:.2g} in {state.stale} steps; accept it as the "
                f"tolerance, use a smaller power, or check the model for outliers",
            )
        if state.damping < _LEAST_DAMPING:
            return Status(
                False,
                f"stalled with a change of {change:.2g}: steps of {state.damping:.1g} still lead to improper "
                f"posteriors; use a smaller power, or check the model for outliers",
            )
        return None

    def _is_near(self, state: State) -> bool:
        """Return whether the sites are near the fixed point, where plain updates converge."""
        return self.automatic and state.damping == 1.0 and self.change(state) < _NEAR

    def _propose(self, state: State) -> tuple[np.ndarray, np.ndarray]:
        """Return the next sites, (n,) each: extrapolated near the fixed point, a damped update elsewhere."""
        n = len(state.shift)
        damped = state.points[-1] + state.damping * state.residuals[-1]
        if self._is_near(state):
            mean = np.asarray(state.sweep.posterior.mean)
            variance = np.asarray(state.sweep.posterior.variance)
            # Slopes times V^1/2, and precisions times V, are free of the predictors' units.
            weights = np.concatenate([np.sqrt(variance), variance])
            # In terms of the slope at the mean, b - pi m, a change of precision alone does not move the mean.
            points, residuals = (with_slopes(x, mean, -1.0) for x in (state.points, state.residuals))
            extrapolated = with_slopes(anderson(points, residuals, weights)[None], mean, 1.0)[0]
            # Log-concave sites have positive precisions at the fixed point. Those that the extrapolation makes
            # negative take the damped update.
            negative = self.log_concave & (extrapolated[n:] < 0)
            damped = np.where(np.tile(negative, 2), damped, extrapolated)
        return damped[:n], damped[n:]

    def packed(self, state: State) -> Packed:
        """Return the values from which a state is rebuilt; a finished one needs no history."""
        earlier = slice(0 if self.finished(state) else -1)
        return Packed(
            state.shift,
            state.precision,
            state.points[earlier],
            state.residuals[earlier],
            state.damping,
            state.best,
            state.stale,
            state.careful,
            state.inner,
        )

    def unpacked(self, problem: Problem, packed: Packed) -> State:
        """Return the state that was packed, by one sweep."""
        shift, precision, earlier_points, earlier_residuals, *_ = packed
        at = self.sweep(problem, shift, precision, packed.inner)
        point, residual = _iterate(shift, precision, at)
        points, residuals = np.concatenate([earlier_points, point]), np.concatenate([earlier_residuals, residual])
        return State(shift, precision, at, points, residuals, *packed[4:])

    def _accept(self, shift: np.ndarray, precision: np.ndarray, at: Sweep, before: State | None, inner: int) -> State:
        points, residuals = _iterate(shift, precision, at)
        damping, best, stale = self.damping, np.inf, 0
        careful = before is not None and before.careful
        if before is not None:
            points = np.concatenate([before.points, points])[-_DEPTH:]
            residuals = np.concatenate([before.residuals, residuals])[-_DEPTH:]
            damping, best, stale = before.damping, before.best, before.stale + 1
        if float(at.change) < best:
            best, stale = float(at.change), 0
        careful = careful and best >= _CLOSE
        if self.automatic:
            if stale > 0 and stale % _PATIENCE == 0:
                points, residuals, damping = points[-1:], residuals[-1:], max(damping / 2, min(damping, _DAMPING_FLOOR))
            elif stale == 0 and not careful:
                damping = min(1.0, 2.0 * damping)
        else:
            damping = self.damping
        return State(shift, precision, at, points, residuals, damping, best, stale, careful, inner)

    def _require_finite(self, problem: Problem, at: Sweep) -> None:
        """Raise at the first site whose moments are not finite."""
        for site, y, rows in zip(self.sites, problem.observed, group_slices(problem.observed)):
            check_finite(
                Tilted(*(np.asarray(field)[rows] for field in at.tilted)),
                y,
                at.cavity_mean[rows],
                at.cavity_variance[rows],
                site.site.name,
            )


def settled_status(change: float, rounding: float, *, settled: bool, ended: bool) -> Status | None:
    """Return the status of an iteration that has converged, if only to rounding, or that rounding spoils; else None.

    Parameters
    ----------
    change : float
        Largest change of a site in a plain update.
    rounding : float
        Rounding error of posterior moments, in standard deviations.
    settled : bool
        Whether the change is below the tolerance.
    ended : bool
        Whether further steps do not lower the change.
    """
    if ended and rounding > _MOST_ROUNDING:
        return Status(
            False,
            f"lost to rounding: prior variances are so large next to posterior ones, or observations tell so much "
            f"more of a combination of variables than of each, that moments are off by up to {rounding:.2g} "
            f"standard deviations; solver='coefficients' loses no digits to independent wide priors alone, else "
            f"make the priors narrower, or the noise less precise",
        )
    if settled and rounding <= _TOLD_ROUNDING:
        return Status(True, f"converged: the largest change of a site is {change:.2g}")
    if settled or (ended and change <= rounding):
        return Status(
            True,
            f"converged to rounding: the largest change of a site is {change:.2g}, and prior variances are so "
            f"large, or a combination of variables is so well determined, that moments are off by up to "
            f"{rounding:.2g} standard deviations; solver='coefficients' loses no digits to wide priors alone",
        )
    if ended and change <= _STILL:
        return Status(
            True, f"converged: the largest change of a site is {change:.2g}, and further steps do not lower it"
        )
    return None


def _informative(prior: GaussianPrior) -> bool:
    """Return whether the prior is proper at least in some directions, not flat in all coefficients."""
    return prior.regular() is prior or bool(np.any(np.asarray(cast(CoordinatePrior, prior).precision)))


def _iterate(shift: np.ndarray, precision: np.ndarray, at: Sweep) -> tuple[np.ndarray, np.ndarray]:
    """Return the sites as a row, (1, 2 n), and their change by the sweep's update, (1, 2 n)."""
    point = np.concatenate([shift, precision])
    return point[None], (np.concatenate([np.asarray(at.shift), np.asarray(at.precision)]) - point)[None]


def _without_history(state: State) -> State:
    """Return the state with its last iterate alone: extrapolation cannot use the earlier ones."""
    return state._replace(points=state.points[-1:], residuals=state.residuals[-1:])


def with_slopes(rows: np.ndarray, mean: np.ndarray, sign: float) -> np.ndarray:
    """Return rows of (shift, precision), (k, 2 n), with ``sign * precision * mean`` added to the shifts.

    With sign -1 shifts b become slopes b - pi m at `mean` m, (n,), and with sign 1 slopes become shifts.
    """
    n = len(mean)
    return np.concatenate([rows[:, :n] + sign * rows[:, n:] * mean, rows[:, n:]], axis=1)


def sequential_pass(engine: EP, problem: Problem, state: State) -> tuple[np.ndarray, np.ndarray]:
    """Return shift and precision, (n,) each, after updates of the sites in turn, with a new posterior after each.

    This is algorithm 3.5 of Rasmussen and Williams (2006).
    """
    shift, precision = state.shift.copy(), state.precision.copy()
    posterior = problem.prior.posterior_rows(state.sweep.posterior)(slice(None))
    mean = np.asarray(state.sweep.posterior.mean).copy()
    sites = zip(engine.sites, problem.observed, problem.parameters, group_slices(problem.observed))
    for site, y, values, rows in sites:
        for k, index in enumerate(range(rows.start, rows.stop)):
            variance = posterior[index, index]
            # Cavity: 1/v = 1/V_ii - power pi_i, with the mean m_i - power v (b_i - pi_i m_i).
            kept = 1.0 - engine.power * precision[index] * variance
            if kept > 0 and variance > 0:
                cavity = variance / kept
                centre = mean[index] - engine.power * cavity * (shift[index] - precision[index] * mean[index])
                with counted_from(index):
                    tilted = site.moments(y[k], centre, cavity, engine.power, *(v[k] for v in values))
                d_shift = state.damping * (float(tilted.shift) / engine.power - shift[index])
                d_precision = state.damping * (float(tilted.precision) / engine.power - precision[index])
                # With g = 1 + dpi V_ii, V falls by V_i V_i^T dpi / g, and m moves by V_i (db - dpi m_i) / g.
                grown = 1.0 + d_precision * variance
                if grown > 0:
                    column = posterior[:, index].copy()
                    mean += column * ((d_shift - d_precision * mean[index]) / grown)
                    posterior -= np.outer(column, column * (d_precision / grown))
                    shift[index] += d_shift
                    precision[index] += d_precision
    return shift, precision
